//! Which of 64 codes are wanted.
//!
//! ```text
//!   ranges of codes ─► range   one that is long or alone           code - start < length
//!                  └─► table   those that lie within 32 codes      bit (code - start) of 32
//!
//!   block ─► eight codes take as many bytes as one takes bits: these are spread over words, shifted, masked, and each
//!            range and table is asked of all eight
//! ```

use super::{BLOCK, block_bytes, get};
use ramekin_base::Few;
use std::ops::Range;

/// Pieces at most: those that lie apart cost as much as the first each.
pub(crate) const PIECES_MAX: usize = 64;

/// Codes that are asked for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Each costs as much.
    pieces: Few<Piece, PIECES_MAX>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// The first code, and how many follow it.
    Range(u32, u32),
    /// The first code, and a bit for it and for each of those behind it.
    Table(u32, u32),
}

impl Default for Piece {
    fn default() -> Self {
        Self::Table(0, 0)
    }
}

impl Piece {
    #[inline(always)]
    fn holds(self, code: u32) -> bool {
        match self {
            Self::Range(start, more) => code.wrapping_sub(start) <= more,
            Self::Table(start, bits) => bits.checked_shr(code.wrapping_sub(start)).unwrap_or(0) & 1 == 1,
        }
    }
}

impl Wanted {
    /// `ranges` are ascending and apart; empty ones do not count. `None`: they are too many to be looked for at once.
    pub fn new(ranges: &[Range<u32>]) -> Option<Self> {
        let mut pieces = Few::new();
        let mut left = ranges;
        while let [first, rest @ ..] = left {
            if first.is_empty() {
                left = rest;
                continue;
            }
            let near = left.iter().take_while(|range| range.end - first.start <= u32::BITS).count();
            let (piece, together) = match near {
                0 | 1 => (Piece::Range(first.start, first.end - 1 - first.start), 1),
                _ => {
                    let codes = left[..near].iter().flat_map(Range::clone);
                    (Piece::Table(first.start, codes.fold(0, |bits, code| bits | 1 << (code - first.start))), near)
                }
            };
            pieces.push(piece).then_some(())?;
            left = &left[together..];
        }
        Some(Self { pieces })
    }

    /// No code is wanted.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    #[inline(always)]
    pub(super) fn holds(&self, code: u32) -> bool {
        self.pieces.iter().fold(false, |any, piece| any | piece.holds(code))
    }

    /// Which codes of a block are wanted: a bit each. Of a block that is not there, none.
    #[inline(always)]
    pub(super) fn of_block<const FAST: bool>(&self, blocks: &[u8], number: usize, width: usize) -> u64 {
        if width == 0 {
            return if self.holds(0) { u64::MAX } else { 0 };
        }
        let from = number * block_bytes(width);
        let Some(block) = blocks.get(from..).filter(|block| block.len() >= block_bytes(width)) else { return 0 };
        #[cfg(target_arch = "x86_64")]
        if FAST && width <= avx2::WIDTH_MAX {
            // SAFETY: who says so has seen that the processor has AVX2; the block is whole.
            return unsafe { avx2::of_block(&self.pieces, block, width) };
        }
        let codes: [u32; BLOCK] = std::array::from_fn(|at| get(block, at, width));
        let mut any = [false; BLOCK];
        for piece in &*self.pieces {
            any.iter_mut().zip(codes).for_each(|(any, code)| *any |= piece.holds(code));
        }
        any.into_iter().enumerate().fold(0, |found, (at, any)| found | u64::from(any) << at)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{BLOCK, Piece, block_bytes};
    use std::arch::x86_64::*;

    /// Four bytes hold a code of so many bits wherever it begins.
    pub(super) const WIDTH_MAX: usize = 25;

    /// Codes that are looked at together, and bytes that are read for each half of eight.
    const EIGHT: usize = 8;
    const HALF: usize = 16;

    /// How the bytes of eight codes are spread over eight words, and by how much each is shifted then.
    struct Spread {
        bytes: [u8; 4 * EIGHT],
        shifts: [u32; EIGHT],
    }

    /// By width.
    static SPREADS: [Spread; WIDTH_MAX + 1] = {
        let mut spreads = [const { Spread { bytes: [0; 4 * EIGHT], shifts: [0; EIGHT] } }; WIDTH_MAX + 1];
        let mut width = 0;
        while width <= WIDTH_MAX {
            let mut at = 0;
            while at < EIGHT {
                // The second half is read from the byte in which its first code begins.
                let bit = if at < 4 { at * width } else { at * width - width / 2 * 8 };
                spreads[width].shifts[at] = (bit % 8) as u32;
                let mut byte = 0;
                while byte < 4 {
                    spreads[width].bytes[at * 4 + byte] = (bit / 8 + byte) as u8;
                    byte += 1;
                }
                at += 1;
            }
            width += 1;
        }
        spreads
    };

    /// Which codes of the first block are wanted.
    ///
    /// # Safety
    ///
    /// The processor has AVX2; `block` has a whole one, of at most [`WIDTH_MAX`] bits a code.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn of_block(pieces: &[Piece], block: &[u8], width: usize) -> u64 {
        let mut padded = [0; WIDTH_MAX * BLOCK / 8 + HALF];
        let bytes = block_bytes(width);
        // The last half of eight is read as all others, and may end before.
        let from = if block.len() >= bytes + HALF {
            block.as_ptr()
        } else {
            padded[..bytes].copy_from_slice(&block[..bytes]);
            padded.as_ptr()
        };
        let Spread { bytes, shifts } = &SPREADS[width];
        // SAFETY: each load is of bytes that the block or its copy has, as is shown above.
        unsafe {
            let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
            let shifts = _mm256_loadu_si256(shifts.as_ptr().cast());
            let mask = _mm256_set1_epi32(((1u64 << width) - 1) as i32);
            let mut found = 0;
            for four in 0..2 {
                let eights: [__m256i; 4] = std::array::from_fn(|at| {
                    let low = from.add((four * 4 + at) * width);
                    let high = _mm_loadu_si128(low.add(width / 2).cast());
                    let both = _mm256_set_m128i(high, _mm_loadu_si128(low.cast()));
                    _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(both, bytes), shifts), mask)
                });
                for (at, any) in asked(pieces, eights).into_iter().enumerate() {
                    let bits = _mm256_movemask_ps(_mm256_castsi256_ps(any)) as u32;
                    found |= u64::from(bits) << ((four * 4 + at) * EIGHT);
                }
            }
            found
        }
    }

    /// Of each code its highest bit, where it is wanted.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn asked(pieces: &[Piece], eights: [__m256i; 4]) -> [__m256i; 4] {
        let mut any = [_mm256_setzero_si256(); 4];
        for piece in pieces {
            match *piece {
                Piece::Range(start, more) => {
                    let (start, more) = (_mm256_set1_epi32(start as i32), _mm256_set1_epi32(more as i32));
                    for (any, codes) in any.iter_mut().zip(eights) {
                        let behind = _mm256_sub_epi32(codes, start);
                        let is_in = _mm256_cmpeq_epi32(_mm256_min_epu32(behind, more), behind);
                        *any = _mm256_or_si256(*any, is_in);
                    }
                }
                Piece::Table(start, bits) => {
                    let (start, bits) = (_mm256_set1_epi32(start as i32), _mm256_set1_epi32(bits as i32));
                    for (any, codes) in any.iter_mut().zip(eights) {
                        let bit = _mm256_srlv_epi32(bits, _mm256_sub_epi32(codes, start));
                        *any = _mm256_or_si256(*any, _mm256_slli_epi32::<31>(bit));
                    }
                }
            }
        }
        any
    }
}
