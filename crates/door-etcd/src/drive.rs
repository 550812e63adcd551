//! A connection and the requests on it, done by one task: what they answer in one turn leaves in one write.
//!
//! ```text
//!   socket ─► hyper: frames ─► requests ─► Streams ─┐        each turn: frames, then requests, until none of them moves,
//!     ▲                                             │        then one write of all that was answered
//!     └── Gathered: what is written in a turn ◄─────┘
//! ```
//!
//! A task for each request would be woken, and would write, by itself: that costs more than most requests do.

use futures_util::stream::{FuturesUnordered, Stream};
use hyper::rt::Executor;
use parking_lot::Mutex;
use ramekin_base::supervise;
use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind, Result};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is gathered at most before it is written.
const MOST: usize = 16 << 10;
/// A buffer that was larger is given back when all is written.
const KEPT: usize = 4 << 10;

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes the requests of a connection.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<Vec<Request>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, request: F) {
        self.0.lock().push(Box::pin(Caught(Box::pin(request))));
    }
}

/// A request whose panic ends it alone.
struct Caught(Request);

impl Future for Caught {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match supervise::caught("a request", || Ok(self.0.as_mut().poll(context))) {
            Ok(polled) => polled,
            Err(error) => {
                tracing::error!("{error}");
                Poll::Ready(())
            }
        }
    }
}

/// The requests that are open on a connection.
#[derive(Default)]
pub(crate) struct Open {
    new: Streams,
    all: FuturesUnordered<Request>,
}

impl Open {
    /// Where the connection puts new ones.
    pub(crate) fn streams(&self) -> Streams {
        self.new.clone()
    }

    /// Does what can be done now. False: nothing moved.
    fn poll_all(&mut self, context: &mut Context<'_>) -> bool {
        let new = std::mem::take(&mut *self.new.0.lock());
        let mut moved = !new.is_empty();
        self.all.extend(new);
        while let Poll::Ready(Some(())) = Pin::new(&mut self.all).poll_next(context) {
            moved = true;
        }
        moved
    }

    /// Drives a connection that writes into `gathered`, and its requests, until it ends.
    pub(crate) async fn drive<S, E>(
        &mut self,
        mut connection: Pin<&mut impl Future<Output = std::result::Result<(), E>>>,
        gathered: &Gathered<S>,
    ) where
        S: AsyncWrite + Unpin,
    {
        let turn = poll_fn(|context| {
            loop {
                let ended = connection.as_mut().poll(context).is_ready();
                let moved = !ended && self.poll_all(context);
                if moved {
                    continue;
                }
                let written = gathered.0.lock().poll_drain(context);
                return match written {
                    Poll::Ready(Err(_)) => Poll::Ready(()),
                    _ if ended => Poll::Ready(()),
                    _ => Poll::Pending,
                };
            }
        });
        pin!(turn).await;
    }
}

/// A stream of bytes that gathers what is written to it. Clones are handles to the same.
pub(crate) struct Gathered<S>(Arc<Mutex<Gathering<S>>>);

struct Gathering<S> {
    stream: S,
    buffer: Vec<u8>,
    /// So much of the buffer is written.
    written: usize,
    /// So many bytes came.
    read: u64,
}

impl<S> Gathered<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(Gathering { stream, buffer: Vec::new(), written: 0, read: 0 })))
    }

    /// How many bytes have come.
    pub(crate) fn has_read(&self) -> u64 {
        self.0.lock().read
    }
}

impl<S> Clone for Gathered<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: AsyncWrite + Unpin> Gathering<S> {
    /// Writes all that was gathered.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(rest) = self.buffer.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(Error::from(ErrorKind::WriteZero))),
                written => self.written += written,
            }
        }
        self.written = 0;
        self.buffer.clear();
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_gather(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        if self.buffer.len() + bytes.len() > MOST {
            ready!(self.poll_drain(context))?;
        }
        if bytes.len() > MOST {
            return Pin::new(&mut self.stream).poll_write(context, bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let (mut own, before) = (self.0.lock(), buffer.filled().len());
        let polled = Pin::new(&mut own.stream).poll_read(context, buffer);
        own.read += (buffer.filled().len() - before) as u64;
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.0.lock().poll_gather(context, bytes)
    }

    /// At the end of the turn: [`Open::drive`] writes then.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut own = self.0.lock();
        ready!(own.poll_drain(context))?;
        Pin::new(&mut own.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn requests_are_done_with_their_connection_and_a_panic_ends_one_alone() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let gathered = Gathered::new(server);
        let mut open = Open::default();
        let (streams, mut io) = (open.streams(), gathered.clone());
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        let mut connection = Box::pin(async move {
            streams.execute(async { panic!("planted by a test") });
            for _ in 0..3 {
                let counted = counted.clone();
                streams.execute(async move {
                    tokio::task::yield_now().await;
                    counted.fetch_add(1, Ordering::SeqCst);
                });
            }
            while done.load(Ordering::SeqCst) < 3 {
                tokio::task::yield_now().await;
            }
            // Some is gathered, some is too large for that.
            io.write_all(b"short").await?;
            io.write_all(&[7; MOST + 1]).await?;
            io.write_all(b"end").await?;
            Result::Ok(())
        });
        open.drive(connection.as_mut(), &gathered).await;
        drop((connection, gathered, open));
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, [&b"short"[..], &[7; MOST + 1], b"end"].concat());
    }
}
