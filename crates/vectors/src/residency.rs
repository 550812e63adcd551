//! Which sections of segments are resident under the present budget.
//!
//! ```text
//!   sections of all collections ─► sizes ─► `share.rs` ─► these: loaded, the others: paged
//!   room = budget - what others hold or have for good - room for new points and headroom (at rest: a small headroom)
//! ```
//!
//! Files are the same whatever the budget is; only this choice moves. It is made again after each seal, merge and
//! change of the budget, when collections are used otherwise than before, and when the store lies down or wakes
//! (`rest.rs`). Who is resident is paid for by accounts of its collection, which the ledger shows by name.

use crate::api::Placement;
use crate::collection::Collection;
use crate::rest;
use crate::share::{Claim, IndexClaim, choose};
use crate::shared::Shared;
use ramekin_ann::Part;
use ramekin_memory::Account;
use ramekin_pages::Section;
use std::sync::Arc;

/// The accounts of what is resident of one collection.
pub(crate) struct Structures {
    centroids: Account,
    codes: Account,
    ids: Account,
    vectors: Account,
}

impl Structures {
    fn new(parent: &Account, name: &str) -> Self {
        let own = parent.child(name, "");
        Self {
            centroids: own.child("centroids", "lists x (dim + 12) + dim x 4 + lists x 88"),
            codes: own
                .child("codes", "points x (dim x bits / 8 + 4), of the widths 1, 3 and 6 those that are resident"),
            ids: own
                .child("ids", "points x 2 x bits of a row number / 8 + ids that are not dense x (8 or 16) + filter"),
            vectors: own.child("vectors", "points x dim x bytes of a number, whole records a page"),
        }
    }

    fn of(&self, part: Part) -> &Account {
        match part {
            Part::Centroids | Part::Clusters => &self.centroids,
            Part::Codes1 | Part::Codes3 | Part::Codes6 | Part::Codes8 => &self.codes,
            Part::Rows | Part::Positions => &self.ids,
            Part::Vectors => &self.vectors,
        }
    }

    fn all(&self) -> [&Account; 4] {
        [&self.centroids, &self.codes, &self.ids, &self.vectors]
    }
}

/// The sections of one collection that may be resident.
struct Sections {
    collection: Arc<Collection>,
    lookups: Vec<Section>,
    indexes: Vec<(Placement, Vec<(Part, Section)>)>,
}

/// Loads what fits and unloads what does not. Failing to load is no error: the section stays paged.
pub(crate) fn plan(shared: &Shared) {
    let all = sections(shared);
    let claims: Vec<Claim> = all.iter().map(Sections::claim).collect();
    let weights: u64 = claims.iter().map(|claim| claim.weight).sum();
    let taken = choose(&claims, room(shared));
    let (mut chosen, mut others) = (Vec::new(), Vec::new());
    let mut put = |section, is_chosen| if is_chosen { chosen.push(section) } else { others.push(section) };
    for ((sections, claim), taken) in all.into_iter().zip(&claims).zip(taken) {
        sections.collection.usage.plan(claim.weight * 1000 / weights);
        sections.lookups.into_iter().zip(taken.lookups).for_each(|(section, is_chosen)| put(section, is_chosen));
        for ((_, parts), taken) in sections.indexes.into_iter().zip(taken.parts) {
            parts.into_iter().for_each(|(part, section)| put(section, taken.contains(&part)));
        }
    }
    others.iter().for_each(Section::unload);
    for section in chosen {
        if let Err(error) = section.load() {
            tracing::debug!("a section stays paged: {error}");
        }
    }
}

/// Shares that differ by so much from those that were planned for are planned again, in thousandths.
const MOVED: u64 = 200;

/// Takes stock of how collections are used. True: their shares are no longer those that were planned for.
pub(crate) fn use_moved(shared: &Shared) -> bool {
    let is_sealed = |collection: &Arc<Collection>| !collection.view.load().segments.is_empty();
    let collections = shared.collections().into_iter().map(|(_, collection)| collection).filter(is_sealed);
    let collections: Vec<_> = collections.inspect(|collection| collection.usage.look()).collect();
    let weights: u64 = collections.iter().map(|collection| collection.usage.weight()).sum();
    let moved = |collection: &Arc<Collection>| {
        let share = collection.usage.weight() * 1000 / weights;
        share.abs_diff(collection.usage.planned()) > MOVED
    };
    collections.iter().any(moved)
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

/// The sections of each collection that has some, each with the account that pays for it.
fn sections(shared: &Shared) -> Vec<Sections> {
    let mut all = Vec::new();
    for (name, collection) in shared.collections() {
        let (view, config) = (collection.view.load_full(), collection.config.load_full());
        if view.segments.is_empty() {
            continue;
        }
        let structures = collection.structures.get_or_init(|| Structures::new(&shared.options.account, &name));
        let (mut lookups, mut indexes) = (Vec::new(), Vec::new());
        for segment in &view.segments {
            lookups.extend(segment.lookup_sections().cloned());
            for (meta, named) in segment.vectors() {
                let placement = config.vectors.get(&meta.name).map(|vector| vector.placement).unwrap_or_default();
                let parts = named.index.sections().into_iter().map(|(part, section)| (part, section.clone()));
                indexes.push((placement, parts.collect::<Vec<_>>()));
            }
        }
        lookups.sort_by_key(Section::len);
        let by_part =
            indexes.iter().flat_map(|(_, parts)| parts).map(|(part, section)| (structures.of(*part), section));
        let owned: Vec<_> = by_part.chain(lookups.iter().map(|section| (&structures.ids, section))).collect();
        owned.iter().for_each(|(account, section)| section.owned_by(account));
        for account in structures.all() {
            let own = owned.iter().filter(|(owner, _)| std::ptr::eq(*owner, account));
            account.want(own.map(|(_, section)| section.resident_cost()).sum());
        }
        all.push(Sections { collection: collection.clone(), lookups, indexes });
    }
    all
}

impl Sections {
    fn claim(&self) -> Claim {
        let cost = |(part, section): &(Part, Section)| (*part, section.resident_cost());
        let index = |(placement, parts): &(Placement, Vec<(Part, Section)>)| IndexClaim {
            parts: parts.iter().map(cost).collect(),
            placement: *placement,
        };
        Claim {
            weight: self.collection.usage.weight(),
            lookups: self.lookups.iter().map(Section::resident_cost).collect(),
            indexes: self.indexes.iter().map(index).collect(),
        }
    }
}
