//! Which rows of a segment pass a filter, as far as the indexes of its fields say.
//!
//! ```text
//!   all rows ─► the indexes take out what does not pass ─► rows that pass, or may
//!           (or this is remembered)      stale rows come back ──►  rows that must be asked, as those that no index knows all of
//! ```

use crate::collection::MemtableView;
use crate::query::env::QueryEnv;
use crate::query::filter_cache::{CachedFilter, Found, Lookup};
use crate::query::payload_filter::PayloadFilter;
use crate::query::read::TEXTS;
use crate::segment::SegmentView;
use crate::segment::field::{self, FieldIndex};
use ramekin_base::{Error, Result, cancel};
use ramekin_fields::{Bitmap, Condition, Evaluation, FieldMemtable, FieldRows, Path, Schema, Stepped, Verdict};
use ramekin_pages::Pages;
use std::sync::Arc;

pub(crate) struct IndexFilterResult {
    /// Dead rows may be among them.
    pub(crate) rows: Arc<Bitmap>,
    /// How many they are, when this was made.
    pub(crate) count: u64,
    /// The indexes could answer all of the filter.
    is_exact: bool,
    /// Rows that must be asked: the indexes do not know all of them, or what stood there has changed.
    unsure: Option<Arc<Bitmap>>,
    /// What was expected before looking: as many at most.
    pub(crate) estimate: u64,
    /// The indexes' answer, where it is remembered.
    pub(crate) cached: Option<Arc<CachedFilter>>,
}

impl IndexFilterResult {
    /// The rows, to be changed.
    pub(crate) fn own(&mut self) -> Result<&mut Bitmap> {
        own(&mut self.rows)
    }

    /// Whether a row that may pass must be asked.
    pub(crate) fn is_unsure(&self, row: u32) -> bool {
        !self.is_exact || self.unsure.as_ref().is_some_and(|unsure| unsure.get(row))
    }

    /// Whether each of a few of its rows passes.
    pub(crate) fn of(&self, matching: &PayloadFilter<'_>, segment: usize, rows: &[u32]) -> Result<Vec<bool>> {
        let unsure: Vec<u32> = rows.iter().copied().filter(|row| self.is_unsure(*row)).collect();
        let mut asked = if unsure.is_empty() { Vec::new() } else { matching.rows(segment, &unsure)? }.into_iter();
        Ok(rows.iter().map(|row| !self.is_unsure(*row) || asked.next().unwrap_or(false)).collect())
    }

    /// The rows that pass, once those that may were asked; dead ones may be among them.
    pub(crate) fn sure(&self, matching: &PayloadFilter<'_>, segment: usize) -> Result<Bitmap> {
        let mut rows = self.rows.copy()?;
        if self.is_sure() {
            return Ok(rows);
        }
        let mut unsure = self.rows.iter().filter(|row| self.is_unsure(*row)).peekable();
        while unsure.peek().is_some() {
            let some: Vec<u32> = unsure.by_ref().take(TEXTS).collect();
            for (row, passes) in some.iter().zip(matching.rows(segment, &some)?) {
                if !passes {
                    rows.words_mut()[*row as usize / 64] &= !(1 << (row % 64));
                }
            }
        }
        Ok(rows)
    }

    /// Each row that is left passes.
    pub(crate) fn is_sure(&self) -> bool {
        self.is_exact && self.unsure.is_none()
    }
}

impl PayloadFilter<'_> {
    /// The rows of a segment that pass, or may.
    pub(crate) fn passing(&self, segment: usize) -> Result<IndexFilterResult> {
        let (segment, pool) = (&self.view.segments[segment], &self.view.env.bitmaps);
        let fields = &segment.fields;
        let rows = segment.meta.points as usize;
        let known = Known { segment, pages: self.pages, fields };
        let evaluation = Evaluation { pages: self.pages, segment: &known, rows, room: self.filter.room() };
        let remembered = &self.view.env.filter_cache;
        let points = self.view.segments.iter().map(|segment| u64::from(segment.meta.points)).sum();
        let answer = remembered.ask(segment, points, fields, self.filter);
        let found = match &answer {
            Lookup::Known(cached) => cached.found.clone(),
            _ => {
                let mut passing = Bitmap::all(rows, pool)?;
                let Verdict { is_exact, most, unsure } = evaluation.keep(self.filter, &mut passing)?;
                let (count, unsure) = (passing.count(), unsure.map(Arc::new));
                Found { rows: Arc::new(passing), count, is_exact, unsure, estimate: most }
            }
        };
        let cached = match answer {
            Lookup::Known(cached) => Some(cached),
            Lookup::Again(key) => remembered.keep(key, fields, self.filter, found.clone()),
            Lookup::New => None,
        };
        let Found { rows: mut passing, mut count, is_exact, mut unsure, estimate } = found;
        if let Some(mut stale) = field::stale(segment, fields, pool)? {
            let passing = own(&mut passing)?;
            passing.or(&stale);
            count = passing.count();
            unsure.iter().for_each(|unsure| stale.or(unsure));
            unsure = Some(Arc::new(stale));
        }
        Ok(IndexFilterResult { rows: passing, count, is_exact, unsure, estimate, cached })
    }
}

/// Which slots of a memtable pass a filter, as far as its fields say.
pub(crate) struct NewPassing {
    may: Bitmap,
    /// What the fields do not know, or not all of.
    unsure: Option<Bitmap>,
    is_exact: bool,
}

impl NewPassing {
    /// Whether a point passes; `None`: its payload must be asked.
    pub(crate) fn of(&self, slot: u32) -> Option<bool> {
        match self.may.get(slot) {
            false => Some(false),
            true if self.is_exact && self.unsure.as_ref().is_none_or(|unsure| !unsure.get(slot)) => Some(true),
            true => None,
        }
    }

    pub(crate) fn may_pass(&self, slot: u32) -> bool {
        self.may.get(slot)
    }
}

impl PayloadFilter<'_> {
    /// The slots of a memtable that pass, or may. It is seen a little at a time, whatever the filter asks, and memory
    /// is asked for in between: the writer, and behind it all reads of it, wait for one such step. Whose payload changed, of
    /// old or meanwhile, is asked by it.
    pub(crate) fn new_passing(&self, part: &MemtableView) -> Result<NewPassing> {
        let (new, pool) = (New::of(self.view.env, part), &self.view.env.bitmaps);
        let slots = new.slots;
        let mut may = Bitmap::all(slots, pool)?;
        let evaluation = Evaluation { pages: self.pages, segment: &new, rows: slots, room: self.filter.room() };
        let Verdict { is_exact, unsure, .. } = evaluation.keep(self.filter, &mut may)?;
        let mut unsure = unsure.map_or_else(|| Bitmap::none(slots, pool), Ok)?;
        // After all others: what a payload was when a step saw it may not be what it is now.
        let has_same_fields = {
            let inner = part.read();
            inner.fields().iter().for_each(|field| field.add_unknown(&mut unsure));
            inner.fields_set() == new.fields_set
        };
        if !has_same_fields {
            return Ok(NewPassing { may: Bitmap::all(slots, pool)?, unsure: None, is_exact: false });
        }
        may.or(&unsure);
        let unsure = unsure.next(0).is_some().then_some(unsure);
        Ok(NewPassing { may, unsure, is_exact })
    }
}

/// A memtable as filters see it.
struct New<'a> {
    part: &'a MemtableView,
    fields: Vec<NewField<'a>>,
    slots: usize,
    fields_set: u64,
}

impl<'a> New<'a> {
    fn of(env: &'a QueryEnv, part: &'a MemtableView) -> Self {
        let inner = part.read();
        let field = |field: &FieldMemtable| {
            let (path, schema) = (field.path().clone(), field.schema().clone());
            NewField { env, part, path, schema }
        };
        let fields = inner.fields().iter().map(field).collect();
        Self { part, fields, slots: part.moment.slots as usize, fields_set: inner.fields_set() }
    }
}

/// A field of a memtable.
struct NewField<'a> {
    env: &'a QueryEnv,
    part: &'a MemtableView,
    path: Path,
    schema: Arc<Schema>,
}

impl Stepped for NewField<'_> {
    fn step(&self, step: &mut dyn FnMut(&FieldMemtable)) -> bool {
        let is_there = {
            let inner = self.part.read();
            let is_own = |field: &&FieldMemtable| *field.path() == self.path && *field.schema() == self.schema;
            inner.fields().iter().find(is_own).map(step).is_some()
        };
        self.env.reach("filter");
        is_there
    }
}

/// Ids that are looked up under one lock.
const STEP_IDS: usize = 1024;

impl ramekin_fields::Segment for New<'_> {
    fn index(&self, path: &Path, schema: Option<&Schema>) -> Option<FieldRows<'_>> {
        let is_asked =
            |field: &&NewField<'_>| field.path == *path && schema.is_none_or(|schema| *schema == *field.schema);
        self.fields.iter().find(is_asked).map(|field| FieldRows::Memory(field))
    }

    fn keep(&self, condition: &Condition, passing: &mut Bitmap) -> Result<bool> {
        match condition {
            // More ids than slots cost less when each slot is asked.
            Condition::HasId(ids) if ids.len() <= self.slots => {
                let mut found = passing.none_like()?;
                for ids in ids.chunks(STEP_IDS) {
                    cancel::check()?;
                    let inner = self.part.read();
                    ids.iter().filter_map(|id| inner.find(*id)).for_each(|slot| found.set(slot));
                }
                passing.and(&found);
                Ok(true)
            }
            // A bit a slot, of no more slots than a memtable may have.
            Condition::HasVector(name) => {
                let mut found = passing.none_like()?;
                let inner = self.part.read();
                let slots = inner.column(name).into_iter().flat_map(|column| column.slots());
                slots.take_while(|slot| (**slot as usize) < self.slots).for_each(|slot| found.set(*slot));
                drop(inner);
                passing.and(&found);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// A bitmap that nobody else sees.
fn own(rows: &mut Arc<Bitmap>) -> Result<&mut Bitmap> {
    if Arc::get_mut(rows).is_none() {
        *rows = Arc::new(rows.copy()?);
    }
    Arc::get_mut(rows).ok_or_else(|| Error::bug("a bitmap is shared by its only owner"))
}

/// A segment as filters see it.
struct Known<'a> {
    segment: &'a SegmentView,
    pages: &'a Pages,
    fields: &'a [Arc<FieldIndex>],
}

impl ramekin_fields::Segment for Known<'_> {
    fn index(&self, path: &Path, schema: Option<&Schema>) -> Option<FieldRows<'_>> {
        let is_asked =
            |field: &&Arc<FieldIndex>| field.path == *path && schema.is_none_or(|schema| *schema == *field.schema);
        self.fields.iter().find(is_asked).map(|field| FieldRows::File(&field.index))
    }

    fn keep(&self, condition: &Condition, passing: &mut Bitmap) -> Result<bool> {
        match condition {
            Condition::HasId(ids) => {
                let mut found = passing.none_like()?;
                for ids in ids.chunks(1024) {
                    cancel::check()?;
                    self.segment.find(self.pages, ids)?.into_iter().flatten().for_each(|row| found.set(row));
                }
                passing.and(&found);
                Ok(true)
            }
            Condition::HasVector(name) => {
                match self.segment.vector(name) {
                    None => passing.words_mut().fill(0),
                    Some((_, named)) => {
                        let mut found = passing.none_like()?;
                        (0..named.index.len() as u32).for_each(|ordinal| found.set(named.present.row(ordinal)));
                        passing.and(&found);
                    }
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
