//! `ramekin check DIR`: verifies a data folder that no server is using; `--repair` cuts a damaged log.
//!
//! It locks the folder as a server does, so the two never look at the same files at one time.

use crate::exit::{Exit, Failure};
use ramekin_base::{Error, Kind};
use ramekin_memory::Budget;
use ramekin_node::Folder;
use ramekin_pages::Pages;
use std::path::Path;

/// What a check may use: buffers and the tables of one file at a time.
const MEMORY: u64 = 256 << 20;
/// Addresses for the files.
const VIRTUAL_BYTES: u64 = 1 << 40;

pub fn run(arguments: &clap::ArgMatches) -> Result<(), Failure> {
    let data = Path::new(arguments.get_one::<String>("data").map_or("", String::as_str));
    let repair = arguments.get_flag("repair");
    // Taking a folder would make it; a check of a folder that is not there is a typing error.
    if !data.is_dir() {
        let message = format!("{} is no folder; name the one that the server had as --data", data.display());
        return Err(Failure::new(Exit::Folder, Error::not_found(message)));
    }
    let folder = Folder::take(data, None).map_err(Failure::of_data)?;
    let budget = Budget::new(MEMORY);
    let account = budget.root().child("check", "buffers");
    let pages =
        Pages::new(folder.disk().clone(), budget.root().child("pages", "pages x 4 KiB"), &budget, VIRTUAL_BYTES)
            .map_err(Failure::of_data)?;
    let vectors = ramekin_node::vectors_folder(&**folder.disk(), data).map_err(Failure::of_data)?;
    let check = |store: &Path| ramekin_storage::check(folder.disk(), store, &pages, &account, repair);
    let mut report = check(&vectors).map_err(Failure::of_data)?;
    // A store that was never opened has no folder.
    let versions = data.join(crate::etcd::STORE);
    if versions.is_dir() {
        report.add_store(crate::etcd::STORE, check(&versions).map_err(Failure::of_data)?);
    }
    if arguments.get_flag("json") {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::new(Exit::Other, Error::bug(error.to_string())))?;
        crate::print(&(json + "\n"))?;
    } else {
        crate::print(&format!("{report}\n"))?;
    }
    if report.is_sound() {
        return Ok(());
    }
    let next = if repair {
        "restore the damaged files from a copy"
    } else {
        "a damaged log can be cut with --repair; other files come back from a copy only"
    };
    let error = Error::new(Kind::Corrupt, format!("{} is damaged; {next}", data.display()));
    Err(Failure::new(Exit::Corrupt, error))
}
