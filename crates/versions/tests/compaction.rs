//! What a compaction gives back, and deletes of many keys.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_base::ManualClock;
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_versions::*;
use std::path::Path;
use std::sync::Arc;

fn open(disk: &Arc<SimDisk>) -> Versions {
    let budget = Budget::new(48 << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 4 << 30).unwrap();
    let options = Options {
        disk: disk.clone(),
        folder: Path::new("/data/versions").to_owned(),
        pages,
        account: budget.root().child("versions", ""),
        budget,
        share: 11 << 20,
        clock: Arc::new(ManualClock::default()),
        threads: false,
        changed: Box::new(|_| {}),
    };
    Versions::open(options).unwrap()
}

fn put(versions: &Versions, key: usize, bytes: usize) {
    let put = Put { key: format!("{key:04}").into(), value: vec![7; bytes], ..Put::default() };
    versions.execute(Command::Put(put)).unwrap();
}

fn bytes(versions: &Versions) -> u64 {
    versions.engine().flush().unwrap();
    while versions.step() || versions.purge().unwrap() {}
    versions.engine().flush().unwrap();
    while versions.step() {}
    versions.stats().trees.iter().map(|tree| tree.run_bytes).sum()
}

#[test]
fn versions_that_ended_give_their_room_back_and_others_stay() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let versions = open(&disk);
    for round in 0..20 {
        for key in 0..100 {
            put(&versions, key, if key % 4 == 0 { 3000 } else { 300 } + round);
        }
    }
    let full = bytes(&versions);
    let newest = versions.revision().unwrap();
    let kept = newest - 150;
    let read = |versions: &Versions, revision| {
        let all = KeyRange { key: vec![0], end: vec![0] };
        versions.range(&Range { keys: all, revision, ..Range::default() }).unwrap().value.kvs
    };
    let before: Vec<Vec<KeyValue>> = (kept..=newest).step_by(10).map(|revision| read(&versions, revision)).collect();
    versions.execute(Command::Compact(kept)).unwrap();
    bytes(&versions);
    // Long values that are gone wait for the next merge that reaches them; this is it.
    versions.defragment().unwrap();
    let rest = bytes(&versions);
    assert!(rest * 9 < full * 2, "{rest} of {full} bytes are left");
    for versions in [versions.clone(), {
        versions.close().unwrap();
        open(&disk)
    }] {
        let after: Vec<Vec<KeyValue>> = (kept..=newest).step_by(10).map(|revision| read(&versions, revision)).collect();
        assert_eq!(after, before);
    }
}

#[test]
fn a_delete_of_many_keys_is_one_revision_whole_or_absent_wherever_it_is_stopped() {
    let delete = DeleteRange { keys: KeyRange { key: b"0100".to_vec(), end: b"1900".to_vec() }, prev_kv: false };
    let (mut whole, mut absent) = (0, 0);
    for calls in (0..400).step_by(10) {
        let disk = Arc::new(SimDisk::new(calls, Faults::default()));
        let versions = open(&disk);
        versions.grant(7, 100).unwrap();
        for key in 0..2000 {
            put(&versions, key, if key % 500 == 0 { 3000 } else { 30 });
        }
        let leased = Put { key: b"0150".to_vec(), lease: 7, ..Put::default() };
        versions.execute(Command::Put(leased)).unwrap();
        let before = versions.revision().unwrap();
        assert!(versions.is_large(&delete).unwrap());
        let operations_max = Some(disk.operations() + calls);
        disk.set_faults(Faults { operations_max, ..Faults::default() });
        let done = versions.delete_many(&delete.keys);
        disk.set_faults(Faults::default());
        let disk = Arc::new(disk.crashed_copy(calls));
        let versions = open(&disk);
        let all = KeyRange { key: vec![0], end: vec![0] };
        let count = |revision| {
            let asked = Range { keys: all.clone(), count_only: true, revision, ..Range::default() };
            versions.range(&asked).unwrap().value.count
        };
        let revision = versions.revision().unwrap();
        if let Ok(done) = done {
            assert_eq!((done, revision), ((1800, before + 1), before + 1));
        }
        assert!(revision == before || revision == before + 1);
        assert_eq!(count(0), if revision == before { 2000 } else { 200 });
        assert_eq!(count(before), 2000);
        let leased = versions.leased(7).unwrap().value.len();
        let mut events = versions.events(before + 1, (1000, 1 << 30), true, &mut |_| true).unwrap().value.events;
        if revision == before {
            absent += 1;
            assert_eq!((leased, events.len()), (1, 0));
            continue;
        }
        whole += 1;
        assert_eq!((leased, events.len()), (0, 1800));
        assert!(
            events.iter().all(|event| event.is_delete && event.kv.mod_revision == revision && event.prev.is_some())
        );
        assert_eq!(events.remove(0).kv.key, b"0100");
        put(&versions, 150, 10);
        assert_eq!((versions.revision().unwrap(), count(0)), (revision + 1, 201));
    }
    assert!(whole > 3 && absent > 3, "{whole} whole, {absent} absent");
}

#[test]
fn a_lease_of_many_keys_takes_all_of_them_along() {
    let versions = open(&Arc::new(SimDisk::new(3, Faults::default())));
    versions.grant(7, 100).unwrap();
    for key in 0..12_000 {
        let lease = if key % 3 == 0 { 0 } else { 7 };
        let put = Put { key: format!("{key:0100}").into(), value: vec![1; 100], lease, ..Put::default() };
        versions.execute(Command::Put(put)).unwrap();
    }
    let before = versions.revision().unwrap();
    assert_eq!(versions.revoke(7).unwrap(), before + 1);
    let all = KeyRange { key: vec![0], end: vec![0] };
    let asked = Range { keys: all, count_only: true, ..Range::default() };
    assert_eq!(versions.range(&asked).unwrap().value.count, 4000);
    assert!(versions.leases().is_empty() && versions.leased(7).unwrap().value.is_empty());
    assert_eq!(versions.revoke(7).unwrap_err().message(), errors::LEASE_NOT_FOUND);
}

/// The version before an event of the compacted revision does not show, whether a purge has taken its long value or not.
#[test]
fn a_watch_from_the_compacted_revision_shows_nothing_of_before() {
    let versions = open(&Arc::new(SimDisk::new(4, Faults::default())));
    (0..3).for_each(|round| put(&versions, 1, 5000 + round));
    versions.execute(Command::Compact(3)).unwrap();
    for _ in 0..2 {
        let events = versions.events(3, (10, 1 << 20), true, &mut |_| true).unwrap().value.events;
        let prev: Vec<Option<i64>> = events.iter().map(|event| event.prev.as_ref().map(|kv| kv.mod_revision)).collect();
        assert_eq!(prev, [None, Some(3)]);
        while versions.purge().unwrap() {}
    }
}

/// Whether the edit of the manifest that is a large delete was written is not known when its sync fails: what came after it in the log
/// would be mixed up with it by a start that finds it.
#[test]
fn nothing_is_acknowledged_after_a_large_delete_that_may_be_done() {
    let all = KeyRange { key: vec![0], end: vec![0] };
    let many = |seed| {
        let disk = Arc::new(SimDisk::with_block(seed, Faults::default(), 4096));
        let versions = open(&disk);
        (0..600).for_each(|key| put(&versions, key, 20));
        (disk, versions)
    };
    let (disk, versions) = many(0);
    let before = disk.operations();
    versions.delete_many(&all).unwrap();
    let (calls, mut unknown) = (disk.operations() - before, 0);
    // The last calls are of the manifest.
    for (seed, nth) in (0..12).flat_map(|seed| (calls - 4..=calls).map(move |nth| (seed, nth))) {
        let (disk, versions) = many(seed);
        let before = versions.revision().unwrap();
        let call_fails = Trigger::nth(disk.operations() + nth);
        disk.set_faults(Faults { call_fails, ..Faults::default() });
        let deleted = versions.delete_many(&all);
        disk.set_faults(Faults::default());
        let added = versions.execute(Command::Put(Put { key: b"new".to_vec(), ..Put::default() }));
        for copy in 0..4 {
            let versions = open(&Arc::new(disk.crashed_copy(copy)));
            let asked = Range { keys: all.clone(), count_only: true, ..Range::default() };
            let found = (versions.revision().unwrap() - before, versions.range(&asked).unwrap().value.count);
            match (&deleted, &added) {
                (Ok(_), Ok(_)) => assert_eq!(found, (2, 1)),
                (Ok(_), Err(_)) => assert!(found == (1, 0) || found == (2, 1), "{found:?}"),
                (Err(_), Ok(_)) => assert_eq!(found, (1, 601)),
                (Err(_), Err(_)) => {
                    unknown += u64::from(found == (1, 0));
                    assert!(found == (0, 600) || found == (1, 0), "{found:?}");
                }
            }
            let events = versions.events(before + 1, (10, 1 << 20), true, &mut |_| true).unwrap().value.events;
            assert_eq!(
                events.len() as i64,
                if found == (1, 0) { 600 } else { found.0 + 599 * i64::from(found.0 == 2) }
            );
        }
    }
    assert!(unknown > 0, "no delete was found done that had failed");
}

/// However long keys are, what one purge takes is a unit; and long values of short keys go many at a time.
#[test]
fn long_values_go_as_many_at_a_time_as_a_unit_takes() {
    for (keys, key_bytes, purges_most) in [(1500, 20, 8), (150, 20_000, 151)] {
        let versions = open(&Arc::new(SimDisk::new(5, Faults::default())));
        for key in (0..2).flat_map(|_| 0..keys) {
            let put = Put { key: format!("{key:0key_bytes$}").into(), value: vec![7; 1500], ..Put::default() };
            versions.execute(Command::Put(put)).unwrap();
            while versions.step() {}
        }
        versions.execute(Command::Compact(versions.revision().unwrap())).unwrap();
        let mut purges = 0;
        while versions.purge().unwrap() {
            purges += 1;
        }
        assert!(purges > 1 && purges <= purges_most, "{purges} purges of keys of {key_bytes} bytes");
    }
}

#[test]
fn a_store_that_nobody_uses_is_not_asked_anything_by_its_upkeep() {
    let disk = Arc::new(SimDisk::new(6, Faults::default()));
    let versions = open(&disk);
    (0..20).for_each(|round| put(&versions, 1, 3000 + round));
    let is_idle = |versions: &Versions| {
        while versions.purge().unwrap() {}
        let before = versions.stats().asked();
        assert!(!versions.expire() && !versions.purge().unwrap());
        versions.stats().asked() == before
    };
    assert!(is_idle(&versions));
    versions.execute(Command::Compact(10)).unwrap();
    let before = versions.stats().seqno;
    assert!(is_idle(&versions) && versions.stats().seqno > before);
    versions.close().unwrap();
    assert!(is_idle(&open(&disk)));
}
