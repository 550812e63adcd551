//! Reads a whole store offline and says what is damaged.
//!
//! ```text
//!   manifest ─► each file it names: present? every page against its checksum ─► the log from log_from on
//! ```
//!
//! Only the log can be repaired here: it is cut at its first damaged record, after the report said what
//! that loses. Page files are restored from a copy.

use crate::aside::Failed;
use crate::manifest::Manifest;
use crate::storage::{found_files, log_folder, read_manifest, write_manifest};
use ramekin_base::{Result, Size};
use ramekin_disk::Disk;
use ramekin_log::repair;
use ramekin_memory::Account;
use ramekin_pages::Pages;
use serde::Serialize;
use std::fmt;
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
    let manifest = match read_manifest(&**disk, folder, account) {
        Ok(manifest) => manifest.unwrap_or_else(Manifest::empty),
        Err(error) => {
            report.add("MANIFEST", 0, Err(error));
            return Ok(report);
        }
    };
    let commits = format!("{} data files, log from position {}", manifest.files.len(), manifest.log_from);
    report.add("MANIFEST", manifest.app.get().len() as u64, Ok(Some(commits)));
    let found = found_files(&**disk, folder)?;
    for name in &manifest.files {
        let bytes = found.iter().find(|entry| entry.name == *name).map_or(0, |entry| entry.bytes);
        let checked = pages.open(&folder.join(name), account).and_then(|file| file.check());
        report.add(name, bytes, checked.map(|()| None));
    }
    let left = found.into_iter().map(|entry| entry.name).filter(|name| !manifest.files.contains(name));
    report.leftovers = left.collect();
    check_log(&**disk, folder, account, &manifest, repair_log, &mut report)?;
    Ok(report)
}

fn check_log(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    manifest: &Manifest,
    repair_log: bool,
    report: &mut Report,
) -> Result<()> {
    let log = log_folder(folder);
    let bytes = disk.list(&log)?.iter().map(|entry| entry.bytes).sum();
    let found = repair(disk, &log, account, manifest.log(), !repair_log);
    let line = match found {
        Ok(found) if found.damage.is_some() && !found.repaired => Err(ramekin_base::Error::corrupt(found.to_string())),
        Ok(found) => {
            report.repaired = found.repaired;
            if found.repaired {
                // The log ends earlier now, and the next start shall know it.
                let manifest = Manifest { log_durable: found.end, ..manifest.clone() };
                write_manifest(disk, folder, account, &manifest, false).map_err(Failed::into_error)?;
            }
            Ok(Some(found.to_string()))
        }
        Err(error) => Err(error),
    };
    report.add("log", bytes, line);
    Ok(())
}
