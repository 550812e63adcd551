//! Which parts of segments are resident under the present budget.
//!
//! ```text
//!   1. centroids of all, then what finds ids and rows, then the narrowest codes     small ones first
//!   2. each index a step up, the smallest first, as far as the room goes:
//!        1-bit codes ─► 3-bit alone ─► 1 and 3 ─► 6-bit alone ─► 1 and 6
//!   3. originals, then positions
//!   room = budget - what others hold or have for good - room for new points and headroom (at rest: a small headroom)
//! ```
//!
//! Wide codes alone are scanned as a whole: slower than 1-bit codes that let most of a list go, faster than the reads
//! that they save. Files are the same whatever the budget is; only this choice moves. It is made again after each
//! seal, merge and change of the budget, and when the store lies down or wakes (`rest.rs`).

use crate::rest;
use crate::shared::Shared;
use ramekin_ann::Part;
use ramekin_pages::Section;

/// What is resident of an index's codes, best first: of several widths one is enough, and 1-bit codes before it.
const STEPS: [&[Part]; 4] =
    [&[Part::Codes1, Part::Codes6], &[Part::Codes6], &[Part::Codes1, Part::Codes3], &[Part::Codes3]];

/// The sections of one index, or those that find the ids of one segment.
struct Wishes {
    sections: Vec<(Part, Section)>,
}

impl Wishes {
    fn cost(&self, part: Part) -> Option<u64> {
        self.sections.iter().find(|(own, _)| *own == part).map(|(_, section)| section.resident_cost())
    }

    fn bytes(&self) -> u64 {
        self.sections.iter().map(|(_, section)| section.resident_cost()).sum()
    }
}

/// Loads what fits and unloads what does not. Failing to load is no error: the section stays paged.
pub(crate) fn plan(shared: &Shared) {
    let (lookups, indexes) = sections(shared);
    let (chosen, rest) = choose(lookups, indexes, room(shared));
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
    let spare = match rest::is_at_rest(shared) {
        true => limit / 16,
        false => limit / 10 + shared.limits().growing_bytes.saturating_sub(shared.accounts.growing.used()),
    };
    limit.saturating_sub(others + spare)
}

/// What finds ids, and the sections of each index, the smallest index first.
fn sections(shared: &Shared) -> (Vec<Section>, Vec<Wishes>) {
    let (mut lookups, mut indexes) = (Vec::new(), Vec::new());
    for (_, collection) in shared.collections() {
        for segment in &collection.view.load().segments {
            lookups.extend(segment.lookup_sections().cloned());
            for (_, named) in segment.vectors() {
                let sections = named.index.sections().into_iter();
                indexes.push(Wishes { sections: sections.map(|(part, section)| (part, section.clone())).collect() });
            }
        }
    }
    lookups.sort_by_key(Section::len);
    indexes.sort_by_key(Wishes::bytes);
    (lookups, indexes)
}

/// What is to be resident, and what is not.
fn choose(lookups: Vec<Section>, indexes: Vec<Wishes>, mut room: u64) -> (Vec<Section>, Vec<Section>) {
    let mut fits = |bytes: u64| {
        let fits = bytes <= room;
        room -= if fits { bytes } else { 0 };
        fits
    };
    let mut chosen: Vec<Vec<Part>> = indexes.iter().map(|_| Vec::new()).collect();
    let each = |parts: &[Part], fits: &mut dyn FnMut(u64) -> bool, chosen: &mut Vec<Vec<Part>>| {
        for (index, chosen) in indexes.iter().zip(chosen) {
            let there = parts.iter().filter(|part| index.cost(**part).is_some_and(&mut *fits));
            chosen.extend(there);
        }
    };
    each(&[Part::Centroids, Part::Clusters], &mut fits, &mut chosen);
    let found: Vec<bool> = lookups.iter().map(|section| fits(section.resident_cost())).collect();
    each(&[Part::Rows], &mut fits, &mut chosen);
    each(&[Part::Codes1, Part::Codes8], &mut fits, &mut chosen);
    for (index, chosen) in indexes.iter().zip(&mut chosen) {
        let narrow = chosen.contains(&Part::Codes1).then(|| index.cost(Part::Codes1)).flatten().unwrap_or(0);
        let cost = |step: &[Part]| step.iter().map(|part| index.cost(*part)).sum::<Option<u64>>();
        // The 1-bit codes are paid for; a step without them gets that back.
        let step = STEPS.into_iter().find(|step| {
            cost(step).is_some_and(|bytes| match bytes.checked_sub(narrow) {
                Some(more) => fits(more),
                None => false,
            })
        });
        if let Some(step) = step {
            chosen.retain(|part| *part != Part::Codes1);
            chosen.extend(step);
        }
    }
    each(&[Part::Vectors], &mut fits, &mut chosen);
    each(&[Part::Positions], &mut fits, &mut chosen);
    let mut sorted = (Vec::new(), Vec::new());
    let mut put = |section, chosen| if chosen { sorted.0.push(section) } else { sorted.1.push(section) };
    lookups.into_iter().zip(found).for_each(|(section, found)| put(section, found));
    for (index, chosen) in indexes.into_iter().zip(chosen) {
        index.sections.into_iter().for_each(|(part, section)| put(section, chosen.contains(&part)));
    }
    sorted
}
