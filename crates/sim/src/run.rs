//! A seed from its first life to its last, whichever store it runs.

use crate::lot::{LIVES_MAX, STEPS_MIN, Steps, Trouble};
use crate::pairs::Pairs;
use ramekin_base::{Error, Kind, Result, Rng};
use ramekin_disk::sim::{Counts, Faults, PlantedPanic, SimDisk};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A store, what is done to it, and the model of what it must hold.
pub(crate) trait Subject: Debug {
    type Step: Steps;
    type Life;

    /// A seed's whole plan, drawn before anything runs.
    fn draw(rng: &mut Rng) -> Self;

    fn trouble(&self) -> Trouble;

    /// Lives with faults, at least, and steps of each; there are more until [`STEPS_MIN`] steps are done, and then one without.
    fn lives(&self) -> (u64, u64);

    /// Bytes of a block of the disk.
    fn block(&self) -> usize;

    /// Opens the store; what it holds must be what the model allows. `is_damaged` tells whether stored bytes were made wrong.
    fn begin(&mut self, disk: &Arc<SimDisk>, is_damaged: &dyn Fn() -> bool) -> Result<Self::Life, End>;

    fn step(&mut self, life: &mut Self::Life, kind: Self::Step, rng: &mut Rng) -> Result<(), End>;

    /// What else the seed went through, and how often.
    fn seen(&self) -> Vec<(&'static str, u64)>;
}

/// Why a life ended before its steps were done.
pub(crate) enum End {
    /// The disk failed in a way that the plan allows.
    Trouble(Error),
    /// The store is wrong.
    Wrong(String),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        match error.kind() {
            Kind::Bug => Self::Wrong(format!("an error that must never be: {error}")),
            _ => Self::Trouble(error),
        }
    }
}

/// What `act` says, or nothing if the disk panicked under it. Any other panic goes on: it is a failure of the store.
pub(crate) fn unless_panic<T>(act: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<PlantedPanic>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// What `act` says; where the disk panicked under it, here or in a job that it waited for, it is as if the process had ended.
pub(crate) fn excused<T>(disk: &SimDisk, act: impl FnOnce() -> Result<T>) -> Result<T> {
    match unless_panic(act) {
        None => Err(Error::closed("a panic ended it")),
        Some(Err(error)) if error.kind() == Kind::Bug && disk.counts().panics > 0 => {
            Err(Error::closed(error.message()))
        }
        Some(done) => done,
    }
}

/// What a clean seed went through.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub counts: Counts,
    pub pairs: Pairs,
    pub trouble: Trouble,
    pub steps: u64,
    /// What only this store goes through.
    pub seen: Vec<(&'static str, u64)>,
    /// The damage was noticed, and the store refused to go on.
    pub refused: bool,
}

#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
}

/// Runs one seed; the same seed is the same run.
pub(crate) fn run<S: Subject>(seed: u64) -> Result<Outcome, Failure> {
    let mut rng = Rng::new(seed);
    let mut subject = S::draw(&mut rng);
    let mut disk = Arc::new(SimDisk::with_block(seed, Faults::default(), subject.block()));
    let (trouble, counts) = (subject.trouble(), Counts::default());
    let pairs = Pairs::of::<S::Step>();
    let mut outcome = Outcome { counts, pairs, trouble, steps: 0, seen: Vec::new(), refused: false };
    for life in 0.. {
        let last = life + 1 >= LIVES_MAX || (life + 1 >= subject.lives().0 && outcome.steps >= STEPS_MIN);
        // The last life is without new faults: what was promised must be there in the end.
        let held = bytes(&disk);
        disk.set_faults(if last { Faults::default() } else { trouble.faults(&mut rng, disk.operations(), held) });
        let wrong = match live(&disk, &mut subject, &mut rng, &mut outcome) {
            Ok(()) => None,
            Err(End::Wrong(what)) => Some(what),
            Err(End::Trouble(error)) => {
                if damages(&disk.counts()) > 0 && error.kind() == Kind::Corrupt {
                    outcome.refused = true;
                    break;
                }
                unexplained(&error, &disk, last)
            }
        };
        if let Some(what) = wrong {
            return Err(Failure { seed, what: format!("life {life} of {subject:?}: {what}") });
        }
        disk.set_faults(Faults::default());
        disk = Arc::new(disk.crash());
        if last {
            break;
        }
    }
    (outcome.counts, outcome.seen) = (disk.counts(), subject.seen());
    Ok(outcome)
}

fn live<S: Subject>(disk: &Arc<SimDisk>, subject: &mut S, rng: &mut Rng, outcome: &mut Outcome) -> Result<(), End> {
    // Asked only when it matters: a bit may also be flipped while the store is opened.
    let is_damaged = || damages(&disk.counts()) > 0;
    let mut life = outcome.pairs.during(0, disk, || subject.begin(disk, &is_damaged))?;
    let mut lived = Ok(());
    for _ in 0..subject.lives().1 {
        outcome.steps += 1;
        let kind = S::Step::draw(rng);
        lived = outcome.pairs.during(kind.place(), disk, || subject.step(&mut life, kind, rng));
        if lived.is_err() {
            break;
        }
    }
    // The end of a life is no call that may fail.
    disk.set_faults(Faults::default());
    lived
}

/// Faults after which stored bytes may be wrong, or acknowledged ones gone.
pub(crate) fn damages(counts: &Counts) -> u64 {
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
