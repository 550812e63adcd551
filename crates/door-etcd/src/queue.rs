//! Keys that wait in the order of their creation below a name: what locks and elections are made of.
//!
//! ```text
//!   name/lease ─► put, unless it is there ─► is there an older one below the name? ─► that one's end is waited for ─► again
//! ```

use crate::auth::{Access, Caller};
use crate::door::Door;
use crate::kv::unexpected;
use ramekin_base::Lane;
use ramekin_versions::{
    Asked, Command, Compare, CompareResult, CompareTarget, DeleteRange, Held, KeyRange, KeyValue, Op, OpReply, Order,
    Put, Range, RangeReply, Reply, SortBy, Txn, Versions,
};
use std::time::Duration;
use tonic::{Code, Request, Status};

/// After so long it is looked again, where there was too much to do.
const AGAIN: Duration = Duration::from_millis(50);
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

/// The key below a name, without its value, whose creation is the first, or the last before another revision.
fn oldest(keys: KeyRange, order: Order, max_create: i64) -> Range {
    let (keys_only, uncounted) = (true, true);
    Range { keys, limit: 1, order, sort_by: SortBy::Create, max_create, keys_only, uncounted, ..Range::default() }
}

impl Door {
    /// Fails unless whoever sent a request may read and write these keys.
    pub(crate) fn may_queue<T>(&self, request: &Request<T>, keys: &KeyRange) -> Result<Caller, Status> {
        let caller = self.caller_of(request)?;
        caller.may(Access::Read, keys)?;
        caller.may(Access::Write, keys)?;
        Ok(caller)
    }

    /// A transaction that changes something.
    pub(crate) async fn transact(&self, caller: &Caller, txn: Txn) -> Result<(i64, bool, Vec<OpReply>), Status> {
        match self.command(caller, Command::Txn(txn), Vec::new()).await? {
            Held { value: Reply::Op { revision, reply: OpReply::Txn { succeeded, replies, .. } }, .. } => {
                Ok((revision, succeeded, replies))
            }
            Held { .. } => Err(unexpected()),
        }
    }

    /// The lease itself, or a new one.
    async fn lease_or_new(&self, caller: &Caller, lease: i64) -> Result<i64, Status> {
        if lease != 0 {
            return Ok(lease);
        }
        let id = crate::lease::new_id();
        let entered = self.enter(caller)?;
        let grant = move |versions: &Versions| {
            let _entered = entered;
            versions.grant(id, TTL)
        };
        self.block(Lane::Writes, grant).await?;
        Ok(id)
    }

    /// Takes a place below a name, or finds the one that the lease has there.
    pub(crate) async fn take_place(
        &self,
        caller: &Caller,
        (name, value): (&[u8], &[u8]),
        lease: i64,
    ) -> Result<Place, Status> {
        let lease = self.lease_or_new(caller, lease).await?;
        let key = [name, format!("/{lease:x}").as_bytes()].concat();
        let is_new =
            Compare { keys: KeyRange::one(&key[..]), result: CompareResult::Equal, target: CompareTarget::Create(0) };
        let put = Put { key: key.clone(), value: value.to_vec(), lease, ..Put::default() };
        let get = Range { keys: KeyRange::one(&key[..]), ..Range::default() };
        let txn = Txn { compare: vec![is_new], success: vec![Op::Put(put)], failure: vec![Op::Range(get)] };
        let (revision, succeeded, replies) = self.transact(caller, txn).await?;
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
        let read = move |versions: &Versions| {
            let first = versions.range(&asked)?;
            match first.value.kvs.first() {
                // All are looked at, and of one the value is wanted.
                Some(kv) => versions.range(&Range {
                    keys: KeyRange::one(&kv.key[..]),
                    revision: first.value.revision,
                    ..Range::default()
                }),
                None => Ok(first),
            }
        };
        let held = self.read(false, read).await?;
        Ok((held.value.revision, held.value.kvs.into_iter().next()))
    }

    /// Waits until no key below a name is older than a place. The newest revision then.
    async fn wait_for_turn(&self, name: &[u8], place: &Place) -> Result<i64, Status> {
        loop {
            let held = self.retry_while_busy(false, oldest(below(name), Order::Descend, place.revision - 1)).await?;
            match held.value.kvs.into_iter().next() {
                None => return Ok(held.value.revision),
                Some(before) => self.wait_for_end(before).await?,
            }
        }
    }

    /// Waits until a key is not the one any more that it was, and looks at no other.
    async fn wait_for_end(&self, waited_for: KeyValue) -> Result<(), Status> {
        let mut changed = self.inner.host.changed.clone();
        let asked = Range { keys: KeyRange::one(waited_for.key), keys_only: true, uncounted: true, ..Range::default() };
        loop {
            changed.borrow_and_update();
            let held = self.retry_while_busy(true, asked.clone()).await?;
            if held.value.kvs.first().is_none_or(|kv| kv.create_revision != waited_for.create_revision) {
                return Ok(());
            }
            if changed.changed().await.is_err() {
                return Err(Status::unavailable(crate::errors::STOPPED));
            }
        }
    }

    /// Reads for whoever waits anyway: while there is too much to do it waits on, and keeps its place.
    async fn retry_while_busy(&self, is_small: bool, asked: Range) -> Result<Held<RangeReply>, Status> {
        loop {
            let asked = asked.clone();
            match self.read(is_small, move |versions| versions.range(&asked)).await {
                Err(status) if status.code() == Code::ResourceExhausted => tokio::time::sleep(AGAIN).await,
                done => return done,
            }
        }
    }

    /// Waits for the turn of a place. Whoever gives up loses the place; so does whose lease has ended.
    pub(crate) async fn turn_of(&self, name: &[u8], place: &Place) -> Result<i64, Status> {
        let leaving = Leaving { door: self, key: place.was_there.is_none().then(|| place.key.clone()) };
        let revision = self.wait_for_turn(name, place).await?;
        let key = KeyRange::one(&place.key[..]);
        let asked = Range { keys: key, ..Range::default() };
        let held = self.retry_while_busy(true, asked).await?;
        if held.value.kvs.first().is_none_or(|kv| kv.create_revision != place.revision) {
            return Err(Status::unknown("mutex: session is expired"));
        }
        leaving.stays();
        Ok(revision.max(held.value.revision))
    }

    pub(crate) async fn remove(&self, caller: &Caller, key: Vec<u8>) -> Result<i64, Status> {
        let delete = DeleteRange { keys: KeyRange::one(key), prev_kv: false };
        Ok(self.command(caller, Command::Delete(delete), Vec::new()).await?.value.revision())
    }
}

/// Removes the key of whoever gives up. It is its own, whatever has become of the right to make more of them: nothing guards it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{door, new_store, run};

    #[test]
    fn who_waits_looks_at_the_one_before_and_has_its_turn_when_it_is_gone() {
        let store = new_store();
        let door = door(&store);
        run(async {
            let anyone = door.caller_of(&Request::new(())).unwrap();
            let mut places = Vec::new();
            for number in 0..3 {
                let lease = 100 + number;
                store.versions.grant(lease, 600).unwrap();
                places.push(door.take_place(&anyone, (b"name", b"value"), lease).await.unwrap());
            }
            assert_eq!(door.first_of(b"name").await.unwrap().1.unwrap().value, b"value");
            let [first, second, third] = &places[..] else { panic!("three have taken a place") };
            door.turn_of(b"name", first).await.unwrap();
            // Nobody says here that something has changed: who would wait for that is told that the server stops.
            let turn_of = async |place| door.wait_for_turn(b"name", place).await.map_err(|status| status.code());
            let waits = Err(Code::Unavailable);
            assert_eq!((turn_of(second).await, turn_of(third).await), (waits, waits));
            // Who stands between leaves first: the last one waits for the first one then.
            door.remove(&anyone, second.key.clone()).await.unwrap();
            assert_eq!(turn_of(third).await, waits);
            door.remove(&anyone, first.key.clone()).await.unwrap();
            door.turn_of(b"name", third).await.unwrap();
        });
    }
}
