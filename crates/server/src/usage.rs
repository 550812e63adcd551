//! What the process uses, as the kernel counts it: time, memory, open files.

use ramekin_base::limits::PAGE;
use ramekin_door_etcd::Usage;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, getrlimit};
use std::fs::{read_dir, read_to_string};

/// Nothing where the kernel does not say.
pub fn usage() -> Usage {
    let stat = read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in brackets, may hold anything.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_ascii_whitespace()
        .map(|field| field.parse().unwrap_or_default())
        .collect();
    // Counted from the third on, as the manual does.
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    let ticks = clock_ticks_per_second() as f64;
    Usage {
        cpu_seconds: (field(14) + field(15)) / ticks,
        resident_bytes: field(24) as u64 * PAGE as u64,
        virtual_bytes: field(23) as u64,
        started: booted() + field(22) / ticks,
        open_files: read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64,
        most_files: getrlimit(Resource::Nofile).current.unwrap_or(0),
    }
}

/// When the machine was started, in seconds since 1970.
fn booted() -> f64 {
    let stat = read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_says_what_this_process_uses() {
        let used = super::usage();
        assert!(used.resident_bytes > 1 << 20 && used.virtual_bytes >= used.resident_bytes, "{used:?}");
        assert!(used.open_files > 2 && used.most_files > used.open_files && used.started > 1e9, "{used:?}");
    }
}
