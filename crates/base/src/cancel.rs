//! Cancellation: whoever waits for a piece of work may say that nobody waits any more.
//!
//! ```text
//!   request ─► Token ──┐                     ┌─► scan ─► check()? every few thousand steps
//!                      ├─► scope(token, job)─┤
//!   hang-up, timeout,  │                     └─► page fetch ─► check()? once a batch
//!   drain ─► cancel() ─┘
//! ```
//!
//! The token of the work that a thread does now is ambient: [`scope`] sets it for the length of a job, [`check`] looks at it.
//! A loop over outside data calls `check` at bounded intervals, however deep it stands, and no signature carries the token.
//! Work without a scope is never cancelled.
//!
//! What cannot be taken back, as a record in the log, says before it that it [begins](Token::begin): of the two, the beginning
//! and the cancellation, only the first has happened, and both sides know which.

use crate::{Error, Result};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Says whether a piece of work is still wanted. Clones are handles to the same one.
#[derive(Debug, Clone, Default)]
pub struct Token {
    state: Arc<AtomicU8>,
}

const WANTED: u8 = 0;
const CANCELLED: u8 = 1;
const BEGUN: u8 = 2;

thread_local! {
    static CURRENT: RefCell<Option<Token>> = const { RefCell::new(None) };
}

impl Token {
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on [`check`] fails in this token's scopes. Cancelling twice changes nothing. False: the work has begun, and
    /// is seen through.
    pub fn cancel(&self) -> bool {
        self.move_to(CANCELLED)
    }

    pub fn is_cancelled(&self) -> bool {
        self.state.load(Ordering::Acquire) == CANCELLED
    }

    /// Fails once it is cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(given_up()) } else { Ok(()) }
    }

    /// The work begins what cannot be taken back: from now on it is not cancelled. Fails if it has been.
    pub fn begin(&self) -> Result<()> {
        if self.move_to(BEGUN) { Ok(()) } else { Err(given_up()) }
    }

    fn move_to(&self, state: u8) -> bool {
        match self.state.compare_exchange(WANTED, state, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(now) => now == state,
        }
    }
}

fn given_up() -> Error {
    Error::cancelled("the request was given up by its client, or its time is over")
}

/// Cancels its token when it is dropped: what a request waits with, so that its work ends when the request does.
#[derive(Debug, Default)]
pub struct Guard(Token);

impl Guard {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn token(&self) -> Token {
        self.0.clone()
    }

    /// [`Token::cancel`] of its token.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Does `work` under `token`; the scope around it returns when `work` does, also by a panic.
pub fn scope<T>(token: &Token, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Token>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let outer = self.0.take();
            CURRENT.with(|current| *current.borrow_mut() = outer);
        }
    }
    let outer = CURRENT.with(|current| current.borrow_mut().replace(token.clone()));
    let _restore = Restore(outer);
    work()
}

/// The token of the scope that this thread is in: for work that is handed to other threads.
pub fn current() -> Option<Token> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Fails with [`crate::Kind::Cancelled`] once the token of this thread's scope is cancelled.
pub fn check() -> Result<()> {
    CURRENT.with(|current| current.borrow().as_ref().map_or(Ok(()), Token::check))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn a_check_sees_the_innermost_scope() {
        let (outer, inner) = (Token::new(), Token::new());
        assert!(check().is_ok());
        scope(&outer, || {
            outer.cancel();
            assert_eq!(check().unwrap_err().kind(), Kind::Cancelled);
            scope(&inner, || assert!(check().is_ok()));
            assert!(check().is_err());
        });
        assert!(check().is_ok());
    }

    #[test]
    fn what_has_begun_is_not_cancelled_and_what_was_cancelled_does_not_begin() {
        let (begun, given_up) = (Token::new(), Token::new());
        begun.begin().unwrap();
        begun.begin().unwrap();
        assert!(!begun.cancel() && !begun.is_cancelled());
        assert!(scope(&begun, check).is_ok());
        assert!(given_up.cancel() && given_up.cancel());
        assert_eq!(given_up.begin().unwrap_err().kind(), Kind::Cancelled);
        assert!(given_up.is_cancelled());
    }

    #[test]
    fn a_guard_that_goes_cancels() {
        let guard = Guard::new();
        let token = guard.token();
        assert!(scope(&token, check).is_ok());
        drop(guard);
        assert!(scope(&token, check).is_err());
    }

    #[test]
    fn a_panic_leaves_its_scope() {
        let token = Token::new();
        token.cancel();
        let work = std::panic::AssertUnwindSafe(|| scope(&token, || panic!("planted by a test")));
        assert!(std::panic::catch_unwind(work).is_err());
        assert!(check().is_ok());
    }
}
