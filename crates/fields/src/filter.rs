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

use crate::asked::Asked;
use crate::geo::{GeoBox, GeoPolygon, GeoRadius};
use crate::path::Path;
use crate::schema::Schema;
use ramekin_base::PointId;
use std::sync::Arc;

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
    /// A field as its index answers: [`Filter::with_indexes`].
    Indexed(Box<IndexedCondition>),
}

/// A test that an index of the field answers.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedCondition {
    pub path: Path,
    pub schema: Arc<Schema>,
    pub asked: Asked,
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
            Condition::Indexed(indexed) => keys.push(indexed.path.first()),
            Condition::HasId(_) | Condition::HasVector(_) | Condition::Slice { .. } => {}
            Condition::Filter(filter) => filter.add_keys(keys),
        });
    }

    /// The same filter, with each condition that an index answers asked as it answers. What an index holds may differ from
    /// what a payload says (a keyword index knows strings only), so which points pass depends on the indexes that there are.
    #[must_use]
    pub fn with_indexes(&self, schema: &dyn Fn(&Path) -> Option<Arc<Schema>>) -> Self {
        let all = |conditions: &[Condition]| conditions.iter().map(|one| one.with_indexes(schema)).collect();
        Self {
            must: all(&self.must),
            should: all(&self.should),
            must_not: all(&self.must_not),
            min_should: self
                .min_should
                .as_ref()
                .map(|MinShould { conditions, least }| MinShould { conditions: all(conditions), least: *least }),
        }
    }

    /// Bytes that it may take once it is asked as indexes answer, about.
    pub fn indexed_bytes(&self) -> u64 {
        self.conditions().map(Condition::indexed_bytes).sum()
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let least = self.min_should.iter().flat_map(|least| &least.conditions);
        self.must.iter().chain(&self.should).chain(&self.must_not).chain(least)
    }
}

impl Condition {
    fn indexed_bytes(&self) -> u64 {
        match self {
            Self::Filter(filter) | Self::Nested { filter, .. } => 256 + filter.indexed_bytes(),
            Self::Field(FieldCondition { tests, .. }) => 512 + tests.iter().map(Test::indexed_bytes).sum::<u64>(),
            Self::HasId(ids) => 64 + size_of_val(&**ids) as u64,
            _ => 512,
        }
    }

    fn with_indexes(&self, schema: &dyn Fn(&Path) -> Option<Arc<Schema>>) -> Self {
        match self {
            Self::Filter(filter) => Self::Filter(filter.with_indexes(schema)),
            Self::Field(FieldCondition { path, tests }) => {
                // Of several tests of one field the first that the index knows counts alone.
                let asked =
                    |schema: Arc<Schema>| tests.iter().find_map(|test| schema.ask(test)).map(|asked| (schema, asked));
                match schema(path).and_then(asked) {
                    Some((schema, asked)) => {
                        Self::Indexed(Box::new(IndexedCondition { path: path.clone(), schema, asked }))
                    }
                    None => self.clone(),
                }
            }
            other => other.clone(),
        }
    }
}

/// A scalar as ranges of keys: in a sorted set, and twice in a range.
const SCALAR_BYTES: u64 = 192;

impl Test {
    fn indexed_bytes(&self) -> u64 {
        match self {
            Self::Match(Match::Any(scalars) | Match::Except(scalars)) => match scalars {
                Scalars::Words(words) => words.iter().map(|word| word.len() as u64 * 4 + SCALAR_BYTES).sum(),
                Scalars::Integers(integers) => integers.len() as u64 * SCALAR_BYTES,
            },
            // Words of a text: of two letters and more each, in a sorted set.
            Self::Match(Match::Text(text) | Match::TextAny(text) | Match::Phrase(text)) => text.len() as u64 * 64,
            Self::Match(Match::Prefix(text)) => text.len() as u64 * 4,
            Self::Polygon(area) => area.bytes(),
            _ => 0,
        }
    }
}
