//! What follows the question mark: the options that every request has.
//!
//! ```text
//!   ?wait=true&timeout=5&ordering=strong&consistency=quorum      others are passed over, as Qdrant does
//! ```

use crate::errors::{HttpError, Outcome};
use axum::http::StatusCode;
use ramekin_base::limits;
use ramekin_vectors::Wait;
use std::time::Duration;
use tokio::time::Instant;

/// What the query string of any request may say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    pub wait: Wait,
    /// When the request gives up.
    pub until: Instant,
    pub timeout: Duration,
}

impl Options {
    /// Reads `wait`, `timeout`, `ordering` and `consistency`; passes over the rest, as Qdrant does.
    pub fn read(query: &str) -> Outcome<Self> {
        let wrong = |message: String| Err(HttpError::new(StatusCode::BAD_REQUEST, message));
        let mut wait = Wait::Durable;
        let mut seconds = limits::TIMEOUT_DEFAULT_S;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("wait", "true") => wait = Wait::Visible,
                ("wait", "false") => wait = Wait::Durable,
                ("wait", _) => {
                    return wrong(format!(
                        "Format error in query parameters: wait: {value:?} is neither true nor false"
                    ));
                }
                ("timeout", _) => match value.parse::<u64>() {
                    Ok(0) => {
                        let message =
                            "Validation error in query parameters: [timeout: value 0 invalid, must be 1 or larger]";
                        return Err(HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, message));
                    }
                    Ok(named) => seconds = named.min(limits::TIMEOUT_MAX_S),
                    Err(_) => {
                        return wrong(format!(
                            "Format error in query parameters: timeout: {value:?} is no number of seconds"
                        ));
                    }
                },
                // One node holds all data: every write is ordered strongly, every read sees all replicas.
                ("ordering", "weak" | "medium" | "strong") => {}
                ("ordering", _) => {
                    return wrong(format!(
                        "Format error in query parameters: ordering: {value:?} is not weak, medium or strong"
                    ));
                }
                ("consistency", "majority" | "quorum" | "all") => {}
                ("consistency", _) if value.parse::<u64>().is_ok_and(|count| count > 0) => {}
                ("consistency", _) => {
                    return wrong(format!(
                        "Format error in query parameters: consistency: {value:?} is not majority, quorum, all or a count"
                    ));
                }
                _ => {}
            }
        }
        let timeout = Duration::from_secs(seconds);
        Ok(Self { wait, until: Instant::now() + timeout, timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn query_strings() {
        let options = Options::read("wait=true&timeout=5&ordering=strong&other=1&consistency=2").unwrap();
        assert_eq!((options.wait, options.timeout), (Wait::Visible, Duration::from_secs(5)));
        assert_eq!(Options::read("").unwrap().wait, Wait::Durable);
        let encoded = Options::read("%77ait=tr%75e&timeout=%35").unwrap();
        assert_eq!((encoded.wait, encoded.timeout), (Wait::Visible, Duration::from_secs(5)));
        for (query, status) in
            [("wait=1", 400), ("timeout=0", 422), ("timeout=x", 400), ("ordering=all", 400), ("consistency=0", 400)]
        {
            assert_eq!(Options::read(query).unwrap_err().status.as_u16(), status, "{query}");
        }
    }
}
