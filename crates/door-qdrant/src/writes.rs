//! Writes of points: every endpoint that ends in [`Store::write`](ramekin_vectors::Store::write).
//!
//! ```text
//!   body ─► decode ─► store.write(.., done) ─► body freed ─► wait for done ─► operation_id, status
//!             └── busy: decode again later, the body is still there ──┘
//! ```

use crate::admission::{Booking, Ticket};
use crate::answer::Answer;
use crate::call::{Call, Whole};
use crate::door::{Shared, outcome};
use crate::errors::Outcome;
use crate::limits::{BODY_FREE, DECODE_HERE_MAX};
use crate::wire::room::Room;
use crate::{batch, selection};
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Lane, Result};
use ramekin_memory::Reservation;
use ramekin_vectors::{Wait, Write, Written};
use serde_json::json;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

type Decode = fn(&[u8], &mut Room) -> Result<Write>;

/// A write on its way to the store.
struct Pending {
    collection: String,
    wait: Wait,
    decode: Decode,
    body: Vec<u8>,
    /// Covers the body.
    _text: Option<Booking>,
    /// Covers what the body decodes to; goes to the store.
    decoded: Mutex<Option<Reservation>>,
    /// The part of the pool for it; held until the store is done.
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Pending {
    /// Decodes the body and hands it to the store.
    fn submit(&self, door: &Shared) -> Result<oneshot::Receiver<Result<Written>>> {
        let account = door.admission.account();
        let booked = match self.decoded.lock().take() {
            None if self.body.len() > BODY_FREE => Some(account.try_reserve(self.body.len() as u64)?),
            booked => booked,
        };
        let granted = self.body.len().max(BODY_FREE) as u64;
        let mut room = Room::new(granted, account.clone(), booked);
        let write = (self.decode)(&self.body, &mut room)?;
        let memory = room.into_booked().into_iter().collect();
        let (sender, receiver) = oneshot::channel();
        let permit = self.permit.clone();
        let done = Box::new(move |result| {
            drop(permit);
            // Nobody may be waiting any more.
            let _ = sender.send(result);
        });
        door.host.store.write(&self.collection, write, self.wait, memory, done)?;
        Ok(receiver)
    }

    async fn submitted(self, door: &Arc<Shared>, until: Instant) -> Result<oneshot::Receiver<Result<Written>>> {
        if self.body.len() > DECODE_HERE_MAX {
            return door.run(Lane::Writes, until, move |door| self.submit(door)).await;
        }
        for round in 0.. {
            match self.submit(door) {
                Err(error) if error.kind() == Kind::Busy => door.admission.pause(error, round, until).await?,
                done => return done,
            }
        }
        Err(Error::bug("rounds have no end"))
    }
}

async fn write(mut call: Call, decode: Decode) -> Outcome<Answer> {
    let Whole { bytes, ticket: Ticket { text, decoded, .. } } = call.whole().await?;
    let (decoded, permit) = decoded.map(|Booking { memory, permit }| (memory, Arc::new(permit))).unzip();
    let pending = Pending {
        collection: call.name().to_owned(),
        wait: call.options.wait,
        decode,
        body: bytes,
        _text: text,
        decoded: Mutex::new(decoded),
        permit,
    };
    let receiver = pending.submitted(&call.door, call.options.until).await?;
    let written = outcome(receiver, Lane::Writes, call.options.until).await?;
    let status = match call.options.wait {
        Wait::Visible => "completed",
        Wait::Durable => "acknowledged",
    };
    Answer::result(&json!({ "operation_id": written.operation, "status": status }), call.took())
}

pub async fn upsert(call: Call) -> Outcome<Answer> {
    write(call, batch::upsert).await
}

pub async fn delete(call: Call) -> Outcome<Answer> {
    write(call, selection::delete).await
}

pub async fn update_vectors(call: Call) -> Outcome<Answer> {
    write(call, batch::update_vectors).await
}

pub async fn delete_vectors(call: Call) -> Outcome<Answer> {
    write(call, selection::delete_vectors).await
}

pub async fn set_payload(call: Call) -> Outcome<Answer> {
    write(call, selection::set_payload).await
}

pub async fn overwrite_payload(call: Call) -> Outcome<Answer> {
    write(call, selection::overwrite_payload).await
}

pub async fn delete_payload(call: Call) -> Outcome<Answer> {
    write(call, selection::delete_payload).await
}

pub async fn clear_payload(call: Call) -> Outcome<Answer> {
    write(call, selection::clear_payload).await
}
