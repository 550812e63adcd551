//! A body in memory, what it decodes to, and what covers both.
//!
//! ```text
//!   FullBody ─┬─ Source    the text and its booking         ─┐ both go into the job that decodes: the request may be given up
//!             └─ Decoding  the booking of what it decodes to ─┘ meanwhile, and what the job holds stays booked until it ends
//!                             └─► the value with its booking: Reserved, or into the store
//! ```

use crate::admission::{BodyPermit, BodyReservation};
use crate::limits::BODY_FREE;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation, SharedReservation, holding};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::OwnedSemaphorePermit;

/// A body in memory with what covers it.
pub struct FullBody {
    pub bytes: Vec<u8>,
    pub body_permit: BodyPermit,
}

impl FullBody {
    pub fn split(self) -> (Source, Decoding) {
        let BodyPermit { text, decoded, .. } = self.body_permit;
        (Source { bytes: self.bytes, reservation: text }, Decoding::new(decoded))
    }
}

/// The text of a body.
pub struct Source {
    pub bytes: Vec<u8>,
    reservation: Option<BodyReservation>,
}

impl Source {
    fn booked(&self) -> u64 {
        self.reservation.as_ref().map_or(0, |reservation| reservation.memory.bytes())
    }
}

/// One piece of decoding, tried again where memory was short.
pub struct Decoding {
    /// What was booked before the body was read; the first attempt takes it.
    brought: Mutex<Option<Reservation>>,
    /// Memory that the last attempt missed.
    need: AtomicU64,
    /// The part of the pool, for who uses the value.
    pub permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Decoding {
    pub fn new(reservation: Option<BodyReservation>) -> Self {
        let (brought, permit) =
            reservation.map(|BodyReservation { memory, permit }| (memory, Arc::new(permit))).unzip();
        Self { brought: Mutex::new(brought), need: AtomicU64::new(0), permit }
    }

    /// Decodes a part of a body; returns the value with its booking. As many bytes as the text has are booked first.
    pub fn attempt<T>(
        &self,
        source: &Source,
        range: Range<usize>,
        account: &Account,
        decode: impl FnOnce(&[u8], &mut SharedReservation) -> Result<T>,
    ) -> Result<(T, Option<Reservation>)> {
        let brought = self.brought.lock().take();
        let held = source.booked() + brought.as_ref().map_or(0, Reservation::bytes);
        holding(held, || {
            let bytes = &source.bytes[range];
            let booked = match brought {
                None if bytes.len() > BODY_FREE => Some(account.try_reserve(bytes.len() as u64)?),
                brought => brought,
            };
            let room = SharedReservation::new(bytes.len().max(BODY_FREE) as u64, account.clone(), booked);
            room.attempt(&self.need, |room| decode(bytes, room))
        })
    }
}

/// What a body was decoded to, with what covers it. It goes as a whole into the job that uses it: a request that is given
/// up leaves the job running, and what the job holds stays booked until it ends. There is no way to take the value out.
pub struct Reserved<T> {
    value: T,
    booked: Option<Reservation>,
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl<T> Reserved<T> {
    pub fn new(value: T, booked: Option<Reservation>, permit: Option<Arc<OwnedSemaphorePermit>>) -> Self {
        Self { value, booked, _permit: permit }
    }

    /// A value that came in a path: no larger than the headers of its connection.
    pub fn small(value: T) -> Self {
        Self::new(value, None, None)
    }

    /// Uses the value in a job, which is told what the request brought with it: so that nothing waits for memory that the
    /// request holds itself.
    pub fn within<R>(&self, job: impl FnOnce(&T) -> R) -> R {
        holding(self.booked.as_ref().map_or(0, Reservation::bytes), || job(&self.value))
    }
}

impl<T> Deref for Reserved<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
