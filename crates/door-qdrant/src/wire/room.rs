//! The memory that a decoder may fill: every growing list asks here first.
//!
//! ```text
//!   granted: booked when the body was admitted ──► used: what the decoded lists hold
//!                        more is booked as it is asked for; Busy if there is none
//! ```

use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};

pub struct Room {
    used: u64,
    granted: u64,
    account: Option<Account>,
    booked: Option<Reservation>,
}

/// Bookings beyond what was granted are made in steps of this size.
const STEP: u64 = 64 << 10;

impl Room {
    /// Room without an end, for tests and fuzzing.
    pub fn endless() -> Self {
        Self { used: 0, granted: u64::MAX, account: None, booked: None }
    }

    /// `granted` bytes are covered already, of which `booked` may be a part; what is missing is booked on `account`.
    pub fn new(granted: u64, account: Account, booked: Option<Reservation>) -> Self {
        Self { used: 0, granted, account: Some(account), booked }
    }

    /// Takes `bytes` of the room.
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        let used = self.used.saturating_add(bytes);
        if let Some(account) = self.account.as_ref().filter(|_| used > self.granted) {
            let more = (used - self.granted).next_multiple_of(STEP);
            match &mut self.booked {
                Some(booked) => booked.grow(more)?,
                None => self.booked = Some(account.try_reserve(more)?),
            }
            self.granted += more;
        }
        self.used = used;
        Ok(())
    }

    /// Gives `bytes` back that a list no longer holds.
    pub fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Bytes that the decoded lists hold.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// What was booked, cut down to what is used.
    pub fn into_booked(self) -> Option<Reservation> {
        let mut booked = self.booked?;
        let used = self.used;
        if booked.bytes() > used {
            booked.shrink(booked.bytes() - used);
        }
        Some(booked)
    }

    /// Makes `list` ready for `more` elements.
    pub fn extend<T>(&mut self, list: &mut Vec<T>, more: usize) -> Result<()> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn a_decoder_cannot_outgrow_its_account() {
        let budget = Budget::new(1 << 20);
        let account = budget.root().child("bodies", "");
        let booked = account.try_reserve(100_000).unwrap();
        let mut room = Room::new(100_000, account.clone(), Some(booked));
        let mut list: Vec<u64> = Vec::new();
        let mut refused = false;
        for number in 0..1_000_000 {
            if room.extend(&mut list, 1).is_err() {
                refused = true;
                break;
            }
            list.push(number);
            assert!(list.capacity() as u64 * 8 <= budget.reserved());
        }
        assert!(refused);
        assert_eq!(room.into_booked().unwrap().bytes(), list.capacity() as u64 * 8);
        assert_eq!(budget.reserved(), 0);
    }
}
