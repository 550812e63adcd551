//! A test of a field as an index understands it: which keys pass.
//!
//! ```text
//!   match, range, times ─► ranges of keys          area ─► an area          text ─► words, all or one of them
//!
//!   a test that the index does not serve ─► none: it is asked of the values themselves
//! ```
//!
//! The same answer is had from an index, and from the keys of a payload that is in no index yet.

use crate::area::Area;
use crate::filter::{Match, Scalar, Scalars, Span, Test};
use crate::key;
use crate::path::Path;
use crate::schema::Schema;
use crate::text::{Having, Seen, Words};
use ramekin_base::Result;
use ramekin_memory::Reservation;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Which keys pass.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// Ascending and apart.
    Keys(Vec<KeyRange>),
    Area(Area),
    Words(Words),
    /// Whether the field is empty, or is null.
    Empty(bool),
    Null(bool),
}

/// Keys from one on; to before another, or to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub from: Box<[u8]>,
    pub to: Option<Box<[u8]>>,
}

impl KeyRange {
    pub(crate) fn one(key: &[u8]) -> Self {
        Self { from: key.into(), to: Some(after(key)) }
    }

    /// Whether it holds one key at most, which is its first.
    pub(crate) fn is_one(&self) -> bool {
        self.to.as_ref().is_some_and(|to| to.strip_suffix(&[0]) == Some(&*self.from))
    }

    fn holds(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.as_ref().is_none_or(|to| *key < **to)
    }
}

/// The least key above one.
fn after(key: &[u8]) -> Box<[u8]> {
    [key, &[0]].concat().into()
}

/// The keys that begin with some bytes.
fn beginning(bytes: Box<[u8]>) -> KeyRange {
    let mut to = bytes.to_vec();
    // The next one of this length: the last byte that can grow does.
    while to.pop_if(|byte| *byte == u8::MAX).is_some() {}
    if let Some(last) = to.last_mut() {
        *last += 1;
    }
    KeyRange { from: bytes, to: if to.is_empty() { None } else { Some(to.into()) } }
}

/// A key as ranges of keys, beside its bytes, which it has twice.
const KEY_BYTES: u64 = 2 * size_of::<KeyRange>() as u64 + 32;

/// These keys, or all others.
fn keys<'k>(
    list: impl Iterator<Item = Cow<'k, [u8]>> + Clone,
    others: bool,
    memory: &mut Reservation,
) -> Result<Asked> {
    let bytes: u64 = list.clone().map(|key| KEY_BYTES + 2 * key.len() as u64).sum();
    memory.grow(bytes + KEY_BYTES)?;
    let mut ranges = Vec::with_capacity(list.clone().count() + 1);
    ranges.extend(list.map(|key| KeyRange::one(&key)));
    // Words come in the order of their bytes, but their keys may not, and the same UUID has several forms.
    ranges.sort_unstable_by(|one, other| one.from.cmp(&other.from));
    ranges.dedup();
    if others {
        // Between each and the next: what a range leaves is where the one behind it begins.
        let mut from = Box::default();
        for range in &mut ranges {
            let next = range.to.replace(std::mem::replace(&mut range.from, from));
            from = next.unwrap_or_default();
        }
        ranges.push(KeyRange { from, to: None });
    }
    Ok(Asked::Keys(ranges))
}

/// Integers within bounds that are numbers of any size: the least and the greatest, if there are any.
fn integers(span: &Span<f64>) -> Option<(i64, i64)> {
    const TOO_MUCH: f64 = 9_223_372_036_854_775_808.0;
    // A float that is not too large is an integer once it is rounded; the least one is of both signs' edge.
    let from = |bound: f64| if bound < -TOO_MUCH { Some(i64::MIN) } else { (bound < TOO_MUCH).then_some(bound as i64) };
    let to = |bound: f64| if bound >= TOO_MUCH { Some(i64::MAX) } else { (bound >= -TOO_MUCH).then_some(bound as i64) };
    let mut least = span.gte.map_or(Some(i64::MIN), |bound| from(bound.ceil()))?;
    if let Some(bound) = span.gt {
        least = least.max(if bound < -TOO_MUCH { i64::MIN } else { from(bound.floor())?.checked_add(1)? });
    }
    let mut most = span.lte.map_or(Some(i64::MAX), |bound| to(bound.floor()))?;
    if let Some(bound) = span.lt {
        most = most.min(if bound >= TOO_MUCH { i64::MAX } else { to(bound.ceil())?.checked_sub(1)? });
    }
    (least <= most).then_some((least, most))
}

fn whole(bounds: Option<(i64, i64)>) -> Asked {
    let range = bounds.map(|(least, most)| KeyRange {
        from: key::of_integer(least).into(),
        to: most.checked_add(1).map(|end| key::of_integer(end).into()),
    });
    Asked::Keys(range.into_iter().collect())
}

fn times(span: &Span<i64>) -> Asked {
    let above = span.gt.map_or(Some(i64::MIN), |bound| bound.checked_add(1));
    let below = span.lt.map_or(Some(i64::MAX), |bound| bound.checked_sub(1));
    let bounds = above
        .zip(below)
        .map(|(above, below)| (above.max(span.gte.unwrap_or(i64::MIN)), below.min(span.lte.unwrap_or(i64::MAX))));
    whole(bounds.filter(|(least, most)| least <= most))
}

fn floats(span: &Span<f64>) -> Asked {
    let from = span.gt.map(|bound| after(&key::of_float(bound)));
    let from = from.max(span.gte.map(|bound| key::of_float(bound).into())).unwrap_or_default();
    let below = span.lt.map(|bound| Box::from(key::of_float(bound)));
    let to = below.into_iter().chain(span.lte.map(|bound| after(&key::of_float(bound)))).min();
    let is_some = to.as_ref().is_none_or(|to| from < *to);
    Asked::Keys(is_some.then_some(KeyRange { from, to }).into_iter().collect())
}

impl Schema {
    /// The test as the index answers it; `None`: it does not. `memory` grows by what that takes.
    pub(crate) fn ask(&self, test: &Test, memory: &mut Reservation) -> Result<Option<Asked>> {
        Ok(match (self, test) {
            (_, Test::IsEmpty(wanted)) => Some(Asked::Empty(*wanted)),
            (_, Test::IsNull(wanted)) => Some(Asked::Null(*wanted)),
            (Self::Keyword | Self::Integer { .. } | Self::Bool | Self::Uuid | Self::Text(_), Test::Match(wanted)) => {
                return self.ask_match(wanted, memory);
            }
            (_, Test::Range(_) | Test::Times(_)) => self.ask_range(test),
            (Self::Geo, Test::Box(area)) => Some(Asked::Area(Area::Box(*area))),
            (Self::Geo, Test::Radius(area)) => Some(Asked::Area(Area::Radius(*area))),
            (Self::Geo, Test::Polygon(area)) => {
                memory.grow(area.bytes())?;
                Some(Asked::Area(Area::Polygon(area.clone())))
            }
            _ => None,
        })
    }

    /// A range of numbers or times as the index answers it.
    pub(crate) fn ask_range(&self, test: &Test) -> Option<Asked> {
        match (self, test) {
            (Self::Integer { range: true, .. } | Self::Datetime, Test::Range(span)) => Some(whole(integers(span))),
            (Self::Integer { range: true, .. } | Self::Datetime, Test::Times(span)) => Some(times(span)),
            (Self::Float, Test::Range(span)) => Some(floats(span)),
            (Self::Float, Test::Times(span)) => {
                let float = |bound: Option<i64>| bound.map(|bound| bound as f64);
                let Span { gt, gte, lt, lte } = *span;
                Some(floats(&Span { gt: float(gt), gte: float(gte), lt: float(lt), lte: float(lte) }))
            }
            _ => None,
        }
    }

    fn ask_match(&self, wanted: &Match, memory: &mut Reservation) -> Result<Option<Asked>> {
        let of_scalars = |scalars: &Scalars, others: bool, memory: &mut Reservation| match (self, scalars) {
            (Self::Keyword, Scalars::Words(words)) => {
                keys(words.iter().map(|word| key::of_word(word)), others, memory).map(Some)
            }
            (Self::Integer { lookup: true, .. }, Scalars::Integers(integers)) => {
                let of = |integer: &i64| Cow::Owned(key::of_integer(*integer).to_vec());
                keys(integers.iter().map(of), others, memory).map(Some)
            }
            // Words that are all UUIDs.
            (Self::Uuid, Scalars::Words(words)) if words.iter().all(|word| key::of_uuid(word).is_some()) => {
                let uuids = words.iter().filter_map(|word| key::of_uuid(word));
                keys(uuids.map(|uuid| Cow::Owned(uuid.to_vec())), others, memory).map(Some)
            }
            _ => Ok(None),
        };
        match (self, wanted) {
            (_, Match::Any(scalars)) => of_scalars(scalars, false, memory),
            (_, Match::Except(scalars)) => of_scalars(scalars, true, memory),
            (Self::Keyword, Match::Value(Scalar::Word(word))) => {
                keys(std::iter::once(key::of_word(word)), false, memory).map(Some)
            }
            (Self::Keyword, Match::Prefix(prefix)) => {
                memory.grow(KEY_BYTES + 2 * prefix.len() as u64)?;
                Ok(key::of_beginning(prefix).map(|bytes| Asked::Keys(vec![beginning(bytes)])))
            }
            (Self::Integer { lookup: true, .. }, Match::Value(Scalar::Integer(integer))) => {
                keys(std::iter::once(key::of_integer(*integer)[..].into()), false, memory).map(Some)
            }
            (Self::Bool, Match::Value(Scalar::Bool(value))) => {
                keys(std::iter::once(key::of_bool(*value)[..].into()), false, memory).map(Some)
            }
            (Self::Uuid, Match::Value(Scalar::Word(word))) => {
                let uuid = key::of_uuid(word);
                uuid.map(|uuid| keys(std::iter::once(uuid[..].into()), false, memory)).transpose()
            }
            (Self::Text(tokenizer), wanted) => {
                let words = |text: &str, having: Having, memory: &mut Reservation| {
                    Words::new(tokenizer, text, having, memory).map(|words| Some(Asked::Words(words)))
                };
                match wanted {
                    Match::Text(text) => words(text, Having::All, memory),
                    Match::TextAny(text) => words(text, Having::Any, memory),
                    Match::Phrase(text) if tokenizer.phrases => words(text, Having::Phrase, memory),
                    Match::Phrase(_) => Ok(Some(Asked::Keys(Vec::new()))),
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }
}

impl Asked {
    /// Whether a value with this key passes by itself; words of a text are not asked so.
    pub fn holds(&self, key: &[u8]) -> bool {
        match self {
            Self::Keys(ranges) => {
                let before = ranges.partition_point(|range| range.to.as_ref().is_some_and(|to| **to <= *key));
                ranges.get(before).is_some_and(|range| range.holds(key))
            }
            Self::Area(area) => key::place_of(key).is_some_and(|place| area.holds(place)),
            Self::Words(_) | Self::Empty(_) | Self::Null(_) => false,
        }
    }

    /// Whether one of the values that a path leads to has a key that passes, or all of them together the words.
    pub(crate) fn passes(&self, schema: &Schema, path: &Path, payload: &Map<String, Value>) -> bool {
        if let Self::Words(words) = self {
            let mut seen = Seen::new(words);
            schema.keys(path, payload, &mut |key| seen.show(key));
            return seen.is_enough();
        }
        let mut any = false;
        schema.keys(path, payload, &mut |key| any = any || self.holds(key));
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ramekin_memory::Budget;
    use serde_json::json;

    fn passes(kind: &str, test: &Test, value: Value) -> Option<bool> {
        let schema = Schema::named(kind).unwrap();
        let budget = Budget::new(1 << 20);
        let mut memory = budget.root().child("queries", "").try_reserve(0).unwrap();
        let asked = schema.ask(test, &mut memory).unwrap()?;
        let payload = json!({ "a": value });
        let path = crate::Path::parse("a").unwrap();
        Some(asked.passes(&schema, &path, payload.as_object().unwrap()))
    }

    fn words(list: &[&str]) -> Scalars {
        Scalars::words(list.iter().map(|word| (*word).into()).collect())
    }

    #[test]
    fn an_index_answers_what_its_kind_can() {
        let any = |list: &[&str]| Test::Match(Match::Any(words(list)));
        let except = |list: &[&str]| Test::Match(Match::Except(words(list)));
        assert_eq!(passes("keyword", &any(&["b", "a"]), json!(["x", "b"])), Some(true));
        assert_eq!(passes("keyword", &any(&["b", "a"]), json!("ab")), Some(false));
        assert_eq!(passes("keyword", &except(&["a"]), json!(["a", 5])), Some(false));
        assert_eq!(passes("keyword", &except(&["a"]), json!(["a", "b"])), Some(true));
        assert_eq!(passes("keyword", &except(&[]), json!("")), Some(true));
        assert_eq!(passes("keyword", &Test::Match(Match::Prefix("ab".into())), json!("abc")), Some(true));
        assert_eq!(passes("keyword", &Test::Match(Match::Prefix("".into())), json!("abc")), Some(true));
        assert_eq!(passes("keyword", &Test::Match(Match::Prefix("b".into())), json!("abc")), Some(false));
        assert_eq!(passes("integer", &any(&["a"]), json!(1)), None);
        assert_eq!(passes("uuid", &any(&["a"]), json!("a")), None);
        let uuid = "550e8400-e29b-41d4-a716-446655440000";
        assert_eq!(passes("uuid", &any(&[uuid]), json!(uuid.replace('-', "").to_uppercase())), Some(true));
        assert_eq!(passes("bool", &Test::Match(Match::Value(Scalar::Bool(false))), json!([true, false])), Some(true));
        let all = Test::Match(Match::Text("Fox the".into()));
        assert_eq!(passes("text", &all, json!(["the", "fox"])), Some(true));
        assert_eq!(passes("text", &Test::Match(Match::Phrase("fox".into())), json!("fox")), Some(false));
    }

    proptest! {
        #[test]
        fn bounds_are_those_of_numbers(
            value in prop_oneof![any::<i64>(), -5i64..5, Just(i64::MAX), Just(i64::MIN)],
            bounds in prop::collection::vec(prop::option::of(prop_oneof![
                any::<f64>().prop_filter("a number", |float| !float.is_nan()), -5.0..5.0,
                (-5i64..5).prop_map(|whole| whole as f64), Just(i64::MAX as f64), Just(i64::MIN as f64), Just(1e300), Just(-1e300),
            ]), 4),
        ) {
            let span = Span { gt: bounds[0], gte: bounds[1], lt: bounds[2], lte: bounds[3] };
            // Exact: compared as integers of 128 bits, where a bound is not beyond all of them.
            let whole = |float: f64| float.clamp(-1e30, 1e30) as i128;
            let own = i128::from(value);
            let expected = span.gt.is_none_or(|bound| own > whole(bound.floor()))
                && span.gte.is_none_or(|bound| own >= whole(bound.ceil()))
                && span.lt.is_none_or(|bound| own < whole(bound.ceil()))
                && span.lte.is_none_or(|bound| own <= whole(bound.floor()));
            prop_assert_eq!(passes("integer", &Test::Range(span), json!(value)), Some(expected), "{:?}", span);
        }

        #[test]
        fn floats_are_compared_as_floats(value in -3.0..3.0, bounds in prop::collection::vec(-3.0..3.0, 2), at in 0usize..4) {
            let values = [value, bounds[0], bounds[1], 0.0];
            let span = Span { gt: Some(bounds[0]), lte: Some(bounds[1]), ..Span::default() };
            prop_assert_eq!(passes("float", &Test::Range(span), json!(values[at])), Some(span.holds(values[at])));
        }
    }
}
