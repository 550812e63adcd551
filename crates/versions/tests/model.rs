//! Drawn lives of the store beside plain maps, one for each revision: puts, deletes, transactions, leases, compactions, restarts and
//! power cuts; reads at any revision, counts and events are the same.
//!
//! `VERSIONS_SEEDS=1000` draws so many.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_base::{ManualClock, Result, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_versions::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SEEDS: u64 = 60;
const STEPS: usize = 250;

type State = BTreeMap<Vec<u8>, KeyValue>;

/// All states, by revision, and what happened in each.
struct Model {
    states: Vec<State>,
    events: Vec<Vec<Event>>,
    compacted: i64,
    leases: BTreeSet<i64>,
}

impl Model {
    fn new() -> Self {
        // Revisions 0 and 1 have nothing.
        Self { states: vec![State::new(); 2], events: vec![Vec::new(); 2], compacted: -1, leases: BTreeSet::new() }
    }

    fn revision(&self) -> i64 {
        self.states.len() as i64 - 1
    }

    /// What is stored up to a revision: of before the compaction what was alive at some revision, and no deletes before another.
    fn stored(&self, alive_at: i64, newest: i64, deletes_from: i64) -> Vec<((i64, usize), bool, KeyValue)> {
        let is_old = |event: &Event| event.kv.mod_revision <= self.compacted;
        let is_alive = |event: &Event| self.states[alive_at as usize].get(&event.kv.key) == Some(&event.kv);
        let counts = |event: &Event| match event.is_delete {
            true => event.kv.mod_revision >= deletes_from,
            false => !is_old(event) || is_alive(event),
        };
        let numbered = self.events[..=newest as usize].iter().flat_map(|events| events.iter().enumerate());
        let counted = numbered.filter(|(_, event)| counts(event));
        counted.map(|(at, event)| ((event.kv.mod_revision, at), event.is_delete, event.kv.clone())).collect()
    }

    fn now(&self) -> &State {
        self.states.last().unwrap()
    }
}

/// A unit under way.
struct Draft<'m> {
    model: &'m Model,
    state: State,
    events: Vec<Event>,
}

impl Draft<'_> {
    fn revision(&self) -> i64 {
        self.model.revision() + i64::from(!self.events.is_empty())
    }

    fn put(&mut self, put: &Put) -> std::result::Result<OpReply, &'static str> {
        if put.key.is_empty() {
            return Err(errors::KEY_NOT_PROVIDED);
        }
        if put.ignore_value && !put.value.is_empty() {
            return Err(errors::VALUE_PROVIDED);
        }
        if put.ignore_lease && put.lease != 0 {
            return Err(errors::LEASE_PROVIDED);
        }
        if put.lease != 0 && !self.model.leases.contains(&put.lease) {
            return Err(errors::LEASE_NOT_FOUND);
        }
        let old = self.state.get(&put.key).cloned();
        if old.is_none() && (put.ignore_value || put.ignore_lease) {
            return Err(errors::KEY_NOT_FOUND);
        }
        let revision = self.model.revision() + 1;
        let mut kv = KeyValue {
            key: put.key.clone(),
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.as_ref().map_or(1, |old| old.version + 1),
            value: put.value.clone(),
            lease: put.lease,
        };
        if let Some(old) = &old {
            if put.ignore_value {
                kv.value.clone_from(&old.value);
            }
            if put.ignore_lease {
                kv.lease = old.lease;
            }
        }
        self.state.insert(put.key.clone(), kv.clone());
        self.events.push(Event { is_delete: false, kv, prev: old.clone() });
        Ok(OpReply::Put { revision: self.revision(), prev: old.filter(|_| put.prev_kv) })
    }

    fn delete(&mut self, delete: &DeleteRange) -> OpReply {
        let keys: Vec<Vec<u8>> = self.state.keys().filter(|key| delete.keys.contains(key)).cloned().collect();
        let mut deleted = Deleted { deleted: keys.len() as i64, prev: Vec::new() };
        for key in keys {
            let old = self.state.remove(&key).unwrap();
            let kv = KeyValue { key, mod_revision: self.model.revision() + 1, ..KeyValue::default() };
            deleted.prev.extend(Some(old.clone()).filter(|_| delete.prev_kv));
            self.events.push(Event { is_delete: true, kv, prev: Some(old) });
        }
        OpReply::Deleted { revision: self.revision(), deleted }
    }

    fn range(&self, asked: &Range) -> std::result::Result<RangeReply, &'static str> {
        let newest = self.revision();
        if asked.revision > newest {
            return Err(errors::FUTURE_REVISION);
        }
        if asked.revision > 0 && asked.revision < self.model.compacted {
            return Err(errors::COMPACTED);
        }
        let is_old = asked.revision > 0 && asked.revision <= self.model.revision() && asked.revision < newest;
        let state = if is_old { &self.model.states[asked.revision as usize] } else { &self.state };
        let all: Vec<KeyValue> = state.values().filter(|kv| asked.keys.contains(&kv.key)).cloned().collect();
        let count = all.len() as i64;
        if asked.count_only {
            return Ok(RangeReply { revision: newest, count, ..RangeReply::default() });
        }
        let is_in = |at: i64, least: i64, most: i64| (least == 0 || at >= least) && (most == 0 || at <= most);
        let mut kvs: Vec<KeyValue> = all;
        let filters = asked.min_mod != 0 || asked.max_mod != 0 || asked.min_create != 0 || asked.max_create != 0;
        let is_plain = asked.order == Order::None || asked.order == Order::Ascend && asked.sort_by == SortBy::Key;
        let limit = if asked.limit > 0 { asked.limit as usize } else { usize::MAX };
        if is_plain && !filters {
            kvs.truncate(limit.saturating_add(1));
        }
        kvs.retain(|kv| {
            is_in(kv.mod_revision, asked.min_mod, asked.max_mod)
                && is_in(kv.create_revision, asked.min_create, asked.max_create)
        });
        match asked.sort_by {
            SortBy::Key => {}
            SortBy::Version => kvs.sort_by_key(|kv| kv.version),
            SortBy::Create => kvs.sort_by_key(|kv| kv.create_revision),
            SortBy::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
            SortBy::Value => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
        }
        if asked.order == Order::Descend {
            // Among equals by key, as before.
            match asked.sort_by {
                SortBy::Key => kvs.reverse(),
                SortBy::Version => kvs.sort_by_key(|kv| std::cmp::Reverse(kv.version)),
                SortBy::Create => kvs.sort_by_key(|kv| std::cmp::Reverse(kv.create_revision)),
                SortBy::Mod => kvs.sort_by_key(|kv| std::cmp::Reverse(kv.mod_revision)),
                SortBy::Value => kvs.sort_by(|a, b| b.value.cmp(&a.value)),
            }
        }
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        if asked.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value.clear());
        }
        Ok(RangeReply { revision: newest, kvs, more, count })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let before = self.model.now();
        let mut found = before.values().filter(|kv| compare.keys.contains(&kv.key)).peekable();
        let is = |order: std::cmp::Ordering| match compare.result {
            CompareResult::Equal => order.is_eq(),
            CompareResult::Greater => order.is_gt(),
            CompareResult::Less => order.is_lt(),
            CompareResult::NotEqual => order.is_ne(),
        };
        let empty = KeyValue::default();
        if found.peek().is_none() && matches!(compare.target, CompareTarget::Value(_)) {
            return false;
        }
        let all: Vec<&KeyValue> = if found.peek().is_none() { vec![&empty] } else { found.collect() };
        all.into_iter().all(|kv| match &compare.target {
            CompareTarget::Version(it) => is(kv.version.cmp(it)),
            CompareTarget::Create(it) => is(kv.create_revision.cmp(it)),
            CompareTarget::Mod(it) => is(kv.mod_revision.cmp(it)),
            CompareTarget::Lease(it) => is(kv.lease.cmp(it)),
            CompareTarget::Value(it) => is(kv.value.cmp(it)),
        })
    }

    /// All that can fail is looked at before anything is written.
    fn check(&self, txn: &Txn) -> std::result::Result<(), &'static str> {
        let before = || Draft { model: self.model, state: self.model.now().clone(), events: Vec::new() };
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        for op in if succeeded { &txn.success } else { &txn.failure } {
            match op {
                Op::Range(asked) => _ = before().range(asked)?,
                Op::Put(put) => _ = before().put(put)?,
                Op::Delete(_) => {}
                Op::Txn(txn) => self.check(txn)?,
            }
        }
        Ok(())
    }

    fn txn(&mut self, txn: &Txn) -> std::result::Result<OpReply, &'static str> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let mut replies = Vec::new();
        for op in if succeeded { &txn.success } else { &txn.failure } {
            replies.push(match op {
                Op::Range(asked) => OpReply::Range(self.range(asked)?),
                Op::Put(put) => self.put(put)?,
                Op::Delete(delete) => self.delete(delete),
                Op::Txn(txn) => self.txn(txn)?,
            });
        }
        Ok(OpReply::Txn { revision: self.revision(), succeeded, replies })
    }
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
        share: 6 << 20,
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
        Self { disk, clock, versions, model: Model::new(), rng: Rng::new(seed) }
    }

    fn key(&mut self) -> Vec<u8> {
        let text = [&b"a"[..], b"b", b"\0", b"ab", b"\xff", b"a\0b"][self.rng.below(6) as usize];
        let mut key = text.to_vec();
        key.extend_from_slice(format!("{}", self.rng.below(40)).as_bytes());
        key
    }

    fn keys(&mut self) -> KeyRange {
        let key = self.key();
        match self.rng.below(6) {
            0 | 1 => KeyRange::one(key),
            2 => KeyRange { key, end: vec![0] },
            3 => KeyRange { key: vec![0], end: vec![0] },
            4 => KeyRange { key: b"a".to_vec(), end: b"b".to_vec() },
            _ => KeyRange { key, end: self.key() },
        }
    }

    fn lease(&mut self) -> i64 {
        match self.rng.below(4) {
            0 => 1 + self.rng.below(6) as i64,
            _ => 0,
        }
    }

    fn put(&mut self) -> Put {
        let bytes = match self.rng.below(10) {
            0 => 900 + self.rng.below(5000),
            _ => self.rng.below(40),
        };
        let value: Vec<u8> = (0..bytes).map(|_| self.rng.below(256) as u8).collect();
        let (ignore_value, ignore_lease) = (self.rng.below(8) == 0, self.rng.below(8) == 0);
        let lease = if ignore_lease && self.rng.below(4) > 0 { 0 } else { self.lease() };
        let value = if ignore_value && self.rng.below(4) > 0 { Vec::new() } else { value };
        Put { key: self.key(), value, lease, prev_kv: self.rng.below(2) == 0, ignore_value, ignore_lease }
    }

    fn a_revision(&mut self) -> i64 {
        match self.rng.below(3) {
            0 => 0,
            _ => self.rng.below(self.model.revision() as u64 + 3) as i64,
        }
    }

    fn range(&mut self) -> Range {
        let filter = |rng: &mut Rng, most: i64| if rng.below(6) == 0 { rng.below(most as u64 + 1) as i64 } else { 0 };
        let most = self.model.revision();
        let rng = &mut self.rng;
        let order = [Order::None, Order::None, Order::Ascend, Order::Descend][rng.below(4) as usize];
        let by = [SortBy::Key, SortBy::Version, SortBy::Create, SortBy::Mod, SortBy::Value];
        Range {
            limit: if rng.below(2) == 0 { rng.below(12) as i64 } else { 0 },
            order,
            sort_by: by[rng.below(5) as usize],
            keys_only: rng.below(5) == 0,
            count_only: rng.below(6) == 0,
            uncounted: false,
            min_mod: filter(rng, most),
            max_mod: filter(rng, most),
            min_create: filter(rng, most),
            max_create: filter(rng, most),
            revision: self.a_revision(),
            keys: self.keys(),
        }
    }

    fn compare(&mut self) -> Compare {
        let number = |rng: &mut Rng, most: i64| rng.below(most as u64 + 1) as i64;
        let (keys, most) = (self.keys(), self.model.revision());
        let rng = &mut self.rng;
        let result = [CompareResult::Equal, CompareResult::Greater, CompareResult::Less, CompareResult::NotEqual]
            [rng.below(4) as usize];
        let target = match rng.below(5) {
            0 => CompareTarget::Version(number(rng, 3)),
            1 => CompareTarget::Create(number(rng, most)),
            2 => CompareTarget::Mod(number(rng, most)),
            3 => CompareTarget::Value(vec![rng.below(256) as u8]),
            _ => CompareTarget::Lease(number(rng, 4)),
        };
        Compare { keys, result, target }
    }

    /// Operations that write no key twice.
    fn ops(&mut self, depth: u64, used: &mut BTreeSet<Vec<u8>>) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..self.rng.below(4) {
            match self.rng.below(6) {
                0 | 1 => {
                    let put = self.put();
                    if used.insert(put.key.clone()) {
                        ops.push(Op::Put(put));
                    }
                }
                2 => {
                    let keys = self.keys();
                    if !used.iter().any(|key| keys.contains(key)) && keys.is_one() {
                        used.insert(keys.key.clone());
                        ops.push(Op::Delete(DeleteRange { keys, prev_kv: self.rng.below(2) == 0 }));
                    }
                }
                3 if depth < 2 => ops.push(Op::Txn(self.txn(depth + 1, used))),
                _ => ops.push(Op::Range(self.range())),
            }
        }
        ops
    }

    fn txn(&mut self, depth: u64, used: &mut BTreeSet<Vec<u8>>) -> Txn {
        let compare = (0..self.rng.below(3)).map(|_| self.compare()).collect();
        Txn { compare, success: self.ops(depth, used), failure: self.ops(depth, used) }
    }

    /// Sends a command, and does it to the model.
    fn send(
        &mut self,
        command: Command,
        expect: impl FnOnce(&mut Draft<'_>) -> std::result::Result<OpReply, &'static str>,
    ) {
        let text = format!("{command:?}");
        let got = self.versions.execute(command).map(|held| held.value);
        let mut draft = Draft { model: &self.model, state: self.model.now().clone(), events: Vec::new() };
        match (expect(&mut draft), got) {
            (Ok(reply), Ok(got)) => {
                assert_eq!(got, Reply::Op { revision: draft.revision(), reply }, "{text}");
                let (state, events) = (draft.state, draft.events);
                if !events.is_empty() {
                    self.model.states.push(state);
                    self.model.events.push(events);
                }
            }
            (Err(expected), Err(got)) => assert_eq!(got.message(), expected, "{text}"),
            (expected, got) => panic!("{text}: expected {expected:?}, got {got:?}"),
        }
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..=7 => {
                let put = self.put();
                self.send(Command::Put(put.clone()), |draft| draft.put(&put));
            }
            8 | 9 => {
                let delete = DeleteRange { keys: self.keys(), prev_kv: self.rng.below(2) == 0 };
                let delete = if self.rng.below(3) > 0 {
                    DeleteRange { keys: KeyRange::one(delete.keys.key), ..delete }
                } else {
                    delete
                };
                self.send(Command::Delete(delete.clone()), |draft| Ok(draft.delete(&delete)));
            }
            10..=14 => {
                let txn = self.txn(0, &mut BTreeSet::new());
                self.send(Command::Txn(txn.clone()), |draft| {
                    draft.check(&txn)?;
                    draft.txn(&txn)
                });
            }
            15 => self.compact(),
            16 => self.grant(),
            17 => self.revoke(),
            18 => self.versions.engine().flush().unwrap(),
            19 => _ = self.versions.step() || self.versions.purge().unwrap(),
            20 => self.clock.advance(Duration::from_millis(self.rng.below(3000))),
            21 => {
                self.versions.close().unwrap();
                self.versions = open(&self.disk, &self.clock).unwrap();
            }
            22 => {
                self.disk = Arc::new(self.disk.crash());
                self.versions = open(&self.disk, &self.clock).unwrap();
            }
            _ => {
                self.check_events();
                self.check_stored();
            }
        }
        self.check_reads();
    }

    fn compact(&mut self) {
        let revision = self.rng.below(self.model.revision() as u64 + 2) as i64;
        let got = self.versions.execute(Command::Compact(revision));
        let expected = match revision {
            it if it <= self.model.compacted => Err(errors::COMPACTED),
            it if it > self.model.revision() => Err(errors::FUTURE_REVISION),
            _ => Ok(()),
        };
        assert_eq!(got.map(|_| ()).map_err(|error| error.message().to_owned()), expected.map_err(str::to_owned));
        if expected.is_ok() {
            self.model.compacted = revision;
        }
    }

    fn grant(&mut self) {
        let id = 1 + self.rng.below(6) as i64;
        let got = self.versions.grant(id, 1000).map(|_| ());
        let is_new = self.model.leases.insert(id);
        assert_eq!(
            got.map_err(|error| error.message().to_owned()),
            if is_new { Ok(()) } else { Err(errors::LEASE_EXISTS.to_owned()) }
        );
    }

    fn revoke(&mut self) {
        let id = 1 + self.rng.below(6) as i64;
        let got = self.versions.revoke(id);
        if !self.model.leases.remove(&id) {
            assert_eq!(got.unwrap_err().message(), errors::LEASE_NOT_FOUND);
            return;
        }
        let mut draft = Draft { model: &self.model, state: self.model.now().clone(), events: Vec::new() };
        let leased: Vec<Vec<u8>> = draft.state.values().filter(|kv| kv.lease == id).map(|kv| kv.key.clone()).collect();
        leased.into_iter().for_each(|key| _ = draft.delete(&DeleteRange { keys: KeyRange::one(key), prev_kv: false }));
        let (state, events) = (draft.state, draft.events);
        if !events.is_empty() {
            self.model.states.push(state);
            self.model.events.push(events);
        }
        assert_eq!(got.unwrap(), self.model.revision());
    }

    fn check_reads(&mut self) {
        assert_eq!(self.versions.revision().unwrap(), self.model.revision());
        for _ in 0..2 {
            let asked = self.range();
            let got = self.versions.range(&asked).map(|held| held.value).map_err(|error| error.message().to_owned());
            let draft = Draft { model: &self.model, state: self.model.now().clone(), events: Vec::new() };
            assert_eq!(
                got,
                draft.range(&asked).map_err(str::to_owned),
                "{asked:?}, compacted {}",
                self.model.compacted
            );
        }
        let id = 1 + self.rng.below(6) as i64;
        let leased = self.versions.leased(id).unwrap().value;
        let expected: Vec<Vec<u8>> =
            self.model.now().values().filter(|kv| kv.lease == id).map(|kv| kv.key.clone()).collect();
        assert_eq!(leased, expected);
    }

    fn check_stored(&mut self) {
        let (compacted, newest) = (self.model.compacted, self.model.revision());
        let asked = compacted.max(0) + self.rng.below((newest - compacted.max(0) + 1) as u64) as i64;
        let asked = if self.rng.below(2) == 0 { 0 } else { asked };
        let hashed = if asked == 0 { newest } else { asked };
        let alive_at = if self.model.states[hashed as usize].is_empty() { compacted } else { hashed };
        let all = self.model.stored(compacted, newest, compacted);
        for (wanted, expected) in
            [(Wanted::All, all), (Wanted::Hash(asked), self.model.stored(alive_at, hashed, compacted + 1))]
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
        let (keys, with_prev) = (self.keys(), self.rng.below(2) == 0);
        let (mut next, mut got) = (from, Vec::new());
        while next <= self.model.revision() {
            let most = (1 + self.rng.below(20) as i64, self.rng.below(4000));
            let held = self.versions.events(next, most, with_prev, &mut |key| keys.contains(key)).unwrap();
            assert!(held.value.next > next);
            next = held.value.next;
            got.extend(held.value.events);
        }
        let expected: Vec<Event> = self.model.events[(from as usize).min(self.model.events.len())..]
            .iter()
            .flatten()
            .filter(|event| keys.contains(&event.kv.key))
            .map(|event| {
                let at = event.kv.mod_revision;
                // The version before the compacted revision may be gone.
                let prev = event.prev.clone().filter(|_| with_prev && at > self.model.compacted);
                Event { prev, ..event.clone() }
            })
            .collect();
        let got: Vec<Event> = got
            .into_iter()
            .map(|event| match event.kv.mod_revision <= self.model.compacted {
                true => Event { prev: None, ..event },
                false => event,
            })
            .collect();
        assert_eq!(got, expected, "from {from}");
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
