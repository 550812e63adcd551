//! Whether a point passes a filter.
//!
//! ```text
//!   point ─ id, names of its vectors, payload ─► each condition ─► must and should and must_not and min_should
//!
//!   value at a path      an array is looked into once: one of its elements is enough
//!   no value at a path   passes only "is empty", "is not null", and a count that allows 0
//! ```
//!
//! Inside `nested` there is an object and no point: what asks for an id or a vector does not hold there.

use crate::datetime;
use crate::filter::{Condition, FieldCondition, Filter, IndexedCondition, Match, Prepared, Scalar, Scalars, Test};
use crate::geo::GeoPoint;
use crate::path::Path;
use crate::predicate::ValuePredicate;
use crate::schema::Schema;
use crate::tokens::Tokenizer;
use ramekin_base::{PointId, cancel};
use serde_json::{Map, Value};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// A point as a filter sees it.
pub struct Subject<'a> {
    pub payload: &'a Map<String, Value>,
    pub point: Option<Point<'a>>,
}

/// What a point has besides its payload.
#[derive(Clone, Copy)]
pub struct Point<'a> {
    pub id: PointId,
    pub has_vector: &'a dyn Fn(&str) -> bool,
}

impl Prepared<'_> {
    /// Whether a point passes. Of a job that was cancelled meanwhile the answer says nothing.
    pub fn passes(&self, subject: &Subject<'_>) -> bool {
        Filter::passes(self, subject)
    }
}

/// Conditions, or values of a point, between two looks whether the answer is still wanted.
const CHECK: usize = 1024;

/// Whether it is time to stop after so many: only those who wait for no answer are told a wrong one.
fn is_given_up(at: usize) -> bool {
    at % CHECK == CHECK - 1 && cancel::check().is_err()
}

impl Filter {
    fn passes(&self, subject: &Subject<'_>) -> bool {
        let passes = |condition: &Condition| condition.passes(subject);
        let any = |list: &[Condition]| list.iter().enumerate().any(|(at, one)| is_given_up(at) || passes(one));
        self.must.iter().enumerate().all(|(at, one)| !is_given_up(at) && passes(one))
            && (self.should.is_empty() || any(&self.should))
            && !any(&self.must_not)
            && self.min_should.as_ref().is_none_or(|least| {
                least.conditions.iter().filter(|condition| passes(condition)).take(least.least).count() == least.least
            })
    }
}

impl Condition {
    fn passes(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Field(field) => field.passes(subject.payload),
            Self::IsEmpty(path) => is_empty(path, subject.payload),
            Self::IsNull(path) => is_null(path, subject.payload),
            Self::HasId(ids) => subject.point.is_some_and(|point| ids.binary_search(&point.id).is_ok()),
            Self::HasVector(name) => subject.point.is_some_and(|point| (point.has_vector)(name)),
            Self::Slice { total, index } => {
                subject.point.is_some_and(|point| slice_hash(point.id) % u64::from(*total) == u64::from(*index))
            }
            Self::Nested { path, filter } => path.any(subject.payload, &mut |value| {
                value.as_object().is_some_and(|payload| filter.passes(&Subject { payload, point: None }))
            }),
            Self::Filter(filter) => filter.passes(subject),
            Self::Indexed(indexed) => indexed.passes(subject.payload),
        }
    }
}

/// What a slice of the ids goes by: SipHash-2-4 with a key of zeros, of 8 little-endian bytes or the UUID's 16.
fn slice_hash(id: PointId) -> u64 {
    let mut hasher = SipHasher24::new();
    match id {
        PointId::Num(number) => hasher.write(&number.to_le_bytes()),
        PointId::Uuid(uuid) => hasher.write(&uuid.to_be_bytes()),
    }
    hasher.finish()
}

pub(crate) fn is_empty(path: &Path, payload: &Map<String, Value>) -> bool {
    !path.any(payload, &mut |value| !is_empty_value(value))
}

pub(crate) fn is_null(path: &Path, payload: &Map<String, Value>) -> bool {
    path.any(payload, &mut |value| is_null_value(value))
}

fn is_empty_value(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(|items| items.is_empty())
}

fn is_null_value(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(|items| items.iter().any(Value::is_null))
}

/// Whether one of the values that a path leads to holds, or of an array there one of its elements.
fn any_value(path: &Path, payload: &Map<String, Value>, holds: impl Fn(&Value) -> bool) -> bool {
    path.any(payload, &mut |value| match value {
        Value::Array(items) => items.iter().enumerate().any(|(at, value)| is_given_up(at) || holds(value)),
        value => holds(value),
    })
}

/// Whether what a path leads to holds, as it stands there; where there is nothing, `none`.
fn any_or_none(path: &Path, payload: &Map<String, Value>, none: bool, holds: impl Fn(&Value) -> bool) -> bool {
    let mut is_there = false;
    let any = path.any(payload, &mut |value| {
        is_there = true;
        holds(value)
    });
    any || !is_there && none
}

impl FieldCondition {
    fn passes(&self, payload: &Map<String, Value>) -> bool {
        self.counting().iter().any(|test| test.passes_at(&self.path, payload))
    }
}

impl IndexedCondition {
    fn passes(&self, payload: &Map<String, Value>) -> bool {
        if let Some(test) = &self.test {
            return test.passes_at(&self.path, payload);
        }
        let (Schema::Text(tokenizer), ValuePredicate::Words(words)) = (&*self.schema, &self.answerable.predicate)
        else {
            return false;
        };
        any_value(&self.path, payload, |value| value.as_str().is_some_and(|text| words.are_in(tokenizer, text)))
    }
}

impl Test {
    /// Whether what a path leads to passes.
    fn passes_at(&self, path: &Path, payload: &Map<String, Value>) -> bool {
        match self {
            // Of each value by itself, or of nothing.
            Self::IsEmpty(wanted) => any_or_none(path, payload, *wanted, |value| is_empty_value(value) == *wanted),
            Self::IsNull(wanted) => any_or_none(path, payload, !*wanted, |value| is_null_value(value) == *wanted),
            Self::Count(span) => any_or_none(path, payload, span.holds(0), |value| {
                span.holds(match value {
                    Value::Null => 0,
                    Value::Array(items) => items.len(),
                    _ => 1,
                })
            }),
            test => any_value(path, payload, |value| test.passes(value)),
        }
    }

    /// Whether one value passes.
    fn passes(&self, value: &Value) -> bool {
        match self {
            Self::Match(wanted) => wanted.passes(value),
            Self::Range(span) => value.as_f64().is_some_and(|number| span.holds(number)),
            Self::Times(span) => value.as_str().and_then(datetime::micros).is_some_and(|time| span.holds(time)),
            Self::Box(area) => GeoPoint::of(value).is_some_and(|point| area.holds(point)),
            Self::Radius(area) => GeoPoint::of(value).is_some_and(|point| area.holds(point)),
            Self::Polygon(area) => GeoPoint::of(value).is_some_and(|point| area.holds(point)),
            Self::Words(words) => value.as_str().is_some_and(|text| words.are_in(&Tokenizer::default(), text)),
            Self::Count(_) | Self::IsEmpty(_) | Self::IsNull(_) => false,
        }
    }
}

impl Match {
    fn passes(&self, value: &Value) -> bool {
        match self {
            Self::Value(Scalar::Word(word)) => value.as_str() == Some(word),
            Self::Value(Scalar::Integer(integer)) => value.as_i64() == Some(*integer),
            Self::Value(Scalar::Bool(wanted)) => value.as_bool() == Some(*wanted),
            Self::Any(scalars) => scalars.hold(value),
            Self::Except(scalars) => !value.is_null() && !scalars.hold(value),
            // A filter that was not prepared has no words yet: [`Filter::prepare`].
            Self::Text(_) | Self::TextAny(_) | Self::Phrase(_) => false,
            Self::Prefix(prefix) => value.as_str().is_some_and(|stored| stored.starts_with(&**prefix)),
        }
    }
}

impl Scalars {
    fn hold(&self, value: &Value) -> bool {
        match self {
            Self::Words(words) => {
                value.as_str().is_some_and(|word| words.binary_search_by(|held| (**held).cmp(word)).is_ok())
            }
            Self::Integers(integers) => value.as_i64().is_some_and(|integer| integers.binary_search(&integer).is_ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Span;
    use serde_json::json;

    /// Of some payloads the numbers of those that pass.
    fn passing(payloads: &Value, condition: Condition) -> Vec<usize> {
        let filter = Filter { must: [condition].into(), ..Filter::default() };
        let has_vector = |name: &str| name == "a";
        let budget = ramekin_memory::Budget::new(1 << 20);
        let prepared = filter.prepare(None, &budget.root()).unwrap();
        let passes = |(at, payload): (usize, &Value)| {
            let point = Some(Point { id: PointId::Num(at as u64), has_vector: &has_vector });
            prepared.passes(&Subject { payload: payload.as_object().unwrap(), point }).then_some(at)
        };
        payloads.as_array().unwrap().iter().enumerate().filter_map(passes).collect()
    }

    fn field(path: &str, test: Test) -> Condition {
        Condition::Field(FieldCondition { path: Path::parse(path).unwrap(), tests: [test].into() })
    }

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    /// Values of every kind, by their place.
    fn kinds() -> Value {
        json!([
            {"a": 1}, {"a": 1.0}, {"a": 1.5}, {"a": "1"}, {"a": true}, {"a": null}, {"a": []}, {"a": [1, 2]}, {"a": [[1]]},
            {"a": {"b": 1}}, {"a": [{"b": 1}, {"b": [2]}]}, {}, {"a": "x y"}, {"a": [null]}, {"a": [null, 1]}, {"a": ""}
        ])
    }

    #[test]
    fn matches_are_of_their_kind() {
        let one = Match::Value(Scalar::Integer(1));
        assert_eq!(passing(&kinds(), field("a", Test::Match(one.clone()))), [0, 7, 14]);
        assert_eq!(passing(&kinds(), field("a[]", Test::Match(one.clone()))), [7, 8, 14]);
        assert_eq!(passing(&kinds(), field("a.b", Test::Match(one.clone()))), [9]);
        assert_eq!(passing(&kinds(), field("a[].b", Test::Match(one))), [10]);
        assert_eq!(passing(&kinds(), field("a", Test::Match(Match::Value(Scalar::Word("1".into()))))), [3]);
        assert_eq!(passing(&kinds(), field("a", Test::Match(Match::Value(Scalar::Bool(true))))), [4]);
        assert_eq!(
            passing(&kinds(), field("a", Test::Match(Match::Any(Scalars::integers([2, 1].into()))))),
            [0, 7, 14]
        );
        assert!(passing(&kinds(), field("a", Test::Match(Match::Any(Scalars::words(Box::default()))))).is_empty());
        let except = |scalars| passing(&kinds(), field("a", Test::Match(Match::Except(scalars))));
        assert_eq!(except(Scalars::integers([1].into())), [1, 2, 3, 4, 7, 8, 9, 10, 12, 15]);
        assert_eq!(except(Scalars::words(["1".into()].into())), [0, 1, 2, 4, 7, 8, 9, 10, 12, 14, 15]);
    }

    #[test]
    fn what_is_not_there() {
        assert_eq!(passing(&kinds(), Condition::IsEmpty(path("a"))), [5, 6, 11]);
        assert_eq!(passing(&kinds(), Condition::IsNull(path("a"))), [5, 13, 14]);
        let is_empty = passing(&kinds(), field("a", Test::IsEmpty(false)));
        assert_eq!(is_empty, [0, 1, 2, 3, 4, 7, 8, 9, 10, 12, 13, 14, 15]);
        assert_eq!(passing(&kinds(), field("a", Test::IsNull(false))).len(), 13);
        // Of several values each may be what is asked for.
        let many = json!([{"a": [1, null]}, {"a": [null]}, {"a": []}, {"a": [[]]}]);
        assert_eq!(passing(&many, field("a[]", Test::IsEmpty(true))), [0, 1, 2, 3]);
        assert_eq!(passing(&many, field("a[]", Test::IsEmpty(false))), [0]);
        assert_eq!(passing(&many, field("a[]", Test::IsNull(false))), [0, 2, 3]);
        assert_eq!(passing(&many, Condition::IsEmpty(path("a[]"))), [1, 2, 3]);
        let count = |span| passing(&kinds(), field("a", Test::Count(span)));
        assert_eq!(count(Span { lt: Some(1), ..Span::default() }), [5, 6, 11]);
        assert_eq!(count(Span { gte: Some(2), ..Span::default() }), [7, 10, 14]);
        assert_eq!(count(Span::default()).len(), 16);
    }

    #[test]
    fn ranges_are_of_numbers_or_of_times() {
        let range = |span| passing(&kinds(), field("a", Test::Range(span)));
        assert_eq!(range(Span { gt: Some(1.0), lte: Some(2.0), ..Span::default() }), [2, 7]);
        assert_eq!(range(Span::default()), [0, 1, 2, 7, 14]);
        let times = json!([{"t": "2020-01-01"}, {"t": "2020-01-02T00:00:00Z"}, {"t": 5}, {"t": ["x", "2021-01-01"]}]);
        let span = Span { gt: datetime::micros("2020-01-01"), ..Span::default() };
        assert_eq!(passing(&times, field("t", Test::Times(span))), [1, 3]);
    }

    #[test]
    fn of_several_tests_those_of_how_many_values_there_are_count_alone() {
        let tests = |tests: Vec<Test>| {
            passing(&kinds(), Condition::Field(FieldCondition { path: path("a"), tests: tests.into() }))
        };
        let one = || Test::Match(Match::Value(Scalar::Integer(1)));
        let range = Test::Range(Span { gt: Some(1.2), ..Span::default() });
        assert_eq!(tests(vec![one(), range]), [0, 2, 7, 14]);
        let none = || Test::Count(Span { lt: Some(1), ..Span::default() });
        assert_eq!(tests(vec![one(), Test::IsNull(true), Test::IsEmpty(false), none()]), [5, 6, 11]);
        assert_eq!(tests(vec![one(), Test::IsNull(false), Test::IsEmpty(true)]), [5, 6, 11]);
        assert_eq!(tests(vec![one(), Test::IsNull(true)]), [5, 13, 14]);
        assert!(tests(Vec::new()).is_empty());
    }

    #[test]
    fn a_nested_filter_is_of_one_object() {
        let payloads = json!([
            {"a": [{"b": 1, "c": 1}, {"b": 2, "c": 2}]}, {"a": [{"b": 1, "c": 2}]}, {"a": {"b": 1, "c": 2}},
            {"a": [{"b": [1, 2], "c": 2}]}, {"a": [[{"b": 1, "c": 2}]]}, {"a": []}, {"a": [{}]}
        ]);
        let is = |key: &str, value| field(key, Test::Match(Match::Value(Scalar::Integer(value))));
        let nested = |filter| Condition::Nested { path: path("a").to_elements(), filter };
        let both = Filter { must: [is("b", 1), is("c", 2)].into(), ..Filter::default() };
        assert_eq!(passing(&payloads, nested(both)), [1, 3]);
        let none = Filter { must_not: [is("b", 1)].into(), ..Filter::default() };
        assert_eq!(passing(&payloads, nested(none)), [0, 6]);
        assert_eq!(passing(&payloads, nested(Filter::default())), [0, 1, 3, 6]);
        let ids = Condition::HasId([PointId::Num(0)].into());
        assert!(passing(&payloads, nested(Filter { must: [ids].into(), ..Filter::default() })).is_empty());
    }

    #[test]
    fn conditions_are_joined() {
        let ids = |ids: &[u64]| Condition::HasId(ids.iter().map(|id| PointId::Num(*id)).collect());
        let of = |filter| passing(&kinds(), Condition::Filter(filter));
        assert_eq!(of(Filter { should: [ids(&[1, 2]), ids(&[3])].into(), ..Filter::default() }), [1, 2, 3]);
        assert_eq!(
            of(Filter { must: [ids(&[1, 2, 3])].into(), must_not: [ids(&[2])].into(), ..Filter::default() }),
            [1, 3]
        );
        let least = |least| {
            let conditions = vec![ids(&[1, 2]), ids(&[2, 3])];
            of(Filter {
                min_should: Some(crate::MinShould { conditions: conditions.into(), least }),
                ..Filter::default()
            })
        };
        assert_eq!((least(1), least(2), least(3)), (vec![1, 2, 3], vec![2], vec![]));
        assert_eq!(least(0).len(), 16);
        assert_eq!(passing(&kinds(), Condition::HasVector("a".into())).len(), 16);
        assert!(passing(&kinds(), Condition::HasVector("b".into())).is_empty());
    }

    #[test]
    fn slices_are_those_of_other_systems() {
        let slice = |index| {
            passing(&json!([{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}]), Condition::Slice { total: 3, index })
        };
        assert_eq!(slice(1), [3, 6, 7, 10]);
        assert_eq!(slice(0).len() + slice(1).len() + slice(2).len(), 13);
    }
}
