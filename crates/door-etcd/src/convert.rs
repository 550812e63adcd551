//! The wire's messages as the store's requests, and its answers as messages.

use crate::errors;
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::request_op::Request;
use crate::wire::etcdserverpb::response_op::Response;
use crate::wire::mvccpb;
use ramekin_base::{Error, Result};
use ramekin_versions::{
    Compare, CompareResult, CompareTarget, DeleteRange, Deleted, Event, KeyRange, KeyValue, Op, OpReply, Order, Put,
    Range, RangeReply, SortBy, Txn, errors as text,
};

fn keys(key: Vec<u8>, end: Vec<u8>) -> KeyRange {
    KeyRange { key, end }
}

pub(crate) fn range(asked: pb::RangeRequest) -> Result<Range> {
    if asked.key.is_empty() {
        return Err(Error::invalid(text::KEY_NOT_PROVIDED));
    }
    let order = match asked.sort_order {
        0 => Order::None,
        1 => Order::Ascend,
        2 => Order::Descend,
        _ => return Err(Error::invalid(errors::INVALID_SORT)),
    };
    let sort_by = match asked.sort_target {
        0 => SortBy::Key,
        1 => SortBy::Version,
        2 => SortBy::Create,
        3 => SortBy::Mod,
        4 => SortBy::Value,
        _ => return Err(Error::invalid(errors::INVALID_SORT)),
    };
    Ok(Range {
        keys: keys(asked.key, asked.range_end),
        limit: asked.limit,
        revision: asked.revision,
        order,
        sort_by,
        keys_only: asked.keys_only,
        count_only: asked.count_only,
        uncounted: false,
        min_mod: asked.min_mod_revision,
        max_mod: asked.max_mod_revision,
        min_create: asked.min_create_revision,
        max_create: asked.max_create_revision,
    })
}

pub(crate) fn put(asked: pb::PutRequest) -> Put {
    let pb::PutRequest { key, value, lease, prev_kv, ignore_value, ignore_lease } = asked;
    Put { key, value, lease, prev_kv, ignore_value, ignore_lease }
}

pub(crate) fn delete(asked: pb::DeleteRangeRequest) -> DeleteRange {
    DeleteRange { keys: keys(asked.key, asked.range_end), prev_kv: asked.prev_kv }
}

pub(crate) fn txn(asked: pb::TxnRequest) -> Txn {
    Txn {
        compare: asked.compare.into_iter().map(compare).collect(),
        success: asked.success.into_iter().map(op).collect(),
        failure: asked.failure.into_iter().map(op).collect(),
    }
}

fn op(asked: pb::RequestOp) -> Op {
    match asked.request {
        Some(Request::RequestRange(asked)) if asked.key.is_empty() => Op::Refused(text::KEY_NOT_PROVIDED),
        Some(Request::RequestRange(asked)) => range(asked).map_or(Op::Refused(errors::INVALID_SORT), Op::Range),
        Some(Request::RequestPut(asked)) => Op::Put(put(asked)),
        Some(Request::RequestDeleteRange(asked)) => Op::Delete(delete(asked)),
        Some(Request::RequestTxn(asked)) => Op::Txn(txn(asked)),
        None => Op::Refused(text::KEY_NOT_FOUND),
    }
}

fn compare(asked: pb::Compare) -> Compare {
    use pb::compare::TargetUnion;
    // What does not belong to the target counts as absent, and absent is zero, or empty.
    let number = |union: Option<TargetUnion>| match (asked.target, union) {
        (0, Some(TargetUnion::Version(it)))
        | (1, Some(TargetUnion::CreateRevision(it)))
        | (2, Some(TargetUnion::ModRevision(it)))
        | (4, Some(TargetUnion::Lease(it))) => it,
        _ => 0,
    };
    let target = match (asked.target, asked.target_union) {
        (1, union) => CompareTarget::Create(number(union)),
        (2, union) => CompareTarget::Mod(number(union)),
        (3, Some(TargetUnion::Value(value))) => CompareTarget::Value(value),
        (3, _) => CompareTarget::Value(Vec::new()),
        (4, union) => CompareTarget::Lease(number(union)),
        (_, union) => CompareTarget::Version(number(union)),
    };
    // A target without a meaning is equal to what it is compared with; a result without one holds.
    let result = match (asked.result, (0..=4).contains(&asked.target)) {
        (0, true) => CompareResult::Equal,
        (1, true) => CompareResult::Greater,
        (2, true) => CompareResult::Less,
        (3, true) => CompareResult::NotEqual,
        (1..=3, false) => CompareResult::Never,
        _ => CompareResult::Always,
    };
    Compare { keys: keys(asked.key, asked.range_end), result, target }
}

pub(crate) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    let KeyValue { key, create_revision, mod_revision, version, value, lease } = kv;
    mvccpb::KeyValue { key, create_revision, mod_revision, version, value, lease }
}

pub(crate) fn event(event: Event) -> mvccpb::Event {
    mvccpb::Event {
        r#type: i32::from(event.is_delete),
        kv: Some(key_value(event.kv)),
        prev_kv: event.prev.map(key_value),
    }
}

/// The header of an answer inside of a transaction: it has no ids.
fn inner(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision, ..pb::ResponseHeader::default() })
}

pub(crate) fn range_response(reply: RangeReply, header: Option<pb::ResponseHeader>) -> pb::RangeResponse {
    let kvs = reply.kvs.into_iter().map(key_value).collect();
    pb::RangeResponse { header, kvs, more: reply.more, count: reply.count }
}

pub(crate) fn delete_response(deleted: Deleted, header: Option<pb::ResponseHeader>) -> pb::DeleteRangeResponse {
    let prev_kvs = deleted.prev.into_iter().map(key_value).collect();
    pb::DeleteRangeResponse { header, deleted: deleted.deleted, prev_kvs }
}

pub(crate) fn txn_response(
    succeeded: bool,
    replies: Vec<OpReply>,
    header: Option<pb::ResponseHeader>,
) -> pb::TxnResponse {
    pb::TxnResponse { header, succeeded, responses: replies.into_iter().map(op_response).collect() }
}

fn op_response(reply: OpReply) -> pb::ResponseOp {
    let response = match reply {
        OpReply::Range(reply) => {
            let header = inner(reply.revision);
            Response::ResponseRange(range_response(reply, header))
        }
        OpReply::Put { revision, prev } => {
            Response::ResponsePut(pb::PutResponse { header: inner(revision), prev_kv: prev.map(key_value) })
        }
        OpReply::Deleted { revision, deleted } => {
            Response::ResponseDeleteRange(delete_response(deleted, inner(revision)))
        }
        // That of a transaction has no revision either.
        OpReply::Txn { succeeded, replies, .. } => Response::ResponseTxn(txn_response(succeeded, replies, inner(0))),
    };
    pb::ResponseOp { response: Some(response) }
}
