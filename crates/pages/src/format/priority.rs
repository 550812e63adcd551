//! How much a page is worth in memory: the order in which sections yield.

/// Kinds of sections in ascending order of worth. A page of a higher one survives more sweeps of
/// the clock, and whole sections go back to pages from the lowest up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Priority {
    Payload,
    Vectors,
    Fields,
    WideCodes,
    Ids,
    NarrowCodes,
    Centroids,
}

impl Priority {
    pub const ALL: [Priority; 7] =
        [Self::Payload, Self::Vectors, Self::Fields, Self::WideCodes, Self::Ids, Self::NarrowCodes, Self::Centroids];

    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }

    /// Sweeps that a page survives after it was read once.
    pub(crate) fn usage_first(self) -> u16 {
        self as u16
    }

    /// Sweeps that a page survives after it was asked for again: more than any page of this or the
    /// next two kinds that was read but once, so that a scan does not push out what is in use.
    pub(crate) fn usage_again(self) -> u16 {
        self as u16 + 3
    }
}
