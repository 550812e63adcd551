//! Errors of the store as etcd's clients know them: a text from their table, and the code that belongs to it.

use crate::auth::errors as auth;
use ramekin_base::{Error, Kind};
use ramekin_versions::errors as text;
use tonic::{Code, Status};

pub(crate) const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";
pub(crate) const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
pub(crate) const CORRUPT: &str = "etcdserver: corrupt cluster";
pub(crate) const INVALID_SORT: &str = "etcdserver: invalid sort option";
/// It may have been done, or not.
pub(crate) const TIMED_OUT: &str = "etcdserver: request timed out";
pub(crate) const STOPPED: &str = "etcdserver: server stopped";

/// The code of a text.
fn code_of(message: &str) -> Option<Code> {
    Some(match message {
        text::KEY_NOT_PROVIDED
        | text::KEY_NOT_FOUND
        | text::VALUE_PROVIDED
        | text::LEASE_PROVIDED
        | text::TOO_MANY_OPS
        | text::DUPLICATE_KEY
        | text::TOO_LARGE
        | text::OLD_AUTH_REVISION
        | INVALID_SORT
        | auth::USER_EMPTY
        | auth::ROLE_EMPTY
        | auth::AUTH_FAILED
        | auth::PERMISSION_NOT_GIVEN
        | auth::INVALID_MANAGEMENT => Code::InvalidArgument,
        auth::ROOT_USER_NOT_FOUND
        | auth::ROOT_ROLE_NOT_GRANTED
        | auth::USER_EXISTS
        | auth::USER_NOT_FOUND
        | auth::ROLE_EXISTS
        | auth::ROLE_NOT_FOUND
        | auth::ROLE_NOT_GRANTED
        | auth::PERMISSION_NOT_GRANTED
        | auth::NOT_ENABLED => Code::FailedPrecondition,
        auth::PERMISSION_DENIED => Code::PermissionDenied,
        auth::INVALID_TOKEN => Code::Unauthenticated,
        CORRUPT => Code::DataLoss,
        NO_SPACE | TOO_MANY_REQUESTS => Code::ResourceExhausted,
        text::COMPACTED | text::FUTURE_REVISION | text::LEASE_TTL_TOO_LARGE => Code::OutOfRange,
        text::LEASE_NOT_FOUND => Code::NotFound,
        text::LEASE_EXISTS => Code::FailedPrecondition,
        _ => return None,
    })
}

/// A refusal by its text.
pub(crate) fn refused(message: &str) -> Status {
    Status::new(code_of(message).unwrap_or(Code::Unknown), message)
}

/// An error as a client of etcd hears it.
pub(crate) fn status(error: &Error) -> Status {
    if let Some(code) = code_of(error.message()) {
        return Status::new(code, error.message());
    }
    match error.kind() {
        Kind::Busy | Kind::NoMemory => {
            tracing::debug!("refused: {error}");
            Status::resource_exhausted(TOO_MANY_REQUESTS)
        }
        Kind::NoSpace => Status::resource_exhausted(NO_SPACE),
        Kind::TooLarge => Status::invalid_argument(text::TOO_LARGE),
        Kind::Closed => Status::unavailable(STOPPED),
        Kind::Cancelled => Status::cancelled("etcdserver: request canceled"),
        Kind::Corrupt => Status::data_loss(format!("etcdserver: corrupt cluster: {error}")),
        _ => Status::unknown(error.message()),
    }
}
