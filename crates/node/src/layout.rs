//! Where the files of each store lie in a data folder, and how an older folder comes to that.
//!
//! ```text
//!   data/  LOCK  budget.json  temp/                          the node's own
//!          vectors/  MANIFEST  BEGUN  RESERVE  log/  files/  temp/    a folder a store
//!          versions/ the same, where etcd's door was open once
//!
//!   older: MANIFEST, BEGUN, RESERVE, log/ and files/ lie in data/ itself
//!          log/*, files/* ─► BEGUN, RESERVE ─► synced ─► MANIFEST ─► synced ─► empty folders go
//!   data/BEGUN, empty: an older version takes a folder with it and without a MANIFEST for one that lost its data, and refuses it
//! ```
//!
//! Each file is moved by a rename, MANIFEST last: as long as it stands in `data/` a start goes on where the one before ended, and
//! once it stands in `vectors/` everything does.

use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Disk, Open, Sync};
use std::path::{Path, PathBuf};

/// The folder of the store of vectors.
const VECTORS: &str = "vectors";
const MANIFEST: &str = "MANIFEST";
/// What else of a store lay in `data/` itself: files, and folders of files.
const FILES: [&str; 3] = ["MANIFEST.new", "RESERVE", "RESERVE.name"];
/// It goes along, and another one stays.
const BEGUN: &str = "BEGUN";
const FOLDERS: [&str; 2] = ["log", "files"];

/// The folder of the store of vectors; files that lie where older versions kept them are moved there.
pub(crate) fn open_vectors(disk: &dyn Disk, data: &Path) -> Result<PathBuf> {
    let to = data.join(VECTORS);
    if !has_older_files(disk, data)? {
        remove_empty(disk, data)?;
        keep_older_versions_out(disk, data)?;
        return Ok(to);
    }
    if has(disk, &to, MANIFEST)? {
        let text = "files of a store lie both in it and in its folder 'vectors'; keep those of one only";
        return Err(Error::corrupt(text).at(data.display()));
    }
    tracing::info!("the files of an older version in {} are moved into its folder '{VECTORS}'", data.display());
    disk.make_folder(&to)?;
    for folder in FOLDERS {
        move_folder(disk, &data.join(folder), &to.join(folder))?;
    }
    for name in FILES.into_iter().chain([BEGUN]) {
        move_file(disk, &data.join(name), &to.join(name))?;
    }
    disk.sync(Sync::Folder(&to))?;
    disk.sync(Sync::Folder(data))?;
    move_file(disk, &data.join(MANIFEST), &to.join(MANIFEST))?;
    disk.sync(Sync::Folder(&to))?;
    disk.sync(Sync::Folder(data))?;
    remove_empty(disk, data)?;
    keep_older_versions_out(disk, data)?;
    Ok(to)
}

/// An older version would begin a new store where it finds none. A full disk is no reason not to start.
fn keep_older_versions_out(disk: &dyn Disk, data: &Path) -> Result<()> {
    if has(disk, data, BEGUN)? {
        return Ok(());
    }
    let made = disk.open(&data.join(BEGUN), Open::Create).and_then(|_| disk.sync(Sync::Folder(data)));
    match made {
        Err(error) if !matches!(error.kind(), Kind::NoSpace | Kind::Exists) => Err(error),
        _ => Ok(()),
    }
}

/// Where the files of the store of vectors lie, moved or not: for whoever only reads them.
pub fn vectors_folder(disk: &dyn Disk, data: &Path) -> Result<PathBuf> {
    Ok(if has_older_files(disk, data)? { data.to_owned() } else { data.join(VECTORS) })
}

fn has(disk: &dyn Disk, folder: &Path, name: &str) -> Result<bool> {
    Ok(names(disk, folder)?.iter().any(|(held, _)| held == name))
}

/// Names in a folder, and which are folders; none where there is no such folder.
fn names(disk: &dyn Disk, folder: &Path) -> Result<Vec<(String, bool)>> {
    match disk.list(folder) {
        Ok(entries) => Ok(entries.into_iter().map(|entry| (entry.name, entry.folder)).collect()),
        Err(error) if error.kind() == Kind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A folder that lost its manifest has other files there: they are moved, so that the store says what is missing.
fn has_older_files(disk: &dyn Disk, data: &Path) -> Result<bool> {
    for (name, is_folder) in names(disk, data)? {
        let is_ours = match is_folder {
            true => FOLDERS.contains(&&*name) && !names(disk, &data.join(&name))?.is_empty(),
            false => name == MANIFEST || FILES.contains(&&*name),
        };
        if is_ours {
            return Ok(true);
        }
    }
    Ok(false)
}

fn move_file(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    match disk.rename(from, Some(to)) {
        // A start before this one moved it.
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        moved => moved,
    }
}

fn move_folder(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    disk.make_folder(to)?;
    for (name, is_folder) in names(disk, from)? {
        if !is_folder {
            move_file(disk, &from.join(&name), &to.join(&name))?;
        }
    }
    disk.sync(Sync::Folder(to))?;
    match disk.sync(Sync::Folder(from)) {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        synced => synced,
    }
}

/// Folders that are left behind hold nothing.
fn remove_empty(disk: &dyn Disk, data: &Path) -> Result<()> {
    for folder in FOLDERS {
        match disk.rename(&data.join(folder), None) {
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_disk::Aligned;
    use ramekin_disk::sim::{Faults, SimDisk};
    use ramekin_memory::Budget;

    fn older() -> SimDisk {
        let disk = SimDisk::new(1, Faults::default());
        let data = Path::new("/data");
        let budget = Budget::new(1 << 20);
        for name in ["log/0.log", "log/5.log", "files/000001.seg", "files/000002.dead", "BEGUN", "RESERVE", "MANIFEST"]
        {
            let path = data.join(name);
            disk.make_folder(path.parent().unwrap_or(data)).unwrap();
            let file = disk.open(&path, Open::Create).unwrap();
            let mut page = Aligned::new(&budget.root(), 4096).unwrap();
            page[..name.len()].copy_from_slice(name.as_bytes());
            disk.set_len(&file, 4096).unwrap();
            disk.write(&file, 0, &page).unwrap();
            disk.sync(Sync::File(&file)).unwrap();
            disk.sync(Sync::Folder(path.parent().unwrap_or(data))).unwrap();
        }
        disk
    }

    fn all(disk: &SimDisk, folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for (name, is_folder) in names(disk, folder).unwrap() {
            match is_folder {
                true => found.extend(all(disk, &folder.join(&name))),
                false => found.push(folder.join(name).display().to_string()),
            }
        }
        found
    }

    #[test]
    fn an_older_folder_is_moved_whatever_stops_it() {
        let moved = ["BEGUN", "MANIFEST", "RESERVE", "files/000001.seg", "files/000002.dead", "log/0.log", "log/5.log"];
        let moved = moved.map(|name| format!("/data/vectors/{name}"));
        let expected: Vec<String> = ["/data/BEGUN".to_owned()].into_iter().chain(moved).collect();
        let data = Path::new("/data");
        for stop in 0..60 {
            for seed in 0..8 {
                let disk = older();
                let operations_max = Some(disk.operations() + stop);
                disk.set_faults(Faults { operations_max, ..Faults::default() });
                let stopped = open_vectors(&disk, data).is_err();
                let disk = disk.crashed_copy(seed);
                disk.set_faults(Faults::default());
                assert_eq!(open_vectors(&disk, data).unwrap(), data.join(VECTORS), "{stop} {seed}");
                assert_eq!(all(&disk, data), expected, "{stop} {seed}");
                assert!(open_vectors(&disk, data).is_ok());
                if !stopped && stop > 50 {
                    return;
                }
            }
        }
    }

    #[test]
    fn two_stores_in_one_folder_are_refused() {
        let disk = older();
        let data = Path::new("/data");
        open_vectors(&disk, data).unwrap();
        disk.open(&data.join(MANIFEST), Open::Create).unwrap();
        let error = open_vectors(&disk, data).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert_eq!(vectors_folder(&disk, data).unwrap(), data);
    }
}
