//! What the process ends with: one table from what went wrong to its exit code.

use ramekin_base::{Error, Kind};
use std::fmt;

macro_rules! exits {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)*) => {
        /// How the process ends.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Exit { $($(#[doc = $doc])+ $name = $code,)* }

        /// Code and meaning of each.
        pub const TABLE: &[(u8, &str)] = &[$(($code, concat!($($doc),+))),*];
    };
}

exits! {
    /// All went well.
    Done = 0,
    /// An unexpected error, most likely a bug: please report it with the log.
    Other = 1,
    /// The command line, the environment, the configuration file or a certificate is wrong.
    Usage = 2,
    /// The address cannot be listened on: the port is in use, or not ours to take.
    Address = 3,
    /// Another process has the data folder.
    Locked = 4,
    /// The data folder cannot be used: not writable, not a folder, or the disk fails.
    Folder = 5,
    /// The data was written by a newer version.
    Newer = 6,
    /// The data is damaged; the message names file and offset.
    Corrupt = 7,
    /// The disk is full.
    Full = 8,
    /// The data folder went away while the server ran.
    Lost = 9,
    /// The budget is too small for the server and its data, or larger than the kernel allows.
    Budget = 10,
    /// A server that was asked did not answer, or answered with an error.
    Unanswered = 11,
}

/// An error with the code to end on.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub error: Error,
}

impl Failure {
    pub fn new(exit: Exit, error: Error) -> Self {
        Self { exit, error }
    }

    pub fn usage(error: Error) -> Self {
        Self::new(Exit::Usage, error)
    }

    /// Of an error while a data folder was opened, read or closed.
    pub fn of_data(error: Error) -> Self {
        let exit = match error.kind() {
            Kind::Busy => Exit::Locked,
            Kind::Unsupported => Exit::Newer,
            Kind::Corrupt => Exit::Corrupt,
            Kind::NoSpace => Exit::Full,
            Kind::NoMemory | Kind::Invalid => Exit::Budget,
            Kind::Io | Kind::NotFound | Kind::Exists => Exit::Folder,
            Kind::Malformed | Kind::TooLarge | Kind::Slow => Exit::Other,
            Kind::Closed | Kind::Cancelled | Kind::Unfinished | Kind::Bug => Exit::Other,
        };
        Self { exit, error }
    }
}

/// The table as documentation.
#[cfg(test)]
pub struct Markdown;

#[cfg(test)]
impl fmt::Display for Markdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| code | |\n|---|---|")?;
        TABLE.iter().try_for_each(|(code, meaning)| writeln!(f, "| {code} |{meaning} |"))
    }
}

/// The table as plain text.
pub struct Plain;

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TABLE.iter().try_for_each(|(code, meaning)| writeln!(f, "  {code:>2} {meaning}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_operators_names_each_code() {
        let page = include_str!("../../../docs/OPERATIONS.md");
        let (_, codes) = page.split_once("## Exit codes").unwrap();
        for (code, meaning) in TABLE {
            assert!(codes.contains(&format!("\n| {code} | ")), "{code}:{meaning}");
        }
    }
}
