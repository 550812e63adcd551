//! More lists where a filter makes the nearest too few.
//!
//! ```text
//!             vectors near the query       that pass                  depth = k * near / all that pass
//!   index 0   ● ○ ○ ● ○ ○ ○ ● ○ ○ ○ ○          3        near = 12        k * 12 / 10
//!   index 1   ● ● ● ● ● ● ●                    7        near =  7        k *  7 / 10
//! ```
//!
//! Of all vectors of an index, passing or not, so many stand before the k-th that is found in the end: its depth. Lists
//! are scanned as for that many nearest. How many are near is known of those that pass: they are its candidates above
//! the bar, and its share of passing among those that were asked tells the others. With one index the depth is
//! `k / share`; but where most of an index is filtered out and the k nearest stand in others, it is less than k.

use crate::scratch::{Scratch, Tally};
use crate::search::Means;

/// How many lists of index `which` should be scanned, where its filter answered so in the nearest ones.
pub(crate) fn lists_wanted(means: &Means<'_, '_>, scratch: &Scratch, which: u32, tally: Tally) -> usize {
    if tally.passed == tally.asked || means.params.probes.is_some() {
        return 0;
    }
    let chosen = &scratch.chosen;
    // One more of each: a filter of which little was seen is not taken for one that passes nothing.
    let share = (tally.passed + 1) as f64 / (tally.asked + 1) as f64;
    let own = chosen.iter().filter(|candidate| candidate.slot == which).count().max(1);
    let depth = means.k as f64 * (own as f64 / share) / chosen.len().max(own) as f64;
    let depth = depth.min(means.index.shape.rows as f64) as usize;
    means.index.setting(depth.max(means.k), means.params, means.narrow).probes
}
