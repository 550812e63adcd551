//! The lanes in which requests wait for a thread.
//!
//! ```text
//!   writes  body decoded, handed to the log     milliseconds     ┐
//!                                                                ├─ served in turns
//!   reads   search, scroll, get: disk and CPU   any time         ┘
//!   short   ledger, lists, a plain search       milliseconds     ── first, and a thread is kept for them
//! ```
//!
//! One line for both would let a crowd of searches hold up every write, as many as memory admits at once.

/// Where a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Writes,
    Reads,
    /// Never waits behind long work.
    Short,
}
