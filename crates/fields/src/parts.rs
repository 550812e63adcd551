//! Parts of a payload: what of it to return, and changing it below a path.
//!
//! ```text
//!   include  a value stays whose way and a path agree as far as both go    {"a":{"b":1,"c":2}}, a.b ─► {"a":{"b":1}}
//!   exclude  a value goes whose way begins with a path
//!   merge    keys into the object at a path, which is made where it is not there; a null takes its key away
//!   remove   the key that a path ends with; [] at the end empties the array
//! ```
//!
//! The way to an element is written `[]`: a path that names one element by its number keeps none and drops none.

use crate::path::{Path, Step};
use serde_json::{Map, Value, json};

/// The way to a value, from its end.
struct Way<'a> {
    first: &'a str,
    last: Option<Taken<'a>>,
}

/// What was taken last to a value, and before it.
#[derive(Clone, Copy)]
struct Taken<'a> {
    /// A key of an object, or `None`: an element.
    key: Option<&'a str>,
    before: Option<&'a Taken<'a>>,
    depth: usize,
}

impl<'a> Way<'a> {
    /// The way on from here.
    fn to<'b>(&'b self, key: Option<&'b str>) -> Way<'b> {
        let (before, depth) = (self.last.as_ref(), self.depth() + 1);
        Way { first: self.first, last: Some(Taken { key, before, depth }) }
    }

    fn depth(&self) -> usize {
        self.last.map_or(0, |last| last.depth)
    }

    /// Whether a path begins with it.
    fn begins(&self, path: &Path) -> bool {
        let (first, steps) = path.parts();
        let is_taken = |taken: &Taken<'_>| match (&steps[taken.depth - 1], taken.key) {
            (Step::Key(name), Some(key)) => **name == *key,
            (step, key) => *step == Step::Each && key.is_none(),
        };
        first == self.first
            && steps.len() >= self.depth()
            && std::iter::successors(self.last.as_ref(), |taken| taken.before).all(is_taken)
    }

    /// Whether a path ends with it.
    fn ends(&self, path: &Path) -> bool {
        path.parts().1.len() == self.depth() && self.begins(path)
    }
}

/// Keeps what paths name.
pub fn include(payload: &mut Map<String, Value>, paths: &[Path]) {
    payload.retain(|key, value| keep(value, &Way { first: key, last: None }, paths));
}

/// Keeps in a value what paths name that begin with its way; one that ends with it names all of it. False: there are none.
fn keep(value: &mut Value, way: &Way<'_>, paths: &[Path]) -> bool {
    if !paths.iter().any(|path| way.begins(path)) {
        return false;
    }
    if paths.iter().any(|path| way.ends(path)) {
        return true;
    }
    match value {
        Value::Object(object) => object.retain(|key, value| keep(value, &way.to(Some(key)), paths)),
        Value::Array(items) => {
            let way = way.to(None);
            match paths.iter().any(|path| way.begins(path)) {
                true => items.iter_mut().for_each(|item| _ = keep(item, &way, paths)),
                false => items.clear(),
            }
        }
        _ => {}
    }
    true
}

/// Drops what paths name.
pub fn exclude(payload: &mut Map<String, Value>, paths: &[Path]) {
    let is_counted = |path: &&Path| path.parts().1.iter().any(|step| matches!(step, Step::Element(_)));
    paths.iter().filter(|path| !is_counted(path)).for_each(|path| remove(payload, path));
}

/// Takes away the key that a path ends with, wherever it leads; `[]` at its end empties arrays.
pub fn remove(payload: &mut Map<String, Value>, path: &Path) {
    let (first, steps) = path.parts();
    remove_key(payload, first, steps);
}

fn remove_key(object: &mut Map<String, Value>, key: &str, rest: &[Step]) {
    match (rest, object.get_mut(key)) {
        ([], _) => _ = object.remove(key),
        (rest, Some(value)) => remove_below(value, rest),
        (_, None) => {}
    }
}

fn remove_below(value: &mut Value, steps: &[Step]) {
    let Some((step, rest)) = steps.split_first() else { return };
    match (step, value) {
        (Step::Key(key), Value::Object(object)) => remove_key(object, key, rest),
        (Step::Each, Value::Array(items)) if rest.is_empty() => items.clear(),
        (Step::Each, Value::Array(items)) => items.iter_mut().for_each(|item| remove_below(item, rest)),
        (Step::Element(at), Value::Array(items)) => {
            if let Some(item) = items.get_mut(*at) {
                remove_below(item, rest);
            }
        }
        _ => {}
    }
}

/// What a JSON text takes as a tree at most: each object that holds something a node of a map, each value its place in a list
/// that doubles, or in nodes of which half stays empty. What stands in a string is no more than its bytes; one with an escape is
/// put together in a buffer that doubles.
pub fn tree_bytes(text: &str) -> u64 {
    let (mut sum, mut buffer) = (0, 0);
    // Of the string that is open: where it began, and whether an escape was seen.
    let mut string: Option<(usize, bool)> = None;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        sum += match (byte, &mut string) {
            (b'"', None) => {
                string = Some((at, false));
                1
            }
            (b'"', Some((from, has_escape))) => {
                buffer = if *has_escape { (at - *from).max(buffer) } else { buffer };
                string = None;
                1
            }
            (b'\\', Some((_, has_escape))) => {
                *has_escape = true;
                // What is escaped may be a quote.
                1 + u64::from(bytes.next().is_some())
            }
            (_, Some(_)) => 1,
            (b'{', None) if text.as_bytes().get(at + 1) == Some(&b'}') => 1,
            (b'{', None) => 700,
            (b',' | b'[', None) => 96,
            (b':', None) => 80,
            _ => 1,
        };
    }
    sum + 3 * buffer as u64
}

/// The same with the text that is made of it: a number may be written longer than it stood.
pub fn tree_and_text_bytes(text: &str) -> u64 {
    tree_bytes(text) + 4 * text.len() as u64
}

/// In how many objects [`merge`] sets its keys: each has a copy of them.
pub fn copies(payload: &Map<String, Value>, path: Option<&Path>) -> u64 {
    let Some(path) = path else { return 1 };
    let (first, steps) = path.parts();
    payload.get(first).map_or(1, |value| copies_below(value, steps))
}

fn copies_below(value: &Value, steps: &[Step]) -> u64 {
    match (steps.split_first(), value) {
        (Some((Step::Key(key), rest)), Value::Object(object)) => {
            object.get(&**key).map_or(1, |value| copies_below(value, rest))
        }
        (Some((Step::Element(at), rest)), Value::Array(items)) => {
            items.get(*at).map_or(0, |item| copies_below(item, rest))
        }
        (Some((Step::Each, rest)), Value::Array(items)) => items.iter().map(|item| copies_below(item, rest)).sum(),
        _ => 1,
    }
}

/// Sets keys of the object that stands at `path`, or of the payload itself.
pub fn merge(payload: &mut Map<String, Value>, path: Option<&Path>, keys: &Map<String, Value>) {
    match path {
        None => merge_keys(payload, keys),
        Some(path) => {
            let (first, steps) = path.parts();
            merge_below(payload.entry(first).or_insert(Value::Null), steps, keys);
        }
    }
}

fn merge_below(value: &mut Value, steps: &[Step], keys: &Map<String, Value>) {
    match steps.split_first() {
        None => with_object(value, |object| merge_keys(object, keys)),
        Some((Step::Key(key), rest)) => {
            with_object(value, |object| merge_below(object.entry(&**key).or_insert(Value::Null), rest, keys));
        }
        Some((step, rest)) => match (step, value) {
            (Step::Element(at), Value::Array(items)) => {
                if let Some(item) = items.get_mut(*at) {
                    merge_below(item, rest, keys);
                }
            }
            (_, Value::Array(items)) => items.iter_mut().for_each(|item| merge_below(item, rest, keys)),
            // Which elements there should be nobody knows.
            (_, value) => *value = json!([]),
        },
    }
}

/// Changes the object that stands here; what else stood here is replaced by an empty one before.
fn with_object(value: &mut Value, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut object = match std::mem::take(value) {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    change(&mut object);
    *value = Value::Object(object);
}

fn merge_keys(object: &mut Map<String, Value>, keys: &Map<String, Value>) {
    for (key, value) in keys {
        match value {
            Value::Null => _ = object.remove(key),
            value => _ = object.insert(key.clone(), value.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(mut payload: Value, change: impl FnOnce(&mut Map<String, Value>)) -> Value {
        change(payload.as_object_mut().unwrap());
        payload
    }

    fn paths(texts: &[&str]) -> Vec<Path> {
        texts.iter().map(|text| Path::parse(text).unwrap()).collect()
    }

    #[test]
    fn what_stands_in_a_string_takes_its_bytes() {
        let plain = format!("\"{}\"", "[{,:é".repeat(1000));
        assert_eq!(tree_bytes(&plain), plain.len() as u64);
        // All around an escape is put together in a buffer.
        let escaped = format!("[{plain},\"\\\"[{}\"]", "{".repeat(100));
        assert_eq!(tree_bytes(&escaped), escaped.len() as u64 + 2 * 95 + 3 * 104);
        assert_eq!(tree_bytes("{\"a\":{}}"), 700 + 3 + 80 + 1 + 1 + 1);
        assert_eq!(tree_bytes("\"\\"), 2);
    }

    #[test]
    fn parts_that_paths_name() {
        let payload =
            || json!({"a": {"b": 1, "c": [{"d": 1, "e": 2}, {"d": 3}, 5]}, "x": 1, "y": [[{"z": 1}], [{"w": 3}]]});
        let kept = |texts: &[&str]| changed(payload(), |payload| include(payload, &paths(texts)));
        assert_eq!(kept(&["a.b"]), json!({"a": {"b": 1}}));
        assert_eq!(kept(&["a.c[].d"]), json!({"a": {"c": [{"d": 1}, {"d": 3}, 5]}}));
        assert_eq!(kept(&["a.c[0].d"]), json!({"a": {"c": []}}));
        assert_eq!(kept(&["a.c.d"]), json!({"a": {"c": []}}));
        assert_eq!(kept(&["a.b", "a.c[]", "q"]), json!({"a": {"b": 1, "c": [{"d": 1, "e": 2}, {"d": 3}, 5]}}));
        assert_eq!(kept(&["y[].z"]), json!({"y": [[], []]}));
        assert_eq!(kept(&["y[][].z", "x"]), json!({"x": 1, "y": [[{"z": 1}], [{}]]}));
        let left = |texts: &[&str]| changed(payload(), |payload| exclude(payload, &paths(texts)));
        assert_eq!(left(&["a.c[].d", "y"]), json!({"a": {"b": 1, "c": [{"e": 2}, {}, 5]}, "x": 1}));
        assert_eq!(left(&["a", "y[]", "q.r"]), json!({"x": 1, "y": []}));
        assert_eq!(left(&["a.c.d", "a.c[1]", "a.c[0].d"]), payload());
    }

    #[test]
    fn keys_are_merged_below_a_path() {
        let merged = |payload: Value, path: &str, keys: Value| {
            let path = (!path.is_empty()).then(|| Path::parse(path).unwrap());
            changed(payload, |payload| merge(payload, path.as_ref(), keys.as_object().unwrap()))
        };
        assert_eq!(merged(json!({"a": 1, "c": 1}), "", json!({"a": null, "b": 2})), json!({"b": 2, "c": 1}));
        assert_eq!(merged(json!({"a": {"x": 1}}), "", json!({"a": {"y": 2}})), json!({"a": {"y": 2}}));
        assert_eq!(merged(json!({"a": {"x": 1}}), "a", json!({"y": 2})), json!({"a": {"x": 1, "y": 2}}));
        assert_eq!(merged(json!({"a": 1}), "a.b.c", json!({"y": 2})), json!({"a": {"b": {"c": {"y": 2}}}}));
        assert_eq!(
            merged(json!({"a": [{"b": 1}, 3]}), "a[]", json!({"y": 2})),
            json!({"a": [{"b": 1, "y": 2}, {"y": 2}]})
        );
        assert_eq!(merged(json!({"a": [{"b": 1}, 3]}), "a[0]", json!({"y": 2})), json!({"a": [{"b": 1, "y": 2}, 3]}));
        assert_eq!(merged(json!({"a": [3]}), "a[5]", json!({"y": 2})), json!({"a": [3]}));
        assert_eq!(merged(json!({"a": 1}), "a[0].b", json!({"y": 2})), json!({"a": []}));
        assert_eq!(merged(json!({}), "a[]", json!({"y": 2})), json!({"a": []}));
    }

    #[test]
    fn keys_are_removed_wherever_a_path_leads() {
        let removed =
            |payload: Value, path: &str| changed(payload, |payload| remove(payload, &Path::parse(path).unwrap()));
        assert_eq!(removed(json!({"a": {"b": 1, "c": 2}}), "a.b"), json!({"a": {"c": 2}}));
        assert_eq!(removed(json!({"a": [{"b": 1, "c": 2}, {"b": 3}]}), "a[].b"), json!({"a": [{"c": 2}, {}]}));
        assert_eq!(removed(json!({"a": [{"b": 1}, {"b": 2}]}), "a[0].b"), json!({"a": [{}, {"b": 2}]}));
        assert_eq!(removed(json!({"a": [1, 2]}), "a[]"), json!({"a": []}));
        assert_eq!(removed(json!({"a": [[1], [2]]}), "a[][]"), json!({"a": [[], []]}));
        assert_eq!(removed(json!({"a": [1, 2]}), "a[1]"), json!({"a": [1, 2]}));
        assert_eq!(removed(json!({"a.b": 1}), "\"a.b\""), json!({}));
    }
}
