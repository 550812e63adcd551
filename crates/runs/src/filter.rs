//! Which keys a file does not hold: a Bloom filter in lines of 64 bytes, so that a question touches one page.
//!
//! ```text
//!   hash of the key ─┬─ which line            lines │ 64 B │ 64 B │ ...       about 10 bits a key
//!                    └─ six bits in the line                                  says "perhaps" for 1 key in 70 that is not there
//! ```
//!
//! Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters (2007), the blocked kind.

use ramekin_base::Result;
use ramekin_memory::{Account, BookedVec, SharedReservation};

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
const BITS_A_KEY: usize = 10;
const PROBES: u32 = 6;

/// A hash of a key that no version of this program may change: filters on disk depend on it.
#[inline]
pub(crate) fn hash(key: &[u8]) -> u32 {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xd6e8_feb8_6659_fd93;
    let mut state = mix(A ^ key.len() as u64, B);
    let mut words = key.chunks_exact(8);
    for word in &mut words {
        let mut eight = [0; 8];
        eight.copy_from_slice(word);
        state = mix(state ^ u64::from_le_bytes(eight), A);
    }
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    (mix(state ^ u64::from_le_bytes(rest), B) >> 32) as u32
}

/// The two halves of the product, one over the other.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1);
    (product as u64 ^ (product >> 64) as u64) ^ a.rotate_left(32)
}

/// The line of a key in a filter of so many bytes.
#[inline]
pub(crate) fn line_of(hash: u32, bytes: u64) -> u64 {
    let lines = bytes / LINE as u64;
    ((u64::from(hash) * lines) >> 32) * LINE as u64
}

/// The bits of a key in its line: nine bits each of another mixture of the hash than the line is of.
#[inline]
fn bits(hash: u32) -> impl Iterator<Item = (usize, u8)> {
    let spread = u64::from(hash).wrapping_mul(0xa076_1d64_78bd_642f);
    let spread = spread ^ spread >> 29;
    (0..PROBES).map(move |probe| {
        let bit = (spread >> (64 - 9 * (probe + 1))) as usize & (LINE * 8 - 1);
        (bit / 8, 1 << (bit % 8))
    })
}

/// Whether the key may be in the file, by its line.
#[inline]
pub(crate) fn may_hold(line: &[u8], hash: u32) -> bool {
    line.len() == LINE && bits(hash).all(|(byte, bit)| line[byte] & bit != 0)
}

/// Hashes of the keys of a file that is being written, in pieces: a list that grows as one would be there twice meanwhile.
pub(crate) struct Hashes {
    account: Account,
    pieces: Vec<BookedVec<u32>>,
}

/// Hashes of one piece: the step in which memory is booked.
const PIECE: usize = 16 << 10;

impl Hashes {
    pub(crate) fn new(account: &Account) -> Self {
        Self { account: account.clone(), pieces: Vec::new() }
    }

    pub(crate) fn add(&mut self, key: &[u8]) -> Result<()> {
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            let mut piece = BookedVec::new(&SharedReservation::new(0, self.account.clone(), None));
            piece.reserve(PIECE)?;
            self.pieces.push(piece);
        }
        self.pieces.last_mut().map_or(Ok(()), |piece| piece.push(hash(key)))
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Hands out the filter of all keys in pieces, and begins anew.
    pub(crate) fn write(&mut self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let bytes = (self.len() * BITS_A_KEY).div_ceil(LINE * 8) * LINE;
        let _held = self.account.try_reserve(bytes as u64)?;
        let mut filter = vec![0; bytes];
        for hash in self.pieces.iter().flat_map(|piece| piece.iter()) {
            let line = line_of(*hash, bytes as u64) as usize;
            bits(*hash).for_each(|(byte, bit)| filter[line + byte] |= bit);
        }
        *self = Self::new(&self.account);
        each(&filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn no_key_is_missed_and_few_are_mistaken() {
        let budget = Budget::new(8 << 20);
        let mut hashes = Hashes::new(&budget.root());
        let key = |n: u32| [b"key-".as_slice(), &n.to_be_bytes()].concat();
        (0..50_000).for_each(|n| hashes.add(&key(n)).unwrap());
        let mut filter = Vec::new();
        let gather = &mut |piece: &[u8]| {
            filter.extend_from_slice(piece);
            Ok(())
        };
        hashes.write(gather).unwrap();
        let asks = |n: u32| {
            let hash = hash(&key(n));
            let line = line_of(hash, filter.len() as u64) as usize;
            may_hold(&filter[line..line + LINE], hash)
        };
        assert!((0..50_000).all(asks));
        let mistaken = (50_000..150_000).filter(|n| asks(*n)).count();
        assert!(mistaken < 2_000, "{mistaken} of 100,000");
        assert_eq!(filter.len(), 62_528, "10 bits a key");
    }

    /// Filters on disk depend on it.
    #[test]
    fn the_hash_stays_what_it_is() {
        assert_eq!([hash(b""), hash(b"a"), hash(b"a key of 23 bytes, yes!")], FIXED);
    }

    const FIXED: [u32; 3] = [1_582_560_638, 4_104_243_996, 3_066_131_053];
}
