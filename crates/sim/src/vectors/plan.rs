//! What a life of a store of vectors does, and how large it is.

use crate::lot::{Trouble, steps};
use ramekin_base::Rng;
use ramekin_vectors::Datatype;

steps! {
    // A memtable that is rotated meets no disk at all.
    |step, fault| {
        let reads = matches!(step, Step::Search | Step::Get | Step::Scroll | Step::Count | Step::Ordered);
        step != Step::Rotate && !(reads && fault.of_writing)
    };
    Open = 0, "open and recover";
    Upsert = 7, "upsert";
    Delete = 5, "delete";
    DeleteByFilter = 3, "delete by filter";
    UpdateVectors = 2, "update vectors";
    Payload = 3, "change payloads";
    PayloadByFilter = 3, "change payloads by filter";
    Together = 3, "writes that wait together";
    Index = 2, "make or drop an index";
    Rotate = 1, "rotate the memtable";
    Fold = 1, "fold payload patches";
    Background = 3, "flush and merge";
    Search = 3, "search";
    Get = 2, "get";
    Scroll = 3, "scroll";
    Count = 2, "count by filter";
    Ordered = 2, "scroll in order";
}

/// A seed's whole plan, drawn before anything runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub trouble: Trouble,
    /// Lives with faults, at least; there are more until [`STEPS_MIN`] steps are done, and then one without.
    pub lives: u64,
    pub steps: u64,
    /// Points that exist in the run; few, so that writes meet each other.
    pub ids: u64,
    pub budget: u64,
    /// What of it others hold: so much that nothing can be resident, and what is read is read from the disk. The smallest
    /// budget is none for that.
    pub elsewhere: u64,
    pub block: usize,
    pub datatype: Datatype,
}

impl Plan {
    pub fn draw(rng: &mut Rng) -> Self {
        let trouble = Trouble::draw(rng);
        let budget = (24 + rng.below(3) * 16) << 20;
        let elsewhere = if rng.chance(0.8) && budget > 24 << 20 { budget * 19 / 32 } else { 0 };
        Self {
            trouble,
            lives: 2 + rng.below(3),
            steps: 10 + rng.below(120),
            ids: 20 + rng.below(300),
            budget,
            elsewhere,
            block: if rng.chance(0.5) { 512 } else { 4096 },
            datatype: Datatype::ALL[rng.below(3) as usize],
        }
    }
}
