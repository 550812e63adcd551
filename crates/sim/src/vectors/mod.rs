//! Lives of a store of vectors.

mod life;
mod model;
mod plan;

use crate::lot::Trouble;
use crate::run::{End, Subject};
use life::Life;
use model::Model;
use plan::{Plan, Step};
use ramekin_base::Rng;
use ramekin_disk::sim::SimDisk;
use std::fmt;
use std::sync::Arc;

/// A store of vectors, and what it should hold.
pub(crate) struct Vectors {
    plan: Plan,
    model: Model,
    seen: Seen,
}

/// Steps after which there were changed payloads of sealed points in memory, and in files; and lives that began with those. Steps after
/// which an index of a field held points of segments.
#[derive(Default)]
struct Seen {
    patched: u64,
    folded: u64,
    reopened: u64,
    indexed: u64,
}

impl fmt::Debug for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(f)
    }
}

impl Subject for Vectors {
    type Step = Step;
    type Life = Life;

    fn draw(rng: &mut Rng) -> Self {
        Self { plan: Plan::draw(rng), model: Model::default(), seen: Seen::default() }
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
        let life = Life::begin(disk, &self.plan)?;
        let found = life.contents()?;
        self.model.settle(found, is_damaged()).map_err(End::Wrong)?;
        self.seen.reopened += u64::from(life.patches()?.1 > 0);
        Ok(life)
    }

    fn step(&mut self, life: &mut Life, kind: Step, rng: &mut Rng) -> Result<(), End> {
        life.step(kind, rng, &self.plan, &mut self.model)?;
        let (patches, runs) = life.patches()?;
        self.seen.patched += u64::from(patches > 0);
        self.seen.folded += u64::from(runs > 0);
        self.seen.indexed += u64::from(life.indexed()? > 0);
        Ok(())
    }

    fn seen(&self) -> Vec<(&'static str, u64)> {
        let Seen { patched, folded, reopened, indexed } = self.seen;
        vec![
            ("payloads in memory", patched),
            ("payloads in overlays", folded),
            ("overlays after a crash", reopened),
            ("indexes of fields", indexed),
        ]
    }
}
