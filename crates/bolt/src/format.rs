//! Pages as they stand in a file; all numbers little end first.
//!
//! ```text
//!   page      id 8 │ flags 2 │ count 2 │ overflow 4: whole pages that belong to it │ elements, 16 bytes each │ keys and values
//!   leaf      flags 4: 1 is a bucket │ place of the key, from here, 4 │ bytes of the key 4 │ bytes of the value 4
//!   branch    place of the key, from here, 4 │ bytes of the key 4 │ page 8
//!   bucket    root page 8; 0: a leaf follows inline │ sequence 8
//!   meta      magic 4 │ version 4 │ page size 4 │ flags 4 │ root bucket 16 │ free list 8 │ high water 8 │ txid 8 │ FNV-1a of all this 8
//! ```

use ramekin_base::{Error, Result};

/// Bytes of a page of a file that is written here. One that is read may have others.
pub const PAGE: usize = 4096;
/// Bytes of the two pages with which a file begins.
pub const METAS_BYTES: usize = 2 * PAGE;
/// Bytes of a key at most.
pub const KEY_MAX: usize = 32_768;
/// Bytes of a value at most.
pub(crate) const VALUE_MAX: u64 = (1 << 31) - 2;

/// Of a page's head, and of each element.
pub(crate) const HEAD: usize = 16;
pub(crate) const ELEMENT: usize = 16;
/// What a bucket's record has before an inline page.
pub(crate) const BUCKET: usize = 16;

pub(crate) const BRANCH: u16 = 1;
pub(crate) const LEAF: u16 = 2;
const META: u16 = 4;
pub(crate) const FREE_LIST: u16 = 16;
/// Of a leaf's element: its value is a bucket.
pub(crate) const IS_BUCKET: u32 = 1;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const META_BYTES: usize = 64;
/// What the checksum covers.
const SUMMED: usize = 56;
const PAGE_SIZES: std::ops::RangeInclusive<u64> = 1024..=65_536;

/// The head of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: u64,
    pub(crate) flags: u16,
    pub(crate) count: u16,
    pub(crate) overflow: u32,
}

impl Head {
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        out[..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..10].copy_from_slice(&self.flags.to_le_bytes());
        out[10..12].copy_from_slice(&self.count.to_le_bytes());
        out[12..].copy_from_slice(&self.overflow.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; HEAD]) -> Self {
        let [a, b, c, d, e, f, g, h, flags @ .., i, j, k, l, m, n] = *bytes;
        Self {
            id: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            flags: u16::from_le_bytes(flags),
            count: u16::from_le_bytes([i, j]),
            overflow: u32::from_le_bytes([k, l, m, n]),
        }
    }
}

/// Four numbers of four bytes, as an element has them.
pub(crate) fn words(bytes: &[u8; ELEMENT]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

pub(crate) fn element(words: [u32; 4]) -> [u8; ELEMENT] {
    let mut out = [0; ELEMENT];
    for (word, bytes) in words.iter().zip(out.as_chunks_mut::<4>().0) {
        *bytes = word.to_le_bytes();
    }
    out
}

/// Two words as one number.
pub(crate) fn long(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// What a meta page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) page: u64,
    /// The page of the root bucket.
    pub(crate) root: u64,
    pub(crate) free_list: u64,
    /// Pages of the file.
    pub(crate) high_water: u64,
    pub(crate) txid: u64,
}

impl Meta {
    /// The whole page of a file that is written.
    pub(crate) fn page_of(&self, id: u64) -> [u8; PAGE] {
        let mut out = [0; PAGE];
        out[..HEAD].copy_from_slice(&Head { id, flags: META, count: 0, overflow: 0 }.encode());
        let meta = &mut out[HEAD..HEAD + META_BYTES];
        meta[..16].copy_from_slice(&element([MAGIC, VERSION, self.page as u32, 0]));
        let longs = [self.root, 0, self.free_list, self.high_water, self.txid];
        for (long, bytes) in longs.iter().zip(meta[16..].as_chunks_mut::<8>().0) {
            *bytes = long.to_le_bytes();
        }
        let sum = fnv1a(&meta[..SUMMED]);
        meta[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// What stands at the start of a page; `None`: no meta does, or a damaged one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let meta = bytes.get(HEAD..HEAD + META_BYTES)?;
        let [magic, version, page, _] = words(meta.first_chunk()?);
        let sum = u64::from_le_bytes(*meta.last_chunk()?);
        let mut longs = [0; 5];
        for (long, bytes) in longs.iter_mut().zip(meta.get(16..SUMMED)?.as_chunks::<8>().0) {
            *long = u64::from_le_bytes(*bytes);
        }
        let [root, _, free_list, high_water, txid] = longs;
        let page = u64::from(page);
        let is_sound = (magic, version) == (MAGIC, VERSION) && sum == fnv1a(&meta[..SUMMED]);
        let is_sound = is_sound && PAGE_SIZES.contains(&page) && page.is_power_of_two() && root < high_water;
        is_sound.then_some(Self { page, root, free_list, high_water, txid })
    }
}

/// Sizes that a page may have.
pub(crate) fn page_sizes() -> impl Iterator<Item = u64> {
    PAGE_SIZES.filter(|size| size.is_power_of_two())
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

pub(crate) fn broken(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("the database file is damaged: {what}; take another copy of it"))
}

/// Fails for a key that no file holds.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        1..=KEY_MAX => Ok(()),
        len => Err(Error::too_large(format!("a key of {len} bytes does not fit into a bbolt file: 1 to {KEY_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_metas_come_back() {
        let head = Head { id: 1 << 40, flags: LEAF, count: 7, overflow: 9 };
        assert_eq!(Head::decode(&head.encode()), head);
        let meta = Meta { page: 4096, root: 5, free_list: 2, high_water: 6, txid: 1 };
        let mut page = meta.page_of(1);
        assert_eq!(Meta::decode(&page), Some(meta));
        page[HEAD + 20] ^= 1;
        assert_eq!(Meta::decode(&page), None);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
