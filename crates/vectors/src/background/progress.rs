//! How far a build is, told while it goes on.

use crate::api::Progress;
use crate::collection::Collection;
use crate::inner::StoreInner;
use parking_lot::Mutex;
use std::time::Duration;

/// The two kinds of work, which are also the folders of their temporary files: they run at one time.
pub(crate) const FLUSH: &str = "seal";
pub(crate) const MERGE: &str = "merge";

/// Tells people how far a build is: in the collection's info at every step, in the log now and then.
pub(crate) struct Reporter<'a> {
    shared: &'a StoreInner,
    name: &'a str,
    collection: &'a Collection,
    what: &'static str,
    started: Duration,
    told: Mutex<(Option<ramekin_ann::Phase>, Duration)>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(shared: &'a StoreInner, name: &'a str, collection: &'a Collection, what: &'static str) -> Self {
        let started = shared.options.clock.now();
        let report = Self { shared, name, collection, what, started, told: Mutex::new((None, started)) };
        report.set("rows", 0, 0);
        report
    }

    fn set(&self, phase: &str, done: u64, total: u64) -> Progress {
        let passed = (self.shared.options.clock.now() - self.started).as_secs_f64().max(1e-9);
        let rate = done as f64 / passed;
        let left = if rate > 0.0 { (total.saturating_sub(done)) as f64 / rate } else { 0.0 };
        let progress =
            Progress { what: format!("{}: {phase}", self.what), done, total, rate_per_s: rate, left_s: left };
        self.collection.progress.tell(self.what, progress.clone());
        progress
    }

    pub(crate) fn step(&self, step: ramekin_ann::Progress) {
        let now = self.shared.options.clock.now();
        let progress = self.set(&format!("{:?}", step.phase).to_lowercase(), step.done, step.total);
        let mut told = self.told.lock();
        if told.0 != Some(step.phase) || now - told.1 >= Duration::from_secs(5) {
            *told = (Some(step.phase), now);
            let Progress { what, done, total, rate_per_s, left_s } = progress;
            tracing::info!(
                collection = self.name,
                "{what}: {done} of {total} points, {rate_per_s:.0}/s, {left_s:.0} s left"
            );
        }
    }

    /// Tells how far a build without phases is, in the collection's info.
    pub(crate) fn tell(&self, what: &str, done: u64, total: u64) {
        self.set(what, done, total);
    }
}

impl Drop for Reporter<'_> {
    fn drop(&mut self) {
        self.collection.progress.end(self.what);
    }
}
