//! The disk's own figures: 4 KiB random reads a second at depth 1, 32 and 64, past the page cache.
//!
//! They stand beside every figure that depends on the disk. One thread, a batch of `depth` reads at a time, on a new
//! file in the folder that is measured.

use crate::files;
use ramekin_base::{Clock, Error, Result, Rng, Size, SystemClock, cancel};
use ramekin_disk::{Aligned, Disk, File, Open, ReadOp, Sync, probe};
use ramekin_memory::Budget;
use serde_json::{Value, json};
use std::path::Path;

const PAGE: usize = 4096;
const DEPTHS: [usize; 3] = [1, 32, 64];
const CHUNK: usize = 1 << 20;

/// What a disk does.
#[derive(Debug, Clone)]
pub struct DiskRate {
    /// Engine, and whether it goes past the page cache.
    pub engine: String,
    pub file_bytes: u64,
    /// Reads a second at each of the depths.
    pub rates: [f64; 3],
}

impl DiskRate {
    /// Writes a file of so many bytes into the folder, reads it for `seconds` at each depth, and removes it.
    pub fn measure(folder: &Path, file_bytes: u64, seconds: f64) -> Result<Self> {
        let chunks = file_bytes.div_ceil(CHUNK as u64).max(1);
        let (disk, engine) = probe(folder, None)?;
        let path = folder.join(format!("lab-disk-{}", std::process::id()));
        files::remove_all(&path)?;
        let measured = fill(&*disk, &path, chunks).and_then(|()| rates(&*disk, &path, seconds));
        files::remove_all(&path)?;
        let rates = measured.map_err(|error| error.at("the disk's own rate"))?;
        Ok(Self { engine, file_bytes: chunks * CHUNK as u64, rates })
    }

    pub fn text(&self) -> String {
        let rates = DEPTHS
            .iter()
            .zip(self.rates)
            .map(|(depth, rate)| format!("{} at depth {depth}", crate::statistics::grouped(rate, 0)));
        let rates: Vec<String> = rates.collect();
        format!(
            "4 KiB random reads a second: {}; a file of {}; {}",
            rates.join(", "),
            Size(self.file_bytes),
            self.engine
        )
    }

    pub fn json(&self) -> Value {
        let rates: Vec<Value> = DEPTHS
            .iter()
            .zip(self.rates)
            .map(|(depth, rate)| json!({"depth": depth, "reads_per_second": rate}))
            .collect();
        json!({"engine": self.engine, "file_bytes": self.file_bytes, "read_bytes": PAGE, "rates": rates})
    }
}

fn fill(disk: &dyn Disk, path: &Path, chunks: u64) -> Result<()> {
    let file = disk.open(path, Open::Create)?;
    let mut chunk = Aligned::new(&Budget::new(2 * CHUNK as u64).root(), CHUNK)?;
    let mut rng = Rng::new(1);
    for number in 0..chunks {
        cancel::check()?;
        // Different bytes everywhere: a disk that spots repetitions would be too quick.
        chunk.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        disk.write(&file, number * CHUNK as u64, &chunk)?;
    }
    disk.sync(Sync::File(&file))
}

fn rates(disk: &dyn Disk, path: &Path, seconds: f64) -> Result<[f64; 3]> {
    let file = disk.open(path, Open::Read)?;
    let mut rates = [0.0; 3];
    for (rate, depth) in rates.iter_mut().zip(DEPTHS) {
        files::drop_file_from_page_cache(path)?;
        *rate = reads_per_second(disk, &file, depth, seconds)?;
    }
    Ok(rates)
}

fn reads_per_second(disk: &dyn Disk, file: &File, depth: usize, seconds: f64) -> Result<f64> {
    let pages = disk.len(file)? / PAGE as u64;
    if pages == 0 {
        return Err(Error::io("the file is empty"));
    }
    let clock = SystemClock::new();
    let mut room = Aligned::new(&Budget::new(2 * CHUNK as u64).root(), depth * PAGE)?;
    let mut rng = Rng::new(depth as u64);
    let mut done = 0;
    while clock.now().as_secs_f64() < seconds || done == 0 {
        cancel::check()?;
        let read = |buf| ReadOp { file, at: rng.below(pages) * PAGE as u64, buf };
        let mut ops: Vec<_> = room.chunks_mut(PAGE).map(read).collect();
        disk.read(&mut ops)?;
        done += depth;
    }
    Ok(done as f64 / clock.now().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_a_rate_at_each_depth_and_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let rate = DiskRate::measure(folder.path(), 1 << 20, 0.02).unwrap();
        assert!(rate.rates.iter().all(|rate| *rate > 1.0), "{rate:?}");
        assert!(rate.text().contains("depth 64") && rate.json()["rates"][2]["depth"] == 64);
        assert!(files::is_empty(folder.path()).unwrap());
    }
}
