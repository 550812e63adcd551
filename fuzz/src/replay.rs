//! The targets without libFuzzer: every file of the corpus, then mutations of them for a while.
//!
//! `cargo run --release --bin replay -- [SECONDS a target] [TARGET]`. A finding prints its bytes and fails.

use ramekin_base::Rng;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

const INPUT_MAX: usize = 1 << 16;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let only = arguments.next();
    for target in targets::TARGETS.iter().filter(|target| only.as_deref().is_none_or(|name| name == target.name)) {
        let corpus = corpus(target.name);
        let mut runs = 0u64;
        for input in &corpus {
            run(target, input);
            runs += 1;
        }
        let mut rng = Rng::new(0x5EED);
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            for _ in 0..256 {
                run(target, &mutated(&corpus, &mut rng));
            }
            runs += 256;
        }
        println!("{:<12} {:>4} files, {runs} runs, no finding", target.name, corpus.len());
    }
}

fn run(target: &targets::Target, input: &[u8]) {
    if catch_unwind(|| (target.run)(input)).is_err() {
        eprintln!("finding in {}: {:?}\nas text: {}", target.name, input, String::from_utf8_lossy(input));
        std::process::exit(1);
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let Ok(entries) = std::fs::read_dir(&folder) else { return vec![Vec::new()] };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut all: Vec<Vec<u8>> = paths.iter().filter_map(|path| std::fs::read(path).ok()).collect();
    all.push(Vec::new());
    all
}

/// One input of the corpus with a few bytes changed, cut, repeated, or joined with another.
fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let any = |rng: &mut Rng| corpus[rng.below(corpus.len() as u64) as usize].clone();
    let mut bytes = any(rng);
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 => {
                let tail = any(rng);
                bytes.truncate(at);
                let from = rng.below(tail.len() as u64 + 1) as usize;
                bytes.extend_from_slice(&tail[from..]);
            }
            3 => {
                let piece = bytes[at..(at + 1 + rng.below(16) as usize).min(bytes.len())].to_vec();
                for _ in 0..rng.below(64) {
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
            4 if at < bytes.len() => bytes[at] = *b"\0\xff\"{}[]:,-0.e\\"
                .get(rng.below(14) as usize)
                .unwrap_or(&0),
            5 if at + 8 <= bytes.len() => {
                let numbers = [0, 1, u64::MAX, u64::from(u32::MAX), 1 << 31, i64::MAX as u64];
                bytes[at..at + 8].copy_from_slice(&numbers[rng.below(6) as usize].to_le_bytes());
            }
            6 if at < bytes.len() => drop(bytes.remove(at)),
            _ if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            _ => {}
        }
        bytes.truncate(INPUT_MAX);
    }
    bytes
}
