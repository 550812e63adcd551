//! Unpacking a body that came by gzip: a stream, of which what comes out is booked like any body.
//!
//! ```text
//!   piece ─► inflate, at most 32 KiB at a time ─► the growing body: booked, and refused beyond the limit of a body
//! ```

use crate::admission::Admission;
use crate::body::Growing;
use crate::limits::UNPACK_BYTES;
use flate2::write::MultiGzDecoder;
use ramekin_base::{Error, Result};
use ramekin_memory::Reservation;
use std::io::Write;
use tokio::time::Instant;

/// What comes out before other tasks have a turn, bytes.
const TURN: usize = 256 << 10;

pub struct Unpack {
    /// Hands out at most its own buffer at a time.
    decoder: MultiGzDecoder<Vec<u8>>,
    since_turn: usize,
    _memory: Reservation,
}

impl Unpack {
    pub async fn new(admission: &Admission, until: Instant) -> Result<Self> {
        let memory = admission.memory(admission.account(), UNPACK_BYTES, until).await?;
        Ok(Self { decoder: MultiGzDecoder::new(Vec::new()), since_turn: 0, _memory: memory })
    }

    /// Unpacks a piece to the end of a body.
    pub async fn add(&mut self, mut piece: &[u8], whole: &mut Growing<'_>) -> Result<()> {
        while !piece.is_empty() {
            let taken = self.decoder.write(piece).map_err(|error| broken(&error))?;
            piece = &piece[taken..];
            self.keep(whole).await?;
        }
        Ok(())
    }

    /// Unpacks what is left.
    pub async fn finish(mut self, whole: &mut Growing<'_>) -> Result<()> {
        // It goes on where it was as long as there is something left.
        while self.decoder.flush().is_ok() && !self.decoder.get_ref().is_empty() {
            self.keep(whole).await?;
        }
        self.decoder.try_finish().map_err(|error| broken(&error))?;
        self.keep(whole).await
    }

    async fn keep(&mut self, whole: &mut Growing<'_>) -> Result<()> {
        let out = self.decoder.get_mut();
        self.since_turn += out.len();
        whole.add(out).await?;
        out.clear();
        if self.since_turn > TURN {
            self.since_turn = 0;
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

fn broken(error: &std::io::Error) -> Error {
    Error::malformed(format!("the body is no gzip: {error}"))
}
