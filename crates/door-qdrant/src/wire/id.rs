//! Point ids on the wire: `7`, or `"550e8400-e29b-41d4-a716-446655440000"`.

use super::json::{DecodeError, Decoded, Reader};
use ramekin_base::{Kind, PointId, excerpt, limits};
use ramekin_memory::{BookedVec, SharedReservation};
use uuid::Uuid;

/// Reads an id: an unsigned integer, or a string that holds a UUID.
pub fn read(reader: &mut Reader<'_>) -> Decoded<PointId> {
    let wrong = |text: &str| {
        let text = excerpt(text, 80);
        DecodeError::malformed(format_args!(
            "value {text} is not a valid point ID, valid values are either an unsigned integer or a UUID"
        ))
    };
    match reader.peek()? {
        b'"' => {
            let text = reader.string()?;
            Uuid::parse_str(&text).map(|uuid| PointId::Uuid(uuid.as_u128())).map_err(|_| wrong(&text))
        }
        b'-' | b'0'..=b'9' => {
            let text = reader.raw()?;
            text.parse().map(PointId::Num).map_err(|_| wrong(text))
        }
        _ => Err(reader.expected("a point ID")),
    }
}

/// Reads a list of ids.
pub fn list(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<BookedVec<PointId>> {
    let mut ids = BookedVec::new(room);
    let count = reader.clone().count()?;
    if count > limits::POINTS_PER_REQUEST_MAX {
        return Err(too_many());
    }
    ids.reserve(count)?;
    reader.array(|reader, _| Ok(ids.push(read(reader)?)?))?;
    Ok(ids)
}

/// More points than one request may hold.
pub fn too_many() -> Box<DecodeError> {
    DecodeError::new(
        Kind::TooLarge,
        format_args!("a request may name at most {} points", limits::POINTS_PER_REQUEST_MAX),
    )
}
