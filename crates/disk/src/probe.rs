//! Which engine this machine allows, found by trying.

use crate::aligned::ALIGN;
use crate::disk::{Disk, Engine};
use crate::local::{Local, errno};
use ramekin_base::Result;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::Path;
use std::sync::Arc;

/// The best engine for files under `folder`, or the wanted one, and one line on what was chosen and why.
pub fn probe(folder: &Path, wanted: Option<Engine>) -> Result<(Arc<dyn Disk>, String)> {
    let engine = wanted.unwrap_or(Engine::Pread);
    let disk = Local::new(engine, folder)?;
    let line = format!("I/O engine {engine}, blocks of {} bytes", disk.block());
    Ok((Arc::new(disk), line))
}

/// The unit in which the device under `folder` takes direct reads and writes.
pub(crate) fn block(folder: &Path) -> Result<usize> {
    let _ = statx(CWD, folder, AtFlags::empty(), StatxFlags::ALL).map_err(|error| errno(error, "stat", folder))?;
    Ok(ALIGN)
}
