//! Waiting for another process: there is no condition to wait on, only a look now and then.

use ramekin_base::{Clock, Result};
use std::time::Duration;

#[allow(clippy::disallowed_methods, reason = "another process, and the kernel, can only be looked at")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Looks every `each` until `look` has an answer, at most `limit` long; `None` after that.
pub(crate) fn until<T>(
    clock: &dyn Clock,
    limit: Duration,
    each: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = clock.now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if clock.now() >= end {
            return Ok(None);
        }
        pause(each);
    }
}
