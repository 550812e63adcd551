//! Which parts of points to return: `with_payload` and `with_vector`.

use super::filter::read_path;
use super::json::{DecodeError, Decoded, Reader};
use super::vector::checked_name;
use ramekin_base::limits::VECTOR_NAMES_MAX;
use ramekin_fields::Path;
use ramekin_memory::{BookedVec, SharedReservation};
use ramekin_vectors::{PayloadParts, VectorParts};

/// `true`, `["a", "b.c"]`, `{"include": [...]}`, `{"exclude": [...]}` or `null`, which is `missing`.
pub fn payload(reader: &mut Reader<'_>, room: &mut SharedReservation, missing: PayloadParts) -> Decoded<PayloadParts> {
    match reader.peek()? {
        b'n' => reader.null().map(|_| missing),
        b't' | b'f' => Ok(if reader.value()? { PayloadParts::All } else { PayloadParts::None }),
        b'[' => paths(reader, room).map(|paths| PayloadParts::Include(paths.finish())),
        b'{' => {
            let mut parts = None;
            reader.object(|reader, key| {
                let read = match key {
                    _ if parts.is_some() => {
                        Err(DecodeError::malformed("only one of `include` and `exclude` is allowed"))
                    }
                    "include" => paths(reader, room).map(|paths| PayloadParts::Include(paths.finish())),
                    "exclude" => paths(reader, room).map(|paths| PayloadParts::Exclude(paths.finish())),
                    _ => Err(DecodeError::malformed("unknown field, expected `include` or `exclude`")),
                };
                parts = Some(read?);
                Ok(())
            })?;
            parts.ok_or_else(|| DecodeError::malformed("expected `include` or `exclude`"))
        }
        _ => Err(reader.expected("a boolean, a list of keys, or an object with `include` or `exclude`")),
    }
}

fn paths(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<BookedVec<Path>> {
    let mut paths = BookedVec::new(room);
    reader.array(|reader, _| Ok(paths.push(read_path(reader, room)?)?))?;
    Ok(paths)
}

/// `true`, `["name"]` or `null`, which is none. A name that stands again asks for nothing more.
pub fn vector(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<VectorParts> {
    match reader.peek()? {
        b'n' => reader.null().map(|_| VectorParts::None),
        b't' | b'f' => Ok(if reader.value()? { VectorParts::All } else { VectorParts::None }),
        b'[' => {
            let mut names: BookedVec<String> = BookedVec::new(room);
            reader.array(|reader, _| {
                let name = reader.string()?;
                let name = checked_name(&name)?;
                if names.iter().any(|known| known == name) {
                    return Ok(());
                }
                if names.len() == VECTOR_NAMES_MAX {
                    return Err(DecodeError::malformed(format_args!(
                        "a request may name at most {VECTOR_NAMES_MAX} vectors"
                    )));
                }
                room.text(name.len())?;
                Ok(names.push(name.to_owned())?)
            })?;
            Ok(VectorParts::Names(names.finish()))
        }
        _ => Err(reader.expected("a boolean or a list of vector names")),
    }
}
