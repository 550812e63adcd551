//! What filters let through, remembered for searches that ask the same again.
//!
//! ```text
//!   filter, segment, indexes of its fields ─► rows that pass, or may ─► positions of their vectors
//! ```
//!
//! All of it follows from files that never change; what has changed since they were written is looked at apart. A filter is
//! remembered when it comes a second time within a while, and the one that was not asked for longest goes first.

use crate::segment::Segment;
use crate::segment::field::FieldIndex;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_fields::{Bitmap, Filter};
use ramekin_memory::{Account, Budget, Reservation};
use std::collections::VecDeque;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// All of it takes one part of so many of the budget at most.
const PART: u64 = 128;
/// Questions, a filter of a segment each, after which one that comes again is new.
const ADMIT_WINDOW: usize = 512;
/// Answers that are kept at most.
const CACHED_MAX: usize = 256;
/// Characters of a filter, written out, that is remembered at most.
const FILTER_MAX: usize = 8 << 10;

/// What a filter lets through of a segment.
pub(crate) struct CachedFilter {
    key: FilterKey,
    filter: Filter,
    fields: Weak<[Arc<FieldIndex>]>,
    pub(crate) found: Found,
    /// By the name of the vector.
    positions: Mutex<Vec<(String, Arc<Bitmap>)>>,
    /// What all of it takes.
    bytes: AtomicU64,
    _memory: Reservation,
}

/// What the indexes of a segment say of a filter.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) rows: Arc<Bitmap>,
    pub(crate) count: u64,
    /// All rows pass but those that are unsure; else they may.
    pub(crate) is_exact: bool,
    pub(crate) unsure: Option<Arc<Bitmap>>,
    pub(crate) estimate: u64,
}

/// A filter asked of a segment, in short.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterKey {
    hash: u64,
    /// Of the filter, written out.
    len: usize,
}

impl FilterKey {
    /// Bytes of a filter and of what is kept beside its bits, about.
    fn bytes(self) -> u64 {
        1024 + self.len as u64 * 4
    }
}

/// What is known of a question.
pub(crate) enum Lookup {
    Known(Arc<CachedFilter>),
    /// It was asked not long ago.
    Again(FilterKey),
    New,
}

pub(crate) struct FilterCache {
    budget: Budget,
    account: Account,
    inner: Mutex<CacheInner>,
}

#[derive(Default)]
struct CacheInner {
    asked_keys: VecDeque<FilterKey>,
    /// The one that was asked last is the last.
    cached: Vec<Arc<CachedFilter>>,
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
fn key(segment: &Segment, filter: &Filter) -> Option<FilterKey> {
    let mut hash = Hash { hasher: DefaultHasher::new(), left: FILTER_MAX };
    write!(hash, "{} {filter:?}", segment.name).ok()?;
    Some(FilterKey { hash: hash.hasher.finish(), len: FILTER_MAX - hash.left })
}

impl FilterCache {
    pub(crate) fn new(budget: Budget, account: Account) -> Self {
        Self { budget, account, inner: Mutex::default() }
    }

    fn most(&self) -> u64 {
        self.budget.limit() / PART
    }

    /// What is known of a filter over a segment of so many `points` of a collection, with these indexes. Where not all
    /// answers of the collection's segments have room, none is kept: each would make the next one go.
    pub(crate) fn ask(
        &self,
        segment: &Segment,
        points: u64,
        fields: &Arc<[Arc<FieldIndex>]>,
        filter: &Filter,
    ) -> Lookup {
        let fits = !fields.is_empty() && points / 4 <= self.most();
        let Some(key) = key(segment, filter).filter(|_| fits) else { return Lookup::New };
        let mut inner = self.inner.lock();
        let is_it = |cached: &Arc<CachedFilter>| {
            cached.key == key && cached.fields.ptr_eq(&Arc::downgrade(fields)) && cached.filter == *filter
        };
        if let Some(at) = inner.cached.iter().position(is_it) {
            let cached = inner.cached.remove(at);
            inner.cached.push(cached.clone());
            return Lookup::Known(cached);
        }
        if inner.asked_keys.contains(&key) {
            return Lookup::Again(key);
        }
        if inner.asked_keys.len() == ADMIT_WINDOW {
            inner.asked_keys.pop_front();
        }
        inner.asked_keys.push_back(key);
        Lookup::New
    }

    /// Remembers an answer. `None`: there is no memory for it.
    pub(crate) fn keep(
        &self,
        key: FilterKey,
        fields: &Arc<[Arc<FieldIndex>]>,
        filter: &Filter,
        found: Found,
    ) -> Option<Arc<CachedFilter>> {
        let _memory = self.account.try_reserve(key.bytes()).ok()?;
        let (filter, fields) = (filter.clone(), Arc::downgrade(fields));
        let unsure = found.unsure.as_ref().map_or(0, |unsure| unsure.bytes());
        let bytes = AtomicU64::new(found.rows.bytes() + unsure + key.bytes());
        let positions = Mutex::default();
        let cached = Arc::new(CachedFilter { key, filter, fields, found, positions, bytes, _memory });
        self.inner.lock().cached.push(cached.clone());
        self.trim();
        Some(cached)
    }

    /// The positions of the rows of an answer, made by `make` the first time.
    pub(crate) fn positions(
        &self,
        cached: &CachedFilter,
        using: &str,
        make: impl FnOnce() -> Result<Bitmap>,
    ) -> Result<Arc<Bitmap>> {
        let mut positions = cached.positions.lock();
        if let Some((_, held)) = positions.iter().find(|(name, _)| name == using) {
            return Ok(held.clone());
        }
        let made = Arc::new(make()?);
        positions.push((using.to_owned(), made.clone()));
        drop(positions);
        cached.bytes.fetch_add(made.bytes(), Ordering::Relaxed);
        self.trim();
        Ok(made)
    }

    /// Forgets what was not asked for longest, and what no index stands behind any more, until the rest is not too much.
    fn trim(&self) {
        let most = self.most();
        let mut inner = self.inner.lock();
        inner.cached.retain(|cached| cached.fields.strong_count() > 0);
        let bytes_of = |cached: &Arc<CachedFilter>| cached.bytes.load(Ordering::Relaxed);
        while inner.cached.len() > CACHED_MAX || inner.cached.iter().map(bytes_of).sum::<u64>() > most {
            inner.cached.remove(0);
        }
    }
}
