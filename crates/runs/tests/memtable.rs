//! A memtable beside a plain map: units that are kept and dropped, versions that are held, readers on other threads.
#![allow(clippy::unwrap_used, reason = "a test stops at any error")]

use ramekin_base::Kind;
use ramekin_base::rng::Rng;
use ramekin_memory::Budget;
use ramekin_runs::{Entry, MemoryCursor, Memtable, Root, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value and the weight; `None`: a tombstone.
type Model = BTreeMap<Vec<u8>, (Option<Vec<u8>>, i64)>;

fn put(memtable: &mut Memtable, model: &mut Model, key: Vec<u8>, value: Option<Vec<u8>>, weight: i64) {
    let entry = Entry {
        key: &key,
        value: value.as_deref().map_or(Value::Deleted, Value::Inline),
        weight,
        first: !model.contains_key(&key),
    };
    memtable.put(&entry).unwrap();
    let sum = model.get(&key).map_or(0, |(_, weight)| *weight) + weight;
    model.insert(key, (value, sum));
}

fn value_of(entry: &Entry<'_>) -> Option<Vec<u8>> {
    match entry.value {
        Value::Inline(value) => Some(value.to_vec()),
        _ => None,
    }
}

fn same(root: &Arc<Root>, model: &Model, rng: &mut Rng) {
    assert_eq!(root.records(), model.len() as u64);
    assert_eq!(root.weight(), model.values().map(|(_, weight)| weight).sum::<i64>());
    let asked = key(rng);
    let below: i64 = model.range(..asked.clone()).map(|(_, (_, weight))| weight).sum();
    assert_eq!(root.weight_below(&asked), below);
    let found = root.get(&asked).map(|entry| (value_of(&entry), entry.weight));
    assert_eq!(found, model.get(&asked).cloned());
    let mut cursor = MemoryCursor::new(root.clone());
    cursor.seek(&asked);
    for (key, (value, weight)) in model.range(asked.clone()..).take(50) {
        let entry = cursor.entry().unwrap();
        assert_eq!((entry.key, value_of(&entry), entry.weight), (&key[..], value.clone(), *weight));
        assert!(entry.first, "whoever writes a key first says so for all later records in the memtable");
        cursor.next();
    }
    cursor.seek_back(Some(&asked));
    for (key, _) in model.range(..asked).rev().take(50) {
        assert_eq!(cursor.entry().unwrap().key, &key[..]);
        cursor.back();
    }
    cursor.seek_back(None);
    assert_eq!(cursor.entry().map(|entry| entry.key.to_vec()), model.keys().next_back().cloned());
    cursor.next();
    assert!(cursor.entry().is_none());
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let mut key: Vec<u8> = (0..rng.below(6)).map(|_| b'a' + rng.below(4) as u8).collect();
    if rng.chance(0.02) {
        key.extend(vec![b'z'; rng.below(3000) as usize]);
    }
    key
}

#[test]
fn units_and_versions_are_what_a_map_says() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let budget = Budget::new(64 << 20);
        let account = budget.root().child("memtable", "");
        let mut memtable = Memtable::new(8 << 20, &account).unwrap();
        let (mut model, mut held) = (Model::new(), Vec::new());
        for _ in 0..60 {
            let before = model.clone();
            for _ in 0..rng.below(60) {
                let value = vec![rng.below(256) as u8; if rng.chance(0.01) { 40_000 } else { rng.below(60) as usize }];
                let value = Some(value).filter(|_| rng.chance(0.8));
                let key = key(&mut rng);
                put(&mut memtable, &mut model, key, value, rng.below(5) as i64 - 2);
            }
            if rng.chance(0.3) {
                memtable.drop_unit();
                model = before;
            } else {
                memtable.keep_unit();
            }
            if rng.chance(0.5) {
                let root = memtable.publish();
                same(&root, &model, &mut rng);
                held.push((root, model.clone()));
            }
            while held.len() > 4 {
                held.remove(rng.below(held.len() as u64) as usize);
            }
            held.iter().for_each(|(root, model)| same(root, model, &mut rng));
        }
        drop((memtable, held));
        assert_eq!(account.used(), 0);
    }
}

#[test]
fn keys_that_ascend_fill_their_leaves() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(32 << 20, &budget.root()).unwrap();
    for n in 0..100_000u64 {
        let key = n.to_be_bytes();
        memtable.put(&Entry { key: &key, value: Value::Inline(&key), weight: 1, first: true }).unwrap();
        memtable.keep_unit();
    }
    // 32 bytes a record, and 8 in its leaf.
    assert!(memtable.used_bytes() < 100_000 * 42, "{}", memtable.used_bytes());
    let root = memtable.publish();
    assert_eq!((root.weight(), root.weight_below(&70_000u64.to_be_bytes())), (100_000, 70_000));
}

/// Nodes know what all of their keys begin with; keys come in any order, and some units are dropped.
#[test]
fn keys_that_have_much_in_common_are_found_at_every_depth() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(32 << 20, &budget.root()).unwrap();
    let (mut model, mut rng) = (BTreeMap::new(), Rng::new(5));
    let key = |n: u64| format!("a place that all have/{:04}/{}{:05}", n % 7, "x".repeat((n % 3) as usize), n / 7);
    for _ in 0..4000 {
        let unit: Vec<u64> = (0..1 + rng.below(20)).map(|_| rng.below(60_000)).collect();
        for n in &unit {
            let (key, value) = (key(*n), n.to_le_bytes());
            let (key, value) = (key.as_bytes(), Value::Inline(&value));
            let first = memtable.get(key).is_none();
            let entry = Entry { key, value, weight: i64::from(first), first };
            memtable.put(&entry).unwrap();
        }
        match rng.chance(0.2) {
            true => memtable.drop_unit(),
            false => {
                memtable.keep_unit();
                model.extend(unit.into_iter().map(|n| (key(n), n)));
            }
        }
        if rng.chance(0.01) {
            memtable.publish();
        }
    }
    let root = memtable.publish();
    assert_eq!((root.records(), root.weight()), (model.len() as u64, model.len() as i64));
    for (at, (key, n)) in model.iter().enumerate() {
        assert_eq!(root.get(key.as_bytes()).and_then(|entry| value_of(&entry)), Some(n.to_le_bytes().to_vec()));
        assert_eq!(root.weight_below(key.as_bytes()), at as i64);
    }
    for asked in ["", "a place", "a place that all have/0003/", "a place that all have/0009", "b"] {
        assert!(root.get(asked.as_bytes()).is_none());
        assert_eq!(root.weight_below(asked.as_bytes()), model.range(..asked.to_owned()).count() as i64);
    }
}

/// A view that is held for long keeps its own version, and not all that came and went since.
#[test]
fn an_old_version_that_is_held_keeps_no_nodes_of_newer_ones() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(8 << 20, &budget.root()).unwrap();
    let mut held = None;
    for n in 0..20_000u64 {
        let key = (n % 1000).to_be_bytes();
        memtable.put(&Entry { key: &key, value: Value::Inline(&n.to_le_bytes()), weight: 0, first: false }).unwrap();
        memtable.keep_unit();
        let root = memtable.publish();
        if n == 1000 {
            held = Some(root);
        }
    }
    let value = |root: &Root, n: u64| root.get(&n.to_be_bytes()).and_then(|entry| value_of(&entry));
    let held = held.unwrap();
    assert_eq!(value(&held, 999), Some(999u64.to_le_bytes().to_vec()));
    // 2 KiB a publication would be 40 MiB.
    assert!(memtable.used_bytes() < 3 << 20, "{}", memtable.used_bytes());
}

/// A key that is written again and again takes no more memory than a few times its record.
#[test]
fn what_no_version_needs_is_used_again() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(1 << 20, &budget.root()).unwrap();
    for n in 0..1_000_000u64 {
        let entry = Entry { key: b"counter", value: Value::Inline(&n.to_le_bytes()), weight: 0, first: false };
        memtable.put(&entry).unwrap();
        memtable.keep_unit();
        if n % 100 == 0 {
            _ = memtable.publish();
        }
    }
    assert!(memtable.used_bytes() < 64 << 10);
}

/// Nor does what is written again before anybody was shown it, though an older version is held.
#[test]
fn what_nobody_was_shown_is_used_again_at_once() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(1 << 20, &budget.root()).unwrap();
    let put = |memtable: &mut Memtable, n: u64| {
        let (key, value) = ((n % 1000).to_be_bytes(), n.to_le_bytes());
        memtable.put(&Entry { key: &key, value: Value::Inline(&value), weight: 0, first: n < 1000 }).unwrap();
    };
    (0..1000).for_each(|n| put(&mut memtable, n));
    memtable.keep_unit();
    let held = memtable.publish();
    for n in 1000..300_000 {
        put(&mut memtable, n);
        match n % 3 {
            0 => memtable.drop_unit(),
            _ => memtable.keep_unit(),
        }
    }
    assert!(memtable.used_bytes() < 192 << 10, "{}", memtable.used_bytes());
    let value = |root: &Root, n: u64| root.get(&n.to_be_bytes()).and_then(|entry| value_of(&entry));
    let root = memtable.publish();
    for n in 0..1000u64 {
        // 1,000 leaves a rest of 1: at most one of two writes that follow each other was dropped.
        let last = (299_000 + n) - if (299_000 + n) % 3 == 0 { 1000 } else { 0 };
        assert_eq!(value(&held, n), Some(n.to_le_bytes().to_vec()));
        assert_eq!(value(&root, n), Some(last.to_le_bytes().to_vec()));
    }
}

#[test]
fn a_full_memtable_refuses_and_keeps_what_it_has() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(256 << 10, &budget.root()).unwrap();
    let (mut taken, mut rng) = (Vec::new(), Rng::new(1));
    let refused = loop {
        let key: Vec<u8> = (0..8 + rng.below(900)).map(|_| rng.below(256) as u8).collect();
        match memtable.put(&Entry { key: &key, value: Value::Inline(b"v"), weight: 1, first: true }) {
            Ok(()) => taken.push(key),
            Err(error) => break error,
        }
        memtable.keep_unit();
    };
    assert_eq!(refused.kind(), Kind::Busy);
    let root = memtable.publish();
    assert_eq!(root.records(), taken.len() as u64);
    assert!(taken.len() > 200 && taken.iter().all(|key| root.get(key).is_some()));
}

/// Values say which key they are of, and a version is one: whoever reads while another writes sees neither torn.
#[test]
fn readers_see_whole_versions_while_it_is_written() {
    let budget = Budget::new(64 << 20);
    let mut memtable = Memtable::new(16 << 20, &budget.root()).unwrap();
    let published = parking_lot::Mutex::new(memtable.publish());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (published, stop) = (&published, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                let mut looks = 0;
                while !stop.load(Ordering::Relaxed) || looks == 0 {
                    let root = published.lock().clone();
                    let mut cursor = MemoryCursor::new(root.clone());
                    cursor.seek(&rng.below(1000).to_be_bytes());
                    let mut round = None;
                    for _ in 0..200 {
                        let Some(entry) = cursor.entry() else { break };
                        let Value::Inline(value) = entry.value else { panic!("only values are written") };
                        assert_eq!(&value[..8], entry.key);
                        assert_eq!(*round.get_or_insert(value[8]), value[8], "all of a version is of one round");
                        cursor.next();
                    }
                    looks += 1;
                }
            });
        }
        for round in 0..200u8 {
            for n in 0..1000u64 {
                let value = [&n.to_be_bytes()[..], &[round; 20]].concat();
                memtable
                    .put(&Entry { key: &n.to_be_bytes(), value: Value::Inline(&value), weight: 0, first: false })
                    .unwrap();
                memtable.keep_unit();
            }
            *published.lock() = memtable.publish();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(memtable.used_bytes() < 2 << 20);
}
