//! How keys stand in the trees.
//!
//! ```text
//!   heads             0 │ key
//!   history, values   0 │ key, each zero byte of it followed by ff │ 0 1 │ ~revision, 8 bytes
//!   changes           revision, 8 bytes │ number in it, 4 bytes
//!   meta              'r' the revision · 'c' the compacted one · 'l' lease · 'k' lease, key · 'g' end, key of a value · 'o' name
//! ```
//!
//! Numbers are big-endian, so that they sort. Within a key the newest version comes first.

use crate::api::KeyRange;
use ramekin_base::{Error, Result};
use ramekin_runs::KEY_MAX;

pub(crate) const HEADS: usize = 0;
pub(crate) const HISTORY: usize = 1;
pub(crate) const VALUES: usize = 2;
pub(crate) const CHANGES: usize = 3;
pub(crate) const META: usize = 4;

/// Bytes of a key at most: each may take two.
pub(crate) const KEY_BYTES_MAX: usize = KEY_MAX / 2 - 32;

pub(crate) const REVISION: &[u8] = b"r";
pub(crate) const COMPACTED: &[u8] = b"c";
/// What follows all keys of a tree.
pub(crate) const END: &[u8] = &[1];

pub(crate) fn check(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::invalid(crate::errors::KEY_NOT_PROVIDED)),
        len if len > KEY_BYTES_MAX => Err(Error::too_large(crate::errors::TOO_LARGE)),
        _ => Ok(()),
    }
}

pub(crate) fn head(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.push(0);
    out.extend_from_slice(key);
    out
}

/// The key of a head.
pub(crate) fn of_head(head: &[u8]) -> Result<&[u8]> {
    head.strip_prefix(&[0]).ok_or_else(|| broken("head"))
}

/// Where a key, or what follows it, begins in `history` and `values`.
fn escaped(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 16);
    out.push(0);
    for byte in key {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
    out
}

/// The version of a key that was written at a revision: it stands before those that were written earlier.
pub(crate) fn version(key: &[u8], revision: i64) -> Vec<u8> {
    let mut out = escaped(key);
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&(!(revision as u64)).to_be_bytes());
    out
}

/// After all versions of a key.
pub(crate) fn past_versions(key: &[u8]) -> Vec<u8> {
    let mut out = escaped(key);
    out.extend_from_slice(&[0, 2]);
    out
}

/// The key and the revision of a version.
pub(crate) fn of_history(bytes: &[u8]) -> Result<(Vec<u8>, i64)> {
    let broken = || broken("version");
    let (text, revision) = bytes.split_last_chunk::<8>().ok_or_else(broken)?;
    let text = text.strip_prefix(&[0]).and_then(|text| text.strip_suffix(&[0, 1])).ok_or_else(broken)?;
    let (mut key, mut rest) = (Vec::with_capacity(text.len()), text.iter());
    while let Some(byte) = rest.next() {
        key.push(*byte);
        if *byte == 0 && rest.next() != Some(&0xff) {
            return Err(broken());
        }
    }
    Ok((key, !u64::from_be_bytes(*revision) as i64))
}

pub(crate) fn change(revision: i64, number: u32) -> [u8; 12] {
    let mut out = [0; 12];
    out[..8].copy_from_slice(&(revision as u64).to_be_bytes());
    out[8..].copy_from_slice(&number.to_be_bytes());
    out
}

/// The revision of a change, and its number in it.
pub(crate) fn of_change(bytes: &[u8]) -> Result<(i64, u32)> {
    let bytes: &[u8; 12] = bytes.try_into().map_err(|_| broken("change"))?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
    Ok((u64::from_be_bytes([a, b, c, d, e, f, g, h]) as i64, u32::from_be_bytes([i, j, k, l])))
}

fn tagged(tag: u8, number: i64, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(9 + rest.len());
    out.push(tag);
    out.extend_from_slice(&(number as u64).to_be_bytes());
    out.extend_from_slice(rest);
    out
}

pub(crate) fn lease(id: i64) -> Vec<u8> {
    tagged(b'l', id, &[])
}

pub(crate) fn of_lease(bytes: &[u8]) -> Result<i64> {
    let id = bytes.strip_prefix(b"l").and_then(|id| id.first_chunk::<8>());
    id.map(|id| u64::from_be_bytes(*id) as i64).ok_or_else(|| broken("lease"))
}

/// All leases.
pub(crate) const LEASES: (&[u8], &[u8]) = (b"l", b"m");

/// That a key belongs to a lease.
pub(crate) fn leased(id: i64, key: &[u8]) -> Vec<u8> {
    tagged(b'k', id, key)
}

/// All keys of a lease. Ids sort as numbers without a sign, so that those below 0 come last.
pub(crate) fn leased_range(id: i64) -> (Vec<u8>, Vec<u8>) {
    let next = (id as u64).checked_add(1);
    (tagged(b'k', id, &[]), next.map_or_else(|| vec![b'l'], |next| tagged(b'k', next as i64, &[])))
}

pub(crate) fn of_leased(bytes: &[u8]) -> Result<&[u8]> {
    bytes.get(9..).ok_or_else(|| broken("key of a lease"))
}

/// That a value in `values` belongs to a version that ended in a revision.
pub(crate) fn grave(end: i64, version: &[u8]) -> Vec<u8> {
    tagged(b'g', end, version)
}

/// Graves of versions that ended up to a revision.
pub(crate) fn graves_to(revision: i64) -> (Vec<u8>, Vec<u8>) {
    (b"g".to_vec(), tagged(b'g', revision + 1, &[]))
}

pub(crate) fn of_grave(bytes: &[u8]) -> Result<&[u8]> {
    bytes.get(9..).ok_or_else(|| broken("grave"))
}

/// What follows all values of the server's own.
pub(crate) const OWN_END: &[u8] = b"p";

/// A value of the server's own.
pub(crate) fn own(name: &[u8]) -> Vec<u8> {
    [b"o", name].concat()
}

/// Bounds of a range in `heads`.
pub(crate) fn heads_of(keys: &KeyRange) -> (Vec<u8>, Vec<u8>) {
    let to = match (keys.is_one(), keys.is_endless()) {
        (true, _) => [&head(&keys.key)[..], &[0]].concat(),
        (false, true) => END.to_vec(),
        (false, false) => head(&keys.end),
    };
    (head(&keys.key), to)
}

/// Bounds of a range in `history` and `values`.
pub(crate) fn versions_of(keys: &KeyRange) -> (Vec<u8>, Vec<u8>) {
    let to = match (keys.is_one(), keys.is_endless()) {
        (true, _) => past_versions(&keys.key),
        (false, true) => END.to_vec(),
        (false, false) => escaped(&keys.end),
    };
    (escaped(&keys.key), to)
}

pub(crate) fn broken(what: &str) -> Error {
    Error::corrupt(format!("a {what} of the versions does not decode; restore the folder from a copy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_lease_are_its_own_whatever_its_number() {
        let ids = [1, 2, i64::MAX - 1, i64::MAX, i64::MIN, i64::MIN + 1, -2, -1];
        for id in ids {
            let (from, to) = leased_range(id);
            for other in ids {
                for key in [&b""[..], b"a", &[0xff; 20]] {
                    let leased = leased(other, key);
                    assert_eq!(from <= leased && leased < to, id == other, "{id}: {other}");
                }
            }
        }
    }

    #[test]
    fn versions_sort_by_key_and_the_newest_first() {
        let keys: [&[u8]; 8] = [b"\0", b"\0\0", b"\0\x01", b"a", b"a\0", b"a\0b", b"aa", b"\xff"];
        let mut all = Vec::new();
        for key in keys {
            for revision in [i64::MAX, 9, 2] {
                all.push(version(key, revision));
                assert_eq!(of_history(&all[all.len() - 1]).unwrap(), (key.to_vec(), revision));
            }
        }
        assert!(all.is_sorted());
        for (at, key) in keys.iter().enumerate() {
            let (from, to) = versions_of(&KeyRange::one(*key));
            let inside: Vec<bool> = all.iter().map(|it| from <= *it && *it < to).collect();
            // The escaped key alone begins where longer ones do: those before its end are its own.
            assert!(inside[at * 3..at * 3 + 3].iter().all(|it| *it), "{key:?}");
            assert_eq!(inside.iter().filter(|it| **it).count(), 3, "{key:?}");
            for (other, end) in keys.iter().enumerate().skip(at + 1) {
                let (from, to) = versions_of(&KeyRange { key: key.to_vec(), end: end.to_vec() });
                let inside = all.iter().filter(|it| from <= **it && **it < to).count();
                assert_eq!(inside, (other - at) * 3, "{key:?} to {end:?}");
            }
        }
        assert!(of_history(b"\0a\0\x02\0\0\0\0\0\0\0\0").is_err() && of_history(b"").is_err());
    }
}
