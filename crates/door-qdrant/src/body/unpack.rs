//! Unpacking a body that came by gzip, piece by piece.
//!
//! ```text
//!   packed ─► inflate, 32 KiB at a time ─► once to be counted: 413 beyond the limit of a body, whatever it would take
//!                                      └─► and once more, to where its length was booked
//! ```
//!
//! Other tasks have a turn after so much that came out, and after so much that went in: a body may be made of parts that
//! hold nothing. One that is is refused, since others wait to be unpacked.

use flate2::bufread::MultiGzDecoder;
use ramekin_base::{Error, Result};
use std::io::{self, BufRead, ErrorKind, Read};

/// What comes out at a time, bytes.
const PIECE: usize = 32 << 10;
/// What comes out, and what goes in, before other tasks have a turn, bytes. The second takes up to 10 ms, where it is blocks
/// that hold nothing but a table of codes.
const TURN: usize = 256 << 10;
const TURN_PACKED: usize = 4 << 10;
/// From so many bytes on what went in gives at least a part of as many: gzip makes next to nothing longer.
const HOLLOW_FROM: usize = 64 << 10;
const HOLLOW_PART: usize = 8;

pub struct Unpack<'a> {
    decoder: MultiGzDecoder<Packed<'a>>,
    piece: Vec<u8>,
    since_turn: usize,
    given: usize,
}

impl<'a> Unpack<'a> {
    pub fn new(packed: &'a [u8]) -> Self {
        let packed = Packed { rest: packed, taken: 0, turn: TURN_PACKED };
        Self { decoder: MultiGzDecoder::new(packed), piece: vec![0; PIECE], since_turn: 0, given: 0 }
    }

    /// What comes next; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            if self.since_turn > TURN {
                self.turn().await;
            }
            match self.decoder.read(&mut self.piece) {
                Ok(bytes) => {
                    self.since_turn += bytes;
                    self.given += bytes;
                    return Ok((bytes > 0).then(|| &self.piece[..bytes]));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.check_hollow()?;
                    self.turn().await;
                }
                Err(error) => return Err(Error::malformed(format!("the body is no gzip: {error}"))),
            }
        }
    }

    fn check_hollow(&self) -> Result<()> {
        let taken = self.decoder.get_ref().taken;
        if taken < HOLLOW_FROM || self.given >= taken / HOLLOW_PART {
            return Ok(());
        }
        let given = self.given;
        Err(Error::malformed(format!(
            "{taken} bytes of the packed body hold {given} bytes; send it as it is, or packed well"
        )))
    }

    async fn turn(&mut self) {
        self.since_turn = 0;
        self.decoder.get_mut().turn = TURN_PACKED;
        tokio::task::yield_now().await;
    }
}

/// A packed body that gives so much a turn; the decoder goes on later where it was.
struct Packed<'a> {
    rest: &'a [u8],
    taken: usize,
    turn: usize,
}

impl BufRead for Packed<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.turn {
            0 if !self.rest.is_empty() => Err(ErrorKind::WouldBlock.into()),
            turn => Ok(&self.rest[..turn.min(self.rest.len())]),
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
        self.turn -= bytes;
        self.taken += bytes;
    }
}

impl Read for Packed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?.read(into)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::future::Future;
    use std::io::Write;
    use std::task::{Context, Poll, Waker};

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// What comes out, and how many turns others had meanwhile.
    fn unpacked(packed: &[u8]) -> (Result<Vec<u8>>, usize) {
        let whole = async {
            let (mut unpack, mut whole) = (Unpack::new(packed), Vec::new());
            while let Some(piece) = unpack.next().await? {
                whole.extend_from_slice(piece);
            }
            Ok(whole)
        };
        let mut whole = std::pin::pin!(whole);
        let mut turns = 0;
        loop {
            match whole.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(whole) => return (whole, turns),
                Poll::Pending => turns += 1,
            }
        }
    }

    #[test]
    fn others_have_turns_while_nothing_comes_out() {
        let members = packed(&[]).repeat(10_000);
        // Blocks of no bytes, each with its header, and a last one.
        let mut blocks = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
        blocks.extend([0, 0, 0, 0xff, 0xff].repeat(40_000));
        blocks.extend([1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
        for empty in [members, blocks] {
            let few = &empty[..HOLLOW_FROM / 2];
            assert_eq!(unpacked(few).1, (few.len() - 1) / TURN_PACKED);
            let (whole, turns) = unpacked(&empty);
            assert!(whole.unwrap_err().message().contains("bytes of the packed body hold 0 bytes"));
            assert_eq!(turns, HOLLOW_FROM / TURN_PACKED - 1);
        }
    }

    #[test]
    fn a_turn_ends_anywhere_in_what_is_packed() {
        let mut rng = ramekin_base::Rng::new(5);
        // Members of random bytes, so that headers and ends come to stand everywhere.
        let bytes: Vec<u8> = (0..200_000).map(|_| rng.next_u64() as u8).collect();
        let all: Vec<u8> = bytes.chunks(37).flat_map(packed).collect();
        let (whole, turns) = unpacked(&all);
        assert!(whole.unwrap() == bytes);
        assert!(turns >= all.len() / TURN_PACKED);
        // One that breaks off there is told so.
        assert!(unpacked(&all[..TURN_PACKED]).0.is_err() && unpacked(&all[..TURN_PACKED + 1]).0.is_err());
        let garbage = [packed(&bytes), b"no gzip".to_vec()].concat();
        assert!(unpacked(&garbage).0.is_err());
    }
}
