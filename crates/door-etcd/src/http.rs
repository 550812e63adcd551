//! What is asked over plain HTTP, and who may ask: pages of the origins that are allowed, by names of this host that are allowed.

use crate::door::{CLUSTER_VERSION, Door, VERSION};
use crate::listen::Serves;
use crate::{health, metrics};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode, Uri};
use http_body_util::Full;

pub(crate) type Answer = Response<Full<Bytes>>;

pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

pub(crate) fn text(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

/// Answers what is neither gRPC nor a call as JSON.
pub(crate) async fn answer(door: &Door, method: &Method, uri: &Uri, serves: Serves) -> Answer {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "Method Not Allowed\n");
    }
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let found = match path {
        _ if serves == Serves::Grpc => None,
        "/version" if serves != Serves::Metrics => {
            let body = format!(
                r#"{{"etcdserver":"{VERSION}","etcdcluster":"{CLUSTER_VERSION}","storage":"{CLUSTER_VERSION}"}}"#
            );
            Some(text(StatusCode::OK, "application/json", body))
        }
        "/debug/vars" if serves != Serves::Metrics => {
            let vars = format!(r#"{{"file_descriptor_limit":{}}}"#, (door.inner.host.usage)().most_files);
            Some(text(StatusCode::OK, "application/json; charset=utf-8", vars))
        }
        "/metrics" => Some(metrics::answer(door).await),
        "/health" => Some(health::health(door, query).await),
        _ => health::checks(door, path, query).await,
    };
    found.unwrap_or_else(not_found)
}

pub(crate) fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n")
}

/// Who may ask; none: everybody.
fn is_among(all: &[String], one: &str) -> bool {
    all.is_empty() || all.iter().any(|it| it == "*" || it == one)
}

/// The name of the host that a request was sent to, without its port.
fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let host = uri.host().or_else(|| headers.get(header::HOST)?.to_str().ok()).unwrap_or_default();
    match host.rsplit_once(':') {
        // The colons of an address of IPv6 stand in brackets.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

/// Refuses a request that was sent to a name that is not one of this host: a page that rebinds its own name comes to nothing. With TLS
/// the certificate says who this is.
pub(crate) fn refused_host(door: &Door, uri: &Uri, headers: &HeaderMap, is_secured: bool) -> Option<Answer> {
    let host = host_of(uri, headers);
    if is_secured || is_among(&door.inner.host.host_whitelist, host) {
        return None;
    }
    tracing::debug!("a request to the host '{host}' is refused");
    let body = "the Host header names a host that --host-whitelist does not\n";
    Some(text(StatusCode::MISDIRECTED_REQUEST, PLAIN, body))
}

/// What a browser is told of the origin that asks; `None`: nothing.
pub(crate) fn allowed_origin(door: &Door, headers: &HeaderMap) -> Option<HeaderValue> {
    let allowed = &door.inner.host.cors;
    if allowed.is_empty() || allowed.iter().any(|it| it == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    let origin = headers.get(header::ORIGIN)?;
    origin.to_str().ok().filter(|origin| is_among(allowed, origin)).map(|_| origin.clone())
}

/// Adds what a browser wants to know.
pub(crate) fn allow(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    let Some(origin) = origin else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    let names = HeaderValue::from_static("accept, content-type, authorization");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_without_its_port() {
        let mut headers = HeaderMap::new();
        for (sent, host) in [("a.b:2379", "a.b"), ("a.b", "a.b"), ("[::1]:2379", "[::1]"), ("[::1]", "[::1]")] {
            headers.insert(header::HOST, HeaderValue::from_static(sent));
            assert_eq!(host_of(&Uri::from_static("/health"), &headers), host);
        }
        assert_eq!(host_of(&Uri::from_static("http://c:1/"), &headers), "c");
    }

    #[test]
    fn nobody_named_is_everybody() {
        let two = ["a".to_owned(), "b".to_owned()];
        assert!(is_among(&[], "a") && is_among(&["*".to_owned()], "a") && is_among(&two, "b"));
        assert!(!is_among(&two, "c"));
    }
}
