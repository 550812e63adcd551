//! How the effects of units stand in the log: never a command, always what it did.
//!
//! ```text
//!   record   seqno of its first unit u64 │ effect │ effect │ END │ effect │ END │ ...
//!   effect   tag u8 │ tree u8 │ key length, key │ weight │ value length, value        (PUT)
//!                                               │ weight                              (DELETE)
//!                                               │ weight │ end length, end            (DELETE_TO)
//!   tag      kind, and a bit that says whether no older record of the key is anywhere
//! ```
//!
//! Lengths are varints, weights zigzag varints. A record holds whole units; where one is longer than what its record has left it
//! is cut between effects. Records up to the next one that ends with a unit are one request of the log, which a start finds as a whole
//! or not at all.

use ramekin_base::{Error, Result, varint};
use ramekin_runs::{Entry, Value};

const END: u8 = 0xff;
const PUT: u8 = 0;
const DELETE: u8 = 1;
const DELETE_TO: u8 = 2;
const KINDS: u8 = 0x0f;
const FIRST: u8 = 0x10;
/// Bytes of a record's head.
pub(crate) const HEAD: usize = 8;

/// Begins a record.
pub(crate) fn begin(out: &mut Vec<u8>, seqno: u64) {
    out.extend_from_slice(&seqno.to_le_bytes());
}

/// Adds an effect.
pub(crate) fn put(out: &mut Vec<u8>, tree: usize, entry: &Entry<'_>) {
    let (kind, value): (u8, &[u8]) = match entry.value {
        Value::Inline(value) => (PUT, value),
        Value::DeletedTo(end) => (DELETE_TO, end),
        Value::Deleted | Value::Big(_) => (DELETE, &[]),
    };
    out.push(kind | if entry.first { FIRST } else { 0 });
    out.push(tree as u8);
    put_text(out, entry.key);
    varint::put_signed(out, entry.weight);
    if kind != DELETE {
        put_text(out, value);
    }
}

/// Ends a unit.
pub(crate) fn end(out: &mut Vec<u8>) {
    out.push(END);
}

/// What an effect takes at most.
pub(crate) fn size(entry: &Entry<'_>) -> usize {
    let value = match entry.value {
        Value::Inline(value) => value.len(),
        Value::DeletedTo(end) => end.len(),
        Value::Deleted | Value::Big(_) => 0,
    };
    24 + entry.key.len() + value
}

/// Calls `each` with the unit, the tree and the effect of all that a record holds. Returns the number of the unit that would be
/// next, or is under way.
pub(crate) fn each(record: &[u8], each: &mut dyn FnMut(u64, usize, &Entry<'_>) -> Result<()>) -> Result<u64> {
    let head = record.first_chunk::<HEAD>().ok_or_else(broken)?;
    let (mut seqno, mut at) = (u64::from_le_bytes(*head), HEAD);
    while at < record.len() {
        match effect(record, &mut at).ok_or_else(broken)? {
            Some((tree, entry)) => each(seqno, tree, &entry)?,
            None => seqno = seqno.checked_add(1).ok_or_else(broken)?,
        }
    }
    Ok(seqno)
}

/// Calls `each` with tree and key of the effects of one unit, which begin at `at`: with the head of a record, where they begin one.
pub(crate) fn each_key(bytes: &[u8], mut at: usize, each: &mut dyn FnMut(usize, &[u8])) {
    while let Some(Some((tree, entry))) = effect(bytes, &mut at) {
        each(tree, entry.key);
    }
}

/// The effect at `at`, or the end of a unit, which is `None` inside; `None`: there is neither.
fn effect<'a>(bytes: &'a [u8], at: &mut usize) -> Option<Option<(usize, Entry<'a>)>> {
    let tag = *bytes.get(*at)?;
    *at += 1;
    if tag == END {
        return Some(None);
    }
    let tree = usize::from(*bytes.get(*at)?);
    *at += 1;
    let key = text(bytes, at)?;
    let weight = varint::get_signed(bytes, at)?;
    let value = match tag & KINDS {
        PUT => Value::Inline(text(bytes, at)?),
        DELETE => Value::Deleted,
        DELETE_TO => Value::DeletedTo(text(bytes, at)?),
        _ => return None,
    };
    Some(Some((tree, Entry { key, value, weight, first: tag & FIRST != 0 })))
}

fn text<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let len = usize::try_from(varint::get(bytes, at)?).ok()?;
    let text = bytes.get(*at..at.checked_add(len)?)?;
    *at += len;
    Some(text)
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn broken() -> Error {
    Error::corrupt("a record of the log does not hold whole effects; restore the folder from a copy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_come_back_with_their_units() {
        let entries = [
            Entry { key: b"a", value: Value::Inline(b"value"), weight: 1, first: true },
            Entry { key: b"", value: Value::Deleted, weight: -1_000_000, first: false },
            Entry { key: b"from", value: Value::DeletedTo(b"to"), weight: 0, first: false },
        ];
        let mut out = Vec::new();
        begin(&mut out, 7);
        put(&mut out, 0, &entries[0]);
        end(&mut out);
        put(&mut out, 1, &entries[1]);
        put(&mut out, 2, &entries[2]);
        end(&mut out);
        let mut seen = 0;
        let next = each(&out, &mut |seqno, tree, entry| {
            assert_eq!((seqno, tree, *entry), ([7, 8, 8][seen], seen, entries[seen]));
            seen += 1;
            Ok(())
        });
        assert_eq!((next.unwrap(), seen), (9, 3));
        for cut in 0..out.len() {
            // Neither a panic nor an effect that was not written.
            _ = each(&out[..cut], &mut |_, tree, entry| {
                assert_eq!(*entry, entries[tree]);
                Ok(())
            });
        }
    }
}
