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
use crate::predicate::Answerable;
use crate::schema::Schema;
use crate::text::{Having, Words};
use crate::tokens::Tokenizer;
use ramekin_base::{PointId, Result, cancel};
use ramekin_memory::{Account, BookedVec, SharedReservation};
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

/// Which points are meant. Empty: all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    pub must: Box<[Condition]>,
    pub should: Box<[Condition]>,
    pub must_not: Box<[Condition]>,
    pub min_should: Option<MinShould>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MinShould {
    pub conditions: Box<[Condition]>,
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
    /// A field as its index answers: [`Filter::prepare`].
    Indexed(Box<IndexedCondition>),
}

/// A test that an index of the field answers.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedCondition {
    pub path: Path,
    pub schema: Arc<Schema>,
    pub answerable: Answerable,
    /// What a payload is asked where the index leaves it open; `None`: for the words, as the index has them.
    pub test: Option<Test>,
}

/// Tests of the values at a path; of those that count one that passes is enough.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldCondition {
    pub path: Path,
    pub tests: Box<[Test]>,
}

impl FieldCondition {
    /// The tests that count: one of how many values there are alone, else whether there are some, else whether one is null;
    /// all others count together.
    pub(crate) fn counting(&self) -> &[Test] {
        let alone = [
            |test: &Test| matches!(test, Test::Count(_)),
            |test: &Test| matches!(test, Test::IsEmpty(_)),
            |test: &Test| matches!(test, Test::IsNull(_)),
        ];
        let first = alone.iter().find_map(|is_it| self.tests.iter().find(|test| is_it(test)));
        first.map_or(&*self.tests, std::slice::from_ref)
    }
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
    /// Words of a text, taken apart: [`Filter::prepare`].
    Words(Words),
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
    pub fn words(words: Box<[Box<str>]>) -> Self {
        let mut words = words.into_vec();
        words.sort_unstable();
        words.dedup();
        Self::Words(words.into())
    }

    pub fn integers(integers: Box<[i64]>) -> Self {
        let mut integers = integers.into_vec();
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

/// The kind of the index of a field, if it has one.
pub type SchemaOf<'a> = dyn Fn(&Path) -> Option<Arc<Schema>> + 'a;

/// A filter that points can be asked for, with what it takes: [`Filter::prepare`].
pub struct Prepared<'a> {
    filter: Cow<'a, Filter>,
    room: SharedReservation,
}

impl Prepared<'_> {
    /// What it takes, and lists that are made while it is asked.
    pub fn room(&self) -> &SharedReservation {
        &self.room
    }
}

impl Deref for Prepared<'_> {
    type Target = Filter;

    fn deref(&self) -> &Filter {
        &self.filter
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

    /// Whether it must be known which vectors a point has.
    pub fn needs_vectors(&self) -> bool {
        self.conditions().any(|condition| match condition {
            Condition::HasVector(_) => true,
            Condition::Filter(filter) => filter.needs_vectors(),
            _ => false,
        })
    }

    /// The keys at the top of a payload that it looks at, each once.
    pub fn keys<'a>(&'a self, room: &SharedReservation) -> Result<Box<[&'a str]>> {
        let mut keys = BookedVec::new(room);
        self.add_keys(&mut keys)?;
        keys.sort_unstable();
        keys.dedup_by(|one, other| one == other);
        keys.boxed()
    }

    fn add_keys<'a>(&'a self, keys: &mut BookedVec<&'a str>) -> Result<()> {
        self.conditions().try_for_each(|condition| match condition {
            Condition::Field(FieldCondition { path, .. })
            | Condition::IsEmpty(path)
            | Condition::IsNull(path)
            | Condition::Nested { path, .. } => keys.push(path.first()),
            Condition::Indexed(indexed) => keys.push(indexed.path.first()),
            Condition::HasId(_) | Condition::HasVector(_) | Condition::Slice { .. } => Ok(()),
            Condition::Filter(filter) => filter.add_keys(keys),
        })
    }

    /// The same filter, ready to be asked of many points: words are taken apart, and each condition that an index answers is
    /// asked as it answers. The same points pass whichever indexes there are, but for an index of words, which were taken
    /// apart as it was told. What it takes is reserved of `account`.
    pub fn prepare(&self, schema: Option<&SchemaOf<'_>>, account: &Account) -> Result<Prepared<'_>> {
        let room = SharedReservation::new(0, account.clone(), None);
        let filter = match schema.is_some() || self.asks_words() {
            true => Cow::Owned(self.prepared(schema.unwrap_or(&|_| None), &room)?),
            false => Cow::Borrowed(self),
        };
        Ok(Prepared { filter, room })
    }

    fn asks_words(&self) -> bool {
        self.conditions().any(|condition| match condition {
            Condition::Field(FieldCondition { tests, .. }) => tests.iter().any(|test| test.words().is_some()),
            Condition::Nested { filter, .. } | Condition::Filter(filter) => filter.asks_words(),
            _ => false,
        })
    }

    fn prepared(&self, schema: &SchemaOf<'_>, room: &SharedReservation) -> Result<Self> {
        let all = |conditions: &[Condition]| -> Result<Box<[Condition]>> {
            let mut prepared = BookedVec::new(room);
            prepared.reserve(conditions.len())?;
            for condition in conditions {
                cancel::check()?;
                prepared.push(condition.prepared(schema, room)?)?;
            }
            prepared.boxed()
        };
        let (must, should, must_not) = (all(&self.must)?, all(&self.should)?, all(&self.must_not)?);
        let min_should = match &self.min_should {
            Some(MinShould { conditions, least }) => Some(MinShould { conditions: all(conditions)?, least: *least }),
            None => None,
        };
        Ok(Self { must, should, must_not, min_should })
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let least = self.min_should.iter().flat_map(|least| &*least.conditions);
        self.must.iter().chain(&self.should).chain(&self.must_not).chain(least)
    }
}

impl Condition {
    fn prepared(&self, schema: &SchemaOf<'_>, room: &SharedReservation) -> Result<Self> {
        Ok(match self {
            Self::Filter(filter) => Self::Filter(filter.prepared(schema, room)?),
            Self::Nested { path, filter } => {
                room.take(path.held_bytes())?;
                // Inside no index is looked at.
                Self::Nested { path: path.clone(), filter: filter.prepared(&|_| None, room)? }
            }
            Self::Field(field) => {
                let (path, tests) = (&field.path, field.counting());
                let schema = schema(path);
                match (&schema, tests) {
                    (Some(schema), [test]) => Self::of_test(path, test, schema, room)?,
                    // One of them is enough, whichever of them the index answers.
                    (Some(schema), [_, _, ..]) => {
                        let mut should = BookedVec::new(room);
                        should.reserve(tests.len())?;
                        for test in tests {
                            should.push(Self::of_test(path, test, schema, room)?)?;
                        }
                        Self::Filter(Filter { should: should.boxed()?, ..Filter::default() })
                    }
                    _ => Self::of_tests(path, tests, room)?,
                }
            }
            other => {
                room.take(other.held_bytes())?;
                other.clone()
            }
        })
    }

    /// A test of a field that has an index.
    fn of_test(path: &Path, test: &Test, schema: &Arc<Schema>, room: &SharedReservation) -> Result<Self> {
        let Some(answerable) = schema.ask(path, test, room)? else {
            return Self::of_tests(path, std::slice::from_ref(test), room);
        };
        room.take(size_of::<IndexedCondition>() as u64 + path.held_bytes())?;
        let (path, schema) = (path.clone(), schema.clone());
        let test = if test.words().is_some() { None } else { Some(test.prepared(room)?) };
        Ok(Self::Indexed(Box::new(IndexedCondition { path, schema, answerable, test })))
    }

    /// Tests of a field that payloads are asked.
    fn of_tests(path: &Path, tests: &[Test], room: &SharedReservation) -> Result<Self> {
        room.take(path.held_bytes())?;
        let mut prepared = BookedVec::new(room);
        prepared.reserve(tests.len())?;
        for test in tests {
            prepared.push(test.prepared(room)?)?;
        }
        Ok(Self::Field(FieldCondition { path: path.clone(), tests: prepared.boxed()? }))
    }

    /// Bytes that a copy of one without tests holds beside itself.
    fn held_bytes(&self) -> u64 {
        match self {
            Self::IsEmpty(path) | Self::IsNull(path) => path.held_bytes(),
            Self::HasId(ids) => size_of_val(&**ids) as u64,
            Self::HasVector(name) => name.len() as u64 + ALLOCATED,
            _ => 0,
        }
    }
}

/// What an allocation takes beside its bytes, about.
const ALLOCATED: u64 = 16;

impl Test {
    /// What words it asks for, and how.
    fn words(&self) -> Option<(&str, Having)> {
        match self {
            Self::Match(Match::Text(text)) => Some((text, Having::All)),
            Self::Match(Match::TextAny(text)) => Some((text, Having::Any)),
            Self::Match(Match::Phrase(text)) => Some((text, Having::Phrase)),
            _ => None,
        }
    }

    fn prepared(&self, room: &SharedReservation) -> Result<Self> {
        if let Some((text, having)) = self.words() {
            return Ok(Self::Words(Words::new(&Tokenizer::default(), text, having, room)?));
        }
        room.take(self.held_bytes())?;
        Ok(self.clone())
    }

    /// Bytes that a copy holds beside itself.
    fn held_bytes(&self) -> u64 {
        match self {
            Self::Match(Match::Any(scalars) | Match::Except(scalars)) => match scalars {
                Scalars::Words(words) => {
                    words.iter().map(|word| (size_of_val(word) + word.len()) as u64 + ALLOCATED).sum()
                }
                Scalars::Integers(integers) => size_of_val(&**integers) as u64,
            },
            Self::Match(Match::Value(Scalar::Word(text)) | Match::Prefix(text)) => text.len() as u64 + ALLOCATED,
            Self::Polygon(area) => area.bytes(),
            Self::Words(words) => words.held_bytes(),
            _ => 0,
        }
    }
}
