//! Who gets how much of the memory for resident sections: a pure choice over sizes.
//!
//! ```text
//!   room ──► half in equal parts, half by use ──► each collection chooses inside its part
//!        ──► what some do not need: to the most used first, who chooses again      ──► what is wished cold comes last
//!
//!   one collection:  centroids of all
//!                    then what finds ids and rows, then the narrowest codes     small ones first
//!                    each index a step up, the smallest first, as far as the room goes:
//!                         1-bit codes ─► 3-bit alone ─► 1 and 3 ─► 6-bit alone ─► 1 and 6
//!                    what finds rows by fields, and leads from them to codes      small ones first, a part of the room
//!                    full vectors, then what leads to them          what is wished pinned before what is not
//! ```
//!
//! Wide codes alone are scanned as a whole: slower than 1-bit codes that let most of a list go, faster than the reads
//! that they save. The server chooses by it, and so does `ramekin plan` before there is any data.

use crate::api::{MemoryTier, Placement};
use ramekin_ann::Part;

/// What is resident of an index's codes, best first: of several widths one is enough, and 1-bit codes before it.
const STEPS: [&[Part]; 4] =
    [&[Part::Codes1, Part::Codes6], &[Part::Codes6], &[Part::Codes1, Part::Codes3], &[Part::Codes3]];

/// Indexes of fields take one part of so many of the room at most.
const FIELDS_PART: u64 = 8;

/// The parts of one index with what they cost when they are resident.
pub(crate) struct IndexRequest {
    pub(crate) parts: Vec<(Part, u64)>,
    pub(crate) placement: Placement,
}

/// One collection's wishes.
pub(crate) struct ResidencyRequest {
    /// How much it is asked; at least 1.
    pub(crate) weight: u64,
    /// Sections that find ids, the most useful first.
    pub(crate) lookups: Vec<u64>,
    pub(crate) indexes: Vec<IndexRequest>,
    /// Sections of indexes of payload fields, the smallest first.
    pub(crate) fields: Vec<u64>,
    /// Where payloads end: one read less for each payload that is returned.
    pub(crate) offsets: Vec<u64>,
}

/// What one collection gets, in the order of its claim.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) lookups: Vec<bool>,
    pub(crate) parts: Vec<Vec<Part>>,
    pub(crate) fields: Vec<bool>,
    pub(crate) offsets: Vec<bool>,
}

impl IndexRequest {
    fn cost(&self, part: Part) -> Option<u64> {
        self.parts.iter().find(|(own, _)| *own == part).map(|(_, bytes)| *bytes)
    }

    fn wish(&self, part: Part) -> MemoryTier {
        match part {
            Part::Vectors => self.placement.vectors,
            Part::Codes1 | Part::Codes3 | Part::Codes6 | Part::Codes8 => self.placement.codes,
            Part::Centroids | Part::Clusters | Part::Rows | Part::Positions => self.placement.index,
        }
    }

    /// Whether the kind of quantisation that was asked for leaves room for these codes.
    fn allows(&self, codes: &[Part]) -> bool {
        let bits: u32 = codes.iter().map(|part| part.code_bits()).sum();
        self.placement.code_bits_max.is_none_or(|most| bits as f32 <= most)
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// What each collection gets of the room. Where payloads end may use `more` than it: it is the first to give way.
pub(crate) fn choose(requests: &[ResidencyRequest], room: u64, more: u64) -> Vec<Taken> {
    let (count, weights) =
        (requests.len().max(1) as u64, requests.iter().map(|request| request.weight).sum::<u64>().max(1));
    let equal = room / 2 / count;
    let by_use =
        |request: &ResidencyRequest| (u128::from(room / 2) * u128::from(request.weight) / u128::from(weights)) as u64;
    let mut taken: Vec<Taken> = requests.iter().map(|request| take(request, equal + by_use(request), &WARM)).collect();
    let mut left = room - taken.iter().map(|taken| taken.bytes).sum::<u64>();
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(requests[*at].weight));
    for wishes in [&WARM[..], &ALL] {
        for at in &order {
            let before = taken[*at].bytes;
            taken[*at] = take(&requests[*at], before + left, wishes);
            left = left + before - taken[*at].bytes;
        }
    }
    left += more;
    for at in order {
        for bytes in &requests[at].offsets {
            let fits = *bytes <= left;
            left -= if fits { *bytes } else { 0 };
            taken[at].bytes += if fits { *bytes } else { 0 };
            taken[at].offsets.push(fits);
        }
    }
    taken
}

const WARM: [MemoryTier; 2] = [MemoryTier::Pinned, MemoryTier::Cached];
const ALL: [MemoryTier; 3] = [MemoryTier::Pinned, MemoryTier::Cached, MemoryTier::Cold];

/// What one collection takes of so much room, of parts with these wishes only.
fn take(request: &ResidencyRequest, room: u64, wishes: &[MemoryTier]) -> Taken {
    let mut order: Vec<usize> = (0..request.indexes.len()).collect();
    order.sort_by_key(|at| request.indexes[*at].bytes());
    let (lookups, parts) = (vec![false; request.lookups.len()], vec![Vec::new(); request.indexes.len()]);
    let taken = Taken { bytes: 0, lookups, parts, fields: vec![false; request.fields.len()], offsets: Vec::new() };
    let mut taking = Taking { request, order, room, taken };
    let first = [Part::Centroids, Part::Clusters];
    for wish in WARM {
        taking.each(wish, &first);
    }
    for wish in wishes {
        if *wish == MemoryTier::Cold {
            taking.each(*wish, &first);
        }
        if *wish == MemoryTier::Cached {
            taking.lookups();
        }
        taking.each(*wish, &[Part::Rows]);
        taking.each(*wish, &[Part::Codes1, Part::Codes8]);
        taking.climb(*wish);
        if *wish == MemoryTier::Cached {
            taking.fields();
        }
        taking.each(*wish, &[Part::Vectors]);
        taking.each(*wish, &[Part::Positions]);
    }
    taking.taken
}

struct Taking<'a> {
    request: &'a ResidencyRequest,
    /// The indexes, smallest first.
    order: Vec<usize>,
    room: u64,
    taken: Taken,
}

impl Taking<'_> {
    fn fits(&mut self, bytes: u64) -> bool {
        let fits = self.taken.bytes + bytes <= self.room;
        self.taken.bytes += if fits { bytes } else { 0 };
        fits
    }

    fn lookups(&mut self) {
        for (at, bytes) in self.request.lookups.iter().enumerate() {
            self.taken.lookups[at] = self.fits(*bytes);
        }
    }

    /// What finds rows by fields; first what leads from rows to codes.
    fn fields(&mut self) {
        let request = self.request;
        if request.fields.is_empty() {
            return;
        }
        let most = self.taken.bytes + self.room / FIELDS_PART;
        for at in self.order.clone() {
            let bytes = request.indexes[at].cost(Part::Positions).filter(|bytes| self.taken.bytes + bytes <= most);
            if bytes.is_some_and(|bytes| self.fits(bytes)) {
                self.taken.parts[at].push(Part::Positions);
            }
        }
        for (at, bytes) in request.fields.iter().enumerate() {
            self.taken.fields[at] = self.taken.bytes + bytes <= most && self.fits(*bytes);
        }
    }

    /// These parts of each index that wishes so.
    fn each(&mut self, wish: MemoryTier, parts: &[Part]) {
        let request = self.request;
        for at in self.order.clone() {
            let index = &request.indexes[at];
            for part in parts.iter().filter(|part| index.wish(**part) == wish) {
                // Positions lead to full vectors: where those are read, one read more costs less than memory.
                let has = |part: &Part| self.taken.parts[at].contains(part);
                let is_allowed = match part {
                    Part::Positions => has(&Part::Vectors) && !has(part),
                    part => part.code_bits() == 0 || index.allows(&[*part]),
                };
                if is_allowed && index.cost(*part).is_some_and(|bytes| self.fits(bytes)) {
                    self.taken.parts[at].push(*part);
                }
            }
        }
    }

    /// The widest codes of each index that wishes so.
    fn climb(&mut self, wish: MemoryTier) {
        let request = self.request;
        for at in self.order.clone() {
            let index = &request.indexes[at];
            if index.wish(Part::Codes1) != wish {
                continue;
            }
            // 1-bit codes are paid for; a step without them gets that back.
            let has_narrow = self.taken.parts[at].contains(&Part::Codes1);
            let narrow = index.cost(Part::Codes1).filter(|_| has_narrow).unwrap_or(0);
            let cost = |step: &[Part]| step.iter().map(|part| index.cost(*part)).sum::<Option<u64>>();
            let more = |step: &[Part]| cost(step).and_then(|bytes| bytes.checked_sub(narrow));
            let step = STEPS.into_iter().filter(|step| index.allows(step));
            let step = step.filter_map(|step| Some((step, more(step)?))).find(|(_, more)| self.fits(*more));
            if let Some((step, _)) = step {
                self.taken.parts[at].retain(|part| *part != Part::Codes1);
                self.taken.parts[at].extend(step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Part::*;

    /// An index of so many points of a hundred dimensions, about.
    fn index(points: u64, placement: Placement) -> IndexRequest {
        let parts = [(Centroids, 1), (Clusters, 1), (Rows, 3), (Codes1, 16), (Codes3, 42), (Codes6, 79)];
        let parts = parts.into_iter().chain([(Vectors, 400), (Positions, 3)]);
        IndexRequest { parts: parts.map(|(part, bytes)| (part, bytes * points)).collect(), placement }
    }

    fn request(weight: u64, points: u64) -> ResidencyRequest {
        ResidencyRequest {
            weight,
            lookups: vec![points],
            indexes: vec![index(points, Placement::default())],
            fields: vec![],
            offsets: vec![],
        }
    }

    fn codes(room: u64, placement: Placement) -> Vec<Part> {
        let request = ResidencyRequest {
            weight: 1,
            lookups: vec![],
            indexes: vec![index(1, placement)],
            fields: vec![],
            offsets: vec![],
        };
        let taken = choose(&[request], room, 0).remove(0);
        taken.parts[0].iter().copied().filter(|part| part.code_bits() > 0).collect()
    }

    #[test]
    fn codes_climb_with_the_room() {
        let codes = |room: u64| codes(5 + room, Placement::default());
        assert_eq!(codes(10), []);
        assert_eq!(codes(20), [Codes1]);
        assert_eq!(codes(45), [Codes3]);
        assert_eq!(codes(60), [Codes1, Codes3]);
        assert_eq!(codes(80), [Codes6]);
        assert_eq!(codes(400), [Codes1, Codes6]);
        assert_eq!(codes(4000), [Codes1, Codes6]);
    }

    #[test]
    fn what_a_client_names_is_the_most() {
        let most = |bits| codes(4000, Placement { code_bits_max: Some(bits), ..Placement::default() });
        assert_eq!(most(8.0), [Codes1, Codes6]);
        assert_eq!(most(6.0), [Codes6]);
        assert_eq!(most(4.0), [Codes1, Codes3]);
        assert_eq!(most(3.0), [Codes3]);
        assert_eq!(most(1.5), [Codes1]);
        assert_eq!(most(0.5), []);
    }

    #[test]
    fn all_are_served_and_the_most_used_best() {
        let requests = [request(1, 1000), request(999, 1000), request(1, 10)];
        for room in [0, 5_000, 50_000, 100_000, 400_000, 1_000_000, 5_000_000] {
            let taken = choose(&requests, room, 0);
            assert!(taken.iter().map(|taken| taken.bytes).sum::<u64>() <= room);
            assert!(taken[1].bytes >= taken[0].bytes, "room {room}");
            if room >= 150_000 {
                assert!(taken[0].parts[0].contains(&Codes1), "room {room}: half of a third is its own");
            }
        }
        // All but the 3-bit codes, which the wider ones spare.
        let all = choose(&requests, 5_000_000, 0);
        assert!(
            all.iter()
                .zip(&requests)
                .all(|(taken, request)| taken.parts[0].len() == request.indexes[0].parts.len() - 1)
        );
    }

    #[test]
    fn what_one_does_not_need_another_gets() {
        let taken = choose(&[request(1000, 10), request(1, 1000)], 103_000 + 6000, 0);
        assert!(taken[1].parts[0].contains(&Codes6), "{taken:?}");
        assert!(taken[0].parts[0].contains(&Vectors));
    }

    #[test]
    fn where_payloads_end_comes_last_and_may_use_the_headroom() {
        let mut requests = [request(1, 100), request(9, 100)];
        requests.iter_mut().for_each(|request| request.offsets = vec![800]);
        let offsets =
            |room, more| choose(&requests, room, more).into_iter().map(|taken| taken.offsets).collect::<Vec<_>>();
        assert_eq!(offsets(0, 700), [[false], [false]]);
        assert_eq!(offsets(0, 900), [[false], [true]], "that of the most used first");
        assert_eq!(offsets(1_000_000, 0), [[true], [true]]);
        let taken = choose(&requests, 20_000, 1_700);
        assert!(taken.iter().map(|taken| taken.bytes).sum::<u64>() <= 20_000 + 1_700);
    }

    #[test]
    fn fields_come_after_codes_and_leave_most_to_vectors() {
        let mut request = request(1, 1000);
        request.fields = vec![100, 2_000, 60_000];
        let taken = |room| {
            choose(
                &[ResidencyRequest {
                    lookups: vec![],
                    fields: request.fields.clone(),
                    offsets: vec![],
                    indexes: vec![index(1000, Placement::default())],
                    weight: 1,
                }],
                room,
                0,
            )
            .remove(0)
        };
        let codes = taken(100_000);
        assert!(codes.parts[0].contains(&Codes6) && !codes.parts[0].contains(&Positions) && codes.fields == [false; 3]);
        let some = taken(100_000 + 5_500);
        assert!(some.parts[0].contains(&Positions) && some.fields == [true, true, false], "{some:?}");
        assert_eq!(taken(300_000).fields, [true, true, false], "an eighth of the room");
        let all = taken(5_000_000);
        assert!(all.parts[0].contains(&Vectors) && all.fields == [true; 3]);
        assert_eq!(all.parts[0].iter().filter(|part| **part == Positions).count(), 1);
    }

    #[test]
    fn wishes_are_an_order() {
        let cold = Placement { vectors: MemoryTier::Cold, ..Placement::default() };
        let pinned = Placement { codes: MemoryTier::Pinned, ..Placement::default() };
        let request = |placements: [Placement; 2]| {
            let indexes = placements.map(|placement| index(100, placement)).into();
            [ResidencyRequest { weight: 1, lookups: vec![], indexes, fields: vec![], offsets: vec![] }]
        };
        // Room for the full vectors of one of two.
        let taken = choose(&request([cold, Placement::default()]), 55_000 + 10_000, 0).remove(0);
        assert!(!taken.parts[0].contains(&Vectors) && taken.parts[1].contains(&Vectors));
        let taken = choose(&request([cold, cold]), 200_000, 0).remove(0);
        assert!(taken.parts.iter().all(|parts| parts.contains(&Vectors)), "nobody else wants the room");
        // Room for the widest codes of one of two.
        let taken = choose(&request([Placement::default(), pinned]), 13_000, 0).remove(0);
        assert!(!taken.parts[0].contains(&Codes6) && taken.parts[1].contains(&Codes6), "{taken:?}");
    }
}
