//! What queries use of the store: the cache that they read through, the account that pays for them, and what they leave for
//! the next ones.

use crate::query::filter_cache::FilterCache;
use crate::query::scratches::Scratches;
use ramekin_base::{Clock, Error, Result};
use ramekin_fields::Bitmaps;
use ramekin_log::LogReader;
use ramekin_memory::Account;
use ramekin_pages::Pages;
use std::sync::{Arc, OnceLock};

/// What a test has happen at a place, by its name.
pub type Plant = Box<dyn Fn(&'static str) + Send + Sync>;

pub(crate) struct QueryEnv {
    pub(crate) pages: Pages,
    pub(crate) account: Account,
    pub(crate) clock: Arc<dyn Clock>,
    /// Of real queries that are kept, to be asked again.
    pub(crate) reservoir: Account,
    /// Set once the log is open.
    pub(crate) log: OnceLock<LogReader>,
    pub(crate) scratches: Arc<Scratches>,
    /// Of rows that pass filters.
    pub(crate) bitmaps: Arc<Bitmaps>,
    pub(crate) filter_cache: FilterCache,
    /// Called at places where a test plants a panic.
    pub(crate) plant: OnceLock<Plant>,
}

impl QueryEnv {
    pub(crate) fn log(&self) -> Result<&LogReader> {
        self.log.get().ok_or_else(|| Error::bug("the log is not open yet"))
    }

    /// A place where a test may plant a panic.
    pub(crate) fn reach(&self, place: &'static str) {
        if let Some(plant) = self.plant.get() {
            plant(place);
        }
    }
}
