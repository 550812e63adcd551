//! One record of a tree: a key, what it stands for since, and how many live elements that adds or takes away.

/// Bytes of a key at most.
pub const KEY_MAX: usize = (64 << 10) - 1;
/// Values up to so many bytes stand beside their keys; larger ones lie between the blocks.
pub const INLINE_MAX: usize = 1 << 10;
/// Bytes of a value at most.
pub const VALUE_MAX: u64 = 1 << 30;

/// What a key stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// A value that lies between the blocks of the file that the record was read from.
    Big(Extent),
    /// The key is gone: a tombstone.
    Deleted,
    /// All keys from this one on and below the one given are gone: a range tombstone. Those keys are never used again.
    DeletedTo(&'a [u8]),
}

/// Where the bytes of a big value lie in the body of their file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    pub len: u64,
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: &'a [u8],
    pub value: Value<'a>,
    /// The change of live elements that this record makes; 0 in a tree without weights.
    pub weight: i64,
    /// No older record of this key is anywhere: a tombstone over it may go before it comes to the bottom.
    pub first: bool,
}

impl Value<'_> {
    /// Whether the key is there.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Inline(_) | Self::Big(_))
    }
}
