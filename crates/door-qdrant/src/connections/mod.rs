//! Connections: counted and booked before a byte of theirs is read, with an end to their idleness.
//!
//! ```text
//!   accept ─► a seat and its bytes ─► (TLS) ─► Heard ─► hyper ─► router ─► its body, which tells when the answer is out
//!                  │ none free: the connection that is idle longest ends, the kernel keeps all newer ones waiting
//! ```
//!
//! What a connection holds is told in `guests.rs`.

pub(crate) mod heard;
pub(crate) mod patient;

use crate::admission::guests::{Guest, Seat};
use crate::admission::socket::Socket;
use crate::connections::heard::Heard;
use crate::connections::patient::Patient;
use crate::door::Door;
use crate::limits;
use crate::request::state::caught;
use axum::body::{Body, HttpBody};
use axum::http::Uri;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ramekin_base::limits as base;
use ramekin_base::{Error, Result};
use socket2::SockRef;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// How far the server is with stopping.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Serving,
    /// Connections end after their request.
    Ending,
    /// Connections end now.
    Cut,
}

/// What all connections share.
struct ConnectionContext {
    door: Door,
    tls: Option<TlsAcceptor>,
    stage: watch::Receiver<Stage>,
    /// Connections since the start, by which each has its number.
    accepted: AtomicU64,
}

/// Serves until `stop` is done; it says until when open requests may end, before they are cut.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    door: Door,
    stop: impl Future<Output = Instant> + Send,
) -> Result<()> {
    let guests = door.shared.guests.clone();
    guests.open(tls.is_some())?;
    // Accepted connections inherit what the listener has.
    let socket = SockRef::from(&listener);
    let sizes = socket
        .set_recv_buffer_size(limits::SOCKET_RECEIVE_IDLE)
        .and_then(|()| socket.set_send_buffer_size(limits::SOCKET_SEND_IDLE))
        .and_then(|()| socket.set_tcp_mss(limits::SEGMENT));
    sizes
        .map_err(|error| Error::io(format!("the sizes of the socket's buffers and segments cannot be set: {error}")))?;
    let (stage, stage_of_all) = watch::channel(Stage::Serving);
    let context = Arc::new(ConnectionContext {
        door,
        tls: tls.map(TlsAcceptor::from),
        stage: stage_of_all,
        accepted: AtomicU64::new(0),
    });

    let cut = tokio::select! {
        cut = stop => cut,
        never = for_ever("the accepting of connections", || accept(&listener, &context)) => match never {},
        never = for_ever("the watch over connections", || guests.watch()) => match never {},
    };
    drop(listener);
    let _ = stage.send(Stage::Ending);
    if timeout_at(cut, guests.all_left()).await.is_err() {
        let _ = stage.send(Stage::Cut);
        // One more moment, for tasks to see it.
        let _ = timeout(Duration::from_secs(1), guests.all_left()).await;
    }
    Ok(())
}

/// Does `work`, which has no end. A panic is told, and it begins anew.
async fn for_ever<F: Future<Output = Infallible>>(job: &str, work: impl Fn() -> F) -> Infallible {
    loop {
        match caught(job, work()).await {
            Ok(never) => match never {},
            Err(error) => tracing::error!("{error}; it goes on"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Accepts for ever.
async fn accept(listener: &TcpListener, context: &Arc<ConnectionContext>) -> Infallible {
    loop {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    // Out of file descriptors, or the client is gone again.
                    tracing::warn!("a connection could not be accepted: {error}");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let number = context.accepted.fetch_add(1, Ordering::Relaxed);
        let socket = Socket::new(stream);
        let seat = context.door.shared.guests.seat(number, &socket, context.tls.is_some()).await;
        let context = context.clone();
        tokio::spawn(async move {
            if let Err(error) = caught("a connection", Box::pin(handshake(context, socket, seat))).await {
                tracing::error!("its client finds it closed: {error}");
            }
        });
    }
}

async fn handshake(context: Arc<ConnectionContext>, socket: Socket, seat: Seat) {
    socket.prepare();
    let guest = &seat.guest;
    match &context.tls {
        None => serve_http1(&context, &socket, guest, Patient::new(socket.clone())).await,
        Some(tls) => {
            let hello = timeout(Duration::from_secs(limits::HANDSHAKE_S), tls.accept(Patient::new(socket.clone())));
            let hello = tokio::select! {
                hello = Box::pin(hello) => hello,
                () = guest.must_leave() => return,
            };
            match hello {
                // Apart, so that a connection without TLS is not as large as one with it.
                Ok(Ok(stream)) => Box::pin(serve_http1(&context, &socket, guest, stream)).await,
                Ok(Err(error)) => tracing::debug!("TLS: {error}"),
                Err(_) => tracing::debug!("TLS: no hello in time"),
            }
        }
    }
}

/// Serves the requests of a connection. When it ends, what is worked on for it loses who waits for it.
async fn serve_http1(
    context: &ConnectionContext,
    socket: &Socket,
    guest: &Arc<Guest>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let (router, own) = (context.door.router.clone(), guest.clone());
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        own.busy();
        if let Some(uri) = tidied(request.uri()) {
            *request.uri_mut() = uri;
        }
        request.extensions_mut().insert(own.clone());
        let (answer, guest) = (router.clone().oneshot(request.map(Body::new)), own.clone());
        async move { answer.await.map(|answer| answer.map(|body| Answered { body, guest })) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits::IDLE_S))
        .max_headers(base::HEADER_COUNT_MAX)
        .max_buf_size(limits::READ_BUFFER)
        .serve_connection(TokioIo::new(Heard::new(stream, guest.clone())), service);
    tokio::pin!(connection);
    let (mut stopping, mut stopped) = (context.stage.clone(), context.stage.clone());
    let hung_up = socket.hung_up();
    tokio::pin!(hung_up);
    // The connection first: what a client sent before it hung up is looked at, and what is answered at once is answered.
    let mut ended = tokio::select! {
        biased;
        ended = &mut connection => Some(ended),
        () = &mut hung_up => return,
        () = guest.must_leave() => None,
        _ = stopping.wait_for(|stage| *stage != Stage::Serving) => None,
    };
    if ended.is_none() {
        if guest.may_be_cut() {
            return;
        }
        connection.as_mut().graceful_shutdown();
        ended = tokio::select! {
            biased;
            ended = &mut connection => Some(ended),
            () = &mut hung_up => return,
            () = guest.must_be_cut() => return,
            _ = stopped.wait_for(|stage| *stage == Stage::Cut) => None,
        };
    }
    if let Some(Err(error)) = ended {
        tracing::debug!("connection: {error}");
    }
}

/// An answer on its way out.
struct Answered {
    body: Body,
    guest: Arc<Guest>,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.guest.over();
    }
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A path without doubled and trailing slashes, as Qdrant reads it; `None` if it is tidy already.
fn tidied(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    if path == "/" || !(path.ends_with('/') || path.contains("//")) {
        return None;
    }
    let mut tidy = String::with_capacity(path.len());
    for part in path.split('/').filter(|part| !part.is_empty()) {
        tidy.push('/');
        tidy.push_str(part);
    }
    if tidy.is_empty() {
        tidy.push('/');
    }
    if let Some(query) = uri.query() {
        tidy.push('?');
        tidy.push_str(query);
    }
    tidy.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_goes_on_after_a_panic() {
        let rounds = AtomicU64::new(0);
        let before = ramekin_base::supervise::panics();
        let work = || async {
            let round = rounds.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            assert!(round >= 3, "planted by a test");
            std::future::pending().await
        };
        assert!(timeout(Duration::from_secs(60), for_ever("a test", work)).await.is_err());
        assert_eq!(rounds.load(Ordering::Relaxed), 4);
        assert!(ramekin_base::supervise::panics() >= before + 3);
    }

    #[test]
    fn paths_are_tidied() {
        let tidy = |text: &str| tidied(&text.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(tidy("/collections"), None);
        assert_eq!(tidy("/"), None);
        assert_eq!(tidy("/collections/?a=/"), Some("/collections?a=/".into()));
        assert_eq!(tidy("//collections//x/"), Some("/collections/x".into()));
        assert_eq!(tidy("//"), Some("/".into()));
    }
}
