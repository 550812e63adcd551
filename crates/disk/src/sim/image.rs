//! One file of the simulated disk, twice: as a reader sees it, and as a crash would leave it.
//!
//! ```text
//!   live      [new][new][old][new]      what reads return
//!   durable   [old][old][old][old]      what the last sync left
//!   dirty      ^0   ^1        ^3        sectors that a crash may keep or lose, each by itself
//!   doomed          ^1                  given up by a failed sync: lost, whatever is synced later
//! ```

use super::faults::Counts;
use ramekin_base::Rng;
use std::collections::BTreeSet;
use std::ops::Range;

/// What a disk writes at once or not at all.
pub(super) const SECTOR: usize = 512;

#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    live: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    doomed: BTreeSet<usize>,
    /// The sectors of each write since the last sync, to tell torn writes.
    writes: Vec<Range<usize>>,
}

/// The part of `image` that sector `number` covers; zeros stand where the image ends early.
fn sector(image: &[u8], number: usize) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    let start = (number * SECTOR).min(image.len());
    let part = &image[start..(start + SECTOR).min(image.len())];
    bytes[..part.len()].copy_from_slice(part);
    bytes
}

/// Puts a sector into an image, as far as the image reaches.
fn put(image: &mut [u8], number: usize, bytes: &[u8; SECTOR]) {
    let start = (number * SECTOR).min(image.len());
    let end = (start + SECTOR).min(image.len());
    image[start..end].copy_from_slice(&bytes[..end - start]);
}

fn sectors(at: usize, len: usize) -> Range<usize> {
    at / SECTOR..(at + len).div_ceil(SECTOR)
}

impl Image {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// The live bytes at `at`, as far as the file reaches.
    pub(super) fn read(&self, at: u64, len: usize) -> &[u8] {
        let start = (at.min(self.live.len() as u64)) as usize;
        &self.live[start..start.saturating_add(len).min(self.live.len())]
    }

    pub(super) fn write(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        if end > self.live.len() {
            self.set_len(end);
        }
        self.live[at..end].copy_from_slice(data);
        let touched = sectors(at, data.len());
        self.touch(touched.clone());
        self.writes.push(touched);
    }

    pub(super) fn set_len(&mut self, len: usize) {
        let before = self.live.len();
        self.live.resize(len, 0);
        self.touch(sectors(before.min(len), before.abs_diff(len)));
    }

    fn touch(&mut self, touched: Range<usize>) {
        for number in touched {
            self.dirty.insert(number);
            self.doomed.remove(&number);
        }
    }

    /// Everything live becomes durable, but for what an earlier failed sync gave up.
    pub(super) fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for number in std::mem::take(&mut self.dirty) {
            put(&mut self.durable, number, &sector(&self.live, number));
        }
        self.writes.clear();
    }

    /// A sync that failed: each dirty sector is durable now, or given up while it still reads as new.
    pub(super) fn sync_failed(&mut self, rng: &mut Rng, counts: &mut Counts) {
        // The length may have been synced or not; a longer file only shows zeros more.
        if self.live.len() > self.durable.len() && rng.chance(0.5) {
            self.durable.resize(self.live.len(), 0);
        }
        for number in std::mem::take(&mut self.dirty) {
            let new = sector(&self.live, number);
            if rng.chance(0.5) {
                put(&mut self.durable, number, &new);
            } else if new != sector(&self.durable, number) {
                self.doomed.insert(number);
                counts.lost_sectors += 1;
            }
        }
        self.writes.clear();
    }

    /// Flips a bit by chance under a range; false if nothing of it is inside the file.
    pub(super) fn flip(&mut self, at: u64, len: usize, rng: &mut Rng) -> bool {
        let len = self.read(at, len).len();
        if len == 0 {
            return false;
        }
        self.flip_bit(at as usize + rng.below(len as u64) as usize, rng.below(8) as u8)
    }

    /// Flips one bit at rest, in both images; false if the file does not reach so far.
    pub(super) fn flip_bit(&mut self, byte: usize, bit: u8) -> bool {
        for image in [&mut self.live, &mut self.durable] {
            if let Some(byte) = image.get_mut(byte) {
                *byte ^= 1 << (bit % 8);
            }
        }
        byte < self.live.len()
    }

    /// Other bytes at rest, in both images: nothing of it waits for a sync.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.live);
        self.durable.clone_from(&self.live);
        self.dirty.clear();
        self.doomed.clear();
        self.writes.clear();
    }

    /// What a crash leaves: synced sectors, and of the others each by chance.
    pub(super) fn crash(&self, rng: &mut Rng, counts: &mut Counts) -> Self {
        let keep_chance = survival(rng);
        let mut after = self.durable.clone();
        let (old, new) = (self.durable.len(), self.live.len());
        if old != new {
            let len = match rng.unit() {
                chance if chance < keep_chance => new,
                // A file that grew by several writes may have grown by some of them.
                _ if new > old && rng.chance(0.5) => {
                    old + rng.below(((new - old) / SECTOR) as u64 + 1) as usize * SECTOR
                }
                _ => old,
            };
            counts.lost_lengths += u64::from(len != new);
            after.resize(len, 0);
        }
        let mut kept = BTreeSet::new();
        for number in &self.dirty {
            let bytes = sector(&self.live, *number);
            if rng.chance(keep_chance) {
                put(&mut after, *number, &bytes);
            }
            if sector(&after, *number) == bytes {
                kept.insert(*number);
            } else {
                counts.lost_sectors += 1;
            }
        }
        let torn = |write: &&Range<usize>| {
            let all = (*write).clone().count();
            let kept = (*write).clone().filter(|number| kept.contains(number)).count();
            kept > 0 && kept < all
        };
        counts.torn_writes += self.writes.iter().filter(torn).count() as u64;
        Self { live: after.clone(), durable: after, ..Self::default() }
    }
}

/// The chance of unsynced work to survive one crash: often none of it or all of it, else a mixture.
pub(super) fn survival(rng: &mut Rng) -> f64 {
    match rng.below(6) {
        0 => 0.0,
        1 => 1.0,
        _ => rng.unit(),
    }
}
