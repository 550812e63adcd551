//! The ranks of this crate's locks; those of `pages` and `memory` come after them. The order stands in `lib.rs`.

use ramekin_base::lock::Rank;

pub(crate) static WAKING: Rank = Rank::long(10, "rest.waking");
pub(crate) static REST: Rank = Rank::short(15, "rest.state");
pub(crate) static MANIFEST: Rank = Rank::long(20, "manifest");
pub(crate) static ALIASING: Rank = Rank::long(25, "aliasing");
pub(crate) static STILL: Rank = Rank::long(30, "collection.still");
pub(crate) static CHANGE: Rank = Rank::short(50, "collection.change");
pub(crate) static GROWING: Rank = Rank::short(60, "growing");
pub(crate) static CHANGES: Rank = Rank::short(65, "segment.changes");
pub(crate) static FIELDS: Rank = Rank::short(70, "segment.fields");
