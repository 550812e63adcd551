//! Measures the engine by a store of counters: `toy FOLDER [throughput|one-key|large|cold]`, one line of JSON a figure. `bench/engine.py` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a measuring tool stops at any error"
)]

#[path = "../tests/toy/mod.rs"]
mod toy;

use ramekin_base::{Rng, SystemClock};
use ramekin_disk::{Disk, Engine as DiskEngine, Local};
use ramekin_engine::{Call, Durability, Engine};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use toy::{Command, Counters, Setup, TREE, add, key_of};

const CALLERS: usize = 50;
const BATCH: usize = 16;
const COMMANDS: u64 = 8_000_000;
const HOT: u64 = 100_000;
const COLD: u64 = 4_000_000;

fn open(folder: &Path, durability: Durability) -> (Arc<dyn Disk>, Engine<Counters>) {
    std::fs::create_dir_all(folder).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Local::new(DiskEngine::Uring, folder).unwrap());
    let setup = Setup { budget: 128 << 20, share: 64 << 20, durability, threads: true, trees: 1 };
    let (engine, _) = toy::open(disk.clone(), folder, Arc::new(SystemClock::new()), setup).unwrap();
    (disk, engine)
}

/// Seconds of processor time of this process.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// 50 callers, batches of 16, answers at once, the log synced each second.
fn throughput(folder: &Path) {
    let (disk, engine) = open(&folder.join("throughput"), Durability::Interval(Duration::from_secs(1)));
    let (start, cpu_before, begun) = (Instant::now(), cpu(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (engine, begun) = (&engine, &begun);
            scope.spawn(move || {
                let mut rng = Rng::new(caller as u64);
                while begun.fetch_add(BATCH as u64, Ordering::Relaxed) < COMMANDS {
                    let mut calls: [Call<Counters>; BATCH] = std::array::from_fn(|_| Call::new(add(rng.below(HOT))));
                    engine.run(&mut calls);
                    assert!(calls.iter().all(|call| matches!(call.reply, Some(Ok(_)))));
                }
            });
        }
    });
    let (wall, used) = (start.elapsed().as_secs_f64(), cpu() - cpu_before);
    println!(
        "{{\"figure\": \"throughput\", \"commands\": {COMMANDS}, \"wall_s\": {wall:.3}, \"cpu_s\": {used:.2}, \"syncs\": {}}}",
        disk.counters().syncs
    );
    engine.close().unwrap();
}

/// 1,000 conditional writes to one key without waiting, and 64 clients that wait.
fn one_key(folder: &Path) {
    let (disk, engine) = open(&folder.join("one-key"), Durability::Each);
    engine.execute(add(1)).unwrap();
    let (before, start) = (disk.counters().syncs, Instant::now());
    let (tell, told) = mpsc::sync_channel(2000);
    for _ in 0..1000 {
        let tell = tell.clone();
        engine.submit(add(1), None, Box::new(move |reply| tell.send(reply.is_ok()).unwrap()));
    }
    assert!((0..1000).all(|_| told.recv().unwrap()));
    let (wall, syncs) = (start.elapsed().as_secs_f64(), disk.counters().syncs - before);
    println!("{{\"figure\": \"unwaited\", \"commands\": 1000, \"wall_s\": {wall:.5}, \"syncs\": {syncs}}}");
    let (before, start) = (disk.counters().syncs, Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| (0..50).for_each(|_| _ = engine.execute(add(1)).unwrap()));
        }
    });
    let (wall, syncs) = (start.elapsed().as_secs_f64(), disk.counters().syncs - before);
    println!("{{\"figure\": \"waiting\", \"commands\": 3200, \"wall_s\": {wall:.5}, \"syncs\": {syncs}}}");
    engine.close().unwrap();
}

/// 1,000 conditional writes to cold keys beside as many reads of them at depth 32; and one cold writer among 64.
fn cold(folder: &Path) {
    let folder = folder.join("cold");
    let (_, engine) = open(&folder, Durability::Interval(Duration::from_secs(1)));
    let key = |number: u64| ramekin_base::rng::mix(number);
    for first in (0..COLD).step_by(256) {
        let adds = (first..(first + 256).min(COLD)).map(|number| add(key(number))).collect();
        engine.execute(Command::Both(adds)).unwrap();
    }
    engine.flush().unwrap();
    engine.close().unwrap();
    drop(engine);
    let (disk, engine) = open(&folder, Durability::Interval(Duration::from_secs(1)));
    let mut rng = Rng::new(7);
    let mut cold_keys = |count: usize| -> Vec<u64> { (0..count).map(|_| key(rng.below(COLD))).collect() };
    // Reads, 32 at a time.
    let (keys, before, start) = (cold_keys(1000), disk.counters().reads, Instant::now());
    let view = engine.view();
    for some in keys.chunks(32) {
        let names: Vec<[u8; 16]> = some.iter().map(|key| key_of(*key)).collect();
        let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        let tree = view.tree(TREE).unwrap();
        tree.get_many(view.pages().0, &names, &mut |_, found| {
            assert!(found.is_some());
            Ok(())
        })
        .unwrap();
    }
    let (reads_s, reads) = (start.elapsed().as_secs_f64(), disk.counters().reads - before);
    let (keys, before, start) = (cold_keys(1000), disk.counters().reads, Instant::now());
    let (tell, told) = mpsc::sync_channel(2000);
    for key in keys {
        let tell = tell.clone();
        engine.submit(add(key), None, Box::new(move |reply| tell.send(reply.is_ok()).unwrap()));
    }
    assert!((0..1000).all(|_| told.recv().unwrap()));
    let (writes_s, written) = (start.elapsed().as_secs_f64(), disk.counters().reads - before);
    println!(
        "{{\"figure\": \"cold\", \"reads_s\": {reads_s:.5}, \"disk_reads\": {reads}, \"writes_s\": {writes_s:.5}, \"write_disk_reads\": {written}}}"
    );
    for (figure, has_cold) in
        [("63 warm alone", false), ("63 warm beside a cold one", true), ("63 warm alone again", false)]
    {
        let (done, start) = (AtomicU64::new(0), Instant::now());
        let until = start + Duration::from_secs(2);
        let own = cold_keys(200_000);
        std::thread::scope(|scope| {
            for caller in 0..63u64 {
                let (engine, done) = (&engine, &done);
                scope.spawn(move || {
                    while Instant::now() < until {
                        engine.execute(add(caller)).unwrap();
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            if has_cold {
                let (engine, own) = (&engine, &own);
                scope.spawn(move || {
                    own.iter()
                        .take_while(|_| Instant::now() < until)
                        .for_each(|key| _ = engine.execute(add(*key)).unwrap());
                });
            }
        });
        let wall = start.elapsed().as_secs_f64();
        println!("{{\"figure\": \"{figure}\", \"commands\": {}, \"wall_s\": {wall:.3}}}", done.into_inner());
    }
    engine.close().unwrap();
}

/// One unit of a million deletes while others write, and how long a write takes at most without it.
fn large_unit(folder: &Path) {
    let (_, engine) = open(&folder.join("large"), Durability::Each);
    const KEYS: u64 = 1_000_000;
    std::thread::scope(|scope| {
        for part in 0..8 {
            let engine = &engine;
            scope.spawn(move || {
                for first in (part * 256..KEYS).step_by(8 * 256) {
                    let adds = (first..(first + 256).min(KEYS)).map(add).collect();
                    engine.execute(Command::Both(adds)).unwrap();
                }
            });
        }
    });
    engine.flush().unwrap();
    let (slowest, is_over) = (AtomicU64::new(0), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        for caller in 0..4u64 {
            let (engine, slowest, is_over) = (&engine, &slowest, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    engine.execute(add(2 * KEYS + caller)).unwrap();
                    slowest.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
                }
            });
        }
        let seconds = |seconds| std::thread::sleep(Duration::from_secs(seconds));
        seconds(1);
        slowest.store(0, Ordering::Relaxed);
        seconds(2);
        println!("{{\"figure\": \"slowest write alone\", \"us\": {}}}", slowest.swap(0, Ordering::Relaxed));
        let start = Instant::now();
        let deleted = delete_all(&engine, KEYS);
        let wall = start.elapsed().as_secs_f64();
        println!("{{\"figure\": \"slowest write beside it\", \"us\": {}}}", slowest.load(Ordering::Relaxed));
        is_over.store(true, Ordering::Relaxed);
        println!("{{\"figure\": \"large unit\", \"deleted\": {deleted}, \"wall_s\": {wall:.3}}}");
    });
    let view = engine.view();
    let left = view.tree(TREE).unwrap().count(view.pages().0, &[], &key_of(KEYS)).unwrap();
    assert_eq!(left, 0);
    engine.close().unwrap();
}

/// Deletes all counters below one as one unit; how many there were.
fn delete_all(engine: &Engine<Counters>, end: u64) -> u64 {
    let (low, high, mut deleted) = (key_of(0), key_of(end), 0);
    let view = engine.view();
    let (pages, account) = view.pages();
    engine
        .bulk(TREE, (&low, &high), |bulk| {
            let mut range = bulk.view().range(pages, account)?;
            range.seek(&low)?;
            while let Some(found) = range.entry()?.filter(|found| found.entry.key < &high[..]) {
                let key: [u8; 16] = found.entry.key.try_into().unwrap();
                if found.entry.value.is_live() {
                    bulk.delete_known(&key, &[])?;
                    deleted += 1;
                }
                range.advance()?;
            }
            Ok(())
        })
        .unwrap();
    deleted
}

fn main() {
    let folder = std::env::args().nth(1).expect("toy FOLDER");
    let folder = Path::new(&folder);
    let only = std::env::args().nth(2);
    type Part = (&'static str, fn(&Path));
    let parts: [Part; 4] = [("throughput", throughput), ("one-key", one_key), ("large", large_unit), ("cold", cold)];
    for (name, part) in parts {
        if only.as_deref().is_none_or(|only| only == name) {
            part(folder);
        }
    }
}
