//! Floor 3: the log. Whoever is told that a write is done finds it here after a crash.
//!
//! ```text
//!   position ──►  0                     5 MiB                  9 MiB
//!                 ├─ 0000…0000.log ─────┼─ 0000…500000.log ────┼─ 0000…900000.log ─ ─ ┐
//!                 │ trimmed once its    │  page files hold     │ records · commit     │ reserved,
//!                 │ data is sealed      │  this not yet        │ records · commit ◄───┤ zeros
//!                 └─────────────────────┴──────────────────────┴──────────────────────┘
//!                                                                     ▲ end: durable before it
//! ```
//!
//! - [`Log`]: one writer appends records and commits them: one write, one fdatasync, however many waited.
//! - [`LogReader`]: anyone reads committed records by position while the writer goes on.
//! - Each file ends with the name of the next one, so that one which is missing is noticed. A start applies whole requests only.
//! - [`repair`]: says what a damaged log would lose, and cuts it.
//!
//! The bytes are described in [`format`]; what a start makes of damaged ones, in `walk`. The log knows
//! nothing of what its records mean.

#![forbid(unsafe_code)]

mod files;
pub mod format;
mod group;
mod log;
mod reader;
mod recover;
mod repair;
mod walk;
mod window;

pub use files::FILE_BYTES;
pub use log::{Log, OPEN_BYTES, room};
pub use reader::{LogReader, Record};
pub use repair::{Damage, RepairReport, repair};
pub use walk::Cut;

/// Log sequence number: a byte position in the endless log. Each record has the one that [`Log::append`] returned.
pub type Lsn = u64;
