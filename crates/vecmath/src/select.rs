//! The best n of k scores.

/// Puts the indices of the `n` largest scores into `out`, best first; of equal scores the lower index. Scores that
/// are not a number count as the worst. `out` holds fewer than `n` only if there are fewer scores.
pub fn select_best(scores: &[f32], n: usize, out: &mut Vec<u32>) {
    out.clear();
    out.extend(0..scores.len() as u32);
    let order = |a: &u32, b: &u32| key(scores[*b as usize]).total_cmp(&key(scores[*a as usize])).then(a.cmp(b));
    if n < out.len() {
        if n > 0 {
            out.select_nth_unstable_by(n - 1, order);
        }
        out.truncate(n);
    }
    out.sort_unstable_by(order);
}

/// A score with one kind of zero and of not-a-number.
#[inline]
fn key(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }
}
