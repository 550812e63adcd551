//! Writes changed payloads out as runs, and compacts older runs into them.
//!
//! ```text
//!   patches in memory ─┐                                  ┌─► rows   walked three times; of several
//!   run 3 (newest)    ─┼─ by row, the newest of each row ─┼─► ends   sources the first that has the
//!   run 2             ─┘                                  └─► texts  row gives its payload
//!   run 1 ............ twice as big as what is above: stays as it is
//! ```
//!
//! The cost: a run joins another only where it is at least half as big, so n bytes of changed payloads
//! that came f at a time are each written about log2(n / f) times, and never their vectors. A merge of
//! segments takes everything in. Memory: patches are walked in place; texts are gathered from the
//! log a window at a time, so that each record is read once a window, in whatever order rows changed.

use crate::background::flush::RecordReader;
use crate::background::merge::MergeRows;
use crate::background::{manifest, open_beside};
use crate::collection::Collection;
use crate::inner::StoreInner;
use crate::memtable::patches::PatchMemtable;
use crate::payload::log::PayloadAt;
use crate::segment::Segment;
use crate::segment::meta::Walk;
use crate::segment::overlay::{ENDS, FENCES, PatchRun, PatchRunCursor, ROWS, ROWS_PER_PAGE, TEXTS};
use crate::segment::patch_tree::PatchCompaction;
use ramekin_base::{Error, Result};
use ramekin_log::LogReader;
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageWriter, Priority};
use ramekin_storage::ReserveClaim;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Runs of a segment at most: each is one more look-up for a payload.
const RUNS_MAX: usize = 8;
/// Bytes of texts gathered from the log at a time, and changes that a window may hold.
const WINDOW_BYTES: usize = 256 << 10;
const WINDOW: usize = 2048;

/// Writes out what changed in the segments of a collection, then a manifest that names it, so that
/// the log can go.
pub(crate) fn collection(shared: &StoreInner, collection: &Collection) -> Result<()> {
    let _manifest = shared.manifest.lock();
    let mut folded = Ok(());
    for segment in &collection.view.load_full().segments {
        let one = shared.frees(ReserveClaim::Tidy, || self::segment(shared, segment, false, &shared.accounts.flush));
        // A segment that cannot be compacted keeps no other from it.
        folded = folded.and(one);
    }
    // The view from before needs the log that goes next.
    collection.publish();
    match collection.is_dropped() {
        true => folded,
        false => manifest::commit(shared).and(folded),
    }
}

/// Writes out what changed in a segment; `whole`: into one run with all that is there. The caller
/// holds `StoreInner::manifest`.
pub(crate) fn segment(shared: &StoreInner, segment: &Segment, whole: bool, account: &Account) -> Result<()> {
    let compaction = segment.patches.begin_compaction();
    let joined = if whole { compaction.runs.len() } else { joined(&compaction) };
    if compaction.patches.is_empty() && joined < 2 {
        return Ok(());
    }
    let part =
        Part { patches: &compaction.patches, runs: &compaction.runs[compaction.runs.len() - joined..], row: &Some };
    let run = write(shared, &[part], segment.meta.points, account)?;
    compaction.done(run, joined);
    Ok(())
}

/// How many of the newest runs are written anew with the patches: none that is damaged, since nothing could be compacted then.
fn joined(compaction: &PatchCompaction<'_>) -> usize {
    if compaction.patches.is_empty() {
        return 0;
    }
    let texts: u64 = compaction.patches.iter().map(|(_, at)| u64::from(at.len)).sum();
    let (mut bytes, mut joined) = (texts + compaction.patches.len() as u64 * 12, 0);
    for run in compaction.runs.iter().rev() {
        let is_full = compaction.runs.len() - joined >= RUNS_MAX;
        if run.file.damage().is_some() || run.file.bytes() > 2 * bytes && !is_full {
            break;
        }
        bytes += run.file.bytes();
        joined += 1;
    }
    joined
}

/// What changed in the inputs of a merge after it had compacted them, as a run of the new segment. The
/// patch compactions are kept until the view was swapped: whoever has the old view reads on.
pub(crate) fn carry<'a>(
    shared: &StoreInner,
    rows: &'a MergeRows,
    segment: &Segment,
    account: &Account,
) -> Result<Vec<PatchCompaction<'a>>> {
    // Patches go input by input, within the memory of one; only the last few come along here.
    rows.inputs().iter().try_for_each(|input| self::segment(shared, input, false, account))?;
    let compactions: Vec<PatchCompaction<'a>> =
        rows.inputs().iter().map(|input| input.patches.begin_compaction()).collect();
    let is_new = |input: usize, run: &Arc<PatchRun>| !rows.folded(input).is_some_and(|known| Arc::ptr_eq(known, run));
    let newer = |(input, compaction): (usize, &PatchCompaction<'_>)| {
        compaction.runs.iter().filter(|run| is_new(input, run)).cloned().collect::<Vec<_>>()
    };
    let runs: Vec<Vec<Arc<PatchRun>>> = compactions.iter().enumerate().map(newer).collect();
    let new_row: Vec<_> = (0..compactions.len()).map(|input| move |row| rows.new_row(input, row)).collect();
    let part = |at: usize| Part { patches: &compactions[at].patches, runs: &runs[at], row: &new_row[at] };
    let parts: Vec<Part<'_>> = (0..compactions.len()).map(part).filter(|part| !part.is_empty()).collect();
    if !parts.is_empty()
        && let Some(run) = write(shared, &parts, segment.meta.points, account)?
    {
        segment.patches.add_run(run);
    }
    Ok(compactions)
}

/// Changes of one segment, and what their rows are called in the run that is written.
struct Part<'a> {
    patches: &'a PatchMemtable,
    /// Newest last.
    runs: &'a [Arc<PatchRun>],
    /// Ascending where the rows are; `None`: the row is left out.
    row: &'a dyn Fn(u32) -> Option<u32>,
}

impl Part<'_> {
    fn is_empty(&self) -> bool {
        self.patches.is_empty() && self.runs.is_empty()
    }

    /// Rows at most.
    fn len(&self) -> u64 {
        self.patches.len() as u64 + self.runs.iter().map(|run| run.len()).sum::<u64>()
    }
}

/// Writes a run and opens it. `None`: it would be empty.
fn write(shared: &StoreInner, parts: &[Part<'_>], points: u32, account: &Account) -> Result<Option<Arc<PatchRun>>> {
    let path = shared.storage.new_path("payload");
    let mut out = shared.pages.create(&path, account)?;
    let walk = Sources { parts, log: shared.log_reader()?.or_on(account), account };
    if write_rows(&walk, &mut out, account)? == 0 {
        return Ok(None);
    }
    write_texts(&walk, &mut out)?;
    out.finish(b"{}")?;
    let name = shared.storage.name_of(&path)?;
    let segments = &shared.accounts.segments;
    let open = || PatchRun::open(&name, shared.storage.open_file(&name)?, points, segments);
    let run = open_beside(shared, account, open);
    let run = run.inspect_err(|_| _ = shared.storage.discard(&name))?;
    run.listed.store(false, Ordering::SeqCst);
    Ok(Some(Arc::new(run)))
}

/// Writes the rows and their fences; returns how many rows there are.
fn write_rows(walk: &Sources<'_>, out: &mut PageWriter, account: &Account) -> Result<usize> {
    let pages = walk.parts.iter().map(Part::len).sum::<u64>().div_ceil(ROWS_PER_PAGE as u64);
    let _held = account.try_reserve(pages * 4)?;
    let (mut fences, mut rows) = (Vec::with_capacity(pages as usize), 0);
    out.begin(ROWS, Priority::Ids)?;
    walk.each(Walk::Ids, &mut |row, _| {
        if rows % ROWS_PER_PAGE == 0 {
            fences.push(row);
        }
        rows += 1;
        out.write(&row.to_le_bytes())
    })?;
    out.end()?;
    if rows > 0 {
        out.begin(FENCES, Priority::Ids)?;
        fences.iter().try_for_each(|row| out.write(&row.to_le_bytes()))?;
        out.end()?;
    }
    Ok(rows)
}

fn write_texts(walk: &Sources<'_>, out: &mut PageWriter) -> Result<()> {
    let mut end = 0u64;
    out.begin(ENDS, Priority::Payload)?;
    out.write(&end.to_le_bytes())?;
    walk.each(Walk::Lengths, &mut |_, source| {
        end += source.len();
        out.write(&end.to_le_bytes())
    })?;
    out.end()?;
    if end == 0 {
        return Ok(());
    }
    out.begin(TEXTS, Priority::Payload)?;
    walk.each(Walk::Payloads, &mut |_, source| source.text(&mut |piece| out.write(piece)))?;
    match out.end()? {
        written if written == end => Ok(()),
        written => Err(Error::bug(format!("payloads of {written} bytes where {end} were counted"))),
    }
}

/// All that goes into a run; can be walked several times, and is the same each time.
struct Sources<'a> {
    parts: &'a [Part<'a>],
    log: LogReader,
    account: &'a Account,
}

impl Sources<'_> {
    /// Calls `each` with every row, ascending, and the source that stands at its payload.
    fn each(&self, what: Walk, each: &mut dyn FnMut(u32, &mut Source<'_>) -> Result<()>) -> Result<()> {
        let mut sources = Vec::new();
        for part in self.parts {
            let patches = PatchCursor::open(part.patches, what, &self.log, self.account)?;
            sources.push(Mapped::new(Source::PatchMemtable(patches), part.row)?);
            for run in part.runs.iter().rev() {
                sources.push(Mapped::new(Source::PatchRun(PatchRunCursor::open(run, what, self.account)?), part.row)?);
            }
        }
        // Of those at one row the first is the newest. Few sources, so a plain scan beats a heap.
        while let Some(row) = sources.iter().filter_map(|mapped| mapped.row).min() {
            let mut taken = false;
            for mapped in sources.iter_mut().filter(|mapped| mapped.row == Some(row)) {
                if !std::mem::replace(&mut taken, true) {
                    each(row, &mut mapped.source)?;
                }
                mapped.source.advance()?;
                mapped.settle()?;
            }
        }
        Ok(())
    }
}

/// A source, and what its current row is called in the run that is written.
struct Mapped<'a> {
    source: Source<'a>,
    map: &'a dyn Fn(u32) -> Option<u32>,
    row: Option<u32>,
}

impl<'a> Mapped<'a> {
    fn new(source: Source<'a>, map: &'a dyn Fn(u32) -> Option<u32>) -> Result<Self> {
        let mut mapped = Self { source, map, row: None };
        mapped.settle()?;
        Ok(mapped)
    }

    /// Passes over rows that are left out.
    fn settle(&mut self) -> Result<()> {
        while let Some(row) = self.source.row() {
            self.row = (self.map)(row);
            if self.row.is_some() {
                return Ok(());
            }
            self.source.advance()?;
        }
        self.row = None;
        Ok(())
    }
}

enum Source<'a> {
    PatchMemtable(PatchCursor<'a>),
    PatchRun(PatchRunCursor),
}

impl Source<'_> {
    fn row(&self) -> Option<u32> {
        match self {
            Self::PatchMemtable(patches) => patches.window.get(patches.at).map(|entry| entry.row),
            Self::PatchRun(run) => run.row(),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::PatchMemtable(patches) => {
                patches.window.get(patches.at).map_or(0, |entry| u64::from(entry.place.len))
            }
            Self::PatchRun(run) => run.len(),
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Self::PatchMemtable(patches) => patches.advance(),
            Self::PatchRun(run) => run.advance(),
        }
    }

    fn text(&mut self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            Self::PatchMemtable(patches) => patches.text(each),
            Self::PatchRun(run) => run.text(each),
        }
    }
}

/// Patches by row, with their texts gathered a window at a time.
struct PatchCursor<'a> {
    left: Box<dyn Iterator<Item = (u32, PayloadAt)> + 'a>,
    next: Option<Entry>,
    what: Walk,
    log: &'a LogReader,
    window: Vec<Entry>,
    at: usize,
    texts: Vec<u8>,
    _memory: Reservation,
}

#[derive(Clone, Copy)]
struct Entry {
    row: u32,
    place: PayloadAt,
    /// Where the text starts among those that were gathered.
    start: usize,
}

impl<'a> PatchCursor<'a> {
    fn open(patches: &'a PatchMemtable, what: Walk, log: &'a LogReader, account: &Account) -> Result<Self> {
        let texts = patches.iter().map(|(_, at)| at.len as usize).sum::<usize>().min(WINDOW_BYTES);
        let texts = if what == Walk::Payloads { texts } else { 0 };
        let window = patches.len().min(WINDOW);
        let memory = account.try_reserve((texts + window * (size_of::<Entry>() + 4)) as u64)?;
        let (window, texts) = (Vec::with_capacity(window), Vec::with_capacity(texts));
        let mut cursor =
            Self { left: Box::new(patches.iter()), next: None, what, log, window, at: 0, texts, _memory: memory };
        cursor.fill()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        if self.at == self.window.len() { self.fill() } else { Ok(()) }
    }

    /// The next window: as many as fit. A text that is longer than a window stands in one alone, and
    /// is not gathered.
    fn fill(&mut self) -> Result<()> {
        self.window.clear();
        self.texts.clear();
        self.at = 0;
        let mut bytes = 0;
        while self.window.len() < WINDOW {
            let following = || self.left.next().map(|(row, place)| Entry { row, place, start: 0 });
            let Some(mut entry) = self.next.take().or_else(following) else { break };
            entry.start = bytes;
            bytes += entry.place.len as usize;
            if bytes > WINDOW_BYTES && !self.window.is_empty() {
                self.next = Some(entry);
                break;
            }
            self.window.push(entry);
        }
        match self.what == Walk::Payloads && self.window.last().is_some_and(|last| !last.is_long()) {
            true => self.gather(),
            false => Ok(()),
        }
    }

    /// Reads the window's texts in the order in which they stand in the log.
    fn gather(&mut self) -> Result<()> {
        let mut order: Vec<u32> = (0..self.window.len() as u32).collect();
        order.sort_unstable_by_key(|at| {
            let place = self.window[*at as usize].place;
            (place.record, place.at)
        });
        let bytes: usize = self.window.iter().map(|entry| entry.place.len as usize).sum();
        self.texts.resize(bytes, 0);
        let mut reader = RecordReader::new(self.log);
        for at in order {
            let Entry { place, start, .. } = self.window[at as usize];
            self.texts[start..start + place.len as usize].copy_from_slice(reader.payload(place)?);
        }
        Ok(())
    }

    fn text(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some(entry) = self.window.get(self.at) else { return Ok(()) };
        match entry.is_long() {
            true => each(RecordReader::new(self.log).payload(entry.place)?),
            false => each(&self.texts[entry.start..entry.start + entry.place.len as usize]),
        }
    }
}

impl Entry {
    fn is_long(&self) -> bool {
        self.place.len as usize > WINDOW_BYTES
    }
}
