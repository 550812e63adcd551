//! Connections: counted and booked before a byte of theirs is read, with an end to their idleness.
//!
//! ```text
//!   accept ─► a place and its bytes ─► (TLS) ─► hyper ─► router
//!                  │ none free: idle connections are asked to end, the kernel keeps all newer ones waiting
//!   one connection = read buffer + small body + small answer + structures + the kernel's two buffers
//! ```

use crate::door::Door;
use crate::limits;
use crate::patient::Patient;
use crate::socket::Socket;
use axum::body::Body;
use axum::http::Uri;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ramekin_base::limits as base;
use ramekin_base::{Error, Result};
use ramekin_memory::Reservation;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// In words, for the ledger.
pub const FORMULA: &str =
    "connections x (16 KiB read + 16 KiB body + 16 KiB answer + 12 KiB structures + 64 KiB kernel; TLS 48 KiB more)";

/// Connections that are there for good, however small the budget.
const LEAST: u64 = 8;
/// What they have for good, without TLS.
pub const FLOOR: u64 = LEAST * each(false);

/// What one connection is booked at.
const fn each(tls: bool) -> u64 {
    let own = limits::READ_BUFFER + limits::BODY_FREE + limits::ANSWER_FREE + limits::CONNECTION_FIXED;
    // The kernel doubles what is asked for; the two directions are not full at the same time.
    let kernel = 2 * limits::SOCKET_BUFFER;
    (own + kernel + if tls { limits::CONNECTION_TLS } else { 0 }) as u64
}

/// What all connections of a budget may be booked at together.
pub fn most(budget: u64) -> u64 {
    (budget / 4).max(LEAST * each(true))
}

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
struct Hall {
    door: Door,
    tls: Option<TlsAcceptor>,
    stage: watch::Receiver<Stage>,
    /// Wakes one connection, which then ends after its request.
    crowded: Notify,
}

/// Serves until `stop` is done; it says until when open requests may end, before they are cut.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    door: Door,
    stop: impl Future<Output = Instant> + Send,
) -> Result<()> {
    let shared = door.shared.clone();
    let each = each(tls.is_some());
    shared.connections.set_floor(LEAST * each)?;
    shared.connections.set_limit(most(shared.host.budget.limit()));
    let free = Arc::new(Semaphore::new(base::CONNECTIONS_MAX));
    // Accepted connections inherit the buffers of the listener.
    let buffers = rustix::net::sockopt::set_socket_recv_buffer_size(&listener, limits::SOCKET_BUFFER)
        .and_then(|()| rustix::net::sockopt::set_socket_send_buffer_size(&listener, limits::SOCKET_BUFFER));
    buffers.map_err(|error| Error::io(format!("the socket's buffers cannot be set: {error}")))?;
    let (stage, stage_of_all) = watch::channel(Stage::Serving);
    let hall = Arc::new(Hall { door, tls: tls.map(TlsAcceptor::from), stage: stage_of_all, crowded: Notify::new() });

    let cut = tokio::select! {
        cut = stop => cut,
        never = accept(&listener, &hall, &free, each) => match never {},
    };
    drop(listener);
    let _ = stage.send(Stage::Ending);
    let places = base::CONNECTIONS_MAX as u32;
    if timeout_at(cut, free.acquire_many(places)).await.is_err() {
        let _ = stage.send(Stage::Cut);
        // One more moment, for tasks to see it.
        let _ = timeout(Duration::from_secs(1), free.acquire_many(places)).await;
    }
    Ok(())
}

/// Accepts for ever.
async fn accept(
    listener: &TcpListener,
    hall: &Arc<Hall>,
    free: &Arc<Semaphore>,
    each: u64,
) -> std::convert::Infallible {
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
        let place = place(hall, free, each).await;
        let hall = hall.clone();
        tokio::spawn(async move {
            let _place = place;
            greet(hall, stream).await;
        });
    }
}

/// Waits for a place and books it. While there is none, one connection after the other is asked to end
/// after its request: somebody who keeps it for later gives way to somebody who has a request now.
async fn place(hall: &Hall, free: &Arc<Semaphore>, each: u64) -> (OwnedSemaphorePermit, Reservation) {
    loop {
        let permit = timeout(Duration::from_millis(100), free.clone().acquire_owned()).await;
        if let Ok(Ok(permit)) = permit {
            match hall.door.shared.connections.try_reserve(each) {
                Ok(memory) => return (permit, memory),
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
        hall.crowded.notify_one();
    }
}

async fn greet(hall: Arc<Hall>, stream: TcpStream) {
    // Answers are short; they shall not wait for the next segment.
    let _ = stream.set_nodelay(true);
    // A client that is gone without a word is noticed by the kernel; one that does not read, by us.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, 2 * limits::UNREAD_S as u32 * 1000);
    let socket = Socket::new(stream);
    match &hall.tls {
        None => talk(&hall, &socket, Patient::new(socket.clone())).await,
        Some(tls) => {
            let hello =
                timeout(Duration::from_secs(limits::HANDSHAKE_S), tls.accept(Patient::new(socket.clone()))).await;
            match hello {
                Ok(Ok(stream)) => talk(&hall, &socket, stream).await,
                Ok(Err(error)) => tracing::debug!("TLS: {error}"),
                Err(_) => tracing::debug!("TLS: no hello in time"),
            }
        }
    }
}

/// Serves the requests of a connection. When it ends, what is worked on for it loses who waits for it.
async fn talk(hall: &Hall, socket: &Socket, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let router = hall.door.router.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        if let Some(uri) = tidied(request.uri()) {
            *request.uri_mut() = uri;
        }
        router.clone().oneshot(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits::IDLE_S))
        .max_headers(base::HEADER_COUNT_MAX)
        .max_buf_size(limits::READ_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let (mut stopping, mut stopped) = (hall.stage.clone(), hall.stage.clone());
    let hung_up = socket.hung_up();
    tokio::pin!(hung_up);
    // The connection first: what a client sent before it hung up is looked at, and what is answered at once is answered.
    let mut ended = tokio::select! {
        biased;
        ended = &mut connection => Some(ended),
        () = &mut hung_up => return,
        () = hall.crowded.notified() => None,
        _ = stopping.wait_for(|stage| *stage != Stage::Serving) => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        ended = tokio::select! {
            biased;
            ended = &mut connection => Some(ended),
            () = &mut hung_up => return,
            _ = stopped.wait_for(|stage| *stage == Stage::Cut) => None,
        };
    }
    if let Some(Err(error)) = ended {
        tracing::debug!("connection: {error}");
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

    #[test]
    fn paths_are_tidied() {
        let tidy = |text: &str| tidied(&text.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(tidy("/collections"), None);
        assert_eq!(tidy("/"), None);
        assert_eq!(tidy("/collections/?a=/"), Some("/collections?a=/".into()));
        assert_eq!(tidy("//collections//x/"), Some("/collections/x".into()));
        assert_eq!(tidy("//"), Some("/".into()));
    }

    #[test]
    fn a_small_budget_still_has_places() {
        assert_eq!(most(24 << 20) / each(false), 49);
        assert_eq!(most(96 << 20) / each(false), 198);
        assert_eq!(most(1 << 20) / each(true), LEAST);
    }
}
