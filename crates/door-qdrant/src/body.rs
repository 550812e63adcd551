//! Reading a body: booked first, then copied piece by piece, with an end in bytes and in time.
//!
//! ```text
//!   pieces as they come ─► (unpack) ─► the first 16 KiB ─► admitted ─► the rest
//!      │ slower than the least rate, or silent while others wait for its part of the pool: 408, and the connection ends
//! ```
//!
//! The time in which a client waits for us is not held against it.

use crate::admission::{Admission, Ticket};
use crate::call::Whole;
use crate::errors::{Outcome, Refusal};
use crate::limits;
use crate::unpack::Unpack;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use ramekin_base::{Error, Kind, Result};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How a body is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Plain,
    Gzip,
}

/// Reads a body into memory. One that is refused is drained, so that the client reads the answer
/// instead of finding its connection reset in the middle of sending. A client that expects a word before
/// it sends has sent nothing yet.
pub async fn read(
    mut body: Body,
    encoding: Encoding,
    admission: &Admission,
    until: Instant,
    expects: bool,
) -> Result<Whole> {
    let read = try_read(&mut body, encoding, admission, until).await;
    if read.as_ref().is_err_and(|error| error.kind() != Kind::Slow) && !expects {
        drain(body).await;
    }
    read
}

async fn try_read(body: &mut Body, encoding: Encoding, admission: &Admission, until: Instant) -> Result<Whole> {
    let length = body.size_hint().exact();
    length.map_or(Ok(()), |length| admission.check_length(length))?;
    let mut whole = Growing { bytes: Vec::new(), length: None, ticket: Ticket::default(), admission, until };
    let mut unpack = None;
    match encoding {
        Encoding::Plain => whole.length = length,
        Encoding::Gzip => unpack = Some(Unpack::new(admission, until).await?),
    }
    let mut patience = Patience::new(admission);
    while let Some(piece) = patience.next(body, whole.ticket.text.is_some()).await? {
        match &mut unpack {
            None => whole.add(&piece).await?,
            Some(unpack) => unpack.add(&piece, &mut whole).await?,
        }
    }
    if let Some(unpack) = unpack {
        unpack.finish(&mut whole).await?;
    }
    Ok(Whole { bytes: whole.bytes, ticket: whole.ticket })
}

/// A body while it grows.
pub struct Growing<'a> {
    bytes: Vec<u8>,
    /// As the client says.
    length: Option<u64>,
    ticket: Ticket,
    admission: &'a Admission,
    until: Instant,
}

impl Growing<'_> {
    /// Adds a piece; what is beyond the first bytes is booked before it is kept.
    pub async fn add(&mut self, piece: &[u8]) -> Result<()> {
        let length = self.bytes.len() + piece.len();
        if length > self.bytes.capacity() {
            self.admission.check_length(length as u64)?;
            let capacity = self.make_room(length).await?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Books room for so many bytes and more; returns for how many.
    async fn make_room(&mut self, length: usize) -> Result<usize> {
        let most = self.admission.body_max() as usize;
        if length <= limits::BODY_FREE {
            return Ok(length.next_power_of_two().min(self.length.map_or(usize::MAX, |all| all as usize)).max(length));
        }
        match self.length {
            Some(all) if self.ticket.text.is_none() => {
                self.ticket = self.admission.admit(all.max(length as u64), self.until).await?;
                Ok(length.max(all as usize))
            }
            _ => {
                let capacity = length.next_power_of_two().min(most).max(length);
                // Old and new place are in use while the body moves; the share of what it decodes to covers that.
                self.admission.grow(&mut self.ticket, capacity as u64, self.until).await?;
                Ok(capacity)
            }
        }
    }
}

/// How long is waited for a client that sends.
struct Patience<'a> {
    admission: &'a Admission,
    waited: Duration,
    bytes: u64,
}

impl<'a> Patience<'a> {
    fn new(admission: &'a Admission) -> Self {
        Self { admission, waited: Duration::ZERO, bytes: 0 }
    }

    /// What may be waited for as many bytes as came.
    fn most(&self) -> Duration {
        let allowed = Duration::from_secs(limits::BODY_GRACE_S) + Duration::from_secs(self.bytes / limits::BODY_RATE);
        allowed.min(Duration::from_secs(limits::BODY_WHOLE_S))
    }

    /// The next piece of a body. `holds`: a part of the pool is held for it.
    async fn next(&mut self, body: &mut Body, holds: bool) -> Result<Option<Bytes>> {
        let stall = Duration::from_millis(limits::BODY_STALL_MS);
        let mut silent = Duration::ZERO;
        loop {
            let Some(left) = self.most().checked_sub(self.waited).filter(|left| !left.is_zero()) else {
                return Err(slow());
            };
            let from = Instant::now();
            let piece = timeout(left.min(stall), data(body)).await;
            self.waited += from.elapsed();
            silent += from.elapsed();
            match piece {
                Ok(piece) => {
                    let piece = piece?;
                    self.bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                    return Ok(piece);
                }
                Err(_) if holds && silent >= stall && self.admission.is_crowded() => return Err(slow()),
                Err(_) => {}
            }
        }
    }
}

fn slow() -> Error {
    Error::new(
        Kind::Slow,
        format!(
            "the body came too slowly: after {} s it must come at {} bytes a second and within {} s in all, and without a \
             pause of {} ms while others wait to send",
            limits::BODY_GRACE_S,
            limits::BODY_RATE,
            limits::BODY_WHOLE_S,
            limits::BODY_STALL_MS
        ),
    )
}

/// The next piece of a body; trailers are no data.
async fn data(body: &mut Body) -> Result<Option<Bytes>> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(Error::malformed(format!("the body broke off: {error}"))),
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
        let idle = Duration::from_secs(limits::DRAIN_IDLE_S);
        while let Ok(Ok(Some(piece))) = timeout(idle, data(&mut body)).await {
            match left.checked_sub(piece.len() as u64) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // Whoever sends longer than that finds the connection closed.
    let _ = timeout(Duration::from_secs(limits::DRAIN_S), all).await;
}

/// How a body is written, by its headers: as it is, or by gzip.
pub fn encoding(headers: &HeaderMap) -> Outcome<Encoding> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(Encoding::Plain),
        Some(name) if name == "identity" => Ok(Encoding::Plain),
        Some(name) if name == "gzip" || name == "x-gzip" => Ok(Encoding::Gzip),
        Some(_) => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("{}: only gzip is understood", header::CONTENT_ENCODING),
        )),
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
        let whole = read(Body::from(vec![b'x'; 3 << 20]), Encoding::Plain, &admission, until, false).await.unwrap();
        assert_eq!((whole.bytes.len(), whole.bytes.capacity()), (3 << 20, 3 << 20));
        assert_eq!(budget.reserved(), (6 << 20) + limits::small_bodies(32 << 20));
        drop(whole);
        let whole = read(chunks(100, 10_000), Encoding::Plain, &admission, until, false).await.unwrap();
        assert_eq!(whole.bytes.len(), 1_000_000);
        assert!(budget.reserved() >= 2 * whole.bytes.capacity() as u64);
        drop(whole);
        assert_eq!(budget.reserved(), floor);
    }

    #[tokio::test]
    async fn over_the_limit() {
        let (_budget, admission) = admission();
        let until = Instant::now() + Duration::from_secs(1);
        let known = read(Body::from(vec![b'x'; (8 << 20) + 1]), Encoding::Plain, &admission, until, false)
            .await
            .map(|_| ())
            .unwrap_err();
        assert_eq!(known.kind(), Kind::TooLarge);
        let unknown =
            read(chunks(1000, 10_000), Encoding::Plain, &admission, until, false).await.map(|_| ()).unwrap_err();
        assert_eq!(unknown.kind(), Kind::TooLarge);
    }

    /// A body that comes in small pieces with pauses between them.
    fn drip(pieces: usize, bytes: usize, pause: Duration) -> Body {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
        tokio::spawn(async move {
            for _ in 0..pieces {
                tokio::time::sleep(pause).await;
                if sender.send(Bytes::from(vec![b'x'; bytes])).await.is_err() {
                    return;
                }
            }
        });
        Body::new(Dripping { receiver, left: (pieces * bytes) as u64 })
    }

    struct Dripping {
        receiver: tokio::sync::mpsc::Receiver<Bytes>,
        left: u64,
    }

    impl HttpBody for Dripping {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<std::result::Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            let piece = std::task::ready!(self.receiver.poll_recv(context));
            self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
            std::task::Poll::Ready(piece.map(|piece| Ok(hyper::body::Frame::data(piece))))
        }

        fn size_hint(&self) -> hyper::body::SizeHint {
            hyper::body::SizeHint::with_exact(self.left)
        }
    }

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_held_to_a_least_rate() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let from = Instant::now();
        let slow = drip(1 << 20, 1, Duration::from_millis(100));
        let error = read(slow, Encoding::Plain, &admission, never(), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Slow);
        assert!(from.elapsed() < Duration::from_secs(limits::BODY_GRACE_S + 1));
        let steady = drip(60, 20_000, Duration::from_millis(900));
        assert!(read(steady, Encoding::Plain, &admission, never(), false).await.is_ok());
        assert_eq!(budget.reserved(), floor);
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_little_holds_nothing_and_who_stalls_makes_way() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let admission = std::sync::Arc::new(admission);
        let reads = |body: Body| {
            let admission = admission.clone();
            tokio::spawn(async move { read(body, Encoding::Plain, &admission, never(), false).await.map(|_| ()) })
        };
        // Many that declare a MiB and send a few bytes of it.
        let idle: Vec<_> = (0..100).map(|_| reads(drip(1 << 16, 16, Duration::from_secs(1)))).collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(budget.reserved(), floor);
        // Some that take the whole pool and then pause.
        let stalled: Vec<_> = (0..4).map(|_| reads(drip(60, 20_000, Duration::from_millis(1_200)))).collect();
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        let from = Instant::now();
        let honest = Body::from(vec![b'x'; 2 << 20]);
        assert!(read(honest, Encoding::Plain, &admission, never(), false).await.is_ok());
        // Each of them is cut in its turn.
        assert!(from.elapsed() < Duration::from_secs(12), "{:?}", from.elapsed());
        for reading in idle.into_iter().chain(stalled) {
            reading.abort();
        }
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn a_packed_body_is_unpacked_and_counted_by_what_it_holds() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let bytes: Vec<u8> = (0..1_000_000u32).flat_map(|number| (number % 1000).to_le_bytes()).collect();
        let whole = read(Body::from(packed(&bytes)), Encoding::Gzip, &admission, never(), false).await.unwrap();
        assert_eq!(whole.bytes, bytes);
        assert!(budget.reserved() >= 2 * 4_000_000);
        drop(whole);
        let cut = packed(&bytes)[..1000].to_vec();
        let error = read(Body::from(cut), Encoding::Gzip, &admission, never(), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed);
        let garbage = Body::from(vec![7; 1000]);
        let error = read(garbage, Encoding::Gzip, &admission, never(), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed);
        // A bomb: 200 KB that hold 200 MB.
        let bomb = packed(&vec![0; 200 << 20]);
        let before = budget.peak();
        let error = read(Body::from(bomb), Encoding::Gzip, &admission, never(), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        assert!(budget.peak() <= before.max(32 << 20));
        assert_eq!(budget.reserved(), floor);
    }
}
