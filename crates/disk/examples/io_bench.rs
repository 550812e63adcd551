//! 4 KiB random reads a second through each engine, at depth 1, 32 and 64.
//!
//! `cargo run --release -p ramekin-disk --example io_bench -- [folder] [file MiB] [seconds a cell]`
//!
//! One thread; a batch of `depth` reads at a time. The mmap column reads the file's pages from the
//! page cache once they are in it, so it is shown cold: its pages are dropped before each cell.

use ramekin_base::{Clock, Result, Rng, SystemClock};
use ramekin_disk::{Aligned, Disk, Engine, File, Local, Open, ReadOp, Sync};
use ramekin_memory::Budget;
use std::path::Path;

const PAGE: usize = 4096;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| args.get(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let base = args.first().map_or("/tmp", String::as_str);
    let (file_mib, seconds) = (number(1, 1024), number(2, 3));
    let folder = tempfile::tempdir_in(base)?;
    let path = folder.path().join("data");
    fill(&path, file_mib)?;
    println!("{file_mib} MiB in {base}, {seconds} s a cell");
    println!("{:<8}{:>12}{:>12}{:>12}", "engine", "depth 1", "depth 32", "depth 64");
    for engine in [Engine::Uring, Engine::Pread, Engine::Mmap] {
        let disk = match Local::new(engine, folder.path()) {
            Ok(disk) => disk,
            Err(error) => {
                println!("{engine:<8}{error}");
                continue;
            }
        };
        let mut row = format!("{engine:<8}");
        for depth in [1, 32, 64] {
            // Syncing a buffered file drops it from the page cache.
            let cache = Local::new(Engine::Pread, folder.path())?.buffered();
            cache.sync(Sync::File(&cache.open(&path, Open::Write)?))?;
            let file = disk.open(&path, Open::Read)?;
            row += &format!("{:>12.0}", reads_per_second(&disk, &file, depth, seconds)?);
        }
        println!("{row}");
    }
    Ok(())
}

fn fill(path: &Path, mib: u64) -> Result<()> {
    let disk = Local::new(Engine::Pread, path.parent().unwrap_or(Path::new("/tmp")))?;
    let file = disk.open(path, Open::Create)?;
    let mut chunk = Aligned::new(&Budget::new(2 << 20).root(), 1 << 20)?;
    let mut rng = Rng::new(1);
    for number in 0..mib {
        chunk.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        disk.write(&file, number << 20, &chunk)?;
    }
    disk.sync(Sync::File(&file))
}

fn reads_per_second(disk: &dyn Disk, file: &File, depth: usize, seconds: u64) -> Result<f64> {
    let clock = SystemClock::new();
    let pages = disk.len(file)? / PAGE as u64;
    let mut room = Aligned::new(&Budget::new(2 << 20).root(), depth * PAGE)?;
    let mut rng = Rng::new(depth as u64);
    let mut done = 0;
    while clock.now().as_secs() < seconds {
        let read = |buf| ReadOp { file, at: rng.below(pages) * PAGE as u64, buf };
        let mut ops: Vec<_> = room.chunks_mut(PAGE).map(read).collect();
        disk.read(&mut ops)?;
        done += depth;
    }
    Ok(done as f64 / clock.now().as_secs_f64())
}
