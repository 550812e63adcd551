//! The ranks of this crate's locks; those of `pages` and `memory` come after them. The order stands in `lib.rs`.

use ramekin_base::lock::Rank;

pub(crate) static WAKING: Rank = Rank::long(10, "idle.waking");
pub(crate) static PLANNING: Rank = Rank::long(12, "idle.planning");
pub(crate) static MERGING: Rank = Rank::long(13, "idle.merging");
pub(crate) static IDLE: Rank = Rank::short(15, "idle.state");
pub(crate) static MANIFEST: Rank = Rank::long(20, "manifest");
pub(crate) static ALIASING: Rank = Rank::long(25, "aliasing");
pub(crate) static CATALOG: Rank = Rank::short(27, "catalog");
pub(crate) static CHANGE: Rank = Rank::short(50, "collection.change");
pub(crate) static MEMTABLE: Rank = Rank::short(60, "memtable");
pub(crate) static PATCHES: Rank = Rank::short(65, "segment.patches");
pub(crate) static FIELDS: Rank = Rank::short(70, "segment.fields");
