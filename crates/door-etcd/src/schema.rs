//! What etcd keeps in its database file: buckets of records, as `etcdutl` and etcd itself read them.
//!
//! ```text
//!   alarm    the marshalled alarm ─► nothing                          cluster, members, members_removed: one member
//!   auth     whether it is on, and how often it changed               authRoles, authUsers: name ─► etcd's message
//!   key      revision, 8 bytes │ _ │ number in it, 8 bytes │ t: a delete ─► the marshalled KeyValue
//!   lease    number, 8 bytes ─► the marshalled lease
//!   meta     how far the log was applied, and what is compacted
//! ```

use crate::alarm::{ALARMS, of_records};
use crate::auth::{ENABLED, REVISION, ROLE, USER};
use crate::door::{Door, TERM};
use prost::Message;
use ramekin_base::{Error, Result, varint};
use ramekin_bolt::Pieces;
use ramekin_versions::{Lease, ReadView, Stored, Versions, Wanted};
use serde_json::json;

/// The version of the layout: the newest that all etcds from 3.6 on read.
pub(crate) const STORAGE_VERSION: &str = "3.6.0";

/// Bytes of a revision's key; one more for a delete.
const REVISION_BYTES: usize = 17;
const DELETE: u8 = b't';

/// Takes the records of a bucket, in the order of keys.
pub(crate) trait Records {
    /// A record whose value has so many bytes, which are handed out in pieces.
    fn record(&mut self, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()>;
}

/// Takes buckets, in the order of their names.
pub(crate) trait Buckets {
    fn bucket(&mut self, name: &str, fill: &mut dyn FnMut(&mut dyn Records) -> Result<()>) -> Result<()>;
}

/// Hands out all buckets of a moment. `check` fails where nobody waits any more.
pub(crate) fn each_bucket(
    door: &Door,
    view: &ReadView,
    check: &dyn Fn() -> Result<()>,
    out: &mut dyn Buckets,
) -> Result<()> {
    let versions = door.versions();
    let own = |name| versions.owns_at(view, name);
    out.bucket("alarm", &mut |alarms| {
        let mut all: Vec<_> = of_records(&own(ALARMS)?.value)?.iter().map(Message::encode_to_vec).collect();
        all.sort_unstable();
        all.iter().try_for_each(|alarm| whole(alarms, alarm, &[]))
    })?;
    out.bucket("auth", &mut |auth| {
        let value = |name, usual: &[u8]| -> Result<Vec<u8>> {
            let held = own(name)?;
            Ok(held.value.into_iter().find(|(rest, _)| rest.is_empty()).map_or(usual.to_vec(), |(_, value)| value))
        };
        whole(auth, b"authEnabled", &value(ENABLED, &[0])?)?;
        whole(auth, b"authRevision", &value(REVISION, &1u64.to_be_bytes())?)
    })?;
    for (bucket, names) in [("authRoles", ROLE), ("authUsers", USER)] {
        out.bucket(bucket, &mut |to| own(names)?.value.iter().try_for_each(|(name, value)| whole(to, name, value)))?;
    }
    out.bucket("cluster", &mut |cluster| whole(cluster, b"clusterVersion", STORAGE_VERSION.as_bytes()))?;
    let mut compacted = -1;
    out.bucket("key", &mut |keys| {
        let mut each = |stored: &Stored<'_>| record_of(stored, keys);
        (compacted, _) = versions.stored(view, Wanted::All, check, &mut each)?;
        Ok(())
    })?;
    out.bucket("lease", &mut |leases| leases_of(versions, view, leases))?;
    let member = door.inner.member;
    out.bucket("members", &mut |members| {
        let host = &door.inner.host;
        let json = json!({
            "id": member, "peerURLs": host.peer_urls, "name": host.name, "clientURLs": host.client_urls,
        });
        whole(members, format!("{member:x}").as_bytes(), json.to_string().as_bytes())
    })?;
    out.bucket("members_removed", &mut |_| Ok(()))?;
    out.bucket("meta", &mut |meta| meta_of(meta, member, view.seqno(), compacted))
}

fn whole(to: &mut dyn Records, key: &[u8], value: &[u8]) -> Result<()> {
    to.record(key, value.len() as u64, &mut |each| each(value))
}

fn leases_of(versions: &Versions, view: &ReadView, to: &mut dyn Records) -> Result<()> {
    versions.leases_at(view, &mut |Lease { id, ttl }| {
        let mut lease = Vec::with_capacity(24);
        number(&mut lease, 1, id);
        number(&mut lease, 2, ttl);
        whole(to, &id.to_be_bytes(), &lease)
    })
}

fn meta_of(meta: &mut dyn Records, member: u64, index: u64, compacted: i64) -> Result<()> {
    let state = json!({"voters": [member], "auto_leave": false});
    whole(meta, b"confState", state.to_string().as_bytes())?;
    whole(meta, b"consistent_index", &index.to_be_bytes())?;
    if compacted >= 0 {
        let compacted = revision_key(compacted, 0);
        whole(meta, b"finishedCompactRev", &compacted)?;
        whole(meta, b"scheduledCompactRev", &compacted)?;
    }
    whole(meta, b"storageVersion", STORAGE_VERSION.as_bytes())?;
    whole(meta, b"term", &TERM.to_be_bytes())
}

fn revision_key(revision: i64, number: u32) -> [u8; REVISION_BYTES] {
    let mut key = [b'_'; REVISION_BYTES];
    key[..8].copy_from_slice(&revision.to_be_bytes());
    key[9..].copy_from_slice(&u64::from(number).to_be_bytes());
    key
}

/// A number of a protobuf message; 0 is left out.
pub(crate) fn number(out: &mut Vec<u8>, field: u8, value: i64) {
    if value != 0 {
        out.push(field << 3);
        varint::put(out, value as u64);
    }
}

/// The head of bytes of a protobuf message; none are left out.
pub(crate) fn bytes(out: &mut Vec<u8>, field: u8, len: u64) {
    if len > 0 {
        out.push(field << 3 | 2);
        varint::put(out, len);
    }
}

/// A version as a message, but for its value: what stands before that, and what behind.
pub(crate) fn around_value(stored: &Stored<'_>, before: &mut Vec<u8>, after: &mut Vec<u8>) {
    bytes(before, 1, stored.key.len() as u64);
    before.extend_from_slice(stored.key);
    number(before, 2, stored.create_revision);
    number(before, 3, stored.revision);
    number(before, 4, stored.version);
    bytes(before, 5, stored.value_len);
    number(after, 6, stored.lease);
}

/// A version as the bucket `key` has it.
pub(crate) fn record_of(stored: &Stored<'_>, to: &mut dyn Records) -> Result<()> {
    let mut key = [DELETE; REVISION_BYTES + 1];
    key[..REVISION_BYTES].copy_from_slice(&revision_key(stored.revision, stored.number));
    let (mut before, mut after) = (Vec::with_capacity(64 + stored.key.len()), Vec::new());
    if stored.is_delete {
        bytes(&mut before, 1, stored.key.len() as u64);
        before.extend_from_slice(stored.key);
        return whole(to, &key, &before);
    }
    around_value(stored, &mut before, &mut after);
    let len = before.len() as u64 + stored.value_len + after.len() as u64;
    to.record(&key[..REVISION_BYTES], len, &mut |each| {
        each(&before)?;
        stored.value(each)?;
        each(&after)
    })
}

/// Fails where nobody waits any more.
pub(crate) fn gone() -> Error {
    Error::new(ramekin_base::Kind::Cancelled, "nobody waits for it any more")
}
