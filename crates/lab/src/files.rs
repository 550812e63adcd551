//! The only place of the lab that touches files: vectors that people hand in, the kernel's own files, reports.
//!
//! ```text
//!   *.npy *.fvecs *.fbin          opened for reading
//!   /proc, /sys/fs/cgroup         read and written as text
//!   OUT/minram.md .json .svg      written once, at the end
//!   OUT/data                      dropped from the page cache before each measurement
//! ```
//!
//! The server's data is the server's: nothing here writes to it, but for a plan in its own folder below `temp`.

#![allow(clippy::disallowed_methods, reason = "no data of a store: what people hand in, what the kernel says, reports")]

use ramekin_base::{Error, Result};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) use std::fs::File;

fn at(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from(error).at(path.display())
}

pub(crate) fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(at(path))
}

/// A plain file that people hand in, open for reading, and its bytes. A pipe or a device may be waited for without an end: it is
/// opened without waiting, and refused.
pub(crate) fn open_plain(path: &Path) -> Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| at(path)(error.into()))?;
    let file = File::from(opened);
    let bytes = bytes(&file, path)?;
    Ok((file, bytes))
}

pub(crate) fn bytes(file: &File, path: &Path) -> Result<u64> {
    let about = file.metadata().map_err(at(path))?;
    if about.is_file() { Ok(about.len()) } else { Err(Error::invalid("is no plain file").at(path.display())) }
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(at(path))
}

pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(at(path))
}

/// A new file that others may write their log to.
pub(crate) fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(at(path))
}

pub(crate) fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(at(path))
}

/// One folder in an existing one: how a cgroup is made.
pub(crate) fn make_one_folder(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(at(path))
}

/// An empty folder, or a cgroup without processes.
pub(crate) fn remove_one_folder(path: &Path) -> Result<()> {
    fs::remove_dir(path).map_err(at(path))
}

/// A file or a folder with all that is in it; nothing there is well too.
pub(crate) fn remove_all(path: &Path) -> Result<()> {
    let gone = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match gone {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// A folder's whole path, so that a program that runs elsewhere finds it too.
pub(crate) fn whole(path: &Path) -> Result<std::path::PathBuf> {
    fs::canonicalize(path).map_err(at(path))
}

pub(crate) fn is_empty(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(at(folder)(error)),
    }
}

/// Calls `each` with every file under a folder.
fn walk(folder: &Path, each: &mut dyn FnMut(&Path)) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, each)?;
        } else if path.is_file() {
            each(&path);
        }
    }
    Ok(())
}

/// Bytes that the files under a folder take of the disk. What goes away meanwhile is left out.
pub(crate) fn allocated(folder: &Path) -> Result<u64> {
    let mut total = 0;
    walk(folder, &mut |path| total += path.metadata().map_or(0, |about| about.blocks() * 512))?;
    Ok(total)
}

/// Writes out and drops from the page cache all files under a folder. Returns their bytes.
pub(crate) fn drop_from_page_cache(folder: &Path) -> Result<u64> {
    let mut total = 0;
    walk(folder, &mut |path| {
        let Ok(file) = File::open(path) else { return };
        // Dirty pages would stay.
        let _ = file.sync_all();
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        total += file.metadata().map_or(0, |about| about.len());
    })?;
    Ok(total)
}

/// Drops one file from the page cache.
pub(crate) fn drop_file_from_page_cache(path: &Path) -> Result<()> {
    let file = open(path)?;
    let _ = file.sync_all();
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| Error::from(std::io::Error::from(error)))
}

/// A file of a folder, open for reading.
pub(crate) struct Listed {
    pub(crate) name: std::ffi::OsString,
    pub(crate) file: File,
    pub(crate) bytes: u64,
}

/// All files of a folder, open; folders inside are left out.
pub(crate) fn list_open(folder: &Path) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        let path = entry.path();
        if path.is_file() {
            let file = open(&path)?;
            // Read-ahead of the source would make some reads quick by chance.
            let _ = fadvise(&file, 0, None, Advice::Random);
            let bytes = bytes(&file, &path)?;
            listed.push(Listed { name: entry.file_name(), file, bytes });
        }
    }
    Ok(listed)
}

/// What the kernel is spoken with over.
pub(crate) type Device = File;

/// A device that exists.
pub(crate) fn open_for_writing(path: &Path) -> Result<Device> {
    fs::OpenOptions::new().read(true).write(true).open(path).map_err(at(path))
}

/// Whether a file takes O_DIRECT.
pub(crate) fn takes_direct(path: &Path) -> bool {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// `major:minor` of the whole disk that a folder is on; partitions count for their disk.
pub(crate) fn device(folder: &Path) -> Option<String> {
    let device = rustix::fs::stat(folder).ok()?.st_dev;
    let own = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let known = Path::new("/sys/dev/block").join(&own);
    if known.join("partition").exists() {
        return read_text(&known.join("../dev")).ok().map(|text| text.trim().to_owned());
    }
    known.exists().then_some(own)
}
