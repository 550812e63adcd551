//! `ramekin-sim --seeds N [--from S] [--store vectors|versions|all]`: runs seeds with each store and counts what they went through;
//! `ramekin-sim --store vectors --seed S`: runs one again.

#![forbid(unsafe_code)]

use ramekin_sim::{FAULTS, KINDS, Kind, Outcome, Pairs};
use std::process::ExitCode;

fn option(args: &[String], name: &str) -> Option<u64> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1)?.parse().ok()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let wanted = args.iter().position(|arg| arg == "--store").and_then(|at| args.get(at + 1));
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name || wanted == "all");
    let kinds: Vec<&Kind> = KINDS.iter().filter(|(name, _)| is_wanted(name)).collect();
    if kinds.is_empty() {
        let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        eprintln!("--store is one of {}, all", names.join(", "));
        return ExitCode::FAILURE;
    }
    let (from, count) = match option(&args, "--seed") {
        Some(seed) => (seed, 1),
        None => (option(&args, "--from").unwrap_or(0), option(&args, "--seeds").unwrap_or(300)),
    };
    match kinds.iter().all(|kind| seeds(kind, from, count)) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs seeds with a store. False: one failed.
fn seeds((name, run): &Kind, from: u64, count: u64) -> bool {
    let mut seen = Seen::default();
    for seed in from..from + count {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let what = match outcome {
            Ok(Ok(outcome)) => {
                seen.add(&outcome);
                continue;
            }
            Ok(Err(failure)) => failure.what,
            Err(_) => "a panic".to_owned(),
        };
        eprintln!("seed {seed} failed: {what}\nagain: ramekin-sim --store {name} --seed {seed}");
        return false;
    }
    println!("{name}:");
    seen.print(count);
    true
}

/// So often a run of so many seeds should meet each pair of a step and a fault; a shorter one once.
const PAIRS_LEAST: u64 = 50;
const PAIRS_SEEDS: u64 = 20_000;

/// In how many seeds each kind of fault really happened.
#[derive(Default)]
struct Seen {
    steps: u64,
    refused: u64,
    kinds: Vec<(&'static str, u64)>,
    pairs: Pairs,
}

impl Seen {
    fn add(&mut self, outcome: &Outcome) {
        let counts = &outcome.counts;
        self.steps += outcome.steps;
        self.refused += u64::from(outcome.refused);
        self.pairs.add(&outcome.pairs);
        let of_faults = FAULTS.iter().map(|fault| (fault.name, (fault.count)(counts)));
        let others = [
            ("crash", counts.crashes),
            ("lost unsynced sectors", counts.lost_sectors),
            ("torn write", counts.torn_writes),
            ("lost names", counts.lost_names),
        ];
        let kinds: Vec<_> = others.into_iter().chain(outcome.seen.iter().copied()).chain(of_faults).collect();
        self.kinds.resize(kinds.len(), ("", 0));
        for (seen, (name, count)) in self.kinds.iter_mut().zip(kinds) {
            *seen = (name, seen.1 + u64::from(count > 0));
        }
    }

    fn print(&self, seeds: u64) {
        self.pairs.print(if seeds < PAIRS_SEEDS { 1 } else { PAIRS_LEAST });
        println!("{seeds} seeds clean, {} steps, {} ended by refusing damaged data", self.steps, self.refused);
        for (name, count) in &self.kinds {
            println!("  {name:<22} in {:5.1} % of the seeds", 100.0 * *count as f64 / seeds.max(1) as f64);
        }
    }
}
