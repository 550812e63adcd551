//! The bounded queue of the writer, and of changes that it handed on.
//!
//! ```text
//!   doors ──► waiting (at most QUEUE_MAX) ──► writer ──► changes (at most CHANGES_MAX under way) ──► changers
//!                                              ▲                                                        │
//!                                              └─────────────────── their pieces ◄──────────────────────┘
//! ```
//!
//! Small writes that wait behind a small change of their collection go with it, in their order: they share its commit.
//! What must wait for its collection stays where it is, and what is behind it goes by: the bound holds for all of it.

use crate::api::op::CollectionId;
use crate::state::request::{Change, Completion, Request, Weight};
use parking_lot::{Condvar, Mutex};
use ramekin_base::limits::QUEUE_MAX;
use ramekin_base::{Error, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// Changes under way at one time, and threads for them.
pub(crate) const CHANGES_MAX: usize = 4;
/// Between two looks whether what waits for its collection may go on.
const HELD_LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    added: Condvar,
    /// For changers.
    handed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    pieces: VecDeque<Request>,
    changes: VecDeque<Change>,
    /// Collections that are being changed.
    changing: Vec<CollectionId>,
    closed: bool,
    /// The writer is gone: nothing that is here will be done.
    ended: bool,
    /// It went though nobody had closed the queue.
    died: bool,
}

impl State {
    fn may_go(&self, request: &Request, is_held: &impl Fn(&Request) -> bool) -> bool {
        let own = request.collection_number();
        // What was given up need not wait to be let go of.
        request.is_given_up()
            || !own.is_some_and(|own| self.changing.contains(&own))
                && (!request.is_change() || self.changing.len() < CHANGES_MAX)
                && !is_held(request)
    }

    /// Takes the small writes of the change's collection from the queue, up to the first that is not.
    fn with_followers(&mut self, change: Change) -> Vec<Change> {
        let (own, mut weight) = (change.collection.number, Weight::of(&change.write));
        let mut group = vec![change];
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            match (weight, request) {
                (Some(so_far), Request::Write { collection, write, wait, memory, asker, done })
                    if collection.number == own =>
                {
                    weight = Weight::of(&write).and_then(|more| so_far.with(more));
                    if weight.is_some() {
                        group.push(Change { collection, write, answer: Completion { done, wait, memory, asker } });
                    } else {
                        self.waiting.push_back(Request::Write { collection, write, wait, memory, asker, done });
                    }
                }
                (_, request) => self.waiting.push_back(request),
            }
        }
        group
    }

    fn has_place(&self) -> Result<()> {
        if self.died {
            return Err(Error::closed("writes are refused until a restart: the writer is dead, and why the log says"));
        }
        if self.closed || self.ended {
            return Err(Error::closed("the server is shutting down"));
        }
        if self.waiting.len() >= QUEUE_MAX {
            return Err(Error::busy(format!("{QUEUE_MAX} writes are waiting, which is the most allowed; try again")));
        }
        Ok(())
    }
}

impl Queue {
    /// Adds a request; `Busy` where too many wait, `Closed` after [`Queue::close`].
    pub(crate) fn put(&self, request: Request) -> Result<()> {
        let mut state = self.state.lock();
        state.has_place()?;
        state.waiting.push_back(request);
        self.added.notify_one();
        Ok(())
    }

    /// Whether the writer is gone though nobody had closed the queue.
    pub(crate) fn has_died(&self) -> bool {
        self.state.lock().died
    }

    /// Whether [`Queue::put`] would take a request at the moment.
    pub(crate) fn has_place(&self) -> Result<()> {
        self.state.lock().has_place()
    }

    /// Puts back what has been taken and must wait after all.
    pub(crate) fn put_back(&self, request: Request) {
        self.state.lock().waiting.push_front(request);
    }

    /// Puts changes back that were taken and not made; they keep their order, before all others.
    pub(crate) fn put_back_all(&self, changes: Vec<Change>) {
        for Change { collection, write, answer: Completion { done, wait, memory, asker } } in changes.into_iter().rev()
        {
            self.put_back(Request::Write { collection, write, wait, memory, asker, done });
        }
    }

    /// Adds pieces of changes that are under way; there is one such request of each changer at most.
    pub(crate) fn put_pieces(&self, pieces: Request) {
        let mut state = self.state.lock();
        // Dropped, it tells who waits for it.
        if !state.ended {
            state.pieces.push_back(pieces);
            self.added.notify_one();
        }
    }

    /// The next request that need not wait: pieces first, so that a change that has begun comes to its end. `block`: waits
    /// for one; `None` then means that the queue was closed, and that nothing is left.
    pub(crate) fn take(&self, block: bool, is_held: impl Fn(&Request) -> bool) -> Option<Request> {
        let mut state = self.state.lock();
        loop {
            if let Some(piece) = state.pieces.pop_front() {
                return Some(piece);
            }
            let next = (0..state.waiting.len()).find(|at| state.may_go(&state.waiting[*at], &is_held));
            if let Some(next) = next {
                return state.waiting.remove(next);
            }
            let is_over = state.closed && state.waiting.is_empty() && state.changing.is_empty();
            if !block || is_over {
                return None;
            }
            match state.waiting.is_empty() {
                true => self.added.wait(&mut state),
                false => _ = self.added.wait_for(&mut state, HELD_LOOK),
            }
        }
    }

    /// Hands a change on. Until [`Queue::changed`] its collection takes no other write.
    pub(crate) fn hand_on(&self, change: Change) {
        let mut state = self.state.lock();
        state.changing.push(change.collection.number);
        state.changes.push_back(change);
        self.handed.notify_one();
    }

    /// The next change, and those behind it in its collection that are made together with it; none: none will come.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        let mut state = self.state.lock();
        loop {
            if let Some(change) = state.changes.pop_front() {
                return state.with_followers(change);
            }
            if state.ended {
                return Vec::new();
            }
            self.handed.wait(&mut state);
        }
    }

    /// A change with those behind it that are made together with it.
    pub(crate) fn with_followers(&self, change: Change) -> Vec<Change> {
        self.state.lock().with_followers(change)
    }

    /// A change has ended.
    pub(crate) fn changed(&self, collection: CollectionId) {
        let mut state = self.state.lock();
        if let Some(at) = state.changing.iter().position(|number| *number == collection) {
            state.changing.swap_remove(at);
        }
        self.added.notify_one();
    }

    /// Closes it, since its writer is gone, and lets go of what waits: whoever waits for that hears that nobody does it.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.died = !state.closed;
        (state.closed, state.ended) = (true, true);
        let left =
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.pieces), std::mem::take(&mut state.changes));
        drop(state);
        drop(left);
        self.added.notify_all();
        self.handed.notify_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.added.notify_all();
    }
}
