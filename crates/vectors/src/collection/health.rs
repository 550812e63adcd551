//! What is wrong with a collection, each fault by its kind, until its own success ends it.
//!
//! ```text
//!   flush, patch compaction, merge, index ── fails ──► Fault { why, how often, when it is tried again } ── the next one succeeds ──► gone
//!   a read of the disk       ── fails ──► Fault ── none fails for a minute, and then one succeeds ──► gone
//!   log, manifest            ── fails ──► Fault: of the store ── the next commit succeeds, or a restart ──► gone
//!   a file fails a checksum ────────────► kept by the file: gone when another takes its place
//!   other damage, a write that is logged and not applied ──► Fault ── a restart ──► gone
//! ```
//!
//! The collection is red while there is one. There is a kind for each indexed field, so faults are bounded as those are.
//!
//! A read that succeeds says nothing of the place where another failed: who reads both in turn would see the collection red
//! and green in turn, with a line each time. Which place it was is not kept, but for how long nothing has failed.

use ramekin_base::health::{self, FaultKind as _};
use ramekin_base::{Error, Kind};
use ramekin_fields::Path;
use std::fmt;
use std::ops::Deref;

/// What failed; the worst first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// A write is in the log and not in memory: nothing more may be written.
    Diverged,
    /// The log takes no more.
    Log,
    /// What a start would find cannot be brought up to date.
    Manifest,
    /// The disk has no room.
    Full,
    /// Stored bytes contradict themselves where no page fails its checksum.
    Damage,
    Flush,
    PatchCompaction,
    Merge,
    Index(Path),
    Read,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diverged => f.write_str("a write is logged and could not be applied"),
            Self::Log => f.write_str("writes are refused"),
            Self::Manifest => f.write_str("the manifest cannot be written"),
            Self::Full => f.write_str("the disk is full, writes other than deletes are refused"),
            Self::Damage => f.write_str("damage"),
            Self::Flush => f.write_str("flush failed"),
            Self::PatchCompaction => f.write_str("patch compaction failed"),
            Self::Merge => f.write_str("merge failed"),
            Self::Index(path) => write!(f, "index of `{path}` failed"),
            Self::Read => f.write_str("a read failed"),
        }
    }
}

/// After a read has failed none may for so long, until one that succeeds ends its fault.
const READS_CALM_MS: u64 = 60_000;

impl health::FaultKind for FaultKind {
    fn say(&self, name: &str, error: &Error) {
        match error.kind() {
            Kind::NoSpace | Kind::Busy => tracing::warn!(collection = name, "{self}: {error}"),
            _ => tracing::error!(collection = name, "{self}: {error}"),
        }
    }

    fn pause_ms(&self, times: u32) -> u64 {
        if *self == Self::Read { READS_CALM_MS } else { health::pause_ms(times) }
    }

    /// While the disk is full the store says so, and what finds too little memory for the moment is made later.
    fn is_put_off(&self, error: &Error) -> bool {
        match self {
            Self::Flush | Self::PatchCompaction => error.kind() == Kind::NoSpace,
            Self::Merge | Self::Index(_) => matches!(error.kind(), Kind::NoSpace | Kind::Busy),
            _ => false,
        }
    }
}

#[derive(Default)]
pub(crate) struct Health(health::Health<FaultKind>);

impl Deref for Health {
    type Target = health::Health<FaultKind>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Health {
    /// A read succeeded: where none has failed for a while, the disk answers again.
    pub(crate) fn read_succeeded(&self, now_ms: impl FnOnce() -> u64) {
        if !self.is_well() {
            let now_ms = now_ms();
            self.end(|fault| fault.kind == FaultKind::Read && !fault.waits(now_ms));
        }
    }

    /// The disk has room again: what found none is tried at once.
    pub(crate) fn room_again(&self) {
        self.end(|fault| fault.error.kind() == Kind::NoSpace && fault.kind.is_put_off(&fault.error));
    }

    /// Forgets the faults of indexes that are not wanted any more.
    pub(crate) fn keep_indexes(&self, is_wanted: impl Fn(&Path) -> bool) {
        self.end(|fault| matches!(&fault.kind, FaultKind::Index(path) if !is_wanted(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_operators_names_each_kind() {
        let page = include_str!("../../../../docs/OPERATIONS.md");
        let field = FaultKind::Index(Path::parse("FIELD").unwrap());
        let mut next = Some(FaultKind::Diverged);
        while let Some(kind) = next {
            let text = kind.to_string();
            assert!(page.contains(&format!("`{text}`")) || page.contains(&format!("`` {text} ``")), "{text}");
            // A new kind belongs into this chain.
            next = match kind {
                FaultKind::Diverged => Some(FaultKind::Log),
                FaultKind::Log => Some(FaultKind::Manifest),
                FaultKind::Manifest => Some(FaultKind::Full),
                FaultKind::Full => Some(FaultKind::Damage),
                FaultKind::Damage => Some(FaultKind::Flush),
                FaultKind::Flush => Some(FaultKind::PatchCompaction),
                FaultKind::PatchCompaction => Some(FaultKind::Merge),
                FaultKind::Merge => Some(field.clone()),
                FaultKind::Index(_) => Some(FaultKind::Read),
                FaultKind::Read => None,
            };
        }
    }

    #[test]
    fn only_its_own_success_ends_a_fault() {
        let health = Health::default();
        let failed = |text: &str| Err::<(), _>(Error::io(text));
        health.note(FaultKind::Flush, "c", &failed("no disk"), 0);
        health.note(FaultKind::Damage, "c", &failed("broken"), 0);
        for kind in [FaultKind::Merge, FaultKind::PatchCompaction, FaultKind::Index(Path::parse("a").unwrap())] {
            health.note(kind, "c", &Ok(()), 0);
        }
        assert_eq!(health.worst().as_deref(), Some("damage: broken"));
        health.note(FaultKind::Flush, "c", &Ok(()), 0);
        assert!(health.of(&FaultKind::Flush).is_none() && health.of(&FaultKind::Damage).is_some());
    }

    #[test]
    fn reads_that_succeed_beside_one_that_fails_do_not_end_its_fault() {
        let health = Health::default();
        let fail = |now_ms| health.raise(FaultKind::Read, Some("c"), &Error::io("sector 7"), now_ms);
        // Every other read meets the place that cannot be read.
        for now_ms in (0..300_000).step_by(10_000) {
            fail(now_ms);
            health.read_succeeded(|| now_ms + 5_000);
            assert!(health.worst().is_some(), "{now_ms}");
        }
        health.read_succeeded(|| 290_000 + READS_CALM_MS - 1);
        assert!(health.worst().is_some());
        health.read_succeeded(|| 290_000 + READS_CALM_MS);
        assert!(health.worst().is_none());
        fail(400_000);
        assert!(health.worst().is_some());
    }

    #[test]
    fn what_fails_is_tried_later_and_later() {
        let health = Health::default();
        for (times, pause) in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000].into_iter().enumerate() {
            health.note(FaultKind::Merge, "c", &Err::<(), _>(Error::bug("planted")), 0);
            assert!(health.waits(&FaultKind::Merge, pause - 1), "{times}");
            assert!(!health.waits(&FaultKind::Merge, pause), "{times}");
        }
        assert!(!health.waits(&FaultKind::Flush, 0));
    }

    #[test]
    fn what_found_no_room_is_tried_at_once_when_there_is_some() {
        let health = Health::default();
        health.note(FaultKind::Flush, "c", &Err::<(), _>(Error::no_space("full")), 0);
        health.note(FaultKind::PatchCompaction, "c", &Err::<(), _>(Error::io("broken")), 0);
        assert!(health.waits(&FaultKind::Flush, 0) && health.worst().is_some_and(|worst| worst.contains("broken")));
        health.room_again();
        assert!(!health.waits(&FaultKind::Flush, 0) && health.waits(&FaultKind::PatchCompaction, 0));
    }

    #[test]
    fn too_little_memory_puts_a_merge_off_and_no_more() {
        let health = Health::default();
        health.note(FaultKind::Merge, "c", &Err::<(), _>(Error::busy("full")), 0);
        health.note(FaultKind::Merge, "c", &Err::<(), _>(Error::closed("stopping")), 0);
        assert!(health.worst().is_none());
        // It is not begun again at once.
        assert!(health.waits(&FaultKind::Merge, 500));
    }
}
