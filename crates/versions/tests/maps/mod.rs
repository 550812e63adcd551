//! The plain model of the store: a map for each revision. The tests hold the store against it, and so does the simulator.
//!
//! ```text
//!   a command ─► Draft: the state that it leaves, and its events ─► one more state, if there are any
//!   drawn.rs     commands and reads, drawn so that they meet each other
//!   found.rs     all that a store holds, against the model
//! ```

#![allow(dead_code, reason = "each of its users needs a part")]

pub mod drawn;
pub mod found;

use ramekin_versions::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub type State = BTreeMap<Vec<u8>, KeyValue>;
/// What is done, or with which words it is refused.
pub type Told<T> = Result<T, &'static str>;

const TTL_MOST: i64 = 9_000_000_000;

/// All states, by revision, and what happened in each.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pub states: Vec<Arc<State>>,
    pub events: Vec<Arc<Vec<Event>>>,
    pub compacted: i64,
    /// Ids, and what each was granted for.
    pub leases: BTreeMap<i64, i64>,
    /// Values of the server's own.
    pub own: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Default for Model {
    fn default() -> Self {
        // Revisions 0 and 1 have nothing.
        let (states, events) = (vec![Arc::default(); 2], vec![Arc::default(); 2]);
        Self { states, events, compacted: -1, leases: BTreeMap::new(), own: BTreeMap::new() }
    }
}

impl Model {
    pub fn revision(&self) -> i64 {
        self.states.len() as i64 - 1
    }

    /// The newest state; of a model without any, none.
    pub fn now(&self) -> &State {
        static NONE: State = State::new();
        self.states.last().map_or(&NONE, |state| state)
    }

    fn draft(&self) -> Draft<'_> {
        Draft { model: self, state: self.now().clone(), events: Vec::new() }
    }

    /// Does a command. What it answers.
    pub fn execute(&mut self, command: &Command, guard: Option<&Guard>) -> Told<Reply> {
        if guard.is_some_and(|guard| self.own.get(guard.name) != guard.value.as_ref()) {
            return Err(errors::OLD_AUTH_REVISION);
        }
        match command {
            Command::Put(put) => self.change(|draft| draft.put(put)),
            Command::Delete(delete) => self.change(|draft| Ok(draft.delete(delete))),
            Command::Txn(txn) => self.change(|draft| {
                draft.check(txn)?;
                draft.txn(txn)
            }),
            Command::Compact(revision) => self.compact(*revision),
            Command::Grant { ttl, .. } if *ttl > TTL_MOST => Err(errors::LEASE_TTL_TOO_LARGE),
            Command::Grant { id, .. } if self.leases.contains_key(id) => Err(errors::LEASE_EXISTS),
            Command::Grant { id, ttl } => {
                self.leases.insert(*id, (*ttl).max(TTL_LEAST));
                self.done()
            }
            Command::Revoke(id) => self.revoke(*id),
            Command::Purge => self.done(),
            Command::Own(values) => {
                for (name, value) in values {
                    match value {
                        Some(value) => _ = self.own.insert(name.clone(), value.clone()),
                        None => _ = self.own.remove(name),
                    }
                }
                self.done()
            }
        }
    }

    fn done(&self) -> Told<Reply> {
        Ok(Reply::Done { revision: self.revision() })
    }

    fn change(&mut self, act: impl FnOnce(&mut Draft<'_>) -> Told<OpReply>) -> Told<Reply> {
        let mut draft = self.draft();
        let reply = act(&mut draft)?;
        let (revision, state, events) = (draft.revision(), draft.state, draft.events);
        if !events.is_empty() {
            self.states.push(Arc::new(state));
            self.events.push(Arc::new(events));
        }
        Ok(Reply::Op { revision, reply })
    }

    fn compact(&mut self, revision: i64) -> Told<Reply> {
        if revision <= self.compacted {
            return Err(errors::COMPACTED);
        }
        if revision > self.revision() {
            return Err(errors::FUTURE_REVISION);
        }
        self.compacted = revision;
        // Nobody can ask for them any more.
        let gone = usize::try_from(revision).unwrap_or(0);
        self.states[..gone].fill(Arc::default());
        self.done()
    }

    fn revoke(&mut self, id: i64) -> Told<Reply> {
        if self.leases.remove(&id).is_none() {
            return Err(errors::LEASE_NOT_FOUND);
        }
        let leased: Vec<Vec<u8>> = self.leased(id).cloned().collect();
        self.change(|draft| {
            for key in leased {
                draft.delete(&DeleteRange { keys: KeyRange::one(key), prev_kv: false });
            }
            Ok(OpReply::Put { revision: 0, prev: None })
        })?;
        self.done()
    }

    /// The keys of a lease.
    pub fn leased(&self, id: i64) -> impl Iterator<Item = &Vec<u8>> {
        self.now().values().filter(move |kv| kv.lease == id).map(|kv| &kv.key)
    }

    pub fn range(&self, asked: &Range) -> Told<RangeReply> {
        self.draft().range(asked)
    }

    /// What a watch of some keys from a revision on sees, which is no older than the compacted one.
    pub fn seen(&self, from: i64, keys: &KeyRange, with_prev: bool) -> Vec<Event> {
        let from = usize::try_from(from).unwrap_or(0).min(self.events.len());
        let events = self.events[from..].iter().flat_map(|events| {
            // What the compacted revision put and deleted again is gone.
            let is_gone = |at: usize, event: &Event| {
                event.kv.mod_revision <= self.compacted
                    && events[at..].iter().any(|later| later.is_delete && later.kv.key == event.kv.key)
            };
            let numbered = events.iter().enumerate();
            numbered.filter(move |(at, event)| event.is_delete || !is_gone(*at, event)).map(|(_, event)| event)
        });
        let seen = events.filter(|event| keys.contains(&event.kv.key)).map(|event| {
            // What was there before the compacted revision shows no more.
            let has_prev = with_prev && event.kv.mod_revision > self.compacted;
            Event { prev: event.prev.clone().filter(|_| has_prev), ..event.clone() }
        });
        seen.collect()
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

    fn put(&mut self, put: &Put) -> Told<OpReply> {
        if put.key.is_empty() {
            return Err(errors::KEY_NOT_PROVIDED);
        }
        if put.ignore_value && !put.value.is_empty() {
            return Err(errors::VALUE_PROVIDED);
        }
        if put.ignore_lease && put.lease != 0 {
            return Err(errors::LEASE_PROVIDED);
        }
        if put.lease != 0 && !self.model.leases.contains_key(&put.lease) {
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
        let prev = self.before(&put.key).filter(|_| old.is_some());
        self.events.push(Event { is_delete: false, kv, prev });
        Ok(OpReply::Put { revision: self.revision(), prev: old.filter(|_| put.prev_kv) })
    }

    /// A key as it was before the revision under way.
    fn before(&self, key: &[u8]) -> Option<KeyValue> {
        self.model.now().get(key).cloned()
    }

    fn delete(&mut self, delete: &DeleteRange) -> OpReply {
        let keys: Vec<Vec<u8>> = self.state.keys().filter(|key| delete.keys.contains(key)).cloned().collect();
        let mut deleted = Deleted { deleted: keys.len() as i64, prev: Vec::new() };
        for key in keys {
            let Some(old) = self.state.remove(&key) else { continue };
            let kv = KeyValue { key, mod_revision: self.model.revision() + 1, ..KeyValue::default() };
            deleted.prev.extend(Some(old.clone()).filter(|_| delete.prev_kv));
            let prev = self.before(&kv.key);
            self.events.push(Event { is_delete: true, kv, prev });
        }
        OpReply::Deleted { revision: self.revision(), deleted }
    }

    fn range(&self, asked: &Range) -> Told<RangeReply> {
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
            let keeps_lease = asked.sort_by == SortBy::Value;
            for kv in &mut kvs {
                kv.value.clear();
                kv.lease = if keeps_lease { kv.lease } else { 0 };
            }
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
            CompareResult::Always => true,
            CompareResult::Never => false,
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
    fn check(&self, txn: &Txn) -> Told<()> {
        let before = || self.model.draft();
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        for op in if succeeded { &txn.success } else { &txn.failure } {
            match op {
                Op::Range(asked) if asked.revision < 0 && asked.revision < self.model.compacted => {
                    return Err(errors::COMPACTED);
                }
                Op::Range(asked) => _ = before().range(asked)?,
                Op::Put(put) => _ = before().put(put)?,
                Op::Delete(_) => {}
                Op::Txn(txn) => self.check(txn)?,
                Op::Refused(text) => return Err(text),
            }
        }
        Ok(())
    }

    fn txn(&mut self, txn: &Txn) -> Told<OpReply> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let mut replies = Vec::new();
        for op in if succeeded { &txn.success } else { &txn.failure } {
            replies.push(match op {
                Op::Range(asked) => OpReply::Range(self.range(asked)?),
                Op::Put(put) => self.put(put)?,
                Op::Delete(delete) => self.delete(delete),
                Op::Txn(txn) => self.txn(txn)?,
                Op::Refused(text) => return Err(text),
            });
        }
        Ok(OpReply::Txn { revision: self.revision(), succeeded, replies })
    }
}
