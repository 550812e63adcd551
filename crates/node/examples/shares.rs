//! Measures stores that share one budget: `shares alone|idle|moves FOLDER`, one line of JSON a figure. `bench/arbiter.py` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measuring tool stops at any error, and looks at the machine's clock"
)]

#[path = "../tests/tenants/mod.rs"]
mod tenants;

use ramekin_base::Kind;
use ramekin_node::{IDLE_SHARE, Node};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tenants::{Toy, make_collection, node, open_bytes, search, upsert};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
const POINTS: u64 = 150_000;
const SEARCHES_FOR: Duration = Duration::from_secs(4);
const NAMES: [&str; 2] = ["one", "two"];

fn open(folder: &Path) -> Node {
    let node = node(folder, BUDGET).unwrap();
    if node.store().collections().iter().next().is_none() {
        make_collection(&node).unwrap();
        (0..POINTS).step_by(500).for_each(|first| upsert(&node, first, 500).unwrap());
    }
    node
}

/// Searches a second and the kernel's charge, of the store of vectors alone or beside two that nobody asks.
fn searches(folder: &Path, toys: &[&str]) {
    let node = open(folder);
    let toys: Vec<Arc<Toy>> = toys.iter().map(|name| node.host(name, open_bytes(1), Toy::open).unwrap()).collect();
    // What is to be resident is loaded by then.
    std::thread::sleep(Duration::from_secs(4));
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < SEARCHES_FOR {
        assert_eq!(search(&node, done).unwrap(), 10);
        done += 1;
    }
    let rate = done as f64 / start.elapsed().as_secs_f64();
    let ledger = node.ledger();
    let stores: u64 = NAMES.iter().map(|name| held(&node, name)).sum();
    println!(
        "{{\"figure\": \"searches\", \"stores\": {}, \"rate\": {rate:.1}, \"charged\": {}, \"idle_stores\": {stores}, \"share\": {}}}",
        1 + toys.len(),
        ledger.charged_bytes,
        node.shares()[0]
    );
    toys.iter().for_each(|toy| toy.0.close().unwrap());
    node.close();
}

fn held(node: &Node, name: &str) -> u64 {
    let accounts = node.ledger().accounts;
    accounts.iter().filter(|account| account.name.split('/').next() == Some(name)).map(|account| account.bytes).sum()
}

/// Load that moves from one store to the other, then a budget that moves under load.
fn moves(folder: &Path) {
    let node = open(folder);
    let toys = NAMES.map(|name| node.host(name, open_bytes(1), Toy::open).unwrap());
    let (is_over, busy, refused, busy_errors) =
        (AtomicBool::new(false), AtomicUsize::new(2), AtomicU64::new(0), AtomicU64::new(0));
    let note = |outcome: ramekin_base::Result<()>| match outcome {
        Err(error) if error.kind() == Kind::Busy => {
            busy_errors.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(error) => {
            eprintln!("{error}");
            refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(()) => {}
    };
    std::thread::scope(|scope| {
        for (at, toy) in toys.iter().enumerate() {
            let (is_over, busy, note) = (&is_over, &busy, &note);
            scope.spawn(move || {
                for round in 0.. {
                    match busy.load(Ordering::Relaxed) {
                        _ if is_over.load(Ordering::Relaxed) => return,
                        now if now == at => note(toy.add(round * 50 % 500_000, 100)),
                        _ => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                note(upsert(&node, round * 20 % POINTS, 20).and_then(|()| search(&node, round).map(|_| ())));
            }
        });
        for at in [0, 1, 0, 1] {
            let begun = Instant::now();
            busy.store(at, Ordering::Relaxed);
            while node.shares()[1 + at] < 8 * MIB {
                std::thread::sleep(Duration::from_millis(2));
            }
            let came = begun.elapsed().as_millis();
            while node.shares()[2 - at] > IDLE_SHARE + 4 * MIB {
                std::thread::sleep(Duration::from_millis(2));
            }
            println!(
                "{{\"figure\": \"share moved\", \"came_ms\": {came}, \"went_ms\": {}}}",
                begun.elapsed().as_millis()
            );
        }
        for (budget, at) in [(24, 1), (64, 0), (24, 0), (64, 1)] {
            busy.store(at, Ordering::Relaxed);
            let begun = Instant::now();
            let in_time = node.set_budget(budget * MIB, false, Duration::from_secs(10)).unwrap();
            let took = begun.elapsed().as_millis();
            let (mut most, mut claimed) = (0, 0);
            let moved = Instant::now();
            while moved.elapsed() < Duration::from_secs(6) {
                let ledger = node.ledger();
                (most, claimed) = (most.max(ledger.charged_bytes), claimed.max(node.budget().reserved()));
                std::thread::sleep(Duration::from_millis(20));
            }
            println!(
                "{{\"figure\": \"budget moved\", \"budget\": {}, \"in_time\": {in_time}, \"took_ms\": {took}, \"charged\": {most}, \"claimed\": {claimed}, \"shares\": {:?}}}",
                budget * MIB,
                node.shares()
            );
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let (refused, busy) = (refused.into_inner(), busy_errors.into_inner());
    println!("{{\"figure\": \"refused\", \"for_good\": {refused}, \"for_the_moment\": {busy}}}");
    toys.iter().for_each(|toy| toy.0.close().unwrap());
    node.close();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (mode, folder) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let folder = Path::new(&folder);
    match mode.as_str() {
        "alone" => searches(folder, &[]),
        "idle" => searches(folder, &NAMES),
        "moves" => moves(folder),
        _ => eprintln!("shares alone|idle|moves FOLDER"),
    }
}
