//! Reads with `pread`: the engine for kernels that forbid io_uring.
//!
//! ```text
//!   a small batch     one after another, here
//!   a larger one      cut into equal runs; a short-lived thread for each but the first
//! ```
//!
//! A thread costs about as much to start as one read takes, so each gets several. They end before
//! the call returns, so that nobody else holds the callers' buffers.

use super::file::LocalFile;
use super::names::errno;
use crate::ReadOp;
use crate::disk::short_read;
use ramekin_base::Result;
use rustix::io::{Errno, pread};

/// Threads at work on one batch, the caller's own among them.
const THREADS_MAX: usize = 8;
/// Reads that make a thread worth its start.
const READS_PER_THREAD: usize = 4;
/// The threads call nothing deep.
const STACK_BYTES: usize = 64 << 10;

pub(crate) fn read(ops: &mut [ReadOp<'_>]) -> Result<()> {
    let threads = (ops.len() / READS_PER_THREAD).clamp(1, THREADS_MAX);
    if threads == 1 {
        return run(ops);
    }
    let mut runs = ops.chunks_mut(ops.len().div_ceil(threads));
    let mine = runs.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let mut others = Vec::with_capacity(threads);
        let mut results = Vec::with_capacity(threads);
        for ops in runs {
            // The run is moved in only when the thread starts; if none can be had, it is done here.
            let ops = std::sync::Arc::new(parking_lot::Mutex::new(ops));
            let theirs = ops.clone();
            let spawned = std::thread::Builder::new()
                .name("pread".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || run(*theirs.lock()));
            others.push(spawned.map_err(|_| ops));
        }
        results.push(run(mine));
        for other in others {
            results.push(match other {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(ops) => run(*ops.lock()),
            });
        }
        results.into_iter().collect()
    })
}

fn run(ops: &mut [ReadOp<'_>]) -> Result<()> {
    ops.iter_mut().try_for_each(|op| read_one(op, op.file.local()?))
}

/// Reads one operation whole.
fn read_one(op: &mut ReadOp<'_>, file: &LocalFile) -> Result<()> {
    let mut done = 0;
    while done < op.buf.len() {
        match pread(file.fd(), &mut op.buf[done..], op.at + done as u64) {
            Ok(0) => return Err(short_read(op.file, op.at, op.buf.len(), done)),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            // Reading on from an odd place, which only the end of a file can be.
            Err(Errno::INVAL) if done % 512 != 0 => return Err(short_read(op.file, op.at, op.buf.len(), done)),
            Err(error) => return Err(errno(error, "read", op.file.path())),
        }
    }
    Ok(())
}
