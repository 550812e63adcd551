//! Which faults a seed has in store.

use ramekin_base::Rng;
use ramekin_disk::sim::{Faults, Trigger};
use ramekin_vectors::Datatype;

/// The kinds of trouble; every seed has the loss of unsynced writes besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    FailedReads,
    FailedSync,
    FailedWrite,
    BitFlips,
    FullDisk,
}

/// A seed's whole plan, drawn before anything runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub trouble: Trouble,
    pub lives: u64,
    pub steps: u64,
    /// Points that exist in the run; few, so that writes meet each other.
    pub ids: u64,
    pub budget: u64,
    pub block: usize,
    pub datatype: Datatype,
}

impl Plan {
    pub fn draw(rng: &mut Rng) -> Self {
        let trouble = match rng.below(10) {
            0 | 1 => Trouble::FailedReads,
            2 | 3 => Trouble::FailedSync,
            4 => Trouble::FailedWrite,
            5 => Trouble::BitFlips,
            6 | 7 => Trouble::FullDisk,
            _ => Trouble::None,
        };
        Self {
            trouble,
            lives: 2 + rng.below(3),
            steps: 10 + rng.below(40),
            ids: 20 + rng.below(300),
            budget: (24 + rng.below(3) * 16) << 20,
            block: if rng.chance(0.5) { 512 } else { 4096 },
            datatype: Datatype::ALL[rng.below(3) as usize],
        }
    }

    /// The faults of one life. `operations`: how many calls the disk had so far.
    pub fn faults(&self, rng: &mut Rng, operations: u64, bytes: u64) -> Faults {
        let mut faults = Faults::default();
        match self.trouble {
            Trouble::FailedReads => faults.read_fails = Trigger::chance(0.01),
            Trouble::FailedSync => faults.sync_fails = Trigger::chance(0.02),
            Trouble::FailedWrite => faults.write_fails = Trigger::chance(0.01),
            Trouble::BitFlips => faults.bit_flips = Trigger::chance(0.02),
            Trouble::FullDisk => faults.bytes_max = Some(bytes + rng.below(6 << 20)),
            Trouble::None => {}
        }
        if rng.chance(0.7) {
            faults.operations_max = Some(operations + 1 + rng.below(400));
        }
        faults
    }
}
