//! A disk in memory that fails as real ones do, driven by a seed.
//!
//! ```text
//!   SimDisk ──open──► File          names.rs    folders: live, durable, pending changes
//!      │  each call: one operation  image.rs    files: live and durable bytes, dirty sectors
//!      │  of the budget, may fault  faults.rs   what may go wrong, what did
//!      ▼
//!   crash() ──► a new SimDisk of what survived; this one fails every call from then on
//! ```
//!
//! The same seed, faults and calls give the same outcome. Calls from several threads are safe, but
//! their order, and so the outcome, is then not the seed's.

mod faults;
mod image;
mod names;
mod state;

pub use faults::{Counts, Faults, PlantedPanic, Trigger};

use crate::disk::{Counters, Disk, Entry, Open, ReadOp, Space, Sync, Tally, check_aligned};
use crate::file::File;
use image::SECTOR;
use names::NodeId;
use parking_lot::Mutex;
use ramekin_base::{Error, ManualClock, Result, Rng};
use state::{State, Turn};
use std::path::Path;
use std::sync::Arc;

/// The size of a disk without a bound.
const ENDLESS: u64 = 1 << 40;

/// A simulated disk. It starts empty: make a folder.
pub struct SimDisk {
    shared: Arc<Mutex<State>>,
    tally: Tally,
    block: usize,
}

/// An open file of a simulated disk.
pub(crate) struct SimFile {
    shared: Arc<Mutex<State>>,
    node: NodeId,
    writable: bool,
}

impl SimDisk {
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::with_block(seed, faults, SECTOR)
    }

    /// A disk that takes only whole blocks of 512 or 4096 bytes. Sectors stay at 512: writes tear inside a block.
    pub fn with_block(seed: u64, faults: Faults, block: usize) -> Self {
        let state = State::new(seed, faults);
        Self { shared: Arc::new(Mutex::new(state)), tally: Tally::default(), block }
    }

    /// Pulls the plug: a disk with what survived, while every call on this one fails from now on.
    /// The survivor keeps the faults but for the budget of operations, and goes on counting.
    pub fn crash(&self) -> SimDisk {
        let mut state = self.shared.lock();
        let survivor = state.crash();
        state.off = true;
        Self { shared: Arc::new(Mutex::new(survivor)), tally: Tally::default(), block: self.block }
    }

    /// What a crash at this moment could leave by another seed; this disk goes on undisturbed.
    pub fn crashed_copy(&self, seed: u64) -> SimDisk {
        let mut state = self.shared.lock().clone();
        state.rng = Rng::new(seed);
        Self { shared: Arc::new(Mutex::new(state.crash())), tally: Tally::default(), block: self.block }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// The clock that slow calls move.
    pub fn set_clock(&self, clock: Arc<ManualClock>) {
        self.shared.lock().clock = Some(clock);
    }

    /// How often each kind of fault happened, over all crashes.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Calls so far, over all crashes: the range of [`Faults::operations_max`].
    pub fn operations(&self) -> u64 {
        self.shared.lock().operations
    }

    /// How long a file is; no call of the disk.
    pub fn file_bytes(&self, path: &Path) -> Result<u64> {
        let mut state = self.shared.lock();
        let node = state.names.find(path)?;
        Ok(state.image(node).len() as u64)
    }

    /// Flips one bit of a file at rest; counted as the chance ones are.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) -> Result<()> {
        let mut state = self.shared.lock();
        let node = state.names.find(path)?;
        let flipped = state.files.get_mut(&node).is_some_and(|image| image.flip_bit(byte as usize, bit));
        if !flipped {
            return Err(Error::invalid(format!("there is no byte {byte} to damage")).at(path.display()));
        }
        state.counts.flipped_bits += 1;
        Ok(())
    }

    /// Changes the bytes of a file at rest, as no caller of the disk would: for tests of damage.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut state = self.shared.lock();
        let node = state.names.find(path)?;
        state.image(node).edit(change);
        Ok(())
    }

    fn file<'a>(&self, file: &'a File) -> Result<&'a SimFile> {
        let sim = file.handle::<SimFile>()?;
        if Arc::ptr_eq(&sim.shared, &self.shared) {
            return Ok(sim);
        }
        Err(Error::bug("the file was opened on another disk, or before the crash").at(file.path().display()))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(count) = state.open.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&self.node);
                state.sweep();
            }
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, how: Open) -> Result<File> {
        let mut state = self.shared.lock();
        let turn = state.turn(path)?;
        let node = if how == Open::Create {
            let node = state.next_node;
            state.names.make(path, node, false)?;
            state.next_node += 1;
            state.image(node);
            node
        } else {
            state.names.find(path)?
        };
        if state.names.is_folder(node) {
            return Err(Error::io("is a folder").at(path.display()));
        }
        state.answer(&turn, path, ())?;
        *state.open.entry(node).or_default() += 1;
        let file = SimFile { shared: self.shared.clone(), node, writable: how != Open::Read };
        Ok(File::new(path, file))
    }

    fn read(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        let Some(first) = ops.first() else { return Ok(()) };
        let mut state = self.shared.lock();
        let turn = state.turn(first.file.path())?;
        state.answer(&turn, first.file.path(), ())?;
        for op in ops.iter() {
            check_aligned(self.block, op.file, op.at, op.buf)?;
            self.file(op.file)?;
        }
        self.tally.batch(ops);
        let mut result = Ok(());
        for op in ops.iter_mut() {
            let node = self.file(op.file)?.node;
            let read = if result.is_ok() { state.read(node, op) } else { Ok(()) };
            if read.is_err() || result.is_err() {
                // A caller that uses the buffers in spite of the error shall notice.
                op.buf.fill(0xDB);
            }
            result = result.and(read);
        }
        result
    }

    fn write(&self, file: &File, at: u64, data: &[u8]) -> Result<()> {
        check_aligned(self.block, file, at, data)?;
        let sim = self.file(file)?;
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let turn = state.turn(file.path())?;
        if !sim.writable {
            return Err(Error::io("opened for reading only").at(file.path().display()));
        }
        state.writes += 1;
        let before = state.image(sim.node).len() as u64;
        let growth = (at + data.len() as u64).saturating_sub(before);
        let fits = state.room(growth);
        if state.faults.write_fails.strikes(state.writes, &mut state.rng) {
            state.counts.failed_writes += 1;
            for (number, sector) in data.chunks(SECTOR).enumerate() {
                let at = at as usize + number * SECTOR;
                if state.rng.chance(0.5) && fits == growth {
                    state.image(sim.node).write(at, sector);
                }
            }
            return Err(Error::io("the simulated disk failed to write").at(file.path().display()));
        }
        if fits < growth {
            // As much as fits is written, as the kernel does it.
            let end = (before + fits) / SECTOR as u64 * SECTOR as u64;
            let part = end.saturating_sub(at).min(data.len() as u64) as usize;
            if part > 0 {
                state.image(sim.node).write(at as usize, &data[..part]);
            }
            return Err(state.full(file.path()));
        }
        self.tally.write(data.len());
        if let Some(at) = state.lands_at(sim.node, at, data.len(), self.block) {
            state.image(sim.node).write(at as usize, data);
        }
        state.answer(&turn, file.path(), ())
    }

    fn sync(&self, what: Sync<'_>) -> Result<()> {
        let path = match what {
            Sync::File(file) => file.path(),
            Sync::Folder(folder) => folder,
        };
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let turn = state.turn(path)?;
        state.syncs += 1;
        let failed = state.faults.sync_fails.strikes(state.syncs, &mut state.rng) || turn == Turn::Fails;
        if failed {
            state.counts.failed_syncs += 1;
        }
        // The machine may stop just before the sync, or just after it.
        let skipped = turn == Turn::Last && state.rng.chance(0.5);
        match what {
            _ if skipped => {}
            Sync::File(file) => {
                let node = self.file(file)?.node;
                let image = state.files.entry(node).or_default();
                if failed {
                    image.sync_failed(&mut state.rng, &mut state.counts);
                } else {
                    image.sync();
                }
            }
            Sync::Folder(folder) => {
                let node = state.names.folder(folder)?;
                if !failed {
                    state.names.sync(node);
                    state.sweep();
                }
            }
        }
        if failed {
            return Err(Error::io("the simulated disk failed to sync").at(path.display()));
        }
        self.tally.sync();
        state.answer(&turn, path, ())
    }

    fn list(&self, folder: &Path) -> Result<Vec<Entry>> {
        let mut state = self.shared.lock();
        let turn = state.turn(folder)?;
        let node = state.names.folder(folder)?;
        let entry = |(name, node): (&String, NodeId)| Entry {
            name: name.clone(),
            bytes: state.files.get(&node).map_or(0, |image| image.len() as u64),
            folder: state.names.is_folder(node),
        };
        let entries = state.names.list(node).map(entry).collect();
        state.answer(&turn, folder, entries)
    }

    fn rename(&self, from: &Path, to: Option<&Path>) -> Result<()> {
        let mut state = self.shared.lock();
        let turn = state.turn(from)?;
        match to {
            Some(to) => state.names.rename(from, to)?,
            None => state.names.remove(from)?,
        }
        state.answer(&turn, from, ())
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let turn = state.turn(folder)?;
        let mut above: Vec<&Path> = folder.ancestors().filter(|path| path.file_name().is_some()).collect();
        above.reverse();
        for path in above {
            let node = state.next_node;
            match state.names.make(path, node, true) {
                Ok(()) => state.next_node += 1,
                Err(_) if state.names.folder(path).is_ok() => {}
                Err(error) => return Err(error),
            }
            // The machine may stop before the name is durable; a sync may fail.
            if turn == Turn::Last && state.rng.chance(0.5) {
                break;
            }
            state.syncs += 1;
            if state.faults.sync_fails.strikes(state.syncs, &mut state.rng) {
                state.counts.failed_syncs += 1;
                return Err(Error::io("the simulated disk failed to sync").at(path.display()));
            }
            let parent = state.names.folder(path.parent().unwrap_or_else(|| Path::new("")))?;
            state.names.sync(parent);
            self.tally.sync();
        }
        state.answer(&turn, folder, ())
    }

    fn len(&self, file: &File) -> Result<u64> {
        let node = self.file(file)?.node;
        let mut state = self.shared.lock();
        let turn = state.turn(file.path())?;
        let len = state.image(node).len() as u64;
        state.answer(&turn, file.path(), len)
    }

    fn set_len(&self, file: &File, bytes: u64) -> Result<()> {
        let sim = self.file(file)?;
        let mut state = self.shared.lock();
        let turn = state.turn(file.path())?;
        if !sim.writable {
            return Err(Error::io("opened for reading only").at(file.path().display()));
        }
        let growth = bytes.saturating_sub(state.image(sim.node).len() as u64);
        if state.room(growth) < growth {
            return Err(state.full(file.path()));
        }
        state.image(sim.node).set_len(bytes as usize);
        state.answer(&turn, file.path(), ())
    }

    fn space(&self, folder: &Path) -> Result<Space> {
        let mut state = self.shared.lock();
        let turn = state.turn(folder)?;
        state.names.folder(folder)?;
        let total = state.faults.bytes_max.unwrap_or(ENDLESS);
        let free = state.room(total);
        state.answer(&turn, folder, Space { total, free })
    }

    fn block(&self) -> usize {
        self.block
    }

    fn engine_name(&self) -> &str {
        "sim"
    }

    fn counters(&self) -> Counters {
        self.tally.get()
    }
}
