//! Which machine a figure is of.

use crate::files;
use serde_json::{Value, json};
use std::path::Path;

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// Processor, cores, memory and kernel.
pub fn machine() -> Value {
    let read = |path: &str| files::read_text(Path::new(path)).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "processor": processor.map_or("unknown", |(_, name)| name),
        "cores": cores(),
        "memory_bytes": ramekin_memory::machine_memory(),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

/// The same in one line.
pub fn machine_line() -> String {
    let all = machine();
    let text = |name: &str| all[name].as_str().unwrap_or_default().to_owned();
    let memory = ramekin_base::Size(all["memory_bytes"].as_u64().unwrap_or(0));
    format!("{}, {} cores, {memory}, Linux {}", text("processor"), all["cores"], text("kernel"))
}
