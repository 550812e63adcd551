//! The best n of k scores.
//!
//! ```text
//!   scores ──> 256 groups, the largest of each ──> the n-th largest of these is a floor: at least n scores reach it,
//!              and few more ──> gather them, sort them, keep n
//! ```

use crate::kernels::kernels;

/// Candidates that are sorted on the stack; more of them (many equal scores) take the slow way.
const ROOM: usize = 512;

/// Puts the indices of the `n` largest scores into `out`, best first; of equal scores the lower index. Scores that
/// are not a number count as the worst. `out` holds fewer than `n` only if there are fewer scores.
pub fn select_best(scores: &[f32], n: usize, out: &mut Vec<u32>) {
    out.clear();
    if let Some(floor) = floor(scores, n) {
        // SAFETY: any scores and floor will do.
        unsafe { (kernels().at_least)(scores, floor, out) };
    } else {
        out.extend(0..scores.len() as u32);
    }
    if out.len() <= ROOM {
        // Ascending keys: descending scores, then ascending indices.
        let mut keys = [0u64; ROOM];
        let keys = &mut keys[..out.len()];
        for (key, at) in keys.iter_mut().zip(out.iter()) {
            *key = u64::from(!ordered(scores[*at as usize])) << 32 | u64::from(*at);
        }
        keys.sort_unstable();
        out.truncate(n);
        out.iter_mut().zip(keys).for_each(|(at, key)| *at = *key as u32);
        return;
    }
    let order = |at: &u32| u64::from(!ordered(scores[*at as usize])) << 32 | u64::from(*at);
    if n < out.len() {
        if n > 0 {
            out.select_nth_unstable_by_key(n - 1, order);
        }
        out.truncate(n);
    }
    out.sort_unstable_by_key(order);
}

/// Puts the indices of the `n` largest scores into `out`, ascending, and of all that are as large as the least of them.
/// Scores that are not a number are left out, unless all are asked for.
pub fn select_unordered(scores: &[f32], n: usize, out: &mut Vec<u32>) {
    out.clear();
    if n == 0 || n >= scores.len() {
        out.extend(0..if n == 0 { 0 } else { scores.len() as u32 });
        return;
    }
    out.extend(scores.iter().map(|score| !ordered(*score)));
    let (_, floor, _) = out.select_nth_unstable(n - 1);
    let floor = from_ordered(!*floor);
    out.clear();
    // SAFETY: any scores and floor will do.
    unsafe { (kernels().at_least)(scores, floor, out) };
}

/// A score that at least `n` scores reach, where looking for one pays.
fn floor(scores: &[f32], n: usize) -> Option<f32> {
    if n == 0 || n > 192 || scores.len() < 512 {
        return None;
    }
    let mut best = [0.0; 256];
    // SAFETY: any scores will do.
    let groups = unsafe { (kernels().group_best)(scores, &mut best) };
    let mut keys = best.map(ordered);
    let (_, floor, _) = keys[..groups].select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
    let floor = from_ordered(*floor);
    (floor > f32::NEG_INFINITY).then_some(floor)
}

/// An integer that sorts as the score does; what is not a number sorts as minus infinity, and -0 as 0.
#[inline(always)]
fn ordered(score: f32) -> u32 {
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = score.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The score of an integer made by [`ordered`].
#[inline(always)]
fn from_ordered(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}
