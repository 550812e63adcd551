//! The fast scan, four groups of dimensions and 32 codes a register.
//!
//! ```text
//!   64 bytes of a block   | group g | g + 1 | g + 2 | g + 3 |     low nibbles: codes 0..16, high: codes 16..32
//!   64 bytes of tables    | group g | g + 1 | g + 2 | g + 3 |
//!   two shuffles           64 entries each, at most 31: eight rounds add up in bytes, then widen to u16
//!   at the end             add the four lanes: 32 sums in order, as u16
//!   u16 -> f32             put 0x4B00 over it: that is 2^23 + u, in one instruction; it leaves the 32 in two registers
//!                          as 0..4, 8..12, 16..20, 24..28 and 4..8, 12..16, 20..24, 28..32
//! ```

use crate::kernels::avx2::fetch;
use crate::query::QueryCodes;
use crate::scan::{BLOCK, Probe, Survivors, block_bytes, lane_mask};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of groups whose sums stay within u16: 1024 * 31 < 65,536.
const STRETCH: usize = 1024 * 16;
/// The upper half of 2^23 as f32, and 2^23.
const OVER: i16 = 0x4B00;
const OFFSET: f32 = 8_388_608.0;

/// A block's bytes of codes and where its query's tables are. What follows is always inlined, so that registers stay
/// registers: its instructions are those of the caller.
#[derive(Clone, Copy)]
struct Codes {
    tables: *const u8,
    /// Bytes of the codes of a block.
    bytes: usize,
}

impl Codes {
    fn of(query: &QueryCodes) -> Self {
        Self { tables: query.tables.as_ptr(), bytes: query.dim().div_ceil(4) * 16 }
    }

    /// The sums of the 32 codes as floats, in the order of the two registers.
    ///
    /// # Safety
    /// `block` is a block of the query's dimension, and the caller has the instructions.
    #[inline(always)]
    unsafe fn sums(self, block: *const u8) -> [__m512; 2] {
        // SAFETY: reads past the last group stay inside the block, since 128 bytes of factors follow, and meet tables
        // of zeros, which fill up the last four groups.
        unsafe {
            let offset = _mm512_set1_ps(OFFSET);
            let first = widen(self.words(block, 0, self.bytes.min(STRETCH)));
            let mut total = [_mm512_sub_ps(first[0], offset), _mm512_sub_ps(first[1], offset)];
            let mut at = STRETCH;
            while at < self.bytes {
                let more = widen(self.words(block, at, self.bytes.min(at + STRETCH)));
                total[0] = _mm512_add_ps(total[0], _mm512_sub_ps(more[0], offset));
                total[1] = _mm512_add_ps(total[1], _mm512_sub_ps(more[1], offset));
                at += STRETCH;
            }
            total
        }
    }

    /// The sums over a stretch of bytes of the 32 codes as words, in order.
    ///
    /// # Safety
    /// As for [`Codes::sums`]; `to` is at most a stretch after `from`.
    #[inline(always)]
    unsafe fn words(self, block: *const u8, from: usize, to: usize) -> __m512i {
        // SAFETY: passed on.
        unsafe {
            let even = _mm512_set1_epi16(0xFF);
            let [low, high] = self.bytes(block, from, to.min(from + 512));
            let (mut low_even, mut low_odd) = (_mm512_and_si512(low, even), _mm512_srli_epi16::<8>(low));
            let (mut high_even, mut high_odd) = (_mm512_and_si512(high, even), _mm512_srli_epi16::<8>(high));
            let mut at = from + 512;
            while at < to {
                let [low, high] = self.bytes(block, at, to.min(at + 512));
                low_even = _mm512_add_epi16(low_even, _mm512_and_si512(low, even));
                low_odd = _mm512_add_epi16(low_odd, _mm512_srli_epi16::<8>(low));
                high_even = _mm512_add_epi16(high_even, _mm512_and_si512(high, even));
                high_odd = _mm512_add_epi16(high_odd, _mm512_srli_epi16::<8>(high));
                at += 512;
            }
            // Each of a, b, c, d holds 8 codes in order, once for each of its four lanes.
            let (a, b) = (_mm512_unpacklo_epi16(low_even, low_odd), _mm512_unpackhi_epi16(low_even, low_odd));
            let (c, d) = (_mm512_unpacklo_epi16(high_even, high_odd), _mm512_unpackhi_epi16(high_even, high_odd));
            fold(fold(a, b), fold(c, d))
        }
    }

    /// Up to eight rounds: entries of codes 0..16 and of codes 16..32, of bytes `from..to`, added up in bytes.
    ///
    /// # Safety
    /// As for [`Codes::sums`].
    #[inline(always)]
    unsafe fn bytes(self, block: *const u8, from: usize, to: usize) -> [__m512i; 2] {
        // SAFETY: what starts before `to` may be read.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            let (mut low, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            let mut at = from;
            while at < to {
                let codes = _mm512_loadu_si512(block.add(at).cast());
                let table = _mm512_loadu_si512(self.tables.add(at).cast());
                let low_index = _mm512_and_si512(codes, nibble);
                let high_index = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble);
                low = _mm512_add_epi8(low, _mm512_shuffle_epi8(table, low_index));
                high = _mm512_add_epi8(high, _mm512_shuffle_epi8(table, high_index));
                at += 64;
            }
            [low, high]
        }
    }
}

/// 32 words as floats, each with [`OFFSET`] added.
///
/// # Safety
/// The caller has the instructions.
#[inline(always)]
unsafe fn widen(words: __m512i) -> [__m512; 2] {
    // SAFETY: as said.
    unsafe {
        let over = _mm512_set1_epi16(OVER);
        let (low, high) = (_mm512_unpacklo_epi16(words, over), _mm512_unpackhi_epi16(words, over));
        [_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)]
    }
}

/// Adds lanes 0 to 1 and 2 to 3: those of `x` become the lower half, those of `y` the upper.
///
/// # Safety
/// The caller has the instructions.
#[inline(always)]
unsafe fn fold(x: __m512i, y: __m512i) -> __m512i {
    // SAFETY: as said.
    unsafe {
        _mm512_add_epi16(_mm512_shuffle_i64x2::<0b10_00_10_00>(x, y), _mm512_shuffle_i64x2::<0b11_01_11_01>(x, y))
    }
}

/// The 32 values of two registers in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn in_order(x: [__m512; 2]) -> [__m512; 2] {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    [_mm512_permutex2var_ps(x[0], low, x[1]), _mm512_permutex2var_ps(x[0], high, x[1])]
}

/// # Safety
/// `block` is a block of the query's dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn scan_sums(query: &QueryCodes, block: &[u8], out: &mut [u32; BLOCK]) {
    // SAFETY: passed on; `out` has 32 entries.
    unsafe {
        let sums = in_order(Codes::of(query).sums(block.as_ptr()));
        _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_cvtps_epi32(sums[0]));
        _mm512_storeu_si512(out.as_mut_ptr().add(16).cast(), _mm512_cvtps_epi32(sums[1]));
    }
}

/// A probe spread over registers.
#[derive(Clone, Copy)]
struct Spread {
    f_min: __m512,
    f_step: __m512,
    k_min: __m512,
    k_step: __m512,
    slack: __m512,
    threshold: __m512,
    table_step: __m512,
    table_base: __m512,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spread(query: &QueryCodes, probe: &Probe) -> Spread {
    let line = &probe.linear;
    Spread {
        // The offset of the widened words is taken off here: it costs half a step at most.
        f_min: _mm512_set1_ps(line.f_min - line.f_step * OFFSET),
        f_step: _mm512_set1_ps(line.f_step),
        k_min: _mm512_set1_ps((line.k_min + probe.base) - line.k_step * OFFSET),
        k_step: _mm512_set1_ps(line.k_step),
        slack: _mm512_set1_ps(probe.slack),
        threshold: _mm512_set1_ps(probe.threshold),
        table_step: _mm512_set1_ps(query.table_step),
        table_base: _mm512_set1_ps(query.table_base),
    }
}

/// The estimates of a block, in the order of the two registers, and the mask of those that pass, in the order of
/// codes.
///
/// # Safety
/// `block` is a block of the query's dimension, and the caller has the instructions.
#[inline(always)]
unsafe fn estimate(codes: Codes, block: *const u8, probe: &Spread) -> ([__m512; 2], u32) {
    // SAFETY: the factors lie behind the groups, 64 bytes of each.
    unsafe {
        let factors = block.add(codes.bytes);
        let f = widen(_mm512_loadu_si512(factors.cast()));
        let k = widen(_mm512_loadu_si512(factors.add(64).cast()));
        let sums = codes.sums(block);
        let (low, low_passed) = half(sums[0], f[0], k[0], probe);
        let (high, high_passed) = half(sums[1], f[1], k[1], probe);
        ([low, high], _pdep_u32(low_passed, 0x0F0F_0F0F) | _pdep_u32(high_passed, 0xF0F0_F0F0))
    }
}

/// # Safety
/// The caller has the instructions.
#[inline(always)]
unsafe fn half(sums: __m512, f: __m512, k: __m512, probe: &Spread) -> (__m512, u32) {
    // SAFETY: as said.
    unsafe {
        let f = _mm512_fmadd_ps(f, probe.f_step, probe.f_min);
        let k = _mm512_fmadd_ps(k, probe.k_step, probe.k_min);
        let dot = _mm512_fmadd_ps(sums, probe.table_step, probe.table_base);
        let estimate = _mm512_fmadd_ps(f, dot, k);
        let upper = _mm512_fmadd_ps(f, probe.slack, estimate);
        (estimate, u32::from(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(upper, probe.threshold)))
    }
}

/// # Safety
/// `block` is a block of the query's dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi2")]
pub(in super::super) unsafe fn scan_block(
    query: &QueryCodes,
    block: &[u8],
    probe: &Probe,
    out: &mut [f32; BLOCK],
) -> u32 {
    // SAFETY: passed on; `out` has 32 entries.
    unsafe {
        let (estimates, mask) = estimate(Codes::of(query), block.as_ptr(), &spread(query, probe));
        let estimates = in_order(estimates);
        _mm512_storeu_ps(out.as_mut_ptr(), estimates[0]);
        _mm512_storeu_ps(out.as_mut_ptr().add(16), estimates[1]);
        mask
    }
}

/// # Safety
/// `blocks` are whole blocks of the query's dimension, and `lanes` lie within them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi2")]
pub(in super::super) unsafe fn scan(
    query: &QueryCodes,
    blocks: &[u8],
    next: &[u8],
    lanes: Range<usize>,
    probe: &Probe,
    out: &mut Survivors,
) {
    let (codes, bytes) = (Codes::of(query), block_bytes(query.dim()));
    let spread = spread(query, probe);
    let (first, end) = (lanes.start / BLOCK, lanes.end.div_ceil(BLOCK));
    for at in first..end {
        // As many lines of what comes next as are used up here, so that fetching hides behind the work.
        if let Some(next) = next.get((at - first) * bytes..) {
            fetch(next.as_ptr(), next.len().min(bytes));
        }
        // SAFETY: block `at` lies within `blocks`.
        let (estimates, mut mask) = unsafe { estimate(codes, blocks.as_ptr().add(at * bytes), &spread) };
        if mask == 0 {
            continue;
        }
        if at == first || at + 1 == end {
            mask &= lane_mask(at, &lanes);
        }
        // SAFETY: `estimates` are those of the block's lanes.
        unsafe { keep(estimates, mask, at, out) };
    }
}

/// Appends the lanes of a mask.
///
/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt")]
unsafe fn keep(estimates: [__m512; 2], mask: u32, block: usize, out: &mut Survivors) {
    let order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    out.places.reserve(BLOCK);
    out.estimates.reserve(BLOCK);
    for (half, estimates) in in_order(estimates).into_iter().enumerate() {
        let mask = (mask >> (half * 16)) as u16;
        let places = _mm512_add_epi32(order, _mm512_set1_epi32((block * BLOCK + half * 16) as i32));
        // SAFETY: 16 more fit each; as many become part of the vectors as passed.
        unsafe {
            let len = out.places.len();
            let found = len + mask.count_ones() as usize;
            _mm512_storeu_si512(out.places.as_mut_ptr().add(len).cast(), _mm512_maskz_compress_epi32(mask, places));
            out.places.set_len(found);
            _mm512_storeu_ps(out.estimates.as_mut_ptr().add(len), _mm512_maskz_compress_ps(mask, estimates));
            out.estimates.set_len(found);
        }
    }
}
