//! Reading a body: booked first, then copied piece by piece, with an end in bytes and in time.
//!
//! ```text
//!   pieces as they come ─► the first 16 KiB ─► admitted ─► the rest
//!   packed: pieces ─► kept as they are ─► counted ─► admitted by what they hold ─► unpacked
//!      │ slower than the least rate, which is higher while others wait for what it holds: 408, and the connection ends
//! ```
//!
//! The time in which a client waits for us is not held against it.

pub(crate) mod decoding;
pub(crate) mod unpack;

use crate::admission::encoding::Encoding;
use crate::admission::guests::Guest;
use crate::admission::{Admission, BodyPermit};
use crate::body::decoding::FullBody;
use crate::body::unpack::Unpack;
use crate::limits;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body_util::BodyExt;
use ramekin_base::{Error, Kind, Result};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Where a body is read, and until when it may wait.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub admission: &'a Admission,
    /// The connection on which it comes; none in a router of one's own.
    pub guest: Option<&'a Guest>,
    pub until: Instant,
}

/// Reads a body into memory. One that is refused is drained, so that the client reads the answer
/// instead of finding its connection reset in the middle of sending. A client that expects a word before
/// it sends has sent nothing yet.
pub async fn read(mut body: Body, encoding: Encoding, place: Place<'_>, expects: bool) -> Result<FullBody> {
    let read = try_read(&mut body, encoding, place).await;
    if read.as_ref().is_err_and(|error| error.kind() != Kind::Slow) && !expects {
        drain(body).await;
    }
    read
}

async fn try_read(body: &mut Body, encoding: Encoding, place: Place<'_>) -> Result<FullBody> {
    let length = body.size_hint().exact();
    length.map_or(Ok(()), |length| place.admission.check_length(length))?;
    let is_packed = encoding == Encoding::Gzip;
    let mut whole =
        PartialBody { bytes: Vec::new(), length, is_packed, body_permit: BodyPermit::default(), place, refused: None };
    let mut patience = Patience::new(place);
    while let Some(piece) = patience.next(body, &whole.body_permit).await? {
        whole.add(&piece).await?;
    }
    let PartialBody { bytes, body_permit, refused, .. } = whole;
    match (refused, is_packed) {
        (Some((error, _)), _) => Err(error),
        (None, true) => unpack(&bytes, body_permit, place).await,
        (None, false) => Ok(FullBody { bytes, body_permit }),
    }
}

/// Unpacks a body: first only to see how long it is, so that no more is booked than it takes, and nothing for a bomb.
async fn unpack(packed: &[u8], held: BodyPermit, place: Place<'_>) -> Result<FullBody> {
    let admission = place.admission;
    let unpacking = admission.unpacking(place.until).await?;
    let mut length = 0;
    let mut unpack = Unpack::new(packed);
    while let Some(piece) = unpack.next().await? {
        length += piece.len();
        admission.check_length(length as u64)?;
    }
    drop((unpack, unpacking));
    let mut body_permit = BodyPermit::default();
    if length > limits::BODY_FREE {
        body_permit = admission.admit_beside(held.packed(), length as u64, place.until).await?;
    }
    let _unpacking = admission.unpacking(place.until).await?;
    let mut bytes = Vec::with_capacity(length);
    let mut unpack = Unpack::new(packed);
    while let Some(piece) = unpack.next().await? {
        bytes.extend_from_slice(piece);
    }
    drop(held);
    Ok(FullBody { bytes, body_permit })
}

/// A body while it grows, as it came.
struct PartialBody<'a> {
    bytes: Vec<u8>,
    /// As the client says.
    length: Option<u64>,
    is_packed: bool,
    body_permit: BodyPermit,
    place: Place<'a>,
    /// It can never fit: why, and how much came since. Whether it is too large for any server is seen at its end.
    refused: Option<(Error, u64)>,
}

impl PartialBody<'_> {
    /// Adds a piece; what is beyond the first bytes is booked before it is kept.
    async fn add(&mut self, piece: &[u8]) -> Result<()> {
        let admission = self.place.admission;
        if let Some((_, came)) = &mut self.refused {
            *came += piece.len() as u64;
            return admission.check_length(*came);
        }
        let length = self.bytes.len() + piece.len();
        if length > self.bytes.capacity() {
            admission.check_length(length as u64)?;
            match self.make_room(length).await {
                Ok(capacity) => self.bytes.reserve_exact(capacity - self.bytes.len()),
                Err(error) if error.kind() == Kind::NoMemory && self.length.is_none() => {
                    (self.bytes, self.body_permit) = (Vec::new(), BodyPermit::default());
                    self.refused = Some((error, length as u64));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Books room for so many bytes and more; returns for how many.
    async fn make_room(&mut self, length: usize) -> Result<usize> {
        let Place { admission, guest, until } = self.place;
        if length <= limits::BODY_FREE {
            return Ok(length.next_power_of_two().min(self.length.map_or(usize::MAX, |all| all as usize)).max(length));
        }
        let capacity = match self.length {
            Some(all) if !self.body_permit.holds() => length.max(all as usize),
            _ => grown(length).min(admission.body_max() as usize).max(length),
        };
        if self.is_packed {
            admission.hold(&mut self.body_permit, capacity as u64, until).await?;
        } else if self.length.is_some() && !self.body_permit.holds() {
            self.body_permit = admission.admit(capacity as u64, until).await?;
        } else {
            // Old and new place are in use while the body moves; the share of what it decodes to covers that.
            admission.grow(&mut self.body_permit, capacity as u64, until).await?;
        }
        if let Some(guest) = guest {
            guest.widen(capacity);
        }
        Ok(capacity)
    }
}

/// The room for a body of unknown length that has so many bytes already. A large one grows by less than itself: what it does
/// not fill stays booked.
fn grown(length: usize) -> usize {
    match length < 512 << 10 {
        true => length.next_power_of_two(),
        false => (length + length / 8).next_multiple_of(64 << 10),
    }
}

/// The least rate at which a body must come.
struct LeastRate {
    /// So long it need not keep to it.
    grace: Duration,
    bytes_a_second: u64,
    /// All of it must be there within this time.
    whole: Duration,
}

impl LeastRate {
    const USUAL: Self = Self {
        grace: Duration::from_secs(limits::BODY_GRACE_S),
        bytes_a_second: limits::BODY_RATE,
        whole: Duration::from_secs(limits::BODY_WHOLE_S),
    };
    const IN_A_CROWD: Self = Self {
        grace: Duration::from_millis(limits::CROWD_GRACE_MS),
        bytes_a_second: limits::CROWD_RATE,
        whole: Duration::from_secs(limits::CROWD_WHOLE_S),
    };

    /// What may be waited for so many bytes.
    fn time_for(&self, bytes: u64) -> Duration {
        let time = self.grace + Duration::from_micros(bytes.saturating_mul(1_000_000) / self.bytes_a_second);
        time.min(self.whole)
    }
}

/// Between two looks whether others have come to wait.
const LOOK: Duration = Duration::from_millis(250);

/// How long is waited for a client that sends.
struct Patience<'a> {
    place: Place<'a>,
    waited: Duration,
    bytes: u64,
}

impl<'a> Patience<'a> {
    fn new(place: Place<'a>) -> Self {
        Self { place, waited: Duration::ZERO, bytes: 0 }
    }

    /// Others wait for what this one holds: a part of the pool, or a place among the requests that are under way.
    fn is_in_the_way(&self, body_permit: &BodyPermit) -> bool {
        self.place.admission.is_waited_for(body_permit) || self.place.guest.is_some_and(Guest::is_crowded)
    }

    /// The next piece of a body. What has come already is taken, however late it is.
    async fn next(&mut self, body: &mut Body, body_permit: &BodyPermit) -> Result<Option<Bytes>> {
        let mut silent = Duration::ZERO;
        loop {
            let is_in_the_way = self.is_in_the_way(body_permit);
            let least = if is_in_the_way { LeastRate::IN_A_CROWD } else { LeastRate::USUAL };
            let left = least.time_for(self.bytes).saturating_sub(self.waited);
            let from = Instant::now();
            let piece = timeout(left.min(LOOK), data(body)).await;
            self.waited += from.elapsed();
            silent += from.elapsed();
            match piece {
                Ok(piece) => {
                    let piece = piece?;
                    self.bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                    return Ok(piece);
                }
                Err(_) if left.is_zero() => return Err(slow()),
                Err(_) if is_in_the_way && silent >= Duration::from_millis(limits::BODY_STALL_MS) => return Err(slow()),
                Err(_) => {}
            }
        }
    }
}

fn slow() -> Error {
    Error::new(
        Kind::Slow,
        format!(
            "the body came too slowly: after {} s it must come at {} bytes a second and within {} s in all; where others wait \
             to send, after {} ms at {} bytes a second, within {} s in all and without a pause of {} ms",
            limits::BODY_GRACE_S,
            limits::BODY_RATE,
            limits::BODY_WHOLE_S,
            limits::CROWD_GRACE_MS,
            limits::CROWD_RATE,
            limits::CROWD_WHOLE_S,
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
        let whole = read(Body::from(vec![b'x'; 3 << 20]), Encoding::Plain, at(&admission, until), false).await.unwrap();
        assert_eq!((whole.bytes.len(), whole.bytes.capacity()), (3 << 20, 3 << 20));
        assert_eq!(budget.reserved(), (6 << 20) + limits::small_bodies(32 << 20) + limits::UNPACK_BYTES);
        drop(whole);
        let whole = read(chunks(100, 10_000), Encoding::Plain, at(&admission, until), false).await.unwrap();
        assert_eq!(whole.bytes.len(), 1_000_000);
        assert!(budget.reserved() >= 2 * whole.bytes.capacity() as u64);
        drop(whole);
        assert_eq!(budget.reserved(), floor);
    }

    #[tokio::test]
    async fn over_the_limit() {
        let (_budget, admission) = admission();
        let until = Instant::now() + Duration::from_secs(1);
        let known = read(Body::from(vec![b'x'; (8 << 20) + 1]), Encoding::Plain, at(&admission, until), false)
            .await
            .map(|_| ())
            .unwrap_err();
        assert_eq!(known.kind(), Kind::TooLarge);
        let unknown =
            read(chunks(1000, 10_000), Encoding::Plain, at(&admission, until), false).await.map(|_| ()).unwrap_err();
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

    fn at(admission: &Admission, until: Instant) -> Place<'_> {
        Place { admission, guest: None, until }
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
        let error = read(slow, Encoding::Plain, at(&admission, never()), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Slow);
        assert!(from.elapsed() < Duration::from_secs(limits::BODY_GRACE_S + 1));
        let steady = drip(60, 20_000, Duration::from_millis(900));
        assert!(read(steady, Encoding::Plain, at(&admission, never()), false).await.is_ok());
        assert_eq!(budget.reserved(), floor);
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_little_holds_nothing_and_who_stalls_makes_way() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let admission = std::sync::Arc::new(admission);
        let reads = |body: Body| {
            let admission = admission.clone();
            tokio::spawn(async move { read(body, Encoding::Plain, at(&admission, never()), false).await.map(|_| ()) })
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
        assert!(read(honest, Encoding::Plain, at(&admission, never()), false).await.is_ok());
        // Each of them is cut in its turn.
        assert!(from.elapsed() < Duration::from_secs(12), "{:?}", from.elapsed());
        for reading in idle.into_iter().chain(stalled) {
            reading.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_keeps_to_the_least_rate_makes_way_too_where_others_wait() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let admission = std::sync::Arc::new(admission);
        let reads = |body: Body, encoding: Encoding| {
            let admission = admission.clone();
            tokio::spawn(async move { read(body, encoding, at(&admission, never()), false).await.map(|_| ()) })
        };
        // 17 KiB a second: alone it may go on so for minutes.
        let steady = |bytes: usize| drip(bytes / 1741, 1741, Duration::from_millis(100));
        let alone = reads(steady(1 << 20), Encoding::Plain);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(!alone.is_finished());
        let mut slow = vec![alone];
        for _ in 0..50 {
            slow.push(reads(steady(4 << 20), Encoding::Plain));
            slow.push(reads(steady(60_000), Encoding::Plain));
            slow.push(reads(steady(60_000), Encoding::Gzip));
        }
        for wait in [0, 2_000] {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            for (bytes, encoding) in [(60_000, Encoding::Plain), (2 << 20, Encoding::Plain), (2 << 20, Encoding::Gzip)]
            {
                let mut rng = ramekin_base::Rng::new(7);
                let honest: Vec<u8> = (0..bytes).map(|_| rng.next_u64() as u8).collect();
                let body = Body::from(if encoding == Encoding::Gzip { packed(&honest) } else { honest });
                let from = Instant::now();
                assert!(read(body, encoding, at(&admission, never()), false).await.is_ok());
                assert!(from.elapsed() < Duration::from_secs(3), "{bytes} {encoding:?}: {:?}", from.elapsed());
            }
        }
        for reading in slow {
            reading.abort();
            _ = reading.await;
        }
        assert_eq!(budget.reserved(), floor);
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn what_can_never_fit_is_refused_by_what_it_is() {
        let (budget, admission) = admission();
        let other = budget.root().child("other", "");
        other.set_min_reservation(20 << 20).unwrap();
        let floor = budget.reserved();
        let text = |mib: usize| vec![b'x'; mib << 20];
        let chunked = |mib: usize| chunks(mib << 4, 1 << 16);
        for (mib, kind) in [(7, Kind::NoMemory), (9, Kind::TooLarge)] {
            for (body, encoding) in [
                (Body::from(text(mib)), Encoding::Plain),
                (chunked(mib), Encoding::Plain),
                (Body::from(packed(&text(mib))), Encoding::Gzip),
            ] {
                let refused = read(body, encoding, at(&admission, never()), false).await;
                assert_eq!(refused.map(|_| ()).unwrap_err().kind(), kind, "{mib} {encoding:?}");
            }
        }
        for (body, encoding) in [(chunked(5), Encoding::Plain), (Body::from(packed(&text(5))), Encoding::Gzip)] {
            assert_eq!(read(body, encoding, at(&admission, never()), false).await.unwrap().bytes.len(), 5 << 20);
        }
        assert_eq!(budget.reserved(), floor);
    }

    #[tokio::test]
    async fn a_packed_body_is_unpacked_and_counted_by_what_it_holds() {
        let (budget, admission) = admission();
        let floor = budget.reserved();
        let bytes: Vec<u8> = (0..1_000_000u32).flat_map(|number| (number % 1000).to_le_bytes()).collect();
        let whole = read(Body::from(packed(&bytes)), Encoding::Gzip, at(&admission, never()), false).await.unwrap();
        assert_eq!(whole.bytes, bytes);
        assert!(budget.reserved() >= 2 * 4_000_000);
        drop(whole);
        let cut = packed(&bytes)[..1000].to_vec();
        let error =
            read(Body::from(cut), Encoding::Gzip, at(&admission, never()), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed);
        let garbage = Body::from(vec![7; 1000]);
        let error = read(garbage, Encoding::Gzip, at(&admission, never()), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed);
        // A bomb: 200 KB that hold 200 MB.
        let bomb = packed(&vec![0; 200 << 20]);
        let before = budget.peak();
        let error =
            read(Body::from(bomb), Encoding::Gzip, at(&admission, never()), false).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        assert!(budget.peak() <= before.max(32 << 20));
        assert_eq!(budget.reserved(), floor);
    }
}
