//! What is wrong with a collection, each fault by its kind, until its own success ends it.
//!
//! ```text
//!   flush, patch compaction, merge, index ── fails ──► Fault { why, how often, when it is tried again } ── the next one succeeds ──► gone
//!   a read of the disk       ── fails ──► Fault ── none fails for a minute, and then one succeeds ──► gone
//!   log, manifest            ── fails ──► Fault: of the store ── the next commit succeeds, or a restart ──► gone
//!   a file fails a checksum ────────────► kept by the file: gone when another takes its place
//!   other damage, a write that is logged and not applied ──► Fault ── a restart ──► gone
//! ```
//!
//! The collection is red while there is one. A fault is said once in the log, when it is new or says something else. There
//! is one of a kind at most, and a kind for each indexed field, so they are bounded.
//!
//! A read that succeeds says nothing of the place where another failed: who reads both in turn would see the collection red
//! and green in turn, with a line each time. Which place it was is not kept, but for how long nothing has failed.

use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Result};
use ramekin_fields::Path;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// What failed; the worst first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// A write is in the log and not in memory: nothing more may be written.
    Diverged,
    /// The log takes no more.
    Log,
    /// What a start would find cannot be brought up to date.
    Manifest,
    /// The disk has no room.
    Full,
    /// Stored bytes contradict themselves where no page fails its checksum.
    Damage,
    Flush,
    PatchCompaction,
    Merge,
    Index(Path),
    Read,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diverged => f.write_str("a write is logged and could not be applied"),
            Self::Log => f.write_str("writes are refused"),
            Self::Manifest => f.write_str("the manifest cannot be written"),
            Self::Full => f.write_str("the disk is full, writes other than deletes are refused"),
            Self::Damage => f.write_str("damage"),
            Self::Flush => f.write_str("flush failed"),
            Self::PatchCompaction => f.write_str("patch compaction failed"),
            Self::Merge => f.write_str("merge failed"),
            Self::Index(path) => write!(f, "index of `{path}` failed"),
            Self::Read => f.write_str("a read failed"),
        }
    }
}

struct Fault {
    text: String,
    error: Kind,
    times: u32,
    /// By the store's clock: not tried again before; of a read, no success ends it before.
    retry_ms: u64,
}

impl Fault {
    /// Work that is put off is no fault of its collection: while the disk is full the store says so, and what finds too
    /// little memory for the moment is made later.
    fn is_put_off(&self, kind: &FaultKind) -> bool {
        match kind {
            FaultKind::Flush | FaultKind::PatchCompaction => self.error == Kind::NoSpace,
            FaultKind::Merge | FaultKind::Index(_) => matches!(self.error, Kind::NoSpace | Kind::Busy),
            _ => false,
        }
    }
}

/// The first wait after a failure, and how often it doubles: up to 32 s.
const RETRY_MS: u64 = 500;
const RETRY_DOUBLINGS: u32 = 6;
/// After a read has failed none may for so long, until one that succeeds ends its fault.
const READS_CALM_MS: u64 = 60_000;

#[derive(Default)]
pub(crate) struct Health {
    faults: Mutex<BTreeMap<FaultKind, Fault>>,
    /// A look that costs nothing, for reads that succeed.
    read_failed: AtomicBool,
}

impl Health {
    /// Takes note of what became of a piece of work: a success ends its own fault and no other.
    pub(crate) fn note<T>(&self, kind: FaultKind, name: &str, outcome: &Result<T>, now_ms: u64) {
        match outcome {
            Ok(_) => self.clear(&kind),
            Err(error) if matches!(error.kind(), Kind::Closed | Kind::Cancelled) => {}
            // Damage is said with its file.
            Err(error) if error.kind() == Kind::Corrupt => self.raise(kind, None, error, now_ms),
            Err(error) => self.raise(kind, Some(name), error, now_ms),
        }
    }

    /// A fault of the collection `name`; `None`: somebody has said it already.
    pub(crate) fn raise(&self, kind: FaultKind, name: Option<&str>, error: &Error, now_ms: u64) {
        let text = format!("{kind}: {error}");
        let mut faults = self.faults.lock();
        if kind == FaultKind::Read {
            self.read_failed.store(true, Ordering::Relaxed);
        }
        let before = faults.get(&kind);
        let times = before.map_or(0, |fault| fault.times) + 1;
        if let Some(name) = name.filter(|_| before.is_none_or(|fault| fault.text != text)) {
            match error.kind() {
                Kind::NoSpace | Kind::Busy => tracing::warn!(collection = name, "{text}"),
                _ => tracing::error!(collection = name, "{text}"),
            }
        }
        let retry_ms = now_ms
            + match kind {
                FaultKind::Read => READS_CALM_MS,
                _ => RETRY_MS << times.min(RETRY_DOUBLINGS),
            };
        faults.insert(kind, Fault { text, error: error.kind(), times, retry_ms });
    }

    pub(crate) fn clear(&self, kind: &FaultKind) {
        self.faults.lock().remove(kind);
    }

    /// A read succeeded: where none has failed for a while, the disk answers again.
    pub(crate) fn read_succeeded(&self, now_ms: impl FnOnce() -> u64) {
        if !self.read_failed.load(Ordering::Relaxed) {
            return;
        }
        let (now_ms, mut faults) = (now_ms(), self.faults.lock());
        if faults.get(&FaultKind::Read).is_none_or(|fault| now_ms >= fault.retry_ms) {
            faults.remove(&FaultKind::Read);
            self.read_failed.store(false, Ordering::Relaxed);
        }
    }

    /// The disk has room again: what found none is tried at once.
    pub(crate) fn room_again(&self) {
        self.faults.lock().retain(|kind, fault| !(fault.error == Kind::NoSpace && fault.is_put_off(kind)));
    }

    /// Whether it failed and it is not yet time to try again.
    pub(crate) fn waits(&self, kind: &FaultKind, now_ms: u64) -> bool {
        self.faults.lock().get(kind).is_some_and(|fault| now_ms < fault.retry_ms)
    }

    /// What one kind of fault says.
    pub(crate) fn of(&self, kind: &FaultKind) -> Option<String> {
        self.faults.lock().get(kind).map(|fault| fault.text.clone())
    }

    /// Why work of one kind failed last.
    pub(crate) fn failure(&self, kind: &FaultKind) -> Option<(Kind, String)> {
        self.faults.lock().get(kind).map(|fault| (fault.error, fault.text.clone()))
    }

    /// The worst of all.
    pub(crate) fn worst(&self) -> Option<String> {
        let faults = self.faults.lock();
        faults.iter().find(|(kind, fault)| !fault.is_put_off(kind)).map(|(_, fault)| fault.text.clone())
    }

    /// Forgets the faults of indexes that are not wanted any more.
    pub(crate) fn keep_indexes(&self, is_wanted: impl Fn(&Path) -> bool) {
        self.faults.lock().retain(|kind, _| !matches!(kind, FaultKind::Index(path) if !is_wanted(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_operators_names_each_kind() {
        let page = include_str!("../../../../docs/OPERATIONS.md");
        let field = FaultKind::Index(Path::parse("FIELD").unwrap());
        let mut next = Some(FaultKind::Diverged);
        while let Some(kind) = next {
            let text = kind.to_string();
            assert!(page.contains(&format!("`{text}`")) || page.contains(&format!("`` {text} ``")), "{text}");
            // A new kind belongs into this chain.
            next = match kind {
                FaultKind::Diverged => Some(FaultKind::Log),
                FaultKind::Log => Some(FaultKind::Manifest),
                FaultKind::Manifest => Some(FaultKind::Full),
                FaultKind::Full => Some(FaultKind::Damage),
                FaultKind::Damage => Some(FaultKind::Flush),
                FaultKind::Flush => Some(FaultKind::PatchCompaction),
                FaultKind::PatchCompaction => Some(FaultKind::Merge),
                FaultKind::Merge => Some(field.clone()),
                FaultKind::Index(_) => Some(FaultKind::Read),
                FaultKind::Read => None,
            };
        }
    }

    #[test]
    fn only_its_own_success_ends_a_fault() {
        let health = Health::default();
        let failed = |text: &str| Err::<(), _>(Error::io(text));
        health.note(FaultKind::Flush, "c", &failed("no disk"), 0);
        health.note(FaultKind::Damage, "c", &failed("broken"), 0);
        for kind in [FaultKind::Merge, FaultKind::PatchCompaction, FaultKind::Index(Path::parse("a").unwrap())] {
            health.note(kind, "c", &Ok(()), 0);
        }
        assert_eq!(health.worst().as_deref(), Some("damage: broken"));
        health.note(FaultKind::Flush, "c", &Ok(()), 0);
        assert!(health.of(&FaultKind::Flush).is_none() && health.of(&FaultKind::Damage).is_some());
    }

    #[test]
    fn reads_that_succeed_beside_one_that_fails_do_not_end_its_fault() {
        let health = Health::default();
        let fail = |now_ms| health.raise(FaultKind::Read, Some("c"), &Error::io("sector 7"), now_ms);
        // Every other read meets the place that cannot be read.
        for now_ms in (0..300_000).step_by(10_000) {
            fail(now_ms);
            health.read_succeeded(|| now_ms + 5_000);
            assert!(health.worst().is_some(), "{now_ms}");
        }
        health.read_succeeded(|| 290_000 + READS_CALM_MS - 1);
        assert!(health.worst().is_some());
        health.read_succeeded(|| 290_000 + READS_CALM_MS);
        assert!(health.worst().is_none());
        fail(400_000);
        assert!(health.worst().is_some());
    }

    #[test]
    fn what_fails_is_tried_later_and_later() {
        let health = Health::default();
        for (times, pause) in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000].into_iter().enumerate() {
            health.note(FaultKind::Merge, "c", &Err::<(), _>(Error::bug("planted")), 0);
            assert!(health.waits(&FaultKind::Merge, pause - 1), "{times}");
            assert!(!health.waits(&FaultKind::Merge, pause), "{times}");
        }
        assert!(!health.waits(&FaultKind::Flush, 0));
    }

    #[test]
    fn what_found_no_room_is_tried_at_once_when_there_is_some() {
        let health = Health::default();
        health.note(FaultKind::Flush, "c", &Err::<(), _>(Error::no_space("full")), 0);
        health.note(FaultKind::PatchCompaction, "c", &Err::<(), _>(Error::io("broken")), 0);
        assert!(health.waits(&FaultKind::Flush, 0) && health.worst().is_some_and(|worst| worst.contains("broken")));
        health.room_again();
        assert!(!health.waits(&FaultKind::Flush, 0) && health.waits(&FaultKind::PatchCompaction, 0));
    }

    #[test]
    fn too_little_memory_puts_a_merge_off_and_no_more() {
        let health = Health::default();
        health.note(FaultKind::Merge, "c", &Err::<(), _>(Error::busy("full")), 0);
        health.note(FaultKind::Merge, "c", &Err::<(), _>(Error::closed("stopping")), 0);
        assert!(health.worst().is_none());
        // It is not begun again at once.
        assert!(health.waits(&FaultKind::Merge, RETRY_MS));
    }
}
