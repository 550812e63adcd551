//! Leases that end while others are granted, and leases of many keys.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_base::ManualClock;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_memory::{Budget, Reservation};
use ramekin_pages::Pages;
use ramekin_versions::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

struct Place {
    disk: Arc<SimDisk>,
    clock: Arc<ManualClock>,
    budget: Budget,
}

impl Place {
    fn new(seed: u64) -> Self {
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        Self { disk, clock: Arc::new(ManualClock::default()), budget: Budget::new(48 << 20) }
    }

    fn open(&self, changed: impl Fn(i64) + Send + Sync + 'static) -> Versions {
        let Self { disk, clock, budget } = self;
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), budget, 4 << 30).unwrap();
        let options = Options {
            disk: disk.clone(),
            folder: Path::new("/data/versions").to_owned(),
            pages,
            account: budget.root().child("versions", ""),
            budget: budget.clone(),
            share: 11 << 20,
            clock: clock.clone(),
            threads: false,
            changed: Box::new(changed),
        };
        Versions::open(options).unwrap()
    }

    /// All of the budget but so many bytes.
    fn all_but(&self, bytes: u64) -> Reservation {
        let account = self.budget.root().child("others", "");
        let mut held = account.try_reserve(0).unwrap();
        for step in [1 << 20, 1 << 14] {
            while held.grow(step).is_ok() {}
        }
        held.shrink(bytes);
        held
    }
}

fn everything() -> KeyRange {
    KeyRange { key: vec![0], end: vec![0] }
}

fn count(versions: &Versions) -> i64 {
    let asked = Range { keys: everything(), count_only: true, ..Range::default() };
    versions.range(&asked).unwrap().value.count
}

/// Puts keys of so many bytes, a hundred at a time.
fn put_many(versions: &Versions, numbers: std::ops::Range<usize>, key_bytes: usize, lease: i64) {
    for from in numbers.clone().step_by(50) {
        let put = |key| Op::Put(Put { key: format!("{key:0key_bytes$}").into(), lease, ..Put::default() });
        let success = (from..(from + 50).min(numbers.end)).map(put).collect();
        versions.execute(Command::Txn(Txn { success, ..Txn::default() })).unwrap();
        while versions.step() {}
    }
}

/// Who hears that a lease is gone may grant its id anew before the one who revoked it goes on.
#[test]
fn a_lease_that_is_granted_as_the_one_before_it_goes_has_its_own_time() {
    for by_time in [false, true] {
        let place = Place::new(1);
        let (grants, own) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::<Versions>::new()));
        let (wanted, found) = (grants.clone(), own.clone());
        let versions = place.open(move |_| {
            if wanted.swap(false, Ordering::SeqCst) {
                found.get().unwrap().grant(7, 10).unwrap();
            }
        });
        assert!(own.set(versions.clone()).is_ok());
        versions.grant(7, 5).unwrap();
        grants.store(true, Ordering::SeqCst);
        if by_time {
            place.clock.advance(Duration::from_secs(5));
            assert!(versions.expire());
        } else {
            versions.revoke(7).unwrap();
        }
        assert_eq!((versions.leases(), versions.lease_left(7).map(|left| left.left)), (vec![7], Some(10)));
        versions.execute(Command::Put(Put { key: b"a".to_vec(), lease: 7, ..Put::default() })).unwrap();
        place.clock.advance(Duration::from_secs(9));
        assert!(!versions.expire());
        place.clock.advance(Duration::from_secs(1));
        assert!(versions.expire());
        assert_eq!((versions.leases(), count(&versions)), (vec![], 0));
    }
}

/// A lease of more keys than a unit takes ends in memory that does not hold their names.
#[test]
fn the_end_of_a_large_lease_takes_little_memory() {
    let place = Place::new(5);
    let versions = place.open(|_| {});
    versions.grant(7, 100).unwrap();
    (0..12).for_each(|part| put_many(&versions, part * 1000..(part + 1) * 1000, 900, 7));
    place.clock.advance(Duration::from_secs(100));
    let held = place.all_but(6 << 20);
    assert!(versions.expire());
    drop(held);
    assert_eq!((count(&versions), versions.leases(), versions.expired()), (0, vec![], 1));
}

/// A range of many keys, each with a lease, is deleted in memory that does not hold their names.
#[test]
fn a_delete_of_many_keys_with_leases_takes_little_memory() {
    let place = Place::new(3);
    let versions = place.open(|_| {});
    (1..=3).for_each(|id| _ = versions.grant(id, 100).unwrap());
    for part in 0..12 {
        put_many(&versions, part * 1000..(part + 1) * 1000, 900, 1 + part as i64 % 3);
    }
    let held = place.all_but(6 << 20);
    assert_eq!(versions.delete_many(&everything()).unwrap().0, 12_000);
    drop(held);
    assert_eq!(count(&versions), 0);
    assert!((1..=3).all(|id| versions.leased(id).unwrap().value.is_empty()));
    assert_eq!(versions.leases().len(), 3);
}

/// A long value that is compared is paid for while it is looked at, and not as long as the answer is held.
#[test]
fn a_comparison_with_a_long_value_is_paid_for() {
    const BYTES: usize = 1400 << 10;
    let place = Place::new(4);
    let versions = place.open(|_| {});
    for key in [b"a", b"b", b"c"] {
        versions.execute(Command::Put(Put { key: key.to_vec(), value: vec![7; BYTES], ..Put::default() })).unwrap();
        versions.engine().flush().unwrap();
        while versions.step() {}
    }
    let target = CompareTarget::Value(vec![7; BYTES]);
    let compare = vec![Compare { keys: everything(), result: CompareResult::Equal, target }];
    let asked = Txn { compare, ..Txn::default() };
    let compared = |left: u64| {
        let _held = place.all_but(left);
        versions.read_txn(&asked).map(|held| (held.value, held.memory.is_some()))
    };
    assert!(compared(2200 << 10).is_err());
    let (reply, is_paid_on) = compared(4 << 20).unwrap();
    assert!(matches!(reply, OpReply::Txn { succeeded: true, .. }) && !is_paid_on);
}
