//! Where the bytes of a file come from.
//!
//! ```text
//!   read(at, 16 bytes) ─► a window that holds them: few, the one that was not used for longest is filled anew,
//!                         with more each time that it goes on where another one ends
//! ```

use crate::format::broken;
use ramekin_base::{Error, Result};
use ramekin_disk::{Aligned, Disk, File, Open, ReadOp};
use ramekin_memory::Account;
use std::path::Path;
use std::sync::Arc;

/// Bytes by their place.
pub trait Source {
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` from `at` on; an error where the bytes end before.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<()>;
}

impl Source for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<()> {
        let from = usize::try_from(at).ok();
        let bytes = from.and_then(|from| self.get(from..from.checked_add(out.len())?));
        out.copy_from_slice(bytes.ok_or_else(ends_early)?);
        Ok(())
    }
}

fn ends_early() -> Error {
    broken("it ends early")
}

/// A branch of each level and a leaf find their place.
const WINDOWS: usize = 4;
/// Bytes of a window at most, and of one somewhere in the file.
const WINDOW: usize = 128 << 10;
const WINDOW_LEAST: u64 = 16 << 10;
/// A file ends with whole pages, and any disk reads so many bytes; what follows, such as the hash of a snapshot, is not read.
const WHOLE: u64 = 4096;

/// A file, read through a few windows.
pub struct FileSource {
    disk: Arc<dyn Disk>,
    file: File,
    len: u64,
    windows: Vec<Window>,
    /// Reads so far.
    turn: u64,
}

struct Window {
    bytes: Aligned,
    /// What it holds of the file.
    from: u64,
    to: u64,
    used: u64,
}

impl FileSource {
    /// Memory that it takes.
    pub const BYTES: u64 = (WINDOWS * WINDOW) as u64;

    pub fn open(disk: &Arc<dyn Disk>, path: &Path, account: &Account) -> Result<Self> {
        let file = disk.open(path, Open::Read)?;
        let window = || Ok(Window { bytes: Aligned::new(account, WINDOW)?, from: 0, to: 0, used: 0 });
        let windows = (0..WINDOWS).map(|_| window()).collect::<Result<_>>()?;
        let len = disk.len(&file)? / WHOLE * WHOLE;
        Ok(Self { disk: disk.clone(), file, len, windows, turn: 0 })
    }

    /// The window that holds the byte at `at`.
    fn window(&mut self, at: u64) -> Result<&Window> {
        self.turn += 1;
        let held = self.windows.iter().position(|window| (window.from..window.to).contains(&at));
        let oldest = || (0..self.windows.len()).min_by_key(|place| self.windows[*place].used).unwrap_or(0);
        let place = held.unwrap_or_else(oldest);
        let before = self.windows.iter().find(|window| window.to == at).map_or(0, |window| window.to - window.from);
        let window = &mut self.windows[place];
        if held.is_none() {
            let from = at / WHOLE * WHOLE;
            let to = (from + (2 * before).clamp(WINDOW_LEAST, WINDOW as u64)).min(self.len);
            (window.from, window.to) = (0, 0);
            let buf = &mut window.bytes[..(to - from) as usize];
            self.disk.read(&mut [ReadOp { file: &self.file, at: from, buf }])?;
            (window.from, window.to) = (from, to);
        }
        window.used = self.turn;
        Ok(window)
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, mut at: u64, mut out: &mut [u8]) -> Result<()> {
        if at.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(ends_early());
        }
        while !out.is_empty() {
            let window = self.window(at)?;
            let bytes = &window.bytes[(at - window.from) as usize..(window.to - window.from) as usize];
            let part = bytes.len().min(out.len());
            let (filled, rest) = out.split_at_mut(part);
            filled.copy_from_slice(&bytes[..part]);
            (at, out) = (at + part as u64, rest);
        }
        Ok(())
    }
}
