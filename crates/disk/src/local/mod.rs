//! The real file system under all three engines: everything but how a batch is read.
//!
//! ```text
//!   open   O_DIRECT ──refused──► buffered, no read-ahead; what was read or written is dropped behind
//!   write  pwrite (buffered: written out and dropped every BEHIND_MAX bytes)
//!   sync   fdatasync; a folder: fsync
//! ```

mod file;
pub(crate) mod lock;
mod mmap;
mod names;
mod pread;
pub(crate) mod probe;
pub(crate) mod tail;
pub(crate) mod uring;

use crate::disk::{Counters, Disk, Engine, Entry, Open, ReadOp, Space, Sync, Tally, check_aligned};
use crate::file::File;
use file::LocalFile;
use names::{errno, make_folder, sync_folder};
use parking_lot::RwLock;
use ramekin_base::lock::about_to_wait;
use ramekin_base::{Error, Result};
use rustix::fs::{self, Advice, AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a buffered file may keep in the page cache before they are written out and dropped.
const BEHIND_MAX: u64 = 1 << 20;

/// Real files through one engine.
pub struct Local {
    engine: Engine,
    caps: DeviceCaps,
    tally: Tally,
}

/// What the device and the file system under a folder allow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DeviceCaps {
    pub(crate) block: usize,
    /// O_DIRECT works. Single files may still refuse it.
    pub(crate) direct: bool,
}

impl Local {
    /// The engine for files under `folder`, which is tried out first. An error where it cannot be used.
    pub fn new(engine: Engine, folder: &Path) -> Result<Self> {
        Ok(Self::on(probe::device_caps(engine, folder)?, engine))
    }

    /// Never O_DIRECT, as on file systems that refuse it.
    #[must_use]
    pub fn buffered(mut self) -> Self {
        self.caps.direct = false;
        self
    }

    pub(crate) fn on(caps: DeviceCaps, engine: Engine) -> Self {
        Self { engine, caps, tally: Tally::default() }
    }

    /// Whether what passes through the page cache is to be dropped from it.
    fn drops_behind(&self, file: &LocalFile) -> bool {
        !file.direct && self.engine != Engine::Mmap
    }
}

impl Disk for Local {
    fn open(&self, path: &Path, how: Open) -> Result<File> {
        let access = match how {
            Open::Read => OFlags::RDONLY,
            Open::Write => OFlags::RDWR,
            Open::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let open = |flags| fs::open(path, access | flags | OFlags::CLOEXEC, Mode::from(0o644));
        let wanted = self.caps.direct && self.engine != Engine::Mmap;
        let direct = if wanted { open(OFlags::DIRECT) } else { Err(Errno::INVAL) };
        let (fd, direct) = match direct {
            Err(Errno::INVAL) => {
                // The kernel may have made the file before it found that it cannot be direct.
                let made = wanted && how == Open::Create;
                match open(OFlags::empty()) {
                    Err(Errno::EXIST) if made => (fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()), false),
                    opened => (opened, false),
                }
            }
            opened => (opened, true),
        };
        let fd = fd.map_err(|error| errno(error, "open", path))?;
        if !direct {
            // Read-ahead would fill the page cache with what nobody asked for. Refusal costs speed only.
            let _ = fs::fadvise(&fd, 0, None, Advice::Random);
        }
        let stat = fs::fstat(&fd).map_err(|error| errno(error, "stat", path))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(Error::io("is not a file").at(path.display()));
        }
        let file = LocalFile { fd, direct, behind: AtomicU64::new(0), mapping: RwLock::new(None) };
        Ok(File::new(path, file))
    }

    fn read(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        about_to_wait("a read of the disk");
        for op in ops.iter() {
            check_aligned(self.caps.block, op.file, op.at, op.buf)?;
        }
        self.tally.batch(ops);
        let result = match self.engine {
            Engine::Uring => uring::read(ops),
            Engine::Pread => pread::read(ops),
            Engine::Mmap => mmap::read(ops),
        };
        for op in ops.iter() {
            let file = op.file.local()?;
            if self.drops_behind(file) {
                let len = std::num::NonZeroU64::new(op.buf.len() as u64);
                let _ = fs::fadvise(file.fd(), op.at, len, Advice::DontNeed);
            }
        }
        result
    }

    fn write(&self, file: &File, at: u64, data: &[u8]) -> Result<()> {
        about_to_wait("a write of the disk");
        check_aligned(self.caps.block, file, at, data)?;
        let local = file.local()?;
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(local.fd(), &data[done..], at + done as u64) {
                Ok(0) => return Err(Error::io("the disk took no bytes").at(file.path().display())),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(errno(error, "write", file.path())),
            }
        }
        self.tally.write(data.len());
        if self.drops_behind(local) {
            let behind = local.behind.fetch_add(data.len() as u64, Ordering::Relaxed) + data.len() as u64;
            if behind >= BEHIND_MAX {
                local.behind.store(0, Ordering::Relaxed);
                local.write_out(file.path())?;
                local.drop_behind();
            }
        }
        Ok(())
    }

    fn sync(&self, what: Sync<'_>) -> Result<()> {
        about_to_wait("a sync of the disk");
        self.tally.sync();
        match what {
            Sync::File(file) => {
                let local = file.local()?;
                fs::fdatasync(local.fd()).map_err(|error| errno(error, "fdatasync", file.path()))?;
                // What has no name any more nobody will find, however durable it is. No times are asked for: where the kernel has
                // told a file's times, the next write gives it new ones, and the sync of that write would write the inode too.
                let links = fs::statx(local.fd(), "", AtFlags::EMPTY_PATH, fs::StatxFlags::NLINK);
                if links.map_err(|error| errno(error, "stat", file.path()))?.stx_nlink == 0 {
                    return Err(Error::io("the file was removed while it was written to").at(file.path().display()));
                }
                if self.drops_behind(local) {
                    local.behind.store(0, Ordering::Relaxed);
                    local.drop_behind();
                }
                Ok(())
            }
            Sync::Folder(folder) => sync_folder(folder),
        }
    }

    fn list(&self, folder: &Path) -> Result<Vec<Entry>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |error| errno(error, "list", folder);
        let fd = fs::open(folder, flags, Mode::empty()).map_err(failed)?;
        let mut entries = Vec::new();
        for entry in fs::Dir::read_from(&fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Removed since the folder was read.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed(error)),
            };
            let is_folder = FileType::from_raw_mode(stat.st_mode).is_dir();
            let bytes = if is_folder { 0 } else { stat.st_size as u64 };
            entries.push(Entry { name: name.to_string_lossy().into_owned(), bytes, folder: is_folder });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: Option<&Path>) -> Result<()> {
        about_to_wait("a name of the disk");
        match to {
            Some(to) => fs::rename(from, to).map_err(|error| errno(error, "rename", from)),
            None => match fs::unlink(from) {
                Err(Errno::ISDIR | Errno::PERM) => fs::rmdir(from).map_err(|error| errno(error, "remove", from)),
                removed => removed.map_err(|error| errno(error, "remove", from)),
            },
        }
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        make_folder(folder).map(|syncs| (0..syncs).for_each(|_| self.tally.sync()))
    }

    fn len(&self, file: &File) -> Result<u64> {
        file.local()?.len(file.path())
    }

    fn set_len(&self, file: &File, bytes: u64) -> Result<()> {
        let local = file.local()?;
        let before = local.len(file.path())?;
        // No mapping may reach past the end while the file shrinks.
        let mut mapping = local.mapping.write();
        *mapping = None;
        if bytes >= before && bytes > 0 {
            // All of it: what was copied may have its length without its blocks.
            match fs::fallocate(local.fd(), FallocateFlags::empty(), 0, bytes) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Ok(()) => return Ok(()),
                Err(error) => {
                    // Where the disk is full some file systems keep the part that they found room for.
                    let _ = fs::ftruncate(local.fd(), before);
                    return Err(errno(error, "fallocate", file.path()));
                }
            }
        }
        fs::ftruncate(local.fd(), bytes).map_err(|error| errno(error, "ftruncate", file.path()))
    }

    fn space(&self, folder: &Path) -> Result<Space> {
        let stat = fs::statvfs(folder).map_err(|error| errno(error, "statvfs", folder))?;
        Ok(Space { total: stat.f_blocks * stat.f_frsize, free: stat.f_bavail * stat.f_frsize })
    }

    fn block(&self) -> usize {
        self.caps.block
    }

    fn engine_name(&self) -> &str {
        self.engine.name()
    }

    fn counters(&self) -> Counters {
        self.tally.get()
    }
}
