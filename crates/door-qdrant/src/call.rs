//! One request on its way: where it goes, how long it may take, its body.

use crate::admission::{Booking, Ticket};
use crate::body;
use crate::door::{Params, Shared};
use crate::options::Options;
use crate::routes::Route;
use crate::wire::room::Room;
use axum::body::Body;
use ramekin_base::{Error, Lane, Result, limits};
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::time::Duration;

pub struct Call {
    pub door: Arc<Shared>,
    pub route: &'static Route,
    pub params: Params,
    pub options: Options,
    pub body: Option<Body>,
    /// The client waits for a word before it sends its body.
    pub expects: bool,
    /// By the host's clock, for the `time` of the answer.
    pub started: Duration,
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
        body::read(body, &self.door.admission, self.options.until, self.expects).await
    }

    /// Reads the body and decodes it: here if it is small, on the reader pool if not. What is decoded is
    /// covered as long as the second part is kept.
    pub async fn decode<T: Send + 'static>(
        &mut self,
        decode: impl Fn(&[u8], &mut Room) -> Result<T> + Send + Sync + 'static,
    ) -> Result<(T, Cover)> {
        let Whole { bytes, ticket: Ticket { text, decoded, .. } } = self.whole().await?;
        let granted = bytes.len().max(crate::limits::BODY_FREE) as u64;
        let work = move |door: &Shared, bytes: &[u8]| {
            let mut room = Room::new(granted, door.admission.account().clone(), None);
            let value = decode(bytes, &mut room)?;
            Ok((value, room.into_booked()))
        };
        let (value, more) = if bytes.len() <= crate::limits::DECODE_HERE_MAX {
            work(&self.door, &bytes)?
        } else {
            let covered = (bytes, text);
            self.door.run(Lane::Reads, self.options.until, move |door| work(door, &covered.0)).await?
        };
        Ok((value, Cover { _decoded: decoded, _more: more }))
    }

    /// Time since the request came.
    pub fn took(&self) -> Duration {
        self.door.now().saturating_sub(self.started)
    }
}

/// Covers what a body was decoded to.
pub struct Cover {
    _decoded: Option<Booking>,
    _more: Option<Reservation>,
}

/// A name in a path or a body that a collection may have.
pub fn checked_collection_name(name: &str) -> Result<()> {
    let invalid = |message: String| {
        Err(Error::invalid(format!("Validation error in path parameters: [collection_name: {message}]")))
    };
    if name.is_empty() || name.len() > limits::NAME_MAX {
        return invalid(format!("a name has from 1 to {} bytes, this one {}", limits::NAME_MAX, name.len()));
    }
    match name.chars().find(|c| matches!(c, '<' | '>' | ':' | '"' | '/' | '\\' | '|' | '?' | '*') || c.is_control()) {
        Some(c) => invalid(format!("a name cannot contain {c:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(checked_collection_name("my collection-1_ö").is_ok());
        for name in ["", "a/b", "a\0", &"x".repeat(256)] {
            assert!(checked_collection_name(name).is_err());
        }
    }
}
