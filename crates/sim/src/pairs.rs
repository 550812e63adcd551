//! Which fault struck during which kind of step, and how often.
//!
//! ```text
//!                     failed reads  failed writes  ...  panics
//!   upsert                     12             80  ...      31
//!   search                    140              -  ...      77      -  no step of this kind can meet it
//! ```

use crate::lot::Steps;
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

/// A row of the table: a kind of step, and the faults that can strike during it.
#[derive(Debug, Clone)]
struct Row {
    step: &'static str,
    meets: [bool; FAULTS.len()],
    seen: [u64; FAULTS.len()],
}

/// Steps of each kind in which each fault struck.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    rows: Vec<Row>,
}

impl Pairs {
    pub(crate) fn of<S: Steps>() -> Self {
        let rows = S::ALL.iter().map(|(kind, _, step)| {
            let mut meets = [false; FAULTS.len()];
            meets.iter_mut().zip(FAULTS).for_each(|(meets, fault)| *meets = kind.can_meet(fault));
            Row { step, meets, seen: [0; FAULTS.len()] }
        });
        Self { rows: rows.collect() }
    }

    /// Does `act`, which is a step of the kind at `place`, and notes the faults that struck meanwhile.
    pub fn during<T>(&mut self, place: usize, disk: &SimDisk, act: impl FnOnce() -> T) -> T {
        let before = disk.counts();
        let done = act();
        let after = disk.counts();
        for (seen, fault) in self.rows[place].seen.iter_mut().zip(FAULTS) {
            *seen += u64::from((fault.count)(&after) > (fault.count)(&before));
        }
        done
    }

    pub fn add(&mut self, other: &Pairs) {
        if self.rows.is_empty() {
            *self = other.clone();
            return;
        }
        for (row, more) in self.rows.iter_mut().zip(&other.rows) {
            row.seen.iter_mut().zip(more.seen).for_each(|(seen, more)| *seen += more);
        }
    }

    /// The table, and the pairs that a run should have met more often: `least` times.
    pub fn print(&self, least: u64) {
        print!("{:26}", "");
        FAULTS.iter().for_each(|fault| print!("{:>14}", fault.name));
        println!();
        let mut rare = Vec::new();
        for Row { step, meets, seen } in &self.rows {
            print!("  {step:24}");
            for ((fault, meets), seen) in FAULTS.iter().zip(meets).zip(seen) {
                match meets {
                    true => print!("{seen:14}"),
                    false => print!("{:>14}", "-"),
                }
                if *meets && *seen < least {
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
