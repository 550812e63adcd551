//! The values of a field, and how many points have each: those that most have.
//!
//! ```text
//!   segment 1   codes in the order of their keys ─► rows that count ┐
//!   segment 2   ...                                                ├─ by key ─► those with the most points
//!   new points, and those whose payload has changed ─► their keys  ┘
//! ```
//!
//! Counts are exact. Memory: what is asked for, and an entry for each different value of new and changed points.

use crate::api::{FacetValue, Held};
use crate::collection::Collection;
use crate::query::env::QueryEnv;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read::{self, Place, TEXTS};
use crate::query::view::ReadView;
use crate::segment::field::{self, FieldIndex};
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_fields::{Bitmap, Filter, Path, Prepared, Schema, key};
use ramekin_memory::Reservation;
use ramekin_pages::Pages;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

/// What an entry of new and changed points holds beside its key.
const ENTRY_BYTES: u64 = 128;

/// What is asked.
struct FacetRequest<'a> {
    path: &'a Path,
    schema: &'a Arc<Schema>,
    filter: &'a Prepared<'a>,
    limit: usize,
}

/// The values of a field that most of the points have that pass a filter, with their number: the most first, of those with
/// as many the least.
pub(crate) fn facet(
    env: &QueryEnv,
    collection: &Collection,
    path: &Path,
    limit: usize,
    filter: &Filter,
) -> Result<Held<Vec<(FacetValue, u64)>>> {
    let config = collection.config.load_full();
    let Some(schema) = config.indexes.get(path).map(|field| &field.schema).filter(|schema| has_values(schema)) else {
        return Err(Error::malformed(format!(
            "No appropriate index for faceting: `{path}`. Please create one to facet on this field: keyword, integer with \
             lookup, uuid or bool"
        )));
    };
    let filter = config.resolve(filter, &env.account)?;
    let request = FacetRequest { path, schema, filter: &filter, limit };
    let view = ReadView::pin(env, collection)?;
    let from_segments = request.of_segments(&view)?;
    request.answer(&view, from_segments)
}

fn has_values(schema: &Schema) -> bool {
    matches!(schema, Schema::Keyword | Schema::Integer { lookup: true, .. } | Schema::Uuid | Schema::Bool)
}

/// Values with their points, and where one of these stands.
struct Counts {
    by_key: BTreeMap<Box<[u8]>, (u64, Place)>,
    memory: Reservation,
}

/// So many points, of lower keys first, and where one of them stands.
type Best = (u64, Reverse<Box<[u8]>>, Place);

/// What the segments of a view say.
struct FromSegments {
    /// Of rows that no index knows.
    counts: Counts,
    /// Of each segment with an index the rows that count.
    parts: Vec<(usize, Arc<FieldIndex>, Bitmap)>,
}

impl FacetRequest<'_> {
    fn of_segments(&self, view: &ReadView<'_>) -> Result<FromSegments> {
        let account = &view.env.account;
        let matching = PayloadFilter::new(&view.env.pages, view, self.filter)?;
        let counts = Counts { by_key: BTreeMap::new(), memory: account.try_reserve(0)? };
        let mut from_segments = FromSegments { counts, parts: Vec::new() };
        for (at, segment) in view.segments.iter().enumerate() {
            let mut rows = matching.passing(at)?.sure(&matching, at)?;
            let (index, unknown) = field::known(segment, (self.path, self.schema), &mut rows, &view.env.bitmaps)?;
            for some in unknown.iter().flat_map(|unknown| unknown.chunks::<TEXTS>()) {
                let points: Vec<_> = some.iter().map(|row| (PointId::Num(0), Place::Segment(at, *row))).collect();
                self.add(view, &points, &mut from_segments.counts)?;
            }
            from_segments.parts.extend(index.map(|index| (at, index, rows)));
        }
        Ok(from_segments)
    }

    /// Adds points whose payloads are asked, few at a time.
    fn add(&self, view: &ReadView<'_>, points: &[(PointId, Place)], counts: &mut Counts) -> Result<()> {
        let keys = read::keys(view, points, self.path, self.schema)?;
        for ((_, place), keys) in points.iter().zip(keys) {
            for key in keys.into_iter().collect::<BTreeSet<_>>() {
                if !counts.by_key.contains_key(&key) {
                    counts.memory.grow(key.len() as u64 + ENTRY_BYTES)?;
                }
                counts.by_key.entry(key).or_insert((0, *place)).0 += 1;
            }
        }
        Ok(())
    }

    /// The same with the memtables of a view.
    fn answer(&self, view: &ReadView<'_>, from_segments: FromSegments) -> Result<Held<Vec<(FacetValue, u64)>>> {
        let account = &view.env.account;
        let mut held = account.try_reserve(0)?;
        let FromSegments { counts: mut fresh, parts } = from_segments;
        let matching = PayloadFilter::new(&view.env.pages, view, self.filter)?;
        read::each_growing(view, |page| {
            matching.keep(page)?;
            page.chunks(TEXTS).try_for_each(|points| self.add(view, points, &mut fresh))
        })?;
        let pages = &view.env.pages;
        let mut cursors = Vec::with_capacity(parts.len());
        for (at, field, rows) in &parts {
            let mut cursor = Cursor { segment: *at, field, rows, code: 0, next: None };
            cursor.advance(pages)?;
            cursors.push(cursor);
        }
        let mut best: BinaryHeap<Reverse<Best>> = BinaryHeap::new();
        let mut fresh = fresh.by_key.into_iter().peekable();
        loop {
            let from_segments = cursors.iter().filter_map(|cursor| cursor.next.as_ref()).map(|(key, ..)| key).min();
            let Some(key) = from_segments.into_iter().chain(fresh.peek().map(|(key, _)| key)).min().cloned() else {
                break;
            };
            let new = fresh.next_if(|(own, _)| *own == key).map(|(_, counted)| counted);
            let mut total = new;
            for cursor in &mut cursors {
                if cursor.next.as_ref().is_some_and(|(own, ..)| *own == key) {
                    let (_, count, place) = cursor.next.take().ok_or_else(|| Error::bug("a value went"))?;
                    total = Some((total.map_or(0, |(count, _)| count) + count, place));
                    cursor.advance(pages)?;
                }
            }
            if let Some((count, place)) = total {
                if best.len() < self.limit {
                    held.grow(key::KEY_MAX as u64 + ENTRY_BYTES)?;
                }
                best.push(Reverse((count, Reverse(key), place)));
                if best.len() > self.limit {
                    best.pop();
                }
            }
        }
        let best = best.into_sorted_vec().into_iter();
        let mut value = Vec::with_capacity(best.len());
        for Reverse((count, Reverse(key), place)) in best {
            let one = self.value(view, &key, place)?;
            if let FacetValue::Word(word) = &one {
                // Of a long one the key has the beginning.
                held.grow(word.len().saturating_sub(key::KEY_MAX) as u64)?;
            }
            value.push((one, count));
        }
        Ok(Held { value, memory: vec![held] })
    }

    /// The value of a key, which a point at this place has.
    fn value(&self, view: &ReadView<'_>, key: &[u8], place: Place) -> Result<FacetValue> {
        let broken = || Error::corrupt("a key of an index is not of its kind");
        match &**self.schema {
            Schema::Bool => Ok(FacetValue::Bool(key == [1])),
            Schema::Integer { .. } => key::integer_of(key).map(FacetValue::Integer).ok_or_else(broken),
            Schema::Uuid => key::uuid_of(key).map(|uuid| FacetValue::Word(uuid.to_string())).ok_or_else(broken),
            _ => match key::word_of(key) {
                Some(word) => Ok(FacetValue::Word(word.to_owned())),
                // Of a long one the key has the beginning.
                None => read::word(view, place, self.path, key).map(FacetValue::Word),
            },
        }
    }
}

/// The values of one segment that points have, ascending.
struct Cursor<'a> {
    segment: usize,
    field: &'a FieldIndex,
    rows: &'a Bitmap,
    code: u32,
    /// The key, its points, and where one of them stands.
    next: Option<(Box<[u8]>, u64, Place)>,
}

impl Cursor<'_> {
    fn advance(&mut self, pages: &Pages) -> Result<()> {
        let index = &self.field.index;
        self.next = None;
        while self.code < index.meta().distinct && self.next.is_none() {
            cancel::check()?;
            let (mut count, mut last) = (0, 0);
            let places = index.places(pages, &(self.code..self.code + 1))?;
            index.rows_at(pages, places, &mut |row| {
                if self.rows.get(row) {
                    (count, last) = (count + 1, row);
                }
            })?;
            if count > 0 {
                self.next = Some((index.key(pages, self.code)?, count, Place::Segment(self.segment, last)));
            }
            self.code += 1;
        }
        Ok(())
    }
}
