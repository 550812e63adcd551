//! Reading a body: booked first, then copied piece by piece, with an end in bytes and in time.

use crate::admission::{Admission, Ticket};
use crate::call::Whole;
use crate::errors::{Outcome, Refusal};
use crate::limits;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use ramekin_base::{Error, Result};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Reads a body into memory. One that is refused is drained, so that the client reads the answer
/// instead of finding its connection reset in the middle of sending. A client that expects a word before
/// it sends has sent nothing yet.
pub async fn read(mut body: Body, admission: &Admission, until: Instant, expects: bool) -> Result<Whole> {
    let read = try_read(&mut body, admission, until).await;
    if read.is_err() && !expects {
        drain(body).await;
    }
    read
}

async fn try_read(body: &mut Body, admission: &Admission, until: Instant) -> Result<Whole> {
    let length = body.size_hint().exact();
    let mut ticket = Ticket::default();
    let mut bytes = Vec::new();
    if let Some(length) = length {
        admission.check_length(length)?;
        if length > limits::BODY_FREE as u64 {
            ticket = admission.admit(length, until).await?;
        }
        bytes.reserve_exact(length as usize);
    }
    let whole = Instant::now() + Duration::from_secs(limits::BODY_WHOLE_S);
    while let Some(piece) = next(body, limits::BODY_IDLE_S).await? {
        let length = bytes.len() + piece.len();
        if length > bytes.capacity() {
            admission.check_length(length as u64)?;
            let capacity = length.next_power_of_two().min(admission.body_max() as usize).max(length);
            if capacity > limits::BODY_FREE {
                // Old and new place are in use while the body moves; the share of what it decodes to covers that.
                admission.grow(&mut ticket, capacity as u64, until).await?;
            }
            bytes.reserve_exact(capacity - bytes.len());
        }
        if Instant::now() > whole {
            return Err(slow());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Whole { bytes, ticket })
}

fn slow() -> Error {
    Error::malformed(format!(
        "the body came too slowly: {} s without a byte or {} s in all",
        limits::BODY_IDLE_S,
        limits::BODY_WHOLE_S
    ))
}

/// The next piece of a body, if it comes within so many seconds.
async fn next(body: &mut Body, idle_s: u64) -> Result<Option<Bytes>> {
    loop {
        let frame = timeout(Duration::from_secs(idle_s), body.frame()).await.map_err(|_| slow())?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Error::malformed(format!("the body broke off: {error}"))),
            // Trailers are no data.
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}

/// Reads what is left of a body and throws it away, within limits.
pub async fn drain(mut body: Body) {
    if body.is_end_stream() {
        return;
    }
    let all = async {
        let mut left = limits::DRAIN_MAX;
        while let Ok(Some(piece)) = next(&mut body, limits::DRAIN_IDLE_S).await {
            match left.checked_sub(piece.len() as u64) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // Whoever sends longer than that finds the connection closed.
    let _ = timeout(Duration::from_secs(limits::DRAIN_S), all).await;
}

/// Bodies are read as they are; a compressed one would have to be unpacked first.
pub fn check_encoding(headers: &HeaderMap) -> Outcome<()> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(Refusal::new(
            StatusCode::NOT_IMPLEMENTED,
            format!("{}: a compressed body is not built yet, send it as it is", header::CONTENT_ENCODING),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Kind;
    use ramekin_memory::Budget;

    fn admission() -> (Budget, Admission) {
        let budget = Budget::new(32 << 20);
        let bodies = budget.root().child("bodies", "");
        (budget.clone(), Admission::new(budget, bodies).unwrap())
    }

    /// A body that does not know its length.
    struct Chunks {
        left: usize,
        bytes: usize,
    }

    impl HttpBody for Chunks {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<std::result::Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            let bytes = Bytes::from(vec![b'x'; self.bytes]);
            let next = self.left.checked_sub(1).map(|left| {
                self.left = left;
                Ok(hyper::body::Frame::data(bytes))
            });
            std::task::Poll::Ready(next)
        }
    }

    fn chunks(left: usize, bytes: usize) -> Body {
        Body::new(Chunks { left, bytes })
    }

    #[tokio::test]
    async fn with_and_without_a_length() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let until = Instant::now() + Duration::from_secs(1);
        let whole = read(Body::from(vec![b'x'; 3 << 20]), &admission, until, false).await.unwrap();
        assert_eq!((whole.bytes.len(), whole.bytes.capacity()), (3 << 20, 3 << 20));
        assert_eq!(budget.reserved(), 6 << 20);
        drop(whole);
        let whole = read(chunks(100, 10_000), &admission, until, false).await.unwrap();
        assert_eq!(whole.bytes.len(), 1_000_000);
        assert!(budget.reserved() >= 2 * whole.bytes.capacity() as u64);
        drop(whole);
        assert_eq!(budget.reserved(), floor);
    }

    #[tokio::test]
    async fn over_the_limit() {
        let (_budget, admission) = admission();
        let until = Instant::now() + Duration::from_secs(1);
        let known =
            read(Body::from(vec![b'x'; (8 << 20) + 1]), &admission, until, false).await.map(|_| ()).unwrap_err();
        assert_eq!(known.kind(), Kind::TooLarge);
        let unknown = read(chunks(1000, 10_000), &admission, until, false).await.map(|_| ()).unwrap_err();
        assert_eq!(unknown.kind(), Kind::TooLarge);
    }
}
