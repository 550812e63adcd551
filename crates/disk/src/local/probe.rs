//! Which engine and which block this machine and this folder allow, found by trying.
//!
//! ```text
//!   write 512 bytes, O_DIRECT ──ok──► block 512
//!        ├─ refused ──────────────► block 4096
//!        └─ no O_DIRECT here ─────► block 512, buffered and dropped behind
//!   make a ring, read a page ──ok──► uring, else pread
//!
//!   on a full disk nothing is written: the same is found by reading a file of ours that is there
//! ```

use super::names::errno;
use super::uring;
use super::{DeviceCaps, Local};
use crate::aligned::ALIGN;
use crate::disk::{Disk, Engine, Open, ReadOp};
use crate::file::File;
use ramekin_base::{Error, Kind, Result};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The wanted engine, or the best, for files under `folder`, and one line on what was chosen and why.
/// Where io_uring is forbidden, pread takes over; the only errors are those of the folder itself.
pub fn probe(folder: &Path, wanted: Option<Engine>) -> Result<(Arc<dyn Disk>, String)> {
    let trial = Trial::new(folder)?;
    let wanted = wanted.unwrap_or(Engine::Uring);
    let (engine, why) = match trial.read_through(wanted) {
        Ok(()) => (wanted, String::new()),
        Err(error) if wanted == Engine::Uring => {
            (Engine::Pread, format!(" in place of uring, which cannot be used here ({error})"))
        }
        Err(error) => return Err(error),
    };
    let DeviceCaps { block, direct } = trial.caps;
    let cache = match (engine, direct) {
        (Engine::Mmap, _) => "the page cache holds what was read, outside the budget".to_owned(),
        (_, true) => "O_DIRECT".to_owned(),
        (_, false) => format!("{} refuses O_DIRECT: buffered, dropped behind", folder.display()),
    };
    let line = format!("I/O engine {engine}{why}; {cache}; blocks of {block} bytes");
    Ok((Arc::new(Local::on(trial.caps, engine)), line))
}

/// What the folder allows; an error if `engine` does not work there.
pub(crate) fn device_caps(engine: Engine, folder: &Path) -> Result<DeviceCaps> {
    let trial = Trial::new(folder)?;
    trial.read_through(engine)?;
    Ok(trial.caps)
}

/// A small file in the folder to try things on; removed on drop if it was made for that.
struct Trial {
    file: File,
    caps: DeviceCaps,
    /// What its first page holds.
    page: Box<Page>,
    is_ours: bool,
}

/// A page of memory at its natural alignment.
#[repr(align(4096))]
struct Page([u8; ALIGN]);

/// A file of ours that is there in each folder that held data, of this version and of older ones: its first page changes at rare
/// moments only, none of them while a folder is opened.
const PRESENT: [&str; 2] = ["vectors/MANIFEST", "MANIFEST"];

/// What the page of a trial is filled with.
const FILLING: u8 = 0xA5;

impl Trial {
    fn new(folder: &Path) -> Result<Self> {
        match Self::written(folder) {
            Err(full) if full.kind() == Kind::NoSpace => Self::found(folder).map_err(|_| full),
            trial => trial,
        }
    }

    /// On a full disk: tries things on the manifest, without writing.
    fn found(folder: &Path) -> Result<Self> {
        let caps = DeviceCaps { block: 512, direct: true };
        let open = |name: &str| -> Result<(PathBuf, File)> {
            let path = folder.join(name);
            let file = Local::on(caps, Engine::Pread).open(&path, Open::Read)?;
            Ok((path, file))
        };
        let [now, older] = PRESENT.map(open);
        let (path, file) = now.or(older)?;
        let mut trial = Self { file, caps, page: Box::new(Page([0; ALIGN])), is_ours: false };
        if !trial.gives(0, ALIGN)? {
            trial.caps.direct = false;
            trial.file = Local::on(caps, Engine::Pread).buffered().open(&path, Open::Read)?;
            trial.gives(0, ALIGN)?;
        }
        trial.caps.direct = trial.file.local()?.direct;
        if !trial.gives(512, 512)? {
            trial.caps.block = ALIGN;
        }
        Ok(trial)
    }

    /// Whether a read of `len` bytes at `at`, to an address of just that alignment, is done.
    fn gives(&mut self, at: usize, len: usize) -> Result<bool> {
        match rustix::io::pread(self.file.local()?.fd(), &mut self.page.0[at..at + len], at as u64) {
            Ok(read) if read == len => Ok(true),
            Ok(_) => Err(Error::io("is too short to try things on").at(self.file.path().display())),
            Err(Errno::INVAL) => Ok(false),
            Err(error) => Err(errno(error, "read", self.file.path())),
        }
    }

    fn written(folder: &Path) -> Result<Self> {
        let path = folder.join(format!(".probe-{}-{:?}", std::process::id(), std::thread::current().id()));
        let caps = DeviceCaps { block: 512, direct: true };
        let disk = Local::on(caps, Engine::Pread);
        // One may be left from a crash of a process with our number.
        let _ = disk.rename(&path, None);
        let page = Box::new(Page([FILLING; ALIGN]));
        let mut trial = Self { file: disk.open(&path, Open::Create)?, caps, page, is_ours: true };
        if !trial.takes(0, ALIGN)? {
            // Some file systems take the flag, but not what it means.
            trial.caps.direct = false;
            trial.file = disk.buffered().open(&path, Open::Write)?;
            trial.takes(0, ALIGN)?;
        }
        trial.caps.direct = trial.file.local()?.direct;
        if !trial.takes(512, 512)? {
            trial.caps.block = ALIGN;
        }
        Ok(trial)
    }

    /// Whether a write of `len` bytes at `at`, from an address of just that alignment, is taken.
    fn takes(&self, at: usize, len: usize) -> Result<bool> {
        match rustix::io::pwrite(self.file.local()?.fd(), &self.page.0[at..at + len], at as u64) {
            Ok(_) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(error) => Err(errno(error, "write", self.file.path())),
        }
    }

    fn read_through(&self, engine: Engine) -> Result<()> {
        if engine == Engine::Uring {
            uring::allowed().map_err(|error| Error::unsupported(format!("io_uring is forbidden: {error}")))?;
        }
        let disk = Local::on(self.caps, engine);
        let file = disk.open(self.file.path(), Open::Read)?;
        let mut page = Box::new(Page([0; ALIGN]));
        disk.read(&mut [ReadOp { file: &file, at: 0, buf: &mut page.0 }])?;
        if page.0 != self.page.0 {
            return Err(Error::io("a page was read differently the second time").at(self.file.path().display()));
        }
        Ok(())
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = rustix::fs::unlink(self.file.path());
        }
    }
}
