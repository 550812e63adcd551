//! Distances between f32 vectors, and the score of a metric: larger is better, always.
//!
//! ```text
//!   Dot, Cosine   <q, x>        (Cosine: over normalised vectors)
//!   Euclid        -|q - x|      Manhattan   -sum |q_i - x_i|
//! ```
//!
//! The score of finite vectors is finite: where a sum leaves the range of f32 on its way, it is taken again in f64, and what
//! is too large for f32 in the end is the largest there is.

use crate::kernels::kernels;

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
    // SAFETY: the lengths are equal.
    unsafe { (kernels().dot)(a, b) }
}

/// The squared Euclidean distance.
#[inline]
pub fn l2_squared(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "distance of vectors of two lengths");
    // SAFETY: the lengths are equal.
    unsafe { (kernels().l2_squared)(a, b) }
}

/// The Manhattan distance.
#[inline]
pub fn l1(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "distance of vectors of two lengths");
    // SAFETY: the lengths are equal.
    unsafe { (kernels().l1)(a, b) }
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
    // SAFETY: the lengths are equal.
    unsafe { (kernels().sad)(a, b) }
}

/// How well `x` answers `q`; larger is better.
#[inline]
pub fn score(metric: Metric, q: &[f32], x: &[f32]) -> f32 {
    let score = match metric {
        Metric::Dot | Metric::Cosine => dot(q, x),
        Metric::Euclid => -l2_squared(q, x).sqrt(),
        Metric::Manhattan => -l1(q, x),
    };
    if score.is_finite() { score } else { wide_score(metric, q, x) }
}

/// [`score`] by sums in f64, which products of finite f32 cannot leave.
#[cold]
fn wide_score(metric: Metric, q: &[f32], x: &[f32]) -> f32 {
    let pairs = q.iter().zip(x).map(|(q, x)| (f64::from(*q), f64::from(*x)));
    let score = match metric {
        Metric::Dot | Metric::Cosine => pairs.map(|(q, x)| q * x).sum::<f64>(),
        Metric::Euclid => -pairs.map(|(q, x)| (q - x) * (q - x)).sum::<f64>().sqrt(),
        Metric::Manhattan => -pairs.map(|(q, x)| (q - x).abs()).sum::<f64>(),
    };
    score.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// [`score`] of each row of `block` (`out.len()` rows of `dim`, one after another).
pub fn score_block(metric: Metric, q: &[f32], block: &[f32], dim: usize, out: &mut [f32]) {
    assert!(q.len() == dim && dim > 0, "query of another dimension");
    assert_eq!(block.len(), dim * out.len(), "block of another size");
    let kernels = kernels();
    // SAFETY: the block holds a row for each score.
    unsafe {
        match metric {
            Metric::Dot | Metric::Cosine => (kernels.dot_rows)(q, block, out),
            Metric::Euclid => (kernels.l2_rows)(q, block, out),
            Metric::Manhattan => (kernels.l1_rows)(q, block, out),
        }
    }
    match metric {
        Metric::Dot | Metric::Cosine => {}
        Metric::Euclid => out.iter_mut().for_each(|score| *score = -score.sqrt()),
        Metric::Manhattan => out.iter_mut().for_each(|score| *score = -*score),
    }
    // What is not finite times zero is no number, and so is a sum with it.
    if !out.iter().map(|score| score * 0.0).sum::<f32>().is_finite() {
        for (score, x) in out.iter_mut().zip(block.chunks_exact(dim)).filter(|(score, _)| !score.is_finite()) {
            *score = wide_score(metric, q, x);
        }
    }
}

/// Makes products of a query and the rows of `block` what they would be if each row had length 1; of a row without a
/// length, the product is 0.
pub fn divide_by_lengths(block: &[f32], dim: usize, products: &mut [f32]) {
    for (x, product) in block.chunks_exact(dim).zip(products) {
        let length = norm(x);
        if length > 0.0 {
            *product /= length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_finite_and_right_where_its_sums_are_not() {
        let query: Vec<f32> = (0..24).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let rows = [[1e38; 24], [1.0; 24], [3e38; 24]].concat();
        let mut scores = [f32::NAN; 3];
        score_block(Metric::Dot, &query, &rows, 24, &mut scores);
        assert_eq!(scores, [0.0; 3]);
        for (metric, expected) in [
            (Metric::Dot, f32::MAX),
            (Metric::Cosine, f32::MAX),
            (Metric::Euclid, f32::MIN),
            (Metric::Manhattan, f32::MIN),
        ] {
            let query = [if expected > 0.0 { 3e38 } else { -3e38 }; 24];
            score_block(metric, &query, &rows, 24, &mut scores);
            assert_eq!((scores[2], score(metric, &query, &[3e38; 24])), (expected, expected), "{metric:?}");
            assert!(scores.iter().all(|score| score.is_finite()));
        }
        // The length of a difference may fit where its square does not.
        assert!((score(Metric::Euclid, &[3e30; 4], &[1e30; 4]) / -4e30 - 1.0).abs() < 1e-6);
    }
}
