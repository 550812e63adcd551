//! A connection's socket, with a look at its far end that reads nothing.
//!
//! ```text
//!   hyper ─── read, write ──► Socket ──► TcpStream
//!   talk  ─── hung_up ──────►   │
//! ```
//!
//! hyper looks at the socket while a request is worked on, but not where bytes of a next request wait in its buffer. A
//! client that sends these and leaves would be worked for to the end: so the far end is watched beside it.

use crate::limits::{HEAD_FREE, UNREAD_S};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A read is a little less than hyper's first buffer: it takes a larger one only when the first was filled in one go.
const READ_MOST: usize = HEAD_FREE - 1;

/// Clones are handles to the same socket, which closes with the last of them.
#[derive(Clone)]
pub struct Socket(Arc<TcpStream>);

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Sets what holds for every connection.
    pub fn prepare(&self) {
        // Answers are short; they shall not wait for the next segment.
        let _ = self.0.set_nodelay(true);
        // A client that is gone without a word is noticed by the kernel; one that does not read, by us.
        let _ = sockopt::set_tcp_user_timeout(&*self.0, 2 * UNREAD_S as u32 * 1000);
    }

    /// What the kernel may hold for us to read, as asked for. Where it refuses, it stays as it is.
    pub fn set_receive_buffer(&self, bytes: usize) {
        let _ = sockopt::set_socket_recv_buffer_size(&*self.0, bytes);
    }

    /// What the kernel may hold for the client to read.
    pub fn set_send_buffer(&self, bytes: usize) {
        let _ = sockopt::set_socket_send_buffer_size(&*self.0, bytes);
    }

    /// What the kernel may hold to be read, and of what is sent: twice what was asked for.
    #[cfg(test)]
    pub fn buffers(&self) -> (usize, usize) {
        (sockopt::socket_recv_buffer_size(&*self.0).unwrap(), sockopt::socket_send_buffer_size(&*self.0).unwrap())
    }

    /// At most two thirds of the kernel's buffer wait for the client to read them.
    pub fn has_room(&self) -> bool {
        let mut asked = [PollFd::new(&*self.0, PollFlags::OUT)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the client sends no more: it closed the connection or its half of it, or reset it.
    pub async fn hung_up(&self) {
        // The kernel tells of the closed half with urgent data, whatever waits to be read.
        while let Ok(ready) = self.0.ready(Interest::PRIORITY).await {
            if ready.is_read_closed() {
                return;
            }
            // Urgent data: nobody reads it, so it stays, and a look now and then must do.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            // First this: a buffer that is waited with is not touched, and no memory stands behind it.
            ready!(self.0.poll_read_ready(cx))?;
            let most = buf.remaining().min(READ_MOST);
            match self.0.try_read(buf.initialize_unfilled_to(most)) {
                Ok(bytes) => {
                    buf.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Socket {
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match send(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A socket keeps nothing back.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write) {
            // The client was faster.
            Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            done => Poll::Ready(done.map_err(io::Error::from)),
        }
    }
}
