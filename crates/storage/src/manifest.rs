//! Which files are alive: one small file, replaced as a whole.
//!
//! ```text
//!   RAMEKIN-MANIFEST 001 000000000143 89abcdef\n      magic · format version · length of the JSON · CRC32C
//!   {"log_from":4096,"log_durable":8192,"files":["files/000001.seg"],"next_file":2,"app":{…}}
//!   (spaces up to a whole block)
//! ```
//!
//! The first line keeps its form for ever, so that any program can tell a newer format from damage. The
//! checksum covers the line up to itself and the JSON. `app` is the store's own and is not looked into.
//!
//! [`encode`] and [`decode`] are pure functions over bytes; fuzz targets call them.

use ramekin_base::{Error, Result};
use ramekin_log::Position;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::ops::Range;

/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Largest manifest, bytes of JSON.
pub const MANIFEST_MAX: usize = 64 << 20;

/// Bytes of the first line.
const LINE: usize = MAGIC.len() + " 001 000000000000 00000000\n".len();
const MAGIC: &str = "RAMEKIN-MANIFEST";
/// Bytes of the first line that the checksum covers.
const LINE_COVERED: usize = LINE - "00000000\n".len();
const BLOCK: usize = 4096;

/// What a store must know to open its data again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// Replay starts here; everything before it is in the files.
    pub log_from: Position,
    /// The log was durable up to here; what the files hold of its effects lies before.
    #[serde(default)]
    pub log_durable: Position,
    /// The page files that are alive: names such as `files/000123.seg`.
    pub files: Vec<String>,
    /// Numbers below this one have been given to files. A commit raises it to what was given out.
    pub next_file: u64,
    /// The store's own JSON.
    pub app: Box<RawValue>,
}

impl Manifest {
    /// A manifest with the store's own part given as anything that serialises. Replay starts at `log.start`; the log
    /// is durable up to `log.end`.
    pub fn new(log: Range<Position>, files: Vec<String>, app: &impl Serialize) -> Result<Self> {
        let app = serde_json::value::to_raw_value(app)
            .map_err(|error| Error::bug(format!("the store's part of the manifest cannot be written: {error}")))?;
        Ok(Self { log_from: log.start, log_durable: log.end, files, next_file: 0, app })
    }

    /// A new store's: nothing has been written.
    pub fn empty() -> Self {
        Self { log_from: 0, log_durable: 0, files: Vec::new(), next_file: 0, app: RawValue::NULL.to_owned() }
    }

    /// Where replay starts, and up to where the log must reach.
    pub fn log(&self) -> Range<Position> {
        self.log_from..self.log_from.max(self.log_durable)
    }

    /// The store's own part, read.
    pub fn app<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_str(self.app.get())
            .map_err(|error| Error::corrupt(format!("the store's part of the manifest cannot be read: {error}")))
    }

    /// Whether any store ever committed it.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.log_from == 0 && self.app.get() == RawValue::NULL.get()
    }
}

impl PartialEq for Manifest {
    fn eq(&self, other: &Self) -> bool {
        self.log_from == other.log_from
            && self.log_durable == other.log_durable
            && self.files == other.files
            && self.next_file == other.next_file
            && self.app.get() == other.app.get()
    }
}

/// The whole file: line, JSON, spaces up to a block.
pub fn encode(manifest: &Manifest) -> Result<Vec<u8>> {
    let json =
        serde_json::to_vec(manifest).map_err(|error| Error::bug(format!("the manifest cannot be written: {error}")))?;
    if json.len() > MANIFEST_MAX {
        return Err(Error::too_large(format!(
            "the manifest would have {} bytes, at most {MANIFEST_MAX} are allowed; delete collections or segments",
            json.len()
        )));
    }
    let mut bytes = format!("{MAGIC} {VERSION:03} {:012} ", json.len()).into_bytes();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), &json);
    bytes.extend_from_slice(format!("{crc:08x}\n").as_bytes());
    bytes.extend_from_slice(&json);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), b' ');
    Ok(bytes)
}

/// The manifest in `bytes`. `Unsupported` if a newer version wrote it, `Corrupt` if it is damaged.
pub fn decode(bytes: &[u8]) -> Result<Manifest> {
    let json = json(bytes)?;
    let manifest: Manifest =
        serde_json::from_slice(json).map_err(|error| corrupt(&format!("its JSON cannot be read: {error}")))?;
    let mut names = HashSet::new();
    for name in &manifest.files {
        let number = number(name).ok_or_else(|| corrupt(&format!("'{name}' is no name of a data file")))?;
        if number >= manifest.next_file || !names.insert(number) {
            return Err(corrupt(&format!("the number of '{name}' is not one of its own")));
        }
    }
    Ok(manifest)
}

/// Finds and verifies the JSON.
fn json(bytes: &[u8]) -> Result<&[u8]> {
    let (line, rest) = bytes.split_at_checked(LINE).ok_or_else(|| corrupt("it is too short"))?;
    let text = std::str::from_utf8(line).map_err(|_| corrupt("its first line is no text"))?;
    let mut fields = text.trim_end_matches('\n').split(' ');
    let (magic, version, len, crc) = (fields.next(), fields.next(), fields.next(), fields.next());
    if magic != Some(MAGIC) || fields.next().is_some() {
        return Err(corrupt("its first line is not that of a manifest"));
    }
    let wrong = || corrupt("its first line cannot be read");
    let version: u32 = version.and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let len: usize = len.and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let crc = crc.and_then(|text| u32::from_str_radix(text, 16).ok()).ok_or_else(wrong)?;
    let json = rest.get(..len).ok_or_else(|| corrupt("it ends too early"))?;
    if crc32c::crc32c_append(crc32c::crc32c(&line[..LINE_COVERED]), json) != crc {
        return Err(corrupt("it fails its checksum"));
    }
    if version > VERSION {
        return Err(Error::unsupported(format!(
            "the manifest has format version {version}, this program reads versions up to {VERSION}; \
             start a newer ramekin"
        )));
    }
    Ok(json)
}

fn corrupt(why: &str) -> Error {
    Error::corrupt(format!("the manifest is damaged: {why}; restore the folder from a copy"))
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
    use ramekin_base::Kind;

    fn sample() -> Manifest {
        let files = vec![file_name(0, "seg"), file_name(1_234_567, "over")];
        let mut manifest = Manifest::new(77..99, files, &serde_json::json!({"collections": ["a", "ü"]})).unwrap();
        manifest.next_file = 1_234_568;
        manifest
    }

    #[test]
    fn a_manifest_comes_back() {
        for manifest in [Manifest::empty(), sample()] {
            let bytes = encode(&manifest).unwrap();
            assert_eq!(bytes.len() % BLOCK, 0);
            assert_eq!(decode(&bytes).unwrap(), manifest);
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let json = b"{\"whatever\": 1}";
        let mut bytes = format!("{MAGIC} 002 {:012} ", json.len()).into_bytes();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), json);
        bytes.extend_from_slice(format!("{crc:08x}\n").as_bytes());
        bytes.extend_from_slice(json);
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.message().contains("version 2"), "{error}");
        bytes[MAGIC.len() + 3] = b'3';
        assert_eq!(decode(&bytes).unwrap_err().kind(), Kind::Corrupt);
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
        let bad = |files: &[&str], next_file| {
            let mut manifest = Manifest::empty();
            manifest.files = files.iter().map(|name| (*name).to_owned()).collect();
            manifest.next_file = next_file;
            decode(&encode(&manifest).unwrap()).unwrap_err().kind()
        };
        assert_eq!(bad(&["../escape"], 9), Kind::Corrupt);
        assert_eq!(bad(&["files/000001.seg"], 1), Kind::Corrupt);
        assert_eq!(bad(&["files/000001.seg", "files/000001.seg"], 9), Kind::Corrupt);
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe_to_decode(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = decode(&bytes);
            let mut bytes = format!("{MAGIC} 001 {:012} 00000000\n", tail.len()).into_bytes();
            bytes.extend_from_slice(&tail);
            let _ = decode(&bytes);
        }

        #[test]
        fn no_flipped_bit_passes(at: usize, bit in 0u32..8) {
            let manifest = sample();
            let mut bytes = encode(&manifest).unwrap();
            let covered = LINE + serde_json::to_vec(&manifest).unwrap().len();
            bytes[at % covered] ^= 1u8 << bit;
            // A changed case of a checksum digit is the same checksum.
            match decode(&bytes) {
                Ok(read) => prop_assert_eq!(read, manifest),
                Err(error) => prop_assert_eq!(error.kind(), Kind::Corrupt),
            }
        }

        #[test]
        fn no_cut_passes(len: usize) {
            let bytes = encode(&sample()).unwrap();
            let len = len % LINE;
            prop_assert_eq!(decode(&bytes[..len]).unwrap_err().kind(), Kind::Corrupt);
        }
    }
}
