//! Which rows of a segment pass a filter, by the indexes of its fields.
//!
//! ```text
//!   rows that may pass ─► each condition takes out those that do not ─► rows that pass
//!
//!   must      one after the other, the one that leaves fewest first       should    what one of them leaves
//!   must_not  what each leaves is taken out                               min_should  what so many of them leave
//! ```
//!
//! A condition that no index answers takes out nothing: then the rows that are left may pass, and are asked one by one. So
//! are rows of which an index says that it does not hold all of their field, where the condition asks for the rest:
//!
//! ```text
//!   rows that an index leaves ─┬─ sure
//!                              └─ unsure: they stay, whatever is asked of them here, and are asked by their payloads
//! ```

use crate::bitmap::Bitmap;
use crate::filter::{Condition, Filter, IndexedCondition, MinShould};
use crate::index::{Found, Index};
use crate::key::Untold;
use crate::memtable::{self, Stepped};
use crate::path::Path;
use crate::predicate::{Answerable, Flagged, ValuePredicate};
use crate::schema::Schema;
use ramekin_base::Result;
use ramekin_memory::{BookedVec, SharedReservation};
use ramekin_pages::Pages;

/// The index of a field over all rows of a segment, or over the slots of a memtable.
#[derive(Clone, Copy)]
pub enum FieldRows<'a> {
    File(&'a Index),
    Memory(&'a dyn Stepped),
}

/// A segment, or a memtable, as filters see it.
pub trait Segment {
    /// The index of a field over all of its rows, if there is one; of this kind, if one is named.
    fn index(&self, path: &Path, schema: Option<&Schema>) -> Option<FieldRows<'_>>;
    /// Takes out of `passing` the rows that do not pass a condition on ids or vectors. False: those that are left may pass.
    fn keep(&self, condition: &Condition, passing: &mut Bitmap) -> Result<bool>;
}

pub struct Evaluation<'a> {
    pub pages: &'a Pages,
    pub segment: &'a dyn Segment,
    pub rows: usize,
    /// Of lists that are made meanwhile.
    pub room: &'a SharedReservation,
}

/// A condition with what its index says of it at little cost.
struct Ready<'a> {
    condition: &'a Condition,
    /// Rows that pass at most.
    most: u64,
    found: Option<(&'a Index, Found)>,
}

/// What indexes say of a filter.
pub struct Verdict {
    /// The rows that are left pass, but for those that are unsure; else they may.
    pub is_exact: bool,
    /// How many rows were expected to pass at most.
    pub most: u64,
    /// Of the rows that are left those that may pass, if there are some.
    pub unsure: Option<Bitmap>,
}

/// Rows of which some conditions' indexes do not know whether they pass.
#[derive(Default)]
struct Unsure(Option<Bitmap>);

impl Unsure {
    fn add(&mut self, rows: Bitmap) {
        match &mut self.0 {
            Some(own) => own.or(&rows),
            None => self.0 = Some(rows).filter(|rows| rows.next(0).is_some()),
        }
    }

    /// Those that are among some rows.
    fn within(mut self, rows: &Bitmap) -> Option<Bitmap> {
        self.0.iter_mut().for_each(|own| own.and(rows));
        self.0.filter(|own| own.next(0).is_some())
    }
}

impl Evaluation<'_> {
    /// Takes out of `passing` rows that do not pass.
    pub fn keep(&self, filter: &Filter, passing: &mut Bitmap) -> Result<Verdict> {
        let mut unsure = Unsure::default();
        let (is_exact, most) = self.keep_filter(filter, passing, &mut unsure)?;
        Ok(Verdict { is_exact, most, unsure: unsure.within(passing) })
    }

    /// Takes out of `passing` rows that do not pass, and adds those to `unsure` that may. True: the others that are left do.
    /// And how many were expected to pass at most.
    fn keep_filter(&self, filter: &Filter, passing: &mut Bitmap, unsure: &mut Unsure) -> Result<(bool, u64)> {
        let (mut is_exact, mut most) = (true, self.rows as u64);
        let mut must = self.all_ready(&filter.must)?;
        // Of those that leave as many the one that stands first.
        must.sort_unstable_by_key(|ready| (ready.most, std::ptr::from_ref(ready.condition)));
        most = must.first().map_or(most, |first| first.most.min(most));
        for ready in &*must {
            is_exact &= self.keep_ready(ready, passing, unsure)?;
        }
        if !filter.should.is_empty() {
            let should = self.all_ready(&filter.should)?;
            most = most.min(should.iter().fold(0, |sum, ready| ready.most.saturating_add(sum)));
            is_exact &= self.keep_any(&should, passing, unsure)?;
        }
        for condition in &*filter.must_not {
            let (mut found, mut doubted) = (passing.copy()?, Unsure::default());
            if !self.keep_one(condition, &mut found, &mut doubted)? {
                is_exact = false;
                continue;
            }
            if let Some(doubted) = doubted.within(&found) {
                found.and_not(&doubted);
                unsure.add(doubted);
            }
            passing.and_not(&found);
        }
        if let Some(least) = &filter.min_should {
            is_exact &= self.keep_some(least, passing, unsure)?;
        }
        Ok((is_exact, most))
    }

    fn keep_any(&self, conditions: &[Ready<'_>], passing: &mut Bitmap, unsure: &mut Unsure) -> Result<bool> {
        let (mut any, mut is_exact) = (passing.none_like()?, true);
        for ready in conditions {
            let mut found = passing.copy()?;
            is_exact &= self.keep_ready(ready, &mut found, unsure)?;
            any.or(&found);
        }
        passing.and(&any);
        Ok(is_exact)
    }

    fn keep_some(
        &self,
        MinShould { conditions, least }: &MinShould,
        passing: &mut Bitmap,
        unsure: &mut Unsure,
    ) -> Result<bool> {
        let most = (*least).min(conditions.len() + 1);
        // The rows that passed so many conditions at least: 1, 2, ...
        let mut counts = BookedVec::new(self.room);
        counts.reserve(most)?;
        (0..most).try_for_each(|_| counts.push(passing.none_like()?))?;
        let mut is_exact = true;
        for condition in &**conditions {
            let mut found = passing.copy()?;
            is_exact &= self.keep_one(condition, &mut found, unsure)?;
            for at in (1..most).rev() {
                let mut more = counts[at - 1].copy()?;
                more.and(&found);
                counts[at].or(&more);
            }
            counts.first_mut().into_iter().for_each(|first| first.or(&found));
        }
        counts.last().into_iter().for_each(|last| passing.and(last));
        Ok(is_exact)
    }

    fn keep_one(&self, condition: &Condition, passing: &mut Bitmap, unsure: &mut Unsure) -> Result<bool> {
        match condition {
            Condition::Filter(filter) => Ok(self.keep_filter(filter, passing, unsure)?.0),
            Condition::Indexed(indexed) => self.keep_indexed(indexed, None, passing, unsure),
            Condition::IsEmpty(path) => self.keep_matching(path, None, &ValuePredicate::Empty(true), passing),
            Condition::IsNull(path) => self.keep_matching(path, None, &ValuePredicate::Null(true), passing),
            Condition::HasId(_) | Condition::HasVector(_) | Condition::Slice { .. } => {
                self.segment.keep(condition, passing)
            }
            Condition::Field(_) | Condition::Nested { .. } => Ok(false),
        }
    }

    fn keep_matching(
        &self,
        path: &Path,
        schema: Option<&Schema>,
        predicate: &ValuePredicate,
        passing: &mut Bitmap,
    ) -> Result<bool> {
        match self.segment.index(path, schema) {
            Some(FieldRows::File(index)) => index.keep(self.pages, predicate, passing, self.room),
            Some(FieldRows::Memory(slots)) => memtable::keep(slots, predicate, passing),
            None => Ok(false),
        }
    }

    /// Takes out the rows whose keys do not pass, but for those of which keys do not tell enough.
    fn keep_indexed(
        &self,
        IndexedCondition { path, schema, answerable, .. }: &IndexedCondition,
        found: Option<&(&Index, Found)>,
        passing: &mut Bitmap,
        unsure: &mut Unsure,
    ) -> Result<bool> {
        let Some(rows) = self.segment.index(path, Some(schema)) else { return Ok(false) };
        let Answerable { predicate, partly, foreign, is_enough } = answerable;
        let flagged = [(*partly, Untold::Partly), (*foreign, Untold::Foreign)];
        // Those that pass, or may, though their keys do not.
        let mut more = [None, None];
        for ((flagged, untold), more) in flagged.iter().zip(&mut more) {
            if matches!(flagged, Flagged::Pass | Flagged::MayPass) {
                *more = self.untold(rows, *untold, passing)?;
            }
        }
        let is_exact = match found {
            Some((index, found)) => index.keep_codes(self.pages, found, passing, self.room).map(|()| true)?,
            None => self.keep_matching(path, Some(schema), predicate, passing)?,
        };
        for ((flagged, untold), more) in flagged.into_iter().zip(more) {
            match (flagged, more) {
                (Flagged::Pass, Some(more)) => passing.or(&more),
                (Flagged::MayPass, Some(mut more)) => {
                    more.and_not(passing);
                    passing.or(&more);
                    unsure.add(more);
                }
                (Flagged::MayFail, _) => {
                    self.untold(rows, untold, passing)?.into_iter().for_each(|doubted| unsure.add(doubted));
                }
                _ => {}
            }
        }
        Ok(is_exact && *is_enough)
    }

    /// Of some rows those of which the keys do not tell all; `None`: there are none.
    fn untold(&self, rows: FieldRows<'_>, untold: Untold, among: &Bitmap) -> Result<Option<Bitmap>> {
        let is_any = match rows {
            FieldRows::File(index) => index.has_untold(untold),
            FieldRows::Memory(slots) => memtable::has_untold(slots, untold),
        };
        if !is_any {
            return Ok(None);
        }
        let mut flagged = among.copy()?;
        match rows {
            FieldRows::File(index) => index.keep_untold(self.pages, untold, &mut flagged)?,
            FieldRows::Memory(slots) => _ = slots.step(&mut |slots| slots.keep_untold(untold, &mut flagged)),
        }
        Ok(Some(flagged))
    }

    fn keep_ready(&self, ready: &Ready<'_>, passing: &mut Bitmap, unsure: &mut Unsure) -> Result<bool> {
        match ready.condition {
            Condition::Indexed(indexed) => self.keep_indexed(indexed, ready.found.as_ref(), passing, unsure),
            condition => self.keep_one(condition, passing, unsure),
        }
    }

    /// What is known of some conditions at little cost.
    fn all_ready<'a>(&'a self, conditions: &'a [Condition]) -> Result<BookedVec<Ready<'a>>> {
        let mut all = BookedVec::new(self.room);
        all.reserve(conditions.len())?;
        conditions.iter().try_for_each(|condition| all.push(self.ready(condition)?))?;
        Ok(all)
    }

    /// What is known of a condition at little cost.
    fn ready<'a>(&'a self, condition: &'a Condition) -> Result<Ready<'a>> {
        let rows = self.rows as u64;
        let (most, found) = match condition {
            Condition::HasId(ids) => (ids.len() as u64, None),
            Condition::Indexed(indexed) => self.ready_indexed(indexed)?,
            Condition::Filter(filter) => (self.most_of(filter)?, None),
            _ => (rows, None),
        };
        Ok(Ready { condition, most: most.min(rows), found })
    }

    fn ready_indexed<'a>(&'a self, indexed: &'a IndexedCondition) -> Result<(u64, Option<(&'a Index, Found)>)> {
        let Some(FieldRows::File(index)) = self.segment.index(&indexed.path, Some(&indexed.schema)) else {
            return Ok((self.rows as u64, None));
        };
        let Answerable { predicate, partly, foreign, .. } = &indexed.answerable;
        let (most, found) = match predicate {
            ValuePredicate::Keys(ranges) => {
                let found = index.find(self.pages, ranges, self.room)?;
                (found.values, Some((index, found)))
            }
            predicate => (index.most(self.pages, predicate, self.room)?, None),
        };
        let more = |flagged: &Flagged, rows: u32| match flagged {
            Flagged::Pass | Flagged::MayPass => u64::from(rows),
            Flagged::AsKeysSay | Flagged::MayFail => 0,
        };
        Ok((most + more(partly, index.meta().partly) + more(foreign, index.meta().foreign), found))
    }

    /// How many rows a filter leaves at most.
    fn most_of(&self, filter: &Filter) -> Result<u64> {
        let most = |condition| self.ready(condition).map(|ready| ready.most);
        let mut least = self.rows as u64;
        for condition in &*filter.must {
            least = least.min(most(condition)?);
        }
        if !filter.should.is_empty() {
            let all = filter.should.iter().map(most).sum::<Result<u64>>()?;
            least = least.min(all);
        }
        Ok(least)
    }
}
