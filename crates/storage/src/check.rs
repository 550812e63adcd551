//! Reads a whole store offline and says what is damaged.
//!
//! ```text
//!   manifest ─► each file it names: present? every page against its checksum ─► the log from log_from on
//! ```
//!
//! Only the log can be repaired here: it is cut at its first damaged record, after the report said what
//! that loses. Page files are restored from a copy.

use crate::begun;
use crate::storage::{found_files, log_folder, read_manifest, set_log_end};
use ramekin_base::{Error, Result, Size};
use ramekin_disk::Disk;
use ramekin_log::{Lsn, repair};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// What a check found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Manifest, data files and log, in this order.
    pub files: Vec<FileReport>,
    /// Data files that no manifest names; the next start removes them.
    pub leftovers: Vec<String>,
    /// The log was cut.
    pub repaired: bool,
}

/// What was found of one file.
#[derive(Debug, Clone, Serialize)]
pub struct FileReport {
    pub name: String,
    pub bytes: u64,
    /// What is wrong, and what can be done; `None` if all is well.
    pub problem: Option<String>,
    /// What else there is to say.
    pub note: Option<String>,
}

impl Report {
    /// Whether nothing is damaged (any more).
    pub fn is_sound(&self) -> bool {
        self.files.iter().all(|file| file.problem.is_none())
    }

    /// Takes in what was found of another store, whose files are named by its folder.
    pub fn add_store(&mut self, folder: &str, other: Self) {
        let name = |name: String| format!("{folder}/{name}");
        self.files.extend(other.files.into_iter().map(|file| FileReport { name: name(file.name), ..file }));
        self.leftovers.extend(other.leftovers.into_iter().map(name));
        self.repaired |= other.repaired;
    }

    fn add(&mut self, name: &str, bytes: u64, result: Result<Option<String>>) {
        let (note, problem) = match result {
            Ok(note) => (note, None),
            Err(error) => (None, Some(error.to_string())),
        };
        self.files.push(FileReport { name: name.to_owned(), bytes, problem, note });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let says = match (&file.problem, &file.note) {
                (Some(problem), _) => format!("DAMAGED: {problem}"),
                (None, Some(note)) => format!("ok: {note}"),
                (None, None) => "ok".to_owned(),
            };
            writeln!(f, "{:<24} {:>12}  {says}", file.name, Size(file.bytes))?;
        }
        for name in &self.leftovers {
            writeln!(f, "{name:<24} {:>12}  leftover of a crash; the next start removes it", "")?;
        }
        let damaged = self.files.iter().filter(|file| file.problem.is_some()).count();
        let repaired = if self.repaired { "; the log was cut" } else { "" };
        write!(f, "{} files checked, {damaged} damaged{repaired}", self.files.len())
    }
}

/// Checks the store in `folder`, which nobody else has open; `repair_log` cuts a damaged log.
/// An error means that the check itself could not be done.
pub fn check(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    pages: &Pages,
    account: &Account,
    repair_log: bool,
) -> Result<Report> {
    let mut report = Report::default();
    let begun = begun::is_marked(&**disk, folder)?;
    let manifest = read_manifest(disk, folder, account, account).and_then(|manifest| match manifest {
        Some(manifest) => begun::verify_log_folder(&**disk, folder).map(|()| Some(manifest)),
        None if begun => {
            Err(Error::corrupt("the folder held data, and its manifest is missing; restore it from a copy"))
        }
        None => Ok(None),
    });
    let manifest = match manifest {
        Ok(Some(manifest)) => manifest,
        Ok(None) => {
            check_log(&**disk, folder, account, 0..0, begun, repair_log, &mut report)?;
            return Ok(report);
        }
        Err(error) => {
            report.add("MANIFEST", 0, Err(error));
            return Ok(report);
        }
    };
    let (log, end) = (manifest.manifest.head.log(), manifest.layout().end);
    let torn = match manifest.layout().torn {
        true => format!("; its last edit was not finished and is left out from byte {end} on"),
        false => String::new(),
    };
    let names: Vec<String> = manifest.files().cloned().collect();
    drop(manifest);
    report.add("MANIFEST", end, Ok(Some(format!("{} data files, log from position {}{torn}", names.len(), log.start))));
    let found = found_files(&**disk, folder)?;
    for name in &names {
        let bytes = found.iter().find(|entry| entry.name == *name).map_or(0, |entry| entry.bytes);
        let checked = pages.open(&folder.join(name), account).and_then(|file| file.check());
        report.add(name, bytes, checked.map(|()| None));
    }
    let left = found.into_iter().map(|entry| entry.name).filter(|name| !names.contains(name));
    report.leftovers = left.collect();
    if let Some(end) = check_log(&**disk, folder, account, log, begun, repair_log, &mut report)? {
        // The log ends earlier now, and the next start shall know it.
        set_log_end(disk, folder, account, end)?;
    }
    Ok(report)
}

fn check_log(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    durable: Range<Lsn>,
    begun: bool,
    repair_log: bool,
    report: &mut Report,
) -> Result<Option<Lsn>> {
    let log = log_folder(folder);
    let bytes = disk.list(&log)?.iter().map(|entry| entry.bytes).sum();
    let found = repair(disk, &log, account, durable, begun, !repair_log);
    let mut end = None;
    let line = match found {
        Ok(found) if found.damage.is_some() && !found.repaired => Err(Error::corrupt(found.to_string())),
        Ok(found) => {
            report.repaired = found.repaired;
            end = found.repaired.then_some(found.end);
            Ok(Some(found.to_string()))
        }
        Err(error) => Err(error),
    };
    report.add("log", bytes, line);
    Ok(end)
}
