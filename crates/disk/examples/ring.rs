//! Does registering files and buffers with a ring help? 4 KiB random reads past the page cache, plain and registered in turn.
//!
//! `cargo run --release -p ramekin-disk --example ring -- FILE [SECONDS]`: a file of some hundred MiB on the disk that counts.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "an experiment by hand, beside the product")]

use io_uring::{IoUring, opcode, types};
use std::alloc::{Layout, alloc_zeroed};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const ROUNDS: usize = 5;

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    file: bool,
    buffers: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "plain", file: false, buffers: false },
    Way { name: "file registered", file: true, buffers: false },
    Way { name: "buffers registered", file: false, buffers: true },
    Way { name: "both", file: true, buffers: true },
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the file to read");
    let seconds: f64 = arguments.next().map_or(1.0, |text| text.parse().unwrap());
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    println!("{:<20} {:>6}  reads/s of {ROUNDS} rounds, and processor us a read", "", "depth");
    for depth in [8, 64] {
        let mut rates = vec![Vec::new(); WAYS.len()];
        for _ in 0..ROUNDS {
            WAYS.iter().zip(&mut rates).for_each(|(way, rates)| rates.push(measure(&file, *way, depth, seconds)));
        }
        for (way, mut rates) in WAYS.into_iter().zip(rates) {
            rates.sort_by(|a, b| a.0.total_cmp(&b.0));
            let ((least, _), (median, cpu), (most, _)) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
            println!("{:<20} {depth:>6}  {median:.0} ({least:.0} to {most:.0}), {cpu:.2} us", way.name);
        }
    }
}

/// Batches of `depth` reads, one after the other: reads a second, and microseconds of the processor for each.
fn measure(file: &File, way: Way, depth: usize, seconds: f64) -> (f64, f64) {
    let mut ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64).unwrap();
    // SAFETY: the layout has a size; the memory lives as long as the process.
    let memory = unsafe { alloc_zeroed(Layout::from_size_align(depth * PAGE, PAGE).unwrap()) };
    // SAFETY: each buffer lies inside of the memory.
    let buffer = |at: usize| unsafe { memory.add(at * PAGE) };
    if way.file {
        ring.submitter().register_files(&[file.as_raw_fd()]).unwrap();
    }
    if way.buffers {
        let all: Vec<_> = (0..depth).map(|at| libc::iovec { iov_base: buffer(at).cast(), iov_len: PAGE }).collect();
        // SAFETY: the memory is never freed.
        unsafe { ring.submitter().register_buffers(&all).unwrap() };
    }
    let pages = file.metadata().unwrap().len() / PAGE as u64;
    let (mut state, mut reads, start, before) = (1u64, 0u64, Instant::now(), cpu());
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        for at in 0..depth {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let offset = (state >> 33) % pages * PAGE as u64;
            let fd = types::Fd(file.as_raw_fd());
            let (to, len) = (buffer(at), PAGE as u32);
            let entry = match (way.file, way.buffers) {
                (false, false) => opcode::Read::new(fd, to, len).offset(offset).build(),
                (true, false) => opcode::Read::new(types::Fixed(0), to, len).offset(offset).build(),
                (false, true) => opcode::ReadFixed::new(fd, to, len, at as u16).offset(offset).build(),
                (true, true) => opcode::ReadFixed::new(types::Fixed(0), to, len, at as u16).offset(offset).build(),
            };
            // SAFETY: buffer and file outlive the request, which is waited for below.
            unsafe { ring.submission().push(&entry).unwrap() };
        }
        ring.submit_and_wait(depth).unwrap();
        reads += ring.completion().map(|entry: io_uring::cqueue::Entry| assert_eq!(entry.result(), PAGE as i32)).count()
            as u64;
    }
    let took = start.elapsed().as_secs_f64();
    (reads as f64 / took, (cpu() - before) * 1e6 / reads as f64)
}

fn cpu() -> f64 {
    // SAFETY: a plain structure of numbers, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
