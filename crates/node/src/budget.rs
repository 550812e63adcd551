//! Which budget holds: the configured one, or the one that `PUT /memory` kept.
//!
//! ```text
//!   configured  --memory, or 80 % of the cgroup's limit, or half of the machine
//!        │
//!        ▼
//!   budget.json  {"budget_bytes": n, "configured_bytes": m}     one block, written aside and renamed
//!        holds as long as the configured budget is still m; whoever changes the configuration wins
//! ```

use ramekin_base::limits::BUDGET_MIN;
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_disk::{Aligned, Disk, Open, ReadOp, Sync};
use ramekin_memory::{Account, cgroup_limit, machine_memory};
use serde::{Deserialize, Serialize};
use std::path::Path;

const FILE: &str = "budget.json";
const FILE_ASIDE: &str = "budget.json.new";
/// The file is one page: a JSON object, then blanks.
const FILE_BYTES: usize = ramekin_base::limits::PAGE;

/// What `budget.json` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedBudget {
    pub(crate) budget_bytes: u64,
    /// What was configured when it was written.
    pub(crate) configured_bytes: u64,
}

/// The budget where none is configured, and in words where it comes from.
pub fn default_budget() -> (u64, String) {
    match cgroup_limit() {
        Some(limit) => (limit / 5 * 4, format!("80 % of the cgroup's {}", Size(limit))),
        None => {
            let machine = machine_memory();
            (machine / 2, format!("half of the machine's {}", Size(machine)))
        }
    }
}

/// What a cgroup must allow above the budget, so that the kernel never has to choose a victim.
pub fn budget_margin(budget: u64) -> u64 {
    (8 << 20).max(budget / 16)
}

/// Refuses a budget that cannot be kept: below `least`, or above what the kernel allows.
pub(crate) fn check(budget: u64, least: u64) -> Result<()> {
    if budget < least {
        return Err(Error::invalid(format!(
            "a budget of {} is too small: {} is the least that this server and its data can run with",
            Size(budget),
            Size(least)
        )));
    }
    let (most, whose) = match cgroup_limit() {
        Some(limit) => (limit, "the memory cgroup allows"),
        None => (machine_memory(), "the machine has"),
    };
    if budget > most {
        return Err(Error::invalid(format!(
            "a budget of {} is too large: {whose} {} ({budget} > {most} bytes)",
            Size(budget),
            Size(most)
        )));
    }
    Ok(())
}

/// A warning if the cgroup leaves less room above the budget than the stated margin.
pub(crate) fn margin_warning(budget: u64) -> Option<String> {
    let limit = cgroup_limit()?;
    let needed = budget + budget_margin(budget);
    (limit < needed).then(|| {
        format!(
            "the memory cgroup allows {} but a budget of {} wants {} there; the kernel may end this process",
            Size(limit),
            Size(budget),
            Size(needed)
        )
    })
}

/// What the smallest server needs beside its base: all that is taken for good, and some room for new points.
pub(crate) const LEAST_BESIDE_BASE: u64 = 13 << 20;

/// Smallest budget whatever the data.
pub fn least_of_all(base: u64) -> u64 {
    BUDGET_MIN.max(base + LEAST_BESIDE_BASE)
}

/// The saved budget; `None` if there is none. An unreadable file is an error that the caller may pass over.
pub(crate) fn read(disk: &dyn Disk, data: &Path, account: &Account) -> Result<Option<SavedBudget>> {
    let path = data.join(FILE);
    let file = match disk.open(&path, Open::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut page = Aligned::new(account, FILE_BYTES)?;
    disk.read(&mut [ReadOp { file: &file, at: 0, buf: &mut page }])?;
    decode(&page).map(Some).map_err(|error| error.at(path.display()))
}

/// Reads the page of `budget.json`.
pub(crate) fn decode(page: &[u8]) -> Result<SavedBudget> {
    serde_json::from_slice(page).map_err(|error| Error::corrupt(format!("not a kept budget: {error}")))
}

/// Keeps a budget over restarts: written aside, synced, renamed, the folder synced.
pub(crate) fn write(disk: &dyn Disk, data: &Path, account: &Account, kept: SavedBudget) -> Result<()> {
    let (path, aside) = (data.join(FILE), data.join(FILE_ASIDE));
    let text = serde_json::to_vec(&kept).map_err(|error| Error::bug(error.to_string()))?;
    let mut page = Aligned::new(account, FILE_BYTES)?;
    page.fill(b' ');
    page[..text.len()].copy_from_slice(&text);
    page[FILE_BYTES - 1] = b'\n';
    match disk.rename(&aside, None) {
        Err(error) if error.kind() != Kind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&aside, Open::Create)?;
    disk.write(&file, 0, &page)?;
    disk.sync(Sync::File(&file))?;
    disk.rename(&aside, Some(&path))?;
    disk.sync(Sync::Folder(data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_disk::sim::{Faults, SimDisk};
    use ramekin_memory::Budget;

    #[test]
    fn a_kept_budget_comes_back_and_damage_is_named() {
        let disk = SimDisk::new(1, Faults::default());
        let account = Budget::new(1 << 20).root();
        let data = Path::new("/data");
        disk.make_folder(data).unwrap();
        assert_eq!(read(&disk, data, &account).unwrap(), None);
        for budget_bytes in [64 << 20, 32 << 20] {
            let kept = SavedBudget { budget_bytes, configured_bytes: 128 << 20 };
            write(&disk, data, &account, kept).unwrap();
            assert_eq!(read(&disk, data, &account).unwrap(), Some(kept));
        }
        for wrong in ["", "{}", "{\"budget_bytes\": -1}", "\0\0", "{\"budget_bytes\":1,\"configured_bytes\":1}x"] {
            assert_eq!(decode(wrong.as_bytes()).unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn a_budget_outside_is_refused_with_both_numbers() {
        let error = check(10 << 20, 20 << 20).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.message().contains("10.0 MiB") && error.message().contains("20.0 MiB"));
        assert_eq!(check(1 << 59, 20 << 20).unwrap_err().kind(), Kind::Invalid);
        assert!(check(20 << 20, 20 << 20).is_ok());
    }
}
