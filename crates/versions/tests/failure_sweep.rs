//! One life, again and again: each time another reservation, or another call of the disk, fails. Whatever failed says so, and was done
//! whole or not at all; afterwards everything works, every answer is right, and the books are empty.
//!
//! ```text
//!   the life   puts, long ones too · a transaction · leases · deletes · compact · flush · bulk · merge · restart, and all again
//!   the sweep  n = 1, 1 + stride, ...   to the last reservation, and to the last call      FAILURE_STRIDE (1 in full)
//! ```
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod maps;

use maps::Model;
use maps::found::{difference, read_all};
use ramekin_base::{Error, Kind, ManualClock, Result};
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_versions::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BUDGET: u64 = 32 << 20;
const ROUNDS: u64 = 3;
const MANY: u64 = 540;

/// What is to fail.
#[derive(Debug, Clone, Copy)]
enum Failing {
    Reservation(u64),
    Call(u64),
}

/// A store that is opened again where it cannot go on.
struct Life {
    disk: Arc<SimDisk>,
    budget: Budget,
    clock: Arc<ManualClock>,
    store: Option<Versions>,
    model: Model,
}

fn open(disk: &Arc<SimDisk>, budget: &Budget, clock: &Arc<ManualClock>) -> Result<Versions> {
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), budget, 4 << 30)?;
    Versions::open(Options {
        disk: disk.clone(),
        folder: Path::new("/data/versions").to_owned(),
        pages,
        account: budget.root().child("versions", ""),
        budget: budget.clone(),
        share: Versions::open_bytes(),
        clock: clock.clone(),
        threads: false,
        changed: Box::new(|_| {}),
    })
}

impl Life {
    fn new(failing: Failing) -> Self {
        let budget = Budget::new(BUDGET);
        let faults = match failing {
            Failing::Call(nth) => Faults { call_fails: Trigger::nth(nth), ..Faults::default() },
            Failing::Reservation(nth) => {
                budget.fail_nth_for_tests(nth);
                Faults::default()
            }
        };
        let disk = Arc::new(SimDisk::with_block(7, faults, 4096));
        Self { disk, budget, clock: Arc::default(), store: None, model: Model::default() }
    }

    /// The open store. One that does not open is tried again once: the failure is past.
    fn store(&mut self) -> Result<&Versions> {
        if self.store.is_none() {
            let open = || open(&self.disk, &self.budget, &self.clock);
            let opened = open().or_else(|_| match self.budget.reserved() {
                0 => open(),
                left => Err(Error::bug(format!("{left} bytes are left of a store that did not open"))),
            })?;
            self.store = Some(opened);
        }
        Ok(self.store.as_ref().unwrap())
    }

    fn close(&mut self) {
        if let Some(store) = self.store.take() {
            _ = store.close();
        }
    }

    /// What the store holds differs from a model by this. A read that fails says so and is asked again; it never lies.
    fn differs(&mut self, model: &Model) -> Option<String> {
        let mut last = None;
        for _ in 0..2 {
            match self.store().and_then(read_all) {
                Ok(found) => return difference(model, &found),
                Err(error) if error.kind() == Kind::Bug => return Some(error.to_string()),
                Err(error) => last = Some(error.to_string()),
            }
        }
        last
    }

    /// Does a command. One that fails was done whole or not at all, where it stands and after a restart; then it is done again.
    fn command(&mut self, command: Command) -> std::result::Result<(), String> {
        self.act(&command, |store| match command.clone() {
            Command::Grant { id, ttl } => store.grant(id, ttl).map(|(revision, _)| Reply::Done { revision }),
            Command::Revoke(id) => store.revoke(id).map(|revision| Reply::Done { revision }),
            command => store.execute(command).map(|held| held.value),
        })
    }

    fn act(&mut self, command: &Command, act: impl Fn(&Versions) -> Result<Reply>) -> std::result::Result<(), String> {
        let mut after = self.model.clone();
        let wanted = after.execute(command, None);
        for turn in 0..3 {
            let error = match self.store().and_then(&act) {
                Ok(reply) if Ok(&reply) == wanted.as_ref() => {
                    self.model = after;
                    return Ok(());
                }
                Ok(reply) => return Err(format!("{command:?} was answered {reply:?}")),
                Err(error) if wanted == Err(error.message()) => return Ok(()),
                Err(error) if turn == 2 || error.kind() == Kind::Bug => return Err(format!("{command:?}: {error}")),
                Err(error) => error,
            };
            let before = self.model.clone();
            if let Some(what) = self.differs(&before).filter(|_| error.kind().is_refusal()) {
                return Err(format!("{command:?} was refused ({error}), and all the same: {what}"));
            }
            self.close();
            if self.differs(&before).is_some() {
                self.model = after;
                return self.right(&format!("{command:?} failed ({error}), and was half done"));
            }
        }
        Ok(())
    }

    fn right(&mut self, when: &str) -> std::result::Result<(), String> {
        let model = self.model.clone();
        self.differs(&model).map_or(Ok(()), |what| Err(format!("{when}: {what}")))
    }

    /// Does what changes nothing that can be read; if it fails it is done again, and once more after a restart.
    fn step(&mut self, what: &str, step: impl Fn(&Versions) -> Result<()>) -> std::result::Result<(), String> {
        for _ in 0..2 {
            match self.store().and_then(&step) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == Kind::Bug => return Err(format!("{what}: {error}")),
                Err(_) => {}
            }
        }
        self.close();
        self.store().and_then(&step).map_err(|error| format!("{what}: {error}"))
    }

    fn live(&mut self) -> std::result::Result<(), String> {
        for round in 0..ROUNDS {
            self.changes(round)?;
            self.right("after changes")?;
            self.step("flush", |store| store.engine().flush())?;
            self.many(round)?;
            self.leases(round)?;
            let newest = self.model.revision();
            self.command(Command::Compact(newest - 20))?;
            self.step("purge", |store| {
                while store.purge()? {}
                Ok(())
            })?;
            self.step("merge", |store| {
                while store.step() {}
                Ok(())
            })?;
            self.right("after a merge")?;
            self.close();
            self.right("after a restart")?;
        }
        self.step("defragment", Versions::defragment)?;
        self.right("after all")
    }

    fn changes(&mut self, round: u64) -> std::result::Result<(), String> {
        for number in 0..60 {
            let bytes = if number % 7 == 0 { 1500 } else { 20 };
            let key = format!("k{:03}", number % 40).into_bytes();
            self.command(Command::Put(Put { key, value: vec![round as u8; bytes], prev_kv: true, ..Put::default() }))?;
        }
        let keys = KeyRange { key: b"k010".to_vec(), end: b"k015".to_vec() };
        self.command(Command::Delete(DeleteRange { keys: keys.clone(), prev_kv: true }))?;
        let compare = Compare { keys, result: CompareResult::Equal, target: CompareTarget::Version(0) };
        let success = (10..13).map(|number| {
            let key = format!("k{number:03}").into_bytes();
            Op::Put(Put { key, value: vec![9; 1200], ..Put::default() })
        });
        let read = Range { keys: KeyRange { key: b"k".to_vec(), end: b"l".to_vec() }, ..Range::default() };
        let success = success.chain([Op::Range(read)]).collect();
        self.command(Command::Txn(Txn { compare: vec![compare], success, failure: Vec::new() }))?;
        self.command(Command::Own(vec![(b"users/a".to_vec(), Some(vec![round as u8; 300]))]))
    }

    /// Many keys, and a delete of all of them.
    fn many(&mut self, round: u64) -> std::result::Result<(), String> {
        for first in (0..MANY).step_by(180) {
            let put = |at: u64| Op::Put(Put { key: format!("m{at:04}").into_bytes(), ..Put::default() });
            let success = (first..first + 180).map(put).collect();
            self.command(Command::Txn(Txn { success, ..Txn::default() }))?;
        }
        let keys = KeyRange { key: format!("m{round:04}").into_bytes(), end: b"n".to_vec() };
        let delete = Command::Delete(DeleteRange { keys: keys.clone(), prev_kv: false });
        self.act(&delete, |store| {
            let (deleted, revision) = store.delete_many(&keys)?;
            let deleted = Deleted { deleted, prev: Vec::new() };
            Ok(Reply::Op { revision, reply: OpReply::Deleted { revision, deleted } })
        })
    }

    /// One lease is revoked, the time of another one is over.
    fn leases(&mut self, round: u64) -> std::result::Result<(), String> {
        for id in [1, 2] {
            self.command(Command::Grant { id, ttl: 10 + round as i64 })?;
            for number in 0..4 {
                let key = format!("l{id}{number}").into_bytes();
                self.command(Command::Put(Put { key, lease: id, ..Put::default() }))?;
            }
        }
        self.command(Command::Revoke(1))?;
        let clock = self.clock.clone();
        self.act(&Command::Revoke(2), |store| {
            clock.advance(Duration::from_secs(100));
            store.expire();
            match store.leases().is_empty() {
                true => Ok(Reply::Done { revision: store.revision()? }),
                false => Err(Error::new(Kind::Unfinished, "the lease is still there")),
            }
        })
    }
}

/// Lives once; how many reservations and calls there were.
fn live(failing: Failing) -> std::result::Result<(u64, u64), String> {
    let mut life = Life::new(failing);
    life.live()?;
    life.close();
    match life.budget.reserved() {
        0 => Ok((life.budget.fail_nth_for_tests(0), life.disk.operations())),
        left => Err(format!("{left} bytes are booked when all is closed")),
    }
}

fn sweep(what: &str, (most, stride): (u64, usize), failing: fn(u64) -> Failing) {
    let asked = std::env::var("FAILURE_STRIDE").ok().and_then(|text| text.parse().ok());
    let (stride, mut wrong) = (asked.unwrap_or(stride), Vec::new());
    for nth in (1..=most).step_by(stride) {
        let lived = std::panic::catch_unwind(|| live(failing(nth)));
        if let Err(error) = lived.unwrap_or_else(|_| Err("a panic".to_owned())) {
            wrong.push(format!("{:?}: {error}", failing(nth)));
        }
    }
    println!("{what}: 1 to {most} in steps of {stride}, {} went wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn any_one_reservation_may_fail() {
    let (reservations, _) = live(Failing::Reservation(0)).unwrap();
    sweep("reservations", (reservations, 800), Failing::Reservation);
}

#[test]
fn any_one_call_of_the_disk_may_fail() {
    let (_, calls) = live(Failing::Call(0)).unwrap();
    sweep("calls of the disk", (calls, 40), Failing::Call);
}
