//! Connections: HTTP/2 and HTTP/1 on one port, told apart by their first bytes.

use crate::auth::CommonName;
use crate::booked::{BookedBody, HeldBody, STREAM_MESSAGE_MAX};
use crate::calls::Call;
use crate::door::Door;
use crate::drive::{Gathered, Open};
use crate::errors;
use crate::gateway;
use crate::http;
use crate::listen::{Accepted, Accepts, Listener, Serves, Stream, TLS_BYTES, secured};
use crate::long_range::InPlace;
use crate::reflection;
use crate::weight::CALL;
use crate::wire::etcdserverpb::auth_server::AuthServer;
use crate::wire::etcdserverpb::cluster_server::ClusterServer;
use crate::wire::etcdserverpb::kv_server::KvServer;
use crate::wire::etcdserverpb::lease_server::LeaseServer;
use crate::wire::etcdserverpb::maintenance_server::MaintenanceServer;
use crate::wire::etcdserverpb::watch_server::WatchServer;
use crate::wire::v3electionpb::election_server::ElectionServer;
use crate::wire::v3lockpb::lock_server::LockServer;
use ::http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use ramekin_memory::{Account, Reservation};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt;

/// What a connection takes: its buffers and hyper's, and what the kernel holds for it.
const CONNECTION_BYTES: u64 = 48 << 10;
/// What may come of one request, and of all of a connection, before it is taken.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 128 << 10;
const SEND_BUFFER: usize = 64 << 10;
/// Streams of one connection at a time: as many as there may be connections, within these.
const STREAMS: (usize, usize) = (256, 10_000);
/// What an open call takes: its stream, its task, and its headers besides their bytes.
const CALL_BYTES: u64 = 12 << 10;

/// The preface of HTTP/2 and the head of the frame behind it, or a request of HTTP/1: so much comes within this time.
const GREETING: u64 = 24 + 9;
const BEGINNING: Duration = Duration::from_secs(30);

/// While the door closes it looks so often whether what ends by itself has ended.
const LOOK: Duration = Duration::from_millis(10);

/// What all listeners share.
struct Shared {
    door: Door,
    routes: Routes,
    seats: Arc<Semaphore>,
    account: Account,
    ending: watch::Receiver<bool>,
}

/// Serves until `stop` is done; it says until when open requests may end, before they are cut. Streams have no end and are cut as soon
/// as nothing else is open.
pub async fn serve(
    listeners: Vec<Listener>,
    door: Door,
    stop: impl Future<Output = Instant> + Send,
) -> ramekin_base::Result<()> {
    let (end, ending) = watch::channel(false);
    let host = &door.inner.host;
    let shared = Arc::new(Shared {
        routes: routes(&door),
        seats: Arc::new(Semaphore::new(host.connections)),
        account: host.account.child("connections", "connections x 48 KiB, with TLS 96 KiB"),
        door: door.clone(),
        ending,
    });
    let mut serving = JoinSet::new();
    for listener in listeners {
        let Listener { socket, tls, is_mixed, names_users, serves } = listener;
        let tls = tls.map(|tls| (tls, is_mixed));
        let peer = Peer { name: None, is_secured: tls.is_some(), names_users, serves };
        serving.spawn(listen(Accepts::new(socket)?, tls, peer, shared.clone()));
    }
    tracing::info!("ready to serve client requests, of etcd's clients, at {}", host.listening.join(", "));
    let cut = stop.await;
    _ = end.send(true);
    let ended = async {
        while !serving.is_empty() && door.inner.calls.is_busy() {
            sleep(LOOK).await;
        }
        // Answers leave.
        _ = timeout(10 * LOOK, async { while serving.join_next().await.is_some() {} }).await;
    };
    _ = timeout_at(cut, ended).await;
    serving.shutdown().await;
    door.stop();
    Ok(())
}

/// Accepts until the door closes, then waits for its connections.
async fn listen(accepts: Accepts, tls: Option<(Arc<ServerConfig>, bool)>, peer: Peer, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    let mut ending = shared.ending.clone();
    let bytes = CONNECTION_BYTES + if tls.is_some() { TLS_BYTES } else { 0 };
    loop {
        let (stream, seat) = tokio::select! {
            _ = ending.wait_for(|ends| *ends) => break,
            accepted = accept(&accepts, &shared.seats) => match accepted {
                Some(accepted) => accepted,
                None => break,
            },
            Some(_) = open.join_next(), if !open.is_empty() => continue,
        };
        // Without memory for it a connection ends; whoever is there goes on.
        let Ok(memory) = shared.account.try_reserve(bytes) else { continue };
        let (tls, shared, mut peer) = (tls.clone(), shared.clone(), peer.clone());
        open.spawn(async move {
            let _held = (seat, memory);
            let stream = match tls {
                Some((tls, is_mixed)) if !is_mixed || stream.speaks_tls().await => {
                    let Some((stream, name)) = secured(stream.stream(), tls).await else { return };
                    peer.name = name.filter(|_| peer.names_users);
                    stream
                }
                _ => {
                    peer.is_secured = false;
                    stream.stream()
                }
            };
            connection(&shared, stream, peer).await;
        });
    }
    drop(accepts);
    while open.join_next().await.is_some() {}
}

async fn accept(accepts: &Accepts, seats: &Arc<Semaphore>) -> Option<(Accepted, OwnedSemaphorePermit)> {
    let seat = seats.clone().acquire_owned().await.ok()?;
    loop {
        match accepts.accept().await {
            Ok(stream) => return Some((stream, seat)),
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
    let (most, few, endless) = (door.message_most(), STREAM_MESSAGE_MAX, usize::MAX);
    Routes::new(KvServer::new(door.clone()).max_decoding_message_size(most).max_encoding_message_size(endless))
        .add_service(WatchServer::new(door.clone()).max_decoding_message_size(few).max_encoding_message_size(endless))
        .add_service(LeaseServer::new(door.clone()).max_decoding_message_size(few).max_encoding_message_size(endless))
        .add_service(LockServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(ElectionServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(AuthServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(ClusterServer::new(door.clone()).max_decoding_message_size(most))
        .add_service(MaintenanceServer::new(door.clone()).max_decoding_message_size(most))
        // The door serves or is closed: the state of "" never changes.
        .add_service(tonic_health::server::health_reporter().1)
        .prepare()
}

/// Who is at the other end of a connection, and what it may ask.
#[derive(Clone)]
struct Peer {
    name: Option<CommonName>,
    is_secured: bool,
    names_users: bool,
    serves: Serves,
}

async fn connection(shared: &Shared, stream: Stream, peer: Peer) {
    let mut open = Open::default();
    let mut server = auto::Builder::new(open.streams());
    server
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(shared.door.inner.host.connections.clamp(STREAMS.0, STREAMS.1) as u32)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Duration::from_secs(2 * 3600))
        .keep_alive_timeout(Duration::from_secs(20));
    server.http1().timer(TokioTimer::new()).max_buf_size(SEND_BUFFER);
    let (door, routes) = (shared.door.clone(), shared.routes.clone());
    let service = service_fn(move |request| answer(door.clone(), routes.clone(), peer.clone(), request));
    let gathered = Gathered::new(stream);
    let connection = server.serve_connection(TokioIo::new(gathered.clone()), service);
    let silent = until_silent(&gathered, BEGINNING);
    tokio::pin!(connection);
    let mut ending = shared.ending.clone();
    tokio::select! {
        () = open.drive(connection.as_mut(), &gathered) => return,
        () = silent => {
            tracing::debug!("a connection ends of which nothing came");
            return;
        }
        _ = ending.wait_for(|ends| *ends) => connection.as_mut().graceful_shutdown(),
    }
    open.drive(connection, &gathered).await;
}

/// Is done when a client has not begun to speak in time: others want its place. The heads of HTTP/1 have a time of their own.
async fn until_silent<S>(gathered: &Gathered<S>, beginning: Duration) {
    sleep(beginning).await;
    if gathered.has_read() >= GREETING {
        std::future::pending::<()>().await;
    }
}

/// Requests of which many messages come, or none may be kept.
fn is_stream(path: &str) -> bool {
    matches!(path, "/etcdserverpb.Watch/Watch" | "/etcdserverpb.Lease/LeaseKeepAlive")
}

type Answer = Response<HeldBody<Body>>;

async fn answer(door: Door, routes: Routes, peer: Peer, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let is_grpc = request
        .headers()
        .get(::http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let pieces = request.version() >= Version::HTTP_2;
    let answer = match is_grpc {
        true if matches!(peer.serves, Serves::All | Serves::Grpc) => call(door, routes, peer.name, request).await,
        true => held(http::not_found()),
        false => plain(door, routes, &peer, request).await,
    };
    Ok(if pieces { answer } else { answer.map(HeldBody::whole) })
}

fn held(answer: Response<Full<Bytes>>) -> Answer {
    let paid = answer.extensions().get::<Arc<Reservation>>().cloned();
    answer.map(|body| HeldBody::new(Body::new(body), paid))
}

/// Answers what is not gRPC.
async fn plain(door: Door, routes: Routes, peer: &Peer, request: Request<Incoming>) -> Answer {
    let Ok(paid) = door.inner.bodies.try_reserve(call_bytes(request.headers())) else {
        return held(http::text(StatusCode::TOO_MANY_REQUESTS, http::PLAIN, errors::TOO_MANY_REQUESTS));
    };
    let (uri, method) = (request.uri().clone(), request.method().clone());
    if let Some(refused) = http::refused_host(&door, &uri, request.headers(), peer.is_secured) {
        return held(refused).map(|body| body.paid_by(paid));
    }
    let origin = http::allowed_origin(&door, request.headers());
    let is_call =
        door.inner.host.gateway && matches!(peer.serves, Serves::All | Serves::Http) && gateway::is_here(uri.path());
    let open = Call::plain(&door, !gateway::is_endless(uri.path()));
    let mut answer = match is_call {
        _ if method == Method::OPTIONS => held(Response::default()),
        true => gateway::answer(&door, routes, request).await,
        false => held(http::answer(&door, &method, &uri, peer.serves).await),
    };
    http::allow(answer.headers_mut(), origin);
    answer.map(|body| body.of(open).paid_by(paid))
}

/// What a request takes as long as it is open.
fn call_bytes(headers: &HeaderMap) -> u64 {
    let headers: usize = headers.iter().map(|(name, value)| 2 * (name.as_str().len() + value.len())).sum();
    CALL_BYTES + headers as u64
}

/// Answers a call of gRPC.
async fn call(door: Door, routes: Routes, name: Option<CommonName>, request: Request<Incoming>) -> Answer {
    let (mut parts, body) = request.into_parts();
    let mut call = Call::begin(&door, parts.uri.path(), &parts.headers);
    let version = parts.headers.get("client-api-version");
    if version.is_some_and(|version| std::str::from_utf8(version.as_bytes()).is_err()) {
        let refused = Status::invalid_argument("etcdserver: invalid client api version").into_http::<Body>();
        call.hears(refused.headers());
        return refused.map(|body| HeldBody::new(body, None).of(call));
    }
    let is_reflection = reflection::is_here(parts.uri.path());
    let bytes = call_bytes(&parts.headers) + if is_reflection { reflection::ANSWER_BYTES } else { 0 };
    let Ok(open) = door.inner.bodies.try_reserve(bytes) else {
        let refused = Status::resource_exhausted(errors::TOO_MANY_REQUESTS).into_http::<Body>();
        call.hears(refused.headers());
        return refused.map(|body| HeldBody::new(body, None).of(call));
    };
    let shape = (is_stream(parts.uri.path()), door.message_most());
    let (body, bookings) = BookedBody::new(body, door.clone(), shape);
    parts.extensions.insert(bookings.clone());
    if let Some(name) = name {
        parts.extensions.insert(name);
    }
    let routes = match is_reflection {
        true => reflection::routes().unwrap_or(routes),
        false => routes,
    };
    let answered = routes.oneshot(Request::from_parts(parts, Body::new(body)));
    let response = match CALL.scope((door, bookings), answered).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    call.hears(response.headers());
    let held = response.extensions().get::<Arc<Reservation>>().cloned();
    let in_place = response.extensions().get::<InPlace>().and_then(InPlace::take);
    response.map(|body| HeldBody::new(in_place.unwrap_or(body), held).paid_by(open).of(call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn who_says_too_little_does_not_keep_its_place() {
        for (said, stays) in [(&b""[..], false), (b"PRI * HTTP/2.0\r\n\r\n", false), (&[7; 33], true)] {
            let (mut client, server) = tokio::io::duplex(100);
            let mut gathered = Gathered::new(server);
            client.write_all(said).await.unwrap();
            gathered.clone().read_exact(&mut vec![0; said.len()]).await.unwrap();
            let silent = timeout(Duration::from_millis(200), until_silent(&gathered, Duration::from_millis(1)));
            assert_eq!(silent.await.is_err(), stays);
            gathered.shutdown().await.unwrap();
        }
    }
}
