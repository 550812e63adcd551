//! What a seed has in store, whichever store it runs: the trouble of its disk, and what is done in steps.

use crate::pairs::Fault;
use ramekin_base::Rng;
use ramekin_disk::sim::{Faults, Trigger};
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

impl Trouble {
    pub fn draw(rng: &mut Rng) -> Self {
        match rng.below(18) {
            0 | 1 => Self::FailedReads,
            2 | 3 => Self::FailedSync,
            4 | 5 => Self::FailedWrite,
            6 | 7 => Self::BitFlips,
            8 | 9 => Self::FullDisk,
            10 | 11 => Self::MisdirectedWrites,
            12 | 13 => Self::LostWrites,
            14 | 15 => Self::Panics,
            16 => Self::SlowCalls,
            _ => Self::None,
        }
    }

    /// The faults of one life. `operations`: how many calls the disk had so far, `bytes`: what its files hold.
    pub fn faults(self, rng: &mut Rng, operations: u64, bytes: u64) -> Faults {
        let mut faults = Faults::default();
        match self {
            Self::FailedReads => faults.read_fails = Trigger::chance(0.01),
            Self::FailedSync => faults.sync_fails = Trigger::chance(0.02),
            Self::FailedWrite => faults.write_fails = Trigger::chance(0.01),
            Self::BitFlips => faults.bit_flips = Trigger::chance(0.04),
            // The first life may find room for the reserve; later ones have little beside what is there.
            Self::FullDisk => {
                faults.bytes_max = Some(bytes + rng.below(if bytes == 0 { 6 << 20 } else { 1 << 18 }));
            }
            Self::MisdirectedWrites => faults.misdirected_writes = Trigger::chance(0.02),
            Self::LostWrites => faults.lost_writes = Trigger::chance(0.02),
            Self::Panics => faults.panics = Trigger::chance(0.02),
            Self::SlowCalls => {
                faults.slow = Trigger::chance(0.1);
                faults.slow_for = Duration::from_millis(1 + rng.below(10_000));
            }
            Self::None => {}
        }
        if rng.chance(0.7) {
            faults.operations_max = Some(operations + 1 + rng.below(400));
        }
        faults
    }
}

/// What a life of a store does in one step.
pub trait Steps: Copy + 'static {
    /// Each kind of step, how often it is drawn, and what it is called.
    const ALL: &[(Self, u64, &str)];

    /// Its place in that list.
    fn place(self) -> usize;

    /// Steps that only read meet no fault of writing.
    fn can_meet(self, fault: &Fault) -> bool;

    fn draw(rng: &mut Rng) -> Self {
        let mut at = rng.below(Self::ALL.iter().map(|(_, weight, _)| weight).sum());
        for (step, weight, _) in Self::ALL {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *step,
            }
        }
        Self::ALL[0].0
    }
}

/// Makes the kinds of steps of a store. The first of them is the open.
macro_rules! steps {
    ($reads:expr; $($name:ident = $weight:literal, $title:literal;)*) => {
        /// What a life does in one step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step { $($name,)* }

        impl $crate::lot::Steps for Step {
            const ALL: &[(Step, u64, &str)] = &[$((Step::$name, $weight, $title),)*];

            fn place(self) -> usize {
                self as usize
            }

            fn can_meet(self, fault: &$crate::pairs::Fault) -> bool {
                let meets: fn(Step, &$crate::pairs::Fault) -> bool = $reads;
                meets(self, fault)
            }
        }
    };
}

pub(crate) use steps;

/// Steps that a seed does at least, unless damage ends it.
pub const STEPS_MIN: u64 = 200;
/// Lives that a seed has at most: one may end at its first step.
pub const LIVES_MAX: u64 = 60;
