//! Values as keys: bytes that sort as the values do, one form for all kinds of an index.
//!
//! ```text
//!   keyword, text   the string; of a long one its beginning and a hash of all
//!   integer, time   8 bytes, the sign flipped          bool   1 byte
//!   float           8 bytes, ordered                   uuid   16 bytes
//!   geo             8 bytes of the curve through the earth (see `area.rs`), 8 of the longitude, 8 of the latitude
//! ```

use crate::area;
use crate::datetime;
use crate::geo::GeoPoint;
use crate::schema::Schema;
use serde_json::{Map, Value};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher;

/// Bytes of a key at most.
pub const KEY_MAX: usize = 256;
/// A longer string keeps so much of its beginning, and a hash of 16 bytes.
pub(crate) const KEPT: usize = KEY_MAX - 16;

/// The key of a string.
pub(crate) fn of_word(word: &str) -> Cow<'_, [u8]> {
    if word.len() <= KEPT {
        return word.as_bytes().into();
    }
    let mut hasher = SipHasher24::new();
    hasher.write(word.as_bytes());
    [&word.as_bytes()[..KEPT], &hasher.finish128().as_u128().to_be_bytes()].concat().into()
}

/// The key that strings with this beginning begin with; `None` where their keys do not tell.
pub(crate) fn of_beginning(beginning: &str) -> Option<Box<[u8]>> {
    (beginning.len() <= KEPT).then(|| beginning.as_bytes().into())
}

/// The string that a key stands for; `None` where it is only the beginning of it.
pub fn word_of(key: &[u8]) -> Option<&str> {
    if key.len() > KEPT { None } else { std::str::from_utf8(key).ok() }
}

pub(crate) fn of_integer(integer: i64) -> [u8; 8] {
    (integer as u64 ^ 1 << 63).to_be_bytes()
}

/// The integer, or the time, that a key stands for.
pub fn integer_of(key: &[u8]) -> Option<i64> {
    Some((u64::from_be_bytes(key.try_into().ok()?) ^ 1 << 63) as i64)
}

pub(crate) fn of_float(float: f64) -> [u8; 8] {
    // Both zeros are one value.
    let bits = (float + 0.0).to_bits();
    let flip = if bits >> 63 == 1 { u64::MAX } else { 1 << 63 };
    (bits ^ flip).to_be_bytes()
}

pub fn float_of(key: &[u8]) -> Option<f64> {
    let bits = u64::from_be_bytes(key.try_into().ok()?);
    let flip = if bits >> 63 == 1 { 1 << 63 } else { u64::MAX };
    Some(f64::from_bits(bits ^ flip))
}

pub(crate) fn of_bool(value: bool) -> [u8; 1] {
    [u8::from(value)]
}

/// The UUID of a text in any of its forms.
pub(crate) fn of_uuid(text: &str) -> Option<[u8; 16]> {
    uuid::Uuid::parse_str(text).ok().map(uuid::Uuid::into_bytes)
}

/// Whether a UUID is written as its key is read: another text of the same UUID is another word.
pub(crate) fn is_plain_uuid(text: &str) -> bool {
    let mut buffer = uuid::Uuid::encode_buffer();
    uuid::Uuid::parse_str(text).is_ok_and(|uuid| *uuid.hyphenated().encode_lower(&mut buffer) == *text)
}

/// The UUID that a key stands for; it is written with hyphens.
pub fn uuid_of(key: &[u8]) -> Option<impl fmt::Display> {
    uuid::Uuid::from_slice(key).ok()
}

pub(crate) fn of_place(place: GeoPoint) -> [u8; 24] {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&area::along_curve(place).to_be_bytes());
    key[8..16].copy_from_slice(&place.lon.to_be_bytes());
    key[16..].copy_from_slice(&place.lat.to_be_bytes());
    key
}

pub(crate) fn place_of(key: &[u8]) -> Option<GeoPoint> {
    let float = |at: usize| Some(f64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    Some(GeoPoint { lon: float(8)?, lat: float(16)? })
}

/// The values that count of one: of an array, its elements.
fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), |items| items)
}

/// An integer that JSON wrote as one, or as a float without a fraction.
fn integer(value: &Value) -> Option<i64> {
    let whole = |float: &f64| float.fract() == 0.0 && float.abs() <= 9_223_372_036_854_775_807.0;
    value.as_i64().or_else(|| value.as_f64().filter(|_| value.is_f64()).filter(whole).map(|float| float as i64))
}

/// What the keys of a value tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// All that is asked of an index of their kind.
    All,
    /// Not all: it was rounded, is written otherwise, or has no key though it is of the kind.
    Part,
    /// Nothing: the value is of another kind, and has none.
    Nothing,
}

/// A reason why the keys of a point do not tell all of its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untold {
    /// It has a value of which its keys tell a part only.
    Partly,
    /// It has a value of another kind, where that matters to what the index answers.
    Foreign,
}

/// Which of these reasons a point has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) partly: bool,
    pub(crate) foreign: bool,
}

impl Schema {
    /// Shows the keys of one value that is no array.
    pub(crate) fn keys_of(&self, value: &Value, each: &mut dyn FnMut(&[u8])) -> Told {
        let or_nothing = |is_told: bool| if is_told { Told::All } else { Told::Nothing };
        match (self, value, value.as_str()) {
            // No test of a value passes it.
            (_, Value::Null, _) => Told::All,
            (Self::Keyword, _, Some(word)) => {
                each(&of_word(word));
                Told::All
            }
            (Self::Integer { .. }, Value::Number(_), _) => {
                integer(value).into_iter().for_each(|integer| each(&of_integer(integer)));
                // 2.0 is in a range as 2 is, and yet is not the integer 2; 2.5 is in a range, and has no key.
                if value.as_i64().is_some() { Told::All } else { Told::Part }
            }
            (Self::Float, Value::Number(_), _) => {
                let float = value.as_f64();
                float.into_iter().for_each(|float| each(&of_float(float)));
                or_nothing(float.is_some())
            }
            (Self::Bool, Value::Bool(value), _) => {
                each(&of_bool(*value));
                Told::All
            }
            (Self::Datetime, _, Some(text)) => {
                let time = datetime::micros(text);
                time.into_iter().for_each(|time| each(&of_integer(time)));
                or_nothing(time.is_some())
            }
            (Self::Uuid, _, Some(text)) => {
                let uuid = of_uuid(text);
                uuid.into_iter().for_each(|uuid| each(&uuid));
                if uuid.is_some() && !is_plain_uuid(text) { Told::Part } else { or_nothing(uuid.is_some()) }
            }
            (Self::Geo, Value::Object(_), _) => {
                let named = GeoPoint::of(value);
                let place = named.and_then(|place| GeoPoint::new(place.lon, place.lat).ok());
                place.into_iter().for_each(|place| each(&of_place(place)));
                // A place that is not on the earth may yet be near one that is, once around.
                if named.is_some() && place.is_none() { Told::Part } else { or_nothing(place.is_some()) }
            }
            (Self::Text(tokenizer), _, Some(text)) => {
                tokenizer.stored(text, &mut |token| each(&of_word(token)));
                Told::All
            }
            _ => Told::Nothing,
        }
    }

    /// Whether a value of another kind passes what this index answers: it is none of those of an `except`.
    fn minds_foreign(&self) -> bool {
        matches!(self, Self::Keyword | Self::Integer { lookup: true, .. } | Self::Uuid)
    }

    /// The value at a path that has this key.
    pub fn find<'a>(&self, path: &crate::Path, payload: &'a Map<String, Value>, key: &[u8]) -> Option<&'a Value> {
        let mut found = None;
        let has = |value: &Value| {
            let mut is_it = false;
            self.keys_of(value, &mut |own| is_it |= own == key);
            is_it
        };
        path.any(payload, &mut |value| {
            let mut values = elements(value).iter();
            found = values.find(|value| has(value));
            found.is_some()
        });
        found
    }

    /// Shows the keys of what a path leads to in a payload: of an array, those of its elements. A key may come twice.
    pub fn keys(&self, path: &crate::Path, payload: &Map<String, Value>, each: &mut dyn FnMut(&[u8])) {
        self.keys_and_rest(path, payload, each);
    }

    /// The same, and what the keys do not tell.
    pub(crate) fn keys_and_rest(
        &self,
        path: &crate::Path,
        payload: &Map<String, Value>,
        each: &mut dyn FnMut(&[u8]),
    ) -> Rest {
        let (mut rest, mut texts) = (Rest::default(), 0);
        path.any(payload, &mut |value| {
            for value in elements(value) {
                let mut has_key = false;
                let told = self.keys_of(value, &mut |key| {
                    has_key = true;
                    each(key);
                });
                rest.partly |= told == Told::Part;
                rest.foreign |= told == Told::Nothing && self.minds_foreign();
                texts += u32::from(has_key && matches!(self, Self::Text(_)));
            }
            false
        });
        // Which words stand in one text the keys of several do not tell.
        rest.partly |= texts > 1;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn keys(schema: &Schema, payload: &Value) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let path = crate::Path::parse("a").unwrap();
        schema.keys(&path, payload.as_object().unwrap(), &mut |key| keys.push(key.to_vec()));
        keys
    }

    #[test]
    fn each_kind_takes_its_own_values() {
        let payload = json!({"a": [
            1, 2.0, 2.5, "x", "2020-01-01", true, null, {"lon": 1, "lat": 2}, {"lon": 1, "lat": 91},
            "550E8400E29B41D4A716446655440000", [1], 1e19, -0.0
        ]});
        let count = |name: &str| keys(&Schema::named(name).unwrap(), &payload).len();
        assert_eq!([count("keyword"), count("integer"), count("float"), count("bool")], [3, 3, 5, 1]);
        assert_eq!([count("datetime"), count("uuid"), count("geo"), count("text")], [1, 1, 1, 5]);
        let zeros = keys(&Schema::Float, &json!({"a": [0, -0.0]}));
        assert_eq!(zeros[0], zeros[1]);
        let place = keys(&Schema::Geo, &json!({"a": {"lon": -1.5, "lat": 2.25}}));
        assert_eq!(place_of(&place[0]), Some(GeoPoint { lon: -1.5, lat: 2.25 }));
    }

    #[test]
    fn long_words_have_keys_of_their_own() {
        let (one, other) = ("a".repeat(300), "a".repeat(301));
        assert!(of_word(&one).len() == KEY_MAX && of_word(&one) != of_word(&other));
        assert_eq!((word_of(&of_word(&one)), word_of(&of_word("ü"))), (None, Some("ü")));
        assert!(of_beginning(&one).is_none());
    }

    proptest! {
        #[test]
        fn keys_sort_as_their_values(a: i64, b: i64, x: f64, y: f64) {
            prop_assert_eq!(of_integer(a).cmp(&of_integer(b)), a.cmp(&b));
            prop_assert_eq!(integer_of(&of_integer(a)), Some(a));
            if !x.is_nan() && !y.is_nan() {
                prop_assert_eq!(Some(of_float(x).cmp(&of_float(y))), x.partial_cmp(&y));
                prop_assert_eq!(float_of(&of_float(x)), Some(x));
            }
        }
    }
}
