//! Refusals: what a failed request answers.
//!
//! ```text
//!   Error { kind, message }  ─► TABLE ─►  status      {"status":{"error":"..."},"time":0.0001}
//!                                          429 also says Retry-After
//! ```

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use ramekin_base::{Error, Kind};
use std::time::Duration;

/// Kind of error to status of the answer.
pub const TABLE: [(Kind, StatusCode); 13] = [
    (Kind::Malformed, StatusCode::BAD_REQUEST),
    (Kind::Invalid, StatusCode::UNPROCESSABLE_ENTITY),
    (Kind::NotFound, StatusCode::NOT_FOUND),
    (Kind::Exists, StatusCode::CONFLICT),
    (Kind::TooLarge, StatusCode::PAYLOAD_TOO_LARGE),
    (Kind::Busy, StatusCode::TOO_MANY_REQUESTS),
    (Kind::NoMemory, StatusCode::INSUFFICIENT_STORAGE),
    (Kind::NoSpace, StatusCode::INSUFFICIENT_STORAGE),
    (Kind::Corrupt, StatusCode::INTERNAL_SERVER_ERROR),
    (Kind::Io, StatusCode::INTERNAL_SERVER_ERROR),
    (Kind::Closed, StatusCode::SERVICE_UNAVAILABLE),
    (Kind::Unsupported, StatusCode::NOT_IMPLEMENTED),
    (Kind::Bug, StatusCode::INTERNAL_SERVER_ERROR),
];

/// After how many seconds a busy server may be asked again.
const RETRY_AFTER_S: &str = "1";

/// A request that is not done, and why.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
}

pub type Outcome<T> = Result<T, Refusal>;

impl Refusal {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
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
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let found = TABLE.iter().find(|(kind, _)| *kind == error.kind());
        Self::new(found.map_or(StatusCode::INTERNAL_SERVER_ERROR, |(_, status)| *status), error.message())
    }
}
