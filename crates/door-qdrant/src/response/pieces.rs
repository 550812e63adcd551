//! The bytes of an answer, in pieces: what is written stays where it is, so that a long answer is never there twice.
//!
//! ```text
//!   ResponseWriter ─► [ piece │ piece │ piece ] ─► one after the other to the connection; each with its booking, which ends when the
//!                                        kernel has its last byte
//! ```

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use ramekin_memory::Reservation;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// As many bytes as its pieces have.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Pieces {
    /// Adds bytes at the end. What they book ends with them.
    pub fn push(&mut self, bytes: Vec<u8>, booked: Option<Reservation>) {
        self.len += bytes.len();
        self.pieces.push_back(match booked {
            None => bytes.into(),
            Some(booked) => Bytes::from_owner(Booked { bytes, _booked: booked }),
        });
    }

    /// Adds the pieces of another one at the end.
    pub fn append(&mut self, mut other: Self) {
        self.len += other.len;
        self.pieces.append(&mut other.pieces);
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes bytes from the front, at most so many, and none only if there are none.
    pub fn take(&mut self, most: usize) -> Bytes {
        while let Some(first) = self.pieces.front_mut() {
            let bytes = first.split_to(first.len().min(most));
            if first.is_empty() {
                self.pieces.pop_front();
            }
            if !bytes.is_empty() {
                self.len -= bytes.len();
                return bytes;
            }
        }
        Bytes::new()
    }
}

impl<B: Into<Bytes>> From<B> for Pieces {
    fn from(bytes: B) -> Self {
        let bytes = bytes.into();
        Self { len: bytes.len(), pieces: VecDeque::from([bytes]) }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.take(usize::MAX);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len as u64)
    }
}

/// Bytes with the booking that covers them.
struct Booked {
    bytes: Vec<u8>,
    _booked: Reservation,
}

impl AsRef<[u8]> for Booked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_were_put_in() {
        let mut pieces = Pieces::default();
        for piece in ["", "ab", "", "cdefg", "h"] {
            pieces.push(piece.into(), None);
        }
        pieces.append("ij".into());
        assert_eq!(pieces.len(), 10);
        let taken: Vec<Bytes> = std::iter::from_fn(|| (!pieces.is_empty()).then(|| pieces.take(3))).collect();
        assert_eq!(taken, ["ab", "cde", "fg", "h", "ij"]);
        assert_eq!((pieces.len(), pieces.take(3).len()), (0, 0));
    }
}
