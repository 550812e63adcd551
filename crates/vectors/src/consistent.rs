//! Reads of one consistent state, while writes, flushes and merges go on.
//!
//! ```text
//!   view ─► scan its segments ─► merge with its memtables ─► has a point moved meanwhile? ─ no ─► the answer
//!    ▲                                                            │ yes: up to RETRIES times
//!    └────────────────────────────────────────────────────────────┘ then new writes wait in the queue
//! ```

use crate::collection::{Collection, View};
use ramekin_base::{Error, Kind, Result};
use std::sync::Arc;

/// Times that a read looks before it asks changes to wait for it, ...
const RETRIES: usize = 4;
/// ... and then: what the writer had taken already may still come, and no more.
const STILL_LOOKS: usize = 64;

/// Optimistic consistent read. `sealed` scans the segments of one view, which may take long; `answer` merges the result with
/// the view's memtables, and returns `None` if a point moved during the scan and all must be looked at again.
///
/// A point that is replaced while we look goes to the part that grows then. Where that was begun after our view, the
/// answer is made of our segments and of the newer parts too; only where such a part has been flushed already and points
/// of ours have moved, or what a part needs of the log is gone, all begins again. A read that is always too slow keeps
/// new writes of its collection in the queue, and parts where they are, for its last looks; no lock that the writer needs
/// is held while it reads.
pub(crate) fn read_consistent<S, T>(
    collection: &Collection,
    sealed: impl Fn(&View) -> Result<S>,
    answer: impl Fn(&View, &S) -> Result<Option<T>>,
) -> Result<T> {
    for _ in 0..RETRIES {
        let view = collection.view.load_full();
        match look(collection, &view, &sealed, &answer) {
            Ok(Some(answer)) => return Ok(answer),
            Err(error) if error.kind() == Kind::Cancelled || Arc::ptr_eq(&view, &collection.view.load()) => {
                return Err(error);
            }
            Ok(None) | Err(_) => {}
        }
    }
    let _still = collection.still.read();
    for _ in 0..STILL_LOOKS {
        let view = collection.view.load_full();
        match look(collection, &view, &sealed, &answer) {
            Ok(Some(answer)) => return Ok(answer),
            Err(error) if Arc::ptr_eq(&view, &collection.view.load()) => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    Err(Error::busy("points move faster than they can be read; try again"))
}

fn look<S, T>(
    collection: &Collection,
    view: &Arc<View>,
    sealed: impl Fn(&View) -> Result<S>,
    answer: impl Fn(&View, &S) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let dead = view.dead();
    // A death that is counted already may have come with a newer view, and then it would not tell.
    if !Arc::ptr_eq(view, &collection.view.load()) {
        return Ok(None);
    }
    let found = sealed(view)?;
    for _ in 0..RETRIES {
        let Some(wider) = view.with_newer(&collection.view.load()) else { break };
        let made = answer(&wider, &found)?;
        if Arc::ptr_eq(&wider.active, &collection.view.load().active) {
            return Ok(made);
        }
    }
    let made = answer(view, &found)?;
    Ok(made.filter(|_| view.dead() == dead))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]
pub(crate) mod tests {
    use super::*;
    use crate::api::{Batch, CollectionConfig};
    use crate::catalog_cost::HeldConfig;
    use crate::collection::{Located, Logged};
    use crate::memtable::{Memtable, PayloadAt};
    use ramekin_base::PointId;
    use ramekin_memory::Budget;
    use ramekin_pages::Pages;
    use std::cell::Cell;
    use std::collections::BTreeMap;

    const ID: PointId = PointId::Num(7);

    /// A collection of which points move while it is read.
    pub(crate) struct Moving {
        pub(crate) collection: Collection,
        pages: Pages,
        _folder: tempfile::TempDir,
    }

    impl Moving {
        pub(crate) fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (disk, _) = ramekin_disk::probe(folder.path(), Some(ramekin_disk::Engine::Pread)).unwrap();
            let budget = Budget::new(16 << 20);
            let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
            let config = CollectionConfig { full_scan_threshold_kib: 0, ..CollectionConfig::new(BTreeMap::new()) };
            let (account, none) = (budget.root().child("growing", ""), || budget.root().try_reserve(0).unwrap());
            let config = HeldConfig::new(config, none());
            let collection = Collection::new(1, "c", config, none(), &account, 0).unwrap();
            Self { collection, pages, _folder: folder }
        }

        fn with_one() -> Self {
            let moving = Self::new();
            moving.put(ID);
            moving
        }

        /// Puts a point where points go now.
        pub(crate) fn put(&self, id: PointId) {
            let batch = Batch { ids: vec![id], ..Batch::default() };
            self.collection.view.load().active.promise(Memtable::bytes_for(&batch)).unwrap();
            self.collection
                .apply_upsert(
                    &self.pages,
                    &batch,
                    Logged { lsn: 1, seqno: 1 },
                    |_| PayloadAt::default(),
                    None,
                    Located::default(),
                )
                .unwrap();
        }

        /// A new part begins, and the point goes there.
        fn go_on(&self) {
            assert!(self.collection.rotate().unwrap());
            self.put(ID);
        }

        /// The parts that wait are gone, as after a flush.
        fn forget_immutable(&self) {
            let _change = self.collection.change.lock();
            let keep = |view: &View| View { active: view.active.clone(), immutable: Vec::new(), segments: Vec::new() };
            _ = self.collection.swap(keep);
        }
    }

    /// Where the point is alive.
    fn standing(view: &View) -> Vec<usize> {
        view.memtables().enumerate().filter(|(_, part)| part.read().find(ID).is_some()).map(|(at, _)| at).collect()
    }

    #[test]
    fn a_part_that_is_begun_meanwhile_is_looked_at_too() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            moving.go_on();
            moving.go_on();
            Ok(())
        };
        assert_eq!(read_consistent(&moving.collection, sealed, |view, ()| Ok(Some(standing(view)))).unwrap(), [0]);
        assert_eq!(looks.get(), 1);
    }

    #[test]
    fn a_part_that_came_and_went_lets_all_begin_again() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                moving.go_on();
                moving.go_on();
                moving.forget_immutable();
            }
            Ok(())
        };
        assert_eq!(read_consistent(&moving.collection, sealed, |view, ()| Ok(Some(standing(view)))).unwrap(), [0]);
        assert_eq!(looks.get(), 2);
    }

    #[test]
    fn a_part_that_is_begun_while_the_answer_is_made_is_seen() {
        let (moving, looks, answers) = (Moving::with_one(), Cell::new(0), Cell::new(0));
        let answer = |view: &View, (): &()| {
            answers.set(answers.get() + 1);
            if answers.get() <= 2 {
                moving.go_on();
            }
            Ok(Some(standing(view)))
        };
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            Ok(())
        };
        assert_eq!(read_consistent(&moving.collection, sealed, answer).unwrap(), [0]);
        assert_eq!((looks.get(), answers.get()), (1, 3));
    }

    #[test]
    fn a_read_that_is_always_too_slow_keeps_changes_out() {
        let moving = Moving::with_one();
        let sealed = |_: &View| {
            let is_last = moving.collection.is_read_still();
            if !is_last {
                moving.go_on();
                moving.go_on();
                moving.forget_immutable();
            }
            Ok(is_last)
        };
        let answer = |view: &View, is_last: &bool| Ok(Some((standing(view), *is_last)));
        assert_eq!(read_consistent(&moving.collection, sealed, answer).unwrap(), (vec![0], true));
    }

    #[test]
    fn an_error_counts_only_where_nothing_has_changed() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let answer = |_: &View, (): &()| {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                moving.go_on();
            }
            Err::<Option<()>, _>(Error::io("gone"))
        };
        assert!(read_consistent(&moving.collection, |_| Ok(()), answer).is_err());
        assert_eq!(looks.get(), 2);
    }

    #[test]
    fn parts_that_come_and_go_do_not_matter_where_no_point_has_moved() {
        let (moving, looks) = (Moving::with_one(), Cell::new(0));
        let other = |id| {
            moving.collection.rotate().unwrap();
            moving.put(PointId::Num(id));
        };
        let sealed = |_: &View| {
            looks.set(looks.get() + 1);
            [100, 101].into_iter().for_each(|id| other(id + 10 * looks.get()));
            moving.forget_immutable();
            Ok(())
        };
        assert_eq!(read_consistent(&moving.collection, sealed, |view, ()| Ok(Some(standing(view)))).unwrap(), [0]);
        assert_eq!(looks.get(), 1);
    }
}
