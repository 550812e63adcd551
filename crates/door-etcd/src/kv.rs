//! KV: reads on the reader pool or at once, changes as commands of the store.

use crate::auth::{Access, Caller};
use crate::booked::{Bookings, memory_of};
use crate::convert;
use crate::door::{Door, answer, answer_done};
use crate::errors::status;
use crate::long_range;
use crate::metrics::Done;
use crate::range_stream;
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::kv_server::Kv;
use ramekin_base::Lane;
use ramekin_versions::{Command, Held, Op, OpReply, Order, Range, Reply, SortBy, Txn, Versions};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

/// Keys that a read returns at most to be done at once.
const SMALL: i64 = 16;

#[tonic::async_trait]
impl Kv for Door {
    async fn range(&self, request: Request<pb::RangeRequest>) -> Result<Response<pb::RangeResponse>, Status> {
        let caller = self.caller_of(&request);
        // The JSON gateway needs the whole of an answer.
        let came_by_grpc = request.extensions().get::<Bookings>().is_some();
        let asked = convert::range(request.into_inner()).map_err(|error| status(&error))?;
        asked.check().map_err(|error| status(&error))?;
        let caller = caller?;
        caller.may(Access::Read, &asked.keys)?;
        self.check_sound()?;
        if came_by_grpc && long_range::is_long(&asked) {
            let response = long_range::answer(self, asked).await?;
            self.still(&caller)?;
            Done::one(&self.inner.done.ranges);
            return Ok(response);
        }
        let is_small = is_few(&asked);
        let Held { value, memory } = self.read(is_small, move |versions| versions.range(&asked)).await?;
        self.still(&caller)?;
        Done::one(&self.inner.done.ranges);
        let header = self.header(value.revision);
        answer(convert::range_response(value, header), memory)
    }

    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<pb::RangeStreamResponse, Status>> + Send>>;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let caller = self.caller_of(&request);
        range_stream::begin(self, request.into_inner(), caller)
    }

    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        self.check_size(request.get_ref())?;
        let (memory, caller) = (memory_of(&request), self.caller_of(&request));
        let put = convert::put(request.into_inner());
        put.check().map_err(|error| status(&error))?;
        let bytes = (put.key.len() + put.value.len()) as u64;
        let caller = caller?;
        let op = self.allowed(&caller, Op::Put(put)).await?;
        let Op::Put(put) = op else { return Err(unexpected()) };
        let Held { value, memory } = self.command(&caller, Command::Put(put), memory).await?;
        match value {
            Reply::Op { revision, reply: OpReply::Put { prev, .. } } => {
                Done::one(&self.inner.done.puts);
                self.inner.done.put_bytes.fetch_add(bytes, Ordering::Relaxed);
                let prev_kv = prev.map(convert::key_value);
                answer_done(pb::PutResponse { header: self.header(revision), prev_kv }, memory).await
            }
            _ => Err(unexpected()),
        }
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        self.check_size(request.get_ref())?;
        let (memory, caller) = (memory_of(&request), self.caller_of(&request));
        let delete = convert::delete(request.into_inner());
        delete.check().map_err(|error| status(&error))?;
        let caller = caller?;
        let op = self.allowed(&caller, Op::Delete(delete)).await?;
        let Op::Delete(delete) = op else { return Err(unexpected()) };
        self.check_sound()?;
        let asked = delete.clone();
        if self.read(true, move |versions| versions.is_large(&asked)).await? {
            let (keys, entered) = (delete.keys, self.enter(&caller)?);
            let delete = move |versions: &Versions| {
                let _entered = entered;
                versions.delete_many(&keys)
            };
            let (deleted, revision) = self.block(Lane::Writes, delete).await?;
            Done::one(&self.inner.done.deletes);
            let header = self.header(revision);
            return Ok(Response::new(pb::DeleteRangeResponse { header, deleted, prev_kvs: Vec::new() }));
        }
        let Held { value, memory } = self.command(&caller, Command::Delete(delete), memory).await?;
        match value {
            Reply::Op { revision, reply: OpReply::Deleted { deleted, .. } } => {
                Done::one(&self.inner.done.deletes);
                answer_done(convert::delete_response(deleted, self.header(revision)), memory).await
            }
            _ => Err(unexpected()),
        }
    }

    async fn txn(&self, request: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
        self.check_size(request.get_ref())?;
        let (memory, caller) = (memory_of(&request), self.caller_of(&request));
        let txn = convert::txn(request.into_inner());
        txn.check(self.inner.host.max_txn_ops).map_err(|error| status(&error))?;
        let caller = caller?;
        let op = self.allowed(&caller, Op::Txn(txn)).await?;
        let Op::Txn(txn) = op else { return Err(unexpected()) };
        let is_read_only = txn.is_read_only();
        let (revision, reply, memory) = if is_read_only {
            self.check_sound()?;
            let is_small = is_small(&txn);
            let Held { value, memory } = self.read(is_small, move |versions| versions.read_txn(&txn)).await?;
            self.still(&caller)?;
            let revision = match &value {
                OpReply::Txn { revision, .. } => *revision,
                _ => 0,
            };
            (revision, value, memory)
        } else {
            match self.command(&caller, Command::Txn(txn), memory).await? {
                Held { value: Reply::Op { revision, reply }, memory } => (revision, reply, memory),
                Held { .. } => return Err(unexpected()),
            }
        };
        self.inner.done.note(&reply);
        match reply {
            OpReply::Txn { succeeded, replies, .. } => {
                let response = convert::txn_response(succeeded, replies, self.header(revision));
                if is_read_only { answer(response, memory) } else { answer_done(response, memory).await }
            }
            _ => Err(unexpected()),
        }
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let caller = self.caller_of(&request)?;
        caller.must_be_root()?;
        let pb::CompactionRequest { revision, physical } = request.into_inner();
        let newest = self.compact_to((revision, Some(&caller)), physical).await?;
        Ok(Response::new(pb::CompactionResponse { header: self.header(newest) }))
    }
}

impl Door {
    /// Fails unless a caller may do an operation.
    async fn allowed(&self, caller: &Caller, op: Op) -> Result<Op, Status> {
        if caller.is_anyone() {
            return Ok(op);
        }
        let caller = caller.clone();
        // Keys of leases may have to be read.
        self.block(Lane::Reads, move |versions| caller.may_do(versions, &op).map(|()| op)).await
    }
}

/// Whether a read looks at few keys. What is sorted or filtered looks at all of its range before the limit counts; and an old revision
/// has to be told from what came since.
fn is_few(asked: &Range) -> bool {
    let bounds = [asked.min_mod, asked.max_mod, asked.min_create, asked.max_create];
    let is_filtered = bounds.iter().any(|bound| *bound != 0);
    let is_sorted = asked.order == Order::Descend || asked.order == Order::Ascend && asked.sort_by != SortBy::Key;
    let is_first = (1..=SMALL).contains(&asked.limit) && !is_sorted && !is_filtered;
    asked.keys.is_one() || asked.revision <= 0 && (asked.count_only || is_first)
}

/// Whether a transaction reads few keys, whichever way it goes.
fn is_small(txn: &Txn) -> bool {
    let few = |op: &Op| matches!(op, Op::Range(range) if is_few(range));
    txn.success.len() + txn.failure.len() <= SMALL as usize
        && txn.compare.iter().all(|compare| compare.keys.is_one())
        && txn.success.iter().chain(&txn.failure).all(few)
}

pub(crate) fn unexpected() -> Status {
    status(&ramekin_versions::unexpected())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_versions::KeyRange;

    #[test]
    fn what_looks_at_many_keys_is_not_small() {
        let keys = KeyRange { key: b"a".to_vec(), end: b"b".to_vec() };
        let one = Range { keys, limit: 1, ..Range::default() };
        let all = Range { limit: 0, count_only: true, ..one.clone() };
        let sorted = |order, sort_by| Range { order, sort_by, ..one.clone() };
        assert!(is_few(&one) && is_few(&all) && is_few(&sorted(Order::Ascend, SortBy::Key)));
        // The limit comes first, where no order is named.
        assert!(is_few(&sorted(Order::None, SortBy::Create)));
        assert!(!is_few(&sorted(Order::Descend, SortBy::Key)) && !is_few(&sorted(Order::Ascend, SortBy::Create)));
        assert!(!is_few(&Range { revision: 5, ..one.clone() }) && !is_few(&Range { revision: 5, ..all }));
        assert!(!is_few(&Range { max_create: 5, ..one.clone() }) && !is_few(&Range { limit: 17, ..one }));
    }
}
