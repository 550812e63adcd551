//! A seed from its first life to its last.

use crate::life::{End, Life};
use crate::model::Model;
use crate::plan::{Plan, Trouble};
use ramekin_base::{Error, Kind, Rng};
use ramekin_disk::sim::{Counts, Faults, SimDisk};
use std::sync::Arc;

/// What a clean seed went through.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub counts: Counts,
    pub trouble: Trouble,
    pub steps: u64,
    pub overlaid: Overlaid,
    /// Steps after which an index of a field held points of segments.
    pub indexed: u64,
    /// The damage was noticed, and the store refused to go on.
    pub refused: bool,
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
    let (mut steps, mut refused, mut overlaid, mut indexed) = (0, false, Overlaid::default(), 0);
    for life in 0..plan.lives {
        let last = life + 1 == plan.lives;
        // The last life is without new faults: what was promised must be there in the end.
        disk.set_faults(if last { Faults::default() } else { plan.faults(&mut rng, disk.operations(), bytes(&disk)) });
        match live(&disk, &plan, &mut rng, &mut model, (&mut steps, &mut overlaid, &mut indexed)) {
            Ok(()) => {}
            Err(End::Wrong(what)) => return Err(fail(format!("life {life} of {plan:?}: {what}"))),
            Err(End::Trouble(error)) => {
                if let Some(what) = unexplained(&error, &disk, last) {
                    return Err(fail(format!("life {life} of {plan:?}: {what}")));
                }
                if disk.counts().flipped_bits > 0 && error.kind() == Kind::Corrupt {
                    refused = true;
                    break;
                }
            }
        }
        disk = Arc::new(disk.crash());
    }
    Ok(Outcome { counts: disk.counts(), trouble: plan.trouble, steps, overlaid, indexed, refused })
}

fn live(
    disk: &Arc<SimDisk>,
    plan: &Plan,
    rng: &mut Rng,
    model: &mut Model,
    (steps, overlaid, indexed): (&mut u64, &mut Overlaid, &mut u64),
) -> Result<(), End> {
    let life = Life::begin(disk, plan)?;
    overlaid.reopened += u64::from(life.patches()?.1 > 0);
    let found = life.contents()?;
    // Asked only now: a bit may also be flipped while the store is opened.
    model.settle(found, disk.counts().flipped_bits > 0).map_err(End::Wrong)?;
    for _ in 0..plan.steps {
        *steps += 1;
        life.step(rng, plan, model)?;
        let (patches, runs) = life.patches()?;
        overlaid.patched += u64::from(patches > 0);
        overlaid.folded += u64::from(runs > 0);
        *indexed += u64::from(life.indexed()? > 0);
    }
    Ok(())
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
    let counts = disk.counts();
    let faults = counts.failed_reads + counts.failed_writes + counts.failed_syncs + counts.full + counts.flipped_bits;
    let explained = match error.kind() {
        Kind::Corrupt => counts.flipped_bits > 0,
        // The last life has no faults of its own; before it, the end of power explains any failure.
        _ => !last || (faults > 0 && counts.flipped_bits > 0),
    };
    (!explained).then(|| format!("an error that no fault explains ({:?}): {error}", error.kind()))
}
