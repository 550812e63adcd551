//! The bytes of a log file, format versions 1 and 2. Pure functions over slices: fuzz targets call them.
//!
//! ```text
//!   file     header page, 4096 bytes   records, each at a multiple of 8   ...   end mark or zeros
//!   header   "RAMEKLOG"  version u32  crc u32  start u64  blocks u32  number u32  zeros …
//!   record   "Rk" 0x01   kind u8   len u32   body crc u32   header crc u32   since u32  request u32   body   (0..7 zeros)
//!            └────────────────────────────── 24 bytes ───────────────────────────────────────────┘
//! ```
//!
//! All numbers are little-endian, all checksums CRC32C. The header's checksum also covers the record's
//! *place*: the number of its file and its position. So bytes which stood elsewhere, or in an older file, never
//! pass for a record.
//!
//! `since` is how far before the record the log had been synced when it was written: where its group commit began. It is
//! how a start tells a torn write from damage: a damaged record below the start of some later record's group had
//! been acknowledged.
//!
//! All records of one request carry its number and stand in one group commit. All but the last are *parts*; the last is
//! the commit mark: without it a start passes over the parts.
//!
//! A file is made with `blocks` blocks of 4096 bytes, and only an *end* mark ends it earlier. The mark says that the log goes on
//! in the file whose name is the position behind the mark's block.
//!
//! A record's header never straddles two sectors of 512 bytes ([`place`] skips what is left of one), so it
//! is either there or lost as a whole. What a commit leaves of its last block is filled by a pad.
//!
//! Version 1 had no blocks, no number (0 stands for it), no parts and no end marks, and in the place of `since` and `request` the
//! position itself.

use crate::Lsn;
use ramekin_base::{Error, Result, limits};

/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 2;
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
    /// A record that is a request of its own, or the last one of its request: the commit mark.
    Record,
    /// Fills the last block of a commit; its body means nothing.
    Pad,
    /// A record whose request goes on.
    Part,
    /// The log goes on in the next file; its body means nothing.
    End,
}

/// Where a header stands: the same bytes mean nothing elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The file's number; 0: a file of version 1.
    pub file: u32,
    pub lsn: Lsn,
}

/// What stands in front of a record's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// Bytes of the body.
    pub len: usize,
    pub body_crc: u32,
    /// Everything before this position was durable when the record was written.
    pub durable: Lsn,
    /// The request that it is of.
    pub request: u32,
}

impl Header {
    /// The last record of its request, or a part of it.
    pub fn record(body: &[u8], durable: Lsn, request: u32, is_last: bool) -> Self {
        let kind = if is_last { Kind::Record } else { Kind::Part };
        Self { kind, len: body.len(), body_crc: crc32c::crc32c(body), durable, request }
    }

    pub fn pad(len: usize, durable: Lsn) -> Self {
        Self { kind: Kind::Pad, len, body_crc: 0, durable, request: 0 }
    }

    pub fn end(len: usize, durable: Lsn) -> Self {
        Self { kind: Kind::End, ..Self::pad(len, durable) }
    }

    /// Whether a caller's bytes follow.
    pub fn has_body(&self) -> bool {
        matches!(self.kind, Kind::Record | Kind::Part)
    }

    /// The bytes of this header at `place`.
    pub fn encode(&self, place: Place) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        bytes[..3].copy_from_slice(&RECORD_MAGIC);
        bytes[3] = match self.kind {
            Kind::Record => 1,
            Kind::Pad => 2,
            Kind::Part => 3,
            Kind::End => 4,
        };
        bytes[4..8].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_crc.to_le_bytes());
        if place.file == 0 {
            bytes[16..24].copy_from_slice(&self.durable.to_le_bytes());
        } else {
            // A group is far shorter than this; one that were not would only prove less.
            let since = u32::try_from(place.lsn.saturating_sub(self.durable)).unwrap_or(u32::MAX);
            bytes[16..20].copy_from_slice(&since.to_le_bytes());
            bytes[20..24].copy_from_slice(&self.request.to_le_bytes());
        }
        let crc = header_crc(&bytes, place);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header that stands at the start of `bytes`, if one does that was written for `place`.
    pub fn decode(bytes: &[u8], place: Place) -> Option<Self> {
        let bytes: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
        if bytes[..3] != RECORD_MAGIC || header_crc(bytes, place) != u32_at(bytes, 12) {
            return None;
        }
        let (kind, len_max) = match bytes[3] {
            1 => (Kind::Record, limits::LOG_RECORD_MAX),
            2 => (Kind::Pad, PAD_MAX),
            3 if place.file > 0 => (Kind::Part, limits::LOG_RECORD_MAX),
            4 => (Kind::End, PAD_MAX),
            _ => return None,
        };
        let len = u32_at(bytes, 4) as usize;
        let (durable, request) = match place.file {
            0 => (Some(u64_at(bytes, 16)).filter(|durable| *durable <= place.lsn)?, 0),
            _ => (place.lsn.checked_sub(u64::from(u32_at(bytes, 16)))?, u32_at(bytes, 20)),
        };
        (len <= len_max).then_some(Self { kind, len, body_crc: u32_at(bytes, 8), durable, request })
    }

    /// Whether `body` is what this header was written for.
    pub fn holds(&self, body: &[u8]) -> bool {
        body.len() == self.len && (!self.has_body() || crc32c::crc32c(body) == self.body_crc)
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

/// What a file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// The position of its first byte.
    pub start: Lsn,
    /// Files are numbered as they are made, from 1; 0: one of version 1.
    pub number: u32,
    /// Bytes that it was made with, whole blocks of 4096; 0: it does not say.
    pub bytes: u64,
}

impl FileHeader {
    /// The first bytes of the file. The rest of the page is zeros.
    pub fn encode(&self) -> [u8; FILE_HEADER_USED] {
        let mut bytes = [0; FILE_HEADER_USED];
        bytes[..8].copy_from_slice(FILE_MAGIC);
        let version = if self.number == 0 { 1 } else { VERSION };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..28].copy_from_slice(&((self.bytes / FILE_HEADER) as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&self.number.to_le_bytes());
        let crc = file_header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the first bytes of a file. `Unsupported` if a newer version wrote it, else `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(bytes) = bytes.first_chunk::<FILE_HEADER_USED>() else {
            return Err(Error::corrupt("the file ends inside its header"));
        };
        if bytes[..8] != *FILE_MAGIC || file_header_crc(bytes) != u32_at(bytes, 12) {
            return Err(Error::corrupt("the file's header is damaged"));
        }
        let (start, blocks, number) = (u64_at(bytes, 16), u32_at(bytes, 24), u32_at(bytes, 28));
        match (u32_at(bytes, 8), blocks, number) {
            (1, 0, 0) => Ok(Self { start, number, bytes: 0 }),
            (VERSION, 1.., 1..) => Ok(Self { start, number, bytes: u64::from(blocks) * FILE_HEADER }),
            (0..=VERSION, ..) => Err(Error::corrupt("the file's header contradicts itself")),
            (newer, ..) => Err(Error::unsupported(format!(
                "the log has format version {newer}, this program reads versions up to {VERSION}; start a newer ramekin"
            ))),
        }
    }
}

fn header_crc(bytes: &[u8; RECORD_HEADER], place: Place) -> u32 {
    let crc = if place.file == 0 { 0 } else { crc32c::crc32c(&place.file.to_le_bytes()) };
    let crc = crc32c::crc32c_append(crc, &place.lsn.to_le_bytes());
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

    fn file_header() -> impl Strategy<Value = FileHeader> {
        let new = |(start, number, blocks): (u64, u32, u32)| FileHeader {
            start,
            number: number.max(1),
            bytes: u64::from(blocks.max(1)) * FILE_HEADER,
        };
        prop_oneof![
            any::<(u64, u32, u32)>().prop_map(new),
            any::<u64>().prop_map(|start| FileHeader { start, number: 0, bytes: 0 })
        ]
    }

    proptest! {
        #[test]
        fn headers_come_back_only_at_their_place(
            body: Vec<u8>,
            lsn: u64,
            since: u32,
            request: u32,
            is_last: bool,
            file in 0u32..4,
            other in (0u32..4, any::<u64>()),
        ) {
            let durable = lsn.saturating_sub(u64::from(since));
            let header = match file {
                0 => Header::record(&body, durable, 0, true),
                _ => Header::record(&body, durable, request, is_last),
            };
            let place = Place { file, lsn };
            let bytes = header.encode(place);
            prop_assert_eq!(Header::decode(&bytes, place), Some(header));
            prop_assert!(header.holds(&body));
            for other in [Place { file: other.0, lsn }, Place { file, lsn: other.1 }] {
                prop_assert!(other == place || Header::decode(&bytes, other).is_none());
            }
        }

        #[test]
        fn any_bytes_are_safe_to_decode(bytes: Vec<u8>, lsn: u64, file in 0u32..3) {
            let _ = Header::decode(&bytes, Place { file, lsn });
            let _ = FileHeader::decode(&bytes);
        }

        /// Every flipped bit is found, in the header and in the body.
        #[test]
        fn no_flipped_bit_passes(
            mut body in proptest::collection::vec(any::<u8>(), 1..200),
            lsn: u64,
            file in 0u32..3,
            bit: usize,
        ) {
            let place = Place { file, lsn };
            let header = Header::record(&body, lsn - lsn % 5000, 7, file == 0);
            let mut bytes = header.encode(place);
            let at = bit % (RECORD_HEADER * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(Header::decode(&bytes, place), None);
            let at = bit % (body.len() * 8);
            body[at / 8] ^= 1 << (at % 8);
            prop_assert!(!header.holds(&body));
        }

        #[test]
        fn no_flipped_bit_passes_in_a_file_header(header in file_header(), bit in 0..FILE_HEADER_USED * 8) {
            let mut bytes = header.encode();
            prop_assert_eq!(FileHeader::decode(&bytes).ok(), Some(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(FileHeader::decode(&bytes).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
        }
    }
}
