//! A record in the arena of a memtable.
//!
//! ```text
//!   bytes of the value 4 │ bytes of the key 2 │ kind 1 │ first 1 │ weight 8 │ key │ value
//! ```
//!
//! A separator of the tree is a record without a value.

use super::arena::{Address, Arena};
use crate::entry::{Entry, Value};

pub(super) const HEADER: usize = 16;

const PUT: u8 = 0;
const DELETED: u8 = 1;
const DELETED_TO: u8 = 2;

fn bytes_of<'v>(value: &Value<'v>) -> (u8, &'v [u8]) {
    match value {
        Value::Inline(bytes) => (PUT, bytes),
        Value::DeletedTo(end) => (DELETED_TO, end),
        // Big values lie in files only.
        Value::Deleted | Value::Big(_) => (DELETED, &[]),
    }
}

/// Bytes of a record.
pub(super) fn size(entry: &Entry<'_>) -> usize {
    HEADER + entry.key.len() + bytes_of(&entry.value).1.len()
}

/// Writes a record into a slot of its size.
pub(super) fn encode(entry: &Entry<'_>, slot: &mut [u8]) {
    let (kind, value) = bytes_of(&entry.value);
    slot[..4].copy_from_slice(&(value.len() as u32).to_le_bytes());
    slot[4..6].copy_from_slice(&(entry.key.len() as u16).to_le_bytes());
    (slot[6], slot[7]) = (kind, u8::from(entry.first));
    slot[8..16].copy_from_slice(&entry.weight.to_le_bytes());
    let (key, rest) = slot[HEADER..].split_at_mut(entry.key.len());
    key.copy_from_slice(entry.key);
    rest[..value.len()].copy_from_slice(value);
}

fn header(arena: &Arena, record: Address) -> (usize, usize, &[u8]) {
    let header = arena.bytes(record, HEADER);
    let value = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    (usize::from(u16::from_le_bytes([header[4], header[5]])), value, header)
}

#[inline]
pub(super) fn key_of(arena: &Arena, record: Address) -> &[u8] {
    let (key, _, _) = header(arena, record);
    &arena.bytes(record, HEADER + key)[HEADER..]
}

/// Bytes of the slot of a record.
pub(super) fn size_of_slot(arena: &Arena, record: Address) -> usize {
    let (key, value, _) = header(arena, record);
    HEADER + key + value
}

#[inline]
pub(super) fn decode(arena: &Arena, record: Address) -> Entry<'_> {
    let (key, value, header) = header(arena, record);
    let mut weight = [0; 8];
    weight.copy_from_slice(&header[8..]);
    let (kind, first) = (header[6], header[7] != 0);
    let bytes = &arena.bytes(record, HEADER + key + value)[HEADER..];
    let (key, value) = bytes.split_at(key);
    let value = match kind {
        PUT => Value::Inline(value),
        DELETED => Value::Deleted,
        _ => Value::DeletedTo(value),
    };
    Entry { key, value, weight: i64::from_le_bytes(weight), first }
}
