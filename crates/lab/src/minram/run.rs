//! One measurement: a cold start at a limit, each query once.
//!
//! ```text
//!   drop the page cache ─► start in the cgroup ─► green ─► warm-up ─► load ─► /healthz ─► stop
//!                                             reads, processor time ──┴── counted by the kernel in between
//! ```

use super::figures::{Outcome, Run};
use super::options::{Options, PageCache};
use super::prepare::{COLLECTION, numbers, wait_green};
use crate::cgroup::{Reads, process_cpu_s};
use crate::dataset::Dataset;
use crate::files;
use crate::http::{Connection, request};
use crate::load::{Load, Seen, shuffled};
use crate::progress::Progress;
use crate::server::{READY, Server, Start};
use ramekin_base::{Error, Kind, Result, Size};
use serde_json::json;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One query may take so long.
const QUERY_MAX: Duration = Duration::from_secs(60);
/// How long the empty handler is asked, and how often at most.
const EMPTY: (f64, usize) = (1.0, 200_000);

pub(super) struct Runner<'a> {
    options: &'a Options,
    out: PathBuf,
    set: &'a Dataset,
    progress: &'a Progress,
    requests: Vec<Vec<u8>>,
    limited_by: RefCell<Option<String>>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(options: &'a Options, out: &Path, set: &'a Dataset, progress: &'a Progress) -> Self {
        let requests = (0..set.count()).map(|number| query(options, set.query(number))).collect();
        Self { options, out: out.to_owned(), set, progress, requests, limited_by: RefCell::default() }
    }

    /// How the kernel limited and counted; `None`: it did not.
    pub(super) fn limited_by(&self) -> Option<String> {
        self.limited_by.borrow().clone()
    }

    /// A server that fails is an outcome, not an error; an error is a failure of ours.
    pub(super) fn run(&self, memory: u64, repeat: u64) -> Result<Outcome> {
        self.drop_page_cache()?;
        let outcome = match self.served(memory, repeat) {
            Ok(run) if run.seen.answered == 0 => Outcome::Failed(run.why()),
            Ok(run) => Outcome::Served(Box::new(run)),
            Err(error) => Outcome::Failed(error.message().to_owned()),
        };
        self.progress.say(format!("{} at {}: {}", self.options.recipe.name, Size(memory), outcome.line()));
        Ok(outcome)
    }

    fn drop_page_cache(&self) -> Result<()> {
        if self.options.page_cache == PageCache::Keep {
            return Ok(());
        }
        files::drop_from_page_cache(&self.out.join("data"))?;
        if self.options.page_cache == PageCache::All {
            // Only root may; the data files are dropped already.
            let _ = files::write_text(Path::new("/proc/sys/vm/drop_caches"), "3");
        }
        Ok(())
    }

    fn served(&self, memory: u64, repeat: u64) -> Result<Run> {
        let log = self.out.join("server.log");
        let data = self.out.join("data");
        let limit = Some(self.options.limit(memory));
        let (recipe, patience) = (&self.options.recipe, self.options.patience);
        let mut server =
            Server::start(&Start { recipe, data: &data, memory, limit, log: &log, ready: READY, patience })?;
        *self.limited_by.borrow_mut() = server.limited().map(str::to_owned);
        let mut run = Run { started_s: server.started_s, ..Run::default() };
        let measured = self.measure(&mut server, repeat, &mut run);
        run.kills = server.kills();
        run.peak = server.peak();
        let died = !server.is_alive();
        if run.kills > 0 || died {
            let why = if run.kills > 0 { "killed by the kernel: the limit was reached" } else { "the server ended" };
            return Err(Error::closed(format!("{why}, after {} queries", run.seen.answered)));
        }
        measured?;
        server.stop()?;
        Ok(run)
    }

    fn measure(&self, server: &mut Server, repeat: u64, run: &mut Run) -> Result<()> {
        let mut connection = Connection::new(server.port, QUERY_MAX);
        match wait_green(&mut connection, None, 1, self.options.patience, self.progress) {
            // It may search all the same: that is measured, and said.
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Busy) => {
                run.not_green = Some(error.message().to_owned())
            }
            looked => looked?,
        }
        drop(connection);
        let order = shuffled(self.requests.len(), repeat + 1);
        let (warm, order) = order.split_at(self.options.warm_up.min(order.len().saturating_sub(1)));
        self.load(server.port, &self.requests, warm, self.options.seconds, &[]);
        let own = || process_cpu_s(std::process::id());
        let (reads, cpu_s, load_cpu_s) = (server.reads(), server.cpu_s(), own());
        run.seen = self.load(server.port, &self.requests, order, self.options.seconds, &self.set.truth);
        run.reads = difference(reads, server.reads());
        run.cpu_s = server.cpu_s().zip(cpu_s).map(|(after, before)| after - before);
        run.load_cpu_s = own().zip(load_cpu_s).map(|(after, before)| after - before);
        let empty = vec![request("GET", "/healthz", "")];
        let seen = self.load(server.port, &empty, &vec![0; EMPTY.1], EMPTY.0, &[]);
        run.empty_rate = (seen.answered > 0).then(|| seen.rate());
        Ok(())
    }

    fn load(&self, port: u16, requests: &[Vec<u8>], order: &[u32], seconds: f64, truth: &[u32]) -> Seen {
        let connections = self.options.connections;
        Load { port, requests, order, connections, seconds, timeout: QUERY_MAX, truth, k: self.set.k }.run()
    }
}

fn query(options: &Options, vector: &[f32]) -> Vec<u8> {
    let mut body = String::from("{\"query\":[");
    numbers(vector, &mut body);
    let (params, payload) = (options.search.params(), options.search.with_payload);
    let rest = json!({"limit": crate::dataset::K, "params": params, "with_payload": payload}).to_string();
    body += "],";
    body += &rest[1..];
    request("POST", &format!("/collections/{COLLECTION}/points/query"), &body)
}

fn difference(before: Option<Reads>, after: Option<Reads>) -> Option<Reads> {
    let (before, after) = (before?, after?);
    let requests = before.requests.zip(after.requests).map(|(before, after)| after.saturating_sub(before));
    Some(Reads { requests, bytes: after.bytes.saturating_sub(before.bytes) })
}
