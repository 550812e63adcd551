//! Numbers of as few bits as the largest needs.

/// Numbers of `bits` bits each, one after another, little end first; 8 zero bytes follow the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    pub bits: u32,
}

/// Zero bytes after the last packed number, so that each can be read as one word.
pub const PACKED_TAIL: usize = 8;

impl Packed {
    /// Wide enough for every number below `count`.
    pub fn for_count(count: usize) -> Self {
        Self { bits: (usize::BITS - count.saturating_sub(1).leading_zeros()).max(1) }
    }

    pub fn bytes(&self, count: usize) -> u64 {
        (count as u64 * u64::from(self.bits)).div_ceil(8) + PACKED_TAIL as u64
    }

    /// The bytes that hold the `count` numbers from `first` on, with the tail that reading needs.
    pub fn range(&self, first: u32, count: usize) -> std::ops::Range<usize> {
        let bit = u64::from(first) * u64::from(self.bits);
        let end = bit + count as u64 * u64::from(self.bits);
        (bit / 8) as usize..end.div_ceil(8) as usize + PACKED_TAIL
    }

    /// The number at `index`, from bytes that begin at byte `from` of the section.
    #[inline]
    pub fn get(&self, bytes: &[u8], from: usize, index: u32) -> u32 {
        let bit = u64::from(index) * u64::from(self.bits);
        let at = (bit / 8) as usize - from;
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        ((u64::from_le_bytes(word) >> (bit % 8)) & ((1u64 << self.bits) - 1)) as u32
    }
}

/// Packs numbers one after another.
pub struct Packer {
    bits: u32,
    word: u64,
    filled: u32,
}

impl Packer {
    pub fn new(packed: Packed) -> Self {
        Self { bits: packed.bits, word: 0, filled: 0 }
    }

    pub fn push(&mut self, number: u32, out: &mut Vec<u8>) {
        self.word |= u64::from(number) << self.filled;
        self.filled += self.bits;
        while self.filled >= 8 {
            out.push(self.word as u8);
            self.word >>= 8;
            self.filled -= 8;
        }
    }

    pub fn finish(self, out: &mut Vec<u8>) {
        if self.filled > 0 {
            out.push(self.word as u8);
        }
        out.extend_from_slice(&[0; PACKED_TAIL]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn packed_numbers_come_back() {
        let mut rng = Rng::new(1);
        for count in [1usize, 2, 3, 100, 1000, 1 << 20, u32::MAX as usize] {
            let packed = Packed::for_count(count);
            let numbers: Vec<u32> = (0..777).map(|_| rng.below(count as u64) as u32).collect();
            let (mut bytes, mut packer) = (Vec::new(), Packer::new(packed));
            for number in &numbers {
                packer.push(*number, &mut bytes);
            }
            packer.finish(&mut bytes);
            assert_eq!(bytes.len() as u64, packed.bytes(777));
            for (index, number) in numbers.iter().enumerate() {
                assert_eq!(packed.get(&bytes, 0, index as u32), *number);
                let range = packed.range(index as u32, 1);
                assert_eq!(packed.get(&bytes[range.clone()], range.start, index as u32), *number);
            }
        }
    }
}
