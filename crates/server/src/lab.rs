//! `ramekin lab …`: flags to options, and printing. What is measured, and how, is the lab's own.
//!
//! ```text
//!   lab minram      what a server does at falling memory limits
//!   lab io          one search through each disk engine
//!   lab fields      whether a point has a value, in three layouts
//!   lab slow-disk   a folder again, slower
//! ```

use crate::exit::{Exit, Failure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_lab::dataset::{Asked, metric_of};
use ramekin_lab::fields::{self, fields};
use ramekin_lab::io::{self, io};
use ramekin_lab::minram::{Find, Options, PageCache, Printed, Search, minram, range};
use ramekin_lab::server::{Recipe, own_program};
use ramekin_lab::slow_disk::SlowDisk;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A flag with a value: its name, what stands for the value, its default (empty: none), and what it means.
pub type Flag = (&'static str, &'static str, &'static str, &'static str);

/// Where vectors come from, alike in all experiments.
const VECTORS: &[Flag] = &[
    (
        "base",
        "FILE",
        "",
        "Vectors to search in: .npy ('<f4'), .fvecs or .fbin; bench/hdf5_to_npy.py converts ann-benchmarks' .hdf5",
    ),
    ("query", "FILE", "", "Held-out queries, of the same kinds"),
    (
        "truth",
        "FILE",
        "",
        "The exact neighbours of each query: .npy ('<i4'), .ivecs or .ibin; without it they are computed, on all cores",
    ),
    ("synthetic", "N,DIM,SEED", "", "Draw vectors and queries in place of --base and --query"),
    ("metric", "NAME", "cosine", "cosine, dot, euclid or manhattan"),
    ("rows", "N", "", "Only the first N vectors"),
    ("queries", "N", "", "Only the first N queries [default: 10000, of synthetic ones 1000]"),
];

const MINRAM: &[Flag] = &[
    (
        "memory",
        "SIZE,SIZE,...",
        "",
        "Memory at which to measure: ours gets it as --memory, another server as its limit",
    ),
    ("find", "LOW,HIGH", "", "Also find the least memory that serves, by binary search between these two"),
    ("step", "SIZE", "1MiB", "How exactly --find finds it"),
    ("min-rate", "N", "1", "Requests a second that count as serving"),
    ("min-recall", "R", "0.9", "Recall@10 that counts as serving"),
    (
        "server",
        "CMD",
        "",
        "Another server that speaks Qdrant's REST API; {data}, {port} and {memory} (bytes) are filled in",
    ),
    ("server-options", "TEXT", "", "More options for our own server, such as '--io pread'"),
    (
        "create",
        "JSON",
        "{}",
        "More of the request that makes the collection, such as '{\"hnsw_config\":{\"on_disk\":true}}'",
    ),
    ("ef", "N", "", "params.hnsw_ef of each query"),
    ("rescore", "true|false", "", "params.quantization.rescore of each query"),
    ("oversampling", "X", "", "params.quantization.oversampling of each query"),
    ("payload-bytes", "N", "", "Payload of each point [default: 0, with --with-payload 128]"),
    ("connections", "N", "8", "Connections that ask at the same time"),
    ("seconds", "S", "30", "A run ends after S seconds even if queries are left"),
    ("repeats", "N", "3", "Runs at each limit, each from a cold start"),
    ("warm-up", "N", "0", "Queries that are asked before and not counted"),
    (
        "page-cache",
        "WHAT",
        "all",
        "What is dropped before each run: all (where root may; it slows down whatever else runs on the machine), files (the data files only) or keep",
    ),
    ("batch", "SIZE", "4MiB", "Bytes of one upload request, about"),
    (
        "upload-memory",
        "SIZE",
        "",
        "Memory for the server while it is filled, without a limit [default: half of the machine's]",
    ),
    ("start-s", "S", "120", "Seconds that a server may take to be ready and green"),
    ("disk-file", "SIZE", "256MiB", "File on which the disk's own rate is measured; 0 leaves that out"),
    ("disk-seconds", "S", "1", "Seconds at each depth of it"),
    ("out", "DIR", "ramekin-lab", "Where data and results go: DIR/data, DIR/minram.md, .json and .svg"),
];

const MINRAM_ABOUT: &str = "\
Fills a server once through REST, then serves the same folder at each memory limit, from a cold page cache, in a
memory cgroup (version 1 or 2). Reports requests/s, recall@10, p50, p99, the kernel's count of reads a query, the peak
of the charge, each as median (least to most); beside them the rate of an empty handler and the disk's own rate.
Where no cgroup may be made it says so and reports the resident set.

Our own server is called with --memory B and limited to B + max(8 MiB, B/16), the limit that it promises to fit; a row
for a limit of 135 MiB is --memory 127MiB. Another server is limited to the size itself.";

const MINRAM_EXAMPLES: &str = "\
Examples:
  ramekin lab minram --synthetic 100000,100,1 --memory 24MiB,56MiB,127MiB
  ramekin lab minram --base lsa_base.npy --query lsa_query.npy --truth lsa_truth.npy \\
      --memory 24MiB,56MiB,127MiB --find 16MiB,127MiB --min-rate 100 --min-recall 0.95
  ramekin lab minram --base lsa_base.npy --query lsa_query.npy --memory 135MiB,256MiB,1GiB --ef 64 --out qdrant-lab \\
      --server 'env QDRANT__STORAGE__STORAGE_PATH={data} QDRANT__SERVICE__HTTP_PORT={port} qdrant'
";

const IO: &[Flag] = &[
    ("engines", "LIST", "uring,pread,mmap", "Engines to compare"),
    ("oversampling", "LIST", "1,4", "How many times the wanted 10 candidates are scored by their originals"),
    ("parallel", "LIST", "4,8", "Threads that search at the same time"),
    ("rounds", "N", "5", "Times that each cell is measured, all cells in turn"),
    ("ef", "N", "64", "Accuracy of the search, as a client's hnsw_ef"),
    ("cache", "SIZE", "1MiB", "Our own page cache for originals: small, so that the disk is what is measured"),
    ("build-memory", "SIZE", "256MiB", "Working memory of the index build"),
    ("slow-ms", "MS", "1", "Delay of the slow disk; 0 leaves it out"),
    ("disk-file", "SIZE", "256MiB", "File on which the disk's own rate is measured; 0 leaves that out"),
    ("disk-seconds", "S", "1", "Seconds at each depth of it"),
    ("out", "DIR", "ramekin-lab", "Where the index and the results go: DIR/io, DIR/io.md and .json"),
];

const IO_ABOUT: &str = "\
Builds an index once, keeps its codes in memory and its originals on disk, and runs the same search with rescoring
through each I/O engine: seconds, IOPS, CPU seconds, as median (least to most) of interleaved rounds. On the local disk,
and on a slow one that delays the page faults of a mapping just as it does reads: a FUSE file system over the same file,
if /dev/fuse can be used; else it says why not.";

const FIELDS: &[Flag] = &[
    ("points", "N", "40000000", "Points of the field; up to 50 bytes each are needed"),
    ("checks", "N", "100000", "Points that are checked in a round"),
    ("distinct", "LIST", "3,1000", "Different values that the field has"),
    ("rounds", "N", "11", "Times that each is measured"),
    ("out", "DIR", "ramekin-lab", "Where the results go: DIR/fields.md and .json"),
];

const FIELDS_ABOUT: &str = "\
Keeps one field of many points in three layouts in turn: a range into a container of values for each point, an enum with
the value inline, and the bit-packed column that our indexes use. Asks of points at random, and of blocks of 64 in a row,
whether they have one of the field's values; reports milliseconds, as median (least to most), and bytes a point.";

const SLOW_DISK_ABOUT: &str = "\
Shows the files of SOURCE at MOUNTPOINT, read only, each read answered a fixed time after it was asked, many at the same
time. Ends, and unmounts, on SIGINT, SIGTERM or umount. Needs /dev/fuse and the right to mount.";

pub fn arguments(flags: &'static [Flag]) -> impl Iterator<Item = Arg> {
    flags.iter().map(|(name, value, default, help)| {
        let arg = Arg::new(*name).long(*name).value_name(*value).help(*help);
        if default.is_empty() { arg } else { arg.default_value(*default) }
    })
}

pub fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub fn command() -> Command {
    let json = || switch("json", "Print JSON instead of a table");
    Command::new("lab")
        .about("Measure servers and disks as the published tables do")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("minram")
                .about("Measure what a server does at falling memory limits, and find the least that serves")
                .long_about(MINRAM_ABOUT)
                .after_help(MINRAM_EXAMPLES)
                .args_override_self(true)
                .args(arguments(VECTORS))
                .args(arguments(MINRAM))
                .arg(switch("with-payload", "Ask for payloads too"))
                .arg(switch("with-margin", "Limit --server to B + max(8 MiB, B/16) as well: for another build of ours"))
                .arg(switch("reuse", "Take DIR/data as an earlier run of the same upload left it"))
                .arg(json()),
        )
        .subcommand(
            Command::new("io")
                .about("Compare io_uring, pread and mmap for a search that rescores from disk")
                .long_about(IO_ABOUT)
                .args_override_self(true)
                .args(arguments(VECTORS))
                .args(arguments(IO))
                .arg(json()),
        )
        .subcommand(
            Command::new("fields")
                .about("Compare layouts of a payload field: is a value among those of a point?")
                .long_about(FIELDS_ABOUT)
                .args_override_self(true)
                .args(arguments(FIELDS))
                .arg(json()),
        )
        .subcommand(
            Command::new("slow-disk")
                .about("Mount a folder again, read only and slower")
                .long_about(SLOW_DISK_ABOUT)
                .arg(
                    Arg::new("delay-ms")
                        .long("delay-ms")
                        .value_name("MS")
                        .default_value("1")
                        .help("Delay of each read"),
                )
                .arg(
                    Arg::new("parallel")
                        .long("parallel")
                        .value_name("N")
                        .default_value("256")
                        .help("Reads that wait at the same time; more wait for those"),
                )
                .arg(Arg::new("source").value_name("SOURCE").required(true).help("The folder with the files"))
                .arg(Arg::new("mountpoint").value_name("MOUNTPOINT").required(true).help("An existing folder")),
        )
}

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

/// A flag's value, read as what it is to be; an error names the flag.
pub struct Read<'a>(pub &'a ArgMatches);

impl Read<'_> {
    pub fn text(&self, name: &str) -> Option<String> {
        self.0.get_one::<String>(name).cloned()
    }

    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub fn read<T>(&self, name: &str, read: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
        self.text(name).map(|text| read(&text).map_err(|error| error.at(format!("--{name}")))).transpose()
    }

    pub fn number<T: FromStr>(&self, name: &str, what: &str) -> Result<Option<T>> {
        let wrong = |text: &str| Error::invalid(format!("'{text}' is not {what}"));
        self.read(name, |text| text.parse().map_err(|_| wrong(text)))
    }

    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        self.number(name, "a whole number")
    }

    /// Above or equal to 0, and finite.
    pub fn real(&self, name: &str) -> Result<Option<f64>> {
        let number = self.number::<f64>(name, "a number")?;
        match number {
            Some(number) if !(0.0..=1e9).contains(&number) => {
                Err(Error::invalid(format!("--{name}: {number} is not from 0 to 10^9")))
            }
            number => Ok(number),
        }
    }

    pub fn size(&self, name: &str) -> Result<Option<u64>> {
        self.read(name, |text| Size::parse(text).map(|size| size.0))
    }

    pub fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        self.read(name, |text| match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err(Error::invalid(format!("'{text}' is no JSON object"))),
        })
    }

    fn asked(&self) -> Result<Asked> {
        Ok(Asked {
            base: self.path("base"),
            query: self.path("query"),
            truth: self.path("truth"),
            synthetic: self.read("synthetic", str::parse)?,
            rows: self.count("rows")?,
            queries: self.count("queries")?,
        })
    }
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
        asked: read.asked()?,
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
        asked: read.asked()?,
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
        let line = ["lab", "minram"].iter().chain(flags);
        let matches = command().try_get_matches_from(line).map_err(|error| Error::invalid(error.to_string()))?;
        minram_options(matches.subcommand_matches("minram").unwrap())
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
