//! A test of a field as an index understands it: which keys pass, and what keys do not tell.
//!
//! ```text
//!   match, range, times ─► ranges of keys          area ─► an area          text ─► words, all or one of them
//!
//!   rows that hold what their keys do not tell ─► as their keys say, or they pass, or their payloads are asked
//!   a test that the index does not serve       ─► none: payloads are asked
//! ```
//!
//! An index is a shortcut: with it the same points pass as without it, but for the words of a text, which are those that
//! the index was told.

use crate::area::Area;
use crate::filter::{Match, Scalar, Scalars, Span, Test};
use crate::key;
use crate::path::Path;
use crate::schema::Schema;
use crate::text::{Having, Words};
use crate::tokens::Tokenizer;
use ramekin_base::Result;
use ramekin_memory::{BookedVec, SharedReservation};

/// Which keys pass.
#[derive(Debug, Clone, PartialEq)]
pub enum ValuePredicate {
    /// Ascending and apart.
    Keys(Box<[KeyRange]>),
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
    // The next one of this length: the last byte that can grow does.
    let to = bytes.iter().rposition(|byte| *byte != u8::MAX).map(|last| {
        let mut to: Box<[u8]> = bytes[..=last].into();
        to[last] += 1;
        to
    });
    KeyRange { from: bytes, to }
}

/// What the bytes of a range take beside themselves: two allocations, and the byte that ends one key.
const RANGE_BYTES: u64 = 2 * 24;

/// These keys, or all others.
fn keys<K: AsRef<[u8]>>(
    list: impl Iterator<Item = K> + Clone,
    others: bool,
    room: &SharedReservation,
) -> Result<ValuePredicate> {
    let (mut count, mut bytes) = (1, 0);
    list.clone().for_each(|key| (count, bytes) = (count + 1, bytes + RANGE_BYTES + 2 * key.as_ref().len() as u64));
    room.take(bytes)?;
    let mut ranges = BookedVec::new(room);
    ranges.reserve(count)?;
    list.map(|key| KeyRange::one(key.as_ref())).try_for_each(|range| ranges.push(range))?;
    // Words come in the order of their bytes, but their keys may not, and the same UUID has several forms.
    ranges.sort_unstable_by(|one, other| one.from.cmp(&other.from));
    ranges.dedup_by(|one, other| one == other);
    if others {
        // Between each and the next: what a range leaves is where the one behind it begins.
        let mut from = Box::default();
        for range in &mut *ranges {
            let next = range.to.replace(std::mem::replace(&mut range.from, from));
            from = next.unwrap_or_default();
        }
        ranges.push(KeyRange { from, to: None })?;
    }
    Ok(ValuePredicate::Keys(ranges.boxed()?))
}

/// The keys of one range, or none.
fn within(range: Option<KeyRange>) -> ValuePredicate {
    ValuePredicate::Keys(range.map_or_else(Box::default, |range| Box::new([range]) as Box<[_]>))
}

/// What one range of numbers takes.
const NUMBERS_BYTES: u64 = size_of::<KeyRange>() as u64 + RANGE_BYTES;

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

fn whole(bounds: Option<(i64, i64)>) -> ValuePredicate {
    let range = bounds.map(|(least, most)| KeyRange {
        from: key::of_integer(least).into(),
        to: most.checked_add(1).map(|end| key::of_integer(end).into()),
    });
    within(range)
}

fn times(span: &Span<i64>) -> ValuePredicate {
    let above = span.gt.map_or(Some(i64::MIN), |bound| bound.checked_add(1));
    let below = span.lt.map_or(Some(i64::MAX), |bound| bound.checked_sub(1));
    let bounds = above
        .zip(below)
        .map(|(above, below)| (above.max(span.gte.unwrap_or(i64::MIN)), below.min(span.lte.unwrap_or(i64::MAX))));
    whole(bounds.filter(|(least, most)| least <= most))
}

fn floats(span: &Span<f64>) -> ValuePredicate {
    let from = span.gt.map(|bound| after(&key::of_float(bound)));
    let from = from.max(span.gte.map(|bound| key::of_float(bound).into())).unwrap_or_default();
    let below = span.lt.map(|bound| Box::from(key::of_float(bound)));
    let to = below.into_iter().chain(span.lte.map(|bound| after(&key::of_float(bound)))).min();
    let is_some = to.as_ref().is_none_or(|to| from < *to);
    within(is_some.then_some(KeyRange { from, to }))
}

/// How rows pass of which an index knows that they hold something that their keys do not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flagged {
    /// As their keys say: what these do not tell is not asked for.
    AsKeysSay,
    /// They pass, whatever their keys are.
    Pass,
    /// Those whose keys pass may fail.
    MayFail,
    /// Those whose keys do not pass may yet pass.
    MayPass,
}

/// A test as an index answers it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answerable {
    pub predicate: ValuePredicate,
    /// Rows with a value of which the keys tell a part.
    pub partly: Flagged,
    /// Rows with a value of another kind.
    pub foreign: Flagged,
    /// Other rows pass as their keys say; else those whose keys pass may fail.
    pub is_enough: bool,
}

impl From<ValuePredicate> for Answerable {
    fn from(predicate: ValuePredicate) -> Self {
        Self { predicate, partly: Flagged::AsKeysSay, foreign: Flagged::AsKeysSay, is_enough: true }
    }
}

impl Schema {
    /// A test of what a path leads to as the index answers it; `None`: it does not. `room` holds what that takes.
    pub(crate) fn ask(&self, path: &Path, test: &Test, room: &SharedReservation) -> Result<Option<Answerable>> {
        if matches!(test, Test::Range(_) | Test::Times(_)) {
            room.take(NUMBERS_BYTES)?;
        }
        Ok(match (self, test) {
            // Of several values one is enough to be empty, or not to be null: the index says whether all are, or one.
            (_, Test::IsEmpty(true) | Test::IsNull(false)) if path.is_to_several() => None,
            (_, Test::IsEmpty(wanted)) => Some(ValuePredicate::Empty(*wanted).into()),
            (_, Test::IsNull(wanted)) => Some(ValuePredicate::Null(*wanted).into()),
            (_, Test::Match(wanted)) => return self.ask_match(wanted, room),
            (Self::Integer { range: true, .. }, Test::Range(span)) => {
                Some(Answerable { partly: Flagged::MayPass, ..as_floats(span).into() })
            }
            (Self::Float, Test::Range(span)) => Some(floats(span).into()),
            (Self::Datetime, Test::Times(span)) => Some(times(span).into()),
            (Self::Geo, Test::Box(area)) => Some(in_area(Area::Box(*area))),
            (Self::Geo, Test::Radius(area)) => Some(in_area(Area::Radius(*area))),
            (Self::Geo, Test::Polygon(area)) => {
                room.take(area.bytes())?;
                Some(in_area(Area::Polygon(area.clone())))
            }
            _ => None,
        })
    }

    /// The keys of an order that lie within bounds. A time is an integer here, and may be a float's bound.
    pub(crate) fn ask_range(&self, test: &Test) -> Option<ValuePredicate> {
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

    fn ask_match(&self, wanted: &Match, room: &SharedReservation) -> Result<Option<Answerable>> {
        match (self, wanted) {
            (Self::Keyword, Match::Prefix(prefix)) => {
                room.take(NUMBERS_BYTES + 2 * prefix.len() as u64)?;
                Ok(key::of_beginning(prefix).map(|bytes| within(Some(beginning(bytes))).into()))
            }
            (Self::Bool, Match::Value(Scalar::Bool(value))) => {
                Ok(Some(keys(std::iter::once(key::of_bool(*value)), false, room)?.into()))
            }
            (_, Match::Value(Scalar::Word(word))) => self.ask_words(std::slice::from_ref(word), false, room),
            (_, Match::Value(Scalar::Integer(integer))) => {
                self.ask_integers(std::slice::from_ref(integer), false, room)
            }
            (_, Match::Any(scalars) | Match::Except(scalars)) => {
                let others = matches!(wanted, Match::Except(_));
                match scalars {
                    Scalars::Words(words) => self.ask_words(words, others, room),
                    Scalars::Integers(integers) => self.ask_integers(integers, others, room),
                }
            }
            (Self::Text(tokenizer), Match::Text(text)) => ask_text(tokenizer, text, Having::All, room),
            (Self::Text(tokenizer), Match::TextAny(text)) => ask_text(tokenizer, text, Having::Any, room),
            (Self::Text(tokenizer), Match::Phrase(text)) => ask_text(tokenizer, text, Having::Phrase, room),
            _ => Ok(None),
        }
    }

    /// Strings that are one of some words, or values that are none of them.
    fn ask_words(&self, words: &[Box<str>], others: bool, room: &SharedReservation) -> Result<Option<Answerable>> {
        match self {
            Self::Keyword => {
                let predicate = keys(words.iter().map(|word| key::of_word(word)), others, room)?;
                Ok(Some(of_scalars(predicate, others)))
            }
            Self::Uuid => {
                let is_plain = words.iter().all(|word| key::is_plain_uuid(word));
                // What is no UUID has no key; and which text of a UUID a key was read from, it does not tell.
                if others && !is_plain || words.iter().any(|word| key::of_uuid(word).is_none()) {
                    return Ok(None);
                }
                let uuids = words.iter().filter_map(|word| key::of_uuid(word));
                let predicate = keys(uuids, others, room)?;
                Ok(Some(Answerable { is_enough: is_plain, ..of_scalars(predicate, others) }))
            }
            _ => Ok(None),
        }
    }

    /// Integers that are one of some, or values that are none of them.
    fn ask_integers(&self, integers: &[i64], others: bool, room: &SharedReservation) -> Result<Option<Answerable>> {
        let Self::Integer { lookup: true, .. } = self else { return Ok(None) };
        let predicate = keys(integers.iter().map(|integer| key::of_integer(*integer)), others, room)?;
        Ok(Some(of_scalars(predicate, others)))
    }
}

/// Of values that are one of a list, or none of it: what its keys tell in part is none of it, and so is what is of another kind.
fn of_scalars(predicate: ValuePredicate, others: bool) -> Answerable {
    let (partly, foreign) =
        if others { (Flagged::Pass, Flagged::Pass) } else { (Flagged::MayFail, Flagged::AsKeysSay) };
    Answerable { partly, foreign, ..predicate.into() }
}

/// Places in an area: of those that are not on the earth there are no keys.
fn in_area(area: Area) -> Answerable {
    Answerable { partly: Flagged::MayPass, ..ValuePredicate::Area(area).into() }
}

/// Words of a text: where a point has several texts, it is one of them that must have all.
fn ask_text(tokenizer: &Tokenizer, text: &str, having: Having, room: &SharedReservation) -> Result<Option<Answerable>> {
    let words = Words::new(tokenizer, text, having, room)?;
    let partly = if having == Having::All && words.len() > 1 { Flagged::MayFail } else { Flagged::AsKeysSay };
    Ok(Some(Answerable { partly, ..ValuePredicate::Words(words).into() }))
}

/// Integers that lie between bounds once they are rounded as a payload's numbers are when they are compared.
fn as_floats(span: &Span<f64>) -> ValuePredicate {
    let is_above =
        |value: f64| span.gt.is_none_or(|bound| value > bound) && span.gte.is_none_or(|bound| value >= bound);
    let is_beyond =
        |value: f64| !(span.lt.is_none_or(|bound| value < bound) && span.lte.is_none_or(|bound| value <= bound));
    let Some(from) = first(is_above) else { return within(None) };
    let end = first(is_beyond);
    let range = end
        .is_none_or(|end| from < end)
        .then(|| KeyRange { from: key::of_integer(from).into(), to: end.map(|end| key::of_integer(end).into()) });
    within(range)
}

/// The least integer for which something holds that holds for all above it, too.
fn first(holds: impl Fn(f64) -> bool) -> Option<i64> {
    let (mut low, mut high) = (i128::from(i64::MIN), i128::from(i64::MAX) + 1);
    while low < high {
        let middle = (low + high).div_euclid(2);
        if holds(middle as i64 as f64) { high = middle } else { low = middle + 1 }
    }
    i64::try_from(low).ok()
}

impl ValuePredicate {
    /// What it costs to ask whether a value passes, of what it costs to come to it.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Self::Area(area) => 1 + area.corners() / 8,
            _ => 1,
        }
    }

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ramekin_memory::Budget;
    use serde_json::{Value, json};

    /// Whether one value's keys pass; `None`: the index does not answer the test by keys.
    fn passes(kind: &str, test: &Test, value: Value) -> Option<bool> {
        let schema = Schema::named(kind).unwrap();
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("queries", ""), None);
        let path = Path::parse("a").unwrap();
        let Answerable { predicate, .. } = schema.ask(&path, test, &room).unwrap()?;
        let (payload, mut any) = (json!({ "a": value }), false);
        schema.keys(&path, payload.as_object().unwrap(), &mut |key| any |= predicate.holds(key));
        Some(any)
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
    }

    #[test]
    fn what_an_index_does_not_answer() {
        let uuid = "550e8400-e29b-41d4-a716-446655440000";
        let times = Test::Times(Span { gte: Some(0), ..Span::default() });
        for kind in ["integer", "float", "keyword"] {
            assert_eq!(passes(kind, &times, json!("2020-01-01")), None, "{kind}");
        }
        assert_eq!(passes("datetime", &Test::Range(Span::default()), json!(5)), None);
        assert_eq!(passes("integer", &Test::Match(Match::Any(words(&["a"]))), json!(1)), None);
        assert_eq!(passes("uuid", &Test::Match(Match::Except(words(&[&uuid.to_uppercase()]))), json!(uuid)), None);
        assert_eq!(
            passes("keyword", &Test::Match(Match::Prefix("x".repeat(300).into())), json!("x".repeat(300))),
            None
        );
        let (several, one) = (Path::parse("a[].b").unwrap(), Path::parse("a[0].b").unwrap());
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("queries", ""), None);
        let answers = |path, test| Schema::Float.ask(path, &test, &room).unwrap().is_some();
        assert!(!answers(&several, Test::IsEmpty(true)) && !answers(&several, Test::IsNull(false)));
        assert!(answers(&several, Test::IsEmpty(false)) && answers(&several, Test::IsNull(true)));
        assert!(answers(&one, Test::IsEmpty(true)) && answers(&one, Test::IsNull(false)));
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
            prop_assert_eq!(passes("integer", &Test::Range(span), json!(value)), Some(span.holds(value as f64)), "{:?}", span);
            // An order is exact: compared as integers of 128 bits, where a bound is not beyond all of them.
            let whole = |float: f64| float.clamp(-1e30, 1e30) as i128;
            let own = i128::from(value);
            let expected = span.gt.is_none_or(|bound| own > whole(bound.floor()))
                && span.gte.is_none_or(|bound| own >= whole(bound.ceil()))
                && span.lt.is_none_or(|bound| own < whole(bound.ceil()))
                && span.lte.is_none_or(|bound| own <= whole(bound.floor()));
            let ordered = Schema::named("integer").unwrap().ask_range(&Test::Range(span)).unwrap();
            prop_assert_eq!(ordered.holds(&key::of_integer(value)), expected, "{:?}", span);
        }

        #[test]
        fn floats_are_compared_as_floats(value in -3.0..3.0, bounds in prop::collection::vec(-3.0..3.0, 2), at in 0usize..4) {
            let values = [value, bounds[0], bounds[1], 0.0];
            let span = Span { gt: Some(bounds[0]), lte: Some(bounds[1]), ..Span::default() };
            prop_assert_eq!(passes("float", &Test::Range(span), json!(values[at])), Some(span.holds(values[at])));
        }
    }
}
