//! Connections: HTTP/2 and HTTP/1 on one port, told apart by their first bytes.

use crate::booked::{BookedBody, HeldBody};
use crate::door::Door;
use crate::drive::{Gathered, Open};
use crate::gateway;
use crate::http;
use crate::wire::etcdserverpb::auth_server::AuthServer;
use crate::wire::etcdserverpb::cluster_server::ClusterServer;
use crate::wire::etcdserverpb::kv_server::KvServer;
use crate::wire::etcdserverpb::lease_server::LeaseServer;
use crate::wire::etcdserverpb::maintenance_server::MaintenanceServer;
use crate::wire::etcdserverpb::watch_server::WatchServer;
use crate::wire::v3electionpb::election_server::ElectionServer;
use crate::wire::v3lockpb::lock_server::LockServer;
use ::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use ramekin_base::{Error, Result};
use ramekin_memory::Reservation;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt;

/// What a connection takes: its buffers and hyper's, and what the kernel holds for it.
const CONNECTION_BYTES: u64 = 48 << 10;
/// What may come of one request, and of all of a connection, before it is taken.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 128 << 10;
const SEND_BUFFER: usize = 64 << 10;
/// Streams of one connection at a time.
const STREAMS: u32 = 10_000;

/// Serves until `stop` is done; it says until when open requests may end, before they are cut.
pub async fn serve(listener: TcpListener, door: Door, stop: impl Future<Output = Instant> + Send) -> Result<()> {
    let routes = routes(&door);
    let seats = Arc::new(Semaphore::new(door.inner.host.connections));
    let account = door.inner.host.account.child("connections", "connections x 48 KiB");
    let (end, ending) = watch::channel(false);
    let mut open = JoinSet::new();
    tokio::pin!(stop);
    let cut = loop {
        let accepted = tokio::select! {
            cut = &mut stop => break cut,
            accepted = accept(&listener, &seats) => accepted,
            Some(_) = open.join_next(), if !open.is_empty() => continue,
        };
        let (stream, seat) = accepted?;
        // Without memory for it a connection ends; whoever is there goes on.
        let Ok(memory) = account.try_reserve(CONNECTION_BYTES) else { continue };
        let connection = connection(door.clone(), routes.clone(), stream, memory, ending.clone());
        open.spawn(async move {
            let _seat = seat;
            connection.await;
        });
    };
    drop(listener);
    _ = end.send(true);
    _ = timeout_at(cut, async { while open.join_next().await.is_some() {} }).await;
    open.shutdown().await;
    door.stop();
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    seats: &Arc<Semaphore>,
) -> Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let seat = seats.clone().acquire_owned().await.map_err(|_| Error::bug("the seats of connections are closed"))?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok((stream, seat)),
            Err(error) => {
                // Out of file descriptors, or the client is gone again.
                tracing::warn!("a connection could not be accepted: {error}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn routes(door: &Door) -> Routes {
    // A message that is too long is refused before it is decoded.
    let (most, endless) = (door.message_most(), usize::MAX);
    Routes::new(KvServer::new(door.clone()).max_decoding_message_size(most).max_encoding_message_size(endless))
        .add_service(WatchServer::new(door.clone()).max_decoding_message_size(most).max_encoding_message_size(endless))
        .add_service(LeaseServer::new(door.clone()).max_decoding_message_size(most).max_encoding_message_size(endless))
        .add_service(LockServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(ElectionServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(AuthServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(ClusterServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(MaintenanceServer::new(door.clone()).max_decoding_message_size(most))
        .prepare()
}

async fn connection(
    door: Door,
    routes: Routes,
    stream: TcpStream,
    _memory: Reservation,
    mut ending: watch::Receiver<bool>,
) {
    _ = stream.set_nodelay(true);
    let mut open = Open::default();
    let mut server = auto::Builder::new(open.streams());
    server
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Duration::from_secs(2 * 3600))
        .keep_alive_timeout(Duration::from_secs(20));
    server.http1().timer(TokioTimer::new());
    let service = service_fn(move |request| answer(door.clone(), routes.clone(), request));
    let gathered = Gathered::new(stream);
    let connection = server.serve_connection(TokioIo::new(gathered.clone()), service);
    tokio::pin!(connection);
    tokio::select! {
        () = open.drive(connection.as_mut(), &gathered) => return,
        _ = ending.wait_for(|ends| *ends) => connection.as_mut().graceful_shutdown(),
    }
    open.drive(connection, &gathered).await;
}

/// Requests of which many messages come, or none may be kept.
fn is_stream(path: &str) -> bool {
    matches!(path, "/etcdserverpb.Watch/Watch" | "/etcdserverpb.Lease/LeaseKeepAlive")
}

async fn answer(
    door: Door,
    routes: Routes,
    request: Request<Incoming>,
) -> std::result::Result<Response<HeldBody<Body>>, Infallible> {
    let is_grpc = request
        .headers()
        .get(::http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if !is_grpc && gateway::is_here(request.uri().path()) {
        return Ok(gateway::answer(&door, routes, request).await);
    }
    if !is_grpc {
        let answer = http::answer(&door, request.method(), request.uri().path());
        return Ok(answer.map(|body| HeldBody::new(Body::new(body), None)));
    }
    let (mut parts, body) = request.into_parts();
    let shape = (is_stream(parts.uri.path()), door.message_most());
    let (body, bookings) = BookedBody::new(body, door.inner.bodies.clone(), shape);
    parts.extensions.insert(bookings);
    let response = match routes.oneshot(Request::from_parts(parts, Body::new(body))).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let held = response.extensions().get::<Arc<Reservation>>().cloned();
    Ok(response.map(|body| HeldBody::new(body, held)))
}
