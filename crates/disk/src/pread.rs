//! Reads with `pread`, one after another: the engine for kernels that forbid io_uring.

use crate::ReadOp;
use crate::disk::short_read;
use crate::file::LocalFile;
use crate::local::errno;
use ramekin_base::Result;
use rustix::io::{Errno, pread};

pub(crate) fn read(ops: &mut [ReadOp<'_>]) -> Result<()> {
    for op in ops {
        read_one(op, op.file.local()?)?;
    }
    Ok(())
}

/// Reads one operation whole.
pub(crate) fn read_one(op: &mut ReadOp<'_>, file: &LocalFile) -> Result<()> {
    let mut done = 0;
    while done < op.buf.len() {
        match pread(file.fd(), &mut op.buf[done..], op.at + done as u64) {
            Ok(0) => return Err(short_read(op.file, op.at, op.buf.len(), done)),
            // An odd count can only be the end of the file; reading on from there would be unaligned.
            Ok(more) if file.direct && more % 512 != 0 => {
                return Err(short_read(op.file, op.at, op.buf.len(), done + more));
            }
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(errno(error, "read", op.file.path())),
        }
    }
    Ok(())
}
