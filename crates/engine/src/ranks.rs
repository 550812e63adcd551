//! The ranks of this crate's locks; those of `pages` and `memory` come after them. The order stands in `lib.rs`.

use ramekin_base::lock::Rank;

pub(crate) static LOG: Rank = Rank::long(10, "log");
pub(crate) static MANIFEST: Rank = Rank::long(20, "manifest");
pub(crate) static EXECUTE: Rank = Rank::short(40, "execute");
