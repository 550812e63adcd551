//! Pages of `docs` that must not fall behind the code, as far as text can show it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic in its helpers, and reads the tree"
)]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every source file of production code, without its tests.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![root().join("crates")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_production = |name: &str| !["tests", "examples", "planted"].contains(&name);
            if path.is_dir() && path.file_name().and_then(|name| name.to_str()).is_some_and(is_production) {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()));
            }
        }
    }
    found
}

/// What each line of the log at this level says: the fixed parts of its text.
fn said(text: &str, call: &str) -> Vec<Vec<String>> {
    let literal = |from: &str| {
        let text = &from[from.find('"')? + 1..];
        let end = text.match_indices('"').map(|(at, _)| at).find(|at| !text[..*at].ends_with('\\'))?;
        Some(text[..end].to_owned())
    };
    let calls = text.match_indices(call).filter_map(|(at, _)| literal(&text[at + call.len()..]));
    calls
        .map(|literal| {
            let joined = literal.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join("");
            let parts = joined.split('{').map(|part| part.split_once('}').map_or(part, |(_, fixed)| fixed));
            parts.map(|part| part.trim_matches([' ', ':']).to_owned()).filter(|part| part.len() > 6).collect()
        })
        .collect()
}

#[test]
fn the_page_for_operators_names_every_warning_of_the_log() {
    let page = read("docs/OPERATIONS.md");
    let (_, page) = page.split_once("## Warnings and errors of the log").unwrap();
    let (page, _) = page.split_once("\n## ").unwrap();
    let mut lines = 0;
    for (path, text) in sources() {
        for parts in ["tracing::warn!(", "tracing::error!("].iter().flat_map(|call| said(&text, call)) {
            // A line without a text of its own says what stands elsewhere on the page.
            let Some(longest) = parts.iter().max_by_key(|part| part.len()) else { continue };
            assert!(
                page.contains(longest.as_str()),
                "docs/OPERATIONS.md says nothing of '{longest}' ({})",
                path.display()
            );
            lines += 1;
        }
    }
    assert!(lines >= 14, "{lines} lines of the log were found");
}

/// What people look for in an incident stands where the page says, and the map leads to the page.
#[test]
fn things_are_where_the_page_says() {
    assert!(read("ARCHITECTURE.md").contains("(docs/WHERE.md)"));
    let (page, mut found) = (read("docs/WHERE.md"), 0);
    for line in page.lines().filter(|line| line.starts_with("| a ")) {
        let quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        assert!(!quoted.is_empty() && quoted.len().is_multiple_of(2), "{line}");
        for place in quoted.chunks(2) {
            assert!(read(place[0]).contains(place[1]), "{} has no `{}`", place[0], place[1]);
        }
        found += 1;
    }
    assert_eq!(found, 10);
}

/// Where a page says that something is in a file of the tree, it is there.
#[test]
fn files_that_pages_name_are_there() {
    let mut named = 0;
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/FORMAT.md", "docs/OPERATIONS.md"] {
        let text = read(page);
        // Texts between backticks.
        for name in text.split('`').skip(1).step_by(2) {
            if ["crates/", "tests/", "docs/"].iter().any(|folder| name.starts_with(folder)) && !name.contains(' ') {
                assert!(root().join(name).exists(), "{page} names {name}, which is not there");
                named += 1;
            }
        }
    }
    assert!(named >= 40, "{named} files are named");
}

#[test]
fn fixed_parts_are_what_a_line_says() {
    let text = "tracing::warn!(\n    collection = name, \"ledger: {} are booked: \\\n     (and {held} held)\"\n);";
    assert_eq!(said(text, "tracing::warn!("), [["are booked: (and"]]);
}
