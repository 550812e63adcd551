//! Changed payloads that stand in the log, by row: a memtable that is shared until it changes.
//!
//! ```text
//!   PatchMemtable ─► level of 1,024 │ level of 96 │ level of 3        sorted, immutable; of one row the newest counts
//!
//!   put ─► one level more ─► joined with the one before while that is less than twice as long
//! ```
//!
//! The logarithmic method (Bentley and Saxe, 1980): an entry is copied about log2(n) times, a lookup is a binary search in as
//! many levels. Whoever holds a clone sees the changes of one moment.

use crate::payload::log::PayloadAt;
use ramekin_memory::Reservation;
use std::sync::Arc;

/// Bytes of one changed payload that are reserved before it is logged: an entry, and as much again while levels are joined.
pub(crate) const PATCH_BYTES: u64 = 64;

type Entry = (u32, PayloadAt);

struct Level {
    /// Ascending, each row once.
    entries: Box<[Entry]>,
    _memory: Reservation,
}

/// Changed payloads by row; each stands in the log.
#[derive(Clone, Default)]
pub(crate) struct PatchMemtable {
    /// The oldest first.
    levels: Arc<[Arc<Level>]>,
}

impl PatchMemtable {
    /// Entries, those that newer ones hide included.
    pub(crate) fn len(&self) -> usize {
        self.levels.iter().map(|level| level.entries.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// The newest change of a row.
    pub(crate) fn get(&self, row: u32) -> Option<PayloadAt> {
        self.levels.iter().rev().find_map(|level| {
            let found = level.entries.binary_search_by_key(&row, |(own, _)| *own).ok()?;
            Some(level.entries[found].1)
        })
    }

    /// Shows each row, perhaps several times, in no order.
    pub(crate) fn each_row(&self, each: &mut dyn FnMut(u32)) {
        self.levels.iter().for_each(|level| level.entries.iter().for_each(|(row, _)| each(*row)));
    }

    /// The rows ascending, each once with its newest change.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        let mut at = vec![0; self.levels.len()];
        std::iter::from_fn(move || {
            let next = |(level, at): (&Arc<Level>, &usize)| level.entries.get(*at).map(|(row, _)| *row);
            let row = self.levels.iter().zip(&at).filter_map(next).min()?;
            let mut newest = None;
            for (level, at) in self.levels.iter().zip(&mut at) {
                if let Some(entry) = level.entries.get(*at).filter(|(own, _)| *own == row) {
                    (newest, *at) = (Some(*entry), *at + 1);
                }
            }
            newest
        })
    }

    /// With changes on top, of which a later one of the same row counts. They are paid for out of `memory`, which holds
    /// [`PATCH_BYTES`] for each; levels are joined as far as there is memory for that.
    #[must_use]
    pub(crate) fn with(&self, mut changes: Vec<Entry>, memory: &mut Reservation) -> Self {
        if changes.is_empty() {
            return self.clone();
        }
        // Of equal rows the later change stands first, and the others go.
        changes.reverse();
        changes.sort_by_key(|(row, _)| *row);
        changes.dedup_by_key(|(row, _)| *row);
        let mut levels = self.levels.to_vec();
        // Others' share of it is theirs.
        let memory = &mut memory.split(changes.len() as u64 * PATCH_BYTES);
        levels.push(Level::new(changes.into_iter(), memory));
        while let [.., older, newer] = &levels[..] {
            let (together, held) = (Level::bytes(older.entries.len() + newer.entries.len()), memory.bytes());
            if older.entries.len() >= 2 * newer.entries.len()
                || held < together && memory.grow_no_reclaim(together - held).is_err()
            {
                break;
            }
            let both = Self { levels: [older.clone(), newer.clone()].into() };
            let joined = Level::new(both.iter(), memory);
            levels.truncate(levels.len() - 2);
            levels.push(joined);
        }
        Self { levels: levels.into() }
    }

    /// With all of a newer one on top.
    #[must_use]
    pub(crate) fn below(&self, newer: &Self) -> Self {
        Self { levels: self.levels.iter().chain(newer.levels.iter()).cloned().collect() }
    }
}

impl Level {
    fn bytes(entries: usize) -> u64 {
        (entries * size_of::<Entry>()) as u64
    }

    fn new(entries: impl Iterator<Item = Entry>, memory: &mut Reservation) -> Arc<Self> {
        let entries: Box<[Entry]> = entries.collect();
        debug_assert!(memory.bytes() >= Self::bytes(entries.len()), "changes are booked before they are made");
        let _memory = memory.split(Self::bytes(entries.len()));
        Arc::new(Self { entries, _memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;
    use ramekin_memory::Budget;
    use std::collections::BTreeMap;

    fn place(n: u64) -> PayloadAt {
        PayloadAt { record: n, at: 0, len: 1 }
    }

    #[test]
    fn it_holds_what_a_map_holds_also_for_who_keeps_an_older_one() {
        let budget = Budget::new(16 << 20);
        let (mut rng, mut own, mut map) = (Rng::new(7), PatchMemtable::default(), BTreeMap::new());
        let mut kept = Vec::new();
        for step in 0..400u64 {
            let changes: Vec<Entry> =
                (0..1 + rng.below(20)).map(|n| (rng.below(500) as u32, place(step * 100 + n))).collect();
            let mut memory = budget.root().try_reserve(changes.len() as u64 * PATCH_BYTES).unwrap();
            map.extend(changes.iter().copied());
            own = own.with(changes, &mut memory);
            if step % 97 == 0 {
                kept.push((own.clone(), map.clone()));
            }
        }
        kept.push((own.clone(), map));
        for (own, map) in &kept {
            assert!(own.iter().eq(map.iter().map(|(row, at)| (*row, *at))));
            assert!((0..510).all(|row| own.get(row) == map.get(&row).copied()));
        }
        assert!(own.levels.len() <= 10 && own.len() < 1_200, "{} in {}", own.len(), own.levels.len());
        drop((own, kept));
        assert_eq!(budget.root().used(), 0);
    }

    #[test]
    fn without_memory_to_join_levels_they_stay_apart() {
        let budget = Budget::new(1 << 20);
        let mut own = PatchMemtable::default();
        let all = |n: u64| budget.root().try_reserve(n * PATCH_BYTES).unwrap();
        for n in 0..8 {
            let mut memory = all(1);
            let _others = budget.root().try_reserve((1 << 20) - budget.root().used()).unwrap();
            own = own.with(vec![(n, place(u64::from(n)))], &mut memory);
        }
        assert!((0..8).all(|n| own.get(n) == Some(place(u64::from(n)))));
        assert_eq!(own.below(&PatchMemtable::default().with(vec![(3, place(9))], &mut all(1))).get(3), Some(place(9)));
    }
}
