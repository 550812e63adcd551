//! A seed from its first life to its last.

use crate::life::{End, Life};
use crate::model::Model;
use crate::pairs::Pairs;
use crate::plan::{LIVES_MAX, Plan, STEPS_MIN, Step, Trouble};
use ramekin_base::{Error, Kind, Rng};
use ramekin_disk::sim::{Counts, Faults, SimDisk};
use std::sync::Arc;

/// What a clean seed went through.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub counts: Counts,
    pub pairs: Pairs,
    pub trouble: Trouble,
    pub steps: u64,
    pub overlaid: Overlaid,
    /// Steps after which an index of a field held points of segments.
    pub indexed: u64,
    /// The damage was noticed, and the store refused to go on.
    pub refused: bool,
}

impl Outcome {
    fn of(trouble: Trouble) -> Self {
        Self {
            counts: Counts::default(),
            pairs: Pairs::default(),
            trouble,
            steps: 0,
            overlaid: Overlaid::default(),
            indexed: 0,
            refused: false,
        }
    }
}

/// What became of the payloads of sealed points: steps after which there were some.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overlaid {
    /// In memory.
    pub patched: u64,
    /// In files.
    pub folded: u64,
    /// In files when a life began.
    pub reopened: u64,
}

#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
}

/// Runs one seed; the same seed is the same run.
pub fn run(seed: u64) -> Result<Outcome, Failure> {
    let fail = |what: String| Failure { seed, what };
    let mut rng = Rng::new(seed);
    let plan = Plan::draw(&mut rng);
    let mut disk = Arc::new(SimDisk::with_block(seed, Faults::default(), plan.block));
    let mut model = Model::default();
    let mut outcome = Outcome::of(plan.trouble);
    for life in 0.. {
        let last = life + 1 >= LIVES_MAX || (life + 1 >= plan.lives && outcome.steps >= STEPS_MIN);
        // The last life is without new faults: what was promised must be there in the end.
        let held = bytes(&disk);
        disk.set_faults(if last { Faults::default() } else { plan.faults(&mut rng, disk.operations(), held) });
        match live(&disk, &plan, &mut rng, &mut model, &mut outcome) {
            Ok(()) => {}
            Err(End::Wrong(what)) => return Err(fail(format!("life {life} of {plan:?}: {what}"))),
            Err(End::Trouble(error)) => {
                if let Some(what) = unexplained(&error, &disk, last) {
                    return Err(fail(format!("life {life} of {plan:?}: {what}")));
                }
                if damages(&disk.counts()) > 0 && error.kind() == Kind::Corrupt {
                    outcome.refused = true;
                    break;
                }
            }
        }
        disk.set_faults(Faults::default());
        disk = Arc::new(disk.crash());
        if last {
            break;
        }
    }
    outcome.counts = disk.counts();
    Ok(outcome)
}

fn live(disk: &Arc<SimDisk>, plan: &Plan, rng: &mut Rng, model: &mut Model, outcome: &mut Outcome) -> Result<(), End> {
    let life = outcome.pairs.during(Step::Open, disk, || {
        let life = Life::begin(disk, plan)?;
        let found = life.contents()?;
        // Asked only now: a bit may also be flipped while the store is opened.
        model.settle(found, damages(&disk.counts()) > 0).map_err(End::Wrong)?;
        Ok::<_, End>(life)
    })?;
    let lived = steps(&life, disk, plan, rng, model, outcome);
    // The end of a life is no call that may fail.
    disk.set_faults(Faults::default());
    lived
}

fn steps(
    life: &Life,
    disk: &Arc<SimDisk>,
    plan: &Plan,
    rng: &mut Rng,
    model: &mut Model,
    outcome: &mut Outcome,
) -> Result<(), End> {
    outcome.overlaid.reopened += u64::from(life.patches()?.1 > 0);
    for _ in 0..plan.steps {
        outcome.steps += 1;
        let kind = Step::draw(rng);
        outcome.pairs.during(kind, disk, || life.step(kind, rng, plan, model))?;
        let (patches, runs) = life.patches()?;
        outcome.overlaid.patched += u64::from(patches > 0);
        outcome.overlaid.folded += u64::from(runs > 0);
        outcome.indexed += u64::from(life.indexed()? > 0);
    }
    Ok(())
}

/// Faults after which stored bytes may be wrong, or acknowledged ones gone.
fn damages(counts: &Counts) -> u64 {
    counts.flipped_bits + counts.misdirected_writes + counts.lost_writes
}

/// Bytes that all files hold now, for a limit that strikes soon.
fn bytes(disk: &SimDisk) -> u64 {
    fn below(disk: &SimDisk, folder: &std::path::Path) -> u64 {
        use ramekin_disk::Disk;
        let entries = disk.list(folder).unwrap_or_default();
        entries
            .iter()
            .map(|entry| if entry.folder { below(disk, &folder.join(&entry.name)) } else { entry.bytes })
            .sum()
    }
    below(disk, std::path::Path::new("/data"))
}

/// An error that no fault accounts for is a failure of the store.
fn unexplained(error: &Error, disk: &SimDisk, last: bool) -> Option<String> {
    let damages = damages(&disk.counts());
    let explained = match error.kind() {
        Kind::Corrupt => damages > 0,
        // The last life has no faults of its own; before it, the end of power explains any failure.
        _ => !last || damages > 0,
    };
    (!explained).then(|| format!("an error that no fault explains ({:?}): {error}", error.kind()))
}
