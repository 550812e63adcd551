//! Answers: JSON written straight into pieces that are booked before they are there.
//!
//! ```text
//!   {"result": <what the handler writes> ,"status":"ok","time":0.00012}
//!      payload text is copied as it is · an f32 prints as its shortest text
//!      the bytes own their bookings, which end when the last byte is with the kernel
//! ```

pub(crate) mod pack;
pub(crate) mod pieces;

use crate::errors::Outcome;
use crate::limits::ANSWER_FREE;
use crate::response::pieces::Pieces;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use ramekin_base::{PointId, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_vectors::{NamedVectors, Record, Scored, UNNAMED};
use serde::Serialize;
use std::time::Duration;

/// A finished answer.
pub struct BookedResponse {
    pub status: StatusCode,
    pub body: Pieces,
    pub content_type: &'static str,
}

impl BookedResponse {
    pub fn json(body: impl Into<Pieces>) -> Self {
        Self { status: StatusCode::OK, body: body.into(), content_type: "application/json" }
    }

    pub fn text(body: impl Into<Pieces>) -> Self {
        Self { status: StatusCode::OK, body: body.into(), content_type: "text/plain; charset=utf-8" }
    }

    /// A small result, by serde, in Qdrant's envelope.
    pub fn result(result: &impl Serialize, took: Duration) -> Outcome<Self> {
        let mut bytes = br#"{"result":"#.to_vec();
        write(&mut bytes, result);
        close(&mut bytes, took);
        Ok(Self::json(bytes))
    }

    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub fn response(self) -> Response {
        let mut response = Response::new(Body::new(self.body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        response
    }
}

/// Serde into a `Vec` fails only for maps whose keys are no strings; none of ours is such.
fn write(bytes: &mut Vec<u8>, value: &impl Serialize) {
    let written = serde_json::to_writer(&mut *bytes, value);
    debug_assert!(written.is_ok());
}

fn close(bytes: &mut Vec<u8>, took: Duration) {
    bytes.extend_from_slice(br#","status":"ok","time":"#);
    write(bytes, &took.as_secs_f64());
    bytes.push(b'}');
}

/// The text of an answer while it is written.
pub struct ResponseWriter {
    /// What is full.
    done: Pieces,
    bytes: Vec<u8>,
    account: Account,
    booked: Option<Reservation>,
}

/// What an f32 takes in JSON at most, with its comma: `-1.17549435e-38,`.
const FLOAT_MAX: usize = 16;
/// A piece is as long as all before it, up to this; or as what must stand in one.
const PIECE_MOST: usize = 256 << 10;

impl ResponseWriter {
    /// An empty text, whose bytes will be booked on `account`.
    pub fn new(account: Account) -> Self {
        Self { done: Pieces::default(), bytes: Vec::with_capacity(512), account, booked: None }
    }

    /// A text that begins as every answer does.
    pub fn answer(account: Account) -> Result<Self> {
        let mut text = Self::new(account);
        text.push(r#"{"result":"#)?;
        Ok(text)
    }

    /// Makes room for `more` bytes. The first few KiB are the connection's own.
    fn room(&mut self, more: usize) -> Result<()> {
        let wanted = self.bytes.len() + more;
        if wanted <= self.bytes.capacity() {
            return Ok(());
        }
        if wanted <= ANSWER_FREE && self.booked.is_none() {
            let capacity = wanted.max(self.bytes.capacity() * 2).min(ANSWER_FREE);
            self.bytes.reserve_exact(capacity - self.bytes.len());
            return Ok(());
        }
        let before = self.done.len() + self.bytes.len();
        let capacity = more.max(before.min(PIECE_MOST)).next_multiple_of(512);
        let booked = self.account.try_reserve(capacity as u64)?;
        self.close_piece();
        (self.bytes, self.booked) = (Vec::with_capacity(capacity), Some(booked));
        Ok(())
    }

    fn close_piece(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.done.push(bytes, self.booked.take());
    }

    pub fn push(&mut self, text: &str) -> Result<()> {
        self.room(text.len())?;
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Any value, by serde; `most` is what its text takes at most.
    pub fn value(&mut self, value: &impl Serialize, most: usize) -> Result<()> {
        self.room(most)?;
        write(&mut self.bytes, value);
        Ok(())
    }

    /// A string in quotes.
    pub fn string(&mut self, text: &str) -> Result<()> {
        self.value(&text, 6 * text.len() + 2)
    }

    pub fn id(&mut self, id: PointId) -> Result<()> {
        match id {
            PointId::Num(number) => self.value(&number, 20),
            PointId::Uuid(uuid) => {
                let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
                let text = uuid::Uuid::from_u128(uuid).hyphenated().encode_lower(&mut text);
                self.string(text)
            }
        }
    }

    fn floats(&mut self, vector: &[f32]) -> Result<()> {
        self.room(vector.len() * FLOAT_MAX + 2)?;
        self.bytes.push(b'[');
        for (index, number) in vector.iter().enumerate() {
            if index > 0 {
                self.bytes.push(b',');
            }
            write(&mut self.bytes, number);
        }
        self.bytes.push(b']');
        Ok(())
    }

    /// The unnamed vector as a list, named ones as an object.
    fn vectors(&mut self, vectors: &NamedVectors) -> Result<()> {
        if let [(name, vector)] = vectors.as_slice()
            && name == UNNAMED
        {
            return self.floats(vector);
        }
        self.push("{")?;
        for (index, (name, vector)) in vectors.iter().enumerate() {
            self.push(if index > 0 { "," } else { "" })?;
            self.string(name)?;
            self.push(":")?;
            self.floats(vector)?;
        }
        self.push("}")
    }

    fn parts(&mut self, record: &Record) -> Result<()> {
        if let Some(value) = &record.order_value {
            self.push(r#","order_value":"#)?;
            self.value(value, 32)?;
        }
        if let Some(payload) = &record.payload {
            self.push(r#","payload":"#)?;
            self.push(payload)?;
        }
        if let Some(vectors) = &record.vectors {
            self.push(r#","vector":"#)?;
            self.vectors(vectors)?;
        }
        self.push("}")
    }

    pub fn record(&mut self, record: &Record) -> Result<()> {
        self.push(r#"{"id":"#)?;
        self.id(record.id)?;
        self.parts(record)
    }

    pub fn scored(&mut self, scored: &Scored) -> Result<()> {
        self.push(r#"{"id":"#)?;
        self.id(scored.record.id)?;
        self.push(r#","version":"#)?;
        self.value(&scored.version, 20)?;
        self.push(r#","score":"#)?;
        self.value(&scored.score, FLOAT_MAX)?;
        self.parts(&scored.record)
    }

    /// A list of anything, each written by `write`.
    pub fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.push("[")?;
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.push(",")?;
            }
            write(self, item)?;
        }
        self.push("]")
    }

    /// Another text, which ends with this.
    pub fn append(&mut self, mut other: ResponseWriter) -> Result<()> {
        if other.done.is_empty() && other.booked.is_none() {
            self.room(other.bytes.len())?;
            self.bytes.extend_from_slice(&other.bytes);
            return Ok(());
        }
        self.close_piece();
        other.close_piece();
        self.done.append(other.done);
        // What comes next is no longer within what the connection has for an answer.
        self.booked = Some(self.account.try_reserve(0)?);
        Ok(())
    }

    /// Closes an answer.
    pub fn finish(mut self, took: Duration) -> Result<BookedResponse> {
        self.room(64)?;
        close(&mut self.bytes, took);
        Ok(BookedResponse::json(self.into_pieces()))
    }

    /// The bytes, which keep what they booked until they are gone.
    pub fn into_pieces(mut self) -> Pieces {
        self.close_piece();
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    fn text() -> ResponseWriter {
        ResponseWriter::new(Budget::new(1 << 30).root().child("answers", ""))
    }

    #[test]
    fn points_as_qdrant_shows_them() {
        let record =
            Record { id: PointId::Uuid(7), payload: Some(r#"{"a": 1}"#.into()), vectors: None, order_value: None };
        let mut text = text();
        text.scored(&Scored { record: record.clone(), score: 0.1, version: 3 }).unwrap();
        let unnamed = Record {
            id: PointId::Num(1),
            vectors: Some(vec![("".into(), vec![1.0, 0.1])]),
            payload: None,
            order_value: None,
        };
        text.record(&unnamed).unwrap();
        let named = vec![("a".into(), vec![1e-7]), ("\"".into(), vec![f32::MIN, -0.0])];
        text.record(&Record { vectors: Some(named), ..unnamed }).unwrap();
        let expected = concat!(
            r#"{"id":"00000000-0000-0000-0000-000000000007","version":3,"score":0.1,"payload":{"a": 1}}"#,
            r#"{"id":1,"vector":[1.0,0.1]}"#,
            r#"{"id":1,"vector":{"a":[1e-7],"\"":[-3.4028235e+38,-0.0]}}"#,
        );
        assert_eq!(String::from_utf8(text.bytes).unwrap(), expected);
    }

    #[test]
    fn a_long_answer_is_booked_until_its_bytes_are_gone() {
        let budget = Budget::new(1 << 20);
        let mut text = ResponseWriter::answer(budget.root().child("answers", "")).unwrap();
        text.list(&[(); 1000], |text, ()| text.push("0123456789012345678901234567890123456789")).unwrap();
        let mut answer = text.finish(Duration::from_millis(1)).unwrap();
        let free = ANSWER_FREE as u64;
        assert!(budget.reserved() >= 41_000 - free && budget.reserved() < 80_000 - free);
        // Each piece is there until its last byte is gone, and no longer.
        assert_eq!(answer.body.take(usize::MAX).len(), ANSWER_FREE - ANSWER_FREE % 41 + 11);
        let part = answer.body.take(10);
        drop(answer);
        assert!(budget.reserved() >= 16_000);
        drop(part);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn an_answer_larger_than_the_budget_is_refused() {
        let budget = Budget::new(100_000);
        let mut text = ResponseWriter::new(budget.root().child("answers", ""));
        let result = text.list(&[(); 100], |text, ()| text.floats(&[0.123; 1000]));
        assert!(result.is_err());
        assert!(budget.reserved() <= 100_000);
    }
}
