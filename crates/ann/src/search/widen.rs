//! More lists where a filter makes the nearest too few.
//!
//! ```text
//!             vectors near the query       that pass                  depth = k * near / all that pass
//!   index 0   ● ○ ○ ● ○ ○ ○ ● ○ ○ ○ ○          3        near = 12        k * 12 / 10
//!   index 1   ● ● ● ● ● ● ●                    7        near =  7        k *  7 / 10
//! ```
//!
//! *Depth* is the rank, among all vectors of an index, of the k-th result that passes. Lists are scanned as for that many
//! nearest. How many are near is known of those that pass: they are its candidates above
//! the bar, and its share of passing among those that were asked tells the others. With one index the depth is
//! `k / share`; but where most of an index is filtered out and the k nearest stand in others, it is less than k.

use crate::search::Search;
use crate::search::request::{IndexSearchContext, Scanned, SearchParams};
use crate::search::rescore::raise_bar;
use crate::search::scratch::{Scratch, Tally};
use ramekin_base::Result;

impl Search<'_> {
    /// Scans more lists of index `which` if its filter asks for them.
    pub(crate) fn widen(&mut self, which: usize, params: &SearchParams<'_>) -> Result<()> {
        let Self { request, scratch, .. } = self;
        loop {
            let Scanned { index, lists, tally, .. } = request.scanned[which];
            if tally.passed == tally.asked && scratch.chosen.len() >= request.k {
                return Ok(());
            }
            let context = index.context(request, params, raise_bar(scratch));
            if context.reads_codes() && !scratch.reads.has_for_codes() {
                return Ok(());
            }
            let mut wanted = lists_wanted(&context, scratch, which as u32, tally);
            if wanted > lists {
                // Each time the nearest lists are chosen anew.
                wanted = wanted.max(lists + lists / 4);
            }
            // Fewer than k are right only if a threshold forbids more.
            if scratch.chosen.len() < request.k && context.score_bar == f32::NEG_INFINITY {
                wanted = wanted.max(lists * 2);
            }
            wanted = wanted.min(index.shape.lists);
            if wanted <= lists {
                return Ok(());
            }
            context.collect(scratch, which as u32, lists..wanted)?;
            // What is resident may be less than before.
            let (kept, wide) = (context.kept(), !context.narrow);
            drop(context);
            let scanned = &mut request.scanned[which];
            scanned.lists = wanted;
            scanned.kept = scanned.kept.max(kept);
            scanned.wide &= wide;
            scanned.tally.asked += scratch.tally.asked;
            scanned.tally.passed += scratch.tally.passed;
        }
    }
}

/// How many lists of index `which` should be scanned, where its filter answered so in the nearest ones.
fn lists_wanted(context: &IndexSearchContext<'_, '_>, scratch: &Scratch, which: u32, tally: Tally) -> usize {
    if tally.passed == tally.asked || context.params.nprobe.is_some() {
        return 0;
    }
    let chosen = &scratch.chosen;
    // One more of each: a filter of which little was seen is not taken for one that passes nothing.
    let share = (tally.passed + 1) as f64 / (tally.asked + 1) as f64;
    let own = chosen.iter().filter(|candidate| candidate.slot == which).count().max(1);
    let depth = context.k as f64 * (own as f64 / share) / chosen.len().max(own) as f64;
    let depth = depth.min(context.index.shape.rows as f64) as usize;
    context.index.effort(depth.max(context.k), context.params, context.narrow).nprobe
}
