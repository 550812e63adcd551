//! Whether the store is idle, and who is about to change that: what `inner/idle.rs` does to it.

use crate::lock;
use parking_lot::Mutex;
use ramekin_base::lock::Ranked;
use std::sync::atomic::AtomicBool;

/// What a plan of what is resident had to give, and what it gave.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planned {
    pub(crate) room: u64,
    pub(crate) bytes: u64,
}

pub(crate) struct IdleLending {
    /// Held while minimum reservations are taken back, which may have to wait for readers.
    pub(crate) waking: Ranked<Mutex<()>>,
    pub(crate) state: Ranked<Mutex<State>>,
    /// One thread plans at a time, by what is free then.
    pub(crate) planning: Ranked<Mutex<()>>,
    /// A merge is under way, or waits for its memory.
    pub(crate) merging: Ranked<Mutex<bool>>,
    /// What is resident is to be chosen again: wishes have changed, or who has them.
    pub(crate) again: AtomicBool,
}

impl Default for IdleLending {
    fn default() -> Self {
        Self {
            waking: Ranked::mutex(&lock::WAKING, ()),
            state: Ranked::mutex(&lock::IDLE, State::default()),
            planning: Ranked::mutex(&lock::PLANNING, ()),
            merging: Ranked::mutex(&lock::MERGING, false),
            again: AtomicBool::default(),
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) is_idle: bool,
    /// Flushes, patch compactions and merges under way.
    pub(crate) working: usize,
    /// When there was work last.
    pub(crate) since_ms: u64,
    pub(crate) looked_ms: u64,
    /// When a real query was looked at again.
    pub(crate) checked_ms: u64,
    /// When it lay down last.
    pub(crate) idle_from_ms: u64,
    /// What the last plan of an idle store had to give, and gave.
    pub(crate) planned: Planned,
    /// So long without work and it is idle; at first, at once.
    pub(crate) after_ms: u64,
    /// It was woken, and what is resident does not suit that yet.
    pub(crate) unplanned: bool,
}
