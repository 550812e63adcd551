//! The newest events, read once for all streams.
//!
//! ```text
//!   a stream needs a revision ─► held: its part and those after it, shared
//!                            ├─► it comes next: one stream reads on, the others wait for that, and find it held
//!                            └─► it is older, or too much at once: the stream reads for itself, and only what it wants
//! ```

use crate::delivery::{Batch, Batches};
use crate::door::Door;
use parking_lot::Mutex;
use ramekin_memory::Account;
use ramekin_versions::Versions;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;

/// So many streams share what they read; fewer read only what they want.
pub(crate) const SHARING: u64 = 4;
/// A part of more keys is not shared.
const KEYS: usize = 2000;
/// What is kept at most: so much, or this part of the budget.
const KEPT_BYTES: u64 = 1 << 20;
const KEPT_SHARE: u64 = 64;
/// What a part takes besides its events.
const PART_BYTES: u64 = 256;

/// Parts that are taken at one go.
const PARTS: usize = 64;

/// Events from a revision on, or from before it.
pub(crate) struct Shared {
    pub(crate) events: Batches,
    /// The first revision whose events are not here, and the newest that there was.
    pub(crate) next: i64,
    pub(crate) revision: i64,
}

/// All events of some revisions.
struct Part {
    batch: Arc<Batch>,
    from: i64,
    next: i64,
    /// The newest revision when they were read.
    revision: i64,
    has_prev: bool,
    bytes: u64,
}

/// What is held: parts, each of which goes on where the one before it ends.
pub(crate) struct Recent {
    parts: Mutex<VecDeque<Part>>,
    /// One reads at a time.
    turn: Semaphore,
    /// Some watcher wanted, or wants, versions before.
    wants_prev: AtomicBool,
    account: Account,
}

/// What was found without reading.
enum Found {
    Held(Shared),
    /// It can be read now.
    Next,
    No,
}

impl Recent {
    pub(crate) fn new(account: &Account) -> Self {
        let account =
            account.child("recent", "the newest events that streams share: up to 1 MiB, a 64th of the budget");
        Self { parts: Mutex::default(), turn: Semaphore::new(1), wants_prev: AtomicBool::new(false), account }
    }

    pub(crate) fn want_prev(&self) {
        self.wants_prev.store(true, Ordering::Relaxed);
    }

    /// Nothing is held any more.
    pub(crate) fn clear(&self) {
        drop(std::mem::take(&mut *self.parts.lock()));
    }

    #[cfg(test)]
    pub(crate) fn is_held(&self) -> bool {
        !self.parts.lock().is_empty()
    }

    /// Parts from the one on in which a revision is, of about so many bytes. `None`: whoever wants it reads for himself.
    pub(crate) async fn read(
        &self,
        door: &Door,
        from: i64,
        (revisions, bytes): (i64, u64),
        with_prev: bool,
    ) -> Option<Shared> {
        match self.find(from, bytes, with_prev) {
            Found::Held(shared) => return Some(shared),
            Found::No => return None,
            Found::Next => {}
        }
        let _turn = self.turn.acquire().await.ok()?;
        // Whoever had the turn before may have read it.
        match self.find(from, bytes, with_prev) {
            Found::Held(shared) => return Some(shared),
            Found::No => return None,
            Found::Next => {}
        }
        let has_prev = with_prev || self.wants_prev.load(Ordering::Relaxed);
        let read = move |versions: &Versions| {
            let mut keys = 0;
            let mut is_wanted = |_: &[u8]| {
                keys += 1;
                keys <= KEYS
            };
            let held = versions.events(from, (revisions, bytes), has_prev, &mut is_wanted)?;
            Ok(Some(held).filter(|_| keys <= KEYS))
        };
        let mut held = door.read(true, read).await.ok()??;
        let (next, revision) = (held.value.next, held.value.revision);
        if next <= from {
            return None;
        }
        let own = held.memory.as_mut().map(|memory| {
            let mut own = memory.hand_over(memory.bytes(), &self.account)?;
            own.grow(PART_BYTES).map(|()| own)
        });
        // What is not paid for here is not kept.
        let Some(Ok(memory)) = own else { return None };
        let bytes = memory.bytes();
        let batch = Arc::new(Batch { events: held.value.events, _memory: Some(memory) });
        self.keep(Part { batch: batch.clone(), from, next, revision, has_prev, bytes }, door.versions().budget());
        Some(Shared { events: Batches::new([batch]), next, revision })
    }

    fn find(&self, from: i64, most: u64, with_prev: bool) -> Found {
        let parts = self.parts.lock();
        let Some((first, last)) = parts.front().zip(parts.back()) else { return Found::Next };
        if from >= last.next {
            return Found::Next;
        }
        if from < first.from {
            return Found::No;
        }
        let place = parts.partition_point(|part| part.next <= from);
        let mut bytes = 0;
        let fits = |part: &&Part| {
            let is_first = bytes == 0;
            bytes += part.bytes;
            (part.has_prev || !with_prev) && (is_first || bytes <= most)
        };
        let taken: Vec<&Part> = parts.range(place..).take(PARTS).take_while(fits).collect();
        let Some(last) = taken.last() else { return Found::No };
        let events = Batches::new(taken.iter().map(|part| part.batch.clone()));
        Found::Held(Shared { events, next: last.next, revision: last.revision })
    }

    fn keep(&self, part: Part, budget: u64) {
        let most = KEPT_BYTES.min(budget / KEPT_SHARE);
        let mut parts = self.parts.lock();
        if parts.back().is_some_and(|last| last.next != part.from) {
            parts.clear();
        }
        parts.push_back(part);
        let mut bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        while bytes > most {
            let Some(oldest) = parts.pop_front() else { break };
            bytes -= oldest.bytes;
        }
    }
}
