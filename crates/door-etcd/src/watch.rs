//! Watches: one task for each stream. A watcher is a position in the revisions, never a queue of events.
//!
//! ```text
//!   requests ─► create, cancel, progress ─┐
//!   something is durable ─────────────────┴─► watchers that stand on one revision are read for together ─► their events ─► out
//!                                                               │ the client does not read: the task waits, and holds one batch
//! ```

use crate::auth::{Access, Credentials};
use crate::delivery::{Batch, Batches, DUE_BYTES, Delivery, Due, Next, PATIENCE, Paid, Sent, WANTED_BYTES};
use crate::door::Door;
use crate::metrics::Open;
use crate::recent::{SHARING, Shared};
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::watch_request::RequestUnion;
use crate::wire::etcdserverpb::watch_server::Watch;
use ramekin_memory::Reservation;
use ramekin_versions::{EVENT_BYTES, KeyRange, Versions, errors};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use wanted::{Wanted, contains};

/// Revisions that are read at one go, and about how many bytes of events: a thirty-second of the budget for all streams together.
const REVISIONS: i64 = 1000;
const BATCH_BYTES: RangeInclusive<u64> = 8 << 10..=256 << 10;
/// Responses that may wait for the client before nothing more is asked of it.
const WAITING: usize = 128;
/// What a watcher takes besides its keys: its places in lists.
const WATCHER_BYTES: u64 = 320;
/// What is booked of an open stream that has nothing to send: its call, its first answers and what the wire holds of them. Measured as
/// 13.9 KiB over 200 streams of one connection.
const STREAM_BYTES: u64 = 14 << 10;

/// What watchers of one key each take, of so many bytes, with their streams on one connection.
pub fn watch_bytes(watchers: u64, streams: u64, key_bytes: u64) -> u64 {
    watchers.saturating_mul(watcher_bytes(key_bytes)) + streams.saturating_mul(STREAM_BYTES)
}

/// One watcher; `keys` are the bytes of its key and of its range's end.
fn watcher_bytes(keys: u64) -> u64 {
    WATCHER_BYTES + 2 * keys
}
/// So many streams are many: all together they read about once in this time, as long as something is new all the time.
const MANY: u64 = 20;
const READ_EVERY: Duration = Duration::from_micros(50);
/// What found no memory is tried again after so long; where it is one revision that finds none, later each time.
const AGAIN: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_secs(2);
/// Ranges that are compared with keys before others have their turn.
const TURN: usize = 20_000;
/// What a batch takes in the list of those that are delivered.
const PLACED_BYTES: u64 = 32;

struct Watcher {
    keys: KeyRange,
    /// From which revision on it was asked for; 0: from then on.
    start: i64,
    /// The first revision whose events were not sent.
    next: i64,
    /// It has had all that there was: from now on it gets each revision by itself.
    is_synced: bool,
    /// It has had all from its start on that is no newer: what comes next was not compacted when it was asked for.
    is_under_way: bool,
    no_put: bool,
    no_delete: bool,
    prev_kv: bool,
    progress: bool,
    fragment: bool,
    /// Something was sent since the last look at progress.
    is_busy: bool,
    _memory: Reservation,
    _open: Open,
}

/// The watchers of a stream.
#[derive(Default)]
struct Watchers {
    all: BTreeMap<i64, Watcher>,
    /// Those of one key each, and those of ranges.
    by_key: HashMap<Vec<u8>, BTreeSet<i64>>,
    ranges: BTreeSet<i64>,
    by_next: BTreeMap<i64, BTreeSet<i64>>,
    next_id: i64,
}

impl Watchers {
    fn add(&mut self, id: i64, watcher: Watcher) {
        match watcher.keys.is_one() {
            true => _ = self.by_key.entry(watcher.keys.key.clone()).or_default().insert(id),
            false => _ = self.ranges.insert(id),
        }
        self.by_next.entry(watcher.next).or_default().insert(id);
        self.all.insert(id, watcher);
    }

    fn remove(&mut self, id: i64) -> bool {
        let Some(watcher) = self.all.remove(&id) else { return false };
        self.ranges.remove(&id);
        if let Some(ids) = self.by_key.get_mut(&watcher.keys.key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_key.remove(&watcher.keys.key);
            }
        }
        self.forget_next(watcher.next, id);
        true
    }

    fn forget_next(&mut self, next: i64, id: i64) {
        if let Some(ids) = self.by_next.get_mut(&next) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_next.remove(&next);
            }
        }
    }

    /// All that stood on a revision stand on another one now.
    fn advance(&mut self, from: i64, to: i64, is_synced: bool) {
        let ids = self.by_next.remove(&from).unwrap_or_default();
        for id in &ids {
            if let Some(watcher) = self.all.get_mut(id) {
                watcher.next = to;
                watcher.is_synced = is_synced;
                watcher.is_under_way = true;
            }
        }
        self.by_next.entry(to).or_default().extend(ids);
    }

    /// Watchers of a key.
    fn of(&self, key: &[u8]) -> impl Iterator<Item = (i64, &Watcher)> {
        let exact = self.by_key.get(key).into_iter().flatten();
        let all = exact.chain(&self.ranges).filter_map(|id| Some((*id, self.all.get(id)?)));
        all.filter(|(_, watcher)| watcher.keys.contains(key))
    }

    /// What some of them watch: each of their ranges once, and which of them watch it.
    fn wanted(&self, ids: &BTreeSet<i64>) -> BTreeMap<(Vec<u8>, Vec<u8>), Vec<i64>> {
        let mut wanted: BTreeMap<_, Vec<i64>> = BTreeMap::new();
        for (id, watcher) in ids.iter().filter_map(|id| Some((*id, self.all.get(id)?))) {
            let KeyRange { key, end } = watcher.keys.clone();
            wanted.entry((key, end)).or_default().push(id);
        }
        wanted
    }

    fn new_id(&mut self) -> i64 {
        while self.all.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        // None is given twice, also if its watcher has gone.
        self.next_id += 1;
        self.next_id - 1
    }
}

/// A revision whose events find no memory.
struct Short {
    from: i64,
    since: Instant,
    pause: Duration,
    is_weighed: bool,
}

/// A stream.
struct Task {
    door: Door,
    credentials: Credentials,
    watchers: Watchers,
    /// Events that are sent before all that stands in `out`.
    delivery: Delivery,
    out: VecDeque<pb::WatchResponse>,
    /// So many revisions are read at one go, as memory allows.
    revisions: i64,
    short: Option<Short>,
    /// The client asked how far it is: it hears once it is as far as it can be.
    owes_progress: bool,
    _open: Open,
}

impl Drop for Task {
    fn drop(&mut self) {
        // It counts until it is gone.
        if self.streams() <= SHARING {
            self.door.inner.recent.clear();
        }
    }
}

#[tonic::async_trait]
impl Watch for Door {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<pb::WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (send, sent) = mpsc::channel(1);
        let (watchers, out, credentials) = (Watchers::default(), VecDeque::new(), Credentials::from(&request));
        let open = Open::new(self, |done| &done.streams);
        let task = Task {
            door: self.clone(),
            credentials,
            watchers,
            delivery: Delivery::default(),
            out,
            revisions: REVISIONS,
            short: None,
            owes_progress: false,
            _open: open,
        };
        tokio::spawn(task.run(request.into_inner(), send));
        Ok(Response::new(Box::pin(Paid::new(sent))))
    }
}

type Sender = mpsc::Sender<Sent>;

impl Task {
    /// Ends when the client has left.
    async fn run(mut self, mut asked: Streaming<pb::WatchRequest>, send: Sender) {
        let mut changed = self.door.inner.host.changed.clone();
        let every = self.door.inner.host.progress_every;
        let mut progress_at = Instant::now() + every;
        let (mut send_after, mut read_after) = (Instant::now(), Instant::now());
        let mut is_open = true;
        loop {
            let newest = *changed.borrow_and_update();
            let is_pausing = Instant::now() < send_after;
            if self.is_idle() {
                self.delivery = Delivery::default();
                if Instant::now() >= read_after && self.is_behind(newest) {
                    let pause = self.read(newest).await;
                    read_after = Instant::now() + pause;
                }
            }
            if self.owes_progress && !self.is_behind(newest) {
                self.owes_progress = false;
                self.push(newest, pb::WatchResponse { watch_id: -1, ..pb::WatchResponse::default() });
            }
            let waits = self.is_idle() && self.is_behind(newest);
            if waits && Instant::now() >= read_after {
                continue;
            }
            tokio::select! {
                biased;
                permit = send.reserve(), if !self.is_idle() && !is_pausing => match (permit, self.next_sent()) {
                    (Ok(permit), Next::Sent(sent)) => permit.send(sent),
                    (Ok(_), Next::Wait) => send_after = Instant::now() + AGAIN,
                    (Ok(_), Next::Refused(id, revision)) => self.refuse(id, (revision, newest)),
                    (Err(_), _) => return,
                },
                request = asked.next(), if is_open && self.out.len() < WAITING => match request {
                    // What was acknowledged before it was asked is not news to it.
                    Some(Ok(request)) => {
                        let newest = *changed.borrow();
                        self.take(request, newest);
                    }
                    // The client sends no more; what it watches goes on.
                    None => is_open = false,
                    Some(Err(_)) => return,
                },
                change = changed.changed(), if self.is_idle() && !waits => if change.is_err() {
                    _ = send.send((Err(Status::unavailable("etcdserver: watch canceled")), None)).await;
                    return;
                },
                () = sleep_until(if waits { read_after } else { send_after }), if waits || is_pausing => {}
                () = sleep_until(progress_at) => {
                    progress_at = Instant::now() + every;
                    self.progress(newest);
                }
                () = send.closed() => return,
            }
        }
    }

    /// Between two reads: the more streams there are, the longer, so that each read finds more and all of them together read no
    /// oftener than few would.
    fn pause(&self) -> Duration {
        let streams = self.streams();
        if streams < MANY { Duration::ZERO } else { READ_EVERY * streams as u32 }
    }

    /// Streams that are open.
    fn streams(&self) -> u64 {
        self.door.inner.done.streams.load(Ordering::Relaxed)
    }

    /// Whether nothing waits to be sent.
    fn is_idle(&self) -> bool {
        self.out.is_empty() && self.delivery.is_empty()
    }

    /// What is sent next; something is.
    fn next_sent(&mut self) -> Next {
        match self.delivery.is_empty() {
            true => self.out.pop_front().map_or(Next::Wait, |response| Next::Sent((Ok(response), None))),
            false => self.delivery.next(&self.door),
        }
    }

    fn is_behind(&self, newest: i64) -> bool {
        self.watchers.by_next.first_key_value().is_some_and(|(next, _)| *next <= newest)
    }

    fn push(&mut self, revision: i64, response: pb::WatchResponse) {
        self.out.push_back(pb::WatchResponse { header: self.door.header(revision), ..response });
    }

    fn take(&mut self, request: pb::WatchRequest, newest: i64) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create, newest),
            Some(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id }))
                if self.watchers.remove(watch_id) =>
            {
                self.push(newest, pb::WatchResponse { watch_id, canceled: true, ..pb::WatchResponse::default() });
            }
            // A watcher whose revision is to come has no place yet that could be told.
            Some(RequestUnion::ProgressRequest(_)) => {
                let all = &self.watchers.all;
                self.owes_progress |= !all.is_empty() && all.values().all(|watcher| watcher.start <= newest);
            }
            Some(RequestUnion::CancelRequest(_)) | None => {}
        }
    }

    fn create(&mut self, create: pb::WatchCreateRequest, newest: i64) {
        let is_whole = create.key.is_empty();
        let keys = KeyRange { key: if is_whole { vec![0] } else { create.key }, end: create.range_end };
        let refused = |reason: &str| pb::WatchResponse {
            watch_id: -1,
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..pb::WatchResponse::default()
        };
        if create.start_revision < 0 {
            return self.push(newest, refused(errors::COMPACTED));
        }
        let may = self.door.caller(&self.credentials).and_then(|caller| caller.may(Access::Read, &keys));
        if let Err(status) = may {
            // As a client of gRPC in Go writes an error, which is what etcd answers here.
            let reason = format!("rpc error: code = {:?} desc = {}", status.code(), status.message());
            return self.push(newest, refused(&reason));
        }
        if !keys.is_one() && !keys.is_endless() && keys.end <= keys.key {
            return self.push(newest, refused("mvcc: watcher range is empty"));
        }
        let id = if create.watch_id == 0 { self.watchers.new_id() } else { create.watch_id };
        if self.watchers.all.contains_key(&id) {
            return self.push(newest, refused("mvcc: duplicate watch ID provided on the WatchStream"));
        }
        let bytes = watcher_bytes((keys.key.len() + keys.end.len()) as u64);
        let Ok(memory) = self.door.inner.bodies.try_reserve(bytes) else {
            return self.push(newest, refused(crate::errors::TOO_MANY_REQUESTS));
        };
        if create.prev_kv {
            self.door.inner.recent.want_prev();
        }
        let is_synced = create.start_revision == 0 || create.start_revision > newest;
        let watcher = Watcher {
            keys,
            start: create.start_revision,
            next: if create.start_revision == 0 { newest + 1 } else { create.start_revision },
            is_synced,
            is_under_way: is_synced,
            no_put: create.filters.contains(&0),
            no_delete: create.filters.contains(&1),
            prev_kv: create.prev_kv,
            progress: create.progress_notify,
            fragment: create.fragment,
            is_busy: false,
            _memory: memory,
            _open: Open::new(&self.door, |done| &done.watchers),
        };
        self.watchers.add(id, watcher);
        self.push(newest, pb::WatchResponse { watch_id: id, created: true, ..pb::WatchResponse::default() });
    }

    fn progress(&mut self, newest: i64) {
        let mut due = Vec::new();
        for (id, watcher) in &mut self.watchers.all {
            let is_there = watcher.next == newest + 1 && watcher.start <= newest;
            if watcher.progress && !std::mem::take(&mut watcher.is_busy) && is_there {
                due.push(*id);
            }
        }
        // A client that does not read hears of it later.
        for watch_id in due.into_iter().take(WAITING.saturating_sub(self.out.len()).max(1)) {
            self.push(newest, pb::WatchResponse { watch_id, ..pb::WatchResponse::default() });
        }
    }

    /// Reads for the watchers that are furthest behind. After how long it may read again.
    async fn read(&mut self, newest: i64) -> Duration {
        let Some((from, ids)) = self.watchers.by_next.first_key_value().map(|(from, ids)| (*from, ids.clone())) else {
            return Duration::ZERO;
        };
        let with_prev = ids.iter().any(|id| self.watchers.all.get(id).is_some_and(|watcher| watcher.prev_kv));
        let to = self.watchers.by_next.keys().nth(1).copied().unwrap_or(i64::MAX);
        // Not past others, so that all of them are read for together from there on.
        let revisions = self.revisions.min(to.saturating_sub(from));
        let share = self.door.versions().budget() / 32 / self.streams().max(1);
        let bytes = share.clamp(*BATCH_BYTES.start(), *BATCH_BYTES.end());
        if let Some(shared) = self.shared(from, &ids, (self.revisions, bytes), with_prev).await
            && self.deliver((from, newest), &ids, shared.events, (shared.next, shared.revision.max(newest))).await
        {
            (self.revisions, self.short) = (REVISIONS, None);
            return self.pause();
        }
        let wanted = Wanted::new(self.watchers.wanted(&ids).into_keys());
        let read = move |versions: &Versions| {
            versions.events(from, (revisions, bytes), with_prev, &mut |key| wanted.contains(key))
        };
        match self.door.read(true, read).await {
            Ok(held) => {
                let (next, revision) = (held.value.next, held.value.revision);
                let batch = Arc::new(Batch { events: held.value.events, _memory: held.memory });
                let events = Batches::new([batch]);
                if self.deliver((from, newest), &ids, events, (next, revision)).await {
                    (self.revisions, self.short) = (REVISIONS, None);
                    return self.pause();
                }
            }
            Err(status) if status.message() == errors::COMPACTED => {
                self.cancel_compacted(&ids);
                return Duration::ZERO;
            }
            Err(status) => tracing::debug!("watchers wait: {status}"),
        }
        self.found_no_memory((from, newest), &ids).await
    }

    /// Events that are read once for all streams, where there are several: only for watchers whose first revision cannot be compacted any
    /// more, since what is shared may be older than that.
    async fn shared(&self, from: i64, ids: &BTreeSet<i64>, most: (i64, u64), with_prev: bool) -> Option<Shared> {
        let is_under_way = |id| self.watchers.all.get(id).is_some_and(|watcher| watcher.is_under_way);
        if self.streams() < SHARING || !ids.iter().all(is_under_way) {
            return None;
        }
        self.door.inner.recent.read(&self.door, from, most, with_prev).await
    }

    /// A read failed: the next is of fewer revisions, and where it was of one, those who want most of that are refused at last. After
    /// how long it may read again.
    async fn found_no_memory(&mut self, (from, newest): (i64, i64), ids: &BTreeSet<i64>) -> Duration {
        if self.revisions > 1 {
            self.revisions = (self.revisions / 8).max(1);
            return AGAIN;
        }
        let new = Short { from, since: Instant::now(), pause: AGAIN, is_weighed: false };
        let mut short = self.short.take().filter(|short| short.from == from).unwrap_or(new);
        let is_over = short.since.elapsed() >= PATIENCE;
        short.pause = (short.pause * 2).min(LATER);
        let pause = short.pause;
        if is_over || !short.is_weighed {
            let (most, largest) = self.most_of(from, ids).await;
            short.is_weighed = true;
            // Nobody has half of the memory for himself.
            if most > 0 && (is_over || most > self.door.versions().budget() / 2) {
                for id in largest.iter().take(WAITING) {
                    self.refuse(*id, (from, newest));
                }
                if largest.len() <= WAITING {
                    return AGAIN;
                }
                short.is_weighed = false;
            }
        }
        self.short = Some(short);
        pause
    }

    /// Which watchers want most of a revision, and what its events take for each of them, but for values. (0: that is not known.)
    async fn most_of(&self, revision: i64, ids: &BTreeSet<i64>) -> (u64, Vec<i64>) {
        let wanted = self.watchers.wanted(ids);
        let weigh = move |versions: &Versions| {
            let mut all: Vec<_> = wanted.iter().map(|((key, end), ids)| (0, key, end, ids)).collect();
            let mut weighed = |key: &[u8]| {
                for (bytes, from, end, _) in &mut all {
                    if contains(from, end, key) {
                        *bytes += EVENT_BYTES + key.len() as u64;
                    }
                }
                false
            };
            versions.events(revision, (1, u64::MAX), false, &mut weighed)?;
            let most = all.iter().map(|(bytes, ..)| *bytes).max().unwrap_or(0);
            let largest = all.iter().filter(|(bytes, ..)| *bytes == most).flat_map(|(.., ids)| (*ids).clone());
            Ok((most, largest.collect()))
        };
        self.door.read(false, weigh).await.unwrap_or_default()
    }

    /// Ends a watcher that cannot have the events of a revision. To its client that is as if they were compacted: it lists anew, and
    /// does not ask for them again.
    fn refuse(&mut self, watch_id: i64, (revision, newest): (i64, i64)) {
        if !self.watchers.remove(watch_id) {
            return;
        }
        tracing::warn!("a watcher was ended, since there is no memory for its events of revision {revision}");
        let reason = format!("{}: no memory for the events of revision {revision}", crate::errors::TOO_MANY_REQUESTS);
        let refused = pb::WatchResponse {
            watch_id,
            canceled: true,
            compact_revision: revision + 1,
            cancel_reason: reason,
            ..pb::WatchResponse::default()
        };
        self.push(newest, refused);
    }

    /// Some at a time: those that are left are read for again.
    fn cancel_compacted(&mut self, ids: &BTreeSet<i64>) {
        let compact_revision = self.door.versions().compacted().unwrap_or_default();
        for id in ids.iter().take(WAITING) {
            self.watchers.remove(*id);
            // Its header names no revision.
            let canceled = pb::WatchResponse { watch_id: *id, canceled: true, compact_revision, ..Default::default() };
            self.push(0, canceled);
        }
    }

    /// Notes who is to be sent what of events that were read up to a revision, beside which is the newest that there was. False: there
    /// was no memory for that.
    async fn deliver(
        &mut self,
        (from, newest): (i64, i64),
        ids: &BTreeSet<i64>,
        events: Batches,
        (next, revision): (i64, i64),
    ) -> bool {
        let Ok(mut booked) = self.door.inner.bodies.try_reserve(events.len() as u64 * PLACED_BYTES) else {
            return false;
        };
        let mut wanted: BTreeMap<i64, VecDeque<u32>> = BTreeMap::new();
        let mut compared = 0;
        // What is shared may begin before.
        for (place, event) in events.iter().filter(|(_, event)| event.kv.mod_revision >= from) {
            for (id, watcher) in self.watchers.of(&event.kv.key) {
                let is_filtered = if event.is_delete { watcher.no_delete } else { watcher.no_put };
                if is_filtered || !ids.contains(&id) {
                    continue;
                }
                let places = wanted.entry(id).or_default();
                let more = 2 * WANTED_BYTES + if places.is_empty() { DUE_BYTES } else { 0 };
                if booked.grow(more).is_err() {
                    return false;
                }
                places.push_back(place);
            }
            compared += 1 + self.watchers.ranges.len();
            if compared >= TURN {
                compared = 0;
                yield_now().await;
            }
        }
        let mut due = VecDeque::with_capacity(wanted.len());
        for (id, wanted) in wanted {
            let Some(watcher) = self.watchers.all.get_mut(&id) else { continue };
            watcher.is_busy = true;
            self.door.inner.done.events.fetch_add(wanted.len() as u64, Ordering::Relaxed);
            due.push_back(Due::new(id, (watcher.is_synced, watcher.prev_kv, watcher.fragment), wanted));
        }
        self.delivery = Delivery::new(events, revision.max(newest), due, booked);
        self.watchers.advance(from, next, next > revision);
        true
    }
}

mod wanted;

#[cfg(test)]
mod tests;
