//! Replaces a small file as a whole, and reads it back.
//!
//! ```text
//!   write MANIFEST.new ► sync it ► rename over MANIFEST ► sync the folder
//!   └──── an error here changes nothing ────┘└── an error here: nobody knows which one a crash leaves
//! ```

use crate::manifest::MANIFEST_MAX;
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_disk::{Aligned, Disk, Open, ReadOp, Sync};
use ramekin_memory::Account;
use std::path::Path;

pub(crate) const NAME: &str = "MANIFEST";
pub(crate) const NAME_NEW: &str = "MANIFEST.new";

/// Why a replacement failed.
pub(crate) enum Failed {
    /// The old one stands.
    Clean(Error),
    /// The old one or the new one stands.
    Unknown(Error),
}

impl Failed {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Clean(error) | Self::Unknown(error) => error,
        }
    }
}

/// Makes `bytes`, whole blocks, the manifest of `folder`.
pub(crate) fn replace(disk: &dyn Disk, folder: &Path, account: &Account, bytes: &[u8]) -> Result<(), Failed> {
    let aside = folder.join(NAME_NEW);
    let file = write(disk, &aside, account, bytes).map_err(|error| {
        // If removing fails, too, the next attempt or the next start removes it.
        let _ = disk.rename(&aside, None);
        Failed::Clean(error)
    })?;
    disk.sync(Sync::File(&file))
        .and_then(|()| disk.rename(&aside, Some(&folder.join(NAME))))
        .and_then(|()| disk.sync(Sync::Folder(folder)))
        .map_err(Failed::Unknown)
}

fn write(disk: &dyn Disk, path: &Path, account: &Account, bytes: &[u8]) -> Result<ramekin_disk::File> {
    let mut buffer = Aligned::new(account, bytes.len())?;
    buffer.copy_from_slice(bytes);
    let file = match disk.open(path, Open::Create) {
        Err(error) if error.kind() == Kind::Exists => {
            disk.rename(path, None)?;
            disk.open(path, Open::Create)?
        }
        opened => opened?,
    };
    // The space is taken first, so that a full disk shows before anything is written.
    disk.set_len(&file, bytes.len() as u64)?;
    disk.write(&file, 0, &buffer)?;
    Ok(file)
}

/// The bytes of the manifest of `folder`; `None` if there is none.
pub(crate) fn read(disk: &dyn Disk, folder: &Path, account: &Account) -> Result<Option<Aligned>> {
    let path = folder.join(NAME);
    let file = match disk.open(&path, Open::Read) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        opened => opened?,
    };
    let len = disk.len(&file)?;
    if len > 2 * MANIFEST_MAX as u64 || !len.is_multiple_of(disk.block() as u64) {
        return Err(Error::corrupt(format!(
            "the manifest is damaged: a length of {}; restore the folder from a copy",
            Size(len)
        ))
        .at(path.display()));
    }
    let mut buffer = Aligned::new(account, len as usize)?;
    if len > 0 {
        disk.read(&mut [ReadOp { file: &file, at: 0, buf: &mut buffer }])?;
    }
    Ok(Some(buffer))
}
