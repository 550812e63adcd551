//! Keys that wait in the order of their creation below a name: what locks and elections are made of.
//!
//! ```text
//!   name/lease ─► put, unless it is there ─► is there an older one below the name? ─► its delete is waited for ─► again
//! ```

use crate::auth::Access;
use crate::door::Door;
use crate::kv::unexpected;
use ramekin_base::Lane;
use ramekin_versions::{
    Asked, Command, Compare, CompareResult, CompareTarget, DeleteRange, Held, KeyRange, KeyValue, Op, OpReply, Order,
    Put, Range, Reply, SortBy, Txn,
};
use tonic::{Request, Status};

/// Seconds of a lease that is granted for whoever brought none.
const TTL: i64 = 60;

/// A key in the queue.
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    /// The revision in which it was made.
    pub(crate) revision: i64,
    pub(crate) lease: i64,
    /// It was there already, with this value.
    pub(crate) was_there: Option<Vec<u8>>,
}

/// All keys below a name.
pub(crate) fn below(name: &[u8]) -> KeyRange {
    let mut end = [name, b"/"].concat();
    // One more than the slash.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    KeyRange { key: [name, b"/"].concat(), end }
}

/// The keys below a name whose creation is the first, or the last before another revision.
fn oldest(keys: KeyRange, order: Order, max_create: i64) -> Range {
    Range { keys, limit: 1, order, sort_by: SortBy::Create, max_create, ..Range::default() }
}

impl Door {
    /// Fails unless whoever sent a request may read and write these keys.
    pub(crate) fn may_queue<T>(&self, request: &Request<T>, keys: &KeyRange) -> Result<(), Status> {
        let caller = self.caller_of(request)?;
        caller.may(Access::Read, keys)?;
        caller.may(Access::Write, keys)
    }

    /// A transaction that changes something.
    pub(crate) async fn transact(&self, txn: Txn) -> Result<(i64, bool, Vec<OpReply>), Status> {
        match self.command(Command::Txn(txn)).await? {
            Held { value: Reply::Op { revision, reply: OpReply::Txn { succeeded, replies, .. } }, .. } => {
                Ok((revision, succeeded, replies))
            }
            Held { .. } => Err(unexpected()),
        }
    }

    /// The lease itself, or a new one.
    async fn lease_or_new(&self, lease: i64) -> Result<i64, Status> {
        if lease != 0 {
            return Ok(lease);
        }
        let id = crate::lease::new_id();
        self.block(Lane::Writes, move |versions| versions.grant(id, TTL)).await?;
        Ok(id)
    }

    /// Takes a place below a name, or finds the one that the lease has there.
    pub(crate) async fn take_place(&self, name: &[u8], value: &[u8], lease: i64) -> Result<Place, Status> {
        let lease = self.lease_or_new(lease).await?;
        let key = [name, format!("/{lease:x}").as_bytes()].concat();
        let is_new =
            Compare { keys: KeyRange::one(&key[..]), result: CompareResult::Equal, target: CompareTarget::Create(0) };
        let put = Put { key: key.clone(), value: value.to_vec(), lease, ..Put::default() };
        let get = Range { keys: KeyRange::one(&key[..]), ..Range::default() };
        let txn = Txn { compare: vec![is_new], success: vec![Op::Put(put)], failure: vec![Op::Range(get)] };
        let (revision, succeeded, replies) = self.transact(txn).await?;
        if succeeded {
            return Ok(Place { key, revision, lease, was_there: None });
        }
        match replies.into_iter().next() {
            Some(OpReply::Range(reply)) => {
                let kv = reply.kvs.into_iter().next().ok_or_else(unexpected)?;
                Ok(Place { key, revision: kv.create_revision, lease, was_there: Some(kv.value) })
            }
            _ => Err(unexpected()),
        }
    }

    /// The key that is the first below a name.
    pub(crate) async fn first_of(&self, name: &[u8]) -> Result<(i64, Option<KeyValue>), Status> {
        let asked = oldest(below(name), Order::Ascend, 0);
        let held = self.read(false, move |versions| versions.range(&asked)).await?;
        Ok((held.value.revision, held.value.kvs.into_iter().next()))
    }

    /// Waits until no key below a name is older than a place. The newest revision then.
    async fn wait_for_turn(&self, name: &[u8], place: &Place) -> Result<i64, Status> {
        let mut changed = self.inner.host.changed.clone();
        loop {
            changed.borrow_and_update();
            let asked = oldest(below(name), Order::Descend, place.revision - 1);
            let held = self.read(false, move |versions| versions.range(&asked)).await?;
            if held.value.kvs.is_empty() {
                return Ok(held.value.revision);
            }
            if changed.changed().await.is_err() {
                return Err(Status::unavailable(crate::errors::STOPPED));
            }
        }
    }

    /// Waits for the turn of a place. Whoever gives up loses the place; so does whose lease has ended.
    pub(crate) async fn turn_of(&self, name: &[u8], place: &Place) -> Result<i64, Status> {
        let leaving = Leaving { door: self, key: place.was_there.is_none().then(|| place.key.clone()) };
        let revision = self.wait_for_turn(name, place).await?;
        let key = KeyRange::one(&place.key[..]);
        let asked = Range { keys: key, ..Range::default() };
        let held = self.read(true, move |versions| versions.range(&asked)).await?;
        if held.value.kvs.first().is_none_or(|kv| kv.create_revision != place.revision) {
            return Err(Status::unknown("mutex: session is expired"));
        }
        leaving.stays();
        Ok(revision.max(held.value.revision))
    }

    pub(crate) async fn remove(&self, key: Vec<u8>) -> Result<i64, Status> {
        let delete = DeleteRange { keys: KeyRange::one(key), prev_kv: false };
        Ok(self.command(Command::Delete(delete)).await?.value.revision())
    }
}

/// Removes the key of whoever gives up.
struct Leaving<'d> {
    door: &'d Door,
    key: Option<Vec<u8>>,
}

impl Leaving<'_> {
    fn stays(mut self) {
        self.key = None;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let delete = DeleteRange { keys: KeyRange::one(key), prev_kv: false };
            self.door.versions().submit(Asked::from(Command::Delete(delete)), |_| ());
        }
    }
}
