//! Points by their ids: get, scroll, and the parts of points that any answer needs.
//!
//! ```text
//!   id ─► active ─► immutable ─► segments        the first that holds it alive has it
//!   scroll: the smallest ids of every part, merged; a page is as long as asked and no longer
//! ```

use crate::api::{Held, Page, Parts, PayloadParts, Record, VectorParts};
use crate::collection::Collection;
use crate::memtable::ColumnData;
use crate::payload::{self, log};
use crate::query::env::QueryEnv;
use crate::query::index_filter::IndexFilterResult;
use crate::query::payload_filter::PayloadFilter;
use crate::query::view::ReadView;
use crate::segment::SegmentView;
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_fields::{Filter, Path, Schema};
use ramekin_memory::Reservation;
use ramekin_pages::Pages;

/// Where a point stands: a memtable (by its place from newest) and slot, or a segment and row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Memtable(usize, u32),
    Segment(usize, u32),
}

/// The place of each id that is alive.
pub(crate) fn places(view: &ReadView<'_>, ids: &[PointId]) -> Result<Vec<Option<Place>>> {
    let mut places: Vec<Option<Place>> = vec![None; ids.len()];
    for (at, segment) in view.segments.iter().enumerate() {
        for (place, row) in places.iter_mut().zip(segment.find(&view.env.pages, ids)?) {
            if let Some(row) = row.filter(|row| !segment.dead.get(*row)) {
                *place = Some(Place::Segment(at, row));
            }
        }
    }
    for (at, part) in view.memtables().enumerate() {
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
    pages: &'a Pages,
    view: &'a ReadView<'a>,
    parts: &'a Parts,
    pub(crate) memory: Reservation,
}

impl<'a> Fetcher<'a> {
    /// `pages` are the store's, or a handle that counts.
    pub(crate) fn new(pages: &'a Pages, view: &'a ReadView<'a>, parts: &'a Parts) -> Result<Self> {
        Ok(Self { pages, view, parts, memory: view.env.account.try_reserve(0)? })
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
            let texts = payloads(self.pages, self.view, chunk, &mut self.memory)?;
            for (text, record) in texts.into_iter().zip(records) {
                let account = &self.view.env.account;
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

/// The payload texts of at most [`TEXTS`] points, in their order; empty where a point has none. `memory` grows by what
/// they hold.
pub(crate) fn payloads(
    pages: &Pages,
    view: &ReadView<'_>,
    points: &[(PointId, Place)],
    memory: &mut Reservation,
) -> Result<Vec<String>> {
    let growing: Vec<_> = view.memtables().collect();
    let mut found = vec![String::new(); points.len()];
    let mut in_log = Vec::with_capacity(points.len());
    for (at, (_, place)) in points.iter().enumerate() {
        if let Place::Memtable(part, slot) = place {
            in_log.push((at, growing[*part].read().payload(*slot)));
        }
    }
    log::read_log(&view.log, pages, in_log, memory, &mut found)?;
    for (number, segment) in view.segments.iter().enumerate() {
        let (at, rows) = rows_of(points, number);
        if !rows.is_empty() {
            at.into_iter()
                .zip(segment.payloads(pages, &view.log, &rows, memory)?)
                .for_each(|(at, text)| found[at] = text);
        }
    }
    Ok(found)
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
    env: &QueryEnv,
    collection: &Collection,
    ids: &[PointId],
    parts: &Parts,
) -> Result<Held<Vec<Record>>> {
    let view = &ReadView::pin(env, collection)?;
    let mut fetcher = Fetcher::new(&env.pages, view, parts)?;
    fetcher.memory.grow(ids.len() as u64 * size_of::<Record>() as u64)?;
    let mut records = Vec::with_capacity(ids.len());
    for ids in ids.chunks(IDS) {
        let _looking = env.account.try_reserve(ids.len() as u64 * 256)?;
        let places = places(view, ids)?;
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
    env: &QueryEnv,
    collection: &Collection,
    from: Option<PointId>,
    limit: usize,
    filter: &Filter,
    parts: &Parts,
) -> Result<Held<Page>> {
    let filter = &collection.config.load().resolve(filter, &env.account)?;
    let view = &ReadView::pin(env, collection)?;
    let matching = PayloadFilter::new(&env.pages, view, filter)?;
    let mut fetcher = Fetcher::new(&env.pages, view, parts)?;
    let limit = (limit as u64).min(view.live()) as usize;
    let most = limit as u64 + 1;
    let new = view.memtables().map(|part| part.moment.live());
    let rows = view.segments.iter().map(SegmentView::live).chain(new);
    let entries = most + rows.map(|rows| rows.min(most)).sum::<u64>();
    fetcher.memory.grow(entries * ENTRY_BYTES + (most + 64) * (ENTRY_BYTES + 64))?;
    let mut found: Vec<(PointId, Place)> = Vec::new();
    for (at, segment) in view.segments.iter().enumerate() {
        let mut row = match from {
            Some(from) => segment.rank(&env.pages, from)?,
            None => 0,
        };
        let passing = if filter.is_empty() { None } else { Some(matching.passing(at)?) };
        let mut taken = 0;
        while row < segment.meta.points && taken <= limit {
            cancel::check()?;
            let most = (limit + 1 - taken).clamp(16, 512);
            let rows = next_rows(segment, passing.as_ref(), &mut row, most);
            let mut page = segment_page(view, at, rows)?;
            if passing.as_ref().is_some_and(|passing| !passing.is_sure()) {
                matching.keep(&mut page)?;
            }
            taken += page.len();
            found.append(&mut page);
        }
    }
    for (at, part) in view.memtables().enumerate() {
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
    found.sort_unstable();
    let next = found.get(limit).map(|(id, _)| *id);
    found.truncate(limit);
    let records = fetcher.records(&found)?;
    Ok(Held { value: Page { records, next }, memory: vec![fetcher.memory] })
}

/// The next rows of a segment that are alive and may pass, at most so many; `from` goes behind them.
pub(crate) fn next_rows(
    segment: &SegmentView,
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
pub(crate) fn segment_page(view: &ReadView<'_>, at: usize, rows: Vec<u32>) -> Result<Vec<(PointId, Place)>> {
    let segment = &view.segments[at];
    let ids = segment.ids(&view.env.pages, &rows)?;
    Ok(ids.into_iter().zip(rows).map(|(id, row)| (id, Place::Segment(at, row))).collect())
}

/// Rows that are looked at together.
pub(crate) const ROWS: u32 = 512;

/// Shows the points of the memtables, some at a time.
pub(crate) fn each_growing(
    view: &ReadView<'_>,
    mut each: impl FnMut(&mut Vec<(PointId, Place)>) -> Result<()>,
) -> Result<()> {
    for (at, part) in view.memtables().enumerate() {
        let slots = part.moment.slots;
        for slot in (0..slots).step_by(ROWS as usize) {
            cancel::check()?;
            let inner = part.read();
            let alive = (slot..slots.min(slot + ROWS)).filter(|slot| !inner.is_dead(*slot));
            let mut page: Vec<_> = alive.map(|slot| (inner.id(slot), Place::Memtable(at, slot))).collect();
            drop(inner);
            each(&mut page)?;
        }
    }
    Ok(())
}

/// The keys that an index would have of each of at most [`TEXTS`] points.
pub(crate) fn keys(
    view: &ReadView<'_>,
    points: &[(PointId, Place)],
    path: &Path,
    schema: &Schema,
) -> Result<Vec<Vec<Box<[u8]>>>> {
    let mut held = view.env.account.try_reserve(0)?;
    let mut values = view.env.account.try_reserve(0)?;
    let texts = payloads(&view.env.pages, view, points, &mut held)?;
    let of = |text: String| {
        let mut keys = Vec::new();
        let payload = payload::parse_keys(&text, &[path.first()], &mut values)?;
        schema.keys(path, &payload, &mut |key| keys.push(key.into()));
        Ok(keys)
    };
    texts.into_iter().map(of).collect()
}

/// The word at a path of a point that has this key.
pub(crate) fn word(view: &ReadView<'_>, place: Place, path: &Path, key: &[u8]) -> Result<String> {
    let mut held = view.env.account.try_reserve(0)?;
    let mut values = view.env.account.try_reserve(0)?;
    let texts = payloads(&view.env.pages, view, &[(PointId::Num(0), place)], &mut held)?;
    let payload = payload::parse_keys(&texts[0], &[path.first()], &mut values)?;
    let found = Schema::Keyword.find(path, &payload, key);
    found
        .and_then(|value| value.as_str())
        .map(str::to_owned)
        .ok_or_else(|| Error::corrupt("a value of an index does not stand in its payload"))
}
