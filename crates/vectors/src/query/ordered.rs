//! Points in the order of a field's values, a page of them.
//!
//! ```text
//!   segment 1   its index's rows in the order of their keys, those that pass, as many as asked ┐
//!   segment 2   ...                                                                            ├─ the first of all
//!   new points, and those whose payload has changed ─► their keys                              ┘
//! ```
//!
//! Equal values stand in the order of the ids; where values descend, so do these. Memory: a few more than is asked for.

use crate::api::{Held, Parts, Record};
use crate::collection::Collection;
use crate::query::env::QueryEnv;
use crate::query::index_filter::IndexFilterResult;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read::{self, Fetcher, Place, TEXTS};
use crate::query::view::ReadView;
use crate::segment::field::{self, FieldIndex};
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_fields::{Filter, Order, OrderValue, Prepared, Schema, ValuePredicate};
use ramekin_memory::Reservation;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Places of an index that are looked at together.
const STEP: u32 = 4096;

/// A point at a value: the value's key, which is as long for all that have an order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    key: [u8; 8],
    id: PointId,
    place: Place,
}

/// An entry in a list that doubles.
const ENTRY_BYTES: u64 = 2 * size_of::<Entry>() as u64;

/// The first entries of all that were pushed, as many as asked.
struct First {
    limit: usize,
    descending: bool,
    entries: Vec<Entry>,
    memory: Reservation,
}

impl First {
    fn push(&mut self, entry: Entry) -> Result<()> {
        if self.entries.len() >= self.limit.saturating_add(self.limit / 4 + TEXTS) {
            self.settle();
        }
        if self.entries.len() == self.entries.capacity() {
            let more = self.entries.len().max(TEXTS);
            self.memory.grow(more as u64 * ENTRY_BYTES)?;
            self.entries.reserve_exact(more);
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Puts them in order, and forgets those that are too many.
    fn settle(&mut self) {
        match self.descending {
            false => self.entries.sort_unstable(),
            true => self.entries.sort_unstable_by(|one, other| other.cmp(one)),
        }
        self.entries.truncate(self.limit);
    }
}

struct Asking<'a> {
    env: &'a QueryEnv,
    order: &'a Order,
    schema: &'a Arc<Schema>,
    /// Keys that count.
    predicate: ValuePredicate,
    filter: &'a Prepared<'a>,
    limit: usize,
}

/// Of the points that pass a filter in the order of a field those at some places, each with the value it stands at.
pub(crate) fn scroll(
    env: &QueryEnv,
    collection: &Collection,
    order: &Order,
    places: Range<usize>,
    filter: &Filter,
    parts: &Parts,
) -> Result<Held<Vec<Record>>> {
    let config = collection.config.load_full();
    let schema = config.indexes.get(&order.path).map(|field| &field.schema);
    let Some((schema, predicate)) = schema.and_then(|schema| Some((schema, order.predicate(schema)?))) else {
        return Err(Error::malformed(format!(
            "No range index for `order_by` key: `{}`. Please create one to order by this field: integer with range, float or \
             datetime",
            order.path
        )));
    };
    let filter = config.resolve(filter, &env.account)?;
    let asking = Asking { env, order, schema, predicate, filter: &filter, limit: places.end };
    let view = ReadView::pin(env, collection)?;
    let sealed = asking.sealed(&view)?;
    asking.answer(&view, sealed, places.start, parts)
}

impl Asking<'_> {
    fn first(&self) -> Result<First> {
        let memory = self.env.account.try_reserve(0)?;
        Ok(First { limit: self.limit, descending: self.order.descending, entries: Vec::new(), memory })
    }

    /// The first points of the segments of a view.
    fn sealed(&self, view: &ReadView<'_>) -> Result<First> {
        let mut first = self.first()?;
        let matching = PayloadFilter::new(&self.env.pages, view, self.filter)?;
        for (at, segment) in view.segments.iter().enumerate() {
            let mut passing = matching.passing(at)?;
            let (own, unknown) =
                field::known(segment, (&self.order.path, self.schema), passing.own()?, &self.env.bitmaps)?;
            if let Some(own) = own {
                self.walk(&matching, at, &passing, &own, &mut first)?;
            }
            for mut rows in unknown.iter().flat_map(|unknown| unknown.chunks::<TEXTS>()) {
                let mut passed = passing.of(&matching, at, &rows)?.into_iter();
                rows.retain(|_| passed.next().unwrap_or(false));
                self.add(view, &read::segment_page(view, at, rows.to_vec())?, &mut first)?;
            }
        }
        Ok(first)
    }

    /// Adds the first rows of an index that pass: in the order of their keys, then of the rows, which is that of the ids.
    fn walk(
        &self,
        matching: &PayloadFilter<'_>,
        at: usize,
        passing: &IndexFilterResult,
        field: &FieldIndex,
        first: &mut First,
    ) -> Result<()> {
        let (index, pages) = (&field.index, &self.env.pages);
        let ValuePredicate::Keys(ranges) = &self.predicate else { return Err(Error::bug("an order is of keys")) };
        let found = index.codes(pages, ranges, self.filter.room())?;
        let Some(codes) = found.last() else { return Ok(()) };
        let Range { mut start, mut end } = index.places(pages, codes)?;
        let (mut left, mut of) = (self.limit, Codes::default());
        let mut hits: Vec<(u32, u32)> = Vec::with_capacity(STEP as usize);
        while start < end && left > 0 {
            cancel::check()?;
            let some = match self.order.descending {
                false => start..end.min(start.saturating_add(STEP)),
                true => start.max(end.saturating_sub(STEP))..end,
            };
            (start, end) = if self.order.descending { (start, some.start) } else { (some.end, end) };
            hits.clear();
            let mut place = some.start;
            index.rows_at(pages, some, &mut |row| {
                if passing.rows.get(row) {
                    hits.push((row, place));
                }
                place += 1;
            })?;
            if self.order.descending {
                hits.reverse();
            }
            for hits in hits.chunks(TEXTS.min(left)) {
                let (rows, stands): (Vec<u32>, Vec<u32>) = hits.iter().copied().unzip();
                let passed = passing.of(matching, at, &rows)?;
                let points = read::segment_page(matching.view, at, rows)?;
                for (((id, place), stands), _) in points.iter().zip(stands).zip(passed).filter(|(_, passed)| *passed) {
                    let key = of.key(self.env, field, stands)?;
                    first.push(Entry { key, id: *id, place: *place })?;
                    left = left.saturating_sub(1);
                }
                if left == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Adds points whose payloads are asked, few at a time.
    fn add(&self, view: &ReadView<'_>, points: &[(PointId, Place)], first: &mut First) -> Result<()> {
        let keys = read::keys(view, points, &self.order.path, self.schema)?;
        for ((id, place), keys) in points.iter().zip(keys) {
            for key in keys.into_iter().collect::<BTreeSet<_>>() {
                if self.predicate.holds(&key) {
                    first.push(Entry { key: of_order(&key)?, id: *id, place: *place })?;
                }
            }
        }
        Ok(())
    }

    /// The first of these and of the memtables of a view, from a place on.
    fn answer(&self, view: &ReadView<'_>, mut first: First, from: usize, parts: &Parts) -> Result<Held<Vec<Record>>> {
        let matching = PayloadFilter::new(&self.env.pages, view, self.filter)?;
        read::each_growing(view, |page| {
            matching.keep(page)?;
            page.chunks(TEXTS).try_for_each(|points| self.add(view, points, &mut first))
        })?;
        first.settle();
        first.entries.drain(..from.min(first.entries.len()));
        let mut fetcher = Fetcher::new(&self.env.pages, view, parts)?;
        fetcher.memory.grow(first.entries.len() as u64 * size_of::<(PointId, Place)>() as u64)?;
        let points: Vec<_> = first.entries.iter().map(|entry| (entry.id, entry.place)).collect();
        let records = fetcher.records(&points)?;
        let ordered = |(record, entry): (_, &Entry)| {
            let value = OrderValue::of(self.schema, &entry.key);
            let value = value.ok_or_else(|| Error::corrupt("a key of an index is not of its kind"))?;
            Ok(Record { order_value: Some(value), ..record })
        };
        let found = records.into_iter().zip(&first.entries).map(ordered).collect::<Result<_>>()?;
        Ok(Held { value: found, memory: vec![fetcher.memory, first.memory] })
    }
}

/// The key of places that are near each other.
#[derive(Default)]
struct Codes {
    places: Range<u32>,
    key: [u8; 8],
}

impl Codes {
    fn key(&mut self, env: &QueryEnv, field: &FieldIndex, place: u32) -> Result<[u8; 8]> {
        if !self.places.contains(&place) {
            let (code, places) = field.index.code_at(&env.pages, place)?;
            (self.places, self.key) = (places, of_order(&field.index.key(&env.pages, code)?)?);
        }
        Ok(self.key)
    }
}

fn of_order(key: &[u8]) -> Result<[u8; 8]> {
    key.try_into().map_err(|_| Error::corrupt("a key of an index of numbers has 8 bytes"))
}
