//! One large unit while others write, to be killed: `large FOLDER` says what it finds, then writes 100 MB of counters as one unit
//! where there are none, or deletes a million of them where they are. `bench/engine.py` kills it, and starts it again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a measuring tool stops at any error"
)]

#[path = "../tests/toy/mod.rs"]
mod toy;

use ramekin_base::{Result, SystemClock};
use ramekin_disk::{Disk, Engine as DiskEngine, Local};
use ramekin_engine::{Bulk, Durability, Engine};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use toy::{Command, Counters, Setup, TREE, key_of};

const KEYS: u64 = 1_000_000;
/// With its key a record is 100 bytes.
const VALUE: [u8; 84] = [1; 84];
const WRITERS: u64 = 4;

fn open(folder: &Path) -> Engine<Counters> {
    std::fs::create_dir_all(folder).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Local::new(DiskEngine::Uring, folder).unwrap());
    let setup = Setup { budget: 64 << 20, share: 40 << 20, durability: Durability::Each, threads: true, trees: 1 };
    toy::open(disk, folder, Arc::new(SystemClock::new()), setup).unwrap().0
}

fn delete_all(bulk: &mut Bulk<'_, '_>, (pages, account): (&Pages, &Account)) -> Result<()> {
    let high = key_of(KEYS);
    let mut range = bulk.view().range(pages, account)?;
    range.seek(&key_of(0))?;
    while let Some(found) = range.entry()?.filter(|found| found.entry.key < &high[..]) {
        let key = found.entry.key.to_vec();
        if found.entry.value.is_live() {
            bulk.delete_known(&key, &VALUE)?;
        }
        range.advance()?;
    }
    Ok(())
}

fn main() {
    let folder = std::env::args().nth(1).expect("large FOLDER");
    let engine = open(Path::new(&folder));
    let view = engine.view();
    let (pages, account) = view.pages();
    let count = view.tree(TREE).unwrap().count(pages, &key_of(0), &key_of(KEYS)).unwrap();
    println!("{{\"found\": {count}}}");
    let (slowest, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (engine, slowest, is_over) = (&engine, &slowest, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    engine.execute(Command::Add { key: 2 * KEYS + writer, by: 1, least: 0 }).unwrap();
                    slowest.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                println!("{{\"slowest_us\": {}}}", slowest.load(Ordering::Relaxed));
            }
        });
        // The first write wakes the store.
        std::thread::sleep(Duration::from_millis(50));
        slowest.store(0, Ordering::Relaxed);
        println!("{{\"begun\": {count}}}");
        let start = Instant::now();
        engine
            .bulk(TREE, (&key_of(0), &key_of(KEYS)), |bulk| match count {
                0 => (0..KEYS).try_for_each(|key| bulk.put(&key_of(key), &VALUE)),
                _ => delete_all(bulk, (pages, account)),
            })
            .unwrap();
        println!("{{\"ended_s\": {:.3}}}", start.elapsed().as_secs_f64());
        is_over.store(true, Ordering::Relaxed);
    });
    engine.close().unwrap();
}
