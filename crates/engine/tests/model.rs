//! Drawn lives of a store beside a plain map: commands, units, large units, flushes, merges, restarts and power cuts; whatever is
//! read, ranked, selected and counted is the same.
//!
//! `ENGINE_SEEDS=1000` draws so many.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{ManualClock, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::{Durability, Engine, ReadView};
use ramekin_runs::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use toy::{Command, Counters, Reply, Setup, count_of, key_of, number_of, tree_of, value_of};

const SEEDS: u64 = 40;
const STEPS: usize = 60;
const KEYS: u64 = 3000;

type Model = BTreeMap<u64, i64>;

fn folder() -> &'static Path {
    Path::new("/data/counters")
}

/// What one command answers; `None`: it is refused.
fn counts_of(changed: &mut Model, trees: usize, command: &Command) -> Option<Vec<Option<i64>>> {
    match command {
        Command::Get(key) => Some(vec![changed.get(key).copied()]),
        Command::Delete(key) => Some(vec![changed.remove(key)]),
        Command::Put(key, _) => {
            changed.insert(*key, 1);
            Some(vec![Some(1)])
        }
        Command::Add { key, by, least } => {
            let sum = changed.get(key).copied().unwrap_or(0) + by;
            (sum >= *least).then(|| {
                changed.insert(*key, sum);
                vec![Some(sum)]
            })
        }
        Command::Within { tree, from, to, most } => {
            let all = changed.range(*from..*to.max(from)).filter(|(key, _)| tree_of(**key, trees) == *tree);
            let all: Vec<i64> = all.map(|(_, count)| *count).collect();
            Some(std::iter::once(all.len() as i64).chain(all.into_iter().take(*most)).map(Some).collect())
        }
        _ => None,
    }
}

struct Life {
    disk: Arc<SimDisk>,
    clock: Arc<ManualClock>,
    setup: Setup,
    engine: Engine<Counters>,
    model: Model,
    rng: Rng,
    /// Views of before read a disk that is gone.
    was_cut: bool,
    /// Values of more than 1 MiB were written.
    has_large: bool,
}

impl Life {
    fn new(seed: u64, setup: Setup) -> Self {
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let clock = Arc::new(ManualClock::default());
        let (engine, _) = toy::open(disk.clone(), folder(), clock.clone(), setup).unwrap();
        Self { disk, clock, setup, engine, model: Model::new(), rng: Rng::new(seed), was_cut: false, has_large: false }
    }

    fn command(&mut self) -> Command {
        let key = self.rng.below(KEYS);
        // Now and then a value of up to 2 MiB, of each order of size as often.
        if self.rng.below(60) == 0 {
            let bytes = (2 << 10) << self.rng.below(11);
            self.has_large |= bytes > 1 << 20;
            return Command::Put(key, bytes - self.rng.below(bytes as u64 / 2) as usize);
        }
        match self.rng.below(11) {
            10 => self.within(),
            0 | 1 => Command::Get(key),
            2 | 3 => Command::Delete(key),
            4 => {
                let some = 1 + self.rng.below(40);
                let one = |number| if number % 20 == 19 { self.within() } else { self.add() };
                Command::Both((0..some).map(one).collect())
            }
            _ => self.add(),
        }
    }

    fn within(&mut self) -> Command {
        let (from, to) = (self.rng.below(KEYS), self.rng.below(KEYS));
        let tree = self.rng.below(self.setup.trees as u64) as usize;
        Command::Within { tree, from, to, most: 1 << self.rng.below(12) }
    }

    fn add(&mut self) -> Command {
        let (key, by) = (self.rng.below(KEYS), self.rng.below(9) as i64 - 4);
        Command::Add { key, by, least: -(self.rng.below(6) as i64) }
    }

    /// What the model answers; it changes only where all succeed.
    fn expected(&mut self, command: &Command) -> Option<Reply> {
        let (mut changed, trees) = (self.model.clone(), self.setup.trees);
        let reply = match command {
            Command::Both(all) => {
                let all: Option<Vec<_>> = all.iter().map(|command| counts_of(&mut changed, trees, command)).collect();
                Reply::Counts(all?.concat())
            }
            Command::Within { .. } => Reply::Counts(counts_of(&mut changed, trees, command)?),
            command => Reply::Count(counts_of(&mut changed, trees, command)?[0]),
        };
        self.model = changed;
        Some(reply)
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0 => self.engine.flush().unwrap(),
            1 | 2 => _ = self.engine.step(),
            3 => self.clock.advance(Duration::from_millis(self.rng.below(3000))),
            4 => self.delete_many(),
            5 => self.reopen(),
            6 => self.cut_power(),
            _ => {
                for _ in 0..1 + self.rng.below(60) {
                    let command = self.command();
                    let got = self.engine.execute(command.clone());
                    // Among the largest values a walk is longer than one may be.
                    if got.as_ref().is_err_and(|error| error.message().contains("walks along")) {
                        assert!(self.has_large, "{command:?}");
                        continue;
                    }
                    let got = got.ok();
                    let expected = self.expected(&command);
                    assert_eq!(got, expected, "{command:?}");
                }
            }
        }
    }

    /// One unit of any size: each counter of a range, some of them made anew.
    fn delete_many(&mut self) {
        let from = self.rng.below(KEYS);
        let to = from + self.rng.below(KEYS - from) + 1;
        let (low, high) = (key_of(from), key_of(to));
        let (keeps, tree) = (self.rng.below(3), self.rng.below(self.setup.trees as u64) as usize);
        let model = &mut self.model;
        let view = self.engine.view();
        let (pages, account) = view.pages();
        self.engine
            .bulk(tree, (&low, &high), |bulk| {
                let mut range = bulk.view().range(pages, account)?;
                range.seek(&low)?;
                while let Some(found) = range.entry()?.filter(|found| found.entry.key < &high[..]) {
                    let key: Vec<u8> = found.entry.key.to_vec();
                    let (number, value) = (number_of(&key), found.entry.value);
                    if value.is_live() && number / 3 % 3 < keeps {
                        bulk.put(&key, &value_of(7))?;
                        assert!(model.insert(number, 7).is_some(), "{number}");
                    } else if value.is_live() {
                        match value {
                            Value::Inline(value) => bulk.delete_known(&key, value)?,
                            _ => bulk.delete(&key)?,
                        }
                        assert!(model.remove(&number).is_some(), "{number}");
                    }
                    range.advance()?;
                }
                Ok(())
            })
            .unwrap();
    }

    fn reopen(&mut self) {
        self.engine.close().unwrap();
        let disk = self.disk.clone();
        (self.engine, _) = toy::open(disk, folder(), self.clock.clone(), self.setup).unwrap();
    }

    fn cut_power(&mut self) {
        if self.setup.durability != Durability::Each {
            self.engine.sync().unwrap();
        }
        self.was_cut = true;
        self.disk = Arc::new(self.disk.crash());
        (self.engine, _) = toy::open(self.disk.clone(), folder(), self.clock.clone(), self.setup).unwrap();
    }

    fn check(&mut self, view: &ReadView, model: &Model) {
        for number in 0..self.setup.trees {
            let of_tree = |(key, _): &(&u64, &i64)| tree_of(**key, self.setup.trees) == number;
            let model = model.iter().filter(of_tree).map(|(key, count)| (*key, *count)).collect();
            self.check_tree(view, number, &model);
        }
        for _ in 0..5 {
            let key = self.rng.below(KEYS);
            let found = view.get(tree_of(key, self.setup.trees), &key_of(key), count_of).unwrap();
            assert_eq!(found, model.get(&key).copied());
        }
    }

    fn check_tree(&mut self, view: &ReadView, number: usize, model: &Model) {
        let (pages, account) = view.pages();
        let tree = view.tree(number).unwrap();
        let mut range = tree.range(pages, account).unwrap();
        let mut seen = Vec::new();
        range.seek(&[]).unwrap();
        while let Some(found) = range.entry().unwrap() {
            let number = number_of(found.entry.key);
            if let Value::Inline(value) = found.entry.value {
                seen.push((number, count_of(value)));
            } else if let Some(big) = found.big() {
                let mut count = [0; 8];
                big.read(pages, 0, &mut count).unwrap();
                seen.push((number, count_of(&count)));
            }
            range.advance().unwrap();
        }
        assert_eq!(seen, model.iter().map(|(key, count)| (*key, *count)).collect::<Vec<_>>());
        range.seek_back(None).unwrap();
        let mut back = Vec::new();
        while let Some(found) = range.entry().unwrap() {
            if found.entry.value.is_live() {
                back.push(number_of(found.entry.key));
            }
            range.advance().unwrap();
        }
        assert_eq!(back, model.keys().rev().copied().collect::<Vec<_>>());
        for _ in 0..5 {
            let (a, b) = (self.rng.below(KEYS), self.rng.below(KEYS));
            let (a, b) = (a.min(b), a.max(b));
            let count = tree.count(pages, &key_of(a), &key_of(b)).unwrap();
            assert_eq!(count, model.range(a..b).count() as i64, "{a}..{b}");
            assert_eq!(tree.weight_below(pages, &key_of(a)).unwrap(), model.range(..a).count() as i64);
            let number = self.rng.below(model.len() as u64 + 2) as i64;
            let selected = tree.select(pages, account, (&[], &[0xff; 17]), number).unwrap();
            let wanted = model.keys().nth(number as usize).copied();
            assert_eq!(selected.map(|(key, _)| number_of(&key)), wanted, "element {number}");
        }
    }
}

fn live(seed: u64, durability: Durability, trees: usize) {
    let mut life = Life::new(seed, Setup { durability, trees, ..Setup::SMALL });
    let mut pinned: Option<(ReadView, Model)> = None;
    for _ in 0..STEPS {
        life.step();
        if std::mem::take(&mut life.was_cut) {
            pinned = None;
        }
        let (view, model) = (life.engine.view(), life.model.clone());
        life.check(&view, &model);
        if let Some((view, model)) = &pinned {
            life.check(view, model);
        }
        if life.rng.below(8) == 0 {
            pinned = Some((view, model));
        }
    }
}

#[test]
fn whatever_happens_it_is_what_a_map_says() {
    let seeds = std::env::var("ENGINE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        let durability = match seed % 3 {
            0 => Durability::Each,
            1 => Durability::Interval(Duration::from_secs(1)),
            _ => Durability::No,
        };
        let trees = [1, 3][seed as usize % 2];
        let lived = std::panic::catch_unwind(|| live(seed, durability, trees));
        assert!(lived.is_ok(), "seed {seed}, {durability:?}, {trees} trees");
    }
}
