//! What a batch of commands allocates where nothing has to be waited for: nothing.
#![allow(clippy::unwrap_used, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{ManualClock, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::{Call, Durability};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use toy::{Command, Setup};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's own promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's own promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_batch_that_waits_for_nothing_allocates_nothing() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let setup = Setup { durability: Durability::No, share: 48 << 20, ..Setup::SMALL };
    let engine = toy::open(disk, Path::new("/data"), Arc::new(ManualClock::default()), setup).unwrap().0;
    let mut rng = Rng::new(1);
    let mut batch = || {
        let mut calls: [Call<toy::Counters>; 16] =
            std::array::from_fn(|_| Call::new(Command::Add { key: rng.below(1000), by: 1, least: 0 }));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        engine.run(&mut calls);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    (0..200).for_each(|_| _ = batch());
    let allocations: u64 = (0..400).map(|_| batch()).sum();
    // A chunk of the memtable or of its lists now and then, and no more.
    assert!(allocations <= 8, "{allocations} allocations in 6,400 commands");
}
