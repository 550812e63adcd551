//! Points by their ids: get, scroll, and the parts of points that any answer needs.
//!
//! ```text
//!   id ─► active ─► immutable ─► segments        the first that holds it alive has it
//!   scroll: the smallest ids of every part, merged; a page is as long as asked and no longer
//! ```

use crate::api::{Held, Page, Parts, PayloadParts, Record, VectorParts};
use crate::append::RECORD_BYTES;
use crate::collection::{Collection, View};
use crate::consistent::read_consistent;
use crate::index_filter::IndexFilterResult;
use crate::memtable::{ColumnData, PayloadAt};
use crate::payload_filter::PayloadFilter;
use crate::segment::Segment;
use crate::store_inner::StoreInner;
use crate::{payload, texts};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_fields::{Filter, Path, Prepared, Schema};
use ramekin_log::LogReader;
use ramekin_memory::Reservation;
use ramekin_pages::Pages;

/// Where a point stands: a memtable (by its place from newest) and slot, or a segment and row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Memtable(usize, u32),
    Segment(usize, u32),
}

/// The place of each id that is alive.
pub(crate) fn places(shared: &StoreInner, view: &View, ids: &[PointId]) -> Result<Vec<Option<Place>>> {
    // Segments first: a point that moves while we look goes from a segment to the active part.
    let mut places: Vec<Option<Place>> = vec![None; ids.len()];
    for (at, segment) in view.segments.iter().enumerate() {
        for (place, row) in places.iter_mut().zip(segment.find(&shared.pages, ids)?) {
            if let Some(row) = row.filter(|row| !segment.dead.get(*row)) {
                *place = Some(Place::Segment(at, row));
            }
        }
    }
    for (at, part) in view.oldest_memtables() {
        let inner = part.read();
        for (place, id) in places.iter_mut().zip(ids) {
            if let Some(slot) = inner.find(*id) {
                *place = Some(Place::Memtable(at, slot));
            }
        }
    }
    Ok(places)
}

/// The first of some ids that is not among the records that were found.
pub(crate) fn missing(ids: &[PointId], found: &[Record]) -> Option<PointId> {
    ids.iter().copied().find(|id| !found.iter().any(|record| record.id == *id))
}

/// Reads points part by part; memory for what comes back is reserved as it grows.
pub(crate) struct Fetcher<'a> {
    shared: &'a StoreInner,
    pages: &'a Pages,
    view: &'a View,
    parts: &'a Parts,
    pub(crate) memory: Reservation,
}

impl<'a> Fetcher<'a> {
    /// `pages` are the store's, or a handle that counts.
    pub(crate) fn new(shared: &'a StoreInner, pages: &'a Pages, view: &'a View, parts: &'a Parts) -> Result<Self> {
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
        let growing: Vec<_> = self.view.memtables().collect();
        for ((_, place), record) in wanted.iter().zip(records.iter_mut()) {
            let Place::Memtable(part, slot) = place else { continue };
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
    shared: &StoreInner,
    pages: &Pages,
    view: &View,
    points: &[(PointId, Place)],
    memory: &mut Reservation,
) -> Result<Vec<String>> {
    let log = shared.log_reader()?;
    let growing: Vec<_> = view.memtables().collect();
    let mut found = vec![String::new(); points.len()];
    let mut in_log = Vec::with_capacity(points.len());
    for (at, (_, place)) in points.iter().enumerate() {
        if let Place::Memtable(part, slot) = place {
            in_log.push((at, growing[*part].read().payload(*slot)));
        }
    }
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
pub(crate) fn read_log(
    log: &LogReader,
    pages: &Pages,
    mut places: Vec<(usize, PayloadAt)>,
    memory: &mut Reservation,
    found: &mut [String],
) -> Result<()> {
    places.retain(|(_, place)| place.len > 0);
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
        Place::Segment(number, row) if *number == segment => Some((at, *row)),
        _ => None,
    };
    chunk.iter().enumerate().filter_map(of).unzip()
}

/// Points by id, in the order asked; what is not there is left out.
pub(crate) fn get(
    shared: &StoreInner,
    collection: &Collection,
    ids: &[PointId],
    parts: &Parts,
) -> Result<Held<Vec<Record>>> {
    read_consistent(collection, |_| Ok(()), |view, ()| get_from(shared, view, ids, parts).map(Some))
}

fn get_from(shared: &StoreInner, view: &View, ids: &[PointId], parts: &Parts) -> Result<Held<Vec<Record>>> {
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
    shared: &StoreInner,
    collection: &Collection,
    from: Option<PointId>,
    limit: usize,
    filter: &Filter,
    parts: &Parts,
) -> Result<Held<Page>> {
    let filter = collection.config.load().resolve(filter, &shared.accounts.queries)?;
    let filter = &filter;
    read_consistent(collection, |_| Ok(()), |view, ()| scroll_from(shared, view, from, limit, filter, parts).map(Some))
}

/// A page that is as long as all points may hold so many that come while it is read.
const MARGIN: usize = 64;

fn scroll_from(
    shared: &StoreInner,
    view: &View,
    from: Option<PointId>,
    limit: usize,
    filter: &Prepared<'_>,
    parts: &Parts,
) -> Result<Held<Page>> {
    let matching = PayloadFilter::new(shared, &shared.pages, view, filter)?;
    let mut fetcher = Fetcher::new(shared, &shared.pages, view, parts)?;
    // Points may come while it looks; a page that is full says where to go on.
    let limit = limit.min(view.points_at_most() + MARGIN);
    let most = limit as u64 + 1;
    let immutable = view.immutable.iter().map(|part| part.read().live() as u64);
    let rows = view.segments.iter().map(|segment| u64::from(segment.meta.points)).chain(immutable);
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
            let mut page = segment_page(shared, view, at, rows)?;
            if passing.as_ref().is_some_and(|passing| !passing.is_sure()) {
                matching.keep(&mut page)?;
            }
            taken += page.len();
            found.append(&mut page);
        }
    }
    for (at, part) in view.oldest_memtables() {
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
            let mut page: Vec<_> = ids.into_iter().map(|(id, slot)| (id, Place::Memtable(at, slot))).collect();
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
pub(crate) fn next_rows(
    segment: &Segment,
    passing: Option<&IndexFilterResult>,
    from: &mut u32,
    most: usize,
) -> Vec<u32> {
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
pub(crate) fn segment_page(
    shared: &StoreInner,
    view: &View,
    at: usize,
    rows: Vec<u32>,
) -> Result<Vec<(PointId, Place)>> {
    let segment = &view.segments[at];
    let ids = segment.ids(&shared.pages, &rows)?;
    Ok(ids.into_iter().zip(rows).map(|(id, row)| (id, Place::Segment(at, row))).collect())
}

/// Rows that are looked at together.
pub(crate) const ROWS: u32 = 512;

/// Shows the points of the memtables, oldest first, some at a time.
pub(crate) fn each_growing(view: &View, each: impl FnMut(&mut Vec<(PointId, Place)>) -> Result<()>) -> Result<()> {
    each_growing_to(view, 1, each)
}

/// The same, and then those that came meanwhile, so many times at most.
pub(crate) fn each_growing_to(
    view: &View,
    times: usize,
    mut each: impl FnMut(&mut Vec<(PointId, Place)>) -> Result<()>,
) -> Result<()> {
    for (at, part) in view.oldest_memtables() {
        let mut from = 0;
        for _ in 0..times {
            let slots = part.read().slots() as u32;
            for slot in (from..slots).step_by(ROWS as usize) {
                cancel::check()?;
                let inner = part.read();
                let alive = (slot..slots.min(slot + ROWS)).filter(|slot| !inner.is_dead(*slot));
                let mut page: Vec<_> = alive.map(|slot| (inner.id(slot), Place::Memtable(at, slot))).collect();
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
    shared: &StoreInner,
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
pub(crate) fn word(shared: &StoreInner, view: &View, place: Place, path: &Path, key: &[u8]) -> Result<String> {
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
