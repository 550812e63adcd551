//! The form of a page file, versions 1 and 2, and its decoders. Pure functions over bytes: they never
//! panic, and every length they return is checked against the length of the file.
//!
//! ```text
//!   page 0 ┌──────────────────────────────┐
//!          │ section │ section │ ...      │  each begins on a page; the rest of its last page is zeros
//!          ├──────────────────────────────┤
//!          │ checksums: CRC32C of each    │  4 bytes a page, padded with zeros to whole pages
//!          │ page above                   │
//!          ├──────────────────────────────┤
//!          │ directory: 16 bytes a        │  padded likewise
//!          │ section, then the meta bytes │
//!          ├──────────────────────────────┤
//!          │ footer                       │  one page; checks the two tables above and itself
//!          └──────────────────────────────┘
//! ```
//!
//! The checksum of a page also covers its *place*: the [`identity`] of its file, which follows from the file's name, and its
//! number. So a page of another place or of another file is refused, and so is a whole file under another's name. Version 1
//! covered the bytes alone; 0 stands for its identity.
//!
//! Every byte of the file lies under exactly one checksum. For all versions to come, the footer is
//! the last page, begins with the magic bytes and the version, and ends with its own CRC32C.

pub(crate) mod priority;
pub(crate) mod writer;

use crate::Priority;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use std::path::Path;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 2;
/// Sections of one file.
pub const SECTIONS_MAX: usize = 4096;
/// Bytes that a file's owner may store beside the sections; they stay in memory while it is open.
pub const META_MAX: usize = 4 << 20;
/// Pages of sections in one file: 8 TiB.
pub const DATA_PAGES_MAX: u64 = 1 << 31;

const MAGIC: [u8; 8] = *b"ramepage";
const CRC_AT: usize = PAGE - 4;

/// What the last page says about all the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    pub data_pages: u32,
    pub sections: u32,
    pub meta_bytes: u32,
    pub checksums_crc: u32,
    pub directory_crc: u32,
    /// Which file it is; 0: one of version 1, which does not say.
    pub identity: u32,
}

/// What a file of this name is called in its own pages; never 0.
pub fn identity(path: &Path) -> u32 {
    let name = path.file_name().map_or(&[][..], |name| name.as_encoded_bytes());
    crc32c::crc32c(name).max(1)
}

/// The checksum of page `number` of the file with this identity.
pub fn page_crc(identity: u32, number: u32, page: &[u8]) -> u32 {
    if identity == 0 {
        return crc32c::crc32c(page);
    }
    let mut place = [0; 8];
    place[..4].copy_from_slice(&identity.to_le_bytes());
    place[4..].copy_from_slice(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), page)
}

/// One section as the directory names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub tag: u32,
    pub priority: Priority,
    pub bytes: u64,
    pub first_page: u32,
}

impl Entry {
    pub fn pages(&self) -> u32 {
        // The decoder and the writer both hold the sum of all pages below `DATA_PAGES_MAX`.
        self.bytes.div_ceil(PAGE as u64) as u32
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFooter {
    magic: [u8; 8],
    version: U32,
    page_bytes: U32,
    data_pages: U64,
    sections: U32,
    meta_bytes: U32,
    checksums_crc: U32,
    directory_crc: U32,
    identity: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    tag: U32,
    priority: U32,
    bytes: U64,
}

const ENTRY_BYTES: usize = size_of::<RawEntry>();
const _: () = assert!(size_of::<RawFooter>() <= CRC_AT);
const _: () = assert!(PAGE.is_multiple_of(4) && DATA_PAGES_MAX <= u32::MAX as u64);

impl Footer {
    pub fn checksum_pages(&self) -> u64 {
        (u64::from(self.data_pages) * 4).div_ceil(PAGE as u64)
    }

    /// Bytes of the directory, padding not counted.
    pub fn directory_bytes(&self) -> u64 {
        u64::from(self.sections) * ENTRY_BYTES as u64 + u64::from(self.meta_bytes)
    }

    pub fn directory_pages(&self) -> u64 {
        self.directory_bytes().div_ceil(PAGE as u64)
    }

    /// Pages of the whole file.
    pub fn file_pages(&self) -> u64 {
        u64::from(self.data_pages) + self.checksum_pages() + self.directory_pages() + 1
    }
}

/// The last page of a file.
pub fn encode_footer(footer: &Footer) -> [u8; PAGE] {
    let raw = RawFooter {
        magic: MAGIC,
        version: if footer.identity == 0 { 1 } else { VERSION }.into(),
        page_bytes: (PAGE as u32).into(),
        data_pages: u64::from(footer.data_pages).into(),
        sections: footer.sections.into(),
        meta_bytes: footer.meta_bytes.into(),
        checksums_crc: footer.checksums_crc.into(),
        directory_crc: footer.directory_crc.into(),
        identity: footer.identity.into(),
    };
    let mut page = [0; PAGE];
    page[..size_of::<RawFooter>()].copy_from_slice(raw.as_bytes());
    let crc = crc32c::crc32c(&page[..CRC_AT]);
    page[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    page
}

/// Reads the last page of a file of `file_bytes`.
pub fn decode_footer(page: &[u8], file_bytes: u64) -> Result<Footer> {
    let not_ours = || Error::corrupt("not a page file, or its end was cut off; restore it from a copy");
    let (raw, _) = RawFooter::ref_from_prefix(page).map_err(|_| not_ours())?;
    if page.len() != PAGE || raw.magic != MAGIC {
        return Err(not_ours());
    }
    let stored = U32::ref_from_bytes(&page[CRC_AT..]).map_err(|_| not_ours())?;
    if crc32c::crc32c(&page[..CRC_AT]) != stored.get() {
        return Err(Error::corrupt("the footer fails its checksum; restore the file from a copy"));
    }
    let version = raw.version.get();
    if version > VERSION {
        return Err(Error::unsupported(format!(
            "has format version {version}, and this program reads up to {VERSION}; open it with the newer program that wrote it"
        )));
    }
    let footer = Footer {
        data_pages: u32::try_from(raw.data_pages.get()).unwrap_or(u32::MAX),
        sections: raw.sections.get(),
        meta_bytes: raw.meta_bytes.get(),
        checksums_crc: raw.checksums_crc.get(),
        directory_crc: raw.directory_crc.get(),
        identity: raw.identity.get(),
    };
    let sane = version == if footer.identity == 0 { 1 } else { VERSION }
        && raw.page_bytes.get() as usize == PAGE
        && u64::from(footer.data_pages) <= DATA_PAGES_MAX
        && footer.sections as usize <= SECTIONS_MAX
        && footer.meta_bytes as usize <= META_MAX;
    if !sane {
        return Err(Error::corrupt("the footer contradicts itself; restore the file from a copy"));
    }
    if footer.file_pages() * PAGE as u64 != file_bytes {
        return Err(Error::corrupt(format!(
            "is {file_bytes} bytes long, but its footer speaks of {}; restore the file from a copy",
            footer.file_pages() * PAGE as u64
        )));
    }
    Ok(footer)
}

/// The directory's bytes, padding not included.
pub fn encode_directory(entries: &[Entry], meta: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES + meta.len());
    for entry in entries {
        let raw = RawEntry {
            tag: entry.tag.into(),
            priority: u32::from(entry.priority as u8).into(),
            bytes: entry.bytes.into(),
        };
        bytes.extend_from_slice(raw.as_bytes());
    }
    bytes.extend_from_slice(meta);
    bytes
}

/// Splits a directory, padding included, into its sections and the meta bytes.
pub fn decode_directory<'a>(footer: &Footer, bytes: &'a [u8]) -> Result<(Vec<Entry>, &'a [u8])> {
    let wrong = || Error::corrupt("the directory contradicts the footer; restore the file from a copy");
    if crc32c::crc32c(bytes) != footer.directory_crc {
        return Err(Error::corrupt("the directory fails its checksum; restore the file from a copy"));
    }
    let sections = footer.sections as usize;
    if sections > SECTIONS_MAX || bytes.len() as u64 != footer.directory_pages() * PAGE as u64 {
        return Err(wrong());
    }
    let (table, rest) = bytes.split_at_checked(sections * ENTRY_BYTES).ok_or_else(wrong)?;
    let meta = rest.get(..footer.meta_bytes as usize).ok_or_else(wrong)?;
    let mut entries: Vec<Entry> = Vec::with_capacity(sections);
    let mut next_page = 0u64;
    for raw in table.chunks_exact(ENTRY_BYTES) {
        let raw = RawEntry::ref_from_bytes(raw).map_err(|_| wrong())?;
        let priority = u8::try_from(raw.priority.get()).ok().and_then(Priority::from_u8).ok_or_else(wrong)?;
        let (tag, bytes) = (raw.tag.get(), raw.bytes.get());
        let first_page = u32::try_from(next_page).map_err(|_| wrong())?;
        next_page += bytes.div_ceil(PAGE as u64);
        if next_page > u64::from(footer.data_pages) {
            return Err(wrong());
        }
        entries.push(Entry { tag, priority, bytes, first_page });
    }
    let mut tags: Vec<u32> = entries.iter().map(|entry| entry.tag).collect();
    tags.sort_unstable();
    let twice = tags.windows(2).any(|pair| pair[0] == pair[1]);
    if twice || next_page != u64::from(footer.data_pages) { Err(wrong()) } else { Ok((entries, meta)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ramekin_base::Kind;

    fn sample() -> (Footer, Vec<u8>) {
        let entries = [
            Entry { tag: 7, priority: Priority::Ids, bytes: 5000, first_page: 0 },
            Entry { tag: 1, priority: Priority::Payload, bytes: 0, first_page: 2 },
            Entry { tag: 9, priority: Priority::Centroids, bytes: 4096, first_page: 2 },
        ];
        let mut directory = encode_directory(&entries, b"meta");
        directory.resize(PAGE, 0);
        let directory_crc = crc32c::crc32c(&directory);
        (Footer { data_pages: 3, sections: 3, meta_bytes: 4, checksums_crc: 77, directory_crc, identity: 5 }, directory)
    }

    #[test]
    fn footer_and_directory_come_back() {
        let (footer, directory) = sample();
        assert_eq!(footer.file_pages(), 6);
        let page = encode_footer(&footer);
        assert_eq!(decode_footer(&page, 6 * 4096).unwrap(), footer);
        let (entries, meta) = decode_directory(&footer, &directory).unwrap();
        assert_eq!((entries[0].pages(), entries[1].pages(), entries[2].first_page, meta), (2, 0, 2, &b"meta"[..]));
    }

    #[test]
    fn a_footer_of_version_1_is_read_and_its_pages_are_checked_by_their_bytes() {
        let footer = Footer { identity: 0, ..sample().0 };
        let page = encode_footer(&footer);
        assert_eq!((page[8], decode_footer(&page, 6 * 4096).unwrap()), (1, footer));
        assert_eq!(page_crc(0, 7, b"bytes"), crc32c::crc32c(b"bytes"));
        let here = page_crc(5, 7, b"bytes");
        assert!(here != page_crc(5, 8, b"bytes") && here != page_crc(6, 7, b"bytes"));
    }

    #[test]
    fn a_newer_version_and_a_wrong_length_say_so() {
        let (footer, _) = sample();
        let mut page = encode_footer(&footer);
        assert_eq!(decode_footer(&page, 7 * 4096).unwrap_err().kind(), Kind::Corrupt);
        page[8] = 3;
        assert_eq!(decode_footer(&page, 6 * 4096).unwrap_err().kind(), Kind::Corrupt);
        let crc = crc32c::crc32c(&page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode_footer(&page, 6 * 4096).unwrap_err().kind(), Kind::Unsupported);
    }

    proptest! {
        /// Whatever stands in a footer whose checksum is right, the decoders answer and stay in bounds.
        #[test]
        fn decoders_never_panic(
            head in proptest::collection::vec(any::<u8>(), 0..64),
            small in any::<bool>(),
            body in proptest::collection::vec(any::<u8>(), 0..9000),
            file_bytes in any::<u64>(),
        ) {
            let _ = decode_footer(&body, file_bytes);
            let mut page = encode_footer(&sample().0);
            let at = if small { 16 } else { 0 };
            page[at..at + head.len()].copy_from_slice(&head);
            let crc = crc32c::crc32c(&page[..CRC_AT]);
            page[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(footer) = decode_footer(&page, file_bytes) {
                prop_assert_eq!(footer.file_pages() * PAGE as u64, file_bytes);
            }
            let footer = Footer {
                data_pages: u32::from_le_bytes([head.first().copied().unwrap_or(0), 0, 0, 0]),
                sections: u32::from(head.get(1).copied().unwrap_or(0)),
                meta_bytes: u32::from(head.get(2).copied().unwrap_or(0)),
                checksums_crc: 0,
                directory_crc: crc32c::crc32c(&body),
                identity: 0,
            };
            if let Ok((entries, meta)) = decode_directory(&footer, &body) {
                prop_assert!(meta.len() == footer.meta_bytes as usize);
                prop_assert!(entries.iter().all(|entry| entry.first_page + entry.pages() <= footer.data_pages));
            }
        }
    }
}
