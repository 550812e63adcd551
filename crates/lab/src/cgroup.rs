//! A memory cgroup of its own for one server, version 1 or 2, and what the kernel counts in it.
//!
//! ```text
//!   version 1   memory/…/ramekin-lab-N  limit, peak, kills      blkio/…/ramekin-lab-N  reads
//!   version 2   …/ramekin-lab-N         memory.max, memory.peak, memory.events, io.stat
//! ```
//!
//! [`Cgroup::make`] answers `None` where groups may not be made (most containers). Swap is switched off in the group:
//! memory that went there would not be counted.

use crate::files;
use crate::pause::pause;
use ramekin_base::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ROOT: &str = "/sys/fs/cgroup";
/// Reads a second that no disk does.
const IOPS_NEVER: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A group, removed on drop.
pub struct Cgroup {
    version: Version,
    memory: PathBuf,
    /// Where reads are counted; of version 2 the same folder.
    io: Option<PathBuf>,
}

/// Reads that the kernel counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reads {
    /// Requests to the device; not everybody counts them.
    pub requests: Option<u64>,
    pub bytes: u64,
}

impl Cgroup {
    /// A new group with this limit, which counts reads of the disk under `data`.
    pub fn make(number: u32, limit: u64, data: &Path) -> Option<Self> {
        let own = files::read_text(Path::new("/proc/self/cgroup")).ok()?;
        let name = format!("ramekin-lab-{}-{number}", std::process::id());
        for (version, parent) in parents(&own, "memory") {
            let folder = parent.join(&name);
            if prepare(version, &parent, &folder, limit).is_err() {
                let _ = files::remove_one_folder(&folder);
                continue;
            }
            let io = match version {
                Version::Two => folder.join("io.stat").exists().then(|| folder.clone()),
                Version::One => parents(&own, "blkio").into_iter().find_map(|(version, parent)| {
                    let folder = parent.join(&name);
                    (version == Version::One && files::make_one_folder(&folder).is_ok()).then_some(folder)
                }),
            };
            if let (Version::One, Some(io), Some(device)) = (version, &io, files::device(data)) {
                // Version 1 counts only where there is a limit; this one is beyond any disk.
                let _ =
                    files::write_text(&io.join("blkio.throttle.read_iops_device"), &format!("{device} {IOPS_NEVER}"));
            }
            return Some(Self { version, memory: folder, io });
        }
        None
    }

    /// Files that a process writes its number into to join.
    pub fn doors(&self) -> Vec<PathBuf> {
        let folders = std::iter::once(&self.memory).chain(self.io.as_ref().filter(|io| **io != self.memory));
        folders.map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// The largest charge so far, bytes.
    pub fn peak(&self) -> Option<u64> {
        let name = if self.version == Version::Two { "memory.peak" } else { "memory.max_usage_in_bytes" };
        files::read_text(&self.memory.join(name)).ok()?.trim().parse().ok()
    }

    /// Processes that the kernel killed because the limit was reached.
    pub fn kills(&self) -> u64 {
        let name = if self.version == Version::Two { "memory.events" } else { "memory.oom_control" };
        let text = files::read_text(&self.memory.join(name)).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// What was read from devices so far; `None` where the kernel does not count it here.
    pub fn reads(&self) -> Option<Reads> {
        let io = self.io.as_ref()?;
        let text = |name: &str| files::read_text(&io.join(name)).ok();
        match self.version {
            Version::Two => Some(io_stat(&text("io.stat")?)),
            Version::One => Some(Reads {
                requests: Some(blkio(&text("blkio.throttle.io_serviced")?)),
                bytes: blkio(&text("blkio.throttle.io_service_bytes")?),
            }),
        }
    }

    /// How this group limits and counts, for the report.
    pub fn about(&self) -> &'static str {
        match (self.version, &self.io) {
            (Version::One, Some(_)) => "cgroup version 1 (memory, blkio)",
            (Version::One, None) => "cgroup version 1 (memory)",
            (Version::Two, Some(_)) => "cgroup version 2 (memory, io)",
            (Version::Two, None) => "cgroup version 2 (memory)",
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in std::iter::once(&self.memory).chain(self.io.as_ref()) {
            // A process that has ended is still being taken apart for a moment.
            for _ in 0..100 {
                if !folder.exists() || files::remove_one_folder(folder).is_ok() {
                    break;
                }
                pause(Duration::from_millis(50));
            }
        }
    }
}

/// Folders under which a group of a controller could be made, our own first.
fn parents(own: &str, controller: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (version, top) = if controllers.split(',').any(|name| name == controller) {
            (Version::One, Path::new(ROOT).join(controllers))
        } else if controllers.is_empty() {
            let mixed = Path::new(ROOT).join("unified");
            (Version::Two, if mixed.is_dir() { mixed } else { PathBuf::from(ROOT) })
        } else {
            continue;
        };
        // Of several controllers together there is a link for each name.
        let top = if top.is_dir() { top } else { Path::new(ROOT).join(controller) };
        found.push((version, top.join(path.trim_start_matches('/'))));
        found.push((version, top));
    }
    found
}

fn prepare(version: Version, parent: &Path, folder: &Path, limit: u64) -> Result<()> {
    if version == Version::Two {
        delegate(parent)?;
    }
    files::make_one_folder(folder)?;
    let (limit_file, swap) = match version {
        Version::One => ("memory.limit_in_bytes", "memory.swappiness"),
        Version::Two => ("memory.max", "memory.swap.max"),
    };
    files::write_text(&folder.join(limit_file), &limit.to_string())?;
    if folder.join(swap).exists() {
        files::write_text(&folder.join(swap), "0")?;
    }
    Ok(())
}

/// Version 2 lets a group have children with limits only if it holds no process itself: ours step aside.
fn delegate(parent: &Path) -> Result<()> {
    let control = parent.join("cgroup.subtree_control");
    if !files::read_text(&control)?.split_whitespace().any(|name| name == "memory")
        && files::write_text(&control, "+memory").is_err()
    {
        let aside = parent.join("ramekin-runner");
        if !aside.exists() {
            files::make_one_folder(&aside)?;
        }
        for process in files::read_text(&parent.join("cgroup.procs"))?.lines() {
            files::write_text(&aside.join("cgroup.procs"), process)?;
        }
        files::write_text(&control, "+memory")?;
    }
    // Reads are counted where this is allowed; else /proc counts them.
    let _ = files::write_text(&control, "+io");
    Ok(())
}

/// `254:0 rbytes=4096 wbytes=0 rios=1 wios=0 …` a device.
fn io_stat(text: &str) -> Reads {
    let sum =
        |name: &str| text.split_whitespace().filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok()).sum();
    Reads { requests: Some(sum("rios=")), bytes: sum("rbytes=") }
}

/// `254:0 Read 17` a device.
fn blkio(text: &str) -> u64 {
    let reads = text.lines().filter_map(|line| line.split_once(" Read ")?.1.trim().parse::<u64>().ok());
    reads.sum()
}

/// What a process read from devices, from `/proc/PID/io`.
pub fn process_reads(process: u32) -> Option<Reads> {
    let text = files::read_text(Path::new(&format!("/proc/{process}/io"))).ok()?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?;
    Some(Reads { requests: None, bytes: bytes.trim().parse().ok()? })
}

/// Processor seconds that a process has used so far, its threads that work in the kernel included.
pub fn process_cpu_s(process: u32) -> Option<f64> {
    let text = files::read_text(Path::new(&format!("/proc/{process}/stat"))).ok()?;
    // Its name may hold blanks and ends with the last bracket; of what follows, 12 and 13 are user and system time.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = [11, 12].into_iter().map(|at| fields.get(at)?.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The largest resident set of a process so far.
pub fn process_peak(process: u32) -> Option<u64> {
    process_status(process, "VmHWM:")
}

/// Memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// What of the resident set stands in no file.
    pub anonymous: u64,
    pub resident: u64,
    /// The largest resident set since its start.
    pub peak: u64,
}

/// All three.
pub fn process_memory(process: u32) -> Option<Memory> {
    let of = |name| process_status(process, name);
    Some(Memory { anonymous: of("RssAnon:")?, resident: of("VmRSS:")?, peak: of("VmHWM:")? })
}

/// What of it the kernel has.
fn process_status(process: u32, name: &str) -> Option<u64> {
    let text = files::read_text(Path::new(&format!("/proc/{process}/status"))).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_counters_are_read() {
        let two = "254:0 rbytes=8192 wbytes=1 rios=2 wios=9 dbytes=0\n8:16 rbytes=4096 rios=1\n";
        assert_eq!(io_stat(two), Reads { requests: Some(3), bytes: 12_288 });
        let one = "254:0 Read 17\n254:0 Write 3\n254:0 Total 20\n8:0 Read 1\nTotal 21\n";
        assert_eq!(blkio(one), 18);
        assert_eq!((io_stat("").bytes, blkio("")), (0, 0));
    }

    #[test]
    fn parents_are_found_for_both_versions() {
        let mixed = "5:cpu,cpuacct:/a\n4:memory:/process_api/x\n0::/\n";
        let found = parents(mixed, "memory");
        assert_eq!(found[0], (Version::One, PathBuf::from("/sys/fs/cgroup/memory/process_api/x")));
        assert!(found.iter().any(|(version, _)| *version == Version::Two));
        assert!(parents("nonsense\n", "memory").is_empty());
    }

    #[test]
    fn a_process_is_counted() {
        assert!(process_peak(std::process::id()).unwrap() > 100_000);
        assert!(process_peak(u32::MAX).is_none());
        // Asking takes time of the processor, too, however little of it this process gets.
        assert!((0..10_000_000).any(|_| process_cpu_s(std::process::id()).unwrap() >= 0.03));
        assert!(process_cpu_s(u32::MAX).is_none());
    }
}
