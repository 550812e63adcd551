//! Floor 5: the life of a store whose data lies in trees of sorted records.
//!
//! ```text
//!   command ─► stage        the store's own code on a private root; whatever can fail is here     store.rs · unit.rs
//!                │          Done, Refused, or a miss: it waits, and is staged anew                execute.rs · queue.rs · fetch.rs · walk.rs
//!                ▼
//!              group        records of all who wait: one write, one fsync                          group.rs · commit.rs
//!                │
//!              publish      a read view of that moment; answers leave                              tree.rs · view.rs
//!                │
//!   memtable ──flush──► run ──merge──► fewer runs       jobs: prepared without a lock, installed by a swap     jobs.rs
//!                             manifest, trim, replay by the same records                           manifest.rs · open.rs
//!
//!   Nobody writes: what writes need is given back, and taken when the next one comes.             wake.rs
//! ```
//!
//! A store hands in [`Store::stage`] and the list of its trees; it knows no log and no file. The engine knows no key's meaning.
//!
//! Locks, in the order in which they are taken; only those with a star are held across reads and writes of the disk:
//!
//! ```text
//!   log *     appending and syncing; its holder leads the group commit        execute   commands are staged, roots swapped
//!   manifest *   what a start will find                                       pages, memory: theirs come last
//!
//!   is_led       whose turn to lead it is: alone, before `log`                publishing   one view at a time: alone, behind `execute`
//!   running *    threads, while they are started and joined: alone
//! ```

#![forbid(unsafe_code)]

mod bulk;
mod commit;
mod effects;
mod engine;
mod execute;
mod fetch;
mod files;
mod group;
mod health;
mod jobs;
mod keylocks;
mod manifest;
mod open;
mod options;
mod queue;
mod ranks;
mod store;
mod tree;
mod unit;
mod view;
mod wake;
mod walk;

pub use bulk::Bulk;
pub use engine::{Engine, Stats, TreeStats};
pub use execute::{Call, CommandId, Done};
pub use health::{Fault, Source};
pub use options::{Durability, EngineOptions, TreeOptions, log_bytes_most, open_bytes, working_bytes};
pub use store::{Staged, Store};
pub use unit::Unit;
pub use view::ReadView;

/// Decodes whatever stands there as a record of the log. For fuzzing: it must neither panic nor read outside of the bytes.
pub fn decode_anything(bytes: &[u8]) {
    _ = effects::each(bytes, &mut |_, _, _| Ok(()));
}
