//! `ramekin lab …`: values to options, and printing. What is measured, and how, is the lab's own.
//!
//! ```text
//!   lab minram      what a server does at falling memory limits
//!   lab io          one search through each disk engine
//!   lab fields      whether a point has a value, in three layouts
//!   lab versions    memory of keys and versions: our door for etcd's clients, and an etcd
//!   lab slow-disk   a folder again, slower
//! ```

use crate::exit::{Exit, Failure};
use crate::options::Read;
use clap::ArgMatches;
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_lab::dataset::{DatasetRequest, metric_of};
use ramekin_lab::fields::{self, fields};
use ramekin_lab::io::{self, io};
use ramekin_lab::minram::{Find, Options, PageCache, Printed, Search, minram, range};
use ramekin_lab::server::{Recipe, own_program};
use ramekin_lab::slow_disk::SlowDisk;
use ramekin_lab::versions::{self, versions};
use std::str::FromStr;
use std::time::Duration;

pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let done = match arguments.subcommand() {
        Some(("minram", arguments)) => {
            let options = minram_options(arguments).map_err(Failure::usage)?;
            minram(&options).map(|printed| (printed, arguments.get_flag("json")))
        }
        Some(("io", arguments)) => {
            let options = io_options(arguments).map_err(Failure::usage)?;
            io(&options).map(|printed| (printed, arguments.get_flag("json")))
        }
        Some(("fields", arguments)) => {
            let options = fields_options(arguments).map_err(Failure::usage)?;
            fields(&options).map(|printed| (printed, arguments.get_flag("json")))
        }
        Some(("versions", arguments)) => {
            let options = versions_options(arguments).map_err(Failure::usage)?;
            versions(&options).map(|printed| (printed, arguments.get_flag("json")))
        }
        Some(("slow-disk", arguments)) => {
            let asked = slow_disk(arguments).map_err(Failure::usage)?;
            let said = asked.run().map_err(|error| Failure::new(exit_of(&error), error))?;
            return crate::print(&format!("{said}\n"));
        }
        _ => return Err(Failure::usage(Error::invalid("choose an experiment; see ramekin lab --help"))),
    };
    let (Printed { table, json, files }, as_json) = done.map_err(|error| Failure::new(exit_of(&error), error))?;
    if as_json {
        return crate::print(&format!("{json:#}\n"));
    }
    let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    crate::print(&format!("{table}\nwritten: {}\n", files.join(", ")))
}

pub fn exit_of(error: &Error) -> Exit {
    match error.kind() {
        Kind::Invalid | Kind::Malformed | Kind::NotFound | Kind::Exists => Exit::Usage,
        Kind::NoSpace => Exit::Full,
        Kind::Closed | Kind::Busy => Exit::Unanswered,
        _ => Exit::Other,
    }
}

fn request(read: &Read<'_>) -> Result<DatasetRequest> {
    Ok(DatasetRequest {
        base: read.path("base"),
        query: read.path("query"),
        truth: read.path("truth"),
        synthetic: read.read("synthetic", str::parse)?,
        rows: read.count("rows")?,
        queries: read.count("queries")?,
    })
}

fn minram_options(arguments: &ArgMatches) -> Result<Options> {
    let read = Read(arguments);
    let (server, more) = (read.text("server"), read.text("server-options"));
    let recipe = match &server {
        Some(template) if more.is_none() => Recipe::of(template)?,
        Some(_) => return Err(Error::invalid("--server-options are for our own server; write them into --server")),
        None => Recipe::ramekin(&own_program()?, &more.unwrap_or_default()),
    };
    let step = read.size("step")?.unwrap_or(1 << 20);
    let (rate, recall) = (read.real("min-rate")?.unwrap_or(1.0), read.real("min-recall")?.unwrap_or(0.9));
    let find = read.read("find", range)?.map(|(low, high)| Find { low, high, step, rate, recall });
    let with_payload = arguments.get_flag("with-payload");
    let rescore = read.number("rescore", "true or false")?;
    let search = Search {
        ef: read.number("ef", "a whole number")?,
        rescore,
        oversampling: read.real("oversampling")?,
        with_payload,
    };
    let page_cache = read.read("page-cache", |text| match text {
        "all" => Ok(PageCache::All),
        "files" => Ok(PageCache::Files),
        "keep" => Ok(PageCache::Keep),
        _ => Err(Error::invalid(format!("'{text}' cannot be dropped; choose all, files or keep"))),
    })?;
    let create = read.object("create")?;
    let sizes = |text: &str| text.split(',').map(|size| Size::parse(size).map(|size| size.0)).collect();
    let half = ramekin_memory::machine_memory() / 2;
    Ok(Options {
        asked: request(&read)?,
        metric: read.read("metric", metric_of)?.unwrap_or(ramekin_lab::dataset::Metric::Cosine),
        out: read.path("out").unwrap_or_default(),
        with_margin: server.is_none() || arguments.get_flag("with-margin"),
        recipe,
        memory: read.read("memory", sizes)?.unwrap_or_default(),
        find,
        search,
        connections: read.count("connections")?.unwrap_or(8),
        seconds: read.real("seconds")?.unwrap_or(30.0),
        repeats: read.number("repeats", "a whole number")?.unwrap_or(3),
        warm_up: read.count("warm-up")?.unwrap_or(0),
        page_cache: page_cache.unwrap_or(PageCache::All),
        payload_bytes: read.count("payload-bytes")?.unwrap_or(if with_payload { 128 } else { 0 }),
        create: create.unwrap_or_default(),
        batch_bytes: read.size("batch")?.unwrap_or(4 << 20) as usize,
        upload_memory: read.size("upload-memory")?.unwrap_or(half),
        patience: Duration::from_secs_f64(read.real("start-s")?.unwrap_or(120.0)),
        disk_file: read.size("disk-file")?.unwrap_or(256 << 20),
        disk_seconds: read.real("disk-seconds")?.unwrap_or(1.0),
        reuse: arguments.get_flag("reuse"),
    })
}

/// A list of whole numbers.
fn numbers<T: FromStr>(text: &str) -> Result<Vec<T>> {
    let wrong = |part: &str| Error::invalid(format!("'{part}' is not a whole number; write a list such as 1,4"));
    text.split(',').map(|part| part.trim().parse().map_err(|_| wrong(part))).collect()
}

fn fields_options(arguments: &ArgMatches) -> Result<fields::Options> {
    let read = Read(arguments);
    Ok(fields::Options {
        points: read.count("points")?.unwrap_or(40_000_000),
        checks: read.count("checks")?.unwrap_or(100_000),
        distinct: read.read("distinct", numbers)?.unwrap_or_default(),
        rounds: read.count("rounds")?.unwrap_or(11),
        out: read.path("out").unwrap_or_default(),
    })
}

fn io_options(arguments: &ArgMatches) -> Result<io::Options> {
    let read = Read(arguments);
    let slow = read.real("slow-ms")?.unwrap_or(1.0);
    Ok(io::Options {
        asked: request(&read)?,
        metric: read.read("metric", metric_of)?.unwrap_or(ramekin_lab::dataset::Metric::Cosine),
        out: read.path("out").unwrap_or_default(),
        engines: read.read("engines", |text| text.split(',').map(str::parse).collect())?.unwrap_or_default(),
        oversampling: read.read("oversampling", numbers)?.unwrap_or_default(),
        parallel: read.read("parallel", numbers)?.unwrap_or_default(),
        rounds: read.count("rounds")?.unwrap_or(5),
        ef: read.count("ef")?.unwrap_or(64),
        cache: read.size("cache")?.unwrap_or(1 << 20),
        build_memory: read.size("build-memory")?.unwrap_or(256 << 20),
        slow: (slow > 0.0).then(|| Duration::from_secs_f64(slow / 1e3)),
        disk_file: read.size("disk-file")?.unwrap_or(256 << 20),
        disk_seconds: read.real("disk-seconds")?.unwrap_or(1.0),
    })
}

fn versions_options(arguments: &ArgMatches) -> Result<versions::Options> {
    let read = Read(arguments);
    let mut recipes = vec![Recipe::etcd(&own_program()?)];
    recipes.extend(read.text("server").as_deref().map(Recipe::of).transpose()?);
    Ok(versions::Options {
        recipes,
        keys: read.read("keys", numbers)?.unwrap_or_default(),
        versions: read.read("versions", numbers)?.unwrap_or_default(),
        key_bytes: read.count("key-bytes")?.unwrap_or(64),
        value_bytes: read.count("value-bytes")?.unwrap_or(256),
        memory: read.size("memory")?.unwrap_or(64 << 20),
        batch: read.number("batch", "a whole number")?.unwrap_or(100),
        connections: read.count("connections")?.unwrap_or(4),
        watchers: read.number("watchers", "a whole number")?.unwrap_or(5000),
        least: crate::plan::least_with_versions(),
        watch_bytes: ramekin_door_etcd::watch_bytes,
        settle: Duration::from_secs_f64(read.real("settle-s")?.unwrap_or(3.0)),
        patience: Duration::from_secs_f64(read.real("start-s")?.unwrap_or(120.0)),
        out: read.path("out").unwrap_or_default(),
    })
}

fn slow_disk(arguments: &ArgMatches) -> Result<SlowDisk> {
    let read = Read(arguments);
    Ok(SlowDisk {
        source: read.path("source").unwrap_or_default(),
        mountpoint: read.path("mountpoint").unwrap_or_default(),
        delay: Duration::from_secs_f64(read.real("delay-ms")?.unwrap_or(1.0) / 1e3),
        parallel: read.count("parallel")?.unwrap_or(256),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(flags: &[&str]) -> Result<Options> {
        let line = ["ramekin", "lab", "minram"].iter().chain(flags);
        let matches = crate::cli::command().try_get_matches_from(line);
        let matches = matches.map_err(|error| Error::invalid(error.to_string()))?;
        let lab = matches.subcommand_matches("lab").unwrap();
        minram_options(lab.subcommand_matches("minram").unwrap())
    }

    #[test]
    fn flags_become_options() {
        let own = options(&["--synthetic", "9,9,9", "--memory", "24MiB,1GiB", "--find", "16MiB,64MiB"]).unwrap();
        assert_eq!(own.memory, [24 << 20, 1 << 30]);
        assert_eq!(own.limit(24 << 20), 32 << 20);
        assert!(own.check().is_ok() && own.find.is_some());
        let other = options(&["--server", "q {data} {port}", "--memory", "1GiB", "--rescore", "false"]).unwrap();
        assert_eq!((other.limit(1 << 30), other.search.rescore), (1 << 30, Some(false)));
        assert!(options(&[]).unwrap().check().is_err());
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_flag() {
        for (flag, value) in [
            ("--memory", "lots"),
            ("--find", "16MiB"),
            ("--synthetic", "9"),
            ("--metric", "cos"),
            ("--rescore", "maybe"),
            ("--seconds", "-1"),
            ("--min-rate", "nan"),
            ("--create", "[1]"),
            ("--page-cache", "some"),
            ("--server", "qdrant"),
            ("--connections", "two"),
        ] {
            let error = options(&[&format!("{flag}={value}")]).unwrap_err();
            assert!(error.message().starts_with(flag), "{error}");
        }
    }
}
