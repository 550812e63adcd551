//! Distances between f32 vectors, and the score of a metric: larger is better, always.
//!
//! ```text
//!   Dot, Cosine   <q, x>        (Cosine: over normalised vectors)
//!   Euclid        -|q - x|      Manhattan   -sum |q_i - x_i|
//! ```

/// How two vectors are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Metric {
    Dot,
    /// The same as `Dot`, over vectors that were normalised when they came in.
    Cosine,
    Euclid,
    Manhattan,
}

/// The inner product. Both slices have the same length.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot of vectors of two lengths");
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The squared Euclidean distance.
#[inline]
pub fn l2_squared(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "distance of vectors of two lengths");
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The Manhattan distance.
#[inline]
pub fn l1(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "distance of vectors of two lengths");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}

/// The Euclidean length.
pub fn norm(a: &[f32]) -> f32 {
    dot(a, a).sqrt()
}

/// Scales `a` to length 1. False, and `a` unchanged, if it has no direction: zero, or not finite.
pub fn normalise(a: &mut [f32]) -> bool {
    // A sum of squares in f64 neither overflows nor vanishes for any finite f32.
    let length = a.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if !length.is_finite() || length == 0.0 {
        return false;
    }
    for x in a {
        *x = (f64::from(*x) / length) as f32;
    }
    true
}

/// Sum of absolute differences of bytes: the Manhattan distance of two vectors in the same 8-bit grid.
#[inline]
pub fn sad(a: &[u8], b: &[u8]) -> u32 {
    assert_eq!(a.len(), b.len(), "distance of codes of two lengths");
    a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
}

/// How well `x` answers `q`; larger is better.
#[inline]
pub fn score(metric: Metric, q: &[f32], x: &[f32]) -> f32 {
    match metric {
        Metric::Dot | Metric::Cosine => dot(q, x),
        Metric::Euclid => -l2_squared(q, x).sqrt(),
        Metric::Manhattan => -l1(q, x),
    }
}

/// [`score`] of each row of `block` (`out.len()` rows of `dim`, one after another).
pub fn score_block(metric: Metric, q: &[f32], block: &[f32], dim: usize, out: &mut [f32]) {
    assert_eq!(q.len(), dim, "query of another dimension");
    assert_eq!(block.len(), dim * out.len(), "block of another size");
    for (x, out) in block.chunks_exact(dim).zip(out) {
        *out = score(metric, q, x);
    }
}
