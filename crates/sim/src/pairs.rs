//! Which fault struck during which kind of step, and how often.
//!
//! ```text
//!                     failed reads  failed writes  ...  panics
//!   upsert                     12             80  ...      31
//!   search                    140              -  ...      77      -  no step of this kind can meet it
//! ```

use crate::plan::Step;
use ramekin_disk::sim::{Counts, SimDisk};

/// A fault of the disk: its name, how its count is found, and whether only what writes can meet it.
pub struct Fault {
    pub name: &'static str,
    pub count: fn(&Counts) -> u64,
    pub of_writing: bool,
}

macro_rules! faults {
    ($($name:literal, $count:ident, $of_writing:literal;)*) => {
        pub const FAULTS: &[Fault] =
            &[$(Fault { name: $name, count: |counts| counts.$count, of_writing: $of_writing },)*];
    };
}

faults! {
    "failed reads", failed_reads, false;
    "failed writes", failed_writes, true;
    "failed syncs", failed_syncs, true;
    "bit flips", flipped_bits, false;
    "full disk", full, true;
    "misdirected", misdirected_writes, true;
    "lost writes", lost_writes, true;
    "panics", panics, false;
    "slow calls", slow, false;
    "power", stopped, false;
}

/// Steps of each kind in which each fault struck.
#[derive(Debug, Clone)]
pub struct Pairs {
    seen: Vec<[u64; FAULTS.len()]>,
}

impl Default for Pairs {
    fn default() -> Self {
        Self { seen: vec![[0; FAULTS.len()]; Step::ALL.len()] }
    }
}

impl Pairs {
    /// Does `act`, which is a step of `kind`, and notes the faults that struck meanwhile.
    pub fn during<T>(&mut self, kind: Step, disk: &SimDisk, act: impl FnOnce() -> T) -> T {
        let before = disk.counts();
        let done = act();
        let after = disk.counts();
        for (seen, fault) in self.seen[kind as usize].iter_mut().zip(FAULTS) {
            *seen += u64::from((fault.count)(&after) > (fault.count)(&before));
        }
        done
    }

    pub fn add(&mut self, other: &Pairs) {
        let rows = self.seen.iter_mut().zip(&other.seen);
        rows.for_each(|(row, more)| row.iter_mut().zip(more).for_each(|(seen, more)| *seen += more));
    }

    /// The table, and the pairs that a run should have met more often: `least` times.
    pub fn print(&self, least: u64) {
        print!("{:26}", "");
        FAULTS.iter().for_each(|fault| print!("{:>14}", fault.name));
        println!();
        let mut rare = Vec::new();
        for ((kind, _, step), row) in Step::ALL.iter().zip(&self.seen) {
            print!("  {step:24}");
            for (fault, seen) in FAULTS.iter().zip(row) {
                match kind.can_meet(fault) {
                    true => print!("{seen:14}"),
                    false => print!("{:>14}", "-"),
                }
                if kind.can_meet(fault) && *seen < least {
                    rare.push(format!("{step} x {}", fault.name));
                }
            }
            println!();
        }
        match rare.len() {
            0 => println!("  each pair of a step and a fault was met {least} times or more"),
            _ => println!("  met fewer than {least} times: {}", rare.join(", ")),
        }
    }
}
