//! Payloads as JSON text: choosing parts of them, and changing their keys.

pub(crate) mod log;
pub(crate) mod texts;

use crate::api::{PayloadChange, PayloadParts};
use ramekin_base::{Error, Result};
use ramekin_fields::parts;
use ramekin_memory::{Account, Reservation};
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The text to return for a stored payload (empty: none); `None` if nothing was asked for. Its tree is booked on `account`
/// while it is needed; `memory`, which has the stored text, grows where the new one is longer.
pub(crate) fn select(
    stored: String,
    wanted: &PayloadParts,
    account: &Account,
    memory: &mut Reservation,
) -> Result<Option<String>> {
    let chosen = |choose: &dyn Fn(&mut Map<String, Value>)| -> Result<String> {
        let _tree = account.try_reserve(parts::tree_and_text_bytes(&stored))?;
        let mut object = parse(&stored)?;
        choose(&mut object);
        Ok(Value::Object(object).to_string())
    };
    let text = match wanted {
        PayloadParts::None => return Ok(None),
        PayloadParts::All if stored.is_empty() => "{}".to_owned(),
        PayloadParts::All => return Ok(Some(stored)),
        PayloadParts::Include(paths) => chosen(&|object| parts::include(object, paths))?,
        PayloadParts::Exclude(paths) => chosen(&|object| parts::exclude(object, paths))?,
    };
    memory.grow(text.len().saturating_sub(stored.len()) as u64)?;
    Ok(Some(text))
}

/// What a map takes that holds something, and each key of it.
const MAP_BYTES: u64 = 700;
const KEY_BYTES: u64 = 128;

/// The wanted keys of a stored payload, with their values. `memory` is grown to hold them, if it does not already.
pub(crate) fn parse_keys(text: &str, wanted: &[&str], memory: &mut Reservation) -> Result<Map<String, Value>> {
    let broken = |error| Error::corrupt(format!("a stored payload is not a JSON object: {error}"));
    if text.is_empty() {
        return Ok(Map::new());
    }
    let found = Picked { wanted }.deserialize(&mut serde_json::Deserializer::from_str(text)).map_err(broken)?;
    let each = |(key, raw): &(&str, &RawValue)| KEY_BYTES + key.len() as u64 + parts::tree_bytes(raw.get());
    let bytes = MAP_BYTES + found.iter().map(each).sum::<u64>();
    if bytes > memory.bytes() && !found.is_empty() {
        memory.resize(bytes)?;
    }
    found.into_iter().map(|(key, raw)| Ok((key.to_owned(), serde_json::from_str(raw.get()).map_err(broken)?))).collect()
}

/// Picks keys out of an object and passes over the others: most of a payload need not be looked at.
struct Picked<'w> {
    wanted: &'w [&'w str],
}

impl<'de, 'w> DeserializeSeed<'de> for Picked<'w> {
    type Value = Vec<(&'w str, &'de RawValue)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, 'w> Visitor<'de> for Picked<'w> {
    type Value = Vec<(&'w str, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found: Self::Value = Vec::with_capacity(self.wanted.len());
        while let Some(key) = map.next_key_seed(Key { wanted: self.wanted })? {
            let Some(wanted) = key else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let raw = map.next_value()?;
            // Of a key that stands twice the last one counts.
            found.retain(|(key, _)| *key != wanted);
            found.push((wanted, raw));
        }
        Ok(found)
    }
}

/// Reads a key: which of the wanted ones it is, if it is one.
struct Key<'w> {
    wanted: &'w [&'w str],
}

impl<'de, 'w> DeserializeSeed<'de> for Key<'w> {
    type Value = Option<&'w str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'w> Visitor<'_> for Key<'w> {
    type Value = Option<&'w str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.wanted.iter().copied().find(|wanted| *wanted == key))
    }
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text)
        .map_err(|error| Error::corrupt(format!("a stored payload is not a JSON object: {error}")))
}

/// The payload after a change; empty text: none. Its tree is booked on `account` meanwhile, as often as keys are copied.
pub(crate) fn change(stored: &str, change: &PayloadChange, account: &Account) -> Result<Box<str>> {
    let mut tree = account.try_reserve(match change {
        PayloadChange::Clear => 0,
        PayloadChange::Overwrite(text) => parts::tree_and_text_bytes(text),
        PayloadChange::Merge { keys, .. } => parts::tree_and_text_bytes(stored) + parts::tree_bytes(keys),
        PayloadChange::DeleteKeys(_) => parts::tree_and_text_bytes(stored),
    })?;
    let checked = |text: &str| -> Result<Map<String, Value>> {
        serde_json::from_str(text).map_err(|error| Error::malformed(format!("payload is not a JSON object: {error}")))
    };
    let object = match change {
        PayloadChange::Clear => Map::new(),
        PayloadChange::Overwrite(new) => checked(new)?,
        PayloadChange::Merge { keys, path } => {
            let mut object = parse(stored)?;
            let copies = parts::copies(&object, path.as_ref());
            tree.grow(copies.saturating_mul(parts::tree_and_text_bytes(keys)))?;
            parts::merge(&mut object, path.as_ref(), &checked(keys)?);
            object
        }
        PayloadChange::DeleteKeys(keys) => {
            let mut object = parse(stored)?;
            keys.iter().for_each(|key| parts::remove(&mut object, key));
            object
        }
    };
    Ok(if object.is_empty() { "".into() } else { Value::Object(object).to_string().into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_fields::Path;
    use ramekin_memory::Budget;

    fn paths(texts: &[&str]) -> Vec<Path> {
        texts.iter().map(|text| Path::parse(text).unwrap()).collect()
    }

    fn selected(stored: &str, parts: PayloadParts) -> Value {
        let account = Budget::new(1 << 20).root().child("queries", "");
        let mut memory = account.try_reserve(0).unwrap();
        serde_json::from_str(&select(stored.to_owned(), &parts, &account, &mut memory).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn trees_of_payloads_are_booked() {
        let budget = Budget::new(1 << 20);
        let account = budget.root().child("queries", "");
        let mut memory = account.try_reserve(0).unwrap();
        // 100 KB of text, several MB as a tree.
        let stored = format!("{{\"a\":[{}0]}}", "0,".repeat(50_000));
        for parts in [PayloadParts::Include(paths(&["a[0]"])), PayloadParts::Exclude(paths(&["a[0]"]))] {
            let error = select(stored.clone(), &parts, &account, &mut memory).unwrap_err();
            assert!(error.kind().is_memory(), "{error}");
        }
        assert!(select(stored.clone(), &PayloadParts::All, &account, &mut memory).is_ok());
        for keys in [PayloadChange::DeleteKeys(paths(&["b"])), PayloadChange::Overwrite(stored.as_str().into())] {
            assert!(change(&stored, &keys, &account).unwrap_err().kind().is_memory());
        }
        assert!(change(&stored, &PayloadChange::Clear, &account).is_ok());
        // Little that is copied to many places.
        let stored = format!("{{\"a\":[{}{{}}]}}", "{},".repeat(500));
        let many = |path: &str| PayloadChange::Merge {
            keys: format!("{{\"b\":\"{}\"}}", "x".repeat(1_000)).into(),
            path: Some(Path::parse(path).unwrap()),
        };
        assert!(change(&stored, &many("a[0]"), &account).is_ok());
        assert!(change(&stored, &many("a[]"), &account).unwrap_err().kind().is_memory());
        drop(memory);
        assert_eq!((budget.reserved(), budget.peak() <= 1 << 20), (0, true));
    }

    #[test]
    fn parts_of_a_payload() {
        let stored = r#"{"a":{"b":1,"c":2},"d":[{"e":1,"f":2},{"e":3}],"g.h":5}"#;
        let include = |texts: &[&str]| selected(stored, PayloadParts::Include(paths(texts)));
        let exclude = |texts: &[&str]| selected(stored, PayloadParts::Exclude(paths(texts)));
        assert_eq!(include(&["a.b"]), serde_json::json!({"a":{"b":1}}));
        assert_eq!(include(&["d[].e", "\"g.h\""]), serde_json::json!({"d":[{"e":1},{"e":3}],"g.h":5}));
        assert_eq!(exclude(&["a.c", "d"]), serde_json::json!({"a":{"b":1},"g.h":5}));
        assert_eq!(selected("", PayloadParts::All), serde_json::json!({}));
    }

    #[test]
    fn only_wanted_keys_are_parsed() {
        let budget = ramekin_memory::Budget::new(1 << 20);
        let mut memory = budget.root().child("queries", "").try_reserve(0).unwrap();
        let text = r#"{"a":1,"b\u0062":[1,{"a":2}],"c":{"a":3},"a":"last"}"#;
        let mut keys = |wanted: &[&str]| Value::Object(parse_keys(text, wanted, &mut memory).unwrap());
        assert_eq!(keys(&["a", "bb", "d"]), serde_json::json!({"a":"last","bb":[1,{"a":2}]}));
        assert_eq!(keys(&[]), serde_json::json!({}));
        assert_eq!(memory.bytes(), MAP_BYTES + 2 * KEY_BYTES + 3 + 6 + (11 + 2 * 95 + 699 + 79));
        assert!(parse_keys("[1]", &["a"], &mut memory).is_err() && parse_keys("{\"a\":", &["a"], &mut memory).is_err());
        let long = format!("{{\"a\":[{}0]}}", "0,".repeat(100_000));
        assert!(parse_keys(&long, &["b"], &mut memory).is_ok());
        assert!(parse_keys(&long, &["a"], &mut memory).unwrap_err().kind().is_memory());
        // A long text takes what it is, whatever stands in it.
        let long = format!("{{\"a\":\"{}\"}}", "[{,:".repeat(100_000));
        assert_eq!(parse_keys(&long, &["a"], &mut memory).unwrap().len(), 1);
    }

    #[test]
    fn changes_of_a_payload() {
        let account = Budget::new(1 << 20).root().child("queries", "");
        let change = |stored: &str, changed: PayloadChange| change(stored, &changed, &account);
        let keys = PayloadChange::Merge { keys: r#"{"b":3,"c":4}"#.into(), path: None };
        let merged = change(r#"{"a":1,"b":2}"#, keys).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&merged).unwrap(), serde_json::json!({"a":1,"b":3,"c":4}));
        assert_eq!(&*change(r#"{"a":1}"#, PayloadChange::DeleteKeys(paths(&["a"]))).unwrap(), "");
        assert!(change("", PayloadChange::Overwrite("[]".into())).is_err());
    }
}
