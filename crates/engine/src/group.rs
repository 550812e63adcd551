//! The records of all units that wait for the next commit of the log, as bytes.
//!
//! ```text
//!   bytes   record │ record │ head effect effect END effect END │ head effect ...
//!                           cut                                 cut       ▲ unit under way: dropped, or kept by END
//! ```
//!
//! Two of them take turns: one is filled while the other is written. Neither grows beyond what was booked when it was made, so that
//! whatever is staged can be logged. For a unit that is larger than they take one is made that takes it, and is filled once. While
//! nobody writes they have no memory and take nothing.

use crate::effects;
use crate::options::Limits;
use ramekin_base::Result;
use ramekin_log::Log;
use ramekin_memory::{Account, Reservation};
use ramekin_runs::Entry;

/// A record ends behind the effect that makes it as long as this.
const RECORD_BYTES: usize = 32 << 10;

/// Records on their way to the log.
pub(crate) struct Group {
    bytes: Vec<u8>,
    /// Where each record ends, and whether a unit goes on behind it.
    cuts: Vec<(usize, bool)>,
    /// Where the unit under way begins, and how many cuts there were.
    unit: (usize, usize),
    /// The number of the last unit in it; 0: none.
    pub(crate) last: u64,
    /// With so many bytes it takes no other unit, and no unit has more than so many; 0: it has no memory.
    full_bytes: usize,
    pub(crate) unit_max: usize,
    /// Made for units that take more of memtables than these have left.
    pub(crate) is_large: bool,
    _memory: Option<Reservation>,
}

impl Group {
    /// Without memory: it takes nothing.
    pub(crate) fn asleep() -> Self {
        let (bytes, cuts) = (Vec::new(), Vec::new());
        Self { bytes, cuts, unit: (0, 0), last: 0, full_bytes: 0, unit_max: 0, is_large: false, _memory: None }
    }

    /// `account` pays for all that it may hold.
    pub(crate) fn new(limits: Limits, account: &Account) -> Result<Self> {
        let (full_bytes, unit_max, is_large) = (limits.group_bytes, limits.unit_bytes, limits.is_large);
        let sizes = Self { full_bytes, unit_max, is_large, ..Self::asleep() };
        let (cuts, bytes) = sizes.room();
        let memory = account.try_reserve((bytes + cuts * size_of::<(usize, bool)>()) as u64)?;
        let (bytes, cuts) = (Vec::with_capacity(bytes), Vec::with_capacity(cuts));
        Ok(Self { bytes, cuts, _memory: Some(memory), ..sizes })
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.full_bytes == 0
    }

    /// Whether it was made for these sizes.
    pub(crate) fn suits(&self, limits: &Limits) -> bool {
        self.full_bytes == limits.group_bytes && self.unit_max == limits.unit_bytes
    }

    /// Records that it holds at most, and their bytes: for which room is made in the log before they are filled.
    pub(crate) fn room(&self) -> (usize, usize) {
        let bytes = self.full_bytes + self.unit_max + 64;
        (bytes / RECORD_BYTES + 2, bytes)
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.is_asleep() && self.bytes.len() >= self.full_bytes
    }

    /// Bytes of the unit under way.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.bytes.len() - self.unit.0
    }

    fn record_from(&self) -> usize {
        self.cuts.last().map_or(0, |(end, _)| *end)
    }

    /// Adds an effect of the unit `seqno`.
    pub(crate) fn put(&mut self, seqno: u64, tree: usize, entry: &Entry<'_>) {
        if self.bytes.len() == self.record_from() {
            effects::begin(&mut self.bytes, seqno);
        } else if self.bytes.len() - self.record_from() >= RECORD_BYTES {
            self.cuts.push((self.bytes.len(), true));
            effects::begin(&mut self.bytes, seqno);
        }
        effects::put(&mut self.bytes, tree, entry);
    }

    /// Calls `each` with tree and key of each effect of the unit under way.
    pub(crate) fn each_key(&self, each: &mut dyn FnMut(usize, &[u8])) {
        let (mut from, cuts) = (self.unit.0, &self.cuts[self.unit.1..]);
        let mut began = self.cuts[..self.unit.1].last().map_or(0, |(end, _)| *end);
        for end in cuts.iter().map(|(end, _)| *end).chain([self.bytes.len()]) {
            let head = if from == began { effects::HEAD } else { 0 };
            effects::each_key(&self.bytes[..end], from + head, each);
            (from, began) = (end, end);
        }
    }

    /// The unit under way is whole.
    pub(crate) fn keep_unit(&mut self, seqno: u64) {
        effects::end(&mut self.bytes);
        if self.bytes.len() - self.record_from() >= RECORD_BYTES {
            self.cuts.push((self.bytes.len(), false));
        }
        self.unit = (self.bytes.len(), self.cuts.len());
        self.last = seqno;
    }

    /// The unit under way is no more.
    pub(crate) fn drop_unit(&mut self) {
        self.bytes.truncate(self.unit.0);
        self.cuts.truncate(self.unit.1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends its records to the log, where room was made for them. Another unit is under way in no group that is written.
    ///
    /// Records up to the next end of a unit at an end of a record are one request. All have one number: units may go on behind each of
    /// many records, and a start looks for the next record that ends with a unit, whichever that is.
    pub(crate) fn append(&self, log: &mut Log) -> Result<()> {
        let mut from = 0;
        let rest = (self.bytes.len() > self.record_from()).then_some((self.bytes.len(), false));
        for (end, goes_on) in self.cuts.iter().copied().chain(rest) {
            log.append_part(self.last, &self.bytes[from..end], !goes_on)?;
            from = end;
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.cuts.clear();
        (self.unit, self.last) = ((0, 0), 0);
    }
}
