//! The process itself: its allocator, its pages, its limits. Set before the first thread starts.
//!
//! ```text
//!   jemalloc   2 arenas, freed pages back within 200 ms, large blocks at once, small thread caches
//!   kernel     no huge pages: a budget of 24 MiB has no room for guesses of 2 MiB
//!   files      soft limit raised to the hard one, at most FILES_MAX
//! ```

use ramekin_base::{Error, Result};
use ramekin_memory::{Allocator, set_allocator};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A pointer that the allocator reads before `main`.
#[repr(transparent)]
pub struct Conf(*const std::ffi::c_char);

// SAFETY: it points to constant bytes and is never written.
unsafe impl Sync for Conf {}

/// Read by jemalloc when it starts. `abort_conf` turns a typing error here into a failing start.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: Conf = Conf(
    c"abort_conf:true,narenas:2,dirty_decay_ms:200,muzzy_decay_ms:0,oversize_threshold:1048576,\
      tcache_max:4096,background_thread:false,thp:never,metadata_thp:disabled"
        .as_ptr(),
);

/// Open files that we ask for: data files, connections and room to spare.
const FILES_MAX: u64 = 65_536;

/// Bytes that jemalloc holds from the kernel and bytes that it handed out.
fn resident() -> Option<(u64, u64)> {
    tikv_jemalloc_ctl::epoch::advance().ok()?;
    let resident = tikv_jemalloc_ctl::stats::resident::read().ok()?;
    let allocated = tikv_jemalloc_ctl::stats::allocated::read().ok()?;
    Some((resident as u64, allocated as u64))
}

/// Asks jemalloc to give back to the kernel what its callers no longer need.
fn decay() {
    // `arena.4096` stands for all arenas (MALLCTL_ARENAS_ALL).
    let name = c"arena.4096.decay";
    // SAFETY: a known name without a value to read or write; the call takes no memory of ours.
    let code = unsafe {
        tikv_jemalloc_sys::mallctl(name.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), 0)
    };
    debug_assert_eq!(code, 0, "the allocator knows the name");
}

/// Bytes that the allocator holds from the kernel, and bytes that it handed out.
fn allocator_resident() -> Option<(u64, u64)> {
    tikv_jemalloc_ctl::epoch::advance().ok()?;
    let resident = tikv_jemalloc_ctl::stats::resident::read().ok()?;
    let allocated = tikv_jemalloc_ctl::stats::allocated::read().ok()?;
    Some((resident as u64, allocated as u64))
}

/// Asks the allocator to give back to the kernel what its callers no longer need.
fn allocator_decay() {
    // `arena.4096` stands for all arenas (MALLCTL_ARENAS_ALL).
    let name = c"arena.4096.decay";
    let none = std::ptr::null_mut;
    // SAFETY: a known name without a value to read or write; the call takes no memory of ours.
    let code = unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), none(), none().cast(), none(), 0) };
    debug_assert_eq!(code, 0, "the allocator knows the name");
}

/// Sets what holds for the whole process.
pub fn prepare() -> Result<()> {
    set_allocator(Allocator { resident: allocator_resident, decay: allocator_decay });
    ramekin_memory::set_allocator(ramekin_memory::Allocator { resident, decay });
    // SAFETY: takes three numbers and changes a flag of this process.
    let refused = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0;
    if refused {
        // Old kernels and strict sandboxes: jemalloc and the page cache ask for small pages by themselves too.
        tracing::debug!("the kernel does not let this process turn huge pages off");
    }
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    if now.current.is_some_and(|soft| soft < hard) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: now.maximum })
            .map_err(|error| Error::io(format!("the limit of open files cannot be raised to {hard}: {error}")))?;
    }
    Ok(())
}

/// Bytes of this binary that the kernel maps: code, constants and variables, from its own headers.
pub fn code_bytes() -> u64 {
    // SAFETY: the kernel tells every process where its own program headers are and how many there are;
    // they are part of the binary's mapping and never change.
    let headers = unsafe {
        let (at, count) = (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM));
        if at == 0 {
            return 0;
        }
        std::slice::from_raw_parts(at as *const libc::Elf64_Phdr, count as usize)
    };
    headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| header.p_memsz).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_binary_knows_its_own_size() {
        let bytes = super::code_bytes();
        assert!(bytes > 100_000 && bytes < 1 << 30, "{bytes}");
    }
}
