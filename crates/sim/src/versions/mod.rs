//! Lives of a store of versions.

mod life;
#[path = "../../../versions/tests/maps/mod.rs"]
mod maps;
mod plan;
mod steps;
mod worlds;

use crate::lot::Trouble;
use crate::run::{End, Subject};
use life::Life;
use plan::{Plan, Step};
use ramekin_base::Rng;
use ramekin_disk::sim::SimDisk;
use std::fmt;
use std::sync::Arc;
use worlds::Worlds;

/// A store of versions, and what it should hold.
pub(crate) struct Store {
    plan: Plan,
    worlds: Worlds,
    seen: Seen,
}

/// Steps after which what they are named for had happened.
#[derive(Default)]
struct Seen {
    flushed: u64,
    merged: u64,
    compacted: u64,
    ended: u64,
    bulks: u64,
    unsure: u64,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(f)
    }
}

impl Subject for Store {
    type Step = Step;
    type Life = Life;

    fn draw(rng: &mut Rng) -> Self {
        let plan = Plan::draw(rng);
        let loses = matches!(plan.trouble, Trouble::BitFlips | Trouble::MisdirectedWrites | Trouble::LostWrites);
        Self { plan, worlds: Worlds::new(loses), seen: Seen::default() }
    }

    fn trouble(&self) -> Trouble {
        self.plan.trouble
    }

    fn lives(&self) -> (u64, u64) {
        (self.plan.lives, self.plan.steps)
    }

    fn block(&self) -> usize {
        self.plan.block
    }

    fn begin(&mut self, disk: &Arc<SimDisk>, is_damaged: &dyn Fn() -> bool) -> Result<Life, End> {
        let mut life = Life::begin(disk, &self.plan)?;
        let found = life.contents()?;
        self.worlds.settle(&found, is_damaged()).map_err(End::Wrong)?;
        Ok(life)
    }

    fn step(&mut self, life: &mut Life, kind: Step, rng: &mut Rng) -> Result<(), End> {
        self.take(life, kind, rng)
    }

    fn seen(&self) -> Vec<(&'static str, u64)> {
        let Seen { flushed, merged, compacted, ended, bulks, unsure } = self.seen;
        vec![
            ("flushes", flushed),
            ("merges", merged),
            ("compactions", compacted),
            ("leases that ended", ended),
            ("deletes in a bulk", bulks),
            ("commands unanswered", unsure),
        ]
    }
}
