//! Which sections of segments are resident under the present budget.
//!
//! ```text
//!   sections of all collections ─► sizes ─► `choice.rs` ─► these: loaded, the others: paged
//!   room = budget - what others hold or have for good - room for new points and headroom (idle: a small headroom)
//! ```
//!
//! Files are the same whatever the budget is; only this choice moves. It is made again after each flush, merge and
//! change of the budget, when collections are used otherwise than before, and when the store lies down or wakes
//! (`idle.rs`). Who is resident is paid for by accounts of its collection, which the ledger shows by name.

pub(crate) mod capacity;
pub(crate) mod choice;
pub(crate) mod idle_step;
pub(crate) mod recall_check;

use crate::api::Placement;
use crate::collection::Collection;
use crate::collection::health::FaultKind;
use crate::collection::structures::{FIELDS, IDS, Structures, structure_of};
use crate::inner::damage::take_out_damaged;
use crate::inner::{StoreInner, idle};
use crate::residency::choice::{IndexRequest, ResidencyRequest, Taken, choose};
use crate::state::idle::Planned;
use ramekin_ann::Part;
use ramekin_base::Kind;
use ramekin_base::limits::PAGE;
use ramekin_pages::{PAGE_COST, Section};
use std::sync::Arc;

/// The sections of one collection that may be resident.
struct Sections {
    collection: Arc<Collection>,
    lookups: Vec<Section>,
    indexes: Vec<(Placement, Vec<(Part, Section)>)>,
    fields: Vec<Section>,
    offsets: Vec<Section>,
}

/// Loads what fits and unloads what does not. Failing to load is no error: the section stays paged.
pub(crate) fn plan(shared: &StoreInner) -> Planned {
    let _turn = idle::planning(shared);
    let all = sections(shared);
    let requests: Vec<ResidencyRequest> = all.iter().map(Sections::request).collect();
    let weights: u64 = requests.iter().map(|request| request.weight).sum();
    let room = room(shared, idle::is_idle(shared));
    let taken = choose(&requests, room, beyond(shared.budget.limit()));
    let bytes: u64 = taken.iter().map(|taken| taken.bytes).sum();
    let (mut chosen, mut others) = (Vec::new(), Vec::new());
    for ((sections, request), taken) in all.into_iter().zip(&requests).zip(taken) {
        sections.collection.usage.plan(request.weight * 1000 / weights);
        sections.predict(&taken);
        let collection = sections.collection.clone();
        let (yes, no) = sections.split(&taken);
        chosen.extend(yes.into_iter().map(|section| (section, collection.clone())));
        others.extend(no);
    }
    others.iter().for_each(Section::unload);
    for (section, collection) in chosen {
        if let Err(error) = section.load() {
            tracing::debug!("a section stays paged: {error}");
            shared.noted(&collection, FaultKind::Read, &error);
            if error.kind() == Kind::Corrupt {
                take_out_damaged(shared, &collection);
            }
        }
    }
    // Resident bytes are counted in whole pages, without what each costs besides.
    Planned { room, bytes: bytes / PAGE_COST * PAGE as u64 }
}

/// Shares that differ by so much from those that were planned for are planned again, in thousandths.
const MOVED: u64 = 200;

/// Takes stock of how collections are used. True: their shares are no longer those that were planned for.
pub(crate) fn use_moved(shared: &StoreInner) -> bool {
    let is_sealed = |collection: &Arc<Collection>| !collection.view.load().segments.is_empty();
    let collections = shared.collections();
    let collections: Vec<_> = collections
        .iter()
        .filter(|collection| is_sealed(collection))
        .inspect(|collection| collection.usage.look())
        .collect();
    let weights: u64 = collections.iter().map(|collection| collection.usage.weight()).sum();
    let moved = |collection: &&Arc<Collection>| {
        let share = collection.usage.weight() * 1000 / weights;
        share.abs_diff(collection.usage.planned()) > MOVED
    };
    collections.iter().any(moved)
}

/// Bytes that resident sections may take.
pub(crate) fn room(shared: &StoreInner, is_idle: bool) -> u64 {
    let limit = shared.budget.limit();
    let held = shared.pages.stats();
    let others = shared.budget.reserved().saturating_sub(held.cached_bytes + held.resident_bytes);
    let new_points = match is_idle {
        true => 0,
        false => shared.limits().memtable_bytes.saturating_sub(shared.accounts.growing.used()),
    };
    // A body may have it for the moment.
    let of_merges = match is_idle {
        true => 0,
        false => shared.limits().merge_work.saturating_sub(shared.accounts.merge.claimed()),
    };
    limit.saturating_sub(others + new_points + of_merges + spare(limit, is_idle))
}

/// What is left free for requests and cached pages.
pub(crate) fn spare(budget: u64, is_idle: bool) -> u64 {
    if is_idle { budget / 16 } else { budget / 10 }
}

/// What of it the sections may use that give way first.
pub(crate) fn beyond(budget: u64) -> u64 {
    budget / 32
}

/// The sections of each collection that has some, each with the account that pays for it.
fn sections(shared: &StoreInner) -> Vec<Sections> {
    let mut all = Vec::new();
    for collection in shared.collections().iter() {
        let (view, config) = (collection.view.load_full(), collection.config.load_full());
        if view.segments.is_empty() {
            collection.structures.get().into_iter().for_each(|structures| structures.predict(&[]));
            continue;
        }
        let structures =
            collection.structures.get_or_init(|| Box::new(Structures::new(&shared.options.account, &collection.name)));
        let (mut lookups, mut indexes, mut fields, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for segment in &view.segments {
            offsets.extend(segment.payload_offsets());
            lookups.extend(segment.lookup_sections().cloned());
            fields.extend(segment.fields.iter().flat_map(|field| field.index.sections()));
            for (meta, named) in segment.vectors() {
                let placement = config.vectors.get(&meta.name).map(|vector| vector.placement).unwrap_or_default();
                let parts = named.index.sections().into_iter().map(|(part, section)| (part, section.clone()));
                indexes.push((placement, parts.collect::<Vec<_>>()));
            }
        }
        lookups.sort_by_key(Section::len);
        fields.sort_by_key(Section::len);
        fields.iter().for_each(|section| structures.own(FIELDS, section));
        lookups.iter().chain(&offsets).for_each(|section| structures.own(IDS, section));
        let parts = indexes.iter().flat_map(|(_, parts)| parts);
        parts.for_each(|(part, section)| structures.own(structure_of(*part), section));
        indexes.iter().for_each(|(_, parts)| spare_narrow(parts));
        all.push(Sections { collection: collection.clone(), lookups, indexes, fields, offsets });
    }
    all
}

/// Narrow codes leave before wide ones, which are scanned alone as well, only slower.
fn spare_narrow(parts: &[(Part, Section)]) {
    let of =
        |wanted: &'static [Part]| parts.iter().filter(|(part, _)| wanted.contains(part)).map(|(_, section)| section);
    of(&[Part::Codes1]).for_each(|narrow| narrow.redundant_with(of(&[Part::Codes3, Part::Codes6])));
}

impl Sections {
    fn request(&self) -> ResidencyRequest {
        let cost = |(part, section): &(Part, Section)| (*part, section.resident_cost());
        let index = |(placement, parts): &(Placement, Vec<(Part, Section)>)| IndexRequest {
            parts: parts.iter().map(cost).collect(),
            placement: *placement,
        };
        ResidencyRequest {
            weight: self.collection.usage.weight(),
            lookups: self.lookups.iter().map(Section::resident_cost).collect(),
            indexes: self.indexes.iter().map(index).collect(),
            fields: self.fields.iter().map(Section::resident_cost).collect(),
            offsets: self.offsets.iter().map(Section::resident_cost).collect(),
        }
    }

    fn predict(&self, taken: &Taken) {
        let lookups = self.lookups.iter().zip(&taken.lookups).chain(self.offsets.iter().zip(&taken.offsets));
        let mut all: Vec<_> = lookups.map(|(section, is_chosen)| (IDS, section.resident_cost(), *is_chosen)).collect();
        for ((_, parts), taken) in self.indexes.iter().zip(&taken.parts) {
            let of = |(part, section): &(Part, Section)| {
                (structure_of(*part), section.resident_cost(), taken.contains(part))
            };
            all.extend(parts.iter().map(of));
        }
        let fields = self.fields.iter().zip(&taken.fields);
        all.extend(fields.map(|(section, is_chosen)| (FIELDS, section.resident_cost(), *is_chosen)));
        if let Some(structures) = self.collection.structures.get() {
            structures.predict(&all);
        }
    }

    /// The sections that are to be resident, and the others.
    fn split(self, taken: &Taken) -> (Vec<Section>, Vec<Section>) {
        let mut split = (Vec::new(), Vec::new());
        let mut put = |section, is_chosen| if is_chosen { split.0.push(section) } else { split.1.push(section) };
        let lookups = self.lookups.into_iter().zip(&taken.lookups);
        let fields = self.fields.into_iter().zip(&taken.fields);
        lookups
            .chain(fields)
            .chain(self.offsets.into_iter().zip(&taken.offsets))
            .for_each(|(section, is)| put(section, *is));
        for ((_, parts), taken) in self.indexes.into_iter().zip(&taken.parts) {
            parts.into_iter().for_each(|(part, section)| put(section, taken.contains(&part)));
        }
        split
    }
}
