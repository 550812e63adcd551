//! Options as the server uses them, and the small files that people write for it.
//!
//! Besides the disk crate this is the only place that reads a file: the configuration, certificates and
//! keys. They are read once at the start, are bounded, and hold no data.

use crate::etcd::Member;
use crate::options::{Resolved, mistyped_variables};
use ramekin_base::{Error, Result, Size};
use ramekin_disk::Engine;
use ramekin_node::default_budget;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// Largest file that people write for us, bytes.
const FILE_MAX: u64 = 1 << 20;

/// What `ramekin serve` runs with.
pub struct Settings {
    pub data: PathBuf,
    pub memory: u64,
    /// Where the budget comes from, in words.
    pub memory_from: String,
    /// `None`: the door is off.
    pub http: Option<String>,
    pub etcd: Option<Member>,
    pub io: Option<Engine>,
    pub api_key: Option<String>,
    pub read_only_api_key: Option<String>,
    /// Certificate chain and private key.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub cors: Option<String>,
    /// Connections at a time; `None`: what is usual under the budget.
    pub connections: Option<usize>,
    pub log_level: LevelFilter,
    pub drain: Duration,
    /// Said at the start, once the log is there.
    pub warnings: Vec<String>,
}

impl Settings {
    /// From flags, the environment and the file that one of them names.
    pub fn load(flags: &clap::ArgMatches) -> Result<Self> {
        let flag = |name: &str| flags.get_one::<String>(name).cloned();
        let variable = |name: &str| std::env::var(name).ok();
        let config = flag("config").or_else(|| variable("RAMEKIN_CONFIG").filter(|path| !path.is_empty()));
        let file = match config {
            Some(path) => Some((PathBuf::from(&path), read_table(Path::new(&path))?)),
            None => None,
        };
        let table = file.as_ref().map(|(path, table)| (path.as_path(), table));
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let warnings = mistyped_variables(names)
            .into_iter()
            .map(|(name, meant)| format!("{name} is set but is no option; {meant} is one"))
            .collect();
        Self::typed(&Resolved::from_sources(flag, variable, table)?, warnings)
    }

    /// Of a process called `etcd`: what is not etcd's stands in the environment. No other door is open where it names none.
    pub fn of_etcd(member: Member) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let http = variable("RAMEKIN_HTTP").filter(|address| !address.is_empty());
        let flag = |name: &str| (name == "http").then(|| http.clone().unwrap_or_else(|| "off".to_owned()));
        let settings = Self::typed(&Resolved::from_sources(flag, variable, None)?, Vec::new())?;
        Ok(Self { data: member.data.clone(), log_level: member.log_level, etcd: Some(member), ..settings })
    }

    fn typed(all: &Resolved, warnings: Vec<String>) -> Result<Self> {
        let text = |name: &str| all.get(name).map(str::to_owned);
        let place = |name: &str| all.place(name).unwrap_or_default();
        let (memory, memory_from) = match all.get("memory") {
            Some(size) => (Size::parse(size)?.0, place("memory")),
            None => default_budget(),
        };
        let tls = match (text("tls-cert"), text("tls-key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err(Error::invalid("--tls-cert and --tls-key belong together; give both or none")),
        };
        let address = text("etcd").filter(|address| address != "off");
        let etcd = address.map(|address| Member::beside(&address, tls.as_ref())).transpose()?;
        let level = all.get("log-level").and_then(|level| level.parse().ok());
        Ok(Self {
            data: text("data").unwrap_or_default().into(),
            memory,
            memory_from,
            http: text("http").filter(|address| address != "off"),
            etcd,
            io: all.get("io").map(str::parse).transpose()?,
            api_key: text("api-key"),
            read_only_api_key: text("read-only-api-key"),
            tls,
            cors: text("cors"),
            connections: all.get("connections").and_then(|text| text.parse().ok()),
            log_level: level.unwrap_or(LevelFilter::INFO),
            drain: Duration::from_secs(all.get("drain-s").and_then(|text| text.parse().ok()).unwrap_or(10)),
            warnings,
        })
    }
}

fn read_table(path: &Path) -> Result<toml::Table> {
    let text = String::from_utf8(read_file(path)?)
        .map_err(|_| Error::malformed("the file is not UTF-8 text").at(path.display()))?;
    text.parse().map_err(|error: toml::de::Error| Error::malformed(error.to_string()).at(path.display()))
}

/// A small file, whole.
#[allow(clippy::disallowed_methods, reason = "settings are no data: they are read once, before the disk is there")]
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let named = |error: std::io::Error| Error::from(error).at(path.display());
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(named)?.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(named)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Error::too_large(format!("larger than {}", Size(FILE_MAX))).at(path.display()));
    }
    Ok(bytes)
}
