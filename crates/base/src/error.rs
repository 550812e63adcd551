//! One error type for the whole system.
//!
//! The [`Kind`] answers the only question a caller has: what can be done about it? The message says
//! what was wrong and what is allowed. Each door maps a kind to its own codes in one small table.

use crate::limits::MESSAGE_MAX;
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
    /// The client sends too slowly.
    Slow,
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
    /// Nobody waits for the result any more; nothing was done.
    Cancelled,
    /// A part of it was done, or it may still be: send it again.
    Unfinished,
    /// Our mistake.
    Bug,
}

impl Kind {
    /// Memory is what is missing, for now or for good.
    pub fn is_memory(self) -> bool {
        matches!(self, Self::Busy | Self::NoMemory)
    }

    /// Says that nothing of a write was done, and never will be.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Busy | Self::NoMemory | Self::NoSpace | Self::Cancelled)
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
    /// An error whose message is cut at [`MESSAGE_MAX`](crate::limits::MESSAGE_MAX): it may repeat what a client sent.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: cut(message.into()) }
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
        Self::new(self.kind, format!("{place}: {}", self.message))
    }

    /// The error of what had `begun`, with that in front of the message: it is no refusal any more.
    #[must_use]
    pub fn after(self, begun: impl fmt::Display) -> Self {
        let kind = if self.kind.is_refusal() { Kind::Unfinished } else { self.kind };
        Self::new(kind, format!("{begun}: {}", self.message))
    }
}

/// A message that is cut at [`MESSAGE_MAX`](crate::limits::MESSAGE_MAX).
pub fn cut(mut message: String) -> String {
    let short = excerpt(&message, MESSAGE_MAX).len();
    if short < message.len() {
        message.truncate(excerpt(&message, MESSAGE_MAX - ELLIPSIS.len()).len());
        message.push_str(ELLIPSIS);
        message.shrink_to_fit();
    }
    message
}

/// Stands where a message was cut.
const ELLIPSIS: &str = "...";

/// A message of at most [`MESSAGE_MAX`](crate::limits::MESSAGE_MAX) bytes: more is not kept even while it is written.
pub fn message(text: impl fmt::Display) -> String {
    use fmt::Write;
    struct Bounded(String);
    impl Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // One byte too many shows that it was cut.
            let room = (MESSAGE_MAX + 4).saturating_sub(self.0.len());
            self.0.push_str(excerpt(text, room));
            if room < text.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut bounded = Bounded(String::new());
    // What is left out is what is too much.
    _ = write!(bounded, "{text}");
    cut(bounded.0)
}

/// The beginning of a text: at most `most` bytes, whole characters. What repeats a client's words repeats so many.
pub fn excerpt(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
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
    too_large => TooLarge, slow => Slow, busy => Busy, no_memory => NoMemory, no_space => NoSpace,
    corrupt => Corrupt, io => Io, closed => Closed, unsupported => Unsupported, cancelled => Cancelled,
    unfinished => Unfinished, bug => Bug,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_whatever_it_repeats() {
        let long = "ö".repeat(1 << 20);
        for error in [Error::malformed(long.clone()), Error::malformed("short").at(&long)] {
            assert!(error.message().len() <= MESSAGE_MAX && error.message().ends_with("ö..."));
        }
        assert!(message(&long).ends_with("ö...") && message(&long).len() <= MESSAGE_MAX);
        assert_eq!(message(format_args!("{}{}", 1, 2)), "12");
        assert_eq!(Error::busy("x".repeat(MESSAGE_MAX)).message().len(), MESSAGE_MAX);
        assert_eq!((excerpt("öö", 3), excerpt("öö", 9)), ("ö", "öö"));
    }
}
