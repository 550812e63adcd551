//! Codes of 1 to 8 bits a dimension (RaBitQ, SIGMOD 2024; extended RaBitQ, arXiv 2409.09913).
//!
//! A dimension holds a level `u` of `0 .. 2^b`, whose real value is `u + 0.5 - 2^(b-1)`: for 1 bit -0.5 and +0.5, for
//! 3 bits -3.5 to +3.5. The grid is laid over the rotated residual at the scale that brings the code closest to the
//! residual's direction; the scale itself is forgotten, since the factor `f = |r|^2 / <r, code>` makes `f * <q, code>`
//! an unbiased estimate of `<q, r>`.
//!
//! ```text
//!   width 1   sign bits in order: bit d % 8 of byte d / 8
//!   others    planes one after another, highest bits first: 2 = 2, 3 = 2+1, 4 = 4, 5 = 4+1, 6 = 4+2, 7 = 4+2+1, 8 = 4+4
//!   a plane of p bits has n = ceil(dim * p / 8) bytes; byte j holds the dims j, n + j, 2n + j ... from its low bits up
//!
//!   plane of 4, dim 7, n = 4:    byte 0  | d4 d0 |   byte 1  | d5 d1 |   byte 2  | d6 d2 |   byte 3  |  - d3 |
//! ```
//!
//! So a kernel shifts and masks whole registers of bytes, and each shift meets a straight run of the query. A
//! *record* is a code and its two factors: `code, f: u16 LE, k: u16 LE`.

use crate::kernels::kernels;
use ramekin_base::{Error, Result};

/// Bits a dimension, 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Width(u8);

impl Width {
    pub const ONE: Self = Self(1);
    pub const THREE: Self = Self(3);
    pub const SIX: Self = Self(6);

    pub fn new(bits: u32) -> Result<Self> {
        match bits {
            1..=8 => Ok(Self(bits as u8)),
            _ => Err(Error::invalid(format!("codes have 1 to 8 bits a dimension, not {bits}"))),
        }
    }

    pub fn bits(self) -> u32 {
        u32::from(self.0)
    }

    /// What is added to a level to give its value: `0.5 - 2^(b-1)`.
    pub fn offset(self) -> f32 {
        0.5 - (1u32 << (self.0 - 1)) as f32
    }

    /// Bits of each plane, highest first. Width 1 is no plane: its bits lie in order.
    pub(crate) fn planes(self) -> &'static [u32] {
        match self.0 {
            1 => &[1],
            2 => &[2],
            3 => &[2, 1],
            4 => &[4],
            5 => &[4, 1],
            6 => &[4, 2],
            7 => &[4, 2, 1],
            _ => &[4, 4],
        }
    }
}

/// Bytes of a plane.
#[inline]
pub(crate) fn plane_bytes(bits: u32, dim: usize) -> usize {
    (dim * bits as usize).div_ceil(8)
}

/// Bytes of one packed code.
pub fn code_bytes(width: Width, dim: usize) -> usize {
    let plane = |bits| plane_bytes(bits, dim);
    match width.0 {
        3 => plane(2) + plane(1),
        5 => plane(4) + plane(1),
        6 => plane(4) + plane(2),
        7 => plane(4) + plane(2) + plane(1),
        8 => dim.div_ceil(2) * 2,
        bits => plane(u32::from(bits)),
    }
}

/// Bytes of one record: a packed code, then `f` and `k` as u16.
pub fn record_bytes(width: Width, dim: usize) -> usize {
    code_bytes(width, dim) + 4
}

/// What [`Encoder::encode`] found besides the code.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Encoded {
    /// `|r|^2 / <r, code>`; 0 for a residual of no length.
    pub f: f32,
    /// `<Pc, code>`, exact.
    pub along: f32,
    /// `|r|^2`.
    pub norm_squared: f32,
    /// The cosine between residual and code: the error of an estimate is about
    /// `|r| |q - c| sqrt(1 - cosine^2) / (cosine sqrt(dim))`. 0 for a residual of no length.
    pub cosine: f32,
}

/// Turns rotated residuals to codes.
#[derive(Clone, Debug)]
pub struct Encoder {
    dim: usize,
    levels: Vec<u8>,
}

impl Encoder {
    pub fn new(dim: usize) -> Self {
        Self { dim, levels: vec![0; dim] }
    }

    /// Encodes `r`, the rotated residual, into `code` ([`code_bytes`] long). `centre` is the rotated centroid.
    pub fn encode(&mut self, width: Width, r: &[f32], centre: &[f32], code: &mut [u8]) -> Encoded {
        assert!(r.len() == self.dim && centre.len() == self.dim, "residual of another dimension");
        assert_eq!(code.len(), code_bytes(width, self.dim), "code of another size");
        let norm_squared = crate::dot(r, r);
        let scale = best_scale(width, r, norm_squared);
        // SAFETY: all have the encoder's dimension, and the code its size.
        let [along_r, length, along] = unsafe {
            let sums = (kernels().quantise)(width, r, centre, scale, &mut self.levels);
            (kernels().pack)(width, &self.levels, code);
            sums
        };
        let f = norm_squared / along_r;
        if !f.is_finite() {
            return Encoded { along, ..Encoded::default() };
        }
        Encoded { f, along, norm_squared, cosine: (along_r / (norm_squared * length).sqrt()).min(1.0) }
    }
}

/// Steps of a uniform grid of 2^b levels that fit a normal distribution of deviation 1 best, for b from 1 (Max 1960).
const NORMAL_STEPS: [f32; 8] = [1.596, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308];

/// The scale among a few whose code points closest along `r`. Few levels are best laid as for a normal distribution,
/// more or less; many are best laid so that the largest dimension just reaches the last level. (Within 2 % of the error
/// of the best scale of all, for 3 and 6 bits from 100 dimensions up.)
fn best_scale(width: Width, r: &[f32], norm_squared: f32) -> f32 {
    let deviation = (norm_squared / r.len() as f32).sqrt();
    let normal = 1.0 / (deviation * NORMAL_STEPS[width.bits() as usize - 1]);
    if width == Width::ONE || !normal.is_finite() {
        return 1.0;
    }
    let scales = if width.bits() <= 3 {
        [0.80, 0.88, 0.96, 1.04, 1.14, 1.26].map(|part| part * normal)
    } else {
        // SAFETY: any residual will do.
        let [max, ..] = unsafe { (kernels().query_sizes)(r) };
        let full = -width.offset() / max;
        [0.96 * full, 0.98 * full, full, 1.06 * full, 1.15 * full, normal]
    };
    // SAFETY: any residual will do.
    let found = unsafe { (kernels().trials)(width, r, scales) };
    let mut best = (normal, f32::MIN);
    for ((along, length), scale) in found.into_iter().zip(scales) {
        let cosine = along / length.sqrt();
        if cosine > best.1 {
            best = (scale, cosine);
        }
    }
    best.0
}

/// Packs levels, one byte a dimension, to a code.
#[inline(always)]
pub(crate) fn pack(width: Width, levels: &[u8], code: &mut [u8]) {
    code.fill(0);
    if width == Width::ONE {
        for (d, level) in levels.iter().enumerate() {
            code[d / 8] |= (level & 1) << (d % 8);
        }
        return;
    }
    let (mut at, mut left) = (0, width.bits());
    for bits in width.planes() {
        left -= bits;
        let bytes = plane_bytes(*bits, levels.len());
        for (slice, levels) in levels.chunks(bytes).enumerate() {
            for (byte, level) in code[at..at + bytes].iter_mut().zip(levels) {
                *byte |= ((level >> left) & ((1 << bits) - 1)) << (slice as u32 * bits);
            }
        }
        at += bytes;
    }
}

/// The level of each dimension of a code.
pub(crate) fn unpack(width: Width, code: &[u8], levels: &mut [u8]) {
    levels.fill(0);
    if width == Width::ONE {
        for (d, level) in levels.iter_mut().enumerate() {
            *level = (code[d / 8] >> (d % 8)) & 1;
        }
        return;
    }
    let (mut at, mut left) = (0, width.bits());
    for bits in width.planes() {
        left -= bits;
        let bytes = plane_bytes(*bits, levels.len());
        for (slice, levels) in levels.chunks_mut(bytes).enumerate() {
            for (byte, level) in code[at..at + bytes].iter().zip(levels) {
                *level |= ((byte >> (slice as u32 * bits)) & ((1 << bits) - 1)) << left;
            }
        }
        at += bytes;
    }
}

/// The real value of each dimension of a code.
pub fn decode(width: Width, code: &[u8], out: &mut [f32]) {
    assert_eq!(code.len(), code_bytes(width, out.len()), "code of another size");
    let mut levels = vec![0; out.len()];
    unpack(width, code, &mut levels);
    for (level, out) in levels.iter().zip(out) {
        *out = f32::from(*level) + width.offset();
    }
}

/// `<v, code>` with a vector in full precision: slow and exact.
pub fn dot_f32(width: Width, code: &[u8], v: &[f32]) -> f32 {
    let mut values = vec![0.0; v.len()];
    decode(width, code, &mut values);
    crate::dot(&values, v)
}

/// How the two factors of the vectors of one cluster lie in u16: `f = f_min + f_step * u`, `k` alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    pub f_min: f32,
    pub f_step: f32,
    pub k_min: f32,
    pub k_step: f32,
}

impl Linear {
    /// The line through all given (finite) values.
    pub fn fit(f: &[f32], k: &[f32]) -> Self {
        let line = |values: &[f32]| {
            let min = values.iter().copied().fold(f32::INFINITY, f32::min);
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            if min <= max { (min, (max - min) / 65_535.0) } else { (0.0, 0.0) }
        };
        let ((f_min, f_step), (k_min, k_step)) = (line(f), line(k));
        Self { f_min, f_step, k_min, k_step }
    }

    /// The nearest steps.
    pub fn quantise(&self, f: f32, k: f32) -> (u16, u16) {
        let step = |value: f32, min: f32, step: f32| if step > 0.0 { ((value - min) / step).round() as u16 } else { 0 };
        (step(f, self.f_min, self.f_step), step(k, self.k_min, self.k_step))
    }

    #[inline]
    pub fn f(&self, step: u16) -> f32 {
        f32::from(step).mul_add(self.f_step, self.f_min)
    }

    #[inline]
    pub fn k(&self, step: u16) -> f32 {
        f32::from(step).mul_add(self.k_step, self.k_min)
    }
}
