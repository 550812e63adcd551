//! Floor 3: files of bbolt, the store below etcd: written as a stream, read by pages. What etcd calls a snapshot is one.
//!
//! ```text
//!   page 0, 1   metas: where the root bucket stands, how many pages there are
//!   page 2      the list of free pages: none is
//!   page 3 ..   leaves of a bucket, branches above them as they fill ─► its root · the next bucket · ... · the root bucket
//!
//!   writer.rs   records in the order of keys ─► pages in the order of their numbers; the metas are known last
//!   reader.rs   buckets and their records in order, one element at a time; every bound is checked
//!   source.rs   where bytes come from          format.rs   pages, elements, metas
//! ```

#![forbid(unsafe_code)]

mod format;
mod reader;
mod source;
mod writer;

pub use format::{KEY_MAX, METAS_BYTES, PAGE};
pub use reader::{Bucket, Item, Reader, Walk};
pub use source::{FileSource, Source};
pub use writer::{BucketWriter, Pieces, Writer};

/// Reads whatever stands there as a file, all of its buckets and records. For fuzzing: it must neither panic, nor read outside of the
/// bytes, nor go on for ever.
pub fn decode_anything(bytes: &[u8], account: &ramekin_memory::Account) {
    _ = reader::read_all(bytes, account, &mut |_, _, _| {});
}
