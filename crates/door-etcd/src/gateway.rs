//! The JSON gateway: a POST under `/v3/` is one call of gRPC, made in the process.
//!
//! ```text
//!   JSON ─► message, by its descriptor ─► the same services that gRPC calls ─► messages ─► JSON
//!                                                                               └► of a stream: a line each, {"result": ...}
//! ```

use crate::booked::{Bookings, HeldBody};
use crate::door::{Door, MessageBytes};
use crate::weight::CALL;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use ramekin_base::Error;
use ramekin_memory::Reservation;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::ServiceExt;

/// What the wire's messages are.
pub(crate) static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(crate::reflection::DESCRIPTORS).unwrap_or_default());

/// Which call a path is: service and method.
const PATHS: &[(&str, &str, &str)] = &[
    ("kv/range", "etcdserverpb.KV", "Range"),
    ("kv/put", "etcdserverpb.KV", "Put"),
    ("kv/deleterange", "etcdserverpb.KV", "DeleteRange"),
    ("kv/txn", "etcdserverpb.KV", "Txn"),
    ("kv/compaction", "etcdserverpb.KV", "Compact"),
    ("watch", "etcdserverpb.Watch", "Watch"),
    ("lease/grant", "etcdserverpb.Lease", "LeaseGrant"),
    ("lease/revoke", "etcdserverpb.Lease", "LeaseRevoke"),
    ("kv/lease/revoke", "etcdserverpb.Lease", "LeaseRevoke"),
    ("lease/keepalive", "etcdserverpb.Lease", "LeaseKeepAlive"),
    ("lease/timetolive", "etcdserverpb.Lease", "LeaseTimeToLive"),
    ("kv/lease/timetolive", "etcdserverpb.Lease", "LeaseTimeToLive"),
    ("lease/leases", "etcdserverpb.Lease", "LeaseLeases"),
    ("kv/lease/leases", "etcdserverpb.Lease", "LeaseLeases"),
    ("cluster/member/add", "etcdserverpb.Cluster", "MemberAdd"),
    ("cluster/member/remove", "etcdserverpb.Cluster", "MemberRemove"),
    ("cluster/member/update", "etcdserverpb.Cluster", "MemberUpdate"),
    ("cluster/member/list", "etcdserverpb.Cluster", "MemberList"),
    ("cluster/member/promote", "etcdserverpb.Cluster", "MemberPromote"),
    ("maintenance/alarm", "etcdserverpb.Maintenance", "Alarm"),
    ("maintenance/status", "etcdserverpb.Maintenance", "Status"),
    ("maintenance/defragment", "etcdserverpb.Maintenance", "Defragment"),
    ("maintenance/hash", "etcdserverpb.Maintenance", "Hash"),
    ("maintenance/hashkv", "etcdserverpb.Maintenance", "HashKV"),
    ("maintenance/snapshot", "etcdserverpb.Maintenance", "Snapshot"),
    ("maintenance/transfer-leadership", "etcdserverpb.Maintenance", "MoveLeader"),
    ("maintenance/downgrade", "etcdserverpb.Maintenance", "Downgrade"),
    ("auth/enable", "etcdserverpb.Auth", "AuthEnable"),
    ("auth/disable", "etcdserverpb.Auth", "AuthDisable"),
    ("auth/status", "etcdserverpb.Auth", "AuthStatus"),
    ("auth/authenticate", "etcdserverpb.Auth", "Authenticate"),
    ("auth/user/add", "etcdserverpb.Auth", "UserAdd"),
    ("auth/user/get", "etcdserverpb.Auth", "UserGet"),
    ("auth/user/list", "etcdserverpb.Auth", "UserList"),
    ("auth/user/delete", "etcdserverpb.Auth", "UserDelete"),
    ("auth/user/changepw", "etcdserverpb.Auth", "UserChangePassword"),
    ("auth/user/grant", "etcdserverpb.Auth", "UserGrantRole"),
    ("auth/user/revoke", "etcdserverpb.Auth", "UserRevokeRole"),
    ("auth/role/add", "etcdserverpb.Auth", "RoleAdd"),
    ("auth/role/get", "etcdserverpb.Auth", "RoleGet"),
    ("auth/role/list", "etcdserverpb.Auth", "RoleList"),
    ("auth/role/delete", "etcdserverpb.Auth", "RoleDelete"),
    ("auth/role/grant", "etcdserverpb.Auth", "RoleGrantPermission"),
    ("auth/role/revoke", "etcdserverpb.Auth", "RoleRevokePermission"),
    ("lock/lock", "v3lockpb.Lock", "Lock"),
    ("lock/unlock", "v3lockpb.Lock", "Unlock"),
    ("election/campaign", "v3electionpb.Election", "Campaign"),
    ("election/proclaim", "v3electionpb.Election", "Proclaim"),
    ("election/leader", "v3electionpb.Election", "Leader"),
    ("election/observe", "v3electionpb.Election", "Observe"),
    ("election/resign", "v3electionpb.Election", "Resign"),
];

/// What a JSON text takes at most beside its message: bytes in base64, names of fields, and the message itself.
const TIMES: u64 = 4;
/// What an object of a text takes: the first place of its fields; and what each further field or item does.
const OBJECT: u64 = 1280;
const PLACE: u64 = 128;
/// What an answer takes besides itself while it is made a text: its bytes, its message, and the text.
const ANSWER_TIMES: u64 = 8;

type Answer = Response<HeldBody<Body>>;

fn method_of(path: &str) -> Option<MethodDescriptor> {
    let path = path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"))?;
    let (_, service, method) = PATHS.iter().find(|(it, ..)| *it == path)?;
    POOL.get_service_by_name(service)?.methods().find(|it| it.name() == *method)
}

/// Whether a path is the gateway's.
pub(crate) fn is_here(path: &str) -> bool {
    method_of(path).is_some()
}

/// Whether a call of this path goes on until the client ends it.
pub(crate) fn is_endless(path: &str) -> bool {
    path.ends_with("/watch") || path.ends_with("/observe") || path.ends_with("/keepalive")
}

/// Answers a request.
pub(crate) async fn answer(door: &Door, routes: Routes, request: Request<Incoming>) -> Answer {
    match call(door, routes, request).await {
        Ok(answer) => answer,
        Err(status) => failed(&status),
    }
}

async fn call(door: &Door, routes: Routes, request: Request<Incoming>) -> Result<Answer, Status> {
    let method = method_of(request.uri().path()).ok_or_else(|| Status::not_found("Not Found"))?;
    if request.method() != Method::POST {
        return Err(Status::unimplemented("Method Not Allowed"));
    }
    let token = request.headers().get(http::header::AUTHORIZATION).cloned();
    // A text is longer than its message: bytes stand in base64.
    let most = 2 * door.message_most();
    let (text, mut memory) = read(door, request.into_body(), most).await?;
    memory.grow(weight(&text)).map_err(too_many)?;
    let messages = messages(&method.input(), &text, method.is_client_streaming())?;
    drop(text);
    let mut framed = BytesMut::new();
    for message in &messages {
        framed.put_u8(0);
        framed.put_u32(message.encoded_len() as u32);
        framed.extend_from_slice(&message.encode_to_vec());
    }
    drop(messages);
    // A watch goes on after what was asked; other streams end with it.
    let stays_open = method.is_client_streaming() && method.name() == "Watch";
    let sent = tokio_stream::once(Ok::<_, Infallible>(Frame::data(framed.freeze())));
    let body = match stays_open {
        true => Body::new(StreamBody::new(sent.chain(tokio_stream::pending()))),
        false => Body::new(StreamBody::new(sent)),
    };
    let mut inner = Request::new(body);
    *inner.method_mut() = Method::POST;
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    *inner.uri_mut() = path.parse().map_err(|_| Status::internal("a method has no path"))?;
    inner.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    if let Some(token) = token {
        inner.headers_mut().insert(HeaderName::from_static("token"), token);
    }
    let answered = CALL.scope((door.clone(), Bookings::default()), routes.oneshot(inner));
    let response = match answered.await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    check(response.headers())?;
    let output = method.output();
    if method.is_server_streaming() {
        return Ok(stream(output, response.into_body(), memory));
    }
    let held = response.extensions().get::<Arc<Reservation>>().cloned();
    let answer_bytes = response.extensions().get::<MessageBytes>().map_or(0, |bytes| bytes.0);
    memory.grow(ANSWER_TIMES * answer_bytes).map_err(too_many)?;
    let collected = response.into_body().collect().await?;
    if let Some(trailers) = collected.trailers() {
        check(trailers)?;
    }
    let text = json(&output, message_in(&mut BytesMut::from(&collected.to_bytes()[..])).unwrap_or_default())?;
    let mut answer = Response::new(HeldBody::new(Body::new(Full::new(Bytes::from(text))), held).paid_by(memory));
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(answer)
}

fn too_many(_: Error) -> Status {
    Status::resource_exhausted(crate::errors::TOO_MANY_REQUESTS)
}

/// What the parts of a text take once they are read: each object its first fields, each further field or item its place.
fn weight(text: &[u8]) -> u64 {
    let parts = text.iter().map(|byte| match byte {
        b'{' => OBJECT,
        b'[' | b',' => PLACE,
        _ => 0,
    });
    parts.sum()
}

/// The body of a request, booked.
async fn read(door: &Door, body: Incoming, most: usize) -> Result<(Bytes, Reservation), Status> {
    use http_body::Body as _;
    let len = body.size_hint().upper().unwrap_or(most as u64).min(most as u64);
    let memory = door.inner.bodies.try_reserve(TIMES * len).map_err(too_many)?;
    let body = Limited::new(body, most).collect().await;
    let body = body.map_err(|_| Status::invalid_argument("the body broke off, or is too long"))?;
    Ok((body.to_bytes(), memory))
}

/// The messages that a text holds: one, or several one after the other.
fn messages(input: &MessageDescriptor, text: &[u8], several: bool) -> Result<Vec<DynamicMessage>, Status> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let wrong = |error: serde_json::Error| Status::invalid_argument(error.to_string());
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut all = Vec::new();
    while all.is_empty() || several {
        match DynamicMessage::deserialize_with_options(input.clone(), &mut reader, &options) {
            Ok(message) => all.push(message),
            // An empty body is an empty message.
            Err(error) if error.is_eof() && (!all.is_empty() || text.trim_ascii().is_empty()) => break,
            Err(error) => return Err(wrong(error)),
        }
    }
    if all.is_empty() {
        all.push(DynamicMessage::new(input.clone()));
    }
    Ok(all)
}

/// Reads a text as messages of each call, and bytes as those of an answer.
pub(crate) fn decode_anything(bytes: &[u8]) {
    for (path, _, _) in PATHS {
        let Some(method) = method_of(&format!("/v3/{path}")) else { continue };
        _ = messages(&method.input(), bytes, method.is_client_streaming());
    }
    let mut framed = BytesMut::from(bytes);
    while message_in(&mut framed).is_some() {}
}

/// The message at the head of some bytes, if it is there whole.
fn message_in(bytes: &mut BytesMut) -> Option<Bytes> {
    let head = bytes.get(1..5)?.first_chunk::<4>()?;
    let len = u32::from_be_bytes(*head) as usize;
    if bytes.len() < 5 + len {
        return None;
    }
    bytes.advance(5);
    Some(bytes.split_to(len).freeze())
}

fn json(output: &MessageDescriptor, message: Bytes) -> Result<String, Status> {
    let wrong = |error: &dyn std::fmt::Display| Status::internal(format!("an answer is no JSON: {error}"));
    let message = DynamicMessage::decode(output.clone(), message).map_err(|error| wrong(&error))?;
    let mut text = Vec::new();
    let options = SerializeOptions::new().use_proto_field_name(true);
    let mut writer = serde_json::Serializer::new(&mut text);
    message.serialize_with_options(&mut writer, &options).map_err(|error| wrong(&error))?;
    String::from_utf8(text).map_err(|error| wrong(&error))
}

/// Books what it takes to show so many bytes as text, besides what was asked, in place of what was booked for those before.
fn fits(memory: &mut Reservation, asked: u64, bytes: usize) -> bool {
    let (wanted, booked) = (asked + ANSWER_TIMES * bytes as u64, memory.bytes());
    match wanted > booked {
        true => memory.grow(wanted - booked).is_ok(),
        false => {
            memory.shrink(booked - wanted);
            true
        }
    }
}

/// A line for each message.
fn stream(output: MessageDescriptor, body: Body, mut memory: Reservation) -> Answer {
    let (mut held, asked) = (BytesMut::new(), memory.bytes());
    let mut has_ended = false;
    let frames = http_body_util::BodyStream::new(body);
    let lines = frames.map_while(move |frame| {
        if has_ended {
            return None;
        }
        let mut lines = String::new();
        let failed = match frame {
            Ok(frame) => match frame.into_data() {
                // Without memory it ends here: a message that is left out would never be missed.
                Ok(data) if !fits(&mut memory, asked, held.len() + data.len()) => {
                    has_ended = true;
                    Some(Status::resource_exhausted(crate::errors::TOO_MANY_REQUESTS))
                }
                Ok(data) => {
                    held.extend_from_slice(&data);
                    let mut failed = None;
                    while let Some(message) = message_in(&mut held) {
                        match json(&output, message) {
                            Ok(text) => lines += &format!("{{\"result\":{text}}}\n"),
                            Err(status) => failed = Some(status),
                        }
                    }
                    failed
                }
                Err(frame) => frame.into_trailers().ok().and_then(|trailers| check(&trailers).err()),
            },
            Err(status) => Some(status),
        };
        if let Some(status) = failed {
            lines += &format!("{{\"error\":{}}}\n", error_of(&status));
        }
        Some(Ok::<_, Infallible>(Frame::data(Bytes::from(lines))))
    });
    let mut answer = Response::new(HeldBody::new(Body::new(StreamBody::new(lines)), None));
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

/// What the headers or the trailers of an answer say became of the call.
fn check(headers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

fn error_of(status: &Status) -> String {
    serde_json::json!({"code": status.code() as i32, "message": status.message()}).to_string()
}

fn failed(status: &Status) -> Answer {
    let code = match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut answer = Response::new(HeldBody::new(Body::new(Full::new(Bytes::from(error_of(status)))), None));
    *answer.status_mut() = code;
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_a_call() {
        for (path, service, method) in PATHS {
            let found = method_of(&format!("/v3/{path}"));
            let found = found.unwrap_or_else(|| panic!("{path} leads nowhere"));
            assert_eq!((found.parent_service().full_name(), found.name()), (*service, *method));
        }
        assert!(!is_here("/v3/kv/other") && !is_here("/kv/range"));
    }

    #[test]
    fn a_text_holds_one_message_or_several() {
        let input = method_of("/v3/watch").map(|method| method.input()).unwrap_or_else(|| panic!("no such call"));
        let two = br#"{"create_request": {"key": "YQ=="}} {"progress_request": {}}"#;
        assert_eq!(messages(&input, two, true).map(|all| all.len()).ok(), Some(2));
        assert_eq!(messages(&input, b"", true).map(|all| all.len()).ok(), Some(1));
        assert!(messages(&input, b"{", true).is_err() && messages(&input, b"[]", false).is_err());
    }
}
