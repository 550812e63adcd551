//! What is asked over plain HTTP.

use crate::door::{CLUSTER_VERSION, Door, VERSION};
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::Full;

type Answer = Response<Full<Bytes>>;

fn text(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    }
    response
}

/// Answers what is not gRPC.
pub(crate) fn answer(door: &Door, method: &Method, path: &str) -> Answer {
    let plain = "text/plain; charset=utf-8";
    if !matches!(*method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, plain, "Method Not Allowed\n");
    }
    match path {
        "/version" => {
            let body = format!(
                r#"{{"etcdserver":"{VERSION}","etcdcluster":"{CLUSTER_VERSION}","storage":"{CLUSTER_VERSION}"}}"#
            );
            text(StatusCode::OK, "application/json", body)
        }
        "/health" => match door.versions().revision() {
            Ok(_) => text(StatusCode::OK, "application/json", r#"{"health":"true","reason":""}"#),
            Err(_) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "application/json",
                r#"{"health":"false","reason":"RANGE ERROR"}"#,
            ),
        },
        "/livez" | "/readyz" => text(StatusCode::OK, plain, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, plain, "404 page not found\n"),
    }
}
