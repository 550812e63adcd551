//! A connection that does not wait for ever for a client to read.
//!
//! ```text
//!   write ─► the kernel takes it ─► fine, and it is forgotten when all is out
//!        └─► it takes nothing more: from then on the client must read at a least rate, or the connection ends
//! ```
//!
//! What an answer holds is booked as long as it is not out; so this bounds how long that can be.

use crate::limits::{UNREAD_RATE, UNREAD_S};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

pub struct Patient<S> {
    stream: S,
    /// Since the kernel took nothing more: when that was, and bytes that it took afterwards.
    stuck: Option<(Instant, u64)>,
    /// Wakes the writer when the client has been slow for too long.
    alarm: Pin<Box<Sleep>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, stuck: None, alarm: Box::pin(sleep_until(Instant::now())) }
    }

    /// Looks at what became of a write.
    fn saw(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                if let Some((_, since)) = &mut self.stuck {
                    *since += *bytes as u64;
                }
                return written;
            }
            Poll::Ready(Err(_)) => return written,
            Poll::Pending => {}
        }
        let (from, bytes) = *self.stuck.get_or_insert_with(|| (Instant::now(), 0));
        self.alarm.as_mut().reset(from + Duration::from_secs(UNREAD_S + bytes / UNREAD_RATE));
        ready!(self.alarm.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.saw(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.saw(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// All that was written is with the kernel.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.stuck = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_cut_off() {
        let (_client, server) = duplex(1 << 10);
        let from = Instant::now();
        let error = Patient::new(server).write_all(&[0; 1 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(from.elapsed() < Duration::from_secs(UNREAD_S + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_a_drop_at_a_time_is_cut_off_too_and_who_reads_steadily_is_not() {
        for (pause_ms, is_cut) in [(5_000, true), (50, false)] {
            let (mut client, server) = duplex(1 << 10);
            tokio::spawn(async move {
                let mut drop = [0; 1 << 10];
                while client.read(&mut drop).await.is_ok_and(|bytes| bytes > 0) {
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                }
            });
            let written = Patient::new(server).write_all(&[0; 4 << 20]).await;
            assert_eq!(written.is_err(), is_cut, "{pause_ms}");
        }
    }
}
