//! Floor 9: the `ramekin` binary. Flags, wiring, signals, sub-commands; no logic of its own.
//!
//! ```text
//!   main ── cli ──┬─ serve    options ─► settings ─► node + door ─► signals ─► exit code
//!                 ├─ memory   client ─► the ledger as a table
//!                 ├─ limits   the table of limits
//!                 ├─ check    a data folder, offline
//!                 ├─ import   what another server has
//!                 ├─ plan     memory and speed of collections to be
//!                 ├─ lab      measurements of servers and disks
//!                 └─ version
//!        └─ called `etcd`: its flags ─► serve, with that door alone
//! ```

mod check;
mod cli;
mod client;
mod door;
mod etcd;
mod exit;
mod import;
mod lab;
mod limits;
mod memory;
mod options;
mod plan;
mod process;
mod serve;
mod settings;
mod tls;
mod usage;

use exit::{Exit, Failure};
use ramekin_base::Error;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// The API that the REST door speaks.
pub const API_VERSION: &str = "1.19.0";
/// Our own version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called = arguments.next().unwrap_or_default();
    if called.rsplit('/').next() == Some(etcd::NAME) {
        return end(etcd::NAME, etcd::run(&arguments.collect::<Vec<_>>()));
    }
    let matches = cli::command().get_matches();
    let Some((name, arguments)) = matches.subcommand() else { return ExitCode::from(Exit::Usage as u8) };
    let done = match name {
        "serve" => serve::run(arguments),
        "memory" => memory::run(arguments),
        "limits" => limits::run(arguments),
        "check" => check::run(arguments),
        "import" => import::run(arguments),
        "plan" => plan::run(arguments),
        "lab" => lab::run(arguments),
        "version" => version(arguments),
        // The command line knows no other.
        other => Err(Failure::usage(Error::bug(format!("ramekin {other} leads nowhere")))),
    };
    end("ramekin", done)
}

/// Says what went wrong, if anything did.
fn end(name: &str, done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::from(Exit::Done as u8),
        Err(Failure { exit, error }) => {
            // Standard error may be closed; there is nobody left to tell then.
            let _ = writeln!(std::io::stderr(), "{name}: {error}");
            ExitCode::from(exit as u8)
        }
    }
}

fn version(arguments: &clap::ArgMatches) -> Result<(), Failure> {
    if arguments.get_flag("json") {
        return print(&format!("{}\n", json!({"ramekin": VERSION, "api": API_VERSION})));
    }
    print(&format!("ramekin {VERSION} (speaks Qdrant's REST API {API_VERSION})\n"))
}

/// Prints to standard output. A reader that left early (`ramekin limits | head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(Exit::Other, error.into())),
        _ => Ok(()),
    }
}
