//! The bytes of a log file, format version 1. Pure functions over slices: fuzz targets call them.
//!
//! ```text
//!   file     header page, 4096 bytes   records, each at a multiple of 8
//!   header   "RAMEKLOG"  version u32  crc u32  start u64  zeros …       32 bytes that never change shape
//!   record   "Rk" 0x01   kind u8   len u32   body crc u32   header crc u32   durable u64   body   (0..7 zeros)
//!            └────────────────────────── 24 bytes ─────────────────────────────────────┘
//! ```
//!
//! All numbers are little-endian, all checksums CRC32C. The header's checksum also covers the record's
//! *position*, so that bytes which stood elsewhere, or in an older file, never pass for a record.
//!
//! `durable` says up to which position the log had been synced when the record was written. It is
//! how a start tells a torn write from damage: a damaged record below some later record's `durable`
//! had been acknowledged.
//!
//! A record's header never straddles two sectors of 512 bytes ([`place`] skips what is left of one), so it
//! is either there or lost as a whole. What a commit leaves of its last block is filled by a pad.

use crate::Position;
use ramekin_base::{Error, Result, limits};

/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// Bytes in front of a file's first record: a block of any device.
pub const FILE_HEADER: u64 = 4096;
/// Bytes in front of a record's body.
pub const RECORD_HEADER: usize = 24;
/// What a disk writes whole or not at all.
pub const SECTOR: u64 = 512;

const FILE_MAGIC: &[u8; 8] = b"RAMEKLOG";
const FILE_HEADER_USED: usize = 32;
const RECORD_MAGIC: [u8; 3] = [b'R', b'k', 1];
/// Pads never pass a block, and a block is at most this.
const PAD_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What [`crate::Log::append`] was given.
    Record,
    /// Fills the last block of a commit; its body means nothing.
    Pad,
}

/// What stands in front of a record's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// Bytes of the body.
    pub len: usize,
    pub body_crc: u32,
    /// Everything before this position was durable when the record was written.
    pub durable: Position,
}

impl Header {
    pub fn record(body: &[u8], durable: Position) -> Self {
        Self { kind: Kind::Record, len: body.len(), body_crc: crc32c::crc32c(body), durable }
    }

    pub fn pad(len: usize, durable: Position) -> Self {
        Self { kind: Kind::Pad, len, body_crc: 0, durable }
    }

    /// The bytes of this header at `position`.
    pub fn encode(&self, position: Position) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        bytes[..3].copy_from_slice(&RECORD_MAGIC);
        bytes[3] = match self.kind {
            Kind::Record => 1,
            Kind::Pad => 2,
        };
        bytes[4..8].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.durable.to_le_bytes());
        let crc = header_crc(&bytes, position);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header that stands at the start of `bytes`, if one does that was written for `position`.
    pub fn decode(bytes: &[u8], position: Position) -> Option<Self> {
        let bytes: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
        if bytes[..3] != RECORD_MAGIC || header_crc(bytes, position) != u32_at(bytes, 12) {
            return None;
        }
        let (kind, len_max) = match bytes[3] {
            1 => (Kind::Record, limits::LOG_RECORD_MAX),
            2 => (Kind::Pad, PAD_MAX),
            _ => return None,
        };
        let len = u32_at(bytes, 4) as usize;
        let durable = u64_at(bytes, 16);
        (len <= len_max && durable <= position).then_some(Self { kind, len, body_crc: u32_at(bytes, 8), durable })
    }

    /// Whether `body` is what this header was written for.
    pub fn holds(&self, body: &[u8]) -> bool {
        body.len() == self.len && (self.kind == Kind::Pad || crc32c::crc32c(body) == self.body_crc)
    }

    /// Where the next record's header stands, in the file in which this one's stands at `offset`.
    pub fn next(&self, offset: u64) -> u64 {
        place((offset + (RECORD_HEADER + self.len) as u64).next_multiple_of(8))
    }
}

/// Where a record's header goes if the bytes before `offset` are taken.
pub fn place(offset: u64) -> u64 {
    let left = SECTOR - offset % SECTOR;
    if left < RECORD_HEADER as u64 { offset + left } else { offset }
}

/// The first bytes of a file whose first byte has position `start`. The rest of the page is zeros.
pub fn encode_file_header(start: Position) -> [u8; FILE_HEADER_USED] {
    let mut bytes = [0; FILE_HEADER_USED];
    bytes[..8].copy_from_slice(FILE_MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&start.to_le_bytes());
    let crc = file_header_crc(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The position of a file's first byte. `Unsupported` if a newer version wrote it, else `Corrupt`.
pub fn decode_file_header(bytes: &[u8]) -> Result<Position> {
    let Some(bytes) = bytes.first_chunk::<FILE_HEADER_USED>() else {
        return Err(Error::corrupt("the file ends inside its header"));
    };
    if bytes[..8] != *FILE_MAGIC || file_header_crc(bytes) != u32_at(bytes, 12) {
        return Err(Error::corrupt("the file's header is damaged"));
    }
    match u32_at(bytes, 8) {
        VERSION => Ok(u64_at(bytes, 16)),
        newer => Err(Error::unsupported(format!(
            "the log has format version {newer}, this program reads versions up to {VERSION}; start a newer ramekin"
        ))),
    }
}

fn header_crc(bytes: &[u8; RECORD_HEADER], position: Position) -> u32 {
    let crc = crc32c::crc32c(&position.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &bytes[..12]);
    crc32c::crc32c_append(crc, &bytes[16..])
}

fn file_header_crc(bytes: &[u8; FILE_HEADER_USED]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

/// The four bytes at `at`, which the callers' array types prove to be there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

const _: () = assert!(limits::LOG_RECORD_MAX <= u32::MAX as usize);
const _: () = assert!(FILE_HEADER.is_multiple_of(SECTOR));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_never_straddle_sectors() {
        for offset in (0..2048).step_by(8) {
            let placed = place(offset);
            assert!(placed >= offset && placed % SECTOR + RECORD_HEADER as u64 <= SECTOR, "{offset}");
            assert_eq!(place(placed), placed);
        }
    }

    proptest! {
        #[test]
        fn headers_come_back_only_at_their_position(body: Vec<u8>, position: u64, durable: u64, other: u64) {
            let header = Header::record(&body, durable.min(position));
            let bytes = header.encode(position);
            prop_assert_eq!(Header::decode(&bytes, position), Some(header));
            prop_assert!(header.holds(&body));
            prop_assert!(other == position || Header::decode(&bytes, other).is_none());
        }

        #[test]
        fn any_bytes_are_safe_to_decode(bytes: Vec<u8>, position: u64) {
            let _ = Header::decode(&bytes, position);
            let _ = decode_file_header(&bytes);
        }

        /// Every flipped bit is found, in the header and in the body.
        #[test]
        fn no_flipped_bit_passes(mut body in proptest::collection::vec(any::<u8>(), 1..200), position: u64, bit: usize) {
            let header = Header::record(&body, position / 2);
            let mut bytes = header.encode(position);
            let at = bit % (RECORD_HEADER * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(Header::decode(&bytes, position), None);
            let at = bit % (body.len() * 8);
            body[at / 8] ^= 1 << (at % 8);
            prop_assert!(!header.holds(&body));
        }

        #[test]
        fn no_flipped_bit_passes_in_a_file_header(start: u64, bit in 0..FILE_HEADER_USED * 8) {
            let mut bytes = encode_file_header(start);
            prop_assert_eq!(decode_file_header(&bytes).ok(), Some(start));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode_file_header(&bytes).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
        }
    }
}
