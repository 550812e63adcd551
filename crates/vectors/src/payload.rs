//! Payloads as JSON text: choosing parts of them, and changing their keys.

use crate::api::{PayloadChange, PayloadParts};
use ramekin_base::{Error, Result};
use serde_json::{Map, Value};

/// The text to return for a stored payload (empty: none); `None` if nothing was asked for.
pub(crate) fn select(stored: String, parts: &PayloadParts) -> Result<Option<String>> {
    let whole = || if stored.is_empty() { "{}".to_owned() } else { stored.clone() };
    Ok(match parts {
        PayloadParts::None => None,
        PayloadParts::All => Some(whole()),
        PayloadParts::Include(paths) => {
            let object = parse(&stored)?;
            let mut kept = Map::new();
            paths.iter().for_each(|path| include(&object, &mut kept, &split(path)));
            Some(Value::Object(kept).to_string())
        }
        PayloadParts::Exclude(paths) => {
            let mut object = parse(&stored)?;
            paths.iter().for_each(|path| exclude(&mut object, &split(path)));
            Some(Value::Object(object).to_string())
        }
    })
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text)
        .map_err(|error| Error::corrupt(format!("a stored payload is not a JSON object: {error}")))
}

/// The keys of a path: `a.b[].c` and `a."b.c".d`. An array step is part of its key's walk.
fn split(path: &str) -> Vec<String> {
    let (mut keys, mut key, mut quoted) = (Vec::new(), String::new(), false);
    for symbol in path.chars() {
        match symbol {
            '"' => quoted = !quoted,
            '.' if !quoted => keys.push(std::mem::take(&mut key)),
            _ => key.push(symbol),
        }
    }
    keys.push(key);
    keys.into_iter().map(|key| key.trim_end_matches("[]").to_owned()).collect()
}

/// Copies what a path names; arrays on the way are walked into, each object by itself.
fn include(from: &Map<String, Value>, to: &mut Map<String, Value>, path: &[String]) {
    let Some((key, rest)) = path.split_first() else { return };
    let Some(value) = from.get(key) else { return };
    if rest.is_empty() {
        to.insert(key.clone(), value.clone());
        return;
    }
    match value {
        Value::Object(inner) => {
            let entry = to.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(kept) = entry {
                include(inner, kept, rest);
            }
        }
        Value::Array(items) => {
            let kept = items.iter().filter_map(Value::as_object).map(|inner| {
                let mut kept = Map::new();
                include(inner, &mut kept, rest);
                Value::Object(kept)
            });
            to.insert(key.clone(), Value::Array(kept.collect()));
        }
        _ => {}
    }
}

fn exclude(object: &mut Map<String, Value>, path: &[String]) {
    let Some((key, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        object.remove(key);
        return;
    }
    match object.get_mut(key) {
        Some(Value::Object(inner)) => exclude(inner, rest),
        Some(Value::Array(items)) => {
            items.iter_mut().filter_map(Value::as_object_mut).for_each(|inner| exclude(inner, rest))
        }
        _ => {}
    }
}

/// The payload after a change; empty text: none.
pub(crate) fn change(stored: &str, change: &PayloadChange) -> Result<Box<str>> {
    let checked = |text: &str| -> Result<Map<String, Value>> {
        serde_json::from_str(text).map_err(|error| Error::malformed(format!("payload is not a JSON object: {error}")))
    };
    let object = match change {
        PayloadChange::Clear => Map::new(),
        PayloadChange::Overwrite(new) => checked(new)?,
        PayloadChange::Merge(new) => {
            let mut object = parse(stored)?;
            object.extend(checked(new)?);
            object
        }
        PayloadChange::DeleteKeys(keys) => {
            let mut object = parse(stored)?;
            keys.iter().for_each(|key| exclude(&mut object, &split(key)));
            object
        }
    };
    Ok(if object.is_empty() { "".into() } else { Value::Object(object).to_string().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(stored: &str, parts: PayloadParts) -> Value {
        serde_json::from_str(&select(stored.to_owned(), &parts).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn parts_of_a_payload() {
        let stored = r#"{"a":{"b":1,"c":2},"d":[{"e":1,"f":2},{"e":3}],"g.h":5}"#;
        let include = |paths: &[&str]| {
            selected(stored, PayloadParts::Include(paths.iter().map(|path| path.to_string()).collect()))
        };
        let exclude = |paths: &[&str]| {
            selected(stored, PayloadParts::Exclude(paths.iter().map(|path| path.to_string()).collect()))
        };
        assert_eq!(include(&["a.b"]), serde_json::json!({"a":{"b":1}}));
        assert_eq!(include(&["d[].e", "\"g.h\""]), serde_json::json!({"d":[{"e":1},{"e":3}],"g.h":5}));
        assert_eq!(exclude(&["a.c", "d"]), serde_json::json!({"a":{"b":1},"g.h":5}));
        assert_eq!(selected("", PayloadParts::All), serde_json::json!({}));
    }

    #[test]
    fn changes_of_a_payload() {
        let merged = change(r#"{"a":1,"b":2}"#, &PayloadChange::Merge(r#"{"b":3,"c":4}"#.into())).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&merged).unwrap(), serde_json::json!({"a":1,"b":3,"c":4}));
        assert_eq!(&*change(r#"{"a":1}"#, &PayloadChange::DeleteKeys(vec!["a".into()])).unwrap(), "");
        assert!(change("", &PayloadChange::Overwrite("[]".into())).is_err());
    }
}
