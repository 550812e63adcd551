//! Work aside from requests: flush, merge, vacuum, which write a new segment and swap it in; and the
//! compaction of payload patches (see `patch_compaction.rs`).
//!
//! ```text
//!   prepare (no lock)           write the new file from a snapshot of what is alive
//!   commit  (change lock, short) carry over deaths and payloads since the snapshot, swap the view
//!   then                        manifest; the old files go when their last reader leaves
//! ```
//!
//! Two threads: a long merge must not keep a flush waiting, or writes would wait for it too. Each has
//! memory reserved for good, so freeing memory never waits for memory.

pub(crate) mod field_index;
pub(crate) mod flush;
pub(crate) mod manifest;
pub(crate) mod merge;
pub(crate) mod patch_compaction;
pub(crate) mod policy;
pub(crate) mod progress;

use crate::background::flush::FlushRows;
use crate::background::merge::MergeRows;
use crate::background::policy::{Rules, Size};
use crate::background::progress::{FLUSH, MERGE, Reporter};
use crate::collection::health::FaultKind;
use crate::collection::{Collection, View};
use crate::inner::{StoreInner, idle};
use crate::memtable::patches::PATCH_BYTES;
use crate::memtable::{CLEAN, Memtable};
use crate::residency::idle_step;
use crate::segment::meta::SegmentMeta;
use crate::segment::overlay::PatchRun;
use crate::segment::write::{Rows, write_segment};
use crate::segment::{Segment, SegmentView};
use crate::state::request::Request;
use parking_lot::MutexGuard;
use ramekin_ann::Work;
use ramekin_base::lock::Guard;
use ramekin_base::{Error, Kind, Result, supervise};
use ramekin_memory::{Account, Reservation, allocator_purge};
use ramekin_storage::ReserveClaim;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Without a write for this long a collection is quiet: what is small is tidied up.
const QUIET_MS: u64 = 2_000;
/// A memtable with fewer bytes stays in memory while it is quiet.
const QUIET_FREEZE_BYTES: u64 = 64 << 10;
/// The same of its points, where some field has an index; and of bytes of payloads.
const QUIET_FREEZE_POINTS: u64 = 1000;
const QUIET_FREEZE_PAYLOADS: u64 = 4 << 20;
/// A part whose fields found no memory is moved once it is one of so many of what it may be.
const SHORT_PART: u64 = 4;

/// Flushes the oldest immutable part of some collection, or compacts the patches that wait for it. False: there is none.
pub(crate) fn flush_one(shared: &StoreInner) -> Result<bool> {
    shared.check_open()?;
    let immutable = shared.collections().iter().find_map(|collection| {
        // One that failed waits for its turn, and keeps nobody else from his.
        let part = collection
            .view
            .load()
            .immutable
            .first()
            .filter(|_| !shared.waits(collection, &FaultKind::Flush))
            .map(|part| part.own.clone());
        part.map(|part| (collection.clone(), part))
    });
    let Some((collection, part)) = immutable else { return compact_patches_one(shared) };
    let _awake = idle::work(shared)?;
    let sealed = supervise::caught("a seal", || {
        shared.timed(&shared.timings.flush, || flush(shared, &collection.name, &collection, &part))
    });
    // It gave some of its memory to open the file and to name it in the manifest.
    take_back_opening(shared);
    shared.note(&collection, FaultKind::Flush, &collection.name, &sealed);
    shared.flushed.raise();
    sealed.map(|()| true)
}

/// What a flush gave to open a file is its own again, but for what is in use.
fn take_back_opening(shared: &StoreInner) {
    {
        let mut opens = shared.flush_opens.lock();
        shared.accounts.segments.give_min_reservation_to(OPEN_GIVES, &shared.accounts.flush);
        _ = shared.accounts.segments.set_min_reservation(0);
        *opens = false;
    }
    shared.accounts.flush.raise_min_reservation(shared.limits().flush_work);
}

/// Opens what a flush or a merge wrote beside segments: where memory is short with some of what its `account` has for good, since
/// what waits for memory may wait for this.
fn open_beside<T>(shared: &StoreInner, account: &Account, open: impl Fn() -> Result<T>) -> Result<T> {
    let first = open();
    if !first.as_ref().is_err_and(|error| error.kind().is_memory()) {
        return first;
    }
    let (segments, is_flush) = (&shared.accounts.segments, account.path() == shared.accounts.flush.path());
    {
        let mut opens = shared.flush_opens.lock();
        account.give_min_reservation_to(OPEN_GIVES, segments);
        *opens |= is_flush;
    }
    let opened = open();
    if is_flush {
        take_back_opening(shared);
    } else {
        let flush_opens = shared.flush_opens.lock();
        if !*flush_opens {
            _ = segments.set_min_reservation(0);
        }
    }
    opened
}

impl StoreInner {
    /// Lets one flush or patch compaction happen: in this thread where there is no background, else by waiting for it.
    pub(crate) fn flush_or_wait(&self, seen: u64) -> Result<()> {
        if self.single_threaded.load(Ordering::SeqCst) {
            return flush_one(self).map(|_| ());
        }
        self.check_flushing()?;
        self.wait_for_flush(seen)?;
        self.check_flushing()
    }
}

/// Flushes and compacts all that waits. False: some of it waits on, since the disk is full.
pub(crate) fn flush_waiting(shared: &StoreInner) -> Result<bool> {
    loop {
        match flush_one(shared) {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            Err(error) if error.kind() == Kind::NoSpace => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Writes out the changed payloads of a collection that waits for it. False: none does.
fn compact_patches_one(shared: &StoreInner) -> Result<bool> {
    let is_due = |held: &&Arc<Collection>| {
        held.compaction_due.load(Ordering::SeqCst) && !shared.waits(held, &FaultKind::PatchCompaction)
    };
    let Some(collection) = shared.collections().iter().find(is_due).cloned() else { return Ok(false) };
    let _awake = idle::work(shared)?;
    let folded = supervise::caught("a fold", || {
        shared.reach("fold");
        shared.timed(&shared.timings.fold, || patch_compaction::collection(shared, &collection))
    });
    if folded.is_ok() {
        // Whoever asked meanwhile asks again if this was not enough.
        collection.compaction_due.store(false, Ordering::SeqCst);
    }
    shared.note(&collection, FaultKind::PatchCompaction, &collection.name, &folded);
    shared.flushed.raise();
    folded.map(|()| true)
}

fn flush(shared: &StoreInner, name: &str, collection: &Collection, part: &Arc<Memtable>) -> Result<()> {
    shared.reach("seal");
    let account = &shared.accounts.flush;
    let dead = {
        let _change = collection.change.lock();
        part.moment().dead
    };
    let mut rows = FlushRows::new(part, dead, shared.log_reader()?.or_on(account), account)?;
    let segment = match rows.is_empty() {
        true => None,
        false => shared.frees(ReserveClaim::Tidy, || build(shared, name, collection, &mut rows, account, FLUSH))?,
    };
    let manifest = shared.manifest.lock();
    let mut none = shared.accounts.segments.try_reserve(0)?;
    let old = {
        let _change = collection.change.lock();
        if let Some(segment) = &segment {
            let mut died = Vec::new();
            part.read().moment().dead.since(&rows.dead_before, |slot| died.extend(rows.row_of(slot)));
            segment.kill(died.into_iter(), &mut none);
            if let Some(mut memory) = part.take_owed() {
                segment.patches.put(rows.changed(), &mut memory);
            }
        }
        collection.swap(|view| View {
            active: view.active.clone(),
            immutable: view.immutable.iter().filter(|held| !Arc::ptr_eq(&held.own, part)).cloned().collect(),
            segments: view.segments.iter().cloned().chain(segment.as_ref().map(Segment::view)).collect(),
        })
    };
    drop(old);
    drop(rows);
    settle(shared, collection, segment, manifest)
}

/// One look around by the merging thread: a merge, or an index of a field, which a merge would have made void.
pub(crate) fn merge_step(shared: &StoreInner) -> Result<bool> {
    shared.check_open()?;
    // An index takes room; what is asked of it is answered without it meanwhile.
    Ok(merge_one(shared)? || !shared.full.is_on() && field_index::build_one(shared)?)
}

/// Merges or rewrites segments of some collection, if the policy wants it. False: nothing to do.
pub(crate) fn merge_one(shared: &StoreInner) -> Result<bool> {
    for collection in shared.collections().iter() {
        let chosen = match shared.full.is_on() {
            true => wanted_when_full(shared, collection),
            false => wanted_merge(shared, collection, is_quiet(shared, collection)),
        };
        let Some(chosen) = chosen else {
            // What failed is not wanted any more.
            collection.health.clear(&FaultKind::Merge);
            continue;
        };
        if shared.waits(collection, &FaultKind::Merge) {
            continue;
        }
        let merged = supervise::caught("a merge", || {
            idle::work_on_merge(shared).and_then(|_merging| {
                shared.timed(&shared.timings.merge, || merge(shared, &collection.name, collection, chosen))
            })
        });
        shared.note(collection, FaultKind::Merge, &collection.name, &merged);
        if merged.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
            // Others may need less.
            continue;
        }
        return merged.map(|()| true);
    }
    Ok(false)
}

fn merge(shared: &StoreInner, name: &str, collection: &Collection, inputs: Vec<Arc<Segment>>) -> Result<()> {
    shared.reach("merge");
    let account = &shared.accounts.merge;
    let what = if inputs.len() == 1 { "vacuum" } else { MERGE };
    let frees = shared.full.is_on();
    let folded = if_frees(shared, frees, || fold_inputs(shared, collection, &inputs))?;
    let mut rows = MergeRows::new(inputs, folded, account)?;
    let segment = match rows.len_at_most() {
        0 => None,
        _ => if_frees(shared, frees, || build(shared, name, collection, &mut rows, account, what))?,
    };
    let manifest = shared.manifest.lock();
    let swapped = swap_merged(shared, collection, &rows, segment.as_ref());
    drop(rows);
    if swapped.is_err() {
        // What its inputs had changed may be in files by now.
        collection.publish();
        segment.iter().try_for_each(|segment| shared.storage.discard(&segment.name))?;
    }
    swapped?;
    settle(shared, collection, segment, manifest)
}

/// A merge for which there was room when it began does without the reserve.
fn if_frees<T>(shared: &StoreInner, frees: bool, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    if frees { shared.frees(ReserveClaim::Tidy, work) } else { work() }
}

/// Brings each input's changed payloads into one run, so that the merge reads files only: what is in
/// memory goes on changing. Others have their turn between two inputs; what they compact then is carried over at the end.
fn fold_inputs(
    shared: &StoreInner,
    collection: &Collection,
    inputs: &[Arc<Segment>],
) -> Result<Vec<Option<Arc<PatchRun>>>> {
    let whole = |input: &Arc<Segment>| {
        if input.live() == 0 {
            return Ok(None);
        }
        let _manifest = shared.manifest.lock();
        patch_compaction::segment(shared, input, true, &shared.accounts.merge)?;
        collection.publish();
        Ok(input.patches.runs().last().cloned())
    };
    inputs.iter().map(whole).collect()
}

/// Puts a merged segment in the place of its inputs, with what happened to them since the merge began.
/// The caller holds `StoreInner::manifest`.
fn swap_merged(
    shared: &StoreInner,
    collection: &Collection,
    rows: &MergeRows,
    segment: Option<&Arc<Segment>>,
) -> Result<()> {
    let _compactions =
        segment.map(|segment| patch_compaction::carry(shared, rows, segment, &shared.accounts.merge)).transpose()?;
    // Memory for the few that changed meanwhile: nobody waits for memory under the lock of changes.
    let (mut memory, mut none) = (patch_memory(shared, rows)?, shared.accounts.segments.try_reserve(0)?);
    let old = {
        let _change = collection.change.lock();
        if let Some(segment) = segment {
            carry_fresh(rows, segment, &mut memory)?;
            for (input, old) in rows.inputs().iter().enumerate() {
                let mut died = Vec::new();
                old.dead().since(&rows.dead_before[input], |row| died.extend(rows.new_row(input, row)));
                segment.kill(died.into_iter(), &mut none);
            }
        }
        let is_input = |held: &SegmentView| rows.inputs().iter().any(|input| Arc::ptr_eq(input, &held.own));
        collection.swap(|view| View {
            active: view.active.clone(),
            immutable: view.immutable.clone(),
            segments: view
                .segments
                .iter()
                .filter(|held| !is_input(held))
                .cloned()
                .chain(segment.map(Segment::view))
                .collect(),
        })
    };
    drop(old);
    Ok(())
}

/// Memory for what changed since the changes before were carried over, and as much again for what changes meanwhile.
fn patch_memory(shared: &StoreInner, rows: &MergeRows) -> Result<Reservation> {
    let fresh: usize = rows.inputs().iter().map(|input| input.patches.active_len()).sum();
    shared.accounts.patches.try_reserve((2 * fresh + 64) as u64 * PATCH_BYTES)
}

/// The payloads that changed while the changes before them were carried over: few, so they stay in memory.
fn carry_fresh(rows: &MergeRows, segment: &Segment, memory: &mut Reservation) -> Result<()> {
    for (input, old) in rows.inputs().iter().enumerate() {
        let fresh = old.patches.active();
        let bytes = fresh.len() as u64 * PATCH_BYTES;
        if memory.bytes() < bytes {
            memory.grow_no_reclaim(bytes - memory.bytes())?;
        }
        let moved = fresh.iter().filter_map(|(row, at)| Some((rows.new_row(input, row)?, at)));
        segment.patches.put(moved.collect(), memory);
    }
    Ok(())
}

/// After a swap: the manifest, then what is to be resident. A collection that was dropped meanwhile
/// is in no manifest, so its new file goes at once.
fn settle(
    shared: &StoreInner,
    collection: &Collection,
    segment: Option<Arc<Segment>>,
    manifest: Guard<MutexGuard<'_, ()>>,
) -> Result<()> {
    if let Some(segment) = segment.as_ref().filter(|_| collection.is_dropped()) {
        return shared.storage.discard(&segment.name);
    }
    // What read the old rows and wrote the new file is gone by now too.
    allocator_purge();
    let committed = manifest::commit(shared);
    if let Some(segment) = segment.filter(|_| committed.is_ok() && collection.is_dropped()) {
        // It went just before that was written, which may not name the file then.
        _ = shared.storage.discard(&segment.name);
    }
    // Sections are loaded without it: others that are done need not wait for that.
    drop(manifest);
    crate::residency::plan(shared);
    committed
}

/// Per cent of the free memory that a build plans with, and threads at most: its account is its own, so what does not
/// fit is planned smaller. Freeing memory never waits for memory.
const BUILD_ATTEMPTS: [(u64, usize); 4] = [(100, usize::MAX), (65, 1), (40, 1), (25, 1)];

/// Writes the file of a new segment and opens it. `None`: no row was alive.
fn build(
    shared: &StoreInner,
    name: &str,
    collection: &Collection,
    rows: &mut dyn Rows,
    account: &Account,
    what: &'static str,
) -> Result<Option<Arc<Segment>>> {
    let config = collection.config.load_full();
    let reporter = Reporter::new(shared, name, collection, what);
    let progress = |step| reporter.step(step);
    let was_full = shared.full.is_on();
    // A merge that goes on while the disk fills up would take what is kept for those who free it.
    let is_in_the_way = || what != FLUSH && !was_full && shared.full.is_on();
    let cancelled = || shared.is_closing() || collection.is_dropped() || is_in_the_way();
    let work = |threads| Work {
        disk: shared.options.disk.clone(),
        temp: shared.temp.join(if what == FLUSH { FLUSH } else { MERGE }),
        account: account.clone(),
        clock: shared.options.clock.clone(),
        seed: 1,
        threads,
        progress: &progress,
        cancelled: &cancelled,
    };
    let mut attempts = BUILD_ATTEMPTS.iter();
    let (path, out, meta) = loop {
        let Some((percent, threads)) = attempts.next() else { return Err(Error::bug("a build without an attempt")) };
        let path = shared.storage.new_path("seg");
        let mut out = shared.pages.create(&path, account)?;
        let work = work(shared.options.build_threads.min(*threads));
        let meta = write_segment(rows, &config, &mut out, &work, *percent);
        let is_short = meta.as_ref().is_err_and(|error| error.kind().is_memory());
        if !is_short || attempts.len() == 0 {
            break (path, out, meta);
        }
        if let Err(error) = &meta {
            tracing::info!(
                collection = name,
                "{what}: a smaller build is planned, since this one had too little memory: {error}"
            );
        }
    };
    drop(reporter);
    // The build has let go of much.
    allocator_purge();
    let Some(meta) = meta? else { return Ok(None) };
    let json = serde_json::to_vec(&meta)
        .map_err(|error| Error::bug(format!("a segment does not describe itself: {error}")))?;
    out.finish(&json)?;
    let file_name = shared.storage.name_of(&path)?;
    let segment = open(shared, what, &file_name).inspect_err(|_| _ = shared.storage.discard(&file_name))?;
    log_done(name, what, &meta, &segment);
    Ok(Some(Arc::new(segment)))
}

/// So often a merge looks again whether there is memory to open what it has written, and how long it waits in between.
const OPEN_PATIENCE: (u32, Duration) = (200, Duration::from_millis(50));

/// Bytes of what a build has for good that may serve to open its file.
const OPEN_GIVES: u64 = 512 << 10;

/// Opens what was built. A flush must not wait for memory that only it can free (its points have left room for it); a merge
/// has taken long, and nothing waits for it.
fn open(shared: &StoreInner, what: &str, name: &str) -> Result<Segment> {
    let (segments, open_file) = (&shared.accounts.segments, || shared.storage.open_file(name));
    let open = || Segment::open(name, open_file()?, segments);
    // What it was built with is free now. Requests that wait for a flush may hold the room that its points left.
    if what == FLUSH {
        let mut opens = shared.flush_opens.lock();
        shared.accounts.flush.give_min_reservation_to(OPEN_GIVES, segments);
        *opens = true;
    }
    let mut opened = open();
    if what != FLUSH && opened.as_ref().is_err_and(|error| error.kind().is_memory()) {
        // That of a merge comes back before the next one.
        shared.accounts.merge.give_min_reservation_to(OPEN_GIVES, segments);
        opened = open();
        // What it holds now it keeps; a minimum reservation that shrinks cannot fail.
        let flush_opens = shared.flush_opens.lock();
        if !*flush_opens {
            _ = segments.set_min_reservation(0);
        }
    }
    // In one thread with all others nobody would release anything meanwhile.
    let may_wait = what == MERGE && !shared.single_threaded.load(Ordering::SeqCst);
    for _ in 0..if may_wait { OPEN_PATIENCE.0 } else { 0 } {
        if shared.is_closing() || !opened.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
            break;
        }
        segments.wait_for_release(OPEN_PATIENCE.1);
        opened = open();
    }
    opened
}

fn log_done(name: &str, what: &str, meta: &SegmentMeta, segment: &Segment) {
    let (points, bytes) = (meta.points, segment.file.bytes());
    tracing::info!(collection = name, points, bytes, "{what} done");
}

pub(crate) fn is_quiet(shared: &StoreInner, collection: &Collection) -> bool {
    shared.now_ms().saturating_sub(collection.written_ms.load(Ordering::Relaxed)) >= QUIET_MS
}

/// The segments that should become one.
pub(crate) fn wanted_merge(shared: &StoreInner, collection: &Collection, quiet: bool) -> Option<Vec<Arc<Segment>>> {
    let view = collection.view.load_full();
    let whole = whole(&view);
    let chosen = policy::choose(&sizes(&whole), rules(shared, collection), quiet)?;
    Some(chosen.into_iter().map(|at| whole[at].clone()).collect())
}

/// The segment that is written anew, or goes, while the disk is full.
fn wanted_when_full(shared: &StoreInner, collection: &Collection) -> Option<Vec<Arc<Segment>>> {
    let view = collection.view.load_full();
    let whole = whole(&view);
    let on_disk: Vec<u64> = whole.iter().map(|segment| segment.bytes_on_disk()).collect();
    let free = shared.options.disk.space(shared.storage.folder()).map_or(0, |space| space.free);
    let room = free + shared.storage.reserve().for_tidying();
    let chosen = policy::when_full(&sizes(&whole), &on_disk, rules(shared, collection), room)?;
    Some(vec![whole[chosen].clone()])
}

/// Segments that wait to be merged, beyond those of one merge.
pub(crate) fn merge_debt(shared: &StoreInner, collection: &Collection) -> usize {
    policy::compaction_debt(&sizes(&whole(&collection.view.load())), rules(shared, collection))
}

/// The segments that can be read to their ends: one that is damaged would only stop the merge of the others.
fn whole(view: &View) -> Vec<Arc<Segment>> {
    view.segments.iter().map(|segment| &segment.own).filter(|segment| !segment.is_damaged()).cloned().collect()
}

fn sizes(segments: &[Arc<Segment>]) -> Vec<Size> {
    let size = |segment: &Arc<Segment>| Size {
        bytes: segment.vector_bytes(),
        points: u64::from(segment.meta.points),
        dead: segment.dead().count(),
    };
    segments.iter().map(size).collect()
}

fn rules(shared: &StoreInner, collection: &Collection) -> Rules {
    let config = collection.config.load();
    Rules {
        deleted_threshold: config.deleted_threshold,
        vacuum_min_vectors: config.vacuum_min_vectors,
        unit_bytes: shared.limits().flush_bytes / 2,
        inputs_max: policy::inputs_max(shared.limits().merge_work),
    }
}

/// True where a quiet collection should move its memtable into a segment: scanning the part costs every query more than
/// an index would, since there are segments already, since payloads are read from the log that an index knows, or since
/// payloads are long.
pub(crate) fn wants_rotation(collection: &Collection) -> bool {
    let (view, has_indexes) = (collection.view.load(), !collection.config.load().indexes.is_empty());
    let (active, live) = (view.active.read(), view.active.moment.live());
    let is_slow = has_indexes && live >= QUIET_FREEZE_POINTS
        || active.payload_bytes() >= QUIET_FREEZE_PAYLOADS
        || !view.segments.is_empty() && active.bytes() >= QUIET_FREEZE_BYTES;
    live > 0 && is_slow && view.active.from() != CLEAN
}

/// True where this should be while it is written to, too: fields of its points found no memory, so that filters read payloads.
fn wants_rotation_soon(shared: &StoreInner, collection: &Collection) -> bool {
    let view = collection.view.load();
    let active = view.active.read();
    let is_worth_it = active.bytes() >= shared.limits().flush_bytes / SHORT_PART;
    active.is_short() && is_worth_it && view.active.moment.live() >= QUIET_FREEZE_POINTS && view.active.from() != CLEAN
}

/// Is anything waiting to be flushed, built or merged?
pub(crate) fn is_busy(shared: &StoreInner, collection: &Collection) -> bool {
    let view = collection.view.load();
    !view.immutable.is_empty()
        || collection.compaction_due.load(Ordering::SeqCst)
        || collection.progress.first().is_some()
        || wants_rotation(collection)
        || wanted_merge(shared, collection, true).is_some()
        || field_index::is_to_build(shared, collection)
}

/// One look around by the flushing thread. True: something was done.
pub(crate) fn flush_step(shared: &StoreInner) -> Result<bool> {
    if flush_one(shared)? || shared.full_disk_step()? {
        return Ok(true);
    }
    for collection in shared.collections().iter() {
        if is_quiet(shared, collection) && wants_rotation(collection) || wants_rotation_soon(shared, collection) {
            return Ok(shared.queue.put(Request::Rotate(collection.clone())).is_ok());
        }
    }
    if shared.manifest_dirty.load(Ordering::SeqCst) {
        let _manifest = shared.manifest.lock();
        return manifest::commit(shared).map(|()| true);
    }
    Ok(manifest::raise_watermark(shared, manifest::WATERMARK_EVERY_MS)?
        || idle_step::step(shared, &|collection| is_busy(shared, collection)))
}

/// Between two looks where there was nothing to do, and the most that failures lengthen it to: 4 s.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_DOUBLINGS: u32 = 4;

/// Runs `step` until the store closes; waits for work between steps, and after failures longer and longer.
pub(crate) fn run(shared: &StoreInner, step: fn(&StoreInner) -> Result<bool>) {
    let mut failures = 0;
    while !shared.is_closing() {
        shared.reach("background");
        let seen = shared.work.count();
        let did = supervise::caught("a turn of the background", || step(shared));
        shared.pages.remove_dropped();
        failures = if did.is_err() { PAUSE_DOUBLINGS.min(failures + 1) } else { 0 };
        match did {
            // One thread's work may be the other's: a flush makes a segment that can be merged.
            Ok(true) => shared.work.raise(),
            Ok(false) => _ = shared.work.wait_past(seen, PAUSE),
            Err(_) => _ = shared.work.wait_past(shared.work.count(), PAUSE * 2u32.pow(failures)),
        }
    }
}
