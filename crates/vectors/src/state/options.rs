//! What a store is opened with.

use ramekin_base::Clock;
use ramekin_disk::Disk;
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use std::path::PathBuf;
use std::sync::Arc;

/// What a store is opened with.
pub struct StoreOptions {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    pub pages: Pages,
    pub budget: Budget,
    /// Everything of the store is booked below this account.
    pub account: Account,
    pub clock: Arc<dyn Clock>,
    /// Threads of one index build.
    pub build_threads: usize,
    /// False: no threads; the owner calls [`Store::step`]. The simulator lives in one thread.
    pub threads: bool,
}
