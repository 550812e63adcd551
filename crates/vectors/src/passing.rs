//! Which rows of a segment pass a filter, as far as the indexes of its fields say.
//!
//! ```text
//!   all rows ─► the indexes take out what does not pass ─► rows that pass, or may
//!           (or this is remembered)      stale rows come back ──►  rows that must be asked, as those that no index knows all of
//! ```

use crate::field_index::{self, FieldIndex};
use crate::growing::{Growing, Inner};
use crate::matching::Matching;
use crate::read::TEXTS;
use crate::remembered::{Answer, Found, Kept};
use crate::segment::Segment;
use ramekin_base::{Error, Result, cancel};
use ramekin_fields::{Bitmap, Condition, Evaluation, FieldMemtable, FieldRows, Path, Schema, Verdict};
use ramekin_pages::Pages;
use std::sync::Arc;

pub(crate) struct Passing {
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
    pub(crate) kept: Option<Arc<Kept>>,
}

impl Passing {
    /// The rows, to be changed.
    pub(crate) fn own(&mut self) -> Result<&mut Bitmap> {
        own(&mut self.rows)
    }

    /// Whether a row that may pass must be asked.
    pub(crate) fn is_unsure(&self, row: u32) -> bool {
        !self.is_exact || self.unsure.as_ref().is_some_and(|unsure| unsure.get(row))
    }

    /// Whether each of a few of its rows passes.
    pub(crate) fn of(&self, matching: &Matching<'_>, segment: usize, rows: &[u32]) -> Result<Vec<bool>> {
        let unsure: Vec<u32> = rows.iter().copied().filter(|row| self.is_unsure(*row)).collect();
        let mut asked = if unsure.is_empty() { Vec::new() } else { matching.rows(segment, &unsure)? }.into_iter();
        Ok(rows.iter().map(|row| !self.is_unsure(*row) || asked.next().unwrap_or(false)).collect())
    }

    /// The rows that pass, once those that may were asked; dead ones may be among them.
    pub(crate) fn sure(&self, matching: &Matching<'_>, segment: usize) -> Result<Bitmap> {
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

impl Matching<'_> {
    /// The rows of a segment that pass, or may.
    pub(crate) fn passing(&self, segment: usize) -> Result<Passing> {
        let (segment, pool) = (&*self.view.segments[segment], &self.shared.bitmaps);
        let fields = segment.fields.read().clone();
        let rows = segment.meta.points as usize;
        let known = Known { segment, pages: self.pages, fields: &fields };
        let evaluation = Evaluation { pages: self.pages, segment: &known, rows, room: self.filter.room() };
        let remembered = &self.shared.remembered;
        let points = self.view.segments.iter().map(|segment| u64::from(segment.meta.points)).sum();
        let answer = remembered.ask(segment, points, &fields, self.filter);
        let found = match &answer {
            Answer::Known(kept) => kept.found.clone(),
            _ => {
                let mut passing = Bitmap::all(rows, pool)?;
                let Verdict { is_exact, most, unsure } = evaluation.keep(self.filter, &mut passing)?;
                let (count, unsure) = (passing.count(), unsure.map(Arc::new));
                Found { rows: Arc::new(passing), count, is_exact, unsure, estimate: most }
            }
        };
        let kept = match answer {
            Answer::Known(kept) => Some(kept),
            Answer::Again(question) => remembered.keep(question, &fields, self.filter, found.clone()),
            Answer::New => None,
        };
        let Found { rows: mut passing, mut count, is_exact, mut unsure, estimate } = found;
        // After the indexes were read: what changed meanwhile is asked.
        if let Some(mut stale) = field_index::stale(segment, &fields, pool)? {
            let passing = own(&mut passing)?;
            passing.or(&stale);
            count = passing.count();
            unsure.iter().for_each(|unsure| stale.or(unsure));
            unsure = Some(Arc::new(stale));
        }
        Ok(Passing { rows: passing, count, is_exact, unsure, estimate, kept })
    }
}

/// Which slots of a growing part pass a filter, as far as its fields say.
pub(crate) struct NewPassing {
    may: Bitmap,
    /// What the fields do not know, or not all of.
    unsure: Option<Bitmap>,
    is_exact: bool,
    /// Slots when this was made; later ones are asked.
    slots: u32,
}

impl NewPassing {
    /// Whether a point passes; `None`: its payload must be asked.
    pub(crate) fn of(&self, slot: u32) -> Option<bool> {
        match slot < self.slots {
            true if !self.may.get(slot) => Some(false),
            true if self.is_exact && self.unsure.as_ref().is_none_or(|unsure| !unsure.get(slot)) => Some(true),
            _ => None,
        }
    }

    pub(crate) fn may_pass(&self, slot: u32) -> bool {
        slot >= self.slots || self.may.get(slot)
    }
}

impl Matching<'_> {
    /// The slots of a growing part that pass, or may.
    pub(crate) fn new_passing(&self, part: &Growing) -> Result<NewPassing> {
        let (inner, pool) = (part.read(), &self.shared.bitmaps);
        let slots = inner.slots();
        let mut may = Bitmap::all(slots, pool)?;
        let (segment, room) = (&New(&inner), self.filter.room());
        let evaluation = Evaluation { pages: self.pages, segment, rows: slots, room };
        let Verdict { is_exact, unsure, .. } = evaluation.keep(self.filter, &mut may)?;
        let mut unsure = unsure.map_or_else(|| Bitmap::none(slots, pool), Ok)?;
        inner.fields().iter().for_each(|field| field.add_unknown(&mut unsure));
        may.or(&unsure);
        let unsure = unsure.next(0).is_some().then_some(unsure);
        Ok(NewPassing { may, unsure, is_exact, slots: slots as u32 })
    }
}

/// A growing part as filters see it.
struct New<'a>(&'a Inner);

impl ramekin_fields::Segment for New<'_> {
    fn index(&self, path: &Path, schema: Option<&Schema>) -> Option<FieldRows<'_>> {
        let is_asked =
            |field: &&FieldMemtable| field.path() == path && schema.is_none_or(|schema| *schema == **field.schema());
        self.0.fields().iter().find(is_asked).map(FieldRows::Memory)
    }

    fn keep(&self, condition: &Condition, passing: &mut Bitmap) -> Result<bool> {
        match condition {
            // More ids than slots cost less when each slot is asked.
            Condition::HasId(ids) if ids.len() <= self.0.slots() => {
                let mut found = passing.none_like()?;
                ids.iter().filter_map(|id| self.0.find(*id)).for_each(|slot| found.set(slot));
                passing.and(&found);
                Ok(true)
            }
            Condition::HasVector(name) => {
                let mut found = passing.none_like()?;
                let slots = self.0.column(name).into_iter().flat_map(|column| column.slots());
                slots.for_each(|slot| found.set(*slot));
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
    segment: &'a Segment,
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
