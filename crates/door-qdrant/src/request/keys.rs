//! API keys: who may do what.
//!
//! ```text
//!   api-key: SECRET   or   Authorization: Bearer SECRET
//!      full key ─► all      read-only key ─► reads, 403 on the rest      none, wrong ─► 401
//!      no key is set ─► all is open;   /, /healthz, /livez, /readyz are always open
//! ```

use crate::errors::{HttpError, Outcome};
use axum::http::{HeaderMap, StatusCode, header};

/// The keys that the server was started with.
#[derive(Clone, Default)]
pub struct Keys {
    pub full: Option<String>,
    pub read_only: Option<String>,
}

/// What a route asks of the one who calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Open,
    Read,
    Write,
}

impl Keys {
    pub fn check(&self, access: Access, headers: &HeaderMap) -> Outcome<()> {
        if access == Access::Open || (self.full.is_none() && self.read_only.is_none()) {
            return Ok(());
        }
        let unauthorised = |message| HttpError::new(StatusCode::UNAUTHORIZED, message);
        let given =
            given(headers).ok_or_else(|| unauthorised("Must provide an API key or an Authorization bearer token"))?;
        let is = |key: &Option<String>| key.as_ref().is_some_and(|key| same(key.as_bytes(), given));
        // Both are compared always, so that time tells nothing about either.
        let (full, read_only) = (is(&self.full), is(&self.read_only));
        match access {
            _ if full => Ok(()),
            Access::Read if read_only => Ok(()),
            // Without a full key, the read-only key guards nothing but writes that nobody could do.
            _ if read_only => {
                Err(HttpError::new(StatusCode::FORBIDDEN, "Forbidden: the API key is read-only, this request writes"))
            }
            _ => Err(unauthorised("Invalid API key")),
        }
    }
}

/// The secret in the headers of a request.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get("api-key") {
        return Some(key.as_bytes());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Compares two secrets in a time that depends on their lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0u8, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_do_what() {
        let keys = Keys { full: Some("full".into()), read_only: Some("read".into()) };
        let ask = |access, name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            keys.check(access, &headers).map_err(|refusal| refusal.status.as_u16())
        };
        assert_eq!(ask(Access::Write, "api-key", "full"), Ok(()));
        assert_eq!(ask(Access::Write, "authorization", "Bearer full"), Ok(()));
        assert_eq!(ask(Access::Read, "authorization", "bearer read"), Ok(()));
        assert_eq!(ask(Access::Write, "api-key", "read"), Err(403));
        assert_eq!(ask(Access::Read, "api-key", "ful"), Err(401));
        assert_eq!(ask(Access::Read, "authorization", "Basic full"), Err(401));
        assert_eq!(ask(Access::Open, "x", "y"), Ok(()));
        assert!(Keys::default().check(Access::Write, &HeaderMap::new()).is_ok());
    }
}
