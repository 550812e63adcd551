//! Alarms: a store that is full, or a copy that is corrupt, is said so until somebody takes it back.
//!
//! ```text
//!   put, transaction that puts, lease ─► quota: bytes of the store + what is asked ─► full: NOSPACE is raised, durably
//!   NOSPACE ─► those three are refused · CORRUPT ─► all of KV and Lease is
//! ```

use crate::door::Door;
use crate::errors::{self, refused};
use crate::wire::etcdserverpb::{AlarmMember, AlarmType};
use ramekin_base::{Error, Kind, Lane, Result};
use ramekin_versions::{Command, Op, Own, Txn, Versions};
use std::sync::Arc;
use tonic::Status;

/// What all names of their records begin with; the member and the kind follow.
pub(crate) const ALARMS: &[u8] = b"alarm/";
/// Alarms of all members at most: there is one member, but whoever raises one may name any.
const MOST: usize = 64;
/// What a put counts against the quota besides its key and value, and what a lease does.
const PUT_BYTES: u64 = 256;
pub(crate) const LEASE_BYTES: u64 = 64;

pub(crate) fn record(alarm: &AlarmMember) -> Vec<u8> {
    [ALARMS, &alarm.member_id.to_be_bytes()[..], &alarm.alarm.to_be_bytes()[..]].concat()
}

/// All that are raised, as they are durable.
pub(crate) fn load(versions: &Versions) -> Result<Vec<AlarmMember>> {
    of_records(&versions.owns(ALARMS)?.value)
}

/// Alarms by their records, whose names are without what all begin with.
pub(crate) fn of_records(records: &[Own]) -> Result<Vec<AlarmMember>> {
    let alarm = |(name, _): &(Vec<u8>, Vec<u8>)| {
        let (member, kind) = name.split_first_chunk::<8>()?;
        let alarm = i32::from_be_bytes(kind.try_into().ok()?);
        Some(AlarmMember { member_id: u64::from_be_bytes(*member), alarm })
    };
    let all: Option<Vec<_>> = records.iter().map(alarm).collect();
    all.ok_or_else(|| Error::corrupt("a record of an alarm does not decode; restore the folder from a copy"))
}

/// What a transaction may put at most, whichever way it goes.
fn cost_of(txn: &Txn) -> u64 {
    let of = |ops: &[Op]| {
        let cost = |op: &Op| match op {
            Op::Put(put) => PUT_BYTES + (put.key.len() + put.value.len()) as u64,
            Op::Txn(txn) => cost_of(txn),
            Op::Range(_) | Op::Delete(_) | Op::Refused(_) => 0,
        };
        ops.iter().map(cost).sum::<u64>()
    };
    of(&txn.success).max(of(&txn.failure))
}

/// Bytes that a command counts against the quota; 0: it needs none.
pub(crate) fn cost(command: &Command) -> u64 {
    match command {
        Command::Put(put) => PUT_BYTES + (put.key.len() + put.value.len()) as u64,
        Command::Txn(txn) => cost_of(txn),
        _ => 0,
    }
}

impl Door {
    pub(crate) fn alarms(&self) -> Arc<Vec<AlarmMember>> {
        self.inner.alarms.load_full()
    }

    fn has(&self, kind: AlarmType) -> bool {
        self.inner.alarms.load().iter().any(|alarm| alarm.alarm == kind as i32)
    }

    /// Fails for everything while the copy is corrupt.
    pub(crate) fn check_sound(&self) -> Result<(), Status> {
        match self.has(AlarmType::Corrupt) {
            true => Err(refused(errors::CORRUPT)),
            false => Ok(()),
        }
    }

    /// Fails for what adds so many bytes, while the store is full; finds that it is.
    pub(crate) async fn check_space(&self, cost: u64) -> Result<(), Status> {
        self.check_sound()?;
        if cost == 0 {
            return Ok(());
        }
        if self.has(AlarmType::Nospace) {
            return Err(refused(errors::NO_SPACE));
        }
        match self.inner.host.quota.is_some_and(|quota| self.store_bytes() + cost >= quota) {
            true => Err(self.raise_no_space().await),
            false => Ok(()),
        }
    }

    /// The store is full: says so until it is taken back.
    pub(crate) async fn raise_no_space(&self) -> Status {
        let full = AlarmMember { member_id: self.inner.member, alarm: AlarmType::Nospace.into() };
        if let Err(error) = self.set_alarm(full, true).await {
            tracing::warn!("the store is full, and that could not be kept: {}", error.message());
            // It holds at least as long as the process lives.
            self.inner.alarms.rcu(|held| {
                let mut all = Vec::clone(held);
                if !all.contains(&full) {
                    all.push(full);
                }
                all
            });
        }
        refused(errors::NO_SPACE)
    }

    /// Raises an alarm or takes it back. Whether that changed anything.
    pub(crate) async fn set_alarm(&self, alarm: AlarmMember, is_raised: bool) -> Result<bool, Status> {
        let own = self.clone();
        self.block(Lane::Writes, move |versions| {
            let all = load(versions)?;
            let in_memory = own.inner.alarms.load().contains(&alarm);
            let is_there = all.contains(&alarm);
            if is_raised && !is_there && all.len() >= MOST {
                return Err(Error::new(Kind::Busy, format!("{MOST} alarms are raised; take some back first")));
            }
            if is_there != is_raised {
                let value = is_raised.then(Vec::new);
                versions.execute(Command::Own(vec![(record(&alarm), value)]))?;
            }
            own.inner.alarms.store(Arc::new(load(versions)?));
            Ok((is_there || in_memory) != is_raised)
        })
        .await
    }
}
