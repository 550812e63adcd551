//! Admission: the bytes of a body are booked before the first of them is read.
//!
//! ```text
//!   Content-Length n ─► 413 if over the limit
//!                    ─► the first 16 KiB are free: whoever sends no more than that holds nothing of the pool
//!                    ─► wait in line for 2n of a pool (body + what it decodes to)
//!                    ─► book n + n on door/http/bodies ─► read ─► decode ─► body freed ─► store keeps the rest
//!   no length        ─► grow step by step, one such body at a time
//!   packed           ─► book what comes, one such body at a time; once all is there it is counted, and n is known
//! ```
//!
//! There are two pools, each a share of the budget: one for uploads, one for bodies that a single query may have, so that no
//! search waits behind uploads. A part of each is a minimum reservation, held for good, so that bodies move on whatever else is short. A
//! line is first come, first served and has an end; who holds what others wait for must send at a higher rate (`body`).

pub(crate) mod encoding;
pub(crate) mod guests;
pub(crate) mod socket;

use crate::limits;
use ramekin_base::limits as base;
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_memory::{Account, Budget, Reservation, holding};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

/// Who finds no memory asks others to free some, soon and then so often.
const RELIEF_ROUND: u32 = 3;
const RELIEF_EVERY: Duration = Duration::from_millis(50);
/// So long nothing at all was under way that could free any: nothing will.
const ALONE: Duration = Duration::from_secs(2);

/// The pool is counted in units of this many bytes.
const UNIT: u64 = 1024;

/// A pool of bytes, counted in units.
pub struct Pool {
    pub free: Arc<Semaphore>,
    units: AtomicU64,
    /// Who waits for a part of it, or for the memory of a part.
    line: AtomicUsize,
}

impl Pool {
    pub fn new(bytes: u64) -> Self {
        let units = bytes / UNIT;
        Self { free: Arc::new(Semaphore::new(units as usize)), units: AtomicU64::new(units), line: AtomicUsize::new(0) }
    }

    fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Units that stand for so many bytes.
    pub const fn units_of(bytes: u64) -> u32 {
        bytes.div_ceil(UNIT) as u32
    }

    pub fn resize(&self, bytes: u64) {
        let units = bytes / UNIT;
        let before = self.units.swap(units, Ordering::Relaxed);
        if units > before {
            self.free.add_permits((units - before) as usize);
        } else if units < before {
            let (free, gone) = (self.free.clone(), (before - units) as u32);
            tokio::spawn(async move {
                if let Ok(permit) = free.acquire_many_owned(gone).await {
                    permit.forget();
                }
            });
        }
    }
}

/// The gate in front of request bodies.
pub struct Admission {
    uploads: Pool,
    small: Pool,
    bodies: Account,
    small_bodies: Account,
    budget: Budget,
    waiting: AtomicUsize,
    unmeasured: Arc<Mutex<()>>,
    /// Who waits for the turn of those whose length nobody knows.
    unmeasured_line: AtomicUsize,
    /// Asks others to free memory for a large body; false: nobody has any that would be freed.
    relief: Box<dyn Fn() -> bool + Send + Sync>,
    /// One body is unpacked at a time, with memory that is there for good.
    unpacking: Mutex<Account>,
}

/// What a request holds while its body is read and decoded.
#[derive(Default)]
pub struct BodyPermit {
    /// Covers the text of the body.
    pub text: Option<BodyReservation>,
    /// Covers what the text decodes to; goes to the store with it.
    pub decoded: Option<BodyReservation>,
    /// Covers a packed body.
    packed: Option<Reservation>,
    unmeasured: Option<OwnedMutexGuard<()>>,
}

impl BodyPermit {
    /// Bytes of a packed body.
    pub fn packed(&self) -> u64 {
        self.packed.as_ref().map_or(0, Reservation::bytes)
    }

    /// Whether something is booked for it.
    pub fn holds(&self) -> bool {
        self.text.is_some() || self.packed.is_some()
    }

    /// Whether a part of this pool is held for it.
    fn is_of(&self, pool: &Pool) -> bool {
        self.text.as_ref().is_some_and(|reservation| Arc::ptr_eq(reservation.permit.semaphore(), &pool.free))
    }
}

/// A part of the pool with the bytes it stands for.
pub struct BodyReservation {
    pub memory: Reservation,
    pub permit: OwnedSemaphorePermit,
}

/// One who waits in line; counted, so that the line has an end.
pub struct Waiter<'a>(pub &'a AtomicUsize);

impl<'a> Waiter<'a> {
    fn of(line: &'a AtomicUsize) -> Self {
        line.fetch_add(1, Ordering::Relaxed);
        Self(line)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    /// Takes the minimum reservation of the bodies' account.
    pub fn new(budget: Budget, bodies: Account) -> Result<Self> {
        let bodies = bodies.transient().scattered();
        bodies.set_min_reservation(limits::bodies_min_reservation(budget.limit()))?;
        let small_bodies = bodies.child("small", "bodies of up to 128 KiB x 2; at least budget / 64").scattered();
        small_bodies.set_min_reservation(limits::small_bodies(budget.limit()))?;
        let unpacking = bodies.child("unpack", "one packed body at a time, while it is unpacked");
        unpacking.set_min_reservation(limits::UNPACK_BYTES)?;
        Ok(Self {
            relief: Box::new(|| false),
            unpacking: Mutex::new(unpacking),
            uploads: Pool::new(limits::bodies(budget.limit())),
            small: Pool::new(limits::small_bodies(budget.limit())),
            bodies,
            small_bodies,
            budget,
            waiting: AtomicUsize::new(0),
            unmeasured: Arc::default(),
            unmeasured_line: AtomicUsize::new(0),
        })
    }

    /// Whom to ask to free memory.
    #[must_use]
    pub fn relieved_by(self, relief: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { relief: Box::new(relief), ..self }
    }

    /// The account on which bodies are booked.
    pub fn account(&self) -> &Account {
        &self.bodies
    }

    /// The largest body under the budget of this moment.
    pub fn body_max(&self) -> u64 {
        base::body_max(self.budget.limit())
    }

    /// Refuses a body over the limit.
    pub fn check_length(&self, bytes: u64) -> Result<()> {
        let most = self.body_max();
        if bytes > most {
            return Err(Error::too_large(format!(
                "the body is larger than the limit of {} ({most} bytes); send fewer points a request",
                Size(most)
            )));
        }
        Ok(())
    }

    /// Others wait for what a body holds.
    pub fn is_waited_for(&self, body_permit: &BodyPermit) -> bool {
        let has_line = |line: &AtomicUsize| line.load(Ordering::Relaxed) > 0;
        let of_pool = |pool: &Pool| has_line(&pool.line) && body_permit.is_of(pool);
        of_pool(&self.small)
            || of_pool(&self.uploads)
            || body_permit.packed.is_some() && has_line(&self.uploads.line)
            || body_permit.unmeasured.is_some() && has_line(&self.unmeasured_line)
    }

    /// The pool for a body of so many bytes, and the account on which it is booked.
    fn of(&self, bytes: u64) -> (&Pool, &Account) {
        match bytes <= limits::BODY_SMALL {
            true => (&self.small, &self.small_bodies),
            false => (&self.uploads, &self.bodies),
        }
    }

    fn wait_in<'a>(&'a self, line: &'a AtomicUsize) -> Result<(Waiter<'a>, Waiter<'a>)> {
        Ok((self.wait()?, Waiter::of(line)))
    }

    fn wait(&self) -> Result<Waiter<'_>> {
        let waiter = Waiter(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= base::QUEUE_MAX {
            return Err(Error::busy(format!("{} requests are waiting already", base::QUEUE_MAX)));
        }
        Ok(waiter)
    }

    /// A turn to try again later: sleeps, or says that the time is over.
    pub async fn pause(&self, error: Error, round: u32, until: Instant) -> Result<()> {
        let _waiter = self.wait()?;
        let pause = Duration::from_millis(2 << round.min(5));
        if Instant::now() + pause >= until {
            return Err(error);
        }
        sleep(pause).await;
        Ok(())
    }

    /// Books a body of `bytes` and as much again for what it decodes to.
    pub async fn admit(&self, bytes: u64, until: Instant) -> Result<BodyPermit> {
        self.admit_beside(0, bytes, until).await
    }

    /// The same for one who holds `held` bytes already.
    pub async fn admit_beside(&self, held: u64, bytes: u64, until: Instant) -> Result<BodyPermit> {
        let (pool, account) = self.of(bytes);
        let units = (2 * bytes).div_ceil(UNIT).clamp(2, pool.units().max(2));
        let mut permit = self.permit(pool, units, until).await?;
        let half = permit.split(permit.num_permits() / 2).ok_or_else(|| Error::bug("a permit without halves"))?;
        // Both at once: two bodies that each hold a half would wait for ever, and one that can never fit is told so.
        let mut memory = self.memory(pool, account, held, 2 * bytes, until).await?;
        let text = BodyReservation { memory: memory.split(bytes), permit };
        Ok(BodyPermit {
            text: Some(text),
            decoded: Some(BodyReservation { memory, permit: half }),
            ..BodyPermit::default()
        })
    }

    /// Lets one body be unpacked after the other.
    pub async fn unpacking(&self, until: Instant) -> Result<(Reservation, MutexGuard<'_, Account>)> {
        let turn = timeout_at(until, self.unpacking.lock()).await;
        let account = turn.map_err(|_| Error::busy("other bodies are being unpacked"))?;
        Ok((account.try_reserve(limits::UNPACK_BYTES)?, account))
    }

    /// Takes the turn of those whose length nobody knows yet.
    async fn turn(&self, body_permit: &mut BodyPermit, until: Instant) -> Result<()> {
        if body_permit.unmeasured.is_none() {
            let _waiter = self.wait_in(&self.unmeasured_line)?;
            let turn = timeout_at(until, self.unmeasured.clone().lock_owned()).await;
            body_permit.unmeasured =
                Some(turn.map_err(|_| Error::busy("other bodies without a length are being read"))?);
        }
        Ok(())
    }

    /// Books `bytes` for a packed body. Nobody knows what it holds, so it has the turn of those of unknown length.
    pub async fn hold(&self, body_permit: &mut BodyPermit, bytes: u64, until: Instant) -> Result<()> {
        self.turn(body_permit, until).await?;
        match &mut body_permit.packed {
            // While it moves, its old and its new place are both in use.
            Some(held) => {
                let moved = self.memory(&self.uploads, &self.bodies, held.bytes(), bytes, until).await?;
                *held = moved;
            }
            None => body_permit.packed = Some(self.memory(&self.uploads, &self.bodies, 0, bytes, until).await?),
        }
        Ok(())
    }

    /// Grows the ticket of a body of unknown length to cover `bytes`. One such body grows at a time: two
    /// that wait for each other's bytes would wait for ever.
    pub async fn grow(&self, body_permit: &mut BodyPermit, bytes: u64, until: Instant) -> Result<()> {
        self.turn(body_permit, until).await?;
        let Some((text, decoded)) = body_permit.text.as_mut().zip(body_permit.decoded.as_mut()) else {
            // It may grow beyond what is small.
            let BodyPermit { text, decoded, .. } = self.admit(bytes.max(limits::BODY_SMALL + 1), until).await?;
            (body_permit.text, body_permit.decoded) = (text, decoded);
            return Ok(());
        };
        let more = bytes.saturating_sub(text.memory.bytes());
        // What is beyond the whole pool is left to the budget itself.
        let held = text.permit.num_permits() + decoded.permit.num_permits();
        let units = (2 * more).div_ceil(UNIT).min(self.uploads.units().saturating_sub(held as u64));
        if units > 0 {
            text.permit.merge(self.permit(&self.uploads, units, until).await?);
        }
        let held = text.memory.bytes() + decoded.memory.bytes();
        let mut both = self.memory(&self.uploads, &self.bodies, held, 2 * more, until).await?;
        text.memory.join(both.split(more))?;
        decoded.memory.join(both)
    }

    /// Waits in line for a part of the pool.
    async fn permit(&self, pool: &Pool, units: u64, until: Instant) -> Result<OwnedSemaphorePermit> {
        let units = units as u32;
        if let Ok(permit) = pool.free.clone().try_acquire_many_owned(units) {
            return Ok(permit);
        }
        let _waiter = self.wait_in(&pool.line)?;
        match timeout_at(until, pool.free.clone().acquire_many_owned(units)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Error::closed("the server is stopping")),
            Err(_) => Err(Error::busy(format!(
                "request bodies have {} in all, and this one waited for its share until its timeout",
                Size(limits::bodies(self.budget.limit()))
            ))),
        }
    }

    /// Other bodies are under way, which end.
    fn has_others(&self, held: u64) -> bool {
        self.bodies.used() > held + limits::UNPACK_BYTES + limits::small_bodies(self.budget.limit())
    }

    /// Books bytes for one who holds `held` already; where the budget is short for the moment, tries again until the time is
    /// over. Who alone holds something does not wait for others.
    async fn memory(
        &self,
        pool: &Pool,
        account: &Account,
        held: u64,
        bytes: u64,
        until: Instant,
    ) -> Result<Reservation> {
        let from = Instant::now();
        let (mut asked, mut waiter) = (from, None);
        for round in 0.. {
            let error = match holding(held, || account.try_reserve(bytes)) {
                Err(error) if error.kind() == Kind::Busy => error,
                done => return done,
            };
            waiter.get_or_insert_with(|| Waiter::of(&pool.line));
            if round >= RELIEF_ROUND && asked.elapsed() >= RELIEF_EVERY {
                asked = Instant::now();
                let may_be_freed = (self.relief)() || self.has_others(held);
                if !may_be_freed && from.elapsed() >= ALONE {
                    return Err(Error::no_memory(format!("{error}, and nothing is under way that would free any")));
                }
            }
            self.pause(error, round, until).await?;
        }
        Err(Error::bug("rounds have no end"))
    }

    /// Prepares for a budget of `bytes`: a smaller minimum is taken before the budget shrinks.
    pub fn before_budget(&self, bytes: u64) {
        if bytes < self.budget.limit() {
            // A minimum reservation that shrinks cannot fail.
            let _ = self.small_bodies.set_min_reservation(limits::small_bodies(bytes));
            let _ = self.bodies.set_min_reservation(limits::bodies_min_reservation(bytes));
        }
    }

    /// Follows the budget after it moved.
    pub fn after_budget(&self) {
        let budget = self.budget.limit();
        // A larger minimum may have to wait for the next change; the smaller one still moves uploads on.
        let _ = self.bodies.set_min_reservation(limits::bodies_min_reservation(budget));
        let _ = self.small_bodies.set_min_reservation(limits::small_bodies(budget));
        self.uploads.resize(limits::bodies(budget));
        self.small.resize(limits::small_bodies(budget));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(budget: u64) -> (Budget, Admission) {
        let budget = Budget::new(budget);
        let bodies = budget.root().child("bodies", "");
        (budget.clone(), Admission::new(budget, bodies).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(200)
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_in_line_and_then_are_refused() {
        let (budget, admission) = admission(64 << 20);
        let first = admission.admit(3 << 20, soon()).await.unwrap();
        assert!(budget.reserved() >= 6 << 20);
        let refused = admission.admit(2 << 20, soon()).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy);
        let (second, ()) = tokio::join!(admission.admit(2 << 20, soon()), async {
            sleep(Duration::from_millis(50)).await;
            drop(first);
        });
        assert_eq!(second.unwrap().text.unwrap().memory.bytes(), 2 << 20);
        assert_eq!(budget.reserved(), limits::bodies_min_reservation(64 << 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_larger_than_the_pool_takes_all_of_it() {
        let (_budget, admission) = admission(64 << 20);
        let large = admission.admit(admission.body_max(), soon()).await.unwrap();
        assert!(admission.admit(200 << 10, soon()).await.is_err());
        // What a query may have does not wait for it.
        assert!(admission.admit(100 << 10, soon()).await.is_ok());
        drop(large);
        assert!(admission.admit(200 << 10, soon()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_without_a_length_grow_one_at_a_time() {
        let (_budget, admission) = admission(64 << 20);
        let mut one = BodyPermit::default();
        admission.grow(&mut one, 64 << 10, soon()).await.unwrap();
        admission.grow(&mut one, 256 << 10, soon()).await.unwrap();
        assert!(!admission.is_waited_for(&one));
        assert_eq!(one.text.as_ref().unwrap().memory.bytes(), 256 << 10);
        let mut two = BodyPermit::default();
        assert!(admission.grow(&mut two, 64 << 10, soon()).await.is_err());
        drop(one);
        assert!(admission.grow(&mut two, 64 << 10, soon()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_pool_follows_the_budget() {
        let (budget, admission) = admission(256 << 20);
        admission.before_budget(32 << 20);
        budget.set_limit(32 << 20);
        admission.after_budget();
        tokio::task::yield_now().await;
        assert_eq!(admission.uploads.free.available_permits() as u64 * UNIT, 4 << 20);
        assert_eq!(budget.reserved(), limits::bodies_min_reservation(32 << 20));
        budget.set_limit(256 << 20);
        admission.after_budget();
        assert_eq!(admission.uploads.free.available_permits() as u64 * UNIT, 32 << 20);
        assert_eq!(budget.reserved(), limits::bodies_min_reservation(256 << 20));
    }
}
