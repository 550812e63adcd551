//! The state of a simulated disk under its lock: who counts calls, finds room and survives a crash.

use super::faults::{Counts, Faults, PlantedPanic};
use super::image::Image;
use super::names::{self, Names, NodeId};
use crate::disk::{ReadOp, short_read};
use ramekin_base::{Error, ManualClock, Result, Rng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

#[derive(Clone)]
pub(super) struct State {
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    pub(super) counts: Counts,
    /// Calls so far, and of those that a [`Trigger`] counts.
    pub(super) operations: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) syncs: u64,
    pub(super) names: Names,
    pub(super) files: BTreeMap<NodeId, Image>,
    /// How many open files stand on each node.
    pub(super) open: BTreeMap<NodeId, usize>,
    pub(super) next_node: NodeId,
    pub(super) off: bool,
    pub(super) clock: Option<Arc<ManualClock>>,
}

/// Whether a call takes effect, and whether its caller hears of it.
#[derive(PartialEq)]
pub(super) enum Turn {
    Whole,
    /// It may take effect, but answers with an error.
    Fails,
    /// The machine stops during this call: it may take effect, but answers with an error.
    Last,
}

pub(super) fn plug_pulled(place: &Path) -> Error {
    Error::io("the simulated machine has stopped").at(place.display())
}

fn failed(place: &Path) -> Error {
    Error::io("the simulated disk failed").at(place.display())
}

impl State {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            rng: Rng::new(seed),
            faults,
            counts: Counts::default(),
            operations: 0,
            reads: 0,
            writes: 0,
            syncs: 0,
            names: Names::default(),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            next_node: names::ROOT + 1,
            off: false,
            clock: None,
        }
    }

    /// Counts a call; an error once the machine is gone.
    pub(super) fn turn(&mut self, place: &Path) -> Result<Turn> {
        if self.off {
            return Err(plug_pulled(place));
        }
        self.operations += 1;
        if let Some(clock) = &self.clock
            && self.faults.slow.strikes(self.operations, &mut self.rng)
        {
            self.counts.slow += 1;
            clock.advance(self.faults.slow_for);
        }
        // What runs because of a panic may call the disk too; a second panic would end the process.
        if self.faults.panics.strikes(self.operations, &mut self.rng) && !std::thread::panicking() {
            self.counts.panics += 1;
            std::panic::resume_unwind(Box::new(PlantedPanic));
        }
        match self.faults.operations_max {
            Some(max) if self.operations > max => {
                self.off = true;
                self.counts.stopped += 1;
                Ok(Turn::Last)
            }
            _ if self.faults.call_fails.strikes(self.operations, &mut self.rng) => {
                self.counts.failed_calls += 1;
                if self.rng.chance(0.5) { Err(failed(place)) } else { Ok(Turn::Fails) }
            }
            _ => Ok(Turn::Whole),
        }
    }

    /// The answer of a call whose work is done.
    pub(super) fn answer<T>(&self, turn: &Turn, place: &Path, value: T) -> Result<T> {
        match turn {
            Turn::Whole => Ok(value),
            Turn::Fails => Err(failed(place)),
            Turn::Last => Err(plug_pulled(place)),
        }
    }

    pub(super) fn image(&mut self, node: NodeId) -> &mut Image {
        self.files.entry(node).or_default()
    }

    /// How many of `more` bytes the disk has room for.
    pub(super) fn room(&mut self, more: u64) -> u64 {
        let Some(max) = self.faults.bytes_max else { return more };
        let live = self.names.live_nodes();
        let held = |node: &NodeId| live.contains(node) || self.open.contains_key(node);
        let used: u64 = self.files.iter().filter(|(node, _)| held(node)).map(|(_, image)| image.len() as u64).sum();
        more.min(max.saturating_sub(used))
    }

    /// Where a write that is reported as done lands: nowhere if it is lost, elsewhere in its file if it is misdirected.
    pub(super) fn lands_at(&mut self, node: NodeId, at: u64, bytes: usize, block: usize) -> Option<u64> {
        if self.faults.lost_writes.strikes(self.writes, &mut self.rng) {
            self.counts.lost_writes += 1;
            return None;
        }
        if self.faults.misdirected_writes.strikes(self.writes, &mut self.rng) {
            let places = (self.image(node).len().saturating_sub(bytes) / block) as u64 + 1;
            let elsewhere = self.rng.below(places) * block as u64;
            self.counts.misdirected_writes += u64::from(elsewhere != at);
            return Some(elsewhere);
        }
        Some(at)
    }

    pub(super) fn full(&mut self, place: &Path) -> Error {
        self.counts.full += 1;
        Error::no_space("the simulated disk is full").at(place.display())
    }

    /// Forgets files that have no name, may get none back, and are not open.
    pub(super) fn sweep(&mut self) {
        let named = self.names.nodes();
        self.files.retain(|node, _| named.contains(node) || self.open.contains_key(node));
    }

    pub(super) fn crash(&mut self) -> State {
        self.counts.crashes += 1;
        let (rng, counts) = (&mut self.rng, &mut self.counts);
        let names = self.names.crash(rng, counts);
        let kept = names.nodes();
        let survives =
            |(node, image): (&NodeId, &Image)| kept.contains(node).then(|| (*node, image.crash(rng, counts)));
        let files = self.files.iter().filter_map(survives).collect();
        State {
            names,
            files,
            open: BTreeMap::new(),
            off: false,
            faults: Faults { operations_max: None, ..self.faults.clone() },
            rng: Rng::new(self.rng.next_u64()),
            clock: None,
            ..*self
        }
    }

    pub(super) fn read(&mut self, node: NodeId, op: &mut ReadOp<'_>) -> Result<()> {
        self.reads += 1;
        if self.faults.read_fails.strikes(self.reads, &mut self.rng) {
            self.counts.failed_reads += 1;
            return Err(Error::io("the simulated disk failed to read").at(op.file.path().display()));
        }
        let image = self.files.entry(node).or_default();
        if self.faults.bit_flips.strikes(self.reads, &mut self.rng) && image.flip(op.at, op.buf.len(), &mut self.rng) {
            self.counts.flipped_bits += 1;
        }
        let bytes = image.read(op.at, op.buf.len());
        if bytes.len() < op.buf.len() {
            return Err(short_read(op.file, op.at, op.buf.len(), bytes.len()));
        }
        op.buf.copy_from_slice(bytes);
        Ok(())
    }
}
