//! The index of a field over the rows of a segment: a page file of its own.
//!
//! ```text
//!   keys     the different values as keys, ascending (`key.rs`)     ends    where each ends, where they differ in length
//!   rows     the rows of each key, ascending, key by key            starts  where each key's begin, where they are more
//!   codes    the column of codes by row (`column.rs`)               several, records: its side table
//!   empty    a bit a row: the field is empty                        nulls   a bit a row: it is null
//!   partly   a bit a row: its keys tell a part of a value only      foreign a bit a row: it has a value of another kind
//!   bare     a bit a row: it has no key
//!
//!   condition ─► keys ─► codes ─► few rows: their run of `rows`     many: the column, block by block
//! ```
//!
//! A value's code is its key's place. All of it is read through the cache; nothing must be resident.

mod build;
mod read;
#[cfg(test)]
mod tests;

pub use build::{EachPayload, Payloads, Work, build};
pub(crate) use read::Found;
pub use read::Index;

use crate::column;
use crate::schema::Schema;
use serde::{Deserialize, Serialize};

pub(crate) const KEYS: u32 = 1;
pub(crate) const ENDS: u32 = 2;
pub(crate) const STARTS: u32 = 3;
pub(crate) const ROWS: u32 = 4;
pub(crate) const EMPTY: u32 = 8;
pub(crate) const NULLS: u32 = 9;
// 5 to 7 were a column of another form.
pub(crate) const CODES: u32 = 10;
pub(crate) const SEVERAL: u32 = 11;
pub(crate) const RECORDS: u32 = 12;
pub(crate) const PARTLY: u32 = 13;
pub(crate) const FOREIGN: u32 = 14;
// Files of earlier code have none.
pub(crate) const BARE: u32 = 15;

/// Which flags of rows a file has; what other code wrote than that of now may lack some.
const FORM: u32 = 1;

/// What the file of an index says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub rows: u32,
    /// Values of all rows, each different one of a row once.
    pub values: u32,
    pub distinct: u32,
    /// Bytes of each key, where all have as many.
    pub key_len: Option<usize>,
    /// Some row has several.
    pub has_several: bool,
    /// There is a column.
    pub column: bool,
    /// Rows that have a value.
    pub held: u32,
    /// Of texts, which version of the tokenizer made the words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Box<str>>,
    #[serde(default)]
    form: u32,
    /// Rows with a value of which their keys tell a part, and with one of another kind.
    #[serde(default)]
    pub partly: u32,
    #[serde(default)]
    pub foreign: u32,
}

/// Bytes of the tables of an index over so many points, about: keys, rows, column. Each point has one value, all are
/// different; of a text, sixteen words.
pub fn expected_bytes(schema: &Schema, points: u64) -> [u64; 3] {
    let bits = u64::from(u64::BITS - points.saturating_sub(1).leading_zeros()).max(1);
    let of = |values: u64, key: u64, column_bits: u64| {
        let rows = points.saturating_mul(values * bits).div_ceil(8);
        [points.saturating_mul(values * key), rows, points.saturating_mul(column_bits).div_ceil(8)]
    };
    match schema {
        Schema::Integer { .. } | Schema::Float | Schema::Datetime => of(1, 8, bits),
        Schema::Bool => of(1, 0, 2),
        Schema::Uuid => of(1, 16, bits),
        Schema::Geo => of(1, 24, 0),
        // The word, and where it ends.
        Schema::Keyword => of(1, 24, bits),
        Schema::Text(_) => of(16, 0, 0),
    }
}

impl Meta {
    /// Whether it says of each row what its keys do not: else it is not to be asked, but to be built again.
    pub fn is_current(&self) -> bool {
        self.form == FORM
    }

    pub(crate) fn has_nothing(&self) -> bool {
        self.held < self.rows
    }

    /// Bits of a code in the column.
    pub(crate) fn width(&self) -> usize {
        column::width(self.distinct, self.has_nothing(), self.has_several)
    }
}
