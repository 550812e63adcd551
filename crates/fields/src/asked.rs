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
use crate::schema::Schema;
use std::collections::BTreeSet;

/// Which keys pass.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// Ascending and apart.
    Keys(Vec<KeyRange>),
    Area(Area),
    /// All of them, or one; each once, ascending.
    Words {
        words: Vec<Box<[u8]>>,
        all: bool,
    },
    /// One after the other.
    Phrase(Vec<Box<[u8]>>),
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
    fn one(key: &[u8]) -> Self {
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

/// These keys, or all others.
fn keys(list: impl Iterator<Item = Box<[u8]>>, others: bool) -> Asked {
    let list: BTreeSet<Box<[u8]>> = list.collect();
    if !others {
        return Asked::Keys(list.iter().map(|key| KeyRange::one(key)).collect());
    }
    let (mut ranges, mut from) = (Vec::with_capacity(list.len() + 1), Box::default());
    for key in list {
        let next = after(&key);
        ranges.push(KeyRange { from, to: Some(key) });
        from = next;
    }
    ranges.push(KeyRange { from, to: None });
    Asked::Keys(ranges)
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
    /// The test as the index answers it; `None`: it does not.
    pub(crate) fn ask(&self, test: &Test) -> Option<Asked> {
        match (self, test) {
            (_, Test::IsEmpty(wanted)) => Some(Asked::Empty(*wanted)),
            (_, Test::IsNull(wanted)) => Some(Asked::Null(*wanted)),
            (Self::Keyword, Test::Match(wanted)) => match wanted {
                Match::Value(Scalar::Word(word)) => Some(keys(std::iter::once(key::of_word(word)), false)),
                Match::Any(Scalars::Words(words)) => Some(keys(words.iter().map(|word| key::of_word(word)), false)),
                Match::Except(Scalars::Words(words)) => Some(keys(words.iter().map(|word| key::of_word(word)), true)),
                Match::Prefix(prefix) => Some(Asked::Keys(vec![beginning(key::of_beginning(prefix)?)])),
                _ => None,
            },
            (Self::Integer { lookup: true, .. }, Test::Match(wanted)) => {
                let of = |integers: &[i64]| -> Vec<Box<[u8]>> {
                    integers.iter().map(|integer| key::of_integer(*integer).into()).collect()
                };
                match wanted {
                    Match::Value(Scalar::Integer(integer)) => Some(keys(of(&[*integer]).into_iter(), false)),
                    Match::Any(Scalars::Integers(integers)) => Some(keys(of(integers).into_iter(), false)),
                    Match::Except(Scalars::Integers(integers)) => Some(keys(of(integers).into_iter(), true)),
                    _ => None,
                }
            }
            (Self::Integer { range: true, .. } | Self::Datetime, Test::Range(span)) => Some(whole(integers(span))),
            (Self::Integer { range: true, .. } | Self::Datetime, Test::Times(span)) => Some(times(span)),
            (Self::Float, Test::Range(span)) => Some(floats(span)),
            (Self::Float, Test::Times(span)) => {
                let float = |bound: Option<i64>| bound.map(|bound| bound as f64);
                let Span { gt, gte, lt, lte } = *span;
                Some(floats(&Span { gt: float(gt), gte: float(gte), lt: float(lt), lte: float(lte) }))
            }
            (Self::Bool, Test::Match(Match::Value(Scalar::Bool(value)))) => {
                Some(keys(std::iter::once(key::of_bool(*value).into()), false))
            }
            (Self::Uuid, Test::Match(wanted)) => uuids(wanted),
            (Self::Geo, Test::Box(area)) => Some(Asked::Area(Area::Box(*area))),
            (Self::Geo, Test::Radius(area)) => Some(Asked::Area(Area::Radius(*area))),
            (Self::Geo, Test::Polygon(area)) => Some(Asked::Area(Area::Polygon(area.clone()))),
            (Self::Text(tokenizer), Test::Match(wanted)) => {
                let tokens = |text: &str| {
                    let mut tokens = Vec::new();
                    tokenizer.asked(text, &mut |token| tokens.push(key::of_word(token)));
                    tokens
                };
                let words = |text: &str, all: bool| {
                    let words: BTreeSet<Box<[u8]>> = tokens(text).into_iter().collect();
                    Some(Asked::Words { words: words.into_iter().collect(), all })
                };
                match wanted {
                    Match::Text(text) => words(text, true),
                    Match::TextAny(text) => words(text, false),
                    Match::Phrase(text) if tokenizer.phrases => Some(Asked::Phrase(tokens(text))),
                    Match::Phrase(_) => Some(Asked::Keys(Vec::new())),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Words that are all UUIDs.
fn uuids(wanted: &Match) -> Option<Asked> {
    let of = |words: &[Box<str>]| -> Option<Vec<Box<[u8]>>> {
        words.iter().map(|word| key::of_uuid(word).map(|uuid| uuid.into())).collect()
    };
    match wanted {
        Match::Value(Scalar::Word(word)) => Some(keys(of(std::slice::from_ref(word))?.into_iter(), false)),
        Match::Any(Scalars::Words(words)) => Some(keys(of(words)?.into_iter(), false)),
        Match::Except(Scalars::Words(words)) => Some(keys(of(words)?.into_iter(), true)),
        _ => None,
    }
}

impl Asked {
    /// Whether a point with these keys, in their order, passes; what is asked of the field itself no key tells.
    pub fn passes(&self, found: &[Box<[u8]>]) -> bool {
        match self {
            Self::Keys(ranges) => found.iter().any(|key| {
                let before = ranges.partition_point(|range| range.to.as_ref().is_some_and(|to| **to <= **key));
                ranges.get(before).is_some_and(|range| range.holds(key))
            }),
            Self::Area(area) => found.iter().filter_map(|key| key::place_of(key)).any(|place| area.holds(place)),
            Self::Words { words, .. } if words.is_empty() => false,
            Self::Words { words, all: true } => words.iter().all(|word| found.contains(word)),
            Self::Words { words, all: false } => words.iter().any(|word| found.contains(word)),
            Self::Phrase(words) => !words.is_empty() && found.windows(words.len()).any(|run| run == words),
            Self::Empty(_) | Self::Null(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn passes(kind: &str, test: &Test, value: Value) -> Option<bool> {
        let schema = Schema::named(kind).unwrap();
        let asked = schema.ask(test)?;
        let mut found = Vec::new();
        let payload = json!({ "a": value });
        let path = crate::Path::parse("a").unwrap();
        schema.keys(&path, payload.as_object().unwrap(), &mut |key| found.push(key.into()));
        Some(asked.passes(&found))
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
