//! Bodies that select points to change: delete, change payload, delete vectors.
//!
//! ```text
//!   {"points":[1,2]}  or  {"filter":{..}}     delete, clear payload
//!   ... "payload":{..}, "key":"a.b"           set, overwrite payload
//!   ... "keys":["a"]                          delete payload keys
//!   ... "vector":["name"]                     delete vectors
//! ```
//!
//! Where ids are given a filter beside them is not looked at.

use crate::wire::filter::{self, read_not_implemented, read_path};
use crate::wire::json::{DecodeError, Decoded, Reader};
use crate::wire::vector::checked_name;
use crate::wire::{id, payload};
use ramekin_base::Result;
use ramekin_fields::Path;
use ramekin_memory::SharedReservation;
use ramekin_vectors::{PayloadChange, Selection, Write};

/// Reads an object with `points` or a `filter`, and hands every other field to `field`.
fn select(
    body: &[u8],
    room: &mut SharedReservation,
    mut field: impl FnMut(&mut Reader<'_>, &str, &mut SharedReservation) -> Decoded<()>,
) -> Decoded<Selection> {
    let mut reader = Reader::new(body)?;
    let (mut ids, mut filter) = (None, None);
    reader.object(|reader, key| match key {
        "points" if reader.null()? => Ok(()),
        "points" => {
            ids = Some(id::list(reader, room)?.finish());
            Ok(())
        }
        "filter" if reader.null()? => Ok(()),
        "filter" => {
            filter = Some(filter::read(reader, room)?);
            Ok(())
        }
        "shard_key" => read_not_implemented(reader),
        _ => field(reader, key, room),
    })?;
    reader.finish()?;
    let selection = ids.map(Selection::Ids).or(filter.map(Selection::Filter));
    selection.ok_or_else(|| DecodeError::malformed("missing field `points` (a list of point ids) or `filter`"))
}

fn skip_field(reader: &mut Reader<'_>, _: &str, _: &mut SharedReservation) -> Decoded<()> {
    reader.skip()
}

/// Decodes the body of `POST points/delete`.
pub fn delete(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    Ok(Write::Delete(select(body, room, skip_field)?))
}

/// Decodes the body of `POST points/payload/clear`.
pub fn clear_payload(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    Ok(Write::Payload { points: select(body, room, skip_field)?, change: PayloadChange::Clear })
}

/// Reads `payload` beside a selection, and the path of the object that it is for.
fn with_payload(
    body: &[u8],
    room: &mut SharedReservation,
    change: impl FnOnce(Box<str>, Option<Path>) -> PayloadChange,
) -> Decoded<Write> {
    let (mut payload, mut path): (Option<Box<str>>, _) = (None, None);
    let points = select(body, room, |reader, key, room| match key {
        "payload" => {
            payload = Some(payload::read(reader, room)?);
            Ok(())
        }
        "key" if reader.null()? => Ok(()),
        "key" => {
            path = Some(read_path(reader, room)?);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    let payload = payload.ok_or_else(|| DecodeError::missing("payload"))?;
    Ok(Write::Payload { points, change: change(payload, path) })
}

/// Decodes the body of `POST points/payload`.
pub fn set_payload(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    Ok(with_payload(body, room, |keys, path| PayloadChange::Merge { keys, path })?)
}

/// Decodes the body of `PUT points/payload`.
pub fn overwrite_payload(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    // The whole payload is replaced, whatever the path.
    Ok(with_payload(body, room, |payload, _| PayloadChange::Overwrite(payload))?)
}

/// Reads a list of names or paths, each by `read`.
fn several<T>(
    reader: &mut Reader<'_>,
    room: &mut SharedReservation,
    read: fn(&mut Reader<'_>, &mut SharedReservation) -> Decoded<T>,
) -> Decoded<Vec<T>> {
    let mut list = Vec::new();
    reader.array(|reader, _| {
        room.extend(&mut list, 1)?;
        list.push(read(reader, room)?);
        Ok(())
    })?;
    Ok(list)
}

/// Decodes the body of `POST points/payload/delete`.
pub fn delete_payload(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    let mut keys = None;
    let points = select(body, room, |reader, key, room| match key {
        "keys" => {
            keys = Some(several(reader, room, read_path)?);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    let keys = keys.ok_or_else(|| DecodeError::missing("keys"))?;
    Ok(Write::Payload { points, change: PayloadChange::DeleteKeys(keys) })
}

fn vector_name(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<String> {
    let name = reader.string()?;
    room.text(name.len())?;
    Ok(checked_name(&name)?.to_owned())
}

/// Decodes the body of `POST points/vectors/delete`.
pub fn delete_vectors(body: &[u8], room: &mut SharedReservation) -> Result<Write> {
    let mut found = None;
    let points = select(body, room, |reader, key, room| match key {
        "vector" | "vectors" => {
            found = Some(several(reader, room, vector_name)?);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    match found {
        None => Err(DecodeError::missing("vector").into()),
        Some(names) if names.is_empty() => {
            Err(DecodeError::invalid("value [] invalid, must have at least 1 element").in_field("vector").into())
        }
        Some(names) => Ok(Write::DeleteVectors { points, names }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::{Kind, PointId};
    use ramekin_fields::Filter;

    fn refusal<T: std::fmt::Debug>(result: Result<T>) -> (Kind, String) {
        let error = result.unwrap_err();
        (error.kind(), error.message().to_owned())
    }

    #[test]
    fn selections() {
        let mut room = SharedReservation::endless();
        let points = Selection::Ids(vec![PointId::Num(1), PointId::Num(2)]);
        assert_eq!(delete(br#"{"points":[1,2]}"#, &mut room).unwrap(), Write::Delete(points.clone()));
        let all = Selection::Filter(Filter::default());
        assert_eq!(delete(br#"{"filter":{}}"#, &mut room).unwrap(), Write::Delete(all));
        assert_eq!(
            set_payload(br#"{"payload":{"a":{"b":1}},"points":[1,2]}"#, &mut room).unwrap(),
            Write::Payload {
                points: points.clone(),
                change: PayloadChange::Merge { keys: r#"{"a":{"b":1}}"#.into(), path: None }
            }
        );
        assert_eq!(
            delete_payload(br#"{"keys":["a","\"b.c\""],"points":[1,2]}"#, &mut room).unwrap(),
            Write::Payload {
                points: points.clone(),
                change: PayloadChange::DeleteKeys(vec![Path::of_key("a"), Path::of_key("b.c")])
            }
        );
        assert_eq!(
            delete_vectors(br#"{"vector":[""],"points":[1,2]}"#, &mut room).unwrap(),
            Write::DeleteVectors { points, names: vec![String::new()] }
        );
    }

    #[test]
    fn refusals_name_the_field() {
        let mut room = SharedReservation::endless();
        let (kind, text) = refusal(delete(br#"{"filter":{"musst":[]}}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("filter.musst"), "{text}");
        let (kind, text) = refusal(delete(b"{}", &mut room));
        assert!(kind == Kind::Malformed && text.contains("points"), "{text}");
        let (kind, text) = refusal(delete_payload(br#"{"points":[],"keys":["a b"]}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("keys[0]"), "{text}");
        let (kind, text) = refusal(set_payload(br#"{"points":[],"payload":{},"key":"a["}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("key: Invalid json path"), "{text}");
        let (kind, text) = refusal(delete_vectors(br#"{"points":[1],"vector":[]}"#, &mut room));
        assert!(kind == Kind::Invalid && text.contains("vector"), "{text}");
    }
}
