//! Paths into a payload.
//!
//! ```text
//!   a.b[].c         key a, key b, each element, key c
//!   "x y".z[3]      a key in quotes may hold anything but a quote; one element
//!
//!   path  = key { "." key | "[" [ digits ] "]" }
//!   key   = letters, digits, "_" and "-", at least one; or any text in quotes
//! ```
//!
//! A step is taken only where it fits: a key into an object, an element out of an array. `a.b` finds nothing where `a` is
//! an array of objects.

use ramekin_base::limits::NESTING_MAX;
use ramekin_base::{Error, Result, excerpt, message};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Steps of a path at most: what is set below one must still be JSON that can be read.
const STEPS_MAX: usize = NESTING_MAX / 2;

/// A path that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    first: Box<str>,
    steps: Box<[Step]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Step {
    Key(Box<str>),
    Element(usize),
    Each,
}

impl Path {
    /// Reads a path as clients write it.
    pub fn parse(text: &str) -> Result<Self> {
        let flaw = || {
            let text = excerpt(text, 200);
            Error::malformed(message(format_args!(
                "Invalid json path: '{text}'; keys are letters, digits, _ and -, or in quotes, as in a.b[].\"c d\"[0]"
            )))
        };
        let (first, mut rest) = key(text).ok_or_else(flaw)?;
        let (mut steps, mut count) = ([const { Step::Each }; STEPS_MAX], 0);
        while !rest.is_empty() {
            let Some(place) = steps.get_mut(count) else {
                let many = format_args!("Invalid json path: it has more than {STEPS_MAX} steps");
                return Err(Error::malformed(message(many)));
            };
            let (step, left) = step(rest).ok_or_else(flaw)?;
            (*place, rest, count) = (step, left, count + 1);
        }
        Ok(Self { first: first.into(), steps: steps[..count].into() })
    }

    /// Of one key at the top.
    pub fn of_key(key: &str) -> Self {
        Self { first: key.into(), steps: Box::default() }
    }

    /// The same path to each element of the array that stands there; as it is where it ends so.
    pub fn to_elements(mut self) -> Self {
        if self.steps.last() != Some(&Step::Each) {
            let mut steps = self.steps.into_vec();
            steps.reserve_exact(1);
            steps.push(Step::Each);
            self.steps = steps.into();
        }
        self
    }

    /// What [`Path::to_elements`] adds at most.
    pub const STEP_BYTES: u64 = size_of::<Step>() as u64;

    /// Its first key: where in a payload it begins.
    pub fn first(&self) -> &str {
        &self.first
    }

    /// Its first key, and what comes after it.
    pub(crate) fn parts(&self) -> (&str, &[Step]) {
        (&self.first, &self.steps)
    }

    /// Whether it may lead to several values.
    pub(crate) fn is_to_several(&self) -> bool {
        self.steps.contains(&Step::Each)
    }

    /// Bytes that a copy holds beside itself.
    pub(crate) fn held_bytes(&self) -> u64 {
        let of = |step: &Step| if let Step::Key(key) = step { key.len() } else { 0 };
        (self.first.len() + size_of_val(&*self.steps) + self.steps.iter().map(of).sum::<usize>()) as u64
    }

    /// Shows each value that the path leads to, until one is enough; true if one was.
    pub fn any<'a>(&self, payload: &'a Map<String, Value>, enough: &mut dyn FnMut(&'a Value) -> bool) -> bool {
        payload.get(&*self.first).is_some_and(|value| any(&self.steps, value, enough))
    }
}

fn any<'a>(steps: &[Step], value: &'a Value, enough: &mut dyn FnMut(&'a Value) -> bool) -> bool {
    let Some((step, rest)) = steps.split_first() else { return enough(value) };
    match (step, value) {
        (Step::Key(key), Value::Object(object)) => object.get(&**key).is_some_and(|value| any(rest, value, enough)),
        (Step::Element(at), Value::Array(items)) => items.get(*at).is_some_and(|value| any(rest, value, enough)),
        (Step::Each, Value::Array(items)) => items.iter().any(|value| any(rest, value, enough)),
        _ => false,
    }
}

/// Takes a key off the front.
fn key(text: &str) -> Option<(&str, &str)> {
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted.split_once('"');
    }
    let is_plain = |symbol: char| symbol.is_alphanumeric() || symbol == '_' || symbol == '-';
    let end = text.find(|symbol| !is_plain(symbol)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Takes a step off the front.
fn step(text: &str) -> Option<(Step, &str)> {
    if let Some(rest) = text.strip_prefix('.') {
        let (key, rest) = key(rest)?;
        return Some((Step::Key(key.into()), rest));
    }
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    match inside {
        "" => Some((Step::Each, rest)),
        digits if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            Some((Step::Element(digits.parse().ok()?), rest))
        }
        _ => None,
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write_key = |f: &mut fmt::Formatter<'_>, key: &str| match self::key(key) {
            Some((_, "")) if !key.starts_with('"') => f.write_str(key),
            _ => write!(f, "\"{key}\""),
        };
        write_key(f, &self.first)?;
        for step in &self.steps {
            match step {
                Step::Key(key) => {
                    f.write_str(".")?;
                    write_key(f, key)?;
                }
                Step::Element(at) => write!(f, "[{at}]")?,
                Step::Each => f.write_str("[]")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Path {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Path;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Path, E> {
                Path::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn found(path: &str, payload: Value) -> Vec<Value> {
        let mut found = Vec::new();
        Path::parse(path).unwrap().any(payload.as_object().unwrap(), &mut |value| {
            found.push(value.clone());
            false
        });
        found
    }

    #[test]
    fn a_step_is_taken_where_it_fits() {
        assert_eq!(found("a.b.c", json!({"a": {"b": {"c": 1}}})), [1]);
        assert_eq!(found("a.b.c", json!({"a": [{"b": {"c": 1}}]})), [] as [Value; 0]);
        assert_eq!(found("a[].b", json!({"a": [{"b": 1}, {"c": 2}, {"b": 3}, 4]})), [1, 3]);
        assert_eq!(found("a[1][]", json!({"a": [[1, 2], [3]]})), [3]);
        assert_eq!(found("a[01]", json!({"a": [1, 2]})), [2]);
        assert_eq!(found("a.\"\".\"b.c\"", json!({"a": {"": {"b.c": 1}}})), [1]);
        assert_eq!(found("a", json!({"a": [1, 2]})), [json!([1, 2])]);
    }

    #[test]
    fn what_is_no_path() {
        for text in [
            "", " a", "a ", "a b", "a..b", "a.", ".a", "[]", "[0]", "a.[0]", "a[", "a[-1]", "a[].", "a[]b", "\"a",
            "\"a\"b",
        ] {
            let error = Path::parse(text).unwrap_err();
            assert!(error.message().contains("Invalid json path"), "{text}: {error}");
        }
        assert!(Path::parse("a[99999999999999999999]").is_err());
        assert!(Path::parse("ü-_1.é").is_ok());
    }

    proptest! {
        #[test]
        fn a_path_is_written_as_it_is_read(text in r#"("[^"]{0,3}"|[a-zü0-9_-]{1,3})(\.("[^"]{0,3}"|[a-z]{1,2})|\[[0-9]{0,3}\]){0,4}"#) {
            let path = Path::parse(&text).unwrap();
            prop_assert_eq!(Path::parse(&path.to_string()).unwrap(), path);
        }

        #[test]
        fn no_text_panics(text in r#"[a-c."\[\]0-9 ü]{0,12}"#) {
            let _ = Path::parse(&text);
        }
    }
}
