//! Drawn lives of the store beside plain maps, one for each revision: puts, deletes, transactions, leases, compactions, restarts and
//! power cuts; reads at any revision, counts and events are the same.
//!
//! `VERSIONS_SEEDS=1000` draws so many.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod maps;

use maps::Model;
use maps::drawn::Drawing;
use maps::found::{difference, read_all};
use ramekin_base::{ManualClock, Result, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_versions::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SEEDS: u64 = 60;
const STEPS: usize = 250;

/// What is stored up to a revision: of before the compaction what was alive at some revision, and no deletes before another.
fn stored(model: &Model, alive_at: i64, newest: i64, deletes_from: i64) -> Vec<((i64, usize), bool, KeyValue)> {
    let is_old = |event: &Event| event.kv.mod_revision <= model.compacted;
    let is_alive = |event: &Event| model.states[alive_at as usize].get(&event.kv.key) == Some(&event.kv);
    let counts = |event: &Event| match event.is_delete {
        true => event.kv.mod_revision >= deletes_from,
        false => !is_old(event) || is_alive(event),
    };
    let numbered = model.events[..=newest as usize].iter().flat_map(|events| events.iter().enumerate());
    let counted = numbered.filter(|(_, event)| counts(event));
    counted.map(|(at, event)| ((event.kv.mod_revision, at), event.is_delete, event.kv.clone())).collect()
}

struct Life {
    disk: Arc<SimDisk>,
    clock: Arc<ManualClock>,
    versions: Versions,
    model: Model,
    rng: Rng,
}

fn open(disk: &Arc<SimDisk>, clock: &Arc<ManualClock>) -> Result<Versions> {
    let budget = Budget::new(48 << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 4 << 30)?;
    let options = Options {
        disk: disk.clone(),
        folder: Path::new("/data/versions").to_owned(),
        pages,
        account: budget.root().child("versions", ""),
        budget,
        share: 11 << 20,
        clock: clock.clone(),
        threads: false,
        changed: Box::new(|_| {}),
    };
    Versions::open(options)
}

impl Life {
    fn new(seed: u64) -> Self {
        let (disk, clock) = (Arc::new(SimDisk::new(seed, Faults::default())), Arc::new(ManualClock::default()));
        let versions = open(&disk, &clock).unwrap();
        Self { disk, clock, versions, model: Model::default(), rng: Rng::new(seed) }
    }

    fn draw(&mut self) -> Drawing<'_> {
        Drawing { rng: &mut self.rng, newest: self.model.revision(), many: 40 }
    }

    /// Sends a command, and does it to the model.
    fn send(&mut self, command: Command) {
        let text = format!("{command:?}");
        let expected = self.model.execute(&command, None);
        let got = match command {
            Command::Grant { id, ttl } => self.versions.grant(id, ttl).map(|(revision, _)| Reply::Done { revision }),
            Command::Revoke(id) => self.versions.revoke(id).map(|revision| Reply::Done { revision }),
            command => self.versions.execute(command).map(|held| held.value),
        };
        assert_eq!(got.map_err(|error| error.message().to_owned()), expected.map_err(str::to_owned), "{text}");
    }

    fn step(&mut self) {
        let kind = self.rng.below(24);
        let mut draw = self.draw();
        let command = match kind {
            0..=7 => Some(Command::Put(draw.put())),
            8 | 9 => Some(Command::Delete(draw.delete())),
            10..=14 => Some(Command::Txn(draw.txn(0, &mut BTreeSet::new()))),
            15 => Some(Command::Compact(draw.compaction())),
            16 => Some(Command::Grant { id: draw.id(), ttl: 1000 }),
            17 => Some(Command::Revoke(draw.id())),
            _ => None,
        };
        match (command, kind) {
            (Some(command), _) => self.send(command),
            (_, 18) => self.versions.engine().flush().unwrap(),
            (_, 19) => _ = self.versions.step() || self.versions.purge().unwrap(),
            (_, 20) => self.clock.advance(Duration::from_millis(self.rng.below(3000))),
            (_, 21) => {
                self.versions.close().unwrap();
                self.versions = open(&self.disk, &self.clock).unwrap();
            }
            (_, 22) => {
                self.disk = Arc::new(self.disk.crash());
                self.versions = open(&self.disk, &self.clock).unwrap();
                assert_eq!(difference(&self.model, &read_all(&self.versions).unwrap()), None);
            }
            _ => {
                self.check_events();
                self.check_stored();
            }
        }
        self.check_reads();
    }

    fn check_reads(&mut self) {
        assert_eq!(self.versions.revision().unwrap(), self.model.revision());
        for _ in 0..2 {
            let asked = self.draw().range();
            let got = self.versions.range(&asked).map(|held| held.value).map_err(|error| error.message().to_owned());
            let expected = self.model.range(&asked).map_err(str::to_owned);
            assert_eq!(got, expected, "{asked:?}, compacted {}", self.model.compacted);
        }
        let id = self.draw().id();
        let leased = self.versions.leased(id).unwrap().value;
        assert_eq!(leased, self.model.leased(id).cloned().collect::<Vec<_>>());
    }

    fn check_stored(&mut self) {
        let (compacted, newest) = (self.model.compacted, self.model.revision());
        let asked = compacted.max(0) + self.rng.below((newest - compacted.max(0) + 1) as u64) as i64;
        let asked = if self.rng.below(2) == 0 { 0 } else { asked };
        let hashed = if asked == 0 { newest } else { asked };
        let alive_at = if self.model.states[hashed as usize].is_empty() { compacted } else { hashed };
        let all = stored(&self.model, compacted, newest, compacted);
        for (wanted, expected) in
            [(Wanted::All, all), (Wanted::Hash(asked), stored(&self.model, alive_at, hashed, compacted + 1))]
        {
            let mut got = Vec::new();
            let (view, mut calls) = (self.versions.view(), 0);
            let mut each = |stored: &Stored<'_>| {
                calls += 1;
                let mut value = Vec::new();
                stored.value(&mut |piece| {
                    value.extend_from_slice(piece);
                    Ok(())
                })?;
                assert_eq!(value.len() as u64, stored.value_len);
                let kv = KeyValue {
                    key: stored.key.to_vec(),
                    create_revision: stored.create_revision,
                    mod_revision: stored.revision,
                    version: stored.version,
                    value,
                    lease: stored.lease,
                };
                got.push(((stored.revision, stored.number as usize), stored.is_delete, kv));
                Ok(())
            };
            let shown = self.versions.stored(&view, wanted, &|| Ok(()), &mut each).unwrap();
            assert_eq!(got, expected, "{wanted:?}, compacted {compacted}");
            assert_eq!(shown, (compacted, if wanted == Wanted::All { newest } else { hashed }));
        }
    }

    fn check_events(&mut self) {
        let least = self.model.compacted.max(1);
        let from = least + self.rng.below((self.model.revision() - least + 2) as u64) as i64;
        let (keys, with_prev) = (self.draw().keys(), self.rng.below(2) == 0);
        let (mut next, mut got) = (from, Vec::new());
        while next <= self.model.revision() {
            let most = (1 + self.rng.below(20) as i64, self.rng.below(4000));
            let held = self.versions.events(next, most, with_prev, &mut |key| keys.contains(key)).unwrap();
            assert!(held.value.next > next);
            next = held.value.next;
            got.extend(held.value.events);
        }
        assert_eq!(got, self.model.seen(from, &keys, with_prev), "from {from}");
        if self.model.compacted > 1 {
            let error = self.versions.events(self.model.compacted - 1, (10, 1000), false, &mut |_| true);
            assert_eq!(error.err().unwrap().message(), errors::COMPACTED);
        }
    }
}

#[test]
fn whatever_happens_it_is_what_maps_say() {
    let seeds = std::env::var("VERSIONS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        let lived = std::panic::catch_unwind(|| {
            let mut life = Life::new(seed);
            for _ in 0..STEPS {
                life.step();
            }
        });
        assert!(lived.is_ok(), "seed {seed}");
    }
}
