//! What filters let through, remembered for searches that ask the same again.
//!
//! ```text
//!   filter, segment, indexes of its fields ─► rows that pass, or may ─► positions of their vectors
//! ```
//!
//! All of it follows from files that never change; what has changed since they were written is looked at apart. A filter is
//! remembered when it comes a second time within a while, and the one that was not asked for longest goes first.

use crate::field_index::FieldIndex;
use crate::segment::Segment;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_fields::{Bitmap, Filter};
use ramekin_memory::Budget;
use std::collections::VecDeque;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Weak};

/// All of it takes one part of so many of the budget at most.
const PART: u64 = 128;
/// Questions after which one that comes again is new.
const WHILE: usize = 64;
/// Characters of a filter, written out, that is remembered at most.
const FILTER_MAX: usize = 8 << 10;

/// What a filter lets through of a segment.
pub(crate) struct Kept {
    question: Question,
    filter: Filter,
    fields: Weak<[Arc<FieldIndex>]>,
    pub(crate) rows: Arc<Bitmap>,
    pub(crate) count: u64,
    /// All rows pass; else they may.
    pub(crate) is_exact: bool,
    pub(crate) estimate: u64,
    /// By the name of the vector.
    positions: Mutex<Vec<(String, Arc<Bitmap>)>>,
}

/// A filter asked of a segment, in short.
type Question = u64;

/// What is known of a question.
pub(crate) enum Answer {
    Known(Arc<Kept>),
    /// It was asked not long ago.
    Again(Question),
    New,
}

pub(crate) struct Remembered {
    budget: Budget,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    asked: VecDeque<Question>,
    /// The one that was asked last is the last.
    kept: Vec<Arc<Kept>>,
}

/// Writes into a hash, so long as it is not too much.
struct Hash {
    hasher: DefaultHasher,
    left: usize,
}

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(std::fmt::Error)?;
        self.hasher.write(text.as_bytes());
        Ok(())
    }
}

/// `None`: the filter is too long to be remembered.
fn question(segment: &Segment, filter: &Filter) -> Option<Question> {
    let mut hash = Hash { hasher: DefaultHasher::new(), left: FILTER_MAX };
    write!(hash, "{} {filter:?}", segment.name).ok().map(|()| hash.hasher.finish())
}

impl Kept {
    fn bytes(&self) -> u64 {
        let positions: u64 = self.positions.lock().iter().map(|(_, bits)| bits.bytes()).sum();
        self.rows.bytes() + positions + FILTER_MAX as u64
    }
}

impl Remembered {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, inner: Mutex::default() }
    }

    /// What is known of a filter over a segment with these indexes.
    pub(crate) fn ask(&self, segment: &Segment, fields: &Arc<[Arc<FieldIndex>]>, filter: &Filter) -> Answer {
        let Some(question) = question(segment, filter).filter(|_| !fields.is_empty()) else { return Answer::New };
        let mut inner = self.inner.lock();
        let is_it = |kept: &Arc<Kept>| {
            kept.question == question && kept.fields.ptr_eq(&Arc::downgrade(fields)) && kept.filter == *filter
        };
        if let Some(at) = inner.kept.iter().position(is_it) {
            let kept = inner.kept.remove(at);
            inner.kept.push(kept.clone());
            return Answer::Known(kept);
        }
        if inner.asked.contains(&question) {
            return Answer::Again(question);
        }
        if inner.asked.len() == WHILE {
            inner.asked.pop_front();
        }
        inner.asked.push_back(question);
        Answer::New
    }

    /// Remembers an answer.
    pub(crate) fn keep(
        &self,
        question: Question,
        fields: &Arc<[Arc<FieldIndex>]>,
        filter: &Filter,
        (rows, count, is_exact, estimate): (&Arc<Bitmap>, u64, bool, u64),
    ) -> Arc<Kept> {
        let (rows, filter, fields) = (rows.clone(), filter.clone(), Arc::downgrade(fields));
        let positions = Mutex::default();
        let kept = Arc::new(Kept { question, filter, fields, rows, count, is_exact, estimate, positions });
        self.inner.lock().kept.push(kept.clone());
        self.trim();
        kept
    }

    /// The positions of the rows of an answer, made by `make` the first time.
    pub(crate) fn positions(
        &self,
        kept: &Kept,
        using: &str,
        make: impl FnOnce() -> Result<Bitmap>,
    ) -> Result<Arc<Bitmap>> {
        let mut positions = kept.positions.lock();
        if let Some((_, held)) = positions.iter().find(|(name, _)| name == using) {
            return Ok(held.clone());
        }
        let made = Arc::new(make()?);
        positions.push((using.to_owned(), made.clone()));
        drop(positions);
        self.trim();
        Ok(made)
    }

    /// Forgets what was not asked for longest, and what no index stands behind any more, until the rest is not too much.
    fn trim(&self) {
        let most = self.budget.limit() / PART;
        let mut inner = self.inner.lock();
        inner.kept.retain(|kept| kept.fields.strong_count() > 0);
        let mut bytes: u64 = inner.kept.iter().map(|kept| kept.bytes()).sum();
        while bytes > most && !inner.kept.is_empty() {
            bytes -= inner.kept.remove(0).bytes();
        }
    }
}
