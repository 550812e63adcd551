//! The manifest as it was before edits: one JSON, replaced as a whole. It is read until the next commit, which writes
//! the new form; `check` may repair a log beside it.
//!
//! ```text
//!   RAMEKIN-MANIFEST 001 000000000143 89abcdef\n      magic · format version · length of the JSON · CRC32C
//!   {"log_from":4096,"log_durable":8192,"files":["files/000001.seg"],"next_file":2,"app":{…}}
//!   (spaces up to a whole block)
//! ```

use crate::manifest::{BLOCK, Head, LINE, corrupt, line};
use ramekin_base::{Error, Result};
use ramekin_log::Lsn;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Largest of them, bytes of JSON.
pub(crate) const WHOLE_MAX: u64 = 64 << 20;

/// What a store must know to open its data again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WholeManifest {
    pub log_from: Lsn,
    #[serde(default)]
    pub log_durable: Lsn,
    /// The page files that are alive: names such as `files/000123.seg`.
    pub files: Vec<String>,
    pub next_file: u64,
    /// The store's own JSON.
    pub app: Box<RawValue>,
}

impl WholeManifest {
    pub(crate) fn head(&self) -> Head {
        let (log_from, log_durable, next_file) = (self.log_from, self.log_durable, self.next_file);
        Head { log_from, log_durable, next_file, app: RawValue::NULL.to_owned() }
    }
}

/// The whole file: line, JSON, spaces up to a block.
pub fn encode(whole: &WholeManifest) -> Result<Vec<u8>> {
    let json =
        serde_json::to_vec(whole).map_err(|error| Error::bug(format!("the manifest cannot be written: {error}")))?;
    let mut bytes = line(1, json.len() as u64, crc32c::crc32c(&json)).0;
    bytes.extend_from_slice(&json);
    bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), b' ');
    Ok(bytes)
}

/// The JSON that stands after the first line, which was verified with it.
pub fn decode(json: &[u8]) -> Result<WholeManifest> {
    serde_json::from_slice(json).map_err(|error| corrupt(LINE as u64, &format!("its JSON cannot be read: {error}")))
}
