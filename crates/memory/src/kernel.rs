//! What the kernel and the allocator say: the charge of our cgroup, its limit, the resident set.
//!
//! Both cgroup versions are read. A group is charged for all that stand below it, so the least limit between ours and the
//! root holds for us. Where our own group has no limit (it may hold other processes; the root counts the whole machine), the
//! resident set of the process is the charge.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The kernel's charge, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Charge {
    pub charged: u64,
    pub peak: u64,
}

/// Our memory cgroup and those above it.
struct Groups {
    /// Our own first, the mount's root last; of these only the ones that this process can see.
    folders: Vec<PathBuf>,
    /// The names of the files of usage, peak and limit.
    files: [&'static str; 3],
}

impl Groups {
    fn ours() -> Option<Self> {
        Self::of(&read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
    }

    /// Reads a `/proc/self/cgroup`. `mount` is where cgroups are mounted.
    fn of(text: &str, mount: &Path) -> Option<Self> {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let (root, files) = if controllers.split(',').any(|name| name == "memory") {
                let files = ["memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes"];
                (mount.join("memory"), files)
            } else if controllers.is_empty() {
                (mount.to_owned(), ["memory.current", "memory.peak", "memory.max"])
            } else {
                return None;
            };
            // Inside a container the path may be relative to a root that is not ours; then the mount itself is our group.
            let above = Path::new(path).ancestors().map(|path| root.join(path.strip_prefix("/").unwrap_or(path)));
            let folders: Vec<_> = above.filter(|folder| folder.join(files[0]).exists() || *folder == root).collect();
            let groups = Self { folders, files };
            groups.limit().is_some().then_some(groups)
        })
    }

    /// The least limit: one of a group above ours kills us as well.
    fn limit(&self) -> Option<u64> {
        self.folders.iter().filter_map(|folder| limit_of(folder, self.files[2])).min()
    }

    /// What our own group is charged. One without a limit of its own may hold other processes too.
    fn charge(&self) -> Option<Charge> {
        let own = self.folders.first().filter(|folder| limit_of(folder, self.files[2]).is_some())?;
        let charged = number(own.join(self.files[0]))?;
        Some(Charge { charged, peak: number(own.join(self.files[1])).unwrap_or(charged) })
    }
}

/// A limit that is really one: set, and below what a machine can hold.
fn limit_of(folder: &Path, file: &str) -> Option<u64> {
    let limit = read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()?;
    (limit < machine_memory()).then_some(limit)
}

fn number(path: PathBuf) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// The memory limit of our cgroup: its own, or a lower one of a group above it.
pub fn cgroup_limit() -> Option<u64> {
    Groups::ours()?.limit()
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
    if let Some(charge) = Groups::ours().and_then(|groups| groups.charge()) {
        return charge;
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
    /// From now on it gives back at once what is no longer in use, or after a while, which is quicker.
    pub at_once: fn(bool),
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

/// Says whether the allocator is to give back at once what is no longer in use, instead of after a while.
pub fn allocator_at_once(is_so: bool) {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.at_once)(is_so);
    }
}

/// Asks the allocator to give back to the kernel all that is not in use. For those who let go of much at one time, before
/// they give up what they reserved for it.
pub fn allocator_purge() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.purge)();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test makes a tree like the kernel's")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A tree of groups: path below the mount, and the files in it.
    fn tree(files: &[(&str, u64)]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().unwrap();
        for (path, value) in files {
            let path = mount.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = if *value == u64::MAX { "max\n".to_owned() } else { format!("{value}\n") };
            std::fs::write(path, text).unwrap();
        }
        mount
    }

    #[test]
    fn a_limit_of_a_group_above_ours_holds_for_us() {
        let mount = tree(&[
            ("a/memory.max", 64 * MIB),
            ("a/memory.current", 5 * MIB),
            ("a/b/memory.max", u64::MAX),
            ("a/b/memory.current", 4 * MIB),
            ("a/b/c/memory.max", 90 * MIB),
            ("a/b/c/memory.current", 3 * MIB),
        ]);
        let groups = |path: &str| Groups::of(&format!("0::{path}\n"), mount.path());
        assert_eq!(groups("/a/b/c").unwrap().limit(), Some(64 * MIB));
        assert_eq!(groups("/a/b/c").unwrap().charge().unwrap().charged, 3 * MIB);
        assert_eq!(groups("/a/b").unwrap().limit(), Some(64 * MIB));
        assert!(groups("/a/b").unwrap().charge().is_none(), "it has no limit of its own");
        assert!(groups("/other").is_none(), "there is none at all");
    }

    #[test]
    fn both_versions_and_mounts_that_show_our_group_alone_are_read() {
        let mount = tree(&[
            ("memory/memory.limit_in_bytes", u64::MAX >> 1),
            ("memory/memory.usage_in_bytes", 9 * MIB),
            ("memory/a/memory.limit_in_bytes", 32 * MIB),
            ("memory/a/memory.usage_in_bytes", 2 * MIB),
            ("memory/a/b/memory.limit_in_bytes", u64::MAX >> 1),
            ("memory/a/b/memory.usage_in_bytes", MIB),
        ]);
        let text = "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n";
        assert_eq!(Groups::of(text, mount.path()).unwrap().limit(), Some(32 * MIB));
        // The path is one of the machine's; the container sees its own group at the mount.
        let mount = tree(&[("memory.max", 48 * MIB), ("memory.current", MIB), ("memory.peak", 2 * MIB)]);
        let groups = Groups::of("0::/docker/abc\n", mount.path()).unwrap();
        assert_eq!(groups.limit(), Some(48 * MIB));
        let charge = groups.charge().unwrap();
        assert_eq!((charge.charged, charge.peak), (MIB, 2 * MIB));
    }
}
