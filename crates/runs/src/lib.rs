//! Floor 4: sorted records, the newest in memory, the others in immutable files.
//!
//! ```text
//!   Memtable ──publish──► Root ─┐
//!      │ flush                  ├─► View ─► get · get_many · range · weight_below · select · count
//!      ▼                        │
//!   RunWriter ─► files ─► Run ──┘           memtable/ · view.rs · merge.rs · cursor.rs
//!                          │ merge of neighbours, file by file
//!                          ▼
//!                         Run                writer.rs · file.rs · run.rs · block.rs · format.rs · filter.rs
//! ```
//!
//! A log-structured merge-tree (O'Neil et al., 1996) without sequence numbers: a view pins what it reads, so no file holds a
//! key twice and a merge never looks at who reads. In a tree with weights each record carries the change of live elements that
//! it makes, so that how many lie below a key is a few look-ups, whatever was rewritten and deleted.
//!
//! It knows no log, no manifest and no threads: who keeps a tree says when to flush and merge, names the files, and makes the
//! list of runs durable.

mod block;
pub mod compaction;
mod cursor;
mod entry;
mod file;
mod filter;
mod format;
mod memtable;
mod merge;
mod run;
pub mod sort;
mod view;
mod writer;

pub use entry::{Entry, Extent, INLINE_MAX, KEY_MAX, VALUE_MAX, Value};
pub use file::RunFile;
pub use format::Shape;
pub use memtable::{MemoryCursor, Memtable, Root, UnitCursor};
pub use run::Run;
pub use view::{Big, Found, Range, UnitRange, View};
pub use writer::{Pieces, RunWriter};

/// Decodes whatever stands there as the head of a file, as what an index says of a block, and as a block, in which `key` is
/// looked for and each record is read both ways. For fuzzing: it must neither panic nor read outside of the bytes.
pub fn decode_anything(bytes: &[u8], key: &[u8]) {
    _ = format::Meta::decode(bytes);
    _ = format::BlockAt::decode(bytes);
    let Ok(block) = block::Block::open(bytes) else { return };
    _ = block.lower_bound(key).and_then(|(place, _)| block.entry_of(place, key).map(|_| ()));
    _ = block.value_at_or_before(key);
    _ = block.weight_before(block.len());
    let mut walk = block::Walk::default();
    let mut there = walk.go_to(&block, 0);
    while matches!(there, Ok(true)) {
        _ = walk.entry(&block);
        there = walk.next(&block);
    }
    there = walk.go_to(&block, block.len() - 1);
    while matches!(there, Ok(true)) {
        there = walk.back(&block);
    }
}
