//! What grows from outside bytes carries what it is booked with: in the code that reads requests no list, text or map stands
//! that can grow without asking, nor in the code that asks filters of points. `BookedVec` and `SharedReservation` of `memory` ask; messages
//! are written by `base::message`, which ends.
//!
//! Like the checks of `floors.rs` this reads text, not syntax.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic in its helpers, and reads the tree"
)]

use std::path::{Path, PathBuf};

/// Folders and files that are held to it.
const HELD_TO_IT: &[&str] = &[
    "crates/door-qdrant/src/wire",
    "crates/fields/src",
    "crates/vectors/src/collection/catalog.rs",
    "crates/vectors/src/api/catalog_cost.rs",
];

/// What of them is not: indexes are built within what a merge or a seal has booked, and no request waits there.
const NOT_HELD: &[&str] =
    &["crates/fields/src/column/pack.rs", "crates/fields/src/index/build.rs", "crates/fields/src/index/tests.rs"];

/// What can grow without asking.
const REFUSED: &[&str] = &[
    "Vec",
    "String",
    "HashMap",
    "HashSet",
    "BTreeMap",
    "BTreeSet",
    "VecDeque",
    "collect",
    "from_iter",
    "to_owned",
    "to_string",
    "to_vec",
    "concat",
    "repeat",
    "format!",
    "vec!",
];

/// What may stand in a line all the same, each with its bound: where, what, why it cannot grow. What else is in the line counts.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("wire/json.rs", "path: String", "at most 1 KiB: `message` writes it"),
    ("wire/json.rs", "message: String,", "at most 1 KiB: `message` writes it"),
    ("wire/json.rs", "fn unescaped(text: &str) -> String", "as long as the string it is of: booked, or at most 4 KiB"),
    ("wire/json.rs", "String::with_capacity(text.len())", "the same"),
    ("wire/parts.rs", "BookedVec<String>", "at most 64 names of 255 bytes, each booked"),
    ("wire/parts.rs", "name.to_owned()", "a checked name, booked in the line before"),
    ("wire/vector.rs", "Vec<Column>", "at most 64 columns"),
    ("wire/vector.rs", "checked_name(name)?.to_owned()", "at most 64 names of 255 bytes"),
    ("wire/vector.rs", "present: Vec::new(), data: Vec::new()", "both grow by `SharedReservation::extend` alone"),
    ("wire/vector.rs", "data: &mut Vec<f32>", "grows by `SharedReservation::extend` alone"),
    (
        "fields/src/",
        "Map<String, Value>",
        "a payload, lent by who decoded and booked it; what a change adds stands in the change",
    ),
    ("fields/src/", "].concat().into()", "a key of at most 256 bytes, and one more"),
    ("fields/src/memtable.rs", "BTreeSet", "`values` books each key before it is kept, and `push` moves them"),
    ("fields/src/memtable.rs", "flags: Vec<Flags>", "grows in `has_flags` alone, where it is booked first"),
    ("vectors/src/collection/catalog.rs", "cloned().collect()", "16 bytes of each collection, in its place by name"),
    (
        "vectors/src/collection/catalog.rs",
        "actions: Vec<AliasAction>",
        "decoded and booked by who asked, or of one record of the log",
    ),
    ("vectors/src/api/catalog_cost.rs", "size_of::<(String, VectorConfig)>", "a size alone"),
    ("vectors/src/api/catalog_cost.rs", "size_of::<(String, String)>", "a size alone"),
    (
        "vectors/src/api/catalog_cost.rs",
        "std::collections::HashMap<u64, Weak<HeldConfig>>",
        "at most twice as many as are in use, which have booked it",
    ),
    (
        "fields/src/words.rs",
        "String::with_capacity(expected)",
        "a word, or a piece of 4 KiB, of a text booked several times",
    ),
];

/// So many exceptions are enough.
const EXCEPTIONS_MAX: usize = 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files(place: &Path, found: &mut Vec<PathBuf>) {
    if place.is_file() {
        found.push(place.to_owned());
        return;
    }
    for entry in std::fs::read_dir(place).unwrap() {
        files(&entry.unwrap().path(), found);
    }
}

/// Whether a word stands in a line by itself: `BookedVec` is no `Vec`.
fn holds(line: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (at.checked_sub(1), at + word.len());
        !is_part(before.and_then(|at| line.as_bytes().get(at))) && !is_part(line.as_bytes().get(after))
    })
}

/// The numbers and texts of lines of production code that hold a refused word.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.enumerate().filter(|(_, line)| is_refused(line))
}

fn is_refused(line: &str) -> bool {
    REFUSED.iter().any(|word| holds(line, word))
}

/// A line without what may stand in it; which exceptions these are is noted.
fn without_exceptions(path: &Path, line: &str, used: &mut [bool]) -> String {
    let mut left = line.to_owned();
    for ((place, fragment, _), used) in EXCEPTIONS.iter().zip(used) {
        if path.to_string_lossy().contains(place) && left.contains(fragment) {
            (left, *used) = (left.replace(fragment, " "), true);
        }
    }
    left
}

#[test]
fn what_holds_outside_bytes_cannot_grow_without_asking() {
    assert!(EXCEPTIONS.len() <= EXCEPTIONS_MAX, "{} exceptions", EXCEPTIONS.len());
    let mut all = Vec::new();
    HELD_TO_IT.iter().for_each(|place| files(&root().join(place), &mut all));
    let before = all.len();
    all.retain(|path| !NOT_HELD.iter().any(|place| path.ends_with(place)));
    assert_eq!(all.len() + NOT_HELD.len(), before, "a file that is not held to it is not there");
    assert!(all.len() >= 7, "the files were not found");
    let (mut found, mut used) = (Vec::new(), vec![false; EXCEPTIONS.len()]);
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in lines(&text) {
            if is_refused(&without_exceptions(&path, line, &mut used)) {
                found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "use BookedVec, SharedReservation and message, or name the bound:\n{}", found.join("\n"));
    for ((file, fragment, _), used) in EXCEPTIONS.iter().zip(used) {
        assert!(used, "the exception of {file} is not needed any more: {fragment}");
    }
}

#[test]
fn planted_mistakes_are_found() {
    let text = "let a: BookedVec<u8> = b.finish();\nlet c = Vec::new(); // Vec\nlet d = e.collect();\nlet f = format!(\"\");\n\
                // a String\nformat_args!()\n#[cfg(test)]\nmod tests { String }";
    assert_eq!(lines(text).map(|(number, _)| number).collect::<Vec<_>>(), [1, 2, 3]);
    let left =
        |line: &str| without_exceptions(Path::new("crates/fields/src/a.rs"), line, &mut [false; EXCEPTIONS.len()]);
    assert!(!is_refused(&left("a: &Map<String, Value>")) && is_refused(&left("a: &Map<String, Value>) -> Vec<u8>")));
}
