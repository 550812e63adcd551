//! One error type for the whole system.
//!
//! The [`Kind`] answers the only question a caller has: what can be done about it? The message says
//! what was wrong and what is allowed. Each door maps a kind to its own codes in one small table.

use std::fmt;

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request cannot be read: not JSON, wrong type, unknown name. Fix the request.
    Malformed,
    /// The request is well formed, but a value is out of its range. Fix the value.
    Invalid,
    /// What is named does not exist.
    NotFound,
    /// What is to be made exists already.
    Exists,
    /// The request is larger than a limit.
    TooLarge,
    /// Try again later: memory or a queue is full for the moment.
    Busy,
    /// The budget is too small for what is asked; waiting cannot help.
    NoMemory,
    /// The disk is full.
    NoSpace,
    /// Stored bytes fail their checksum or contradict each other.
    Corrupt,
    /// The disk failed.
    Io,
    /// The store was closed: shutting down, or a failed fsync closed writes.
    Closed,
    /// In the API, but not built here.
    Unsupported,
    /// Our mistake.
    Bug,
}

impl Kind {
    /// Memory is what is missing, for now or for good.
    pub fn is_memory(self) -> bool {
        matches!(self, Self::Busy | Self::NoMemory)
    }
}

/// An error: a kind and a sentence.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    message: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same kind, with where it happened in front of the message.
    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{place}: {}", self.message) }
    }
}

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        impl Error {
            $(#[doc = concat!("An error of [`Kind::", stringify!($kind), "`].")]
            pub fn $name(message: impl Into<String>) -> Self {
                Self::new(Kind::$kind, message)
            })*
        }
    };
}

constructors! {
    malformed => Malformed, invalid => Invalid, not_found => NotFound, exists => Exists,
    too_large => TooLarge, busy => Busy, no_memory => NoMemory, no_space => NoSpace,
    corrupt => Corrupt, io => Io, closed => Closed, unsupported => Unsupported, bug => Bug,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        // ENOSPC and EDQUOT are the user's to solve; all else is a failing disk.
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Kind::NoSpace,
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::AlreadyExists => Kind::Exists,
            _ => Kind::Io,
        };
        Self::new(kind, error.to_string())
    }
}
