//! The process itself: its allocator, its pages, its limits. Set before the first thread starts.
//!
//! ```text
//!   jemalloc   2 arenas, freed pages back within 200 ms, under a small budget and large blocks at once, small thread caches
//!   kernel     huge pages only where we ask: a budget of 24 MiB has no room for guesses of 2 MiB
//!   files      soft limit raised to the hard one, at most FILES_MAX
//!   code       what only the start needed is given back, and each second what was read ahead and never ran
//! ```
//!
//! The kernel charges a page of the binary to whoever reads it first, and reads ahead generously: a start from
//! a cold page cache was charged 16 MiB for 3 MiB of code in use, a start from a warm one nothing, and some kernels
//! soon read all of the code again. With [`drop_start_code`] and [`drop_idle_code`] all are charged what runs.

use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_memory::{Allocator, set_allocator};
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

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

/// `narenas` of [`MALLOC_CONF`].
const ARENAS: usize = 2;

/// Open files that we ask for: data files, connections and room to spare.
const FILES_MAX: u64 = 65_536;

/// Bytes that the allocator holds from the kernel, and bytes that it handed out.
fn allocator_resident() -> Option<(u64, u64)> {
    tikv_jemalloc_ctl::epoch::advance().ok()?;
    let resident = tikv_jemalloc_ctl::stats::resident::read().ok()?;
    let allocated = tikv_jemalloc_ctl::stats::allocated::read().ok()?;
    Some((resident as u64, allocated as u64))
}

/// Gives back to the kernel what has not been used for a while, of the heap and of the code.
fn decay() {
    tell_all_arenas(c"arena.4096.decay");
    drop_idle_code();
}

/// Asks the allocator to give back to the kernel all that is not in use.
fn allocator_purge() {
    tell_all_arenas(c"arena.4096.purge");
}

/// Milliseconds after which the allocator gives back what is no longer in use: as [`MALLOC_CONF`] says, or at once. The arena of
/// blocks over `oversize_threshold` comes after these and always gives back at once: a body whose bytes stayed for 200 ms would
/// be charged beside the next one.
fn give_back_at_once(is_so: bool) {
    let mut wanted: isize = if is_so { 0 } else { 200 };
    for arena in 0..ARENAS {
        let Ok(name) = std::ffi::CString::new(format!("arena.{arena}.dirty_decay_ms")) else { continue };
        let (none, value) = (std::ptr::null_mut, (&raw mut wanted).cast());
        // SAFETY: the name of a value of this type, which is only read; an arena that is not there is refused.
        unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), none(), none().cast(), value, size_of::<isize>()) };
    }
}

/// `arena.4096` stands for all arenas (MALLCTL_ARENAS_ALL).
fn tell_all_arenas(name: &std::ffi::CStr) {
    let none = std::ptr::null_mut;
    // SAFETY: a known name without a value to read or write; the call takes no memory of ours.
    let code = unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), none(), none().cast(), none(), 0) };
    debug_assert_eq!(code, 0, "the allocator knows the name");
}

/// No huge pages but where we ask for them.
fn refuse_huge_pages() {
    /// Of `PR_SET_THP_DISABLE`, since Linux 6.18: but for memory that was advised to have them.
    const EXCEPT_ADVISED: libc::c_ulong = 2;
    let disable = |how: libc::c_ulong| {
        // SAFETY: takes four numbers and changes a flag of this process.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, how, 0, 0) == 0 }
    };
    if disable(EXCEPT_ADVISED) {
        return;
    }
    // An older kernel knows all or nothing; it gives them unasked only where it was told to.
    let always = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if always.is_ok_and(|text| text.contains("[always]")) && !disable(0) {
        tracing::debug!("the kernel does not let this process turn huge pages off");
    }
}

/// Sets what holds for the whole process.
pub fn prepare() -> Result<()> {
    set_allocator(Allocator {
        resident: allocator_resident,
        decay,
        purge: allocator_purge,
        at_once: give_back_at_once,
    });
    refuse_huge_pages();
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    if now.current.is_some_and(|soft| soft < hard) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: now.maximum })
            .map_err(|error| Error::io(format!("the limit of open files cannot be raised to {hard}: {error}")))?;
    }
    Ok(())
}

/// The program headers of this binary, and where it was loaded.
fn headers() -> (&'static [libc::Elf64_Phdr], usize) {
    // SAFETY: the kernel tells every process where its own program headers are and how many there are;
    // they are part of the binary's mapping and never change.
    let (at, headers) = unsafe {
        let (at, count) = (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM));
        if at == 0 {
            return (&[], 0);
        }
        (at as usize, std::slice::from_raw_parts(at as *const libc::Elf64_Phdr, count as usize))
    };
    // The table names its own place; the difference is where everything was moved to.
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    (headers, own.map_or(0, |own| at.wrapping_sub(own.p_vaddr as usize)))
}

/// Code that is read at one go at most.
const PIECE: usize = 64 << 10;

/// What etcd's door, its store and HTTP/2 add to the binary as it is released: measured by building without them.
const ETCD_CODE_BYTES: u64 = 6_150_000;

/// The same where etcd's door is off: nothing of it is ever mapped then.
pub fn code_bytes_without_etcd() -> u64 {
    code_bytes().saturating_sub(ETCD_CODE_BYTES)
}

/// Bytes of this binary's file that the kernel maps: code and constants.
pub fn code_bytes() -> u64 {
    headers().0.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| header.p_filesz).sum()
}

/// This binary's file, opened once.
fn binary() -> Option<&'static OwnedFd> {
    static BINARY: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let open = || rustix::fs::open("/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    BINARY.get_or_init(open).as_ref()
}

/// Since Linux 6.18 a page of code that is missing is read with all that follows it in its mapping, up to what the disk reads ahead,
/// whatever was advised: so the code becomes many short mappings. Neighbours stay apart as long as they differ in something.
fn cut(start: usize, end: usize) {
    for piece in (start..end).step_by(PIECE).skip(1).step_by(2) {
        // SAFETY: whether a dump of the process has these pages changes nothing of them.
        unsafe { libc::madvise(piece as *mut libc::c_void, PIECE.min(end - piece), libc::MADV_DONTDUMP) };
    }
}

/// Gives the pages of this binary back, here and in the page cache. What is in use is read again.
pub fn drop_start_code() {
    let (headers, base) = headers();
    let read_only = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    for header in headers.iter().filter(read_only).filter(|_| base != 0) {
        let start = (base + header.p_vaddr as usize) / PAGE * PAGE;
        let end = base + (header.p_vaddr + header.p_memsz) as usize;
        if header.p_flags & libc::PF_X != 0 {
            cut(start, end);
        }
        for advice in [libc::MADV_RANDOM, libc::MADV_DONTNEED] {
            // SAFETY: a read-only mapping of our own file that was never written: its pages come back from the
            // file as they were. Where the kernel refuses, they stay.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
        }
    }
    // A binary that was just built or copied cannot be given back before it is written.
    let _ = binary().map(rustix::fs::fdatasync);
    drop_idle_code();
}

/// Gives back the pages of this binary in the page cache that no process has mapped. Those that another process read
/// first stay charged to it.
fn drop_idle_code() {
    let _ = binary().map(|binary| rustix::fs::fadvise(binary, 0, None, Advice::DontNeed));
}

#[cfg(test)]
mod tests {
    /// Milliseconds after which an arena gives back what is no longer in use.
    fn decay_ms(arena: usize) -> isize {
        let name = std::ffi::CString::new(format!("arena.{arena}.dirty_decay_ms")).unwrap();
        let (mut read, mut length) = (-1isize, size_of::<isize>());
        // SAFETY: the name of a value of this type, which is written to where there is room for it.
        let code = unsafe {
            let to = (&raw mut read).cast();
            tikv_jemalloc_sys::mallctl(name.as_ptr(), to, &raw mut length, std::ptr::null_mut(), 0)
        };
        assert_eq!(code, 0);
        read
    }

    #[test]
    fn large_blocks_go_back_at_once_whatever_the_budget() {
        drop(std::hint::black_box(vec![1u8; 8 << 20]));
        for (is_so, after) in [(false, 200), (true, 0), (false, 200)] {
            super::give_back_at_once(is_so);
            let all: Vec<isize> = (0..=super::ARENAS).map(decay_ms).collect();
            assert_eq!(all, [after, after, 0]);
        }
    }

    #[test]
    fn the_binary_knows_its_own_size() {
        let bytes = super::code_bytes();
        assert!(bytes > 100_000 && bytes < 1 << 30, "{bytes}");
    }

    #[test]
    fn code_that_was_given_back_comes_back() {
        let before = super::code_bytes();
        super::drop_start_code();
        assert_eq!(super::code_bytes(), before);
        assert_eq!(format!("{:?}", [1.5f32, -0.0]), "[1.5, -0.0]");
    }
}
