//! Which parts of segments are resident under the present budget.
//!
//! ```text
//!   all sections of all segments, most useful byte first ─► as many as fit ─► resident
//!                                                           the others     ─► paged
//!   room = budget - what others hold or have for good - headroom for requests and cached pages
//! ```
//!
//! Files are the same whatever the budget is; only this choice moves. It is made again after each
//! seal, merge and change of the budget.

use crate::shared::Shared;
use ramekin_ann::Part;
use ramekin_pages::Section;
use std::collections::HashSet;

/// Lower is loaded first. Of the wider codes one width is enough: the widest that fits.
fn rank(part: Part) -> u32 {
    match part {
        Part::Centroids | Part::Clusters => 0,
        Part::Codes1 | Part::Codes8 => 2,
        Part::Rows => 3,
        Part::Codes6 => WIDE,
        Part::Codes3 => NARROW,
        Part::Vectors => 6,
        Part::Positions => 7,
    }
}

const LOOKUP: u32 = 1;
const WIDE: u32 = 4;
const NARROW: u32 = 5;

struct Wish {
    rank: u32,
    /// Which index it is of.
    index: usize,
    section: Section,
}

/// Loads what fits and unloads what does not. Failing to load is no error: the section stays paged.
pub(crate) fn plan(shared: &Shared) {
    let (chosen, rest) = choose(wishes(shared), room(shared));
    rest.iter().for_each(Section::unload);
    for section in chosen {
        if let Err(error) = section.load() {
            tracing::debug!("a section stays paged: {error}");
        }
    }
}

/// Bytes that resident sections may take.
fn room(shared: &Shared) -> u64 {
    let limit = shared.budget.limit();
    let held = shared.pages.stats();
    let others = shared.budget.reserved().saturating_sub(held.cached_bytes + held.resident_bytes);
    let growing_left = shared.limits().growing_bytes.saturating_sub(shared.accounts.growing.used());
    let headroom = limit / 10;
    limit.saturating_sub(others + growing_left + headroom)
}

fn wishes(shared: &Shared) -> Vec<Wish> {
    let (mut wishes, mut index) = (Vec::new(), 0);
    for (_, collection) in shared.collections() {
        for segment in &collection.view.load().segments {
            index += 1;
            wishes.extend(segment.lookup_sections().map(|section| Wish {
                rank: LOOKUP,
                index,
                section: section.clone(),
            }));
            for (_, named) in segment.vectors() {
                index += 1;
                let parts = named.index.sections().into_iter();
                wishes.extend(parts.map(|(part, section)| Wish { rank: rank(part), index, section: section.clone() }));
            }
        }
    }
    wishes.sort_by_key(|wish| (wish.rank, wish.section.len()));
    wishes
}

/// What is to be resident, and what is not.
fn choose(wishes: Vec<Wish>, mut room: u64) -> (Vec<Section>, Vec<Section>) {
    let (mut chosen, mut rest, mut wide) = (Vec::new(), Vec::new(), HashSet::new());
    for Wish { rank, index, section } in wishes {
        let bytes = section.resident_cost();
        if bytes > room || rank == NARROW && wide.contains(&index) {
            rest.push(section);
            continue;
        }
        if rank == WIDE {
            wide.insert(index);
        }
        room -= bytes;
        chosen.push(section);
    }
    (chosen, rest)
}
