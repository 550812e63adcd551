//! One request on its way: where it goes, how long it may take, its body.

use crate::admission::{Booking, Ticket};
use crate::body::{self, Encoding, Place};
use crate::door::{Params, Shared};
use crate::guests::Guest;
use crate::options::Options;
use crate::routes::Route;
use crate::wire::room::Room;
use axum::body::Body;
use ramekin_base::{Error, Lane, Result, limits};
use ramekin_memory::{Reservation, holding};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub struct Call {
    pub door: Arc<Shared>,
    pub route: &'static Route,
    pub params: Params,
    pub options: Options,
    pub body: Option<Body>,
    pub encoding: Encoding,
    /// The client waits for a word before it sends its body.
    pub expects: bool,
    /// By the host's clock, for the `time` of the answer.
    pub started: Duration,
    /// The connection on which it came.
    pub guest: Option<Arc<Guest>>,
}

/// A body in memory with what covers it.
pub struct Whole {
    pub bytes: Vec<u8>,
    pub ticket: Ticket,
}

impl Call {
    /// The first `{...}` of the path: the collection, in most.
    pub fn name(&self) -> &str {
        self.params.first().map(String::as_str).unwrap_or_default()
    }

    /// Reads the body, once its memory is there.
    pub async fn whole(&mut self) -> Result<Whole> {
        let body = self.body.take().unwrap_or_default();
        let place = Place { admission: &self.door.admission, guest: self.guest.as_deref(), until: self.options.until };
        body::read(body, self.encoding, place, self.expects).await
    }

    /// Reads the body and decodes it: here if it is small, on the reader pool if not.
    pub async fn decode<T: Send + 'static>(
        &mut self,
        decode: impl Fn(&[u8], &mut Room) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Covered<T>> {
        let Whole { bytes, ticket: Ticket { text, decoded, .. } } = self.whole().await?;
        let granted = bytes.len().max(crate::limits::BODY_FREE) as u64;
        let brought = [&text, &decoded].into_iter().flatten().map(|booking| booking.memory.bytes()).sum();
        let need = AtomicU64::new(0);
        let work = move |door: &Shared, bytes: &[u8]| {
            let room = Room::new(granted, door.admission.account().clone(), None);
            holding(brought, || room.attempt(&need, |room| decode(bytes, room)))
        };
        let (value, more) = if bytes.len() <= crate::limits::DECODE_HERE_MAX {
            work(&self.door, &bytes)?
        } else {
            let covered = (bytes, text);
            self.door.run(Lane::Reads, self.options.until, move |door| work(door, &covered.0)).await?
        };
        Ok(Covered { value, decoded, more })
    }

    /// Time since the request came.
    pub fn took(&self) -> Duration {
        self.door.now().saturating_sub(self.started)
    }
}

/// What a body was decoded to, with what covers it. It goes as a whole into the job that uses it: a request that is given
/// up leaves the job running, and what the job holds stays booked until it ends. There is no way to take the value out.
pub struct Covered<T> {
    value: T,
    decoded: Option<Booking>,
    more: Option<Reservation>,
}

impl<T> Covered<T> {
    /// Uses the value in a job, which is told what the request brought with it: so that nothing waits for memory that the
    /// request holds itself.
    pub fn within<R>(&self, job: impl FnOnce(&T) -> R) -> R {
        let decoded = self.decoded.as_ref().map_or(0, |booking| booking.memory.bytes());
        let more = self.more.as_ref().map_or(0, Reservation::bytes);
        holding(decoded + more, || job(&self.value))
    }

    /// A value that came in a path: no larger than the headers of its connection.
    pub fn small(value: T) -> Self {
        Self { value, decoded: None, more: None }
    }
}

impl<T> Deref for Covered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Refuses a path whose collection no name can be, whatever is asked of it. Which signs a name may hold is asked where one is made.
pub fn check_path(route: &Route, params: &Params) -> Result<()> {
    match params.first() {
        Some(name) if route.path.contains("{collection_name}") && name.len() > limits::NAME_MAX => {
            checked_collection_name(name)
        }
        _ => Ok(()),
    }
}

/// The name in the path of a collection to be.
pub fn checked_collection_name(name: &str) -> Result<()> {
    let in_path = |error: Error| {
        Error::new(error.kind(), format!("Validation error in path parameters: [collection_name: {error}]"))
    };
    ramekin_vectors::check_name(name).map_err(in_path)
}
