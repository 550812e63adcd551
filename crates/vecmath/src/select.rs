//! The best n of k scores.
//!
//! ```text
//!   scores ──> 256 groups, the largest of each ──> the n-th largest of these is a floor: at least n scores reach it,
//!              and few more ──> gather them, sort them, keep n
//! ```

use crate::kernels::kernels;

/// Puts the indices of the `n` largest scores into `out`, best first; of equal scores the lower index. Scores that
/// are not a number count as the worst. `out` holds fewer than `n` only if there are fewer scores.
pub fn select_best(scores: &[f32], n: usize, out: &mut Vec<u32>) {
    out.clear();
    let order = |a: &u32, b: &u32| key(scores[*b as usize]).total_cmp(&key(scores[*a as usize])).then(a.cmp(b));
    if !floor(scores, n).is_some_and(|floor| {
        // SAFETY: any scores and floor will do.
        unsafe { (kernels().at_least)(scores, floor, out) };
        true
    }) {
        out.extend(0..scores.len() as u32);
    }
    if n < out.len() {
        if n > 0 {
            out.select_nth_unstable_by(n - 1, order);
        }
        out.truncate(n);
    }
    out.sort_unstable_by(order);
}

/// A score that at least `n` scores reach, where looking for one pays.
fn floor(scores: &[f32], n: usize) -> Option<f32> {
    if n == 0 || n > 192 || scores.len() < 512 {
        return None;
    }
    let mut best = [0.0; 256];
    // SAFETY: any scores will do.
    let groups = unsafe { (kernels().group_best)(scores, &mut best) };
    let (_, floor, _) = best[..groups].select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
    (*floor > f32::NEG_INFINITY).then_some(*floor)
}

/// A score with one kind of zero and of not-a-number.
#[inline]
fn key(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }
}
