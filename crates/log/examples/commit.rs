//! What a commit costs on this disk: `cargo run --release -p ramekin-log --example commit -- FOLDER`
//!
//! Prints, for commits of 1, 16 and 256 records of 1 KiB: commits and MiB a second, and the median and
//! 99th percentile of one commit; then bytes a second of a replay. Other load on the machine shows.
#![allow(clippy::unwrap_used, reason = "an example")]

use ramekin_base::{Clock, SystemClock};
use ramekin_disk::{Engine, Local};
use ramekin_log::Log;
use ramekin_memory::Budget;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("name an empty folder"));
    let clock = SystemClock::new();
    let disk = Arc::new(Local::new(Engine::Pread, &folder).unwrap());
    let account = Budget::new(64 << 20).root();
    let log_folder = folder.join("log");
    let mut log = Log::open(disk.clone(), &log_folder, &account, 0..0, false, &mut |_, _| Ok(())).unwrap();
    for records in [1, 16, 256, 1, 16, 256] {
        let mut took = Vec::new();
        let start = clock.now();
        while clock.now() - start < Duration::from_secs(3) {
            let before = clock.now();
            for _ in 0..records {
                log.append(&[7; 1024]).unwrap();
            }
            log.commit().unwrap();
            took.push(clock.now() - before);
        }
        let seconds = (clock.now() - start).as_secs_f64();
        took.sort();
        let at = |part: f64| took[(took.len() as f64 * part) as usize].as_micros();
        let rate = took.len() as f64 / seconds;
        let mib = rate * f64::from(records) / 1024.0;
        println!(
            "{records:>4} records: {rate:>7.0} commits/s {mib:>7.1} MiB/s  p50 {} us  p99 {} us",
            at(0.5),
            at(0.99)
        );
    }
    let bytes = log.end();
    drop(log);
    let start = clock.now();
    Log::open(disk, &log_folder, &account, 0..0, false, &mut |_, _| Ok(())).unwrap();
    let seconds = (clock.now() - start).as_secs_f64();
    println!("replay: {:.0} MiB/s", bytes as f64 / seconds / 1_048_576.0);
}
