//! What can go wrong on a simulated disk, and how often it did.

use ramekin_base::Rng;
use std::time::Duration;

/// When a fault strikes: by chance, at one particular operation of its kind, or both.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Trigger {
    /// Chance of each operation, 0 to 1.
    pub chance: f64,
    /// The operation of this kind, counted from 1 since the disk was made.
    pub nth: Option<u64>,
}

impl Trigger {
    pub fn chance(chance: f64) -> Self {
        Self { chance, nth: None }
    }

    pub fn nth(nth: u64) -> Self {
        Self { chance: 0.0, nth: Some(nth) }
    }

    /// Whether the `number`-th operation fails. Without a chance no randomness is used up.
    pub(super) fn strikes(&self, number: u64, rng: &mut Rng) -> bool {
        self.nth == Some(number) || (self.chance > 0.0 && rng.chance(self.chance))
    }
}

/// The faults of a disk. The default is a disk that only forgets what was not synced.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// A read of a batch fails with `Io`.
    pub read_fails: Trigger,
    /// A bit at rest flips under a read of a batch, and stays so.
    pub bit_flips: Trigger,
    /// A write fails with `Io`; some of its sectors may have been written.
    pub write_fails: Trigger,
    /// A sync fails with `Io`. Of a file, each unsynced sector is then synced or never will be.
    pub sync_fails: Trigger,
    /// A call of any kind fails with `Io`, before or after it took effect; a sync as `sync_fails` does.
    pub call_fails: Trigger,
    /// A write is reported as done and lands at another place of its file.
    pub misdirected_writes: Trigger,
    /// A write is reported as done and never happens.
    pub lost_writes: Trigger,
    /// A call panics before it does anything, with [`PlantedPanic`]: a mistake in the code that called it.
    pub panics: Trigger,
    /// A call takes [`Faults::slow_for`] on the clock of [`super::SimDisk::set_clock`].
    pub slow: Trigger,
    pub slow_for: Duration,
    /// All files together may hold this many bytes; what would pass it fails with `NoSpace`.
    pub bytes_max: Option<u64>,
    /// After this many calls the machine is gone: the call that crosses the line fails, though it
    /// may have taken effect, and every later one fails without.
    pub operations_max: Option<u64>,
}

/// What [`Faults::panics`] panics with.
#[derive(Debug, Clone, Copy)]
pub struct PlantedPanic;

/// How often each kind of fault really happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub failed_reads: u64,
    pub flipped_bits: u64,
    pub failed_writes: u64,
    pub failed_syncs: u64,
    /// Calls of any kind.
    pub failed_calls: u64,
    pub misdirected_writes: u64,
    pub lost_writes: u64,
    pub panics: u64,
    pub slow: u64,
    /// Machines that stopped during a call.
    pub stopped: u64,
    /// Calls refused because the disk was full.
    pub full: u64,
    pub crashes: u64,
    /// Sectors that a crash or a failed sync threw away.
    pub lost_sectors: u64,
    /// Writes of which a crash kept one part and lost another.
    pub torn_writes: u64,
    /// Names made, moved or removed that a crash undid.
    pub lost_names: u64,
    /// Files whose length a crash put back, wholly or in part.
    pub lost_lengths: u64,
}
