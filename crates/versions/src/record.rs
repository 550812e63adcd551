//! What the trees hold under a key.
//!
//! ```text
//!   head      revision │ version                                          all varints
//!   dead      end │ version                                              the revision stands in the key
//!   version   number in its revision │ create │ version │ lease │ 0, the value    or    1, length of the value, which stands in `values`
//!   change    1: a delete, 2: the first version of a life │ key
//! ```

use crate::keys::broken;
use ramekin_base::{Result, varint};
use ramekin_runs::INLINE_MAX;

/// A longer value stands in `values`: a head with this one still stands beside its key.
pub(crate) const HERE_MAX: usize = INLINE_MAX - 64;

/// What a version is, but for its value, if that is long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version<'a> {
    /// Of the change in its revision that wrote it.
    pub(crate) number: u32,
    pub(crate) create: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: Value<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Here(&'a [u8]),
    /// In `values`, of so many bytes.
    There(u64),
}

impl<'a> Value<'a> {
    pub(crate) fn of(value: &'a [u8]) -> Self {
        if value.len() > HERE_MAX { Self::There(value.len() as u64) } else { Self::Here(value) }
    }

    pub(crate) fn is_there(&self) -> bool {
        matches!(self, Self::There(_))
    }
}

/// The newest version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) revision: i64,
    pub(crate) is: Version<'a>,
}

/// A version that ended: at `end` the key had another one, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dead<'a> {
    pub(crate) end: i64,
    pub(crate) is: Version<'a>,
}

/// A change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) is_delete: bool,
    /// The key was not there before.
    pub(crate) is_new: bool,
    pub(crate) key: &'a [u8],
}

impl<'a> Version<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, u64::from(self.number));
        varint::put(out, self.create as u64);
        varint::put(out, self.version as u64);
        varint::put(out, self.lease as u64);
        match self.value {
            Value::Here(value) => {
                out.push(0);
                out.extend_from_slice(value);
            }
            Value::There(len) => {
                out.push(1);
                varint::put(out, len);
            }
        }
    }

    pub(crate) fn decode(bytes: &'a [u8], at: &mut usize) -> Option<Self> {
        let written_by = u32::try_from(varint::get(bytes, at)?).ok()?;
        let mut number = || varint::get(bytes, at).map(|number| number as i64);
        let (create, version, lease) = (number()?, number()?, number()?);
        let kind = *bytes.get(*at)?;
        *at += 1;
        let value = match kind {
            0 => Value::Here(&bytes[*at..]),
            1 => Value::There(varint::get(bytes, at).filter(|_| *at == bytes.len())?),
            _ => return None,
        };
        Some(Self { number: written_by, create, version, lease, value })
    }
}

impl<'a> Head<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        varint::put(&mut out, self.revision as u64);
        self.is.encode(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut at = 0;
        let mut decode = || {
            let revision = varint::get(bytes, &mut at)? as i64;
            Some(Self { revision, is: Version::decode(bytes, &mut at)? })
        };
        decode().ok_or_else(|| broken("head"))
    }
}

impl<'a> Dead<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        varint::put(&mut out, self.end as u64);
        self.is.encode(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut at = 0;
        let mut decode = || {
            let end = varint::get(bytes, &mut at)? as i64;
            Some(Self { end, is: Version::decode(bytes, &mut at)? })
        };
        decode().ok_or_else(|| broken("version"))
    }

    /// The revision in which the version ended.
    pub(crate) fn end_of(bytes: &[u8]) -> u64 {
        varint::get(bytes, &mut 0).unwrap_or(0)
    }
}

impl<'a> Change<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.key.len());
        out.push(u8::from(self.is_delete) | u8::from(self.is_new) << 1);
        out.extend_from_slice(self.key);
        out
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        match bytes {
            [flags @ 0..=3, key @ ..] => Ok(Self { is_delete: flags & 1 != 0, is_new: flags & 2 != 0, key }),
            _ => Err(broken("change")),
        }
    }
}

/// A number alone.
pub(crate) fn number(number: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(9);
    varint::put_signed(&mut out, number);
    out
}

pub(crate) fn of_number(bytes: &[u8]) -> Result<i64> {
    varint::get_signed(bytes, &mut 0).ok_or_else(|| broken("number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let big = vec![1; HERE_MAX + 1];
        for value in [Value::of(b""), Value::of(b"abc"), Value::of(&big)] {
            let is = Version { number: 3, create: 2, version: 1 << 40, lease: i64::MAX, value };
            let head = Head { revision: 7, is };
            assert_eq!(Head::decode(&head.encode()).unwrap(), head);
            let dead = Dead { end: 9, is };
            assert_eq!(Dead::decode(&dead.encode()).unwrap(), dead);
            assert_eq!(Dead::end_of(&dead.encode()), 9);
        }
        let change = Change { is_delete: true, is_new: false, key: b"k" };
        assert_eq!(Change::decode(&change.encode()).unwrap(), change);
        assert_eq!(of_number(&number(-5)).unwrap(), -5);
        assert!(Head::decode(&[1, 0, 1, 1, 0, 2]).is_err() && Change::decode(&[]).is_err());
    }

    /// Records with some bytes changed or cut, and bytes that are none.
    #[test]
    fn whatever_stands_there_decodes_or_is_refused() {
        let mut rng = ramekin_base::Rng::new(3);
        for _ in 0..50_000 {
            let value: Vec<u8> = (0..rng.below(20)).map(|_| rng.below(256) as u8).collect();
            let create = rng.below(1 << 40) as i64;
            let is = Version { create, number: 1, version: 3, lease: 9, value: Value::of(&value) };
            let mut bytes = match rng.below(4) {
                0 => Head { revision: 5, is }.encode(),
                1 => Dead { end: rng.below(1 << 50) as i64, is }.encode(),
                2 => crate::keys::version(&value, rng.below(1 << 50) as i64),
                _ => value.clone(),
            };
            for _ in 0..rng.below(3) {
                if let Some(at) = bytes.len().checked_sub(1 + rng.below(8) as usize) {
                    bytes[at] = rng.below(256) as u8;
                }
            }
            bytes.truncate(rng.below(40) as usize);
            crate::decode_anything(&bytes);
        }
    }
}
