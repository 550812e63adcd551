//! What a compaction gives back.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_base::ManualClock;
use ramekin_disk::sim::{Faults, SimDisk};
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
        share: 6 << 20,
        clock: Arc::new(ManualClock::default()),
        threads: false,
        changed: Box::new(|_| {}),
    };
    Versions::open(options).unwrap()
}

fn put(versions: &Versions, key: usize, bytes: usize) {
    let put = Put { key: format!("{key:04}").into(), value: vec![7; bytes], ..Put::default() };
    versions.execute(Command::Put(put), Vec::new()).unwrap();
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
    versions.execute(Command::Compact(kept), Vec::new()).unwrap();
    let rest = bytes(&versions);
    assert!(rest * 5 < full, "{rest} of {full} bytes are left");
    for versions in [versions.clone(), {
        versions.close().unwrap();
        open(&disk)
    }] {
        let after: Vec<Vec<KeyValue>> = (kept..=newest).step_by(10).map(|revision| read(&versions, revision)).collect();
        assert_eq!(after, before);
    }
}
