//! `ramekin import etcd FILE`: a data folder takes over what a database file or a snapshot of etcd has, before a server runs on it.
//!
//! ```text
//!   FILE ─► its hash, if it has one ─► Database ─► Versions::import ─► what was read
//! ```
//!
//! The folder is locked and the budget obeyed as by a server. Whenever it is stopped, all was taken over or nothing.

use crate::exit::{Exit, Failure};
use crate::options::Read;
use crate::{etcd, process};
use ramekin_base::{Clock, Error, Kind, Result, Size, SystemClock};
use ramekin_door_etcd::Database;
use ramekin_node::{Folder, Node, NodeOptions, default_budget};
use ramekin_versions::Imported;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a snapshot has behind its pages, which are whole sectors.
const HASH: usize = 32;
const SECTOR: u64 = 512;

pub fn run(arguments: &clap::ArgMatches) -> Result<(), Failure> {
    let Some(("etcd", arguments)) = arguments.subcommand() else {
        return Err(Failure::usage(Error::invalid("say what the file is of: ramekin import etcd FILE")));
    };
    let read = Read(arguments);
    let file = read.path("file").unwrap_or_default();
    let data = read.path("data").unwrap_or_default();
    let memory = read.size("memory").map_err(Failure::usage)?.unwrap_or_else(|| default_budget().0);
    if !file.is_file() {
        let message = format!("{} is no file; name a snapshot, or a database of a member", file.display());
        return Err(Failure::usage(Error::not_found(message)));
    }
    process::prepare().map_err(|error| Failure::new(Exit::Other, error))?;
    let done = import(&file, &data, memory)?;
    let Imported { revision, compacted, keys, versions, leases } = done;
    let compacted = if compacted < 0 { "never compacted".to_owned() } else { format!("compacted up to {compacted}") };
    let data = data.display();
    crate::print(&format!(
        "{keys} keys in {versions} versions up to revision {revision}, {compacted}, and {leases} leases are in {data}\n"
    ))
}

fn import(file: &Path, data: &Path, memory: u64) -> Result<Imported, Failure> {
    let folder = Folder::take(data, None).map_err(|error| Failure::of_data(error.at(data.display())))?;
    let disk = folder.disk().clone();
    let (clock, is_lost): (Arc<dyn Clock>, Arc<AtomicBool>) = (Arc::new(SystemClock::new()), Arc::default());
    let lose = is_lost.clone();
    let options = NodeOptions {
        memory,
        code_bytes: process::code_bytes(),
        other_threads: 1,
        doors: |_| 0,
        clock,
        on_fault: Box::new(move |_| lose.store(true, Ordering::Relaxed)),
    };
    let node = Node::open(folder, options).map_err(Failure::of_data)?;
    let store = etcd::open_store(&node).map_err(Failure::of_data)?;
    let account =
        node.budget().root().child("import", "windows over the file x 512 KiB + its longest value").transient();
    let database = Database::open(&disk, file, &account, Box::new(said)).map_err(of_file);
    let done = database.and_then(|mut database| {
        check_hash(&mut database, file).map_err(of_file)?;
        let check = || match is_lost.load(Ordering::Relaxed) {
            true => Err(Error::closed("the data folder went away")),
            false => Ok(()),
        };
        store.hosted.0.import(&mut database, &check).map_err(|error| of_import(error, memory))
    });
    let closed = store.hosted.0.close().map_err(Failure::of_data);
    node.close();
    done.and_then(|done| closed.map(|()| done))
}

fn said(versions: u64) {
    // Who does not look needs no progress.
    _ = crate::print(&format!("read {versions} versions\n"));
}

/// A snapshot ends with the hash of all before; a copy of a member's database has none.
fn check_hash(database: &mut Database, file: &Path) -> Result<()> {
    match ramekin_disk::tail::<HASH>(file)? {
        Some((len, hash)) if len % SECTOR == HASH as u64 => database.check_hash(len - HASH as u64, &hash),
        _ => {
            let text = format!("{} carries no hash, as a snapshot does: only its pages are checked\n", file.display());
            _ = crate::print(&text);
            Ok(())
        }
    }
}

fn of_file(error: Error) -> Failure {
    match error.kind() {
        Kind::Invalid | Kind::NotFound => Failure::usage(error),
        _ => Failure::of_data(error),
    }
}

fn of_import(error: Error, memory: u64) -> Failure {
    match error.kind() {
        Kind::Busy | Kind::NoMemory => {
            let text = format!("{error}; the budget of {} is too small for it, give more by --memory", Size(memory));
            Failure::new(Exit::Budget, Error::no_memory(text))
        }
        _ => Failure::of_data(error),
    }
}
