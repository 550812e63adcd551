//! Which parts of points to return: `with_payload` and `with_vector`.

use super::filter::read_path;
use super::json::{Decoded, Flaw, Reader};
use super::room::Room;
use ramekin_fields::Path;
use ramekin_vectors::{PayloadParts, VectorParts};

/// `true`, `["a", "b.c"]`, `{"include": [...]}`, `{"exclude": [...]}` or `null`, which is `missing`.
pub fn payload(reader: &mut Reader<'_>, room: &mut Room, missing: PayloadParts) -> Decoded<PayloadParts> {
    match reader.peek()? {
        b'n' => reader.null().map(|_| missing),
        b't' | b'f' => Ok(if reader.value()? { PayloadParts::All } else { PayloadParts::None }),
        b'[' => paths(reader, room).map(PayloadParts::Include),
        b'{' => {
            let mut parts = None;
            reader.object(|reader, key| {
                let read = match key {
                    _ if parts.is_some() => Err(Flaw::malformed("only one of `include` and `exclude` is allowed")),
                    "include" => paths(reader, room).map(PayloadParts::Include),
                    "exclude" => paths(reader, room).map(PayloadParts::Exclude),
                    _ => Err(Flaw::malformed("unknown field, expected `include` or `exclude`")),
                };
                parts = Some(read?);
                Ok(())
            })?;
            parts.ok_or_else(|| Flaw::malformed("expected `include` or `exclude`"))
        }
        _ => Err(reader.expected("a boolean, a list of keys, or an object with `include` or `exclude`")),
    }
}

fn paths(reader: &mut Reader<'_>, room: &mut Room) -> Decoded<Vec<Path>> {
    let mut paths = Vec::new();
    reader.array(|reader, _| {
        room.extend(&mut paths, 1)?;
        paths.push(read_path(reader, room)?);
        Ok(())
    })?;
    Ok(paths)
}

/// `true`, `["name"]` or `null`, which is none.
pub fn vector(reader: &mut Reader<'_>) -> Decoded<VectorParts> {
    match reader.peek()? {
        b'n' => reader.null().map(|_| VectorParts::None),
        b't' | b'f' => Ok(if reader.value()? { VectorParts::All } else { VectorParts::None }),
        b'[' => {
            let mut names = Vec::new();
            reader.array(|reader, _| {
                names.push(reader.string()?.into_owned());
                Ok(())
            })?;
            Ok(VectorParts::Names(names))
        }
        _ => Err(reader.expected("a boolean or a list of vector names")),
    }
}
