//! Which faults a seed has in store.

use crate::pairs::Fault;
use ramekin_base::Rng;
use ramekin_disk::sim::{Faults, Trigger};
use ramekin_vectors::Datatype;
use std::time::Duration;

/// The kinds of trouble; every seed has the loss of unsynced writes besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    FailedReads,
    FailedSync,
    FailedWrite,
    BitFlips,
    FullDisk,
    MisdirectedWrites,
    LostWrites,
    Panics,
    SlowCalls,
}

macro_rules! steps {
    ($($name:ident = $weight:literal, $title:literal;)*) => {
        /// What a life does in one step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step { $($name,)* }

        impl Step {
            /// Each kind of step, how often it is drawn, and what it is called.
            pub const ALL: &[(Step, u64, &str)] = &[$((Step::$name, $weight, $title),)*];
        }
    };
}

steps! {
    Open = 0, "open and recover";
    Upsert = 7, "upsert";
    Delete = 5, "delete";
    DeleteByFilter = 3, "delete by filter";
    UpdateVectors = 2, "update vectors";
    Payload = 3, "change payloads";
    PayloadByFilter = 3, "change payloads by filter";
    Together = 3, "writes that wait together";
    Index = 2, "make or drop an index";
    Rotate = 1, "rotate the memtable";
    Fold = 1, "fold payload patches";
    Background = 3, "flush and merge";
    Search = 3, "search";
    Get = 2, "get";
    Scroll = 3, "scroll";
    Count = 2, "count by filter";
    Ordered = 2, "scroll in order";
}

impl Step {
    /// Steps that only read meet no fault of writing; a memtable that is rotated meets no disk at all.
    pub fn can_meet(self, fault: &Fault) -> bool {
        if self == Self::Rotate {
            return false;
        }
        let reads = matches!(self, Self::Search | Self::Get | Self::Scroll | Self::Count | Self::Ordered);
        !(reads && fault.of_writing)
    }

    pub fn draw(rng: &mut Rng) -> Self {
        let mut at = rng.below(Self::ALL.iter().map(|(_, weight, _)| weight).sum());
        for (step, weight, _) in Self::ALL {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *step,
            }
        }
        Self::Scroll
    }
}

/// Steps that a seed does at least, unless damage ends it.
pub const STEPS_MIN: u64 = 200;
/// Lives that a seed has at most: one may end at its first step.
pub const LIVES_MAX: u64 = 60;

/// A seed's whole plan, drawn before anything runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub trouble: Trouble,
    /// Lives with faults, at least; there are more until [`STEPS_MIN`] steps are done, and then one without.
    pub lives: u64,
    pub steps: u64,
    /// Points that exist in the run; few, so that writes meet each other.
    pub ids: u64,
    pub budget: u64,
    /// What of it others hold: so much that nothing can be resident, and what is read is read from the disk. The smallest
    /// budget is none for that.
    pub elsewhere: u64,
    pub block: usize,
    pub datatype: Datatype,
}

impl Plan {
    pub fn draw(rng: &mut Rng) -> Self {
        let trouble = match rng.below(18) {
            0 | 1 => Trouble::FailedReads,
            2 | 3 => Trouble::FailedSync,
            4 | 5 => Trouble::FailedWrite,
            6 | 7 => Trouble::BitFlips,
            8 | 9 => Trouble::FullDisk,
            10 | 11 => Trouble::MisdirectedWrites,
            12 | 13 => Trouble::LostWrites,
            14 | 15 => Trouble::Panics,
            16 => Trouble::SlowCalls,
            _ => Trouble::None,
        };
        let budget = (24 + rng.below(3) * 16) << 20;
        let elsewhere = if rng.chance(0.8) && budget > 24 << 20 { budget * 19 / 32 } else { 0 };
        Self {
            trouble,
            lives: 2 + rng.below(3),
            steps: 10 + rng.below(120),
            ids: 20 + rng.below(300),
            budget,
            elsewhere,
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
            Trouble::BitFlips => faults.bit_flips = Trigger::chance(0.04),
            // The first life may find room for the reserve; later ones have little beside what is there.
            Trouble::FullDisk => {
                faults.bytes_max = Some(bytes + rng.below(if bytes == 0 { 6 << 20 } else { 1 << 18 }));
            }
            Trouble::MisdirectedWrites => faults.misdirected_writes = Trigger::chance(0.02),
            Trouble::LostWrites => faults.lost_writes = Trigger::chance(0.02),
            Trouble::Panics => faults.panics = Trigger::chance(0.02),
            Trouble::SlowCalls => {
                faults.slow = Trigger::chance(0.1);
                faults.slow_for = Duration::from_millis(1 + rng.below(10_000));
            }
            Trouble::None => {}
        }
        if rng.chance(0.7) {
            faults.operations_max = Some(operations + 1 + rng.below(400));
        }
        faults
    }
}
