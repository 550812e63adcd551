//! Panics: each costs one request or one job, and never a thread without a word.
//!
//! ```text
//!   request, job ──► caught ──► its own error, of kind Bug; counted
//!   thread ──► spawn ──► ends by itself: fine
//!                    └─► by a panic: dead, with the cause, for whoever asks how the process is
//! ```
//!
//! What a panic may leave half done belongs to the one that catches it: it closes that part, or begins it anew.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes of what a panic says that are kept.
const SAID_MAX: usize = 300;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Panics that were caught since the process began.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Does `work`; a panic in it is an error that names the `job`.
pub fn caught<T>(job: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What is shared is guarded by locks that do not poison.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(error_of(job, &*panic)))
}

/// The error of a panic that was caught otherwise; it is counted.
pub fn error_of(job: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    PANICS.fetch_add(1, Ordering::Relaxed);
    let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let said = said.unwrap_or("without a word");
    let end = (0..=SAID_MAX.min(said.len())).rev().find(|end| said.is_char_boundary(*end)).unwrap_or(0);
    Error::bug(format!("{job} panicked (a bug of the server): {}", &said[..end]))
}

/// The threads of one part of the process, and which of them died. Clones are handles to the same.
#[derive(Debug, Clone, Default)]
pub struct Threads {
    dead: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Threads {
    /// Starts a thread. It is dead if `work` panics or fails.
    pub fn spawn(
        &self,
        name: &str,
        stack_bytes: usize,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let (own, dead) = (name.to_owned(), self.dead.clone());
        let run = move || {
            if let Err(error) = caught(&own, work) {
                dead.lock().unwrap_or_else(PoisonError::into_inner).insert(own, error.message().to_owned());
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(stack_bytes);
        thread.spawn(run).map_err(|error| Error::io(format!("the kernel refused the thread `{name}`: {error}")))
    }

    /// The threads that died, each with its cause.
    pub fn dead(&self) -> Vec<(String, String)> {
        let dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        dead.iter().map(|(name, cause)| (name.clone(), cause.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn a_panic_is_an_error_that_names_its_job() {
        let before = panics();
        let error = caught("a merge", || -> Result<()> { panic!("planted by a {}", "test") }).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (Kind::Bug, "a merge panicked (a bug of the server): planted by a test")
        );
        assert!(panics() > before);
        assert_eq!(caught("a merge", || Ok(7)).unwrap(), 7);
        let long = caught("a", || -> Result<()> { panic!("{}", "ü".repeat(1000)) }).unwrap_err();
        assert!(long.message().len() < SAID_MAX + 100);
    }

    #[test]
    fn a_thread_that_dies_is_named_with_its_cause() {
        let threads = Threads::default();
        threads.spawn("well", 64 << 10, || Ok(())).unwrap().join().unwrap();
        assert!(threads.dead().is_empty());
        threads.spawn("ill", 64 << 10, || panic!("planted by a test")).unwrap().join().unwrap();
        let dead = threads.dead();
        assert_eq!(dead.len(), 1);
        assert!(dead[0].0 == "ill" && dead[0].1.contains("planted by a test"), "{dead:?}");
    }
}
