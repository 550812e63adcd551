//! Points by their ids: get, scroll, and the parts of points that any answer needs.
//!
//! ```text
//!   id ─► active ─► frozen ─► segments        the first that holds it alive has it
//!   scroll: the smallest ids of every part, merged; a page is as long as asked and no longer
//! ```

use crate::api::{Held, Page, Parts, PayloadParts, Record, VectorParts};
use crate::append::RECORD_BYTES;
use crate::collection::{Collection, View};
use crate::growing::{ColumnData, PayloadAt};
use crate::matching::Matching;
use crate::passing::Passing;
use crate::payload;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::texts;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Kind, PointId, Result, cancel};
use ramekin_fields::{Filter, Path, Prepared, Schema};
use ramekin_log::LogReader;
use ramekin_memory::Reservation;
use ramekin_pages::Pages;
use std::sync::Arc;

/// Where a point stands: a growing part (by its place from newest) and slot, or a segment and row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Growing(usize, u32),
    Sealed(usize, u32),
}

/// The place of each id that is alive.
pub(crate) fn places(shared: &Shared, view: &View, ids: &[PointId]) -> Result<Vec<Option<Place>>> {
    // Segments first: a point that moves while we look goes from a segment to the active part.
    let mut places: Vec<Option<Place>> = vec![None; ids.len()];
    for (at, segment) in view.segments.iter().enumerate() {
        for (place, row) in places.iter_mut().zip(segment.find(&shared.pages, ids)?) {
            if let Some(row) = row.filter(|row| !segment.dead.get(*row)) {
                *place = Some(Place::Sealed(at, row));
            }
        }
    }
    for (at, part) in view.oldest_growing() {
        let inner = part.read();
        for (place, id) in places.iter_mut().zip(ids) {
            if let Some(slot) = inner.find(*id) {
                *place = Some(Place::Growing(at, slot));
            }
        }
    }
    Ok(places)
}

/// Times that a read looks before it asks changes to wait for it, ...
const LOOKS: usize = 4;
/// ... and then: what the writer had taken already may still come, and no more.
const STILL_LOOKS: usize = 64;

/// Reads what changes meanwhile. `sealed` looks at the segments of a view, which may take long; `answer` makes the
/// answer of what it found and of the view's growing parts, or `None` if all must be looked at again.
///
/// A point that is replaced while we look goes to the part that grows then. Where that was begun after our view, the
/// answer is made of our segments and of the newer parts too; only where such a part has been sealed already and points
/// of ours have moved, or what a part needs of the log is gone, all begins again. A read that is always too slow keeps
/// new writes of its collection in the queue, and parts where they are, for its last looks; no lock that the writer needs
/// is held while it reads.
pub(crate) fn on_view<S, T>(
    collection: &Collection,
    sealed: impl Fn(&View) -> Result<S>,
    answer: impl Fn(&View, &S) -> Result<Option<T>>,
) -> Result<T> {
    for _ in 0..LOOKS {
        let view = collection.view.load_full();
        match look(collection, &view, &sealed, &answer) {
            Ok(Some(answer)) => return Ok(answer),
            Err(error) if error.kind() == Kind::Cancelled || Arc::ptr_eq(&view, &collection.view.load()) => {
                return Err(error);
            }
            Ok(None) | Err(_) => {}
        }
    }
    let _still = collection.still.read();
    for _ in 0..STILL_LOOKS {
        let view = collection.view.load_full();
        match look(collection, &view, &sealed, &answer) {
            Ok(Some(answer)) => return Ok(answer),
            Err(error) if Arc::ptr_eq(&view, &collection.view.load()) => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    Err(Error::busy("points move faster than they can be read; try again"))
}

fn look<S, T>(
    collection: &Collection,
    view: &Arc<View>,
    sealed: impl Fn(&View) -> Result<S>,
    answer: impl Fn(&View, &S) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let dead = view.dead();
    // A death that is counted already may have come with a newer view, and then it would not tell.
    if !Arc::ptr_eq(view, &collection.view.load()) {
        return Ok(None);
    }
    let found = sealed(view)?;
    for _ in 0..LOOKS {
        let Some(wider) = view.with_newer(&collection.view.load()) else { break };
        let made = answer(&wider, &found)?;
        if Arc::ptr_eq(&wider.active, &collection.view.load().active) {
            return Ok(made);
        }
    }
    let made = answer(view, &found)?;
    Ok(made.filter(|_| view.dead() == dead))
}

/// The first of some ids that is not among the records that were found.
pub(crate) fn missing(ids: &[PointId], found: &[Record]) -> Option<PointId> {
    ids.iter().copied().find(|id| !found.iter().any(|record| record.id == *id))
}

/// Reads points part by part; memory for what comes back is reserved as it grows.
pub(crate) struct Fetcher<'a> {
    shared: &'a Shared,
    pages: &'a Pages,
    view: &'a View,
    parts: &'a Parts,
    pub(crate) memory: Reservation,
}

impl<'a> Fetcher<'a> {
    /// `pages` are the store's, or a handle that counts.
    pub(crate) fn new(shared: &'a Shared, pages: &'a Pages, view: &'a View, parts: &'a Parts) -> Result<Self> {
        Ok(Self { shared, pages, view, parts, memory: shared.accounts.queries.try_reserve(0)? })
    }

    /// The records of places, in their order.
    pub(crate) fn records(&mut self, wanted: &[(PointId, Place)]) -> Result<Vec<Record>> {
        self.memory.grow(wanted.len() as u64 * size_of::<Record>() as u64 * 2)?;
        let record = |(id, _): &(PointId, Place)| Record { id: *id, payload: None, vectors: None, order_value: None };
        let mut records: Vec<Record> = wanted.iter().map(record).collect();
        if self.parts.payload != PayloadParts::None {
            self.payloads(wanted, &mut records)?;
        }
        if self.parts.vectors != VectorParts::None {
            self.vectors(wanted, &mut records)?;
        }
        Ok(records)
    }

    fn payloads(&mut self, wanted: &[(PointId, Place)], records: &mut [Record]) -> Result<()> {
        for (chunk, records) in wanted.chunks(TEXTS).zip(records.chunks_mut(TEXTS)) {
            let texts = payloads(self.shared, self.pages, self.view, chunk, &mut self.memory)?;
            for (text, record) in texts.into_iter().zip(records) {
                let account = &self.shared.accounts.queries;
                record.payload = payload::select(text, &self.parts.payload, account, &mut self.memory)?;
            }
        }
        Ok(())
    }

    fn vectors(&mut self, wanted: &[(PointId, Place)], records: &mut [Record]) -> Result<()> {
        let parts = self.parts;
        records.iter_mut().for_each(|record| record.vectors = Some(Vec::new()));
        let growing: Vec<_> = self.view.growing().collect();
        for ((_, place), record) in wanted.iter().zip(records.iter_mut()) {
            let Place::Growing(part, slot) = place else { continue };
            let held = |(name, column): (&str, &ColumnData)| {
                if wants(parts, name) { column.of_slot(*slot).map_or(0, |vector| vector.len() as u64 * 4) } else { 0 }
            };
            // Memory may have to be waited for, so not under the lock.
            let bytes = growing[*part].read().columns().map(held).sum();
            self.memory.grow(bytes)?;
            let inner = growing[*part].read();
            for (name, column) in inner.columns().filter(|(name, _)| wants(parts, name)) {
                if let Some(vector) = column.of_slot(*slot) {
                    record.vectors.get_or_insert_default().push((name.to_owned(), vector.to_vec()));
                }
            }
        }
        for (number, segment) in self.view.segments.iter().enumerate() {
            for (meta, named) in segment.vectors().filter(|(meta, _)| wants(parts, &meta.name)) {
                for (chunk, records) in wanted.chunks(64).zip(records.chunks_mut(64)) {
                    let (at, rows) = rows_of(chunk, number);
                    let held = at.into_iter().zip(rows).filter_map(|(at, row)| Some((at, named.present.ordinal(row)?)));
                    let (at, ordinals): (Vec<usize>, Vec<u32>) = held.unzip();
                    if ordinals.is_empty() {
                        continue;
                    }
                    self.memory.grow(ordinals.len() as u64 * meta.dim as u64 * 8)?;
                    let mut vectors = Vec::with_capacity(ordinals.len() * meta.dim);
                    named.index.vectors(self.pages, &ordinals, &mut vectors)?;
                    for (at, vector) in at.into_iter().zip(vectors.chunks_exact(meta.dim)) {
                        records[at].vectors.get_or_insert_default().push((meta.name.clone(), vector.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Payloads that are read at a time.
pub(crate) const TEXTS: usize = 64;
/// Records of the log that are read at a time.
const RECORDS: usize = 8;

/// The payload texts of at most [`TEXTS`] points, in their order; empty where a point has none. `memory` grows by what
/// they hold.
pub(crate) fn payloads(
    shared: &Shared,
    pages: &Pages,
    view: &View,
    points: &[(PointId, Place)],
    memory: &mut Reservation,
) -> Result<Vec<String>> {
    let log = shared.log_reader()?;
    let growing: Vec<_> = view.growing().collect();
    let mut found = vec![String::new(); points.len()];
    let mut in_log = Vec::with_capacity(points.len());
    for (at, (_, place)) in points.iter().enumerate() {
        if let Place::Growing(part, slot) = place {
            in_log.push((at, growing[*part].read().payload(*slot)));
        }
    }
    in_log.retain(|(_, place)| place.len > 0);
    read_log(&log, pages, in_log, memory, &mut found)?;
    for (number, segment) in view.segments.iter().enumerate() {
        let (at, rows) = rows_of(points, number);
        if !rows.is_empty() {
            at.into_iter().zip(segment.payloads(pages, &log, &rows, memory)?).for_each(|(at, text)| found[at] = text);
        }
    }
    Ok(found)
}

/// Reads payloads that stand in the log, each to its place in `found`: a record once for all the points that it has.
fn read_log(
    log: &LogReader,
    pages: &Pages,
    mut places: Vec<(usize, PayloadAt)>,
    memory: &mut Reservation,
    found: &mut [String],
) -> Result<()> {
    places.sort_unstable_by_key(|(_, place)| (place.record, place.at));
    let mut records: Vec<&[(usize, PayloadAt)]> = Vec::with_capacity(places.len());
    records.extend(places.chunk_by(|(_, one), (_, other)| one.record == other.record));
    for records in records.chunks(RECORDS) {
        cancel::check()?;
        let end = |of: &[(usize, PayloadAt)]| of.iter().map(|(_, place)| (place.at + place.len) as usize).max();
        // Nearly all records are as long as they may be: a shorter guess would be read twice.
        let wanted = |of: &&[(usize, PayloadAt)]| (of[0].1.record, end(of).unwrap_or(0).max(RECORD_BYTES));
        let wanted: Vec<_> = records.iter().map(wanted).collect();
        let bytes: usize = wanted.iter().map(|(_, len)| *len).sum();
        pages.count_reads(wanted.len() as u64, bytes.div_ceil(PAGE) as u64);
        for (record, of) in log.read_many(&wanted)?.into_iter().zip(records) {
            for (at, place) in *of {
                let bytes = record.get(place.at as usize..(place.at + place.len) as usize);
                let bytes = bytes.ok_or_else(|| Error::corrupt("a payload's place in the log is broken"))?;
                found[*at] = texts::of_bytes(bytes, "log", memory)?;
            }
        }
    }
    Ok(())
}

/// Whether vectors of this name are asked for.
fn wants(parts: &Parts, name: &str) -> bool {
    match &parts.vectors {
        VectorParts::None => false,
        VectorParts::All => true,
        VectorParts::Names(names) => names.iter().any(|wanted| wanted == name),
    }
}

/// The places of a chunk that stand in one segment: their position in the chunk, and their rows.
fn rows_of(chunk: &[(PointId, Place)], segment: usize) -> (Vec<usize>, Vec<u32>) {
    let of = |(at, (_, place)): (usize, &(PointId, Place))| match place {
        Place::Sealed(number, row) if *number == segment => Some((at, *row)),
        _ => None,
    };
    chunk.iter().enumerate().filter_map(of).unzip()
}

/// Points by id, in the order asked; what is not there is left out.
pub(crate) fn get(
    shared: &Shared,
    collection: &Collection,
    ids: &[PointId],
    parts: &Parts,
) -> Result<Held<Vec<Record>>> {
    on_view(collection, |_| Ok(()), |view, ()| get_from(shared, view, ids, parts).map(Some))
}

fn get_from(shared: &Shared, view: &View, ids: &[PointId], parts: &Parts) -> Result<Held<Vec<Record>>> {
    let mut fetcher = Fetcher::new(shared, &shared.pages, view, parts)?;
    fetcher.memory.grow(ids.len() as u64 * size_of::<Record>() as u64)?;
    let mut records = Vec::with_capacity(ids.len());
    for ids in ids.chunks(IDS) {
        let _looking = shared.accounts.queries.try_reserve(ids.len() as u64 * 256)?;
        let places = places(shared, view, ids)?;
        let wanted: Vec<_> = ids.iter().zip(places).filter_map(|(id, place)| Some((*id, place?))).collect();
        records.append(&mut fetcher.records(&wanted)?);
    }
    Ok(Held { value: records, memory: vec![fetcher.memory] })
}

/// Ids that are looked for together.
const IDS: usize = 4096;

/// An id with its place in a list that doubles.
pub(crate) const ENTRY_BYTES: u64 = 2 * size_of::<(PointId, Place)>() as u64;

/// A page of points in id order, from `from` on, of those that pass a filter.
pub(crate) fn scroll(
    shared: &Shared,
    collection: &Collection,
    from: Option<PointId>,
    limit: usize,
    filter: &Filter,
    parts: &Parts,
) -> Result<Held<Page>> {
    let filter = collection.config.load().resolve(filter, &shared.accounts.queries)?;
    let filter = &filter;
    on_view(collection, |_| Ok(()), |view, ()| scroll_from(shared, view, from, limit, filter, parts).map(Some))
}

/// A page that is as long as all points may hold so many that come while it is read.
const MARGIN: usize = 64;

fn scroll_from(
    shared: &Shared,
    view: &View,
    from: Option<PointId>,
    limit: usize,
    filter: &Prepared<'_>,
    parts: &Parts,
) -> Result<Held<Page>> {
    let matching = Matching::new(shared, &shared.pages, view, filter)?;
    let mut fetcher = Fetcher::new(shared, &shared.pages, view, parts)?;
    // Points may come while it looks; a page that is full says where to go on.
    let limit = limit.min(view.points_at_most() + MARGIN);
    let most = limit as u64 + 1;
    let frozen = view.frozen.iter().map(|part| part.read().live() as u64);
    let rows = view.segments.iter().map(|segment| u64::from(segment.meta.points)).chain(frozen);
    let entries = most + rows.map(|rows| rows.min(most)).sum::<u64>();
    fetcher.memory.grow(entries * ENTRY_BYTES + (most + 64) * (ENTRY_BYTES + 64))?;
    let mut found: Vec<(PointId, Place)> = Vec::new();
    // Segments first: a point that moves while we look goes from a segment to the active part.
    for (at, segment) in view.segments.iter().enumerate() {
        let mut row = match from {
            Some(from) => segment.rank(&shared.pages, from)?,
            None => 0,
        };
        let passing = if filter.is_empty() { None } else { Some(matching.passing(at)?) };
        let mut taken = 0;
        while row < segment.meta.points && taken <= limit {
            cancel::check()?;
            let most = (limit + 1 - taken).clamp(16, 512);
            let rows = next_rows(segment, passing.as_ref(), &mut row, most);
            let mut page = sealed_page(shared, view, at, rows)?;
            if passing.as_ref().is_some_and(|passing| !passing.is_sure()) {
                matching.keep(&mut page)?;
            }
            taken += page.len();
            found.append(&mut page);
        }
    }
    for (at, part) in view.oldest_growing() {
        let (mut from, mut taken) = (from, 0);
        let new = if filter.is_empty() { None } else { Some(matching.new_points(at)?) };
        let may_pass = |slot: u32| new.as_ref().is_none_or(|new| new.may_pass(slot));
        // Payloads that must be asked are read some at a time.
        let most = if new.is_some() { (limit + 1).max(TEXTS) } else { limit + 1 };
        while taken <= limit {
            cancel::check()?;
            let ids = part.read().ids_from(from, most, &may_pass);
            let is_last = ids.len() < most;
            from = ids.last().and_then(|(id, _)| id.next());
            let mut page: Vec<_> = ids.into_iter().map(|(id, slot)| (id, Place::Growing(at, slot))).collect();
            matching.keep(&mut page)?;
            taken += page.len();
            found.append(&mut page);
            if is_last || from.is_none() {
                break;
            }
        }
    }
    // An id that moves while we look may be seen twice: growing places sort first and win.
    found.sort_unstable();
    found.dedup_by_key(|(id, _)| *id);
    let next = found.get(limit).map(|(id, _)| *id);
    found.truncate(limit);
    let records = fetcher.records(&found)?;
    Ok(Held { value: Page { records, next }, memory: vec![fetcher.memory] })
}

/// The next rows of a segment that are alive and may pass, at most so many; `from` goes behind them.
pub(crate) fn next_rows(segment: &Segment, passing: Option<&Passing>, from: &mut u32, most: usize) -> Vec<u32> {
    let mut rows = Vec::with_capacity(most);
    while rows.len() < most && *from < segment.meta.points {
        if let Some(passing) = passing {
            let Some(row) = passing.rows.next(*from) else {
                *from = segment.meta.points;
                break;
            };
            *from = row;
        }
        if !segment.dead.get(*from) {
            rows.push(*from);
        }
        *from += 1;
    }
    rows
}

/// The points of some rows of a segment.
pub(crate) fn sealed_page(shared: &Shared, view: &View, at: usize, rows: Vec<u32>) -> Result<Vec<(PointId, Place)>> {
    let segment = &view.segments[at];
    let ids = segment.ids(&shared.pages, &rows)?;
    Ok(ids.into_iter().zip(rows).map(|(id, row)| (id, Place::Sealed(at, row))).collect())
}

/// Rows that are looked at together.
pub(crate) const ROWS: u32 = 512;

/// Shows the points of the growing parts, oldest first, some at a time.
pub(crate) fn each_growing(view: &View, each: impl FnMut(&mut Vec<(PointId, Place)>) -> Result<()>) -> Result<()> {
    each_growing_to(view, 1, each)
}

/// The same, and then those that came meanwhile, so many times at most.
pub(crate) fn each_growing_to(
    view: &View,
    times: usize,
    mut each: impl FnMut(&mut Vec<(PointId, Place)>) -> Result<()>,
) -> Result<()> {
    for (at, part) in view.oldest_growing() {
        let mut from = 0;
        for _ in 0..times {
            let slots = part.read().slots() as u32;
            for slot in (from..slots).step_by(ROWS as usize) {
                cancel::check()?;
                let inner = part.read();
                let alive = (slot..slots.min(slot + ROWS)).filter(|slot| !inner.is_dead(*slot));
                let mut page: Vec<_> = alive.map(|slot| (inner.id(slot), Place::Growing(at, slot))).collect();
                drop(inner);
                each(&mut page)?;
            }
            from = slots;
        }
    }
    Ok(())
}

/// The keys that an index would have of each of at most [`TEXTS`] points.
pub(crate) fn keys(
    shared: &Shared,
    view: &View,
    points: &[(PointId, Place)],
    path: &Path,
    schema: &Schema,
) -> Result<Vec<Vec<Box<[u8]>>>> {
    let mut held = shared.accounts.queries.try_reserve(0)?;
    let mut values = shared.accounts.queries.try_reserve(0)?;
    let texts = payloads(shared, &shared.pages, view, points, &mut held)?;
    let of = |text: String| {
        let mut keys = Vec::new();
        let payload = payload::parse_keys(&text, &[path.first()], &mut values)?;
        schema.keys(path, &payload, &mut |key| keys.push(key.into()));
        Ok(keys)
    };
    texts.into_iter().map(of).collect()
}

/// The word at a path of a point that has this key.
pub(crate) fn word(shared: &Shared, view: &View, place: Place, path: &Path, key: &[u8]) -> Result<String> {
    let mut held = shared.accounts.queries.try_reserve(0)?;
    let mut values = shared.accounts.queries.try_reserve(0)?;
    let texts = payloads(shared, &shared.pages, view, &[(PointId::Num(0), place)], &mut held)?;
    let payload = payload::parse_keys(&texts[0], &[path.first()], &mut values)?;
    let found = Schema::Keyword.find(path, &payload, key);
    found
        .and_then(|value| value.as_str())
        .map(str::to_owned)
        .ok_or_else(|| Error::busy("a point has changed; try again"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]
pub(crate) mod tests {
    use super::*;
    use crate::api::{Batch, CollectionConfig};
    use crate::catalog_cost::HeldConfig;
    use crate::collection::{Located, Logged};
    use crate::growing::Growing;
    use ramekin_memory::Budget;
    use std::cell::Cell;
    use std::collections::BTreeMap;

    const ID: PointId = PointId::Num(7);

    /// A collection of which points move while it is read.
    pub(crate) struct Moving {
        pub(crate) collection: Collection,
        pages: Pages,
        _folder: tempfile::TempDir,
    }

    impl Moving {
        pub(crate) fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (disk, _) = ramekin_disk::probe(folder.path(), Some(ramekin_disk::Engine::Pread)).unwrap();
            let budget = Budget::new(16 << 20);
            let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
            let config = CollectionConfig { full_scan_threshold_kib: 0, ..CollectionConfig::new(BTreeMap::new()) };
            let (account, none) = (budget.root().child("growing", ""), || budget.root().try_reserve(0).unwrap());
            let config = HeldConfig::new(config, none());
            let collection = Collection::new(1, "c", config, none(), &account, 0).unwrap();
            Self { collection, pages, _folder: folder }
        }

        fn with_one() -> Self {
            let moving = Self::new();
            moving.put(ID);
            moving
        }

        /// Puts a point where points go now.
        pub(crate) fn put(&self, id: PointId) {
            let batch = Batch { ids: vec![id], ..Batch::default() };
            self.collection.view.load().active.promise(Growing::bytes_for(&batch)).unwrap();
            self.collection
                .apply_upsert(
                    &self.pages,
                    &batch,
                    Logged { position: 1, sequence: 1 },
                    |_| PayloadAt::default(),
                    None,
                    Located::default(),
                )
                .unwrap();
        }

        /// A new part begins, and the point goes there.
        fn go_on(&self) {
            assert!(self.collection.freeze().unwrap());
            self.put(ID);
        }

        /// The parts that wait are gone, as after a seal.
        fn forget_frozen(&self) {
            let _change = self.collection.change.lock();
            let keep = |view: &View| View { active: view.active.clone(), frozen: Vec::new(), segments: Vec::new() };
            _ = self.collection.swap(keep);
        }
    }

    /// Where the point is alive.
    fn standing(view: &View) -> Vec<usize> {
        view.growing().enumerate().filter(|(_, part)| part.read().find(ID).is_some()).map(|(at, _)| at).collect()
    }

    #[test]
    fn a_part_that_is_begun_meanwhile_is_looked_at_too() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            moving.go_on();
            moving.go_on();
            Ok(())
        };
        assert_eq!(on_view(&moving.collection, sealed, |view, ()| Ok(Some(standing(view)))).unwrap(), [0]);
        assert_eq!(looks.get(), 1);
    }

    #[test]
    fn a_part_that_came_and_went_lets_all_begin_again() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                moving.go_on();
                moving.go_on();
                moving.forget_frozen();
            }
            Ok(())
        };
        assert_eq!(on_view(&moving.collection, sealed, |view, ()| Ok(Some(standing(view)))).unwrap(), [0]);
        assert_eq!(looks.get(), 2);
    }

    #[test]
    fn a_part_that_is_begun_while_the_answer_is_made_is_seen() {
        let (moving, looks, answers) = (Moving::with_one(), Cell::new(0), Cell::new(0));
        let answer = |view: &View, (): &()| {
            answers.set(answers.get() + 1);
            if answers.get() <= 2 {
                moving.go_on();
            }
            Ok(Some(standing(view)))
        };
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            Ok(())
        };
        assert_eq!(on_view(&moving.collection, sealed, answer).unwrap(), [0]);
        assert_eq!((looks.get(), answers.get()), (1, 3));
    }

    #[test]
    fn a_read_that_is_always_too_slow_keeps_changes_out() {
        let moving = Moving::with_one();
        let sealed = |_: &View| {
            let is_last = moving.collection.is_read_still();
            if !is_last {
                moving.go_on();
                moving.go_on();
                moving.forget_frozen();
            }
            Ok(is_last)
        };
        let answer = |view: &View, is_last: &bool| Ok(Some((standing(view), *is_last)));
        assert_eq!(on_view(&moving.collection, sealed, answer).unwrap(), (vec![0], true));
    }

    #[test]
    fn an_error_counts_only_where_nothing_has_changed() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let answer = |_: &View, (): &()| {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                moving.go_on();
            }
            Err::<Option<()>, _>(Error::io("gone"))
        };
        assert!(on_view(&moving.collection, |_| Ok(()), answer).is_err());
        assert_eq!(looks.get(), 2);
    }

    #[test]
    fn parts_that_come_and_go_do_not_matter_where_no_point_has_moved() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let other = |id| {
            moving.collection.freeze().unwrap();
            moving.put(PointId::Num(id));
        };
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            [100, 101].into_iter().for_each(|id| other(id + 10 * looks.get()));
            moving.forget_frozen();
            Ok(())
        };
        assert_eq!(on_view(&moving.collection, sealed, |view, ()| Ok(Some(standing(view)))).unwrap(), [0]);
        assert_eq!(looks.get(), 1);
    }
}
