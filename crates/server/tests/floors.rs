//! The floors, and what else can be read off the source: the invariants of ARCHITECTURE.md that need no run.
//!
//! ```text
//!   every crate states its floor     every arrow points down        siblings never meet
//!   only `disk` opens files          every queue has a bound        no names that say nothing
//!   inside a crate: no cycle between folders, none of more than three files in one (`graph/mod.rs`)
//! ```
//!
//! The checks read text, not syntax. They are meant to catch what slips in, not who wants to cheat.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic in its helpers, and reads the tree"
)]

mod graph;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Places outside of `disk` that may read files, each with its reason.
const MAY_READ_FILES: &[(&str, &str)] = &[
    ("crates/door-etcd/src/auth/tokens.rs", "the keys of signed tokens, which an option names"),
    ("crates/lab/src/files.rs", "vectors that people hand in, the kernel's own files, reports: no data of a store"),
    ("crates/memory/src/kernel.rs", "reads /proc and the cgroup: no data, and they are no files on a disk"),
    (
        "crates/server/src/process.rs",
        "opens its own binary, to give its pages back to the kernel, and asks it about huge pages",
    ),
    ("crates/server/src/usage.rs", "reads what /proc says of this process: no data"),
    ("crates/server/src/settings.rs", "reads configuration and certificates, once, before the disk is there"),
];

/// What opens, makes or removes files.
const OPENS_FILES: &[&str] =
    &["std::fs::", "use std::fs", "OpenOptions", "tokio::fs", "rustix::fs::open", "libc::open", "read_to_string("];

/// Crates that may hold unsafe code, each with its reason. All others forbid it.
const MAY_BE_UNSAFE: &[(&str, &str)] = &[
    ("ann", "bytes of a section seen as numbers, and pages called into the processor's cache"),
    ("disk", "memory that the kernel reads into, mappings, the ring"),
    ("fields", "instructions of newer processors"),
    ("lab", "the kernel's counters, and signals of what it starts"),
    ("pages", "the one mapping that all pages live in"),
    ("runs", "the memory of a memtable, which one writes while others read older versions"),
    ("server", "the allocator's settings, and the process's own mappings"),
    ("vecmath", "SIMD"),
];

/// Crates whose modules stand in folders that know each other in one direction only.
const IN_FOLDERS: &[&str] = &["ann", "disk", "door-qdrant", "pages", "vectors"];

/// Files of one folder that may know each other in a circle.
const CIRCLE_MAX: usize = 3;

/// Lines of code, without comments, blanks and tests, that crates may have together: what they do is bounded, so more of them says
/// that something was built twice.
const LINES_MAX: &[(&[&str], usize)] = &[(&["engine", "runs"], 7_110)];

/// Lines of a file, comments and all.
const FILE_LINES_MAX: usize = 600;

/// Queues without a bound.
const UNBOUNDED: &[&str] = &["mpsc::channel()", "unbounded_channel", "unbounded()", "SegQueue", "mpsc::channel::<"];

/// What has no place in code that is to stay.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX", "HACK"];

/// File and module names that say nothing.
const NAMES_THAT_SAY_NOTHING: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "manager", "stuff"];

struct Crate {
    floor: i64,
    /// Crates of ours that it uses, in its tests too.
    uses: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn crates() -> BTreeMap<String, Crate> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        if !manifest.exists() {
            continue;
        }
        let table: toml::Table = read(&manifest).parse().unwrap();
        let package = &table["package"];
        let name = package["name"].as_str().unwrap().to_owned();
        let floor = package.get("metadata").and_then(|all| all.get("ramekin")).and_then(|ours| ours.get("floor"));
        let floor = floor.and_then(toml::Value::as_integer);
        let floor = floor.unwrap_or_else(|| panic!("{name} states no floor: [package.metadata.ramekin] floor = n"));
        let mut uses = Vec::new();
        dependencies(&toml::Value::Table(table), &mut uses);
        all.insert(name, Crate { floor, uses });
    }
    assert!(all.len() >= 10, "the crates were not found");
    all
}

/// Names of ours in every table of dependencies: plain, of tests, of builds, of a target.
fn dependencies(value: &toml::Value, uses: &mut Vec<String>) {
    let Some(table) = value.as_table() else { return };
    for (key, inner) in table {
        if key.ends_with("dependencies") {
            let names = inner.as_table().into_iter().flat_map(|table| table.keys());
            uses.extend(names.filter(|name| name.starts_with("ramekin-")).cloned());
        } else {
            dependencies(inner, uses);
        }
    }
}

/// Every source file of production code with its path from the root.
fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let src = entry.unwrap().path().join("src");
        if src.is_dir() {
            walk(&src, &mut found);
        }
    }
    found.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
    found.iter().map(|path| (name(path), production(&read(path)))).collect()
}

/// A file without its tests (they stand at its end) and without comments.
fn production(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Lines of production code that hold one of the words, as `file:line: word`.
fn lines_with(words: &[&str], allowed: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| !allowed(path)) {
        for (number, line) in text.lines().enumerate() {
            found.extend(
                words.iter().filter(|word| line.contains(**word)).map(|word| format!("{path}:{}: {word}", number + 1)),
            );
        }
    }
    found
}

#[test]
fn arrows_point_down() {
    let all = crates();
    let mut wrong = Vec::new();
    for (name, one) in &all {
        for used in &one.uses {
            let below =
                all.get(used).unwrap_or_else(|| panic!("{name} uses {used}, which is no crate of this workspace"));
            if below.floor >= one.floor {
                wrong.push(format!("{name} (floor {}) uses {used} (floor {})", one.floor, below.floor));
            }
        }
    }
    assert!(wrong.is_empty(), "a crate may use only crates on lower floors:\n{}", wrong.join("\n"));
}

#[test]
fn floors_are_those_of_the_design() {
    let floors = [
        ("base", 0),
        ("memory", 1),
        ("vecmath", 1),
        ("disk", 2),
        ("bolt", 3),
        ("log", 3),
        ("pages", 3),
        ("storage", 4),
        ("runs", 4),
        ("ann", 5),
        ("fields", 5),
        ("engine", 5),
        ("vectors", 6),
        ("versions", 6),
        ("door-etcd", 7),
        ("door-qdrant", 7),
        ("node", 7),
        ("lab", 8),
        ("sim", 8),
        ("server", 9),
    ];
    let all = crates();
    for (name, floor) in floors {
        assert_eq!(all.get(&format!("ramekin-{name}")).map(|one| one.floor), Some(floor), "{name}");
    }
    assert_eq!(all.len(), floors.len(), "a new crate belongs into this list and into ARCHITECTURE.md");
    let page = read(&root().join("ARCHITECTURE.md"));
    for (name, _) in floors {
        assert!(page.contains(&format!("**`{name}`**")), "ARCHITECTURE.md has no paragraph on {name}");
    }
}

#[test]
fn only_disk_opens_files() {
    let allowed = |path: &str| path.starts_with("crates/disk/") || MAY_READ_FILES.iter().any(|(file, _)| *file == path);
    let found = lines_with(OPENS_FILES, allowed);
    assert!(found.is_empty(), "only the disk crate opens files:\n{}", found.join("\n"));
    for (file, why) in MAY_READ_FILES {
        assert!(root().join(file).exists(), "{file} is gone; its exception ({why}) can go too");
    }
}

#[test]
fn unsafe_code_is_forbidden_where_there_is_none() {
    for folder in crates().keys().map(|name| name.trim_start_matches("ramekin-")) {
        let source = root().join("crates").join(folder).join("src");
        let heads = ["lib.rs", "main.rs"].map(|file| source.join(file));
        let forbids =
            heads.iter().filter(|head| head.exists()).all(|head| read(head).contains("#![forbid(unsafe_code)]"));
        match MAY_BE_UNSAFE.iter().find(|(name, _)| *name == folder) {
            None => assert!(forbids, "{folder} needs no unsafe code, so its head says #![forbid(unsafe_code)]"),
            Some((_, why)) => {
                let own = format!("crates/{folder}/");
                let found = lines_with(&["unsafe "], |path| !path.starts_with(&own));
                assert!(!found.is_empty(), "{folder} has no unsafe code left; its exception ({why}) can go");
            }
        }
    }
}

/// Lines that hold code.
fn code_lines(text: &str) -> usize {
    text.lines().filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn crates_grow_no_larger_than_what_they_do() {
    let all = sources();
    let of_crate = |name: &str| -> usize {
        let own = format!("crates/{name}/src/");
        let files = all.iter().filter(|(path, _)| path.starts_with(&own) && !path.ends_with("/tests.rs"));
        files.map(|(_, text)| code_lines(text)).sum()
    };
    for (names, most) in LINES_MAX {
        let lines: usize = names.iter().map(|name| of_crate(name)).sum();
        assert!(lines > most / 2, "{names:?} were not found");
        assert!(lines <= *most, "{names:?} have {lines} lines of code; at most {most} are agreed on");
    }
}

#[test]
fn no_file_is_long() {
    for (path, _) in sources() {
        let lines = read(&root().join(&path)).lines().count();
        assert!(lines <= FILE_LINES_MAX, "{path} has {lines} lines, more than {FILE_LINES_MAX}: split it");
    }
}

#[test]
fn every_queue_has_a_bound() {
    let found = lines_with(UNBOUNDED, |_| false);
    assert!(found.is_empty(), "use a queue with a bound:\n{}", found.join("\n"));
}

#[test]
fn nothing_is_left_unfinished() {
    let found = lines_with(UNFINISHED, |_| false);
    assert!(found.is_empty(), "finish it, or answer Unsupported:\n{}", found.join("\n"));
}

#[test]
fn names_say_something() {
    let says_nothing =
        |path: &&(String, String)| path.0.split(['/', '.']).any(|part| NAMES_THAT_SAY_NOTHING.contains(&part));
    let all = sources();
    let found: Vec<_> = all.iter().filter(says_nothing).map(|(path, _)| path.as_str()).collect();
    assert!(found.is_empty(), "name them after their noun:\n{}", found.join("\n"));
}

#[test]
fn no_wire_below_the_doors() {
    // Stores and floors below know neither HTTP nor an async runtime.
    let words = ["axum", "hyper", "tokio", "tonic", "prost"];
    for (name, one) in crates().iter().filter(|(_, one)| one.floor <= 6) {
        let folder = name.trim_start_matches("ramekin-");
        let manifest = read(&root().join("crates").join(folder).join("Cargo.toml"));
        for word in words {
            assert!(!manifest.contains(word), "{name} on floor {} must not use {word}", one.floor);
        }
    }
}

#[test]
fn folders_know_each_other_in_one_direction() {
    let mut wrong = Vec::new();
    for name in IN_FOLDERS {
        let graph = graph::of_crate(&root().join("crates").join(name).join("src"));
        assert!(graph.len() > 5 && graph.values().any(|arrows| arrows.len() > 2), "{name}: the arrows were not found");
        let folders = graph::of_folders(&graph);
        wrong.extend(
            graph::cycles(&folders).iter().map(|cycle| format!("{name}: between folders: {}", cycle.join(", "))),
        );
        for folder in folders.keys() {
            let cycles = graph::cycles(&graph::inside(&graph, folder));
            let long = cycles.iter().filter(|cycle| cycle.len() > CIRCLE_MAX);
            wrong.extend(long.map(|cycle| format!("{name}: in {folder}: {}", cycle.join(", "))));
        }
    }
    assert!(wrong.is_empty(), "move an item to the file that its users are above:\n{}", wrong.join("\n"));
}

/// Arrows are found however a path is written, and go to the file that defines the item.
#[test]
fn planted_arrows_are_found() {
    let graph = graph::of_texts(&[
        (&[], "lib.rs", "mod a; mod b; mod c; mod d; pub use b::deep::Item;"),
        (
            &["a"],
            "a.rs",
            "use crate::{b, c::{self as see, Two as Three}}; fn f<'x>(i: &'x crate::Item) { b::of('{', \"crate::d::No\") }",
        ),
        (
            &["b"],
            "b/mod.rs",
            "pub mod deep; pub(crate) use deep::*; pub fn of() {} #[cfg(test)] mod tests { use crate::d::No; }",
        ),
        (
            &["b", "deep"],
            "b/deep.rs",
            "pub struct Item; impl Item { fn g() { super::super::c::go() } } // crate::d::No",
        ),
        (&["c"], "c.rs", "pub struct Two; pub fn go() { use crate::b::Item; }"),
        (&["d"], "d.rs", "pub struct No; #[cfg(test)] use crate::a::f;"),
    ]);
    let to = |file: &str| graph[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(to("a.rs"), ["b/deep.rs", "b/mod.rs", "c.rs"]);
    assert_eq!((to("b/mod.rs"), to("b/deep.rs"), to("c.rs")), (vec!["b/deep.rs"], vec!["c.rs"], vec!["b/deep.rs"]));
    assert_eq!(to("d.rs"), [""; 0]);
    assert_eq!(graph::cycles(&graph::of_folders(&graph)), [["b", "c"]]);
    assert!(graph::cycles(&graph::inside(&graph, "b")).is_empty());
}

/// The checks themselves find what they are for.
#[test]
fn planted_mistakes_are_found() {
    let table: toml::Table = "[target.'cfg(unix)'.dev-dependencies]\nramekin-node = \"1\"".parse().unwrap();
    let mut uses = Vec::new();
    dependencies(&toml::Value::Table(table), &mut uses);
    assert_eq!(uses, ["ramekin-node"]);
    let text = "let a = 1; // std::fs::read\nstd::fs::write();\n#[cfg(test)]\nmod tests { std::fs::read() }";
    assert_eq!(production(text).matches("std::fs").count(), 1);
    assert_eq!(code_lines(&production("a\n\n// b\n  c // d\n#[cfg(test)]\nmod tests {}")), 2);
}
