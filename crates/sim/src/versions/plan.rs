//! What a life of a store of versions does, and how large it is.

use crate::lot::{Trouble, steps};
use ramekin_base::Rng;
use ramekin_versions::Versions;

steps! {
    // An end of power, a panic and whatever fails may strike where a memtable is written out to make room.
    |step, fault| {
        let reads = matches!(step, Step::Range | Step::Events | Step::ReadOwn);
        step != Step::KeepAlive && !(reads && fault.of_writing)
    };
    Open = 0, "open and recover";
    Put = 8, "put";
    Delete = 3, "delete";
    LargeDelete = 1, "delete in a bulk";
    Txn = 5, "transaction";
    Together = 3, "puts that wait together";
    Fill = 2, "put many keys at once";
    Compact = 2, "compact";
    Purge = 3, "purge";
    Grant = 2, "grant a lease";
    Revoke = 1, "revoke a lease";
    KeepAlive = 1, "keep a lease alive";
    Expire = 2, "leases end";
    Own = 2, "values of the server";
    Flush = 2, "flush";
    Background = 4, "flush and merge";
    Defragment = 1, "defragment";
    Resize = 1, "another share";
    Reopen = 1, "close and open";
    Range = 4, "range";
    Events = 3, "watch";
    ReadOwn = 1, "read leases and the server's";
}

/// A seed's whole plan, drawn before anything runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub trouble: Trouble,
    /// Lives with faults, at least, and steps of each.
    pub lives: u64,
    pub steps: u64,
    /// So many keys begin with the same letters; few, so that commands meet each other.
    pub keys: u64,
    pub budget: u64,
    /// What the store may use of it.
    pub share: u64,
    /// What of it others hold, so that what is read is read from the disk.
    pub elsewhere: u64,
    pub block: usize,
}

impl Plan {
    pub fn draw(rng: &mut Rng) -> Self {
        let trouble = Trouble::draw(rng);
        let budget = (24 + rng.below(3) * 16) << 20;
        let elsewhere = if rng.chance(0.6) && budget > 24 << 20 { budget / 2 } else { 0 };
        Self {
            trouble,
            lives: 2 + rng.below(3),
            steps: 10 + rng.below(120),
            keys: 4 + rng.below(40),
            budget,
            share: share(rng),
            elsewhere,
            block: if rng.chance(0.5) { 512 } else { 4096 },
        }
    }
}

/// What the store may use: the least mostly, so that flushes and merges are many.
pub fn share(rng: &mut Rng) -> u64 {
    Versions::open_bytes() + (rng.below(6).saturating_sub(3) << 20)
}
