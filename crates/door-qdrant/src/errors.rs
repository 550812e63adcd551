//! Refusals: what a failed request answers.
//!
//! ```text
//!   Error { kind, message }  ─► TABLE ─►  status      {"status":{"error":"..."},"time":0.0001}
//!                                          429 also says Retry-After
//! ```

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use ramekin_base::{Error, Kind, cut};
use std::time::Duration;

/// Kind of error to status of the answer.
pub const TABLE: [(Kind, StatusCode); 16] = [
    (Kind::Malformed, StatusCode::BAD_REQUEST),
    (Kind::Invalid, StatusCode::UNPROCESSABLE_ENTITY),
    (Kind::NotFound, StatusCode::NOT_FOUND),
    (Kind::Exists, StatusCode::CONFLICT),
    (Kind::TooLarge, StatusCode::PAYLOAD_TOO_LARGE),
    (Kind::Slow, StatusCode::REQUEST_TIMEOUT),
    (Kind::Busy, StatusCode::TOO_MANY_REQUESTS),
    (Kind::NoMemory, StatusCode::INSUFFICIENT_STORAGE),
    (Kind::NoSpace, StatusCode::INSUFFICIENT_STORAGE),
    (Kind::Corrupt, StatusCode::INTERNAL_SERVER_ERROR),
    (Kind::Io, StatusCode::INTERNAL_SERVER_ERROR),
    (Kind::Closed, StatusCode::SERVICE_UNAVAILABLE),
    (Kind::Unsupported, StatusCode::NOT_IMPLEMENTED),
    // Who hung up does not see it; who set a timeout is told to try again.
    (Kind::Cancelled, StatusCode::TOO_MANY_REQUESTS),
    (Kind::Unfinished, StatusCode::SERVICE_UNAVAILABLE),
    (Kind::Bug, StatusCode::INTERNAL_SERVER_ERROR),
];

/// After how many seconds a busy server may be asked again.
const RETRY_AFTER_S: &str = "1";

/// A request that is not done, and why: a short message, whose answer lives on its connection's own booking.
#[derive(Debug)]
pub struct HttpError {
    pub status: StatusCode,
    pub message: String,
}

pub type Outcome<T> = Result<T, HttpError>;

impl HttpError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: cut(message.into()) }
    }

    /// The answer to the request.
    pub fn response(&self, took: Duration) -> Response {
        let body = serde_json::json!({ "status": { "error": self.message }, "time": took.as_secs_f64() });
        let mut response = Response::new(body.to_string().into());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        if self.status == StatusCode::REQUEST_TIMEOUT {
            // What it still sends of its body is not read.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// What Qdrant writes before the messages of a kind.
const PREFIXES: [(Kind, &str); 6] = [
    (Kind::Malformed, "Wrong input: "),
    (Kind::Exists, "Wrong input: "),
    (Kind::NotFound, "Not found: "),
    (Kind::Corrupt, "Service internal error: "),
    (Kind::Io, "Service internal error: "),
    (Kind::Bug, "Service internal error: "),
];

/// So begins what was refused before the store saw it, and has no prefix of its kind: it says where in the request it stands, or
/// that the request itself makes no sense.
const OTHERS: [&str; 3] = ["Format error in ", "Validation error in ", "Bad request: "];

fn prefix(error: &Error) -> &'static str {
    if OTHERS.iter().any(|other| error.message().starts_with(other)) {
        return "";
    }
    PREFIXES.iter().find(|(kind, _)| *kind == error.kind()).map_or("", |(_, prefix)| prefix)
}

impl From<Error> for HttpError {
    fn from(error: Error) -> Self {
        let found = TABLE.iter().find(|(kind, _)| *kind == error.kind());
        let status = found.map_or(StatusCode::INTERNAL_SERVER_ERROR, |(_, status)| *status);
        Self::new(status, format!("{}{}", prefix(&error), error.message()))
    }
}
