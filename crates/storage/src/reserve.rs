//! Room that is kept for a full disk: what frees space may use it, what needs more space may not.
//!
//! ```text
//!   RESERVE   ├──── for deletes, names and the manifest ────┼──── for seals, folds and merges, too ────┤ wanted
//!             a quarter                                      first to be given up, at one time
//!
//!   whole ──a delete, a seal … finds the disk full──► cut, a step at a time ──room again──► made whole
//! ```
//!
//! A disk may lack names before it lacks bytes: an empty file beside it, `RESERVE.name`, is given up first, and it is whole
//! once another file can be made.
//!
//! The file's bytes say nothing; it only has its space. A crash may leave it at any length, and a copy of the folder may
//! be without it. It is made when a store opens with room, and again as soon as there is some.

use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Disk, File, Open, Sync};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "RESERVE";
/// The file that is given up for another, and one that is made to see whether there can be one more.
const SPARE: &str = "RESERVE.name";
const PROBE: &str = "RESERVE.try";
/// Its length is a number of these.
const BLOCK: u64 = 4096;
/// With so many times more free than is asked for, room beside it need not be tried out.
const PLENTY: u64 = 4;
/// What a delete or a manifest is given at a time: this part of it, but no less than one of them needs, and no more than several.
const PART_OF_STEP: u64 = 8;
const STEP: (u64, u64) = (128 << 10, 512 << 10);
/// Of a small disk it takes this part at most, or what deletes need on any.
const PART_OF_DISK: u64 = 16;
const LEAST: u64 = 1 << 20;
/// Of it seals, folds and merges leave this part, or what deletes need.
const PART_FOR_DELETES: u64 = 4;
const LEAST_FOR_DELETES: u64 = 512 << 10;

/// Who may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveClaim {
    /// What is small, and without which nothing gets smaller: records of deletes, names that go, the manifest.
    Delete,
    /// What writes files to free others, and the log.
    Tidy,
}

/// The reserve of an open folder.
pub struct Reserve {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    /// Locked while the file is cut or made longer.
    held: Mutex<Held>,
}

struct Held {
    file: Option<File>,
    /// Whether there is a file to give up.
    spare: bool,
    bytes: u64,
    wanted: u64,
}

impl Held {
    fn for_deletes(&self) -> u64 {
        LEAST_FOR_DELETES.max(self.wanted / PART_FOR_DELETES)
    }
}

impl Reserve {
    /// Of `folder`, as a start finds it. Nothing is made before [`Reserve::make`].
    pub(crate) fn open(disk: &Arc<dyn Disk>, folder: &Path) -> Result<Self> {
        let file = match disk.open(&folder.join(NAME), Open::Write) {
            Err(error) if error.kind() == Kind::NotFound => None,
            opened => Some(opened?),
        };
        let bytes = file.as_ref().map_or(Ok(0), |file| disk.len(file))?;
        let spare = disk.open(&folder.join(SPARE), Open::Read).is_ok();
        let held = Mutex::new(Held { file, spare, bytes, wanted: bytes });
        Ok(Self { disk: disk.clone(), folder: folder.to_owned(), held })
    }

    /// It is to have so many bytes, or what of a small disk is proper.
    pub fn want(&self, bytes: u64) -> Result<()> {
        let total = self.disk.space(&self.folder)?.total;
        self.held.lock().wanted = bytes.min(LEAST.max(total / PART_OF_DISK)) / BLOCK * BLOCK;
        Ok(())
    }

    /// Bytes that it has at the moment, and that it should have.
    pub fn bytes(&self) -> (u64, u64) {
        let held = self.held.lock();
        (held.bytes, held.wanted)
    }

    /// Makes it whole. `NoSpace` where there is no room for that and for `beyond` bytes more; it has then what there was room for.
    pub fn make(&self, beyond: u64) -> Result<()> {
        let mut held = self.held.lock();
        let whole = held.wanted;
        let free = self.disk.space(&self.folder)?.free;
        let beyond = if free > PLENTY * (whole + beyond) { 0 } else { beyond };
        let made = self.resize(&mut held, whole + beyond).and_then(|()| match beyond {
            0 => Ok(()),
            _ => self.resize(&mut held, whole),
        });
        let made = made.and_then(|()| self.keep_name(&mut held));
        if let Err(error) = &made
            && error.kind() == Kind::NoSpace
        {
            // Half of what is left at a time, so that nobody who writes beside it finds nothing.
            let free = self.disk.space(&self.folder).map_or(0, |space| space.free);
            let some = (held.bytes + free / 2).min(whole) / BLOCK * BLOCK;
            if some != held.bytes {
                _ = self.resize(&mut held, some);
            }
        }
        made
    }

    /// Gives up a part of it for `claim`. False: there is nothing to give. A disk that fails meanwhile is not a full one.
    pub fn give(&self, claim: ReserveClaim) -> Result<bool> {
        let mut held = self.held.lock();
        if std::mem::take(&mut held.spare) {
            return self.disk.rename(&self.folder.join(SPARE), None).map(|()| true);
        }
        let left = match claim {
            ReserveClaim::Delete => held.bytes.saturating_sub((held.wanted / PART_OF_STEP).clamp(STEP.0, STEP.1)),
            ReserveClaim::Tidy => held.bytes.min(held.for_deletes()),
        };
        let left = left / BLOCK * BLOCK;
        if left >= held.bytes {
            return Ok(false);
        }
        match self.resize(&mut held, left) {
            // There are file systems that need room to give some back.
            Err(error) if error.kind() == Kind::NoSpace => Ok(false),
            resized => resized.map(|()| true),
        }
    }

    /// Bytes that seals, folds and merges may have of it.
    pub fn for_tidying(&self) -> u64 {
        let held = self.held.lock();
        held.bytes.saturating_sub(held.for_deletes())
    }

    /// Makes the file that is given up for another one; `NoSpace` where the disk has no name beside it.
    fn keep_name(&self, held: &mut Held) -> Result<()> {
        if !held.spare {
            create(&*self.disk, &self.folder.join(SPARE))?;
            held.spare = true;
        }
        let probe = self.folder.join(PROBE);
        create(&*self.disk, &probe)?;
        self.disk.rename(&probe, None)
    }

    fn resize(&self, held: &mut Held, bytes: u64) -> Result<()> {
        if held.file.is_none() {
            let file = create(&*self.disk, &self.folder.join(NAME))?;
            self.disk.sync(Sync::Folder(&self.folder))?;
            held.file = Some(file);
        }
        let Some(file) = &held.file else { return Err(Error::bug("a reserve without its file")) };
        let resized = self.disk.set_len(file, bytes);
        // Some file systems give space back only with what they note for good.
        let synced = resized.and_then(|()| self.disk.sync(Sync::File(file)));
        held.bytes = self.disk.len(file).unwrap_or(held.bytes.min(bytes));
        synced
    }
}

fn create(disk: &dyn Disk, path: &Path) -> Result<File> {
    match disk.open(path, Open::Create) {
        Err(error) if error.kind() == Kind::Exists => disk.open(path, Open::Write),
        opened => opened,
    }
}
