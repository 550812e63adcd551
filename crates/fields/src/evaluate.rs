//! Which rows of a segment pass a filter, by the indexes of its fields.
//!
//! ```text
//!   rows that may pass ─► each condition takes out those that do not ─► rows that pass
//!
//!   must      one after the other, the one that leaves fewest first       should    what one of them leaves
//!   must_not  what each leaves is taken out                               min_should  what so many of them leave
//! ```
//!
//! A condition that no index answers takes out nothing: then the rows that are left may pass, and are asked one by one.

use crate::asked::Asked;
use crate::bitmap::Bitmap;
use crate::filter::{Condition, Filter, MinShould};
use crate::index::{Found, Index};
use crate::memtable::FieldMemtable;
use crate::path::Path;
use crate::schema::Schema;
use ramekin_base::Result;
use ramekin_pages::Pages;

/// The index of a field over all rows of a segment, or over the slots of a memtable.
#[derive(Clone, Copy)]
pub enum FieldRows<'a> {
    File(&'a Index),
    Memory(&'a FieldMemtable),
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
}

/// A condition with what its index says of it at little cost.
struct Ready<'a> {
    condition: &'a Condition,
    /// Rows that pass at most.
    most: u64,
    found: Option<(&'a Index, Found)>,
}

impl Evaluation<'_> {
    /// Takes out of `passing` rows that do not pass. True: those that are left do; false: they may. And how many were
    /// expected to pass at most.
    pub fn keep(&self, filter: &Filter, passing: &mut Bitmap) -> Result<(bool, u64)> {
        let (mut is_exact, mut most) = (true, self.rows as u64);
        let mut must = filter.must.iter().map(|condition| self.ready(condition)).collect::<Result<Vec<_>>>()?;
        must.sort_by_key(|ready| ready.most);
        most = must.first().map_or(most, |first| first.most.min(most));
        for ready in &must {
            is_exact &= self.keep_ready(ready, passing)?;
        }
        if !filter.should.is_empty() {
            let should = filter.should.iter().map(|condition| self.ready(condition)).collect::<Result<Vec<_>>>()?;
            most = most.min(should.iter().fold(0, |sum, ready| ready.most.saturating_add(sum)));
            is_exact &= self.keep_any(&should, passing)?;
        }
        for condition in &filter.must_not {
            let mut found = passing.copy()?;
            if self.keep_one(condition, &mut found)? {
                passing.and_not(&found);
            } else {
                is_exact = false;
            }
        }
        if let Some(least) = &filter.min_should {
            is_exact &= self.keep_some(least, passing)?;
        }
        Ok((is_exact, most))
    }

    fn keep_any(&self, conditions: &[Ready<'_>], passing: &mut Bitmap) -> Result<bool> {
        let (mut any, mut is_exact) = (passing.none_like()?, true);
        for ready in conditions {
            let mut found = passing.copy()?;
            is_exact &= self.keep_ready(ready, &mut found)?;
            any.or(&found);
        }
        passing.and(&any);
        Ok(is_exact)
    }

    fn keep_some(&self, MinShould { conditions, least }: &MinShould, passing: &mut Bitmap) -> Result<bool> {
        let most = (*least).min(conditions.len() + 1);
        // The rows that passed so many conditions at least: 1, 2, ...
        let mut counts = (0..most).map(|_| passing.none_like()).collect::<Result<Vec<_>>>()?;
        let mut is_exact = true;
        for condition in conditions {
            let mut found = passing.copy()?;
            is_exact &= self.keep_one(condition, &mut found)?;
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

    fn keep_one(&self, condition: &Condition, passing: &mut Bitmap) -> Result<bool> {
        match condition {
            Condition::Filter(filter) => Ok(self.keep(filter, passing)?.0),
            Condition::Indexed(indexed) => {
                self.keep_asked(&indexed.path, Some(&indexed.schema), &indexed.asked, passing)
            }
            Condition::IsEmpty(path) => self.keep_asked(path, None, &Asked::Empty(true), passing),
            Condition::IsNull(path) => self.keep_asked(path, None, &Asked::Null(true), passing),
            Condition::HasId(_) | Condition::HasVector(_) | Condition::Slice { .. } => {
                self.segment.keep(condition, passing)
            }
            Condition::Field(_) | Condition::Nested { .. } => Ok(false),
        }
    }

    fn keep_asked(&self, path: &Path, schema: Option<&Schema>, asked: &Asked, passing: &mut Bitmap) -> Result<bool> {
        match self.segment.index(path, schema) {
            Some(FieldRows::File(index)) => index.keep(self.pages, asked, passing),
            Some(FieldRows::Memory(slots)) => slots.keep(asked, passing),
            None => Ok(false),
        }
    }

    fn keep_ready(&self, ready: &Ready<'_>, passing: &mut Bitmap) -> Result<bool> {
        match &ready.found {
            Some((index, found)) => index.keep_codes(self.pages, found, passing).map(|()| true),
            None => self.keep_one(ready.condition, passing),
        }
    }

    /// What is known of a condition at little cost.
    fn ready<'a>(&'a self, condition: &'a Condition) -> Result<Ready<'a>> {
        let rows = self.rows as u64;
        let (most, found) = match condition {
            Condition::HasId(ids) => (ids.len() as u64, None),
            Condition::Indexed(indexed) => {
                match (self.segment.index(&indexed.path, Some(&indexed.schema)), &indexed.asked) {
                    (Some(FieldRows::File(index)), Asked::Keys(ranges)) => {
                        let found = index.find(self.pages, ranges)?;
                        (found.values, Some((index, found)))
                    }
                    (Some(FieldRows::File(index)), asked) => (index.most(self.pages, asked)?, None),
                    (Some(FieldRows::Memory(_)) | None, _) => (rows, None),
                }
            }
            Condition::Filter(filter) => (self.most_of(filter)?, None),
            _ => (rows, None),
        };
        Ok(Ready { condition, most: most.min(rows), found })
    }

    /// How many rows a filter leaves at most.
    fn most_of(&self, filter: &Filter) -> Result<u64> {
        let most = |condition| self.ready(condition).map(|ready| ready.most);
        let mut least = self.rows as u64;
        for condition in &filter.must {
            least = least.min(most(condition)?);
        }
        if !filter.should.is_empty() {
            let all = filter.should.iter().map(most).sum::<Result<u64>>()?;
            least = least.min(all);
        }
        Ok(least)
    }
}
