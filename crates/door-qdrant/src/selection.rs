//! Bodies that select points by their ids: read, delete, change payload, delete vectors.
//!
//! ```text
//!   {"points":[1,2]}                          delete, clear payload
//!   {"points":[1,2],"payload":{..}}           set, overwrite payload
//!   {"points":[1,2],"keys":["a"]}             delete payload keys
//!   {"points":[1,2],"vector":["name"]}        delete vectors
//!   {"ids":[1,2],"with_payload":..}           retrieve
//! ```
//!
//! A filter in the place of ids would select every point it matches, so even an empty one is refused here.

use crate::wire::filter::{read_none, read_unbuilt};
use crate::wire::json::{Decoded, Flaw, Reader};
use crate::wire::room::Room;
use crate::wire::vector::checked_name;
use crate::wire::{id, parts};
use ramekin_base::{Kind, PointId, Result, limits};
use ramekin_vectors::{Parts, PayloadChange, PayloadParts, Write};

/// Reads an object with `points`, and hands every other field to `field`.
fn select(
    body: &[u8],
    room: &mut Room,
    mut field: impl FnMut(&mut Reader<'_>, &str, &mut Room) -> Decoded<()>,
) -> Decoded<Vec<PointId>> {
    let mut reader = Reader::new(body)?;
    let mut ids = None;
    reader.object(|reader, key| match key {
        "points" if reader.null()? => Ok(()),
        "points" => {
            ids = Some(id::list(reader, room)?);
            Ok(())
        }
        "filter" if reader.null()? => Ok(()),
        "filter" => Err(Flaw::unbuilt("a selection by filter")),
        "shard_key" => read_unbuilt(reader),
        _ => field(reader, key, room),
    })?;
    reader.finish()?;
    ids.ok_or_else(|| Flaw::malformed("missing field `points`: a list of point ids (`filter` is not built yet)"))
}

fn skip_field(reader: &mut Reader<'_>, _: &str, _: &mut Room) -> Decoded<()> {
    reader.skip()
}

/// Decodes the body of `POST points/delete`.
pub fn delete(body: &[u8], room: &mut Room) -> Result<Write> {
    Ok(Write::Delete(select(body, room, skip_field)?))
}

/// Decodes the body of `POST points/payload/clear`.
pub fn clear_payload(body: &[u8], room: &mut Room) -> Result<Write> {
    Ok(Write::Payload { ids: select(body, room, skip_field)?, change: PayloadChange::Clear })
}

/// Reads `payload` beside a selection.
fn with_payload(body: &[u8], room: &mut Room, change: fn(Box<str>) -> PayloadChange) -> Decoded<Write> {
    let mut payload: Option<Box<str>> = None;
    let ids = select(body, room, |reader, key, room| match key {
        "payload" => {
            let text = reader.raw_object()?;
            if text.len() > limits::PAYLOAD_MAX {
                return Err(Flaw::new(Kind::TooLarge, format!("a payload of more than {} bytes", limits::PAYLOAD_MAX)));
            }
            room.take(text.len() as u64)?;
            payload = Some(text.into());
            Ok(())
        }
        "key" if reader.null()? => Ok(()),
        "key" => Err(Flaw::unbuilt("setting the payload below a key")),
        _ => reader.skip(),
    })?;
    let payload = payload.ok_or_else(|| Flaw::malformed("missing field `payload`"))?;
    Ok(Write::Payload { ids, change: change(payload) })
}

/// Decodes the body of `POST points/payload`.
pub fn set_payload(body: &[u8], room: &mut Room) -> Result<Write> {
    Ok(with_payload(body, room, PayloadChange::Merge)?)
}

/// Decodes the body of `PUT points/payload`.
pub fn overwrite_payload(body: &[u8], room: &mut Room) -> Result<Write> {
    Ok(with_payload(body, room, PayloadChange::Overwrite)?)
}

/// Reads a list of names or keys, each checked.
fn names(reader: &mut Reader<'_>, room: &mut Room, check: fn(&str) -> Decoded<&str>) -> Decoded<Vec<String>> {
    let mut names = Vec::new();
    reader.array(|reader, _| {
        let name = reader.string()?;
        room.extend(&mut names, 1)?;
        room.take(name.len() as u64)?;
        names.push(check(&name)?.to_owned());
        Ok(())
    })?;
    Ok(names)
}

/// A payload key at the top level: plain, or in quotes. A path into an object is not built yet.
fn top_level_key(key: &str) -> Decoded<&str> {
    match key.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(quoted) if !quoted.contains('"') => Ok(quoted),
        None if !key.contains(['.', '[', '"']) => Ok(key),
        _ => Err(Flaw::unbuilt(format!("deleting a payload key inside another one ({key})"))),
    }
}

/// Decodes the body of `POST points/payload/delete`.
pub fn delete_payload(body: &[u8], room: &mut Room) -> Result<Write> {
    let mut keys = None;
    let ids = select(body, room, |reader, key, room| match key {
        "keys" => {
            keys = Some(names(reader, room, top_level_key)?);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    let keys = keys.ok_or_else(|| Flaw::malformed("missing field `keys`"))?;
    Ok(Write::Payload { ids, change: PayloadChange::DeleteKeys(keys) })
}

/// Decodes the body of `POST points/vectors/delete`.
pub fn delete_vectors(body: &[u8], room: &mut Room) -> Result<Write> {
    let mut found = None;
    let ids = select(body, room, |reader, key, room| match key {
        "vector" => {
            found = Some(names(reader, room, checked_name)?);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    match found {
        None => Err(Flaw::malformed("missing field `vector`").into()),
        Some(names) if names.is_empty() => {
            Err(Flaw::invalid("value [] invalid, must have at least 1 element").in_field("vector").into())
        }
        Some(names) => Ok(Write::DeleteVectors { ids, names }),
    }
}

/// A read of points by their ids.
#[derive(Debug, PartialEq)]
pub struct Retrieve {
    pub ids: Vec<PointId>,
    pub parts: Parts,
}

/// Decodes the body of `POST points`.
pub fn retrieve(body: &[u8], room: &mut Room) -> Result<Retrieve> {
    let mut reader = Reader::new(body)?;
    let mut ids = None;
    let mut parts = Parts { payload: PayloadParts::All, ..Parts::default() };
    reader.object(|reader, key| {
        match key {
            "ids" => ids = Some(id::list(reader, room)?),
            "with_payload" => parts.payload = parts::payload(reader, PayloadParts::All)?,
            "with_vector" | "with_vectors" => parts.vectors = parts::vector(reader)?,
            "shard_key" => read_unbuilt(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    let ids = ids.ok_or_else(|| Flaw::malformed("missing field `ids`"))?;
    if ids.len() > limits::RESULTS_MAX {
        let most = limits::RESULTS_MAX;
        return Err(Flaw::invalid(format!("{} points, at most {most} in one request", ids.len()))
            .in_field("ids")
            .into());
    }
    Ok(Retrieve { ids, parts })
}

/// A page of points in the order of their ids.
#[derive(Debug, PartialEq)]
pub struct Scroll {
    pub from: Option<PointId>,
    pub limit: usize,
    pub parts: Parts,
}

/// Decodes the body of `POST points/scroll`.
pub fn scroll(body: &[u8]) -> Result<Scroll> {
    let mut reader = Reader::new(body)?;
    let parts = Parts { payload: PayloadParts::All, ..Parts::default() };
    let mut scroll = Scroll { from: None, limit: 10, parts };
    reader.object(|reader, key| {
        match key {
            "offset" if reader.null()? => scroll.from = None,
            "offset" => scroll.from = Some(id::read(reader)?),
            "limit" => scroll.limit = limit(reader, 10)?,
            "with_payload" => scroll.parts.payload = parts::payload(reader, PayloadParts::All)?,
            "with_vector" | "with_vectors" => scroll.parts.vectors = parts::vector(reader)?,
            "filter" => read_none(reader)?,
            "order_by" | "shard_key" => read_unbuilt(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    Ok(scroll)
}

/// Decodes the body of `POST points/count`; it says nothing that changes the answer.
pub fn count(body: &[u8]) -> Result<()> {
    let mut reader = Reader::new(body)?;
    reader.object(|reader, key| match key {
        "exact" => reader.value::<Option<bool>>().map(|_| ()),
        "filter" => read_none(reader),
        "shard_key" => read_unbuilt(reader),
        _ => reader.skip(),
    })?;
    Ok(reader.finish()?)
}

/// Reads a `limit`: at least 1, at most what one request may ask for; `null` is `missing`.
pub fn limit(reader: &mut Reader<'_>, missing: usize) -> Decoded<usize> {
    match reader.value::<Option<usize>>()? {
        None => Ok(missing),
        Some(0) => Err(Flaw::invalid("value 0 invalid, must be 1 or larger")),
        Some(limit) => in_reach(limit),
    }
}

/// A number of results that one request may reach.
pub fn in_reach(results: usize) -> Decoded<usize> {
    if results > limits::RESULTS_MAX {
        let most = limits::RESULTS_MAX;
        return Err(Flaw::invalid(format!("value {results} invalid, one request reaches at most {most} results")));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: std::fmt::Debug>(result: Result<T>) -> (Kind, String) {
        let error = result.unwrap_err();
        (error.kind(), error.message().to_owned())
    }

    #[test]
    fn selections() {
        let mut room = Room::endless();
        let ids = vec![PointId::Num(1), PointId::Num(2)];
        assert_eq!(delete(br#"{"points":[1,2]}"#, &mut room).unwrap(), Write::Delete(ids.clone()));
        assert_eq!(
            set_payload(br#"{"payload":{"a":{"b":1}},"points":[1,2]}"#, &mut room).unwrap(),
            Write::Payload { ids: ids.clone(), change: PayloadChange::Merge(r#"{"a":{"b":1}}"#.into()) }
        );
        assert_eq!(
            delete_payload(br#"{"keys":["a","\"b.c\""],"points":[1,2]}"#, &mut room).unwrap(),
            Write::Payload { ids: ids.clone(), change: PayloadChange::DeleteKeys(vec!["a".into(), "b.c".into()]) }
        );
        assert_eq!(
            delete_vectors(br#"{"vector":[""],"points":[1,2]}"#, &mut room).unwrap(),
            Write::DeleteVectors { ids, names: vec![String::new()] }
        );
    }

    #[test]
    fn refusals_name_the_field() {
        let mut room = Room::endless();
        for filter in ["{}", r#"{"must":[]}"#, r#"{"must":[{"has_id":[1]}]}"#] {
            let body = format!(r#"{{"filter":{filter}}}"#);
            let (kind, text) = refusal(delete(body.as_bytes(), &mut room));
            assert_eq!((kind, text.as_str()), (Kind::Unsupported, "filter: a selection by filter is not built yet"));
        }
        let (kind, text) = refusal(delete(b"{}", &mut room));
        assert!(kind == Kind::Malformed && text.contains("points"), "{text}");
        let (kind, text) = refusal(delete_payload(br#"{"points":[],"keys":["a.b"]}"#, &mut room));
        assert!(kind == Kind::Unsupported && text.contains("keys[0]"), "{text}");
        let (kind, text) = refusal(set_payload(br#"{"points":[],"payload":{},"key":"a"}"#, &mut room));
        assert!(kind == Kind::Unsupported && text.starts_with("key:"), "{text}");
        let (kind, text) = refusal(delete_vectors(br#"{"points":[1],"vector":[]}"#, &mut room));
        assert!(kind == Kind::Invalid && text.contains("vector"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"limit":0}"#));
        assert!(kind == Kind::Invalid && text.contains("limit: value 0 invalid"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"limit":"x"}"#));
        assert!(kind == Kind::Malformed && text.contains("limit: invalid type: string"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"order_by":"a"}"#));
        assert!(kind == Kind::Unsupported && text.contains("order_by"), "{text}");
    }

    #[test]
    fn a_scroll_has_qdrants_defaults() {
        let expected =
            Scroll { from: None, limit: 10, parts: Parts { payload: PayloadParts::All, ..Parts::default() } };
        assert_eq!(scroll(b"{}").unwrap(), expected);
        let asked = scroll(br#"{"offset":5,"limit":3,"with_payload":false,"with_vector":["a"],"filter":{}}"#).unwrap();
        let parts =
            Parts { payload: PayloadParts::None, vectors: ramekin_vectors::VectorParts::Names(vec!["a".into()]) };
        assert_eq!(asked, Scroll { from: Some(PointId::Num(5)), limit: 3, parts });
    }
}
