//! Work that may not wait: on a thread that serves many connections, one page that is not in memory would stop them all.
//!
//! ```text
//!   connection's thread ─► scope(search) ─► all is in memory ──────────────► the answer
//!                                      └──► check() before a read: `Busy` ─► the same search, on a thread that may wait
//! ```
//!
//! As `O_NONBLOCK` does it: who would have to wait is refused at once. Ambient as [`crate::cancel`] is, so that no signature
//! carries it. Waiting is for the disk, or for others to give memory back; locks that are held for steps in memory are neither.

use crate::{Error, Result};
use std::cell::Cell;

thread_local! {
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, which is refused whatever it would have to wait for; also by a panic this ends with it.
pub fn scope<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            REFUSED.set(self.0);
        }
    }
    let _restore = Restore(REFUSED.replace(true));
    work()
}

/// Whether this thread is in such a scope.
pub fn is_set() -> bool {
    REFUSED.get()
}

/// Before a wait: fails with [`crate::Kind::Busy`] where this thread may not.
pub fn check() -> Result<()> {
    match is_set() {
        true => Err(Error::busy("this work would have to wait for the disk, on a thread that may not")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn a_scope_refuses_to_wait_and_ends() {
        assert!(check().is_ok());
        scope(|| {
            assert_eq!(check().unwrap_err().kind(), Kind::Busy);
            scope(|| assert!(is_set()));
            assert!(is_set());
        });
        assert!(check().is_ok());
        let work = std::panic::AssertUnwindSafe(|| scope(|| panic!("planted by a test")));
        assert!(std::panic::catch_unwind(work).is_err());
        assert!(!is_set());
    }
}
