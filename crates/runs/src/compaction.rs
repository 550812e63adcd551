//! Flush and merge: how sorted records become files, and many files fewer.
//!
//! ```text
//!   runs, oldest first:   bottom ███████████████   ███ █ █ █ █ ◄── flush
//!                            ▲                         └──┬──┘
//!                            │                  the newest four, if of about one size: one of four times that   (tiered)
//!                            └── all above it, once they have a third of its size           (into the bottom, file by file)
//! ```
//!
//! A byte is written 4 times where 10 memtables are flushed, 7 times where it is 1,000, and 9 times where it is 5,000.
//!
//! Only neighbours merge, since the newest record of a key is the one in the youngest run. A merge writes the newest record of
//! a key with the sum of the weights that it saw. A tombstone goes at the bottom, or where the merge saw the first record of
//! its key; a range tombstone goes at the bottom, and takes along what it covers wherever it meets it. A merge never looks at a
//! clock, and never at who reads; whoever starts it may say up to which deadline records have ended.

use crate::cursor::RunCursor;
use crate::entry::Value;
use crate::format::Shape;
use crate::memtable::{MemoryCursor, Root};
use crate::merge::{Merge, Merged, SOURCES_MAX, Source};
use crate::run::Run;
use crate::writer::RunWriter;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Runs of about one size that are merged into one.
pub const TIER: usize = 4;
/// Runs of a tree at most: writes wait for merges then. At rest it has [`TIER`] at most.
pub const RUNS_MAX: usize = 8;
/// The runs above the bottom are merged into it when they have one part in so many of its size.
const BOTTOM_PART: u64 = 3;
/// A piece of a big value that is copied at a time.
const PIECE: usize = 16 << 10;

/// What a step of a merge wrote.
pub struct Step {
    /// The new file; `None`: nothing was left of what it would have held.
    pub file: Option<PathBuf>,
    /// The first key that is not merged yet; `None`: all is.
    pub next: Option<Vec<u8>>,
}

/// Which neighbours are to be merged now: places in a list of the runs' bytes, the oldest first. `at_rest`: nothing else is to
/// be done.
pub fn due(runs: &[u64], at_rest: bool) -> Option<Range<usize>> {
    let (count, above) = (runs.len(), runs.iter().skip(1).sum::<u64>());
    if count >= TIER && above * BOTTOM_PART >= runs[0] {
        return Some(0..count);
    }
    let (mut from, mut largest) = (count, 0);
    while from > 1 && (largest == 0 || runs[from - 1] <= 2 * largest) {
        from -= 1;
        largest = largest.max(runs[from]);
    }
    if count - from >= TIER {
        return Some(from..count);
    }
    if count >= RUNS_MAX || at_rest && count > TIER { cheapest(runs) } else { None }
}

/// The neighbours above the bottom of which the least is written again for what it is merged into.
fn cheapest(runs: &[u64]) -> Option<Range<usize>> {
    let cost = |range: &Range<usize>| {
        let (sum, largest) = (runs[range.clone()].iter().sum::<u64>(), runs[range.clone()].iter().max());
        sum as f64 / (sum - largest.unwrap_or(&0)).max(1) as f64
    };
    let all = (1..runs.len()).flat_map(|from| (from + 2..=runs.len()).map(move |to| from..to));
    all.min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// What [`flush`] takes of a memtable that holds so many bytes: a buffer of 256 KiB, checksums, a first piece of the index and one of
/// hashes; and of each record a hash and its bits of the filter, which are less than an eighth of what the least one takes here.
pub fn flush_bytes(memtable_bytes: u64) -> u64 {
    (416 << 10) + memtable_bytes / 8
}

/// Writes the records of a memtable as files, each within `shape`. `bottom`: there is no older run.
pub fn flush(
    pages: &Pages,
    account: &Account,
    root: &Arc<Root>,
    (shape, bottom): (Shape, bool),
    name: &mut dyn FnMut() -> PathBuf,
) -> Result<Vec<PathBuf>> {
    let mut writer = RunWriter::new(pages, account, shape, name);
    let mut merge = Merge::new(vec![Source::Memory(MemoryCursor::new(root.clone()))]);
    merge.seek(&[])?;
    while write_file(&mut merge, &mut writer, pages, bottom)? {}
    writer.finish()
}

/// Merges the first file's worth of neighbouring runs, the oldest first. `bottom`: the first of them is the oldest of all.
pub fn merge_file(
    pages: &Pages,
    account: &Account,
    inputs: &[Arc<Run>],
    (shape, bottom): (Shape, bool),
    name: &mut dyn FnMut() -> PathBuf,
) -> Result<Step> {
    if inputs.len() > SOURCES_MAX {
        return Err(Error::bug(format!("{} runs are merged at once; at most {SOURCES_MAX} can be", inputs.len())));
    }
    let source = |run: &Arc<Run>| Ok(Source::Run(RunCursor::past_the_cache(run.clone(), pages, account)?));
    let mut merge = Merge::new(inputs.iter().rev().map(source).collect::<Result<_>>()?);
    merge.seek(&[])?;
    let mut writer = RunWriter::new(pages, account, shape, name);
    write_file(&mut merge, &mut writer, pages, bottom)?;
    let file = writer.finish()?.pop();
    Ok(Step { file, next: merge.key().map(<[u8]>::to_vec) })
}

/// Writes records until the file is full; false: there are no more.
fn write_file(merge: &mut Merge<Source>, writer: &mut RunWriter<'_>, pages: &Pages, bottom: bool) -> Result<bool> {
    writer.end_file()?;
    while let Some(merged) = merge.entry()? {
        if writer.is_full() {
            return Ok(true);
        }
        let covered_to = match merged.entry.value {
            Value::DeletedTo(end) => Some(end.to_vec()),
            _ => None,
        };
        if !is_dropped(&merged, bottom)? && !writer.has_ended(&merged.entry.value) {
            write_record(&merged, writer, pages)?;
        }
        match covered_to {
            // All that it covers is older: nothing of it is read.
            Some(end) => merge.seek(&end)?,
            None => merge.advance()?,
        }
    }
    Ok(false)
}

/// Whether nothing of the record needs to be kept.
fn is_dropped(merged: &Merged<'_>, bottom: bool) -> Result<bool> {
    let entry = &merged.entry;
    let goes = match entry.value {
        Value::Deleted => bottom || entry.first,
        Value::DeletedTo(_) => bottom,
        Value::Inline(_) | Value::Big(_) => false,
    };
    if goes && entry.weight != 0 {
        let text = format!("the weights of a key that is gone add up to {}, not 0; check the folder", entry.weight);
        return Err(Error::corrupt(text));
    }
    Ok(goes)
}

fn write_record(merged: &Merged<'_>, writer: &mut RunWriter<'_>, pages: &Pages) -> Result<()> {
    let Some((file, extent)) = merged.big() else { return writer.push(&merged.entry) };
    writer.push_big(&merged.entry, extent.len, &mut |each| {
        let (mut at, mut piece) = (0, [0; PIECE]);
        while at < extent.len {
            let piece = &mut piece[..(extent.len - at).min(PIECE as u64) as usize];
            file.read_big(pages, extent, at, piece)?;
            each(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flushes of one size, merged whenever it is due; returns the most runs there were and how often a byte was written.
    fn life(flushes: u64, at_rest: bool) -> (usize, f64, Vec<u64>) {
        let (mut runs, mut written, mut most): (Vec<u64>, u64, usize) = (Vec::new(), 0, 0);
        for _ in 0..flushes {
            runs.push(16);
            written += 16;
            while let Some(range) = due(&runs, at_rest) {
                assert!(range.len() > 1 && range.end <= runs.len(), "{range:?} of {runs:?}");
                let sum: u64 = runs[range.clone()].iter().sum();
                written += sum;
                runs.splice(range, [sum]);
            }
            most = most.max(runs.len());
        }
        (most, written as f64 / (flushes * 16) as f64, runs)
    }

    #[test]
    fn runs_stay_few_and_a_byte_is_written_few_times() {
        for (flushes, times) in [(1, 1.0), (10, 4.0), (100, 6.0), (1000, 8.0), (5000, 10.0)] {
            let (most, written, runs) = life(flushes, false);
            assert!(most < RUNS_MAX && written <= times, "{flushes} flushes: {most} runs, {written:.1} times");
            let above: u64 = runs.iter().skip(1).sum();
            assert!(above * BOTTOM_PART < runs[0] || runs.len() < TIER, "{runs:?}");
            assert!(life(flushes, true).2.len() <= TIER);
        }
    }
}
