//! Lists that grow from outside bytes: each carries the room that its bytes are booked in.
//!
//! ```text
//!   SharedReservation (of a request) ── clone ──► BookedVec ── push: booked before it grows ──► finish: a Vec, whose bytes
//!     │ granted beforehand                  │                                            stay booked in the room
//!     │ more in steps, on an account        └─ dropped: given back to the room
//!     └─ into_booked: what covers all of it from then on
//! ```
//!
//! A room is one reservation for many lists, so that a small one costs a few instructions and not a climb through the tree of
//! accounts. A list cannot grow without it: there is no way to push that does not ask.

use crate::{Account, Reservation};
use parking_lot::Mutex;
use ramekin_base::{Kind, Result};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that a piece of work may fill. Clones are handles to the same room.
#[derive(Clone)]
pub struct SharedReservation(Arc<Mutex<State>>);

struct State {
    used: u64,
    granted: u64,
    /// What it would have held where it was refused.
    wanted: u64,
    account: Option<Account>,
    booked: Option<Reservation>,
}

/// Bookings beyond what was granted are made in steps of this size.
const STEP: u64 = 64 << 10;

/// What an allocation takes at least beside its bytes, and what the allocator rounds at most of a large one that is used.
const TEXT_OVERHEAD: usize = 16;
const ROUNDING_MAX: usize = 4096;

impl State {
    fn take(&mut self, bytes: u64) -> Result<()> {
        let used = self.used.saturating_add(bytes);
        if used > self.granted {
            self.wanted = used;
            self.book((used - self.granted).next_multiple_of(STEP))?;
        }
        self.used = used;
        Ok(())
    }

    fn book(&mut self, more: u64) -> Result<()> {
        match (&mut self.booked, &self.account) {
            (Some(booked), _) => booked.grow(more)?,
            (None, Some(account)) => self.booked = Some(account.try_reserve(more)?),
            (None, None) => {}
        }
        self.granted += more;
        Ok(())
    }
}

impl SharedReservation {
    /// Room without an end, for tests and fuzzing.
    pub fn endless() -> Self {
        Self::of(u64::MAX, None, None)
    }

    /// `granted` bytes are covered already, of which `booked` may be a part; what is missing is booked on `account`.
    pub fn new(granted: u64, account: Account, booked: Option<Reservation>) -> Self {
        Self::of(granted, Some(account), booked)
    }

    fn of(granted: u64, account: Option<Account>, booked: Option<Reservation>) -> Self {
        Self(Arc::new(Mutex::new(State { used: 0, granted, wanted: 0, account, booked })))
    }

    /// Decodes by `decode`. Where memory is short, `need` is told how much was missing: the next attempt begins by booking
    /// that, and decodes only once it is there.
    pub fn attempt<T>(
        mut self,
        need: &AtomicU64,
        decode: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, Option<Reservation>)> {
        let before = need.load(Ordering::Relaxed);
        {
            let mut state = self.0.lock();
            let more = before.saturating_sub(state.granted);
            if more > 0 {
                state.book(more)?;
            }
        }
        match decode(&mut self) {
            Ok(value) => Ok((value, self.into_booked())),
            Err(error) => {
                if error.kind() == Kind::Busy {
                    need.store(self.0.lock().wanted, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Takes `bytes` of the room.
    pub fn take(&self, bytes: u64) -> Result<()> {
        self.0.lock().take(bytes)
    }

    /// Takes what a text of so many bytes costs as an allocation of its own, with the allocator's rounding.
    pub fn text(&self, bytes: usize) -> Result<()> {
        self.take((bytes + TEXT_OVERHEAD + (bytes / 4).min(ROUNDING_MAX)) as u64)
    }

    /// Gives `bytes` back that a list no longer holds.
    pub fn give(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.used = state.used.saturating_sub(bytes);
    }

    /// Bytes that the lists hold.
    pub fn used(&self) -> u64 {
        self.0.lock().used
    }

    /// What was booked, cut down to what is used.
    pub fn into_booked(self) -> Option<Reservation> {
        let mut state = self.0.lock();
        let used = state.used;
        let mut booked = state.booked.take()?;
        if booked.bytes() > used {
            booked.shrink(booked.bytes() - used);
        }
        Some(booked)
    }

    /// Makes `list` ready for `more` elements.
    pub fn extend<T>(&self, list: &mut Vec<T>, more: usize) -> Result<()> {
        if list.capacity() - list.len() >= more {
            return Ok(());
        }
        let wanted = (list.len() + more).max(list.capacity() + list.capacity() / 2).max(4);
        let size = size_of::<T>() as u64;
        let before = list.capacity() as u64 * size;
        // While the list moves, its old and its new place are both in use.
        self.take(wanted as u64 * size)?;
        list.reserve_exact(wanted - list.len());
        self.give(before);
        Ok(())
    }

    /// The same for elements that somebody guesses will come: where there is no memory for so many, the list grows by those that do.
    pub fn expect<T>(&self, list: &mut Vec<T>, more: usize) {
        _ = self.extend(list, more);
    }
}

/// A list that is booked in a room.
pub struct BookedVec<T> {
    list: Vec<T>,
    room: SharedReservation,
}

impl<T> BookedVec<T> {
    pub fn new(room: &SharedReservation) -> Self {
        Self { list: Vec::new(), room: room.clone() }
    }

    pub fn push(&mut self, value: T) -> Result<()> {
        if self.list.len() == self.list.capacity() {
            self.room.extend(&mut self.list, 1)?;
        }
        self.list.push(value);
        Ok(())
    }

    /// Makes room for `more` elements, no more than that: for lists that were counted first.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        if self.list.capacity() > 0 {
            return self.room.extend(&mut self.list, more);
        }
        self.room.take((more * size_of::<T>()) as u64)?;
        self.list.reserve_exact(more);
        Ok(())
    }

    /// Leaves out everything; the room for it stays.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Leaves out what is the same as what stands before it.
    pub fn dedup_by(&mut self, same: impl FnMut(&mut T, &mut T) -> bool) {
        self.list.dedup_by(same);
    }

    /// The list as it is. Its bytes stay booked in the room, and with what the room becomes.
    pub fn finish(mut self) -> Vec<T> {
        std::mem::take(&mut self.list)
    }

    /// The same, and it never grows again: no more is booked than it holds.
    pub fn boxed(mut self) -> Result<Box<[T]>> {
        let bytes = |count: usize| (count * size_of::<T>()) as u64;
        let (held, capacity) = (bytes(self.list.len()), bytes(self.list.capacity()));
        if held < capacity {
            // While it moves, its old and its new place are both in use.
            self.room.take(held)?;
            self.room.give(capacity);
        }
        Ok(std::mem::take(&mut self.list).into_boxed_slice())
    }
}

impl<T: Clone> BookedVec<T> {
    /// A list of as many as `from`, and like it.
    pub fn copied(from: &[T], room: &SharedReservation) -> Result<Self> {
        let mut copy = Self::new(room);
        copy.reserve(from.len())?;
        copy.extend(from)?;
        Ok(copy)
    }

    pub fn extend(&mut self, more: &[T]) -> Result<()> {
        self.room.extend(&mut self.list, more.len())?;
        self.list.extend_from_slice(more);
        Ok(())
    }
}

/// A list of a fixed length, with what it is booked with; the default one is empty.
pub struct BookedSlice<T> {
    items: Box<[T]>,
    memory: Option<Reservation>,
}

impl<T> Default for BookedSlice<T> {
    fn default() -> Self {
        Self { items: Box::default(), memory: None }
    }
}

impl<T: Clone> BookedSlice<T> {
    /// So many times the same value.
    pub fn filled(value: T, count: usize, account: &Account) -> Result<Self> {
        let memory = account.try_reserve((count * size_of::<T>()) as u64)?;
        Ok(Self { items: vec![value; count].into(), memory: Some(memory) })
    }
}

impl<T> BookedSlice<T> {
    /// Bytes that it is booked with.
    pub fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Reservation::bytes)
    }
}

impl<T> Deref for BookedSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for BookedSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> Drop for BookedVec<T> {
    fn drop(&mut self) {
        // What was finished has no capacity any more.
        self.room.give((self.list.capacity() * size_of::<T>()) as u64);
    }
}

impl<T> Deref for BookedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.list
    }
}

impl<T> DerefMut for BookedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    #[test]
    fn a_decoder_cannot_outgrow_its_account() {
        let budget = Budget::new(1 << 20);
        let account = budget.root().child("bodies", "");
        let booked = account.try_reserve(100_000).unwrap();
        let room = SharedReservation::new(100_000, account.clone(), Some(booked));
        let mut list: BookedVec<u64> = BookedVec::new(&room);
        let mut refused = false;
        for number in 0..1_000_000 {
            if list.push(number).is_err() {
                refused = true;
                break;
            }
            assert!(list.list.capacity() as u64 * 8 <= budget.reserved());
        }
        assert!(refused);
        let list = list.finish();
        let covers = room.into_booked().unwrap();
        assert_eq!(covers.bytes(), list.capacity() as u64 * 8);
        drop(covers);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn many_small_lists_share_a_room_and_give_back_to_it() {
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("bodies", ""), None);
        let lists: Vec<BookedVec<u8>> = (0..1_000)
            .map(|_| {
                let mut list = BookedVec::new(&room);
                list.push(1).unwrap();
                list
            })
            .collect();
        assert_eq!((room.used(), budget.reserved()), (4_000, STEP));
        drop(lists);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn a_boxed_list_is_booked_as_long_as_it_is() {
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("bodies", ""), None);
        let mut list = BookedVec::new(&room);
        list.extend(&[1u32, 1, 2, 3, 3]).unwrap();
        list.push(4).unwrap();
        list.dedup_by(|one, other| one == other);
        let (boxed, copy) = (list.boxed().unwrap(), BookedVec::copied(&[1u8, 2], &room).unwrap());
        assert_eq!((&*boxed, &*copy, room.used()), (&[1, 2, 3, 4][..], &[1, 2][..], 4 * 4 + 2));
        drop(copy);
        assert_eq!(room.used(), 16);
        let slice = BookedSlice::filled(7u64, 1000, &budget.root()).unwrap();
        assert_eq!((slice.len(), slice[999], slice.bytes()), (1000, 7, 8000));
        assert!(BookedSlice::filled(0u8, 1 << 20, &budget.root()).is_err());
    }

    #[test]
    fn an_attempt_that_was_short_begins_with_what_it_lacked() {
        let budget = Budget::new(1 << 20);
        let account = budget.root().child("bodies", "");
        let other = budget.root().child("other", "").try_reserve(900 << 10).unwrap();
        let (need, mut decoded) = (AtomicU64::new(0), 0);
        let mut attempt = || {
            SharedReservation::new(0, account.clone(), None).attempt(&need, |room| {
                decoded += 1;
                room.take(512 << 10)
            })
        };
        assert_eq!(attempt().map(|_| ()).unwrap_err().kind(), Kind::Busy);
        // It is not decoded again as long as the memory is not there.
        assert_eq!(attempt().map(|_| ()).unwrap_err().kind(), Kind::Busy);
        drop(other);
        assert_eq!(attempt().unwrap().1.unwrap().bytes(), 512 << 10);
        assert_eq!(decoded, 2);
    }
}
