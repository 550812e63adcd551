//! The options of every command: one table, from which flags, environment, configuration file, help and docs derive.
//!
//! ```text
//!   table ─┬─► flags of each command, help, docs/options.md          values of a command: `read`
//!          └─► serve: flag --memory 256MiB  >  RAMEKIN_MEMORY=256MiB  >  memory = "256MiB" in the file  >  the default
//! ```
//!
//! An option of `serve` has one name; the other two are made from it. A value is checked by the same rule wherever
//! it stands, and an error says where that was.

mod read;
mod table;

pub use read::Read;
pub use table::{COMMANDS, SERVE as OPTIONS};

use ramekin_base::{Error, Result, Size};
use ramekin_disk::Engine;
use std::collections::BTreeMap;
#[cfg(test)]
use std::fmt;
use std::path::{Path, PathBuf};

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Folder,
    File,
    Size,
    Address,
    Engine,
    Key,
    Origin,
    Level,
    Count,
    Seconds,
    /// Of any other form, by this name: its command reads it.
    Text(&'static str),
    /// There is none: the option is there or not.
    Switch,
}

/// One option, or one place of a command.
pub struct Opt {
    pub name: &'static str,
    pub value: Value,
    /// In force when nothing else says; empty: none.
    pub default: &'static str,
    pub help: &'static str,
}

/// A command and all that it takes.
pub struct Command {
    /// As it is called, such as `lab io`.
    pub words: &'static str,
    pub about: &'static str,
    /// What `--help` says beside; empty: nothing.
    pub more: &'static str,
    /// What stands there without a flag, in order; needed where there is no default.
    pub places: &'static [Opt],
    pub options: &'static [&'static [Opt]],
}

impl Command {
    pub fn options(&self) -> impl Iterator<Item = &'static Opt> {
        self.options.iter().flat_map(|part| part.iter())
    }

    /// Whether its options stand in the environment and in the file, too.
    pub fn is_serve(&self) -> bool {
        self.words == "serve"
    }
}

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Flag,
    Environment,
    File(PathBuf),
    Default,
}

impl Opt {
    pub fn flag(&self) -> String {
        format!("--{}", self.name)
    }

    pub fn variable(&self) -> String {
        format!("RAMEKIN_{}", self.name.replace('-', "_").to_uppercase())
    }

    /// Help with the other ways to say it.
    pub fn long_help(&self) -> String {
        let default = if self.default.is_empty() { String::new() } else { format!(" [default: {}]", self.default) };
        format!("{} [env: {}]{default}", self.help, self.variable())
    }

    fn place(&self, source: &Source) -> String {
        match source {
            Source::Flag => self.flag(),
            Source::Environment => self.variable(),
            Source::File(path) => format!("{} in {}", self.name, path.display()),
            Source::Default => format!("the default of {}", self.flag()),
        }
    }
}

impl Value {
    pub fn name(self) -> &'static str {
        match self {
            Self::Folder => "DIR",
            Self::File => "FILE",
            Self::Size => "SIZE",
            Self::Address => "ADDR|off",
            Self::Engine => "ENGINE",
            Self::Key => "KEY",
            Self::Origin => "ORIGIN",
            Self::Level => "LEVEL",
            Self::Count => "NUMBER",
            Self::Seconds => "SECONDS",
            Self::Text(name) => name,
            Self::Switch => "",
        }
    }

    fn check(self, text: &str) -> Result<()> {
        let wrong = |message: &str| Err(Error::invalid(format!("'{text}' {message}")));
        match self {
            Self::Text(_) | Self::Switch => Ok(()),
            Self::Folder | Self::File if text.is_empty() => Err(Error::invalid("the path is empty")),
            Self::Folder | Self::File => Ok(()),
            Self::Size => Size::parse(text).map(drop),
            Self::Engine => text.parse::<Engine>().map(drop),
            // The text of a key stays out of messages and logs.
            Self::Key if text.is_empty() => Err(Error::invalid("the key is empty; leave the option out for none")),
            Self::Key if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err(Error::invalid("a key may hold visible ASCII characters only"))
            }
            Self::Key => Ok(()),
            Self::Address if text == "off" => Ok(()),
            Self::Address => match text.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
                _ => wrong("is not an address; write HOST:PORT such as 127.0.0.1:6333, or off"),
            },
            Self::Origin if text == "*" => Ok(()),
            Self::Origin => match text.split_once("://") {
                Some((_, host)) if !host.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(()),
                _ => wrong("is not an origin; write it as https://example.org, or * for any"),
            },
            Self::Level => match text.parse::<tracing::level_filters::LevelFilter>() {
                Ok(_) if !text.bytes().any(|byte| byte.is_ascii_digit()) => Ok(()),
                _ => wrong("is not a level; choose error, warn, info, debug or trace"),
            },
            Self::Count => match text.parse::<usize>() {
                Ok(count) if (16..=1_000_000).contains(&count) => Ok(()),
                _ => wrong("is not a number from 16 to 1000000"),
            },
            Self::Seconds => match text.parse::<u32>() {
                Ok(seconds) if seconds <= 3600 => Ok(()),
                _ => wrong("is not a number of seconds from 0 to 3600"),
            },
        }
    }
}

/// Every option that has a value, with where it comes from.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    values: BTreeMap<&'static str, (String, Source)>,
}

impl Resolved {
    /// Asks each source in turn; `table` is the configuration file with its path.
    pub fn from_sources(
        flag: impl Fn(&str) -> Option<String>,
        variable: impl Fn(&str) -> Option<String>,
        table: Option<(&Path, &toml::Table)>,
    ) -> Result<Self> {
        if let Some((path, table)) = table {
            refuse_unknown(path, table)?;
        }
        let mut values = BTreeMap::new();
        for option in OPTIONS {
            let from_file = match table {
                Some((path, table)) => file_value(option, path, table)?,
                None => None,
            };
            // An empty variable counts as unset: that is how compose files and units leave one out.
            let from_environment = variable(&option.variable()).filter(|text| !text.is_empty());
            let found = flag(option.name)
                .map(|text| (text, Source::Flag))
                .or_else(|| from_environment.map(|text| (text, Source::Environment)))
                .or(from_file)
                .or_else(|| (!option.default.is_empty()).then(|| (option.default.to_owned(), Source::Default)));
            if let Some((text, source)) = found {
                option.value.check(&text).map_err(|error| error.at(option.place(&source)))?;
                values.insert(option.name, (text, source));
            }
        }
        Ok(Self { values })
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(text, _)| text.as_str())
    }

    /// Where a value was said, as people would name it: `--memory`, `RAMEKIN_MEMORY`, `memory in ramekin.toml`.
    pub fn place(&self, name: &str) -> Option<String> {
        let (_, source) = self.values.get(name)?;
        OPTIONS.iter().find(|option| option.name == name).map(|option| option.place(source))
    }
}

fn file_value(option: &Opt, path: &Path, table: &toml::Table) -> Result<Option<(String, Source)>> {
    let source = Source::File(path.to_owned());
    match table.get(option.name) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some((text.clone(), source))),
        Some(toml::Value::Integer(number)) => Ok(Some((number.to_string(), source))),
        Some(_) => Err(Error::malformed("a text or a whole number is wanted").at(option.place(&source))),
    }
}

fn refuse_unknown(path: &Path, table: &toml::Table) -> Result<()> {
    let known = |key: &str| OPTIONS.iter().any(|option| option.name == key && key != "config");
    match table.keys().find(|key| !known(key)) {
        None => Ok(()),
        Some(key) => {
            let names: Vec<_> = OPTIONS.iter().map(|option| option.name).filter(|name| *name != "config").collect();
            let message = format!("'{key}' is not an option; there are: {}", names.join(", "));
            Err(Error::malformed(message).at(path.display()))
        }
    }
}

/// Variables that are nearly ours, with what was most likely meant.
pub fn mistyped_variables(names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let known: Vec<String> = OPTIONS.iter().map(Opt::variable).collect();
    names
        .filter(|name| name.starts_with("RAMEKIN_") && !known.contains(name))
        .filter_map(|name| {
            let meant = known.iter().find(|known| edits(&name, known) <= 2)?.clone();
            Some((name, meant))
        })
        .collect()
}

/// Letters to insert, remove or replace to get from one name to the other (Levenshtein 1966).
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// The table as a page of documentation.
#[cfg(test)]
pub struct Markdown;

#[cfg(test)]
impl fmt::Display for Markdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |text: &str| text.replace('|', "\\|");
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", cell(text)) };
        writeln!(f, "# Options of `ramekin serve`\n\n{}", crate::cli::OPTIONS_INTRO)?;
        writeln!(f, "| flag | environment | in the file | default | |\n|---|---|---|---|---|")?;
        for option in OPTIONS {
            let (flag, variable, value) = (option.flag(), option.variable(), cell(option.value.name()));
            let key = if option.name == "config" { "" } else { option.name };
            let (key, default) = (code(key), code(option.default));
            writeln!(f, "| `{flag}` {value} | `{variable}` | {key} | {default} | {} |", cell(option.help))?;
        }
        writeln!(f, "\n## Exit codes\n\n{}", crate::exit::Markdown)?;
        writeln!(f, "# Options of the other commands\n\nEach is a flag; `ramekin COMMAND --help` says the same.")?;
        for command in COMMANDS.iter().filter(|command| !command.is_serve()) {
            let places: String = command.places.iter().map(|place| format!(" {}", place.value.name())).collect();
            writeln!(f, "\n## `ramekin {}{places}`\n\n{}.", command.words, command.about)?;
            if !command.more.is_empty() {
                writeln!(f, "\n{}", command.more)?;
            }
            writeln!(f, "\n| | default | |\n|---|---|---|")?;
            for place in command.places {
                writeln!(f, "| {} | {} | {} |", place.value.name(), code(place.default), cell(place.help))?;
            }
            for option in command.options() {
                let name = format!("`{}` {}", option.flag(), cell(option.value.name()));
                writeln!(f, "| {} | {} | {} |", name.trim_end(), code(option.default), cell(option.help))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    fn table(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    #[test]
    fn flags_win_over_environment_over_file_over_default() {
        let file = table("memory = \"64MiB\"\nhttp = \"off\"\ndrain-s = 3");
        let file = Some((Path::new("r.toml"), &file));
        let flag = |name: &str| (name == "memory").then(|| "256MiB".to_owned());
        let variable = |name: &str| (name == "RAMEKIN_MEMORY").then(|| "128MiB".to_owned());
        let all = Resolved::from_sources(flag, variable, file).unwrap();
        assert_eq!((all.get("memory"), all.place("memory").as_deref()), (Some("256MiB"), Some("--memory")));
        let two = Resolved::from_sources(none, variable, file).unwrap();
        assert_eq!((two.get("memory"), two.place("memory").as_deref()), (Some("128MiB"), Some("RAMEKIN_MEMORY")));
        let one = Resolved::from_sources(none, none, file).unwrap();
        assert_eq!(one.place("memory").as_deref(), Some("memory in r.toml"));
        assert_eq!((one.get("http"), one.get("drain-s")), (Some("off"), Some("3")));
        let zero = Resolved::from_sources(none, none, None).unwrap();
        assert_eq!((zero.get("memory"), zero.get("http")), (None, Some("127.0.0.1:6333")));
        let empty = Resolved::from_sources(none, |_| Some(String::new()), None).unwrap();
        assert_eq!(empty.get("api-key"), None);
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_place_and_without_keys() {
        for (name, text) in [
            ("memory", "lots"),
            ("http", "6333"),
            ("http", ":6333"),
            ("io", "aio"),
            ("api-key", ""),
            ("log-level", "loud"),
            ("log-level", "3"),
            ("drain-s", "-1"),
            ("connections", "15"),
            ("data", ""),
        ] {
            let flag = |asked: &str| (asked == name).then(|| text.to_owned());
            let error = Resolved::from_sources(flag, none, None).unwrap_err();
            assert!(error.message().starts_with(&format!("--{name}: ")), "{error}");
        }
        let secret = |name: &str| (name == "RAMEKIN_API_KEY").then(|| "se cret".to_owned());
        let error = Resolved::from_sources(none, secret, None).unwrap_err();
        assert!(!error.message().contains("cret"), "{error}");
    }

    #[test]
    fn names_stand_once_and_defaults_are_values() {
        for command in COMMANDS {
            let mut names = std::collections::BTreeSet::new();
            for option in command.places.iter().chain(command.options()) {
                assert!(names.insert(option.name), "{}: {} stands twice", command.words, option.name);
                if !option.default.is_empty() {
                    option.value.check(option.default).unwrap();
                }
                assert!(!option.help.is_empty() && !option.help.ends_with('.'), "{}: {}", command.words, option.name);
            }
        }
    }

    #[test]
    fn unknown_names_are_found() {
        for text in ["memroy = 1", "config = \"x\"", "[memory]\nx = 1"] {
            let file = table(text);
            let error = Resolved::from_sources(none, none, Some((Path::new("r.toml"), &file))).unwrap_err();
            assert!(error.message().contains("r.toml"), "{error}");
        }
        let names = ["RAMEKIN_MEMROY", "RAMEKIN_MEMORY", "RAMEKIN_BENCH_DIR", "PATH"].map(str::to_owned);
        let meant = ("RAMEKIN_MEMROY".to_owned(), "RAMEKIN_MEMORY".to_owned());
        assert_eq!(mistyped_variables(names.into_iter()), [meant]);
    }

    #[allow(clippy::disallowed_methods, reason = "a page of the repository, not data")]
    #[test]
    fn the_page_in_docs_is_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
        let text = Markdown.to_string();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == text,
            "docs/options.md is not the table; run UPDATE_DOCS=1 cargo test -p ramekin-server options"
        );
    }
}
