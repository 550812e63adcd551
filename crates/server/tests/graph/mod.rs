//! Which file of a crate uses which, as the source says it: `use` paths, paths in the code, re-exports followed to the file
//! that defines the item.
//!
//! ```text
//!   text ─► tokens without comments, texts and tests ─► modules ─┬─ what each defines and re-exports
//!                                                                └─ paths ─► file ──► file that defines the item
//! ```
//!
//! Methods are not seen: an arrow is an item that is named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files, each with those whose items it names.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// A path that a file names, and the name that it has there.
#[derive(Debug, Clone)]
struct Import {
    path: Vec<String>,
    alias: String,
    is_public: bool,
}

#[derive(Debug, Default)]
struct Module {
    file: String,
    children: BTreeSet<String>,
    imports: Vec<Import>,
    defines: BTreeSet<String>,
    /// Paths of two names or more in the code.
    paths: Vec<Vec<String>>,
}

/// The modules of a crate by their paths from its root.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Vec<String>, Module>);

const KEYWORDS_OF_ITEMS: &[&str] =
    &["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];

/// Names, `::` and single signs; no comments, no texts, no lifetimes.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    let starts = |at: usize, what: &str| what.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    while at < chars.len() {
        let c = chars[at];
        if starts(at, "//") {
            while at < chars.len() && chars[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            while at < chars.len() && !starts(at, "*/") {
                at += 1;
            }
            at += 2;
        } else if c == '"' {
            at = after_text(&chars, at);
        } else if c == '\'' {
            at = after_quote(&chars, at);
        } else if c.is_alphanumeric() || c == '_' {
            let from = at;
            while at < chars.len() && (chars[at].is_alphanumeric() || chars[at] == '_') {
                at += 1;
            }
            let name: String = chars[from..at].iter().collect();
            match raw_end(&chars, at).filter(|_| matches!(&*name, "r" | "br")) {
                Some(end) => at = end,
                None => found.push(name),
            }
        } else if starts(at, "::") {
            found.push("::".to_owned());
            at += 2;
        } else {
            if !c.is_whitespace() {
                found.push(c.to_string());
            }
            at += 1;
        }
    }
    found
}

fn after_text(chars: &[char], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Behind a character, or behind the sign of a lifetime.
fn after_quote(chars: &[char], quote: usize) -> usize {
    match (chars.get(quote + 1), chars.get(quote + 2)) {
        (Some('\\'), _) => {
            let end = chars[quote + 3..].iter().position(|c| *c == '\'');
            end.map_or(chars.len(), |end| quote + 4 + end)
        }
        (Some(_), Some('\'')) => quote + 3,
        _ => quote + 1,
    }
}

/// The end of a raw text whose `r` ends at `at`.
fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + hashes) != Some(&'"') {
        return None;
    }
    let ends =
        |at: &usize| chars[*at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    (at + hashes + 1..chars.len()).find(ends).map(|end| end + 1 + hashes)
}

/// Where the bracket that opens at `at` closes.
fn closing(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match &**token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len() - 1
}

/// Without the items that stand under `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let (mut kept, mut at) = (Vec::with_capacity(tokens.len()), 0);
    let is_attribute =
        |at: usize| tokens.get(at).is_some_and(|t| t == "#") && tokens.get(at + 1).is_some_and(|t| t == "[");
    while at < tokens.len() {
        if !is_attribute(at) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = closing(&tokens, at + 1);
        let inner = &tokens[at + 2..end];
        let is_test = inner.first().is_some_and(|t| t == "cfg")
            && inner.iter().any(|t| t == "test")
            && !inner.iter().any(|t| t == "not");
        at = end + 1;
        if !is_test {
            continue;
        }
        while is_attribute(at) {
            at = closing(&tokens, at + 1) + 1;
        }
        while at < tokens.len() {
            match &*tokens[at] {
                ";" | "," => break,
                "{" => {
                    at = closing(&tokens, at);
                    break;
                }
                "(" | "[" => at = closing(&tokens, at),
                _ => {}
            }
            at += 1;
        }
        at += 1;
    }
    kept
}

/// All paths of one `use`, without the word itself and the semicolon.
fn expanded(tokens: &[String], before: &[String], is_public: bool, found: &mut Vec<Import>) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match &*tokens[at] {
            "{" => {
                let end = closing(tokens, at);
                let (mut from, mut next) = (at + 1, at + 1);
                while next <= end {
                    match &*tokens[next] {
                        "{" => next = closing(tokens, next),
                        "," | "}" => {
                            if from < next {
                                expanded(&tokens[from..next], &path, is_public, found);
                            }
                            from = next + 1;
                        }
                        _ => {}
                    }
                    next += 1;
                }
                return;
            }
            "::" => {}
            "as" => {
                let alias = tokens.get(at + 1).cloned().unwrap_or_default();
                found.push(Import { path, alias, is_public });
                return;
            }
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    let alias = path.last().cloned().unwrap_or_default();
    found.push(Import { path, alias, is_public });
}

fn parsed(file: String, text: &str) -> Module {
    let tokens = without_tests(tokens(text));
    let mut module = Module { file, ..Module::default() };
    let is_name = |token: &String| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut at = 0;
    while at < tokens.len() {
        let next = tokens.get(at + 1).cloned().unwrap_or_default();
        let before = if at > 0 { tokens[at - 1].as_str() } else { "" };
        match &*tokens[at] {
            "mod" if tokens.get(at + 2).is_some_and(|token| token == ";") => _ = module.children.insert(next),
            "use" if before != "." => {
                let end = tokens[at..].iter().position(|token| token == ";").map_or(tokens.len(), |end| at + end);
                expanded(&tokens[at + 1..end], &[], matches!(before, "pub" | ")"), &mut module.imports);
                at = end;
            }
            word if KEYWORDS_OF_ITEMS.contains(&word) => {
                let name = tokens[at + 1..].iter().find(|token| !matches!(&***token, "mut" | "fn" | "unsafe" | "!"));
                module.defines.extend(name.cloned());
            }
            _ if is_name(&tokens[at]) && next == "::" && !matches!(before, "::" | ".") => {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|token| token == "::") && tokens.get(at + 2).is_some_and(is_name) {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                module.paths.push(path);
            }
            _ => {}
        }
        at += 1;
    }
    module
}

impl Modules {
    fn load(&mut self, source: &Path, path: Vec<String>, file: &Path) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.strip_prefix(source).unwrap().to_string_lossy().into_owned();
        let module = parsed(name, &text);
        let is_head = file.file_name().is_some_and(|name| name == "lib.rs" || name == "mod.rs");
        let folder = if is_head { file.parent().unwrap().to_owned() } else { file.with_extension("") };
        let children = module.children.clone();
        self.0.insert(path.clone(), module);
        for child in children {
            let places: [PathBuf; 2] = [folder.join(format!("{child}.rs")), folder.join(&child).join("mod.rs")];
            let found = places.iter().find(|place| place.exists());
            let below = path.iter().cloned().chain([child.clone()]).collect();
            self.load(source, below, found.unwrap_or_else(|| panic!("{child} of {} has no file", file.display())));
        }
    }

    /// A path from the root of the crate, of one that stands in the module `own`; `None`: it leads out of the crate.
    fn absolute(&self, own: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut base = own.to_vec();
        let mut rest = path;
        match path.first().map(String::as_str)? {
            "crate" => (base, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            first if self.0.get(own)?.children.contains(first) => {}
            first => {
                let import =
                    self.0.get(own)?.imports.iter().find(|import| import.alias == first && import.path != path)?;
                let (head, tail) = (import.path.clone(), &path[1..]);
                let full: Vec<String> = head.into_iter().chain(tail.iter().cloned()).collect();
                return if full.first() == path.first() { None } else { self.absolute(own, &full) };
            }
        }
        Some(base.into_iter().chain(rest.iter().cloned()).collect())
    }

    /// The file that defines what an absolute path names.
    fn file_of(&self, path: &[String], depth: usize) -> Option<&str> {
        if depth > 12 {
            return None;
        }
        let mut module = Vec::new();
        for (index, name) in path.iter().enumerate() {
            module.push(name.clone());
            if self.0.contains_key(&module) {
                continue;
            }
            module.pop();
            let held = &self.0[&module];
            if held.defines.contains(name) {
                return Some(&held.file);
            }
            for import in held.imports.iter().filter(|import| import.is_public) {
                let is_glob = import.path.last().is_some_and(|last| last == "*");
                let (head, tail) = match is_glob {
                    true => (&import.path[..import.path.len() - 1], &path[index..]),
                    false if import.alias == *name => (&import.path[..], &path[index + 1..]),
                    false => continue,
                };
                let Some(head) = self.absolute(&module, head) else { continue };
                let target: Vec<String> = head.iter().chain(tail).cloned().collect();
                let is_there = !is_glob || self.0.get(&head).is_some_and(|there| there.defines.contains(name));
                if is_there && let Some(file) = self.file_of(&target, depth + 1) {
                    return Some(file);
                }
            }
            return Some(&held.file);
        }
        self.0.get(&module).map(|held| &*held.file)
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (own, module) in self.0.iter().filter(|(own, _)| !own.is_empty()) {
            let arrows = graph.entry(module.file.clone()).or_default();
            let imported = module.imports.iter().map(|import| {
                let is_glob = import.path.last().is_some_and(|last| last == "*");
                &import.path[..import.path.len() - usize::from(is_glob)]
            });
            for path in imported.chain(module.paths.iter().map(Vec::as_slice)) {
                let Some(absolute) = self.absolute(own, path) else { continue };
                // A module that is only imported is used by its items, which stand in other paths.
                if self.0.contains_key(&absolute) && module.paths.iter().any(|other| other.first() == absolute.last()) {
                    continue;
                }
                arrows.extend(
                    self.file_of(&absolute, 0)
                        .filter(|file| *file != module.file && *file != "lib.rs")
                        .map(str::to_owned),
                );
            }
        }
        graph
    }
}

/// The graph of a crate whose source stands in a folder.
pub fn of_crate(source: &Path) -> Graph {
    let mut modules = Modules::default();
    modules.load(source, Vec::new(), &source.join("lib.rs"));
    modules.graph()
}

/// The folder that a file is in; one that stands beside `lib.rs` is a folder of its own.
pub fn folder(file: &str) -> String {
    file.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned()
}

/// The arrows between folders.
pub fn of_folders(graph: &Graph) -> Graph {
    let mut folders = Graph::new();
    for (from, arrows) in graph {
        let own = folder(from);
        let others = arrows.iter().map(|to| folder(to)).filter(|to| *to != own);
        folders.entry(own.clone()).or_default().extend(others.collect::<Vec<_>>());
    }
    folders
}

/// The arrows of one folder between its own files.
pub fn inside(graph: &Graph, own: &str) -> Graph {
    let files = graph.iter().filter(|(file, _)| folder(file) == own);
    files
        .map(|(file, arrows)| (file.clone(), arrows.iter().filter(|to| folder(to) == own).cloned().collect()))
        .collect()
}

/// The groups of which each member reaches each other one; of two members at least.
pub fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = open.pop() {
            for to in graph.get(&next).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|from| (from, reached(from))).collect();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for (from, reached) in reach.iter().filter(|(from, reached)| reached.contains(**from)) {
        let back = |to: &&String| reach.get(to).is_some_and(|others| others.contains(*from));
        let group: Vec<String> = reached.iter().filter(back).cloned().collect();
        if group.len() > 1 && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// The graph of texts that stand in for files, for tests of this module.
pub fn of_texts(files: &[(&[&str], &str, &str)]) -> Graph {
    let mut modules = Modules::default();
    for (path, file, text) in files {
        modules.0.insert(path.iter().map(|name| (*name).to_owned()).collect(), parsed((*file).to_owned(), text));
    }
    modules.graph()
}
