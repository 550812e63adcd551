//! The bounded queue of the writer.

use crate::writer::Request;
use parking_lot::{Condvar, Mutex};
use ramekin_base::limits::QUEUE_MAX;
use ramekin_base::{Error, Result};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    closed: bool,
}

impl Queue {
    /// Adds a request; `Busy` where too many wait, `Closed` after [`Queue::close`].
    pub(crate) fn put(&self, request: Request) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::closed("the server is shutting down"));
        }
        if state.waiting.len() >= QUEUE_MAX {
            return Err(Error::busy(format!("{QUEUE_MAX} writes are waiting, which is the most allowed; try again")));
        }
        state.waiting.push_back(request);
        self.added.notify_one();
        Ok(())
    }

    /// The next request. `block`: waits for one; `None` then means that the queue was closed and is empty.
    pub(crate) fn take(&self, block: bool) -> Option<Request> {
        let mut state = self.state.lock();
        while block && state.waiting.is_empty() && !state.closed {
            self.added.wait(&mut state);
        }
        state.waiting.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.added.notify_all();
    }
}

/// Counts events, and lets one thread wait for the next.
#[derive(Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    moved: Condvar,
}

impl Signal {
    pub(crate) fn count(&self) -> u64 {
        *self.count.lock()
    }

    pub(crate) fn raise(&self) {
        *self.count.lock() += 1;
        self.moved.notify_all();
    }

    /// Waits until the count has passed `seen`, or `at_most` is over.
    pub(crate) fn wait_past(&self, seen: u64, at_most: std::time::Duration) {
        let mut count = self.count.lock();
        if *count <= seen {
            self.moved.wait_for(&mut count, at_most);
        }
    }
}
