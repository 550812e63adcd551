//! One life of a store of versions: from its start to a pulled plug.

use super::maps::found::{Found, read_all};
use super::plan::Plan;
use crate::run::{End, damages, excused, unless_panic};
use ramekin_base::{Clock, Kind, ManualClock, Result};
use ramekin_disk::sim::SimDisk;
use ramekin_memory::{Budget, Reservation};
use ramekin_pages::Pages;
use ramekin_versions::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "/data/versions";
/// Nobody could renew a lease while the store was closed.
const AFTER_START: Duration = Duration::from_secs(1);

/// A store that runs in this thread only, and the clock that it sees.
pub struct Life {
    pub versions: Versions,
    pub pages: Pages,
    pub clock: Arc<ManualClock>,
    pub disk: Arc<SimDisk>,
    /// When each lease ends.
    pub ends: BTreeMap<i64, Duration>,
    _elsewhere: Reservation,
}

impl Life {
    /// Opens the store. A panic while it does ends the process, as far as anyone can tell.
    pub fn begin(disk: &Arc<SimDisk>, plan: &Plan) -> Result<Self> {
        excused(disk, || Self::open(disk, plan))
    }

    fn open(sim: &Arc<SimDisk>, plan: &Plan) -> Result<Self> {
        let budget = Budget::new(plan.budget);
        let pages = Pages::new(sim.clone(), budget.root().child("pages", "pages"), &budget, 1 << 32)?;
        let clock = Arc::new(ManualClock::default());
        sim.set_clock(clock.clone());
        let elsewhere = budget.root().child("elsewhere", "what others hold").try_reserve(plan.elsewhere)?;
        let options = Options {
            disk: sim.clone(),
            folder: Path::new(FOLDER).to_owned(),
            pages: pages.clone(),
            account: budget.root().child("versions", "the store"),
            budget,
            share: plan.share,
            clock: clock.clone(),
            threads: false,
            changed: Box::new(|_| {}),
        };
        let versions = Versions::open(options)?;
        Ok(Self { versions, pages, clock, disk: sim.clone(), ends: BTreeMap::new(), _elsewhere: elsewhere })
    }

    /// Everything that is stored, read as clients would. Leases end when what they were granted for is over.
    pub fn contents(&mut self) -> Result<Found> {
        let found = excused(&self.disk, || read_all(&self.versions))?;
        let now = self.clock.now() + AFTER_START;
        self.ends = found.leases.iter().map(|(id, ttl)| (*id, now + Duration::from_secs(*ttl as u64))).collect();
        Ok(found)
    }

    /// Whether the time of a lease is over; where calls are slow it may be, if it shows as nothing.
    pub fn is_due(&self, id: i64, now: Duration) -> bool {
        let shows_none = self.disk.counts().slow > 0 && self.versions.lease_left(id).is_none_or(|left| left.left == 0);
        shows_none || self.ends.get(&id).is_some_and(|ends| *ends <= now)
    }

    /// A read may fail where the disk does, or where it panics; then there is nothing to check. It may never lie. An answer may
    /// be a refusal.
    pub fn read<T>(&self, read: impl Fn() -> Result<T>) -> Result<Option<std::result::Result<T, String>>, End> {
        let Some(read) = unless_panic(read) else { return Ok(None) };
        match read {
            Ok(value) => Ok(Some(Ok(value))),
            Err(error) => match error.kind() {
                Kind::Io | Kind::Busy | Kind::NoMemory => Ok(None),
                Kind::Corrupt if damages(&self.disk.counts()) > 0 => Ok(None),
                // The panic of another thread's job is told to whoever waited for its pages.
                Kind::Bug if self.disk.counts().panics > 0 => Ok(None),
                Kind::Closed => Err(End::Trouble(error)),
                Kind::Bug | Kind::Corrupt | Kind::NoSpace => Err(End::Wrong(format!("a read failed: {error}"))),
                _ => Ok(Some(Err(error.message().to_owned()))),
            },
        }
    }

    /// Does what changes nothing that can be read. One that panics is gone, and with it this life.
    pub fn change(&self, act: impl FnOnce() -> Result<()>) -> Result<(), End> {
        match excused(&self.disk, act) {
            // It is tried again.
            Err(error) if matches!(error.kind(), Kind::NoMemory | Kind::Busy | Kind::NoSpace | Kind::Io) => Ok(()),
            done => Ok(done?),
        }
    }
}
