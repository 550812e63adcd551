//! Floor 4: a store's folder. Log, page files and the manifest that says which of them are alive.
//!
//! ```text
//!   folder/
//!     MANIFEST            log_from, files, the store's own JSON: a snapshot and edits after it
//!     MANIFEST.new        the next snapshot under way
//!     BEGUN               there is a log                              made once, empty
//!     RESERVE, RESERVE.name   room, and a name, for what frees space on a full disk    their bytes say nothing
//!     log/0000….log       what no file holds yet                      (crate `log`)
//!     files/000123.seg    immutable page files                        (crate `pages`)
//!
//!   start:   read the manifest ► verify ► remove what no manifest names ► replay the log from log_from
//! ```
//!
//! There is no second path: a crash, a clean stop and a copied folder are all opened like this.
//!
//! - [`Storage`]: opens a folder, commits manifests, opens files and lets them go with their last reader.
//! - [`check`]: reads everything offline and says what is damaged; it can cut a damaged log.
//!
//! Nothing here knows what a store keeps.

#![forbid(unsafe_code)]

mod begun;
mod check;
mod edits;
pub mod manifest;
mod reserve;
mod storage;
pub mod whole;

pub use check::{FileReport, Report, check};
pub use edits::{Sink, Write};
pub use manifest::{Head, read_app};
pub use reserve::{Reserve, ReserveClaim};
pub use storage::{Manifest, Storage};
