//! Unpacking a body that came by gzip, piece by piece.
//!
//! ```text
//!   packed ─► inflate, 32 KiB at a time ─► once to be counted: 413 beyond the limit of a body, whatever it would take
//!                                      └─► and once more, to where its length was booked
//! ```

use flate2::bufread::MultiGzDecoder;
use ramekin_base::{Error, Result};
use std::io::Read;

/// What comes out at a time, and before other tasks have a turn, bytes.
const PIECE: usize = 32 << 10;
const TURN: usize = 256 << 10;

pub struct Unpack<'a> {
    decoder: MultiGzDecoder<&'a [u8]>,
    piece: Vec<u8>,
    since_turn: usize,
}

impl<'a> Unpack<'a> {
    pub fn new(packed: &'a [u8]) -> Self {
        Self { decoder: MultiGzDecoder::new(packed), piece: vec![0; PIECE], since_turn: 0 }
    }

    /// What comes next; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.since_turn > TURN {
            self.since_turn = 0;
            tokio::task::yield_now().await;
        }
        let bytes = self.decoder.read(&mut self.piece);
        let bytes = bytes.map_err(|error| Error::malformed(format!("the body is no gzip: {error}")))?;
        self.since_turn += bytes;
        Ok((bytes > 0).then(|| &self.piece[..bytes]))
    }
}
