//! What the kernel and the allocator say: the charge of our cgroup, its limit, the resident set.
//!
//! Both cgroup versions are read. Where there is no memory cgroup of our own (the root cgroup has no
//! limit and counts the whole machine), the resident set of the process is the charge.

use std::fs::read_to_string;
use std::path::PathBuf;

/// The kernel's charge, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Charge {
    pub charged: u64,
    pub peak: u64,
}

/// The folder of our memory cgroup with the names of its usage, peak and limit files.
fn cgroup() -> Option<(PathBuf, [&'static str; 3])> {
    let text = read_to_string("/proc/self/cgroup").ok()?;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, files) = if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", ["memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes"])
        } else if controllers.is_empty() {
            ("/sys/fs/cgroup", ["memory.current", "memory.peak", "memory.max"])
        } else {
            continue;
        };
        // Inside a container the path may be relative to a root that is not ours; then the mount itself is our group.
        for folder in [PathBuf::from(format!("{root}{path}")), PathBuf::from(root)] {
            if limit_of(&folder, files[2]).is_some() {
                return Some((folder, files));
            }
        }
    }
    None
}

/// A limit that is really one: set, and below what a machine can hold.
fn limit_of(folder: &std::path::Path, file: &str) -> Option<u64> {
    let limit = read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()?;
    (limit < machine_memory()).then_some(limit)
}

fn number(path: PathBuf) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// The memory limit of our cgroup, if it has one.
pub fn cgroup_limit() -> Option<u64> {
    let (folder, files) = cgroup()?;
    limit_of(&folder, files[2])
}

/// All memory of the machine, bytes.
pub fn machine_memory() -> u64 {
    field("/proc/meminfo", "MemTotal:").unwrap_or(1 << 30)
}

/// A `Name:  123 kB` line of a file under /proc, in bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The charge of our cgroup, or the resident set where there is none.
pub fn charge() -> Charge {
    if let Some((folder, files)) = cgroup()
        && let Some(charged) = number(folder.join(files[0]))
    {
        return Charge { charged, peak: number(folder.join(files[1])).unwrap_or(charged) };
    }
    let charged = field("/proc/self/status", "VmRSS:").unwrap_or(0);
    Charge { charged, peak: field("/proc/self/status", "VmHWM:").unwrap_or(charged) }
}

/// The allocator's own view, handed in by the program that chose the allocator.
#[derive(Clone, Copy)]
pub struct Allocator {
    /// Bytes that it holds from the kernel, and bytes that it handed out.
    pub resident: fn() -> Option<(u64, u64)>,
    /// Gives back to the kernel what has not been used for a while, of the heap and of the code.
    pub decay: fn(),
    /// Gives back to the kernel all that is not in use.
    pub purge: fn(),
}

static ALLOCATOR: std::sync::OnceLock<Allocator> = std::sync::OnceLock::new();

/// Says once, at start, whom to ask about the heap.
pub fn set_allocator(allocator: Allocator) {
    _ = ALLOCATOR.set(allocator);
}

/// Bytes that the allocator holds from the kernel and bytes that it handed out; `None` if it does not tell.
pub fn allocator_resident() -> Option<(u64, u64)> {
    (ALLOCATOR.get()?.resident)()
}

/// Asks the allocator to give back to the kernel what has not been used for a while. Quick where there is nothing to give.
pub fn allocator_decay() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.decay)();
    }
}

/// Asks the allocator to give back to the kernel all that is not in use. For those who let go of much at one time, before
/// they give up what they reserved for it.
pub fn allocator_purge() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.purge)();
    }
}
