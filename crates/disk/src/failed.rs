//! Why a change of several steps failed, and what that means for whoever made it.

use ramekin_base::Error;

/// What the disk holds after a change of several steps that failed.
#[derive(Debug)]
pub enum Failed {
    /// What it held before: try again when the cause is gone.
    Clean(Error),
    /// Nobody knows: that, or what was to be.
    Unknown(Error),
}

impl Failed {
    pub fn into_error(self) -> Error {
        match self {
            Self::Clean(error) | Self::Unknown(error) => error,
        }
    }
}
