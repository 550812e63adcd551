//! Writes of points: every endpoint that ends in [`Store::write`](ramekin_vectors::Store::write).
//!
//! ```text
//!   body ─► decode ─► store.write(.., done) ─► body freed ─► wait for done ─► operation_id, status
//!             └── busy: once the memory is there decode again, the body is still there ──┘
//! ```
//!
//! The operations of a batch are all checked before the first is done; then each is decoded when its turn comes, so that
//! no more than one is in memory beside the body.

use crate::body::decoding::{Decoding, Source};
use crate::decoders::batch;
use crate::decoders::selection;
use crate::errors::Outcome;
use crate::limits::DECODE_HERE_MAX;
use crate::request::call::Call;
use crate::request::state::{BEGUN, DoorInner, outcome};
use crate::response::BookedResponse;
use crate::wire::json::{DecodeError, Decoded, Reader};
use ramekin_base::limits::OPERATIONS_PER_BATCH_MAX;
use ramekin_base::{Error, Kind, Lane, Result, cancel};
use ramekin_memory::SharedReservation;
use ramekin_vectors::{Wait, Write, Written};
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub type Decode = fn(&[u8], &mut SharedReservation) -> Result<Write>;

/// A write on its way to the store.
struct Pending {
    collection: String,
    wait: Wait,
    decode: Decode,
    source: Arc<Source>,
    /// Where the write stands in the body.
    range: Range<usize>,
    /// What it decodes to goes to the store, and the part of the pool for it is held until the store is done.
    decoding: Decoding,
}

impl Pending {
    /// Decodes the body and hands it to the store.
    fn submit(&self, door: &DoorInner) -> Result<oneshot::Receiver<Result<Written>>> {
        door.host.store.may_write()?;
        let account = door.admission.account();
        let (write, booked) = self.decoding.attempt(&self.source, self.range.clone(), account, self.decode)?;
        let memory = booked.into_iter().collect();
        let (sender, receiver) = oneshot::channel();
        let permit = self.decoding.permit.clone();
        let done = Box::new(move |result| {
            drop(permit);
            // Nobody may be waiting any more.
            let _ = sender.send(result);
        });
        door.host.store.write(&self.collection, write, self.wait, memory, done)?;
        Ok(receiver)
    }

    /// The store leaves a change undone whose `token` is cancelled before any of it is logged.
    async fn submitted(
        self,
        door: &Arc<DoorInner>,
        token: cancel::Token,
        until: Instant,
    ) -> Result<oneshot::Receiver<Result<Written>>> {
        if self.range.len() > DECODE_HERE_MAX {
            let submit = move |door: &DoorInner| cancel::scope(&token, || self.submit(door));
            return door.run(Lane::Writes, until, submit).await;
        }
        for round in 0.. {
            match cancel::scope(&token, || self.submit(door)) {
                Err(error) if error.kind() == Kind::Busy => door.admission.pause(error, round, until).await?,
                done => return done,
            }
        }
        Err(Error::bug("rounds have no end"))
    }
}

/// Does a write and says what became of it. One that nobody has begun when its time is over is never done; one that was is
/// waited for a little longer, so that few answers leave open what became of it.
async fn done(pending: Pending, door: &Arc<DoorInner>, until: Instant) -> Result<Value> {
    let wait = pending.wait;
    let wanted = cancel::Guard::new();
    let receiver = match pending.submitted(door, wanted.token(), until).await {
        Err(error) if !wanted.cancel() => return Err(error.after(BEGUN)),
        submitted => submitted?,
    };
    let written = outcome(receiver, &wanted, until).await?;
    let status = match wait {
        Wait::Visible => "completed",
        Wait::Durable => "acknowledged",
    };
    Ok(json!({ "operation_id": written.operation, "status": status }))
}

async fn write(mut call: Call, decode: Decode) -> Outcome<BookedResponse> {
    let (source, decoding) = call.whole().await?.split();
    let range = 0..source.bytes.len();
    let (collection, wait) = (call.name().to_owned(), call.options.wait);
    let pending = Pending { collection, wait, decode, source: Arc::new(source), range, decoding };
    BookedResponse::result(&done(pending, &call.door, call.options.until).await?, call.took())
}

/// The operations of a batch, by name.
const OPERATIONS: [(&str, Decode); 8] = [
    ("upsert", batch::upsert),
    ("delete", selection::delete),
    ("set_payload", selection::set_payload),
    ("overwrite_payload", selection::overwrite_payload),
    ("delete_payload", selection::delete_payload),
    ("clear_payload", selection::clear_payload),
    ("update_vectors", batch::update_vectors),
    ("delete_vectors", selection::delete_vectors),
];

/// Which operations a batch has, and where each stands in the body; each is decoded, to see that it can be.
pub fn operations(body: &[u8], room: &mut SharedReservation) -> Result<Vec<(Decode, Range<usize>)>> {
    Ok(read_operations(body, room)?)
}

fn read_operations(body: &[u8], room: &mut SharedReservation) -> Decoded<Vec<(Decode, Range<usize>)>> {
    let mut reader = Reader::new(body)?;
    let mut list = None;
    reader.object(|reader, key| match key {
        "operations" => {
            let mut operations = Vec::new();
            reader.array(|reader, index| {
                if index >= OPERATIONS_PER_BATCH_MAX {
                    let most = OPERATIONS_PER_BATCH_MAX;
                    return Err(DecodeError::new(
                        Kind::TooLarge,
                        format!("a batch may hold at most {most} operations"),
                    ));
                }
                room.extend(&mut operations, 1)?;
                operations.push(operation(reader, body, room)?);
                Ok(())
            })?;
            list = Some(operations);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    reader.finish()?;
    list.ok_or_else(|| DecodeError::missing("operations"))
}

fn operation(reader: &mut Reader<'_>, body: &[u8], room: &mut SharedReservation) -> Decoded<(Decode, Range<usize>)> {
    let mut found = None;
    reader.object(|reader, key| {
        let Some((_, decode)) = OPERATIONS.iter().find(|(name, _)| *name == key) else {
            let names = OPERATIONS.map(|(name, _)| format!("`{name}`")).join(", ");
            return Err(DecodeError::malformed(format!("unknown variant, expected one of {names}")));
        };
        if found.is_some() {
            return Err(DecodeError::malformed("an operation does one thing; use several operations"));
        }
        let text = reader.raw_object()?;
        let range = reader.at() - text.len()..reader.at();
        let before = room.used();
        decode(&body[range.clone()], room)?;
        room.give(room.used() - before);
        found = Some((*decode, range));
        Ok(())
    })?;
    found.ok_or_else(|| DecodeError::malformed("an operation without a name"))
}

/// `POST points/batch`
pub async fn several(mut call: Call) -> Outcome<BookedResponse> {
    let (source, decoding) = call.whole().await?.split();
    let source = Arc::new(source);
    let look = {
        let source = source.clone();
        move |door: &DoorInner| decoding.attempt(&source, 0..source.bytes.len(), door.admission.account(), operations)
    };
    let (operations, _booked) = match source.bytes.len() > DECODE_HERE_MAX {
        true => call.door.run(Lane::Writes, call.options.until, look).await?,
        false => look(&call.door)?,
    };
    let mut results = Vec::with_capacity(operations.len());
    for (decode, range) in operations {
        let (collection, wait) = (call.name().to_owned(), call.options.wait);
        let (source, decoding) = (source.clone(), Decoding::new(None));
        let pending = Pending { collection, wait, decode, source, range, decoding };
        let result = done(pending, &call.door, call.options.until).await;
        results.push(result.map_err(|error| behind(results.len(), error))?);
    }
    BookedResponse::result(&json!(results), call.took())
}

/// The error of an operation of a batch behind others that were `done`: what these did stays, so the batch is not refused.
fn behind(done: usize, error: Error) -> Error {
    match done {
        1.. if error.kind().is_refusal() => {
            let operations = if done == 1 { "operation of the batch was" } else { "operations of the batch were" };
            error.after(format_args!("{done} {operations} done, send it again for the rest"))
        }
        _ => error,
    }
}

pub async fn upsert(call: Call) -> Outcome<BookedResponse> {
    write(call, batch::upsert).await
}

pub async fn delete(call: Call) -> Outcome<BookedResponse> {
    write(call, selection::delete).await
}

pub async fn update_vectors(call: Call) -> Outcome<BookedResponse> {
    write(call, batch::update_vectors).await
}

pub async fn delete_vectors(call: Call) -> Outcome<BookedResponse> {
    write(call, selection::delete_vectors).await
}

pub async fn set_payload(call: Call) -> Outcome<BookedResponse> {
    write(call, selection::set_payload).await
}

pub async fn overwrite_payload(call: Call) -> Outcome<BookedResponse> {
    write(call, selection::overwrite_payload).await
}

pub async fn delete_payload(call: Call) -> Outcome<BookedResponse> {
    write(call, selection::delete_payload).await
}

pub async fn clear_payload(call: Call) -> Outcome<BookedResponse> {
    write(call, selection::clear_payload).await
}
