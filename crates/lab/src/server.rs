//! The server that is measured: any command line that speaks Qdrant's REST API, in a cgroup where that is permitted.
//!
//! ```text
//!   'CMD --data {data} --port {port} --memory {memory}'
//!        │  /bin/sh: echo $$ > …/cgroup.procs && exec CMD …       nothing of ours is charged to it
//!        ▼
//!   start ──► /readyz answers 200 ──► measured ──► SIGTERM ──► gone, its cgroup too
//! ```

use crate::cgroup::{self, Cgroup, Memory, Reads};
use crate::files;
use crate::http::{Connection, request};
use crate::pause::until;
use ramekin_base::{Clock, Error, Result, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a server may take to stop before it is killed.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How often one looks whether a server is ready: it is what a short start is measured with.
const LOOK: Duration = Duration::from_millis(10);

/// Each group has a name of its own.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// How a server is called.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The command line with `{data}`, `{port}`, `{memory}` (bytes) and `{other}`, another free port, in it.
    template: String,
    pub name: String,
    /// It is this program.
    pub is_own: bool,
}

impl Recipe {
    /// Our own server: this program.
    pub fn ramekin(program: &Path, options: &str) -> Self {
        let program = quoted(&program.display().to_string());
        let template =
            format!("{program} serve --data {{data}} --http 127.0.0.1:{{port}} --memory {{memory}} {options}");
        Self { template, name: "ramekin".to_owned(), is_own: true }
    }

    /// Our own server with etcd's door, and the door that shows its ledger.
    pub fn etcd(program: &Path) -> Self {
        let program = quoted(&program.display().to_string());
        let template = format!(
            "{program} serve --data {{data}} --http 127.0.0.1:{{other}} --etcd 127.0.0.1:{{port}} --memory {{memory}}"
        );
        Self { template, name: "ramekin".to_owned(), is_own: true }
    }

    /// Anybody else's.
    pub fn of(template: &str) -> Result<Self> {
        for needed in ["{data}", "{port}"] {
            if !template.contains(needed) {
                let text =
                    format!("'{template}' has no {needed}; {{data}} and {{port}} are needed, {{memory}} may be there");
                return Err(Error::invalid(text).at("--server"));
            }
        }
        let program = template.split_whitespace().find(|word| !word.contains('=') && *word != "env");
        let name = program.and_then(|program| program.rsplit('/').next()).unwrap_or("server").to_owned();
        Ok(Self { template: template.to_owned(), name, is_own: false })
    }

    pub fn template(&self) -> &str {
        self.template.trim()
    }

    fn line(&self, data: &Path, (port, other): (u16, u16), memory: u64) -> String {
        let data = quoted(&data.display().to_string());
        self.template
            .replace("{data}", &data)
            .replace("{port}", &port.to_string())
            .replace("{other}", &other.to_string())
            .replace("{memory}", &memory.to_string())
    }
}

/// A word for the shell that stays one.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Of a server with Qdrant's REST API.
pub const READY: &str = "/readyz";

/// How it is to run.
pub struct Start<'a> {
    pub recipe: &'a Recipe,
    pub data: &'a Path,
    /// What `{memory}` becomes.
    pub memory: u64,
    /// Limit of the cgroup; `None`: without one.
    pub limit: Option<u64>,
    pub log: &'a Path,
    /// The path that answers 200 once it is ready.
    pub ready: &'static str,
    /// How long it may take until it is ready.
    pub patience: Duration,
}

/// A server that answers.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pub port: u16,
    /// `{other}` of its command line.
    pub other: u16,
    cgroup: Option<Cgroup>,
    /// From its start until it was ready.
    pub started_s: f64,
}

impl std::fmt::Debug for Cgroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.about())
    }
}

impl Server {
    /// Starts it and waits until it is ready. An error says how it ended, with the end of its log.
    pub fn start(how: &Start<'_>) -> Result<Self> {
        let (port, other) = free_ports()?;
        let cgroup = how.limit.and_then(|limit| Cgroup::make(GROUPS.fetch_add(1, Ordering::Relaxed), limit, how.data));
        let doors = cgroup.iter().flat_map(Cgroup::doors);
        let join: String = doors.map(|door| format!("echo $$ > {} && ", quoted(&door.display().to_string()))).collect();
        let line = format!("{join}exec {}", how.recipe.line(how.data, (port, other), how.memory));
        let log = files::create(how.log)?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(line).stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        // Options of ours in the environment are meant for other servers.
        let ours =
            std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("RAMEKIN_"));
        ours.for_each(|name| _ = command.env_remove(name));
        end_with_us(&mut command);
        let clock = SystemClock::new();
        let child = command.spawn()?;
        let mut server = Self { child, port, other, cgroup, started_s: 0.0 };
        let ready = until(&clock, how.patience, LOOK, || server.look_ready(how.ready))?;
        server.started_s = clock.now().as_secs_f64();
        match ready {
            Some(None) => Ok(server),
            Some(Some(status)) => Err(server.ended(status, how.log)),
            None => Err(Error::closed(format!("not ready after {:.0} s", how.patience.as_secs_f64()))),
        }
    }

    /// `Some(None)`: ready; `Some(status)`: ended.
    fn look_ready(&mut self, path: &str) -> Result<Option<Option<ExitStatus>>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(Some(status)));
        }
        let mut connection = Connection::new(self.port, Duration::from_secs(2));
        let ready = connection.send(&request("GET", path, "")).is_ok_and(|answer| answer.status == 200);
        Ok(ready.then_some(None))
    }

    fn ended(&self, status: ExitStatus, log: &Path) -> Error {
        let text = files::read_text(log).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("and said nothing").trim();
        let why = if self.kills() > 0 {
            "killed by the kernel: the limit was reached".to_owned()
        } else {
            status.to_string()
        };
        Error::closed(format!("ended at start ({why}): {last}"))
    }

    pub fn limited(&self) -> Option<&'static str> {
        self.cgroup.as_ref().map(Cgroup::about)
    }

    /// Processes killed because the limit was reached.
    pub fn kills(&self) -> u64 {
        self.cgroup.as_ref().map_or(0, Cgroup::kills)
    }

    /// The largest charge so far; without a cgroup the largest resident set.
    pub fn peak(&self) -> Option<u64> {
        match &self.cgroup {
            Some(cgroup) => cgroup.peak(),
            None => cgroup::process_peak(self.child.id()),
        }
    }

    /// What it has read from devices so far.
    pub fn reads(&self) -> Option<Reads> {
        let group = self.cgroup.as_ref().and_then(Cgroup::reads);
        let process = cgroup::process_reads(self.child.id());
        match (group, process) {
            // A group that misses what the process is known to have read does not count here.
            (Some(group), Some(process)) if group.bytes < process.bytes / 2 => Some(process),
            (group, process) => group.or(process),
        }
    }

    /// Memory of the process, as the kernel shows it.
    pub fn memory(&self) -> Option<Memory> {
        cgroup::process_memory(self.child.id())
    }

    /// Processor seconds that it has used so far.
    pub fn cpu_s(&self) -> Option<f64> {
        cgroup::process_cpu_s(self.child.id())
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGTERM, and what it ended with; an error if it had to be killed.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.terminate();
        let clock = SystemClock::new();
        let ended = until(&clock, STOP_MAX, LOOK, || Ok(self.child.try_wait()?))?;
        ended.ok_or_else(|| Error::closed(format!("did not stop within {} s of SIGTERM", STOP_MAX.as_secs())))
    }

    fn terminate(&mut self) {
        if self.is_alive()
            && let Some(process) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = kill_process(process, Signal::TERM);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended long ago; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets the kernel end the child should we end first.
pub(crate) fn end_with_us(command: &mut Command) {
    let ask = || {
        // SAFETY: takes numbers and changes a flag of the process that is about to become the child.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec nothing but one system call is made.
    unsafe { command.pre_exec(ask) };
}

/// Two ports that nobody has: the second is for a server that listens for others of its kind too.
fn free_ports() -> Result<(u16, u16)> {
    let bound = || std::net::TcpListener::bind("127.0.0.1:0");
    let (one, other) = (bound()?, bound()?);
    Ok((one.local_addr()?.port(), other.local_addr()?.port()))
}

/// This program, whose sub-commands run beside the lab.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::from(error).at("the path of this program"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_needs_its_places() {
        let recipe = Recipe::of("env A=1 /opt/q/qdrant --x={data} --p={port}").unwrap();
        assert_eq!(recipe.name, "qdrant");
        assert_eq!(recipe.line(Path::new("/a b"), (7, 8), 9), "env A=1 /opt/q/qdrant --x='/a b' --p=7");
        for text in ["", "qdrant {port}", "qdrant {data}"] {
            assert!(Recipe::of(text).unwrap_err().message().starts_with("--server: "), "{text}");
        }
        let own = Recipe::ramekin(Path::new("/it's"), "--io pread");
        assert!(
            own.line(Path::new("/d"), (1, 8), 2).starts_with("'/it'\\''s' serve --data '/d' "),
            "{}",
            own.template()
        );
    }

    #[test]
    fn a_command_that_ends_is_told_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let recipe = Recipe::of("sh -c 'echo no room; exit 3' {data} {port}").unwrap();
        let log = folder.path().join("log");
        let how = Start {
            recipe: &recipe,
            data: folder.path(),
            memory: 1,
            limit: None,
            log: &log,
            ready: READY,
            patience: Duration::from_secs(9),
        };
        let error = Server::start(&how).unwrap_err();
        assert!(error.message().contains("no room") && error.message().contains('3'), "{error}");
        let slow = Recipe::of("sleep 30 # {data} {port}").unwrap();
        let how = Start { recipe: &slow, patience: Duration::from_millis(50), ..how };
        assert!(Server::start(&how).unwrap_err().message().contains("not ready"));
    }
}
