//! A filter: conditions, and how they are joined.
//!
//! ```text
//!   must        all of them                          each condition: a field below a path,
//!   should      one of them, if there are any                        is empty, is null, ids, a vector, a slice of ids,
//!   must_not    none of them                                         objects of an array, a filter again
//!   min_should  so many of them
//! ```
//!
//! The types say what is asked; `check.rs` says how a point answers.

use crate::geo::{GeoBox, GeoPolygon, GeoRadius};
use crate::path::Path;
use ramekin_base::PointId;

/// Which points are meant. Empty: all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    pub must: Vec<Condition>,
    pub should: Vec<Condition>,
    pub must_not: Vec<Condition>,
    pub min_should: Option<MinShould>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MinShould {
    pub conditions: Vec<Condition>,
    pub least: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    Field(FieldCondition),
    /// No value, only nulls, or only empty arrays.
    IsEmpty(Path),
    /// A null, or an array with one.
    IsNull(Path),
    /// Ascending.
    HasId(Box<[PointId]>),
    HasVector(Box<str>),
    /// Of all ids, those whose hash leaves `index` when it is divided by `total`.
    Slice {
        total: u32,
        index: u32,
    },
    /// Objects of the array at the path, one of which passes the filter as if it were a payload.
    Nested {
        path: Path,
        filter: Filter,
    },
    Filter(Filter),
}

/// Tests of the values at a path; one that passes is enough.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldCondition {
    pub path: Path,
    pub tests: Vec<Test>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    Match(Match),
    Range(Span<f64>),
    /// Microseconds since 1970.
    Times(Span<i64>),
    Box(GeoBox),
    Radius(GeoRadius),
    Polygon(GeoPolygon),
    /// How many values there are.
    Count(Span<usize>),
    IsEmpty(bool),
    IsNull(bool),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Match {
    Value(Scalar),
    Any(Scalars),
    /// A value that is none of these.
    Except(Scalars),
    /// All words of it.
    Text(Box<str>),
    /// One of its words.
    TextAny(Box<str>),
    /// Its words, one after the other.
    Phrase(Box<str>),
    Prefix(Box<str>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Word(Box<str>),
    Integer(i64),
    Bool(bool),
}

/// Ascending, each once.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalars {
    Words(Box<[Box<str>]>),
    Integers(Box<[i64]>),
}

impl Scalars {
    pub fn words(mut words: Vec<Box<str>>) -> Self {
        words.sort_unstable();
        words.dedup();
        Self::Words(words.into())
    }

    pub fn integers(mut integers: Vec<i64>) -> Self {
        integers.sort_unstable();
        integers.dedup();
        Self::Integers(integers.into())
    }
}

/// Bounds of a value; those that are there must all hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span<T> {
    pub gt: Option<T>,
    pub gte: Option<T>,
    pub lt: Option<T>,
    pub lte: Option<T>,
}

impl<T> Default for Span<T> {
    fn default() -> Self {
        Self { gt: None, gte: None, lt: None, lte: None }
    }
}

impl<T: PartialOrd + Copy> Span<T> {
    pub fn holds(&self, value: T) -> bool {
        self.gt.is_none_or(|bound| value > bound)
            && self.gte.is_none_or(|bound| value >= bound)
            && self.lt.is_none_or(|bound| value < bound)
            && self.lte.is_none_or(|bound| value <= bound)
    }
}

impl Filter {
    /// No condition at all.
    pub fn is_empty(&self) -> bool {
        self.must.is_empty() && self.should.is_empty() && self.must_not.is_empty() && self.min_should.is_none()
    }

    /// Whether a point's id must be known to answer.
    pub fn needs_id(&self) -> bool {
        self.conditions().any(|condition| match condition {
            Condition::HasId(_) | Condition::Slice { .. } => true,
            Condition::Filter(filter) => filter.needs_id(),
            _ => false,
        })
    }

    /// The keys at the top of a payload that it looks at, each once.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys = Vec::new();
        self.add_keys(&mut keys);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn add_keys<'a>(&'a self, keys: &mut Vec<&'a str>) {
        self.conditions().for_each(|condition| match condition {
            Condition::Field(FieldCondition { path, .. })
            | Condition::IsEmpty(path)
            | Condition::IsNull(path)
            | Condition::Nested { path, .. } => keys.push(path.first()),
            Condition::HasId(_) | Condition::HasVector(_) | Condition::Slice { .. } => {}
            Condition::Filter(filter) => filter.add_keys(keys),
        });
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let least = self.min_should.iter().flat_map(|least| &least.conditions);
        self.must.iter().chain(&self.should).chain(&self.must_not).chain(least)
    }
}
