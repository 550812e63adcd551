//! Texts by their number, as a segment and an overlay keep payloads.
//!
//! ```text
//!   ends    0 | end of text 0 | end of text 1 | ...     8 bytes each
//!   texts   text 0 text 1 ...                           one after another
//! ```

use crate::api::codec::read_number;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_memory::Reservation;
use ramekin_pages::{Pages, Section};

/// Bytes that one fetch pins at most, so that a query's pins stay within the cache's reserve.
pub(crate) const FETCH_BYTES: usize = 512 << 10;

/// Texts fetched in one batch at most.
const BATCH: usize = 64;

/// The texts of these numbers, in the order asked; `memory` grows by what they hold. `name` is the file's, for errors.
pub(crate) fn read(
    pages: &Pages,
    (ends, texts): (&Section, &Section),
    numbers: &[u32],
    name: &str,
    memory: &mut Reservation,
) -> Result<Vec<String>> {
    let mut read = Vec::with_capacity(numbers.len());
    for numbers in numbers.chunks(BATCH) {
        let spans = spans(pages, ends, texts, numbers, name)?;
        let mut rest = &spans[..];
        while !rest.is_empty() {
            let (mut fetch, mut wants, mut bytes) = (pages.fetch(), Vec::new(), 0);
            for (at, len) in rest {
                if bytes > 0 && bytes + len > FETCH_BYTES {
                    break;
                }
                bytes += len + PAGE;
                wants.push(if *len == 0 { None } else { Some(fetch.want(texts, *at, *len)?) });
            }
            let pinned = fetch.run()?;
            for want in &wants {
                read.push(of_bytes(want.map_or(&[][..], |want| pinned.bytes(want)), name, memory)?);
            }
            rest = &rest[wants.len()..];
        }
    }
    Ok(read)
}

/// Start and length of each text.
fn spans(pages: &Pages, ends: &Section, texts: &Section, numbers: &[u32], name: &str) -> Result<Vec<(u64, usize)>> {
    let mut fetch = pages.fetch();
    let wants =
        numbers.iter().map(|number| fetch.want(ends, u64::from(*number) * 8, 16)).collect::<Result<Vec<_>>>()?;
    let pinned = fetch.run()?;
    let span = |want| {
        let bytes: &[u8] = pinned.bytes(want);
        let (start, end) = (read_number(&bytes[..8]), read_number(&bytes[8..]));
        let len = end.checked_sub(start).filter(|_| end <= texts.len());
        let len = len.ok_or_else(|| Error::corrupt("a payload's place is broken").at(name))?;
        Ok((start, len as usize))
    };
    wants.into_iter().map(span).collect()
}

/// A copy of a text, once there is memory for it.
pub(crate) fn of_bytes(bytes: &[u8], name: &str, memory: &mut Reservation) -> Result<String> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::corrupt("a payload is not UTF-8").at(name))?;
    memory.grow(text.len() as u64)?;
    Ok(text.to_owned())
}
