//! Answers that are packed by gzip on their way out, for clients that ask for it.
//!
//! ```text
//!   the answer's bytes, 16 KiB at a time ─► deflate ─► a chunk to the connection, when it asks for the next one
//! ```
//!
//! Nothing of it is held twice: what is packed waits nowhere, and the text is there until its last byte is out.

use crate::limits::PACK_MIN;
use crate::response::BookedResponse;
use crate::response::pieces::Pieces;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Frame;
use ramekin_memory::Reservation;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes that are packed before other tasks have a turn.
const STEP: usize = 16 << 10;

/// Whether a client wants its answer packed, and that pays.
pub fn is_wanted(headers: &HeaderMap, answer: &BookedResponse) -> bool {
    answer.body.len() >= PACK_MIN && prefers_gzip(headers)
}

/// `gzip, br;q=0.5`, or `*`; not `gzip;q=0`, and not `gzip;q=0.5, identity`.
fn prefers_gzip(headers: &HeaderMap) -> bool {
    let weight = |name: &str| {
        let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
        let weight_in = |one: &str| {
            let mut parts = one.split(';').map(str::trim);
            if !parts.next()?.eq_ignore_ascii_case(name) {
                return None;
            }
            let weight =
                parts.filter_map(|part| part.split_once('=')).find(|(key, _)| key.trim().eq_ignore_ascii_case("q"));
            Some(weight.map_or(1.0, |(_, weight)| weight.trim().parse::<f32>().unwrap_or(0.0)))
        };
        lines.flat_map(|line| line.split(',')).find_map(weight_in)
    };
    let gzip = weight("gzip").or_else(|| weight("x-gzip")).or_else(|| weight("*")).unwrap_or(0.0);
    gzip > 0.0 && gzip >= weight("identity").unwrap_or(0.0)
}

/// The answer as a stream of packed chunks.
pub fn response(mut answer: BookedResponse, memory: Reservation) -> Response {
    let text = std::mem::take(&mut answer.body);
    let encoder = GzEncoder::new(Vec::with_capacity(STEP), Compression::fast());
    let mut response = answer.response();
    *response.body_mut() = Body::new(Packed { text, encoder: Some(encoder), _memory: memory });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

struct Packed {
    text: Pieces,
    /// None after the last chunk.
    encoder: Option<GzEncoder<Vec<u8>>>,
    _memory: Reservation,
}

impl Packed {
    /// The next chunk; `None` at the end.
    fn chunk(&mut self) -> std::io::Result<Option<Bytes>> {
        while let Some(encoder) = &mut self.encoder {
            if self.text.is_empty() {
                return Ok(self.encoder.take().map(GzEncoder::finish).transpose()?.map(Bytes::from));
            }
            let piece = self.text.take(STEP);
            encoder.write_all(&piece)?;
            let out = encoder.get_mut();
            if !out.is_empty() {
                return Ok(Some(Bytes::from(std::mem::replace(out, Vec::with_capacity(STEP)))));
            }
        }
        Ok(None)
    }
}

impl HttpBody for Packed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Poll::Ready(self.chunk().map(|chunk| chunk.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.encoder.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use ramekin_memory::Budget;
    use std::io::Read;

    #[tokio::test]
    async fn a_packed_answer_is_the_answer() {
        let budget = Budget::new(1 << 20);
        let text: String = (0..100_000).map(|number| format!("{{\"id\":{number}}},")).collect();
        let memory = budget.root().child("answers", "").try_reserve(1000).unwrap();
        let response = response(BookedResponse::json(text.clone()), memory);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        let packed = response.into_body().collect().await.unwrap().to_bytes();
        assert!(packed.len() * 3 < text.len());
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, text);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn who_asks_for_it() {
        let cases: &[(&[&str], bool)] = &[
            (&["gzip"], true),
            (&["br, gzip;q=0.5"], true),
            (&["GZip; Q=0.1"], true),
            (&["x-gzip"], true),
            (&["*"], true),
            (&["br", "gzip"], true),
            (&["gzip, identity"], true),
            (&["gzip;level=9;q=0.7, identity;q=0.5"], true),
            (&["gzip;q=0"], false),
            (&["gzip;Q=0.0"], false),
            (&["gzip;q=0, *"], false),
            (&["*", "gzip;q=0"], false),
            (&["gzip;q=0.5, identity"], false),
            (&["gzip;q=0.5", "identity;q=0.8"], false),
            (&["gzip;q=much"], false),
            (&["identity"], false),
            (&[""], false),
            (&[], false),
        ];
        for (lines, wanted) in cases {
            let mut headers = HeaderMap::new();
            for line in *lines {
                headers.append(header::ACCEPT_ENCODING, line.parse().unwrap());
            }
            assert_eq!(prefers_gzip(&headers), *wanted, "{lines:?}");
        }
    }
}
