//! A folder that ever held data is never taken for an empty one.
//!
//! ```text
//!   new folder   folders, durable ► MANIFEST ► the log's first file, durable ► BEGUN, durable ► the first record
//! ```
//!
//! The file `BEGUN` is empty. Where it stands, there was a log: a start that finds none refuses, even if the manifest
//! names nothing of it yet. A folder of an earlier version gets it when it is opened.

use crate::storage::log_folder;
use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Disk, Open, Sync};
use std::path::Path;

const NAME: &str = "BEGUN";

/// Whether the folder has had a log.
pub(crate) fn is_marked(disk: &dyn Disk, folder: &Path) -> Result<bool> {
    Ok(disk.list(folder)?.iter().any(|entry| entry.name == NAME))
}

/// Notes that it has one, durably. A full disk may refuse that; the next start tries again.
pub(crate) fn mark(disk: &dyn Disk, folder: &Path) -> Result<()> {
    let made = disk.open(&folder.join(NAME), Open::Create).and_then(|file| disk.sync(Sync::File(&file)));
    match made {
        Err(error) if matches!(error.kind(), Kind::Exists | Kind::NoSpace) => {}
        made => made?,
    }
    disk.sync(Sync::Folder(folder))
}

/// A manifest is written after its folders are there for good.
pub(crate) fn verify_log_folder(disk: &dyn Disk, folder: &Path) -> Result<()> {
    match disk.list(&log_folder(folder)) {
        Err(error) if error.kind() == Kind::NotFound => Err(Error::corrupt(format!(
            "{} has a manifest, but no log; restore it from a copy of the folder",
            log_folder(folder).display()
        ))),
        listed => listed.map(|_| ()),
    }
}
