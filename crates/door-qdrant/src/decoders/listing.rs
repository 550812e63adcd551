//! Bodies of reads that name no vector: points by their ids, a page of them, how many, the values of a field.
//!
//! ```text
//!   {"ids":[1,2],"with_payload":..}                                retrieve
//!   {"filter":{..},"limit":10,"offset":5}                          scroll, by ids
//!   {"filter":{..},"order_by":{"key":"a","direction":"desc"}}      scroll, by the values of a field
//!   {"filter":{..},"exact":false}                                  count
//!   {"key":"a","limit":10,"filter":{..}}                           facet
//! ```

use crate::decoders::sections::word;
use crate::wire::filter::{self, read_not_implemented, read_path, time};
use crate::wire::json::{DecodeError, Decoded, Reader};
use crate::wire::{id, parts};
use ramekin_base::{Error, PointId, Result};
use ramekin_fields::{Filter, Order, Path, Start};
use ramekin_memory::SharedReservation;
use ramekin_vectors::{Parts, PayloadParts};

/// A read of points by their ids.
#[derive(Debug, PartialEq)]
pub struct Retrieve {
    pub ids: Vec<PointId>,
    pub parts: Parts,
}

/// Decodes the body of `POST points`.
pub fn retrieve(body: &[u8], room: &mut SharedReservation) -> Result<Retrieve> {
    let mut reader = Reader::new(body)?;
    let mut ids = None;
    let mut parts = Parts { payload: PayloadParts::All, ..Parts::default() };
    reader.object(|reader, key| {
        match key {
            "ids" => ids = Some(id::list(reader, room)?.finish()),
            "with_payload" => parts.payload = parts::payload(reader, room, PayloadParts::All)?,
            "with_vector" | "with_vectors" => parts.vectors = parts::vector(reader, room)?,
            "shard_key" => read_not_implemented(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    Ok(Retrieve { ids: ids.ok_or_else(|| DecodeError::missing("ids"))?, parts })
}

/// A page of points in the order of their ids.
#[derive(Debug, PartialEq)]
pub struct Scroll {
    pub from: Option<PointId>,
    pub limit: usize,
    pub filter: Filter,
    pub parts: Parts,
    /// The first points in this order, in place of a page by ids.
    pub order: Option<Order>,
}

/// Decodes the body of `POST points/scroll`.
pub fn scroll(body: &[u8], room: &mut SharedReservation) -> Result<Scroll> {
    let mut reader = Reader::new(body)?;
    let parts = Parts { payload: PayloadParts::All, ..Parts::default() };
    let mut scroll = Scroll { from: None, limit: 10, filter: Filter::default(), parts, order: None };
    reader.object(|reader, key| {
        match key {
            "offset" if reader.null()? => scroll.from = None,
            "offset" => scroll.from = Some(id::read(reader)?),
            "limit" => scroll.limit = limit(reader, 10)?,
            "with_payload" => scroll.parts.payload = parts::payload(reader, room, PayloadParts::All)?,
            "with_vector" | "with_vectors" => scroll.parts.vectors = parts::vector(reader, room)?,
            "filter" => scroll.filter = filter::read(reader, room)?,
            "order_by" if reader.null()? => {}
            "order_by" => scroll.order = Some(order(reader, room)?),
            "shard_key" => read_not_implemented(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    if scroll.from.is_some() && scroll.order.is_some() {
        return Err(Error::malformed(
            "Cannot use an `offset` when using `order_by`: go on with `order_by.start_from`, and leave out the ids that came at \
             that value by a filter",
        ));
    }
    Ok(scroll)
}

/// Reads an `order_by`: a field, or a field with a direction and a start.
pub fn order(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Order> {
    if reader.peek()? == b'"' {
        return Ok(Order { path: read_path(reader, room)?, descending: false, start: None });
    }
    let (mut path, mut descending, mut start) = (None, false, None);
    reader.object(|reader, key| {
        match key {
            "key" => path = Some(read_path(reader, room)?),
            "direction" | "start_from" if reader.null()? => {}
            "direction" => descending = word(reader, &["asc", "desc"])? == "desc",
            "start_from" => start = Some(order_start(reader)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(Order { path: path.ok_or_else(|| DecodeError::missing("key"))?, descending, start })
}

fn order_start(reader: &mut Reader<'_>) -> Decoded<Start> {
    if reader.peek()? == b'"' {
        return Ok(Start::Integer(time(reader)?));
    }
    let number = reader.value::<serde_json::Number>()?;
    let start = number.as_i64().map(Start::Integer).or_else(|| number.as_f64().map(Start::Float));
    start.ok_or_else(|| DecodeError::malformed("expected a number or a time"))
}

/// What is counted.
#[derive(Debug, PartialEq)]
pub struct Count {
    pub filter: Filter,
    /// Else an estimate is enough.
    pub exact: bool,
}

/// Decodes the body of `POST points/count`.
pub fn count(body: &[u8], room: &mut SharedReservation) -> Result<Count> {
    let mut reader = Reader::new(body)?;
    let mut count = Count { filter: Filter::default(), exact: true };
    reader.object(|reader, key| counted(reader, key, room, &mut count))?;
    reader.finish()?;
    Ok(count)
}

/// Reads a field that says which points are counted, and how.
fn counted(reader: &mut Reader<'_>, key: &str, room: &mut SharedReservation, count: &mut Count) -> Decoded<()> {
    match key {
        "exact" => count.exact = reader.value::<Option<bool>>()?.unwrap_or(count.exact),
        "filter" => count.filter = filter::read(reader, room)?,
        "shard_key" => read_not_implemented(reader)?,
        _ => reader.skip()?,
    }
    Ok(())
}

/// The body of `POST facet`. Every count is exact.
#[derive(Debug, PartialEq)]
pub struct Facet {
    pub path: Path,
    pub limit: usize,
    pub filter: Filter,
}

/// Decodes the body of `POST facet`.
pub fn facet(body: &[u8], room: &mut SharedReservation) -> Result<Facet> {
    let mut reader = Reader::new(body)?;
    let (mut path, mut limit) = (None, 10);
    let mut counted_points = Count { filter: Filter::default(), exact: false };
    reader.object(|reader, key| {
        match key {
            "key" => path = Some(read_path(reader, room)?),
            "limit" => limit = self::limit(reader, 10)?,
            _ => counted(reader, key, room, &mut counted_points)?,
        }
        Ok(())
    })?;
    reader.finish()?;
    let path = path.ok_or_else(|| DecodeError::missing("key"))?;
    Ok(Facet { path, limit, filter: counted_points.filter })
}

/// Reads a `limit`: at least 1; `null` is `missing`. What goes beyond the points there are asks for all of them.
pub fn limit(reader: &mut Reader<'_>, missing: usize) -> Decoded<usize> {
    match reader.value::<Option<usize>>()? {
        None => Ok(missing),
        Some(0) => Err(DecodeError::invalid("value 0 invalid, must be 1 or larger")),
        Some(limit) => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Kind;

    fn refusal<T: std::fmt::Debug>(result: Result<T>) -> (Kind, String) {
        let error = result.unwrap_err();
        (error.kind(), error.message().to_owned())
    }

    #[test]
    fn refusals_name_the_field() {
        let mut room = SharedReservation::endless();
        let (kind, text) = refusal(scroll(br#"{"limit":0}"#, &mut room));
        assert!(kind == Kind::Invalid && text.contains("limit: value 0 invalid"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"limit":"x"}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("limit: invalid type: string"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"order_by":"a","offset":1}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("start_from"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"order_by":{"key":"a","direction":"up"}}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("order_by.direction"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"order_by":{"key":"a","start_from":"soon"}}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("order_by.start_from"), "{text}");
        let (kind, text) = refusal(scroll(br#"{"order_by":{"direction":"asc"}}"#, &mut room));
        assert!(kind == Kind::Malformed && text.contains("missing field `key`"), "{text}");
    }

    #[test]
    fn orders() {
        let order = |text: &str| {
            let body = format!(r#"{{"order_by":{text}}}"#);
            scroll(body.as_bytes(), &mut SharedReservation::endless()).unwrap().order
        };
        let path = Path::parse("a.b").unwrap();
        let of = |descending, start| Some(Order { path: path.clone(), descending, start });
        assert_eq!(order("null"), None);
        assert_eq!(order(r#""a.b""#), of(false, None));
        assert_eq!(order(r#"{"key":"a.b","direction":"desc","start_from":-3}"#), of(true, Some(Start::Integer(-3))));
        assert_eq!(order(r#"{"key":"a.b","direction":null,"start_from":2.5}"#), of(false, Some(Start::Float(2.5))));
        assert_eq!(
            order(r#"{"key":"a.b","start_from":"1970-01-01T00:00:01Z"}"#),
            of(false, Some(Start::Integer(1_000_000)))
        );
    }

    #[test]
    fn a_scroll_has_qdrants_defaults() {
        let mut room = SharedReservation::endless();
        let parts = Parts { payload: PayloadParts::All, ..Parts::default() };
        let expected = Scroll { from: None, limit: 10, filter: Filter::default(), parts, order: None };
        assert_eq!(scroll(b"{}", &mut room).unwrap(), expected);
        let body = br#"{"offset":5,"limit":3,"with_payload":false,"with_vector":["a"],"filter":{}}"#;
        let asked = scroll(body, &mut room).unwrap();
        let parts =
            Parts { payload: PayloadParts::None, vectors: ramekin_vectors::VectorParts::Names(vec!["a".into()]) };
        assert_eq!(
            asked,
            Scroll { from: Some(PointId::Num(5)), limit: 3, filter: Filter::default(), parts, order: None }
        );
    }
}
