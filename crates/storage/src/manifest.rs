//! The manifest: which files are alive. A snapshot, and edits that are appended to it.
//!
//! ```text
//!   RAMEKIN-MANIFEST 002 000000000143 89abcdef\n   magic · format version · bytes of the snapshot · CRC32C      ┐ written
//!   group                                          the snapshot, then zeros up to a whole block               │ aside and
//!   RAMEKIN-EDITS 000000008192 89abcdef\n          edits before this byte were synced; a block of its own     ┘ renamed
//!   group ... zeros up to a block | group ... | zeros
//!
//!   group    frame, frame, ... and one that is marked as the last: what was committed together
//!   frame    length and mark u32 | CRC32C over its place, the length and the JSON u32 | JSON of a Record
//! ```
//!
//! An edit is synced before the next one is begun, and what is before the place in `RAMEKIN-EDITS` was synced. So
//! of an edit that cannot be read: before that place it is damage; after it, it is the last one, which a crash
//! tore before anybody heard of it.
//!
//! The first line keeps its form for ever, so that any program can tell a newer format from damage. Its checksum covers
//! the line up to itself and the snapshot. What a store keeps in `app` is its own and is not looked into. The format
//! before this one was one JSON, replaced as a whole: `whole.rs`.
//!
//! Here are pure functions over bytes; fuzz targets call them.

use ramekin_base::{Error, Kind, Result};
use ramekin_log::Lsn;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::ops::Range;

/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 2;

pub(crate) const MAGIC: &str = "RAMEKIN-MANIFEST";
const EDITS: &str = "RAMEKIN-EDITS";
/// Bytes of the first line.
pub(crate) const LINE: usize = MAGIC.len() + " 001 000000000000 00000000\n".len();
/// Bytes of the first line that the checksum covers.
const LINE_COVERED: usize = LINE - "00000000\n".len();
const EDITS_LINE: usize = EDITS.len() + " 000000000000 00000000\n".len();
pub(crate) const BLOCK: u64 = 4096;
const FRAME: usize = 8;
/// Set in the length of a group's last frame.
const LAST: u32 = 1 << 31;
/// Bytes that are looked at together where no record is made of them.
const PIECE: usize = 32 << 10;

/// One part of what a store must know to open its data again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Record {
    /// All of one part, in the place of what was said of it before: its files, and the store's own JSON.
    Part { key: u64, files: Vec<String>, app: Box<RawValue> },
    /// A part that is no more.
    Gone { key: u64 },
    /// The store's own JSON; all notes count, in their order.
    Note { app: Box<RawValue> },
    /// Ends a group.
    Head(Head),
}

/// What each commit says anew.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    /// Replay starts here; everything before it is in the files.
    pub log_from: Lsn,
    /// The log was durable up to here; what the files hold of its effects lies before.
    pub log_durable: Lsn,
    /// Numbers below this one have been given to files. A commit raises it to what was given out.
    pub next_file: u64,
    /// The store's own JSON.
    pub app: Box<RawValue>,
}

impl Head {
    /// Replay starts at `log.start`; the log is durable up to `log.end`.
    pub fn new(log: Range<Lsn>, app: &impl Serialize) -> Result<Self> {
        Ok(Self { log_from: log.start, log_durable: log.end, next_file: 0, app: raw(app)? })
    }

    /// A new store's: nothing has been written.
    pub fn empty() -> Self {
        Self { log_from: 0, log_durable: 0, next_file: 0, app: RawValue::NULL.to_owned() }
    }

    /// Where replay starts, and up to where the log must reach.
    pub fn log(&self) -> Range<Lsn> {
        self.log_from..self.log_from.max(self.log_durable)
    }

    /// The store's own part, read.
    pub fn app<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        read_app(&self.app)
    }
}

/// A store's own JSON, read.
pub fn read_app<'a, T: Deserialize<'a>>(app: &'a RawValue) -> Result<T> {
    serde_json::from_str(app.get())
        .map_err(|error| Error::corrupt(format!("the store's part of the manifest cannot be read: {error}")))
}

pub(crate) fn raw(app: &impl Serialize) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(app)
        .map_err(|error| Error::bug(format!("the store's part of the manifest cannot be written: {error}")))
}

/// Bytes that a manifest is read from.
pub trait Source {
    /// How many there are.
    fn end(&self) -> u64;
    /// `len` bytes from `at`, which the caller knows to be there.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]>;
}

impl Source for &[u8] {
    fn end(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        self.get(at as usize..at as usize + len).ok_or_else(|| corrupt(at, "it ends too early"))
    }
}

/// Where everything stands in a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    pub version: u32,
    /// The snapshot.
    pub body: Range<u64>,
    /// Checksum of the first line and the snapshot.
    pub crc: u32,
    /// Edits before this byte were synced, as far as the file knows.
    pub synced: u64,
    /// The end of the last edit: where the next one goes. Of an older format, the end.
    pub end: u64,
    /// What stands after `end`, and is no edit.
    pub torn: bool,
}

impl Layout {
    /// The block that says up to where edits were synced.
    pub(crate) fn mark(&self) -> u64 {
        self.body.end.next_multiple_of(BLOCK)
    }
}

/// Verifies a manifest and calls `each` with every record, in order, and where its frame stands. `Unsupported` if a newer
/// version wrote it, `Corrupt` if it is damaged. Of an older format nothing is called.
pub fn scan(source: &mut dyn Source, each: &mut dyn FnMut(u64, Record) -> Result<()>) -> Result<Layout> {
    let mut layout = first_line(source)?;
    if layout.version < VERSION {
        return Ok(layout);
    }
    let body = layout.body.clone();
    if group(source, body.start, body.end)? != body.end {
        return Err(corrupt(body.start, "the snapshot is not one group"));
    }
    visit(source, body.start, each)?;
    let mark = layout.mark();
    if source.end() < mark + BLOCK {
        return Err(corrupt(mark, "it ends too early"));
    }
    let synced = read_mark(source.bytes(mark, EDITS_LINE)?, layout.crc)
        .ok_or_else(|| corrupt(mark, "the line about edits cannot be read"))?;
    layout.synced = synced;
    layout.end = mark + BLOCK;
    while layout.end < source.end() {
        let most = source.end();
        match group(source, layout.end, most) {
            Ok(end) => {
                visit(source, layout.end, each)?;
                layout.end = end.next_multiple_of(BLOCK);
            }
            Err(error) if error.kind() != Kind::Corrupt || layout.end < synced => return Err(error),
            Err(_) => break,
        }
    }
    if layout.end < synced {
        return Err(corrupt(layout.end, &format!("edits up to byte {synced} are missing")));
    }
    layout.torn = !is_zero(source, layout.end)?;
    Ok(layout)
}

/// Finds the snapshot and verifies its checksum.
fn first_line(source: &mut dyn Source) -> Result<Layout> {
    if source.end() < LINE as u64 {
        return Err(corrupt(0, "it is too short"));
    }
    let line = source.bytes(0, LINE)?.to_vec();
    let text = std::str::from_utf8(&line).map_err(|_| corrupt(0, "its first line is no text"))?;
    let mut fields = text.trim_end_matches('\n').split(' ');
    let (magic, version, len, crc) = (fields.next(), fields.next(), fields.next(), fields.next());
    if magic != Some(MAGIC) || fields.next().is_some() {
        return Err(corrupt(0, "its first line is not that of a manifest"));
    }
    let wrong = || corrupt(0, "its first line cannot be read");
    let version: u32 = version.and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let len: u64 = len.and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let crc = crc.and_then(|text| u32::from_str_radix(text, 16).ok()).ok_or_else(wrong)?;
    let body = LINE as u64..LINE as u64 + len.min(source.end());
    if body.end > source.end() {
        return Err(corrupt(source.end(), "it ends too early"));
    }
    if crc_of(source, body.clone(), crc32c::crc32c(&line[..LINE_COVERED]))? != crc {
        return Err(corrupt(0, "its snapshot fails its checksum"));
    }
    if version > VERSION {
        return Err(Error::unsupported(format!(
            "the manifest has format version {version}, this program reads versions up to {VERSION}; \
             start a newer ramekin"
        )));
    }
    Ok(Layout { version, synced: body.end, end: body.end, body, crc, torn: false })
}

fn crc_of(source: &mut dyn Source, range: Range<u64>, mut crc: u32) -> Result<u32> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(PIECE as u64) as usize;
        crc = crc32c::crc32c_append(crc, source.bytes(at, len)?);
        at += len as u64;
    }
    Ok(crc)
}

fn is_zero(source: &mut dyn Source, mut at: u64) -> Result<bool> {
    while at < source.end() {
        let len = (source.end() - at).min(PIECE as u64) as usize;
        if source.bytes(at, len)?.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

/// A frame's length, whether it is the last of its group, and its checksum.
fn frame(source: &mut dyn Source, at: u64, most: u64) -> Result<(usize, bool, u32)> {
    if at + FRAME as u64 > most {
        return Err(corrupt(at, "a record ends too early"));
    }
    let head = source.bytes(at, FRAME)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (len, crc) = (word(0), word(4));
    if u64::from(len & !LAST) > most - at - FRAME as u64 {
        return Err(corrupt(at, "a record ends too early"));
    }
    Ok(((len & !LAST) as usize, len & LAST != 0, crc))
}

/// Where the group that begins at `at` ends; every frame of it was verified.
fn group(source: &mut dyn Source, mut at: u64, most: u64) -> Result<u64> {
    loop {
        let (len, is_last, crc) = frame(source, at, most)?;
        let body = at + FRAME as u64..at + (FRAME + len) as u64;
        if crc_of(source, body.clone(), seed(at, len, is_last))? != crc {
            return Err(corrupt(at, "a record fails its checksum"));
        }
        at = body.end;
        if is_last {
            return Ok(at);
        }
    }
}

/// Calls `each` with the records of a verified group.
fn visit(source: &mut dyn Source, mut at: u64, each: &mut dyn FnMut(u64, Record) -> Result<()>) -> Result<()> {
    loop {
        let (record, end, is_last) = record(source, at)?;
        if is_last != matches!(record, Record::Head(_)) {
            return Err(corrupt(at, "a group does not end with its head"));
        }
        each(at, record)?;
        at = end;
        if is_last {
            return Ok(());
        }
    }
}

/// The record at `at`, where it ends, and whether it is the last of its group.
pub(crate) fn record(source: &mut dyn Source, at: u64) -> Result<(Record, u64, bool)> {
    let most = source.end();
    let (len, is_last, _) = frame(source, at, most)?;
    let json = source.bytes(at + FRAME as u64, len)?;
    let record =
        serde_json::from_slice(json).map_err(|error| corrupt(at, &format!("a record cannot be read: {error}")))?;
    Ok((record, at + (FRAME + len) as u64, is_last))
}

/// A frame covers its place too: one that came from elsewhere is none.
fn seed(at: u64, len: usize, is_last: bool) -> u32 {
    let crc = crc32c::crc32c(&at.to_le_bytes());
    crc32c::crc32c_append(crc, &[&(len as u64).to_le_bytes()[..], &[u8::from(is_last)]].concat())
}

/// What stands before the JSON of a frame at `at`.
pub(crate) fn frame_head(at: u64, json: &[u8], is_last: bool) -> [u8; FRAME] {
    let crc = crc32c::crc32c_append(seed(at, json.len(), is_last), json);
    let len = json.len() as u32 | if is_last { LAST } else { 0 };
    (u64::from(crc) << 32 | u64::from(len)).to_le_bytes()
}

/// The first line of a manifest whose snapshot has so many bytes and this checksum, and the checksum of both.
pub(crate) fn line(version: u32, body_len: u64, body_crc: u32) -> (Vec<u8>, u32) {
    let covered = format!("{MAGIC} {version:03} {body_len:012} ").into_bytes();
    let crc = crc32c::crc32c_combine(crc32c::crc32c(&covered), body_crc, body_len as usize);
    ([covered, format!("{crc:08x}\n").into_bytes()].concat(), crc)
}

/// The line that says that edits before `synced` were synced, of the manifest whose snapshot has this checksum.
pub(crate) fn mark(synced: u64, crc: u32) -> Vec<u8> {
    let covered = format!("{EDITS} {synced:012} ").into_bytes();
    let crc = crc32c::crc32c_append(crc, &covered);
    [covered, format!("{crc:08x}\n").into_bytes()].concat()
}

fn read_mark(bytes: &[u8], crc: u32) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let synced = text.strip_prefix(EDITS)?.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
    (mark(synced, crc) == bytes).then_some(synced)
}

/// A whole manifest: its groups, each with its head at its end, the snapshot first.
pub fn encode(groups: &[Vec<Record>]) -> Result<Vec<u8>> {
    let put = |bytes: &mut Vec<u8>, records: &[Record]| {
        for (index, record) in records.iter().enumerate() {
            let json = serde_json::to_vec(record)
                .map_err(|error| Error::bug(format!("a record of the manifest cannot be written: {error}")))?;
            let head = frame_head(bytes.len() as u64, &json, index + 1 == records.len());
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&json);
        }
        Ok::<_, Error>(())
    };
    let pad = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
    let (snapshot, edits) = groups.split_first().ok_or_else(|| Error::bug("a manifest without a snapshot"))?;
    let mut bytes = vec![0; LINE];
    put(&mut bytes, snapshot)?;
    let (line, crc) = line(VERSION, (bytes.len() - LINE) as u64, crc32c::crc32c(&bytes[LINE..]));
    bytes[..LINE].copy_from_slice(&line);
    pad(&mut bytes);
    let mark_at = bytes.len();
    bytes.resize(mark_at + BLOCK as usize, 0);
    for edit in edits {
        put(&mut bytes, edit)?;
        pad(&mut bytes);
    }
    let mark = mark(bytes.len() as u64, crc);
    bytes[mark_at..mark_at + mark.len()].copy_from_slice(&mark);
    Ok(bytes)
}

/// All records of a manifest in their order, and where everything stands.
pub fn decode(mut bytes: &[u8]) -> Result<(Vec<Record>, Layout)> {
    let mut records = Vec::new();
    let layout = scan(&mut bytes, &mut |_, record| {
        records.push(record);
        Ok(())
    })?;
    Ok((records, layout))
}

pub(crate) fn corrupt(at: u64, why: &str) -> Error {
    Error::corrupt(format!("the manifest is damaged at byte {at}: {why}; restore the folder from a copy"))
}

/// The name of a data file.
pub(crate) fn file_name(number: u64, kind: &str) -> String {
    format!("{FOLDER}/{number:06}.{kind}")
}

/// The folder of data files.
pub(crate) const FOLDER: &str = "files";

/// The number in a data file's name; `None` if no name of ours has this form.
pub(crate) fn number(name: &str) -> Option<u64> {
    let (digits, kind) = name.strip_prefix(FOLDER)?.strip_prefix('/')?.split_once('.')?;
    let digits_ours = digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let kind_ours = (1..=8).contains(&kind.len()) && kind.bytes().all(|byte| byte.is_ascii_lowercase());
    let number = (digits_ours && kind_ours).then(|| digits.parse().ok()).flatten()?;
    // One number has one form.
    (file_name(number, kind) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(log_from: u64) -> Record {
        let mut head = Head::new(log_from..log_from + 9, &serde_json::json!({"of the": "störe"})).unwrap();
        head.next_file = 1_234_568;
        Record::Head(head)
    }

    fn part(key: u64, files: &[u64]) -> Record {
        let files = files.iter().map(|number| file_name(*number, "seg")).collect();
        Record::Part { key, files, app: raw(&[key, 1]).unwrap() }
    }

    fn sample() -> Vec<Vec<Record>> {
        let note = Record::Note { app: raw(&"a note").unwrap() };
        vec![
            vec![part(1, &[0, 7]), part(2, &[]), note.clone(), head(10)],
            vec![part(1, &[8]), head(20)],
            vec![Record::Gone { key: 2 }, note, head(30)],
        ]
    }

    fn text(records: &[Record]) -> String {
        serde_json::to_string(records).unwrap()
    }

    #[test]
    fn a_manifest_comes_back() {
        for groups in [sample(), sample()[..1].to_vec(), vec![vec![Record::Head(Head::empty())]]] {
            let bytes = encode(&groups).unwrap();
            let (records, layout) = decode(&bytes).unwrap();
            assert_eq!(text(&records), text(&groups.concat()));
            assert!(!layout.torn && layout.end == bytes.len() as u64 && layout.end.is_multiple_of(BLOCK));
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = line(3, 4, crc32c::crc32c(b"what")).0;
        bytes.extend_from_slice(b"what");
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.message().contains("version 3"), "{error}");
        bytes[MAGIC.len() + 3] = b'4';
        assert_eq!(decode(&bytes).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn an_edit_that_was_synced_is_missed_and_a_torn_one_is_left_out() {
        let (groups, bytes) = (sample(), encode(&sample()).unwrap());
        let last = bytes.len() - BLOCK as usize;
        let missing = decode(&bytes[..last]).unwrap_err();
        assert!(missing.kind() == Kind::Corrupt && missing.message().contains(&format!("byte {last}")), "{missing}");
        let mut zeroed = bytes.clone();
        zeroed[last..].fill(0);
        assert_eq!(decode(&zeroed).unwrap_err().kind(), Kind::Corrupt);
        // The same, but nobody heard that the last edit was synced.
        let mark_at = decode(&bytes).unwrap().1.mark() as usize;
        let crc = decode(&bytes).unwrap().1.crc;
        let unsynced = mark(last as u64, crc);
        for (at, torn) in [(last + 20, true), (last, true), (bytes.len(), false)] {
            let mut bytes = bytes.clone();
            bytes[mark_at..mark_at + unsynced.len()].copy_from_slice(&unsynced);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1;
            }
            let (records, layout) = decode(&bytes).unwrap();
            assert_eq!(layout.torn, torn);
            assert_eq!(text(&records), text(&if torn { groups[..2].concat() } else { groups.concat() }));
        }
    }

    #[test]
    fn only_our_own_names_are_files() {
        assert_eq!(number("files/000012.seg"), Some(12));
        assert_eq!(number("files/1000000.over"), Some(1_000_000));
        for name in [
            "000012.seg",
            "files/12.seg",
            "files/0000012.seg",
            "files/000012.",
            "files/000012.SEG",
            "files/../../etc/passwd",
            "files/000012.seg.new",
            "files/99999999999999999999.seg",
        ] {
            assert_eq!(number(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe_to_decode(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = decode(&bytes);
            let mut whole = line(VERSION, tail.len() as u64, crc32c::crc32c(&tail)).0;
            whole.extend_from_slice(&tail);
            let _ = decode(&whole);
        }

        #[test]
        fn no_flipped_bit_passes(at: usize, bit in 0u32..8) {
            let (groups, mut bytes) = (sample(), encode(&sample()).unwrap());
            let len = bytes.len();
            bytes[at % len] ^= 1u8 << bit;
            // A changed case of a checksum digit is the same checksum, and zeros between groups say nothing.
            match decode(&bytes) {
                Ok((read, _)) => prop_assert_eq!(text(&read), text(&groups.concat())),
                Err(error) => prop_assert_eq!(error.kind(), Kind::Corrupt),
            }
        }

        #[test]
        fn no_cut_passes(len: usize) {
            let bytes = encode(&sample()).unwrap();
            let len = len % (bytes.len() - BLOCK as usize + 1);
            prop_assert_eq!(decode(&bytes[..len]).unwrap_err().kind(), Kind::Corrupt);
        }
    }
}
