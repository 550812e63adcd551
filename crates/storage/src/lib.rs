//! Floor 4: a store's folder. Log, page files and the manifest that says which of them are alive.
//!
//! ```text
//!   folder/
//!     MANIFEST            log_from, files, the store's own JSON       replaced as a whole
//!     MANIFEST.new        a replacement under way
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

mod aside;
mod check;
pub mod manifest;
mod storage;

pub use check::{FileReport, Report, check};
pub use manifest::Manifest;
pub use storage::Storage;
