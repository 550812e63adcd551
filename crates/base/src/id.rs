//! A point's id: an unsigned integer or a UUID.
//!
//! Integers sort before UUIDs, each ascending; scroll and the sorted tables of a segment rely on it.

use crate::{Error, Result};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointId {
    Num(u64),
    Uuid(u128),
}

impl PointId {
    /// Reads an id as it stands in a path: digits, or a UUID in any of its usual forms.
    pub fn parse(text: &str) -> Result<Self> {
        if let Ok(number) = text.parse::<u64>() {
            return Ok(Self::Num(number));
        }
        uuid::Uuid::parse_str(text).map(|uuid| Self::Uuid(uuid.as_u128())).map_err(|_| {
            Error::malformed(format!(
                "value {text} is not a valid point ID, valid values are either an unsigned integer or a UUID"
            ))
        })
    }

    /// The id that follows in order, but for the last of all.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Num(number) => Some(number.checked_add(1).map_or(Self::Uuid(0), Self::Num)),
            Self::Uuid(uuid) => uuid.checked_add(1).map(Self::Uuid),
        }
    }

    /// 17 bytes that sort as the ids do: a tag (0 number, 1 UUID), then the value, big end first.
    pub fn to_key(self) -> [u8; 17] {
        let mut key = [0; 17];
        match self {
            Self::Num(number) => key[9..].copy_from_slice(&number.to_be_bytes()),
            Self::Uuid(uuid) => {
                key[0] = 1;
                key[1..].copy_from_slice(&uuid.to_be_bytes());
            }
        }
        key
    }

    /// The id of a key made by [`PointId::to_key`]; `None` if the bytes are not such a key.
    pub fn from_key(key: &[u8; 17]) -> Option<Self> {
        let value = u128::from_be_bytes(key[1..].try_into().ok()?);
        match key[0] {
            0 => u64::try_from(value).ok().map(Self::Num),
            1 => Some(Self::Uuid(value)),
            _ => None,
        }
    }

    /// A well-mixed 64-bit hash, the same on every machine (filters on disk rely on it).
    pub fn hash64(self) -> u64 {
        let (a, b) = match self {
            Self::Num(number) => (number, 0x9E37_79B9_7F4A_7C15),
            Self::Uuid(uuid) => (uuid as u64, (uuid >> 64) as u64 ^ 0xD1B5_4A32_D192_ED03),
        };
        crate::rng::mix(crate::rng::mix(a).wrapping_add(b))
    }
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Num(number) => write!(f, "{number}"),
            Self::Uuid(uuid) => write!(f, "{}", uuid::Uuid::from_u128(*uuid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_ids_and_come_back() {
        let mut ids =
            [PointId::Uuid(7), PointId::Num(300), PointId::Num(2), PointId::Uuid(u128::MAX), PointId::Num(u64::MAX)];
        ids.sort();
        let keys: Vec<_> = ids.iter().map(|id| id.to_key()).collect();
        assert!(keys.is_sorted());
        for (id, key) in ids.iter().zip(&keys) {
            assert_eq!(PointId::from_key(key), Some(*id));
        }
        assert_eq!(PointId::from_key(&[2; 17]), None);
    }

    #[test]
    fn text_forms() {
        assert_eq!(PointId::parse("42").unwrap(), PointId::Num(42));
        let uuid = PointId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap();
        assert_eq!(uuid.to_string(), "550e8400-e29b-41d4-a716-446655440000");
        assert!(PointId::parse("-1").is_err());
    }
}
