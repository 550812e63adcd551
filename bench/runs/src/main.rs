//! One store under one load: `runs-bench STORE FOLDER KEYS BUDGET_MIB`, figures as JSON lines.
//!
//! ```text
//!   load (shuffled) ─► rest ─► scan ─► closed, caches dropped ─► cold gets ─► warm gets, in a sixteenth of the keys
//! ```
//!
//! Keys and values are 16 bytes each; no log, no compression; one thread asks.

mod fjall_store;
mod lmdb;
mod ours;

use std::path::Path;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Gets of each kind.
const COLD: u64 = 20_000;
const WARM: u64 = 2_000_000;

pub type Key = [u8; 16];

/// What is measured.
pub trait Store {
    fn put(&mut self, key: &Key, value: &Key);
    /// Everything that was put is in files, and no merge is due.
    fn settle(&mut self);
    /// The sum of the last bytes of all values, in the order of the keys, and how many there are.
    fn scan(&mut self) -> (u64, u64);
    fn get(&mut self, key: &Key) -> Option<Key>;
    /// Figures of its own.
    fn facts(&self) -> String;
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Key number `n`: any order of numbers is a shuffled order of keys.
pub fn key(n: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(n + 1).to_be_bytes());
    key[8..].copy_from_slice(&mix(n ^ 0x5555_5555).to_be_bytes());
    key
}

fn value(n: u64) -> Key {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value[15] = n as u8;
    value
}

fn open(store: &str, folder: &Path, budget: u64) -> Box<dyn Store> {
    match store {
        "ramekin" => Box::new(ours::Ours::open(folder, budget)),
        "fjall" => Box::new(fjall_store::Fjall::open(folder)),
        "lmdb" => Box::new(lmdb::Lmdb::open(folder)),
        other => panic!("no store {other}: ramekin, fjall or lmdb"),
    }
}

fn say(phase: &str, operations: u64, begun: Instant, more: &str) {
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"phase\": \"{phase}\", \"operations\": {operations}, \"seconds\": {seconds:.6}{more}}}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, folder, keys, budget] = &arguments[..] else { panic!("runs-bench STORE FOLDER KEYS BUDGET_MIB") };
    let (folder, keys) = (Path::new(folder), keys.parse::<u64>().expect("a number of keys"));
    let budget = budget.parse::<u64>().expect("a budget in MiB") << 20;
    let mut store = open(name, folder, budget);

    let begun = Instant::now();
    (0..keys).for_each(|n| store.put(&key(n), &value(n)));
    say("load", keys, begun, "");
    store.settle();
    say("settle", keys, begun, &format!(", {}", store.facts()));

    let begun = Instant::now();
    let (sum, count) = store.scan();
    let expected: u64 = (0..keys).map(|n| n & 0xff).sum();
    assert_eq!((sum, count), (expected, keys), "a scan sees all");
    say("scan", keys, begun, "");

    drop(store);
    if std::fs::write("/proc/sys/vm/drop_caches", "1").is_err() {
        eprintln!("the kernel's page cache could not be dropped: cold gets are not cold");
    }
    let mut store = open(name, folder, budget);
    let mut drawn = (0u64..).map(|n| mix(n * 7 + 3) % keys);
    let mut get = |n: u64| assert_eq!(store.get(&key(n)), Some(value(n)), "key {n}");
    let begun = Instant::now();
    (0..COLD).for_each(|_| get(drawn.next().unwrap_or(0)));
    say("cold get", COLD, begun, "");

    let hot: Vec<u64> = (0..keys).filter(|n| key(*n)[0] < 16).collect();
    hot.iter().for_each(|n| get(*n));
    let begun = Instant::now();
    (0..WARM).for_each(|n| get(hot[(mix(n) % hot.len() as u64) as usize]));
    say("warm get", WARM, begun, "");
}
