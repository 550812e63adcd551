//! `ramekin lab minram`: how much memory a server needs, and what it does with less.
//!
//! ```text
//!   prepare   vectors ──► REST ──► OUT/data (once, without a limit, until green)
//!                                     │
//!   run       for each limit, a few times: page cache dropped ─► server in a cgroup ─► each query once ─► figures
//!   find      the least limit at which it still serves, by binary search over the same run
//!                                     │
//!   report    minram.md   minram.json   minram.svg
//! ```
//!
//! The server is a command line; a peer is measured by the same steps.

mod figures;
mod options;
mod prepare;
mod report;
mod run;

pub use figures::{Figures, Outcome};
pub use options::{Find, Options, PageCache, Search, range};

use crate::dataset::Dataset;
use crate::disk_rate::DiskRate;
use crate::files;
use crate::least::least;
use crate::progress::Progress;
use ramekin_base::{Result, Size};
use report::Report;
use run::Runner;
use std::path::PathBuf;

/// What is to be printed, and where the rest is.
pub struct Printed {
    pub table: String,
    pub json: serde_json::Value,
    pub files: Vec<PathBuf>,
}

/// Does all of it.
pub fn minram(options: &Options) -> Result<Printed> {
    options.check()?;
    files::make_folder(&options.out)?;
    let out = files::whole(&options.out)?;
    let progress = Progress::new();
    let set = Dataset::open(&options.asked, options.metric, &progress)?;
    prepare::prepare(options, &out, &set, &progress)?;
    let disk = match options.disk_file {
        0 => None,
        bytes => Some(DiskRate::measure(&out, bytes, options.disk_seconds)?),
    };
    if let Some(disk) = &disk {
        progress.say(disk.text());
    }
    let runner = Runner::new(options, &out, &set, &progress);
    let mut report = Report::new(options, &set, disk);
    for memory in &options.memory {
        let outcomes: Vec<Outcome> =
            (0..options.repeats).map(|repeat| runner.run(*memory, repeat)).collect::<Result<_>>()?;
        report.add(Figures::of(*memory, options.limit(*memory), &outcomes));
    }
    if let Some(find) = &options.find {
        let mut tried = Vec::new();
        let found = least(find.low, find.high, find.step, |memory| serves(&runner, find, memory, &mut tried))?;
        progress.say(match found {
            Some(memory) => format!("serves from {}", Size(memory)),
            None => format!("does not serve at {}", Size(find.high)),
        });
        report.found(found, tried);
    }
    report.limited_by(runner.limited_by());
    report.write(&out)
}

/// One trial of a limit. A failure is confirmed by a second one: a busy machine must not move the border.
fn serves(runner: &Runner<'_>, find: &Find, memory: u64, tried: &mut Vec<(u64, bool, String)>) -> Result<bool> {
    for repeat in 0..2 {
        let outcome = runner.run(memory, repeat)?;
        let (does, why) = find.judge(&outcome);
        tried.push((memory, does, why));
        if does {
            return Ok(true);
        }
    }
    Ok(false)
}
