//! What an access costs, on this machine and disk: `cargo run --release -p ramekin-pages --example page_bench [folder]`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "it measures time, and it may stop at any error")]

use ramekin_base::Rng;
use ramekin_base::limits::PAGE;
use ramekin_disk::probe;
use ramekin_memory::Budget;
use ramekin_pages::{Pages, Priority, Section};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

const PAGES: usize = 32_768;

fn main() {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("page-bench-{}", std::process::id()));
    let (disk, line) = probe(&folder, None).unwrap();
    println!("{line}");
    let budget = Budget::new(512 << 20);
    let account = budget.root().child("files", "");
    let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 32).unwrap();

    let start = Instant::now();
    let mut writer = pages.create(&path, &account).unwrap();
    writer.begin(1, Priority::Vectors).unwrap();
    let mut rng = Rng::new(1);
    for _ in 0..PAGES {
        let word = rng.next_u64().to_le_bytes();
        writer.write(&word.repeat(PAGE / 8)).unwrap();
    }
    writer.end().unwrap();
    writer.finish(&[]).unwrap();
    rate("write and sync", start);

    let start = Instant::now();
    let file = pages.open(&path, &account).unwrap();
    println!("open, {} MiB of data      {:>9} ns", (PAGES * PAGE) >> 20, start.elapsed().as_nanos());
    file.remove_on_drop();
    let section = file.section(1).unwrap();

    fetches("missing fetch of  1 page", &pages, &section, 1, 2_000, false);
    fetches("missing fetch of 20 pages", &pages, &section, 20, 500, false);
    fetches("cached fetch of  1 page", &pages, &section, 1, 1_000_000, true);
    fetches("cached fetch of 20 pages", &pages, &section, 20, 200_000, true);

    pages.evict_all();
    scattered(&pages, &section);
    let (start, before) = (Instant::now(), pages.stats().evictions);
    pages.evict_all();
    let evicted = u128::from(pages.stats().evictions - before);
    println!("evict a lonely page       {:>9} ns", start.elapsed().as_nanos() / evicted);

    let start = Instant::now();
    let mut stream = section.stream(&account, 1 << 20).unwrap();
    while let Some(piece) = stream.next().unwrap() {
        black_box(piece);
    }
    rate("stream", start);

    let start = Instant::now();
    section.load().unwrap();
    rate("load", start);
    let rounds = 10_000_000u64;
    let (start, mut sum) = (Instant::now(), 0u64);
    for round in 0..rounds {
        let resident = section.resident().unwrap();
        sum += u64::from(resident[(round as usize) & 4095]);
    }
    black_box(sum);
    println!("resident guard and a byte {:>9.1} ns", start.elapsed().as_nanos() as f64 / rounds as f64);
    fetches("resident fetch of 20 pages", &pages, &section, 20, 200_000, true);
    let start = Instant::now();
    section.unload();
    rate("unload", start);
}

/// Brings in every eighth page.
fn scattered(pages: &Pages, section: &Section) {
    for start in (0..PAGES).step_by(800) {
        let mut fetch = pages.fetch();
        for page in (start..PAGES.min(start + 800)).step_by(8) {
            fetch.want(section, (page * PAGE) as u64, 1).unwrap();
        }
        fetch.run().unwrap();
    }
}

/// Fetches of pages at random places; cached ones stay within 1,000 pages that were read before.
fn fetches(name: &str, pages: &Pages, section: &Section, count: usize, rounds: usize, cached: bool) {
    let mut rng = Rng::new(count as u64);
    let within = if cached { 1_000 } else { PAGES as u64 };
    if cached && !section.is_resident() {
        let mut fetch = pages.fetch();
        fetch.want(section, 0, within as usize * PAGE).unwrap();
        fetch.run().unwrap();
    }
    let mut wants = Vec::new();
    let (mut spent, mut sum) = (0, 0u64);
    for round in 0..rounds {
        if !cached && round % 100 == 0 {
            pages.evict_all();
        }
        let places: [u64; 32] = std::array::from_fn(|_| rng.below(within) * PAGE as u64);
        wants.clear();
        let start = Instant::now();
        let mut fetch = pages.fetch();
        for place in &places[..count] {
            wants.push(fetch.want(section, *place, PAGE).unwrap());
        }
        let pinned = fetch.run().unwrap();
        sum += wants.iter().map(|want| u64::from(pinned.bytes(*want)[0])).sum::<u64>();
        drop(pinned);
        spent += start.elapsed().as_nanos();
    }
    black_box(sum);
    println!("{name:<26}{:>9} ns", spent / rounds as u128);
}

fn rate(name: &str, start: Instant) {
    let mib = ((PAGES * PAGE) >> 20) as f64;
    println!("{name:<26}{:>9.0} MiB/s", mib / start.elapsed().as_secs_f64());
}
