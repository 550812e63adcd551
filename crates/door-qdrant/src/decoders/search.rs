//! Bodies that search: `points/query`, its batch, and the older `points/search`.
//!
//! ```text
//!   "query": [0.1, 0.2]  or  7  or  "550e8400-..."  or  {"nearest": any of these}  or  {"order_by": ..}  or  absent: by id
//!   "using" "limit" "offset" "score_threshold" "with_payload" "with_vector"
//!   "params": {"exact", "hnsw_ef", "indexed_only", "quantization": {"rescore", "oversampling", "ignore"}, "max_reads"}
//!   "profile": true                                              ours, like "max_reads"
//! ```

use crate::decoders::listing::{limit, order};
use crate::wire::filter::{self, read_not_implemented};
use crate::wire::json::{DecodeError, Decoded, Reader};
use crate::wire::vector::{checked_name, floats};
use crate::wire::{id, parts};
use ramekin_base::{Kind, Result, limits};
use ramekin_memory::SharedReservation;
use ramekin_vectors::{PayloadParts, Query, Target, UNNAMED};

/// A search, and whether it is to say what it did.
#[derive(Debug, PartialEq)]
pub struct Search {
    pub query: Query,
    pub profile: bool,
    /// Candidates for each result, as the client wishes; their number follows once the limit is known.
    oversampling: f64,
}

/// Other kinds of queries of Qdrant's API.
const OTHER_QUERIES: [&str; 8] =
    ["recommend", "discover", "context", "fusion", "rrf", "formula", "sample", "relevance_feedback"];

/// Results of a search that does not say how many.
const LIMIT: usize = 10;

fn empty() -> Search {
    Search { query: Query::new(Target::Ids, LIMIT), profile: false, oversampling: 1.0 }
}

/// Decodes the body of `POST points/query`.
pub fn query(body: &[u8], room: &mut SharedReservation) -> Result<Search> {
    let mut reader = Reader::new(body)?;
    let search = read(&mut reader, room)?;
    reader.finish()?;
    Ok(search)
}

/// Decodes the body of `POST points/query/batch`.
pub fn query_batch(body: &[u8], room: &mut SharedReservation) -> Result<Vec<Search>> {
    Ok(batch(body, room, read)?)
}

/// Decodes the body of `POST points/search`.
pub fn search(body: &[u8], room: &mut SharedReservation) -> Result<Search> {
    let mut reader = Reader::new(body)?;
    let search = read_older(&mut reader, room)?;
    reader.finish()?;
    Ok(search)
}

/// Decodes the body of `POST points/search/batch`.
pub fn search_batch(body: &[u8], room: &mut SharedReservation) -> Result<Vec<Search>> {
    Ok(batch(body, room, read_older)?)
}

type Read = fn(&mut Reader<'_>, &mut SharedReservation) -> Decoded<Search>;

fn batch(body: &[u8], room: &mut SharedReservation, read: Read) -> Decoded<Vec<Search>> {
    let mut reader = Reader::new(body)?;
    let mut searches = None;
    reader.object(|reader, key| match key {
        "searches" => {
            let mut list = Vec::new();
            reader.array(|reader, index| {
                if index >= limits::QUERIES_PER_BATCH_MAX {
                    let most = limits::QUERIES_PER_BATCH_MAX;
                    return Err(DecodeError::new(Kind::TooLarge, format!("a batch may hold at most {most} queries")));
                }
                room.extend(&mut list, 1)?;
                list.push(read(reader, room)?);
                Ok(())
            })?;
            searches = Some(list);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    reader.finish()?;
    searches.ok_or_else(|| DecodeError::missing("searches"))
}

fn read(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Search> {
    let mut search = empty();
    reader.object(|reader, key| match key {
        "query" if reader.null()? => Ok(()),
        "query" => {
            search.query.target = target(reader, room)?;
            Ok(())
        }
        "prefetch" if reader.peek()? == b'[' => {
            reader.array(|_, _| Err(DecodeError::not_implemented("this field"))).map(|_| ())
        }
        "prefetch" | "lookup_from" => read_not_implemented(reader),
        "using" => {
            search.query.using = name(reader)?;
            Ok(())
        }
        _ => shared(reader, key, room, &mut search),
    })?;
    check(search)
}

fn read_older(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Search> {
    let mut search = empty();
    let (mut has_vector, mut has_limit) = (false, false);
    reader.object(|reader, key| {
        match key {
            "vector" if reader.peek()? == b'{' => reader.object(|reader, key| {
                match key {
                    "name" => search.query.using = name(reader)?,
                    "vector" => {
                        has_vector = true;
                        search.query.target = Target::Vector(vector(reader, room)?);
                    }
                    _ => reader.skip()?,
                }
                Ok(())
            })?,
            "vector" => {
                has_vector = true;
                search.query.target = Target::Vector(vector(reader, room)?);
            }
            "limit" | "top" => {
                has_limit = true;
                search.query.limit = limit(reader, LIMIT)?;
            }
            _ => shared(reader, key, room, &mut search)?,
        }
        Ok(())
    })?;
    for (field, there) in [("vector", has_vector), ("limit", has_limit)] {
        if !there {
            return Err(DecodeError::missing(field));
        }
    }
    check(search)
}

/// Fields that both forms of a search have.
fn shared(reader: &mut Reader<'_>, key: &str, room: &mut SharedReservation, search: &mut Search) -> Decoded<()> {
    let query = &mut search.query;
    match key {
        "limit" => query.limit = limit(reader, LIMIT)?,
        "offset" => query.offset = reader.value::<Option<usize>>()?.unwrap_or(0),
        "score_threshold" if reader.null()? => query.score_threshold = None,
        "score_threshold" => query.score_threshold = Some(reader.float()?),
        "with_payload" => query.parts.payload = parts::payload(reader, room, PayloadParts::None)?,
        "with_vector" | "with_vectors" => query.parts.vectors = parts::vector(reader, room)?,
        "params" if reader.null()? => {}
        "params" => search.oversampling = params(reader, query)?,
        "filter" => query.filter = filter::read(reader, room)?,
        "shard_key" => read_not_implemented(reader)?,
        "profile" => search.profile = reader.value::<Option<bool>>()?.unwrap_or(false),
        _ => reader.skip()?,
    }
    Ok(())
}

/// What follows from all fields together.
fn check(mut search: Search) -> Decoded<Search> {
    let query = &mut search.query;
    if search.oversampling > 1.0 {
        let reach = query.limit.saturating_add(query.offset) as f64;
        query.candidates = (reach * search.oversampling).min(limits::CANDIDATES_MAX as f64).ceil() as usize;
    }
    if query.max_reads.is_some() && matches!(query.target, Target::Order(_)) {
        return Err(DecodeError::invalid("an order reads what it needs; `max_reads` cannot be kept").in_field("params"));
    }
    if query.exact && query.max_reads.is_some() {
        return Err(
            DecodeError::invalid("an exact search reads every vector; `max_reads` cannot be kept").in_field("params")
        );
    }
    Ok(search)
}

fn name(reader: &mut Reader<'_>) -> Decoded<String> {
    if reader.null()? {
        return Ok(UNNAMED.to_owned());
    }
    Ok(checked_name(&reader.string()?)?.to_owned())
}

fn vector(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Vec<f32>> {
    let mut data = Vec::new();
    floats(reader, &mut data, None, room)?;
    Ok(data)
}

/// Reads a `query`: what to be near to.
fn target(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Target> {
    match reader.peek()? {
        b'[' => vector(reader, room).map(Target::Vector),
        b'"' | b'-' | b'0'..=b'9' => id::read(reader).map(Target::Point),
        b'{' => {
            let mut target = None;
            reader.object(|reader, key| match key {
                "nearest" if reader.peek()? == b'{' => {
                    Err(DecodeError::not_implemented("a sparse vector or inference"))
                }
                "nearest" => {
                    target = Some(self::target(reader, room)?);
                    Ok(())
                }
                "order_by" => {
                    target = Some(Target::Order(order(reader, room)?));
                    Ok(())
                }
                "mmr" => read_not_implemented(reader),
                "indices" | "values" => Err(DecodeError::not_implemented("a sparse vector")),
                "text" | "image" | "object" | "model" => Err(DecodeError::not_implemented("inference")),
                other if OTHER_QUERIES.contains(&other) => Err(DecodeError::not_implemented("this kind of query")),
                _ => reader.skip(),
            })?;
            target.ok_or_else(|| {
                DecodeError::malformed("expected a vector, a point ID, or an object with `nearest` or `order_by`")
            })
        }
        _ => Err(reader.expected("a vector, a point ID, or an object with `nearest` or `order_by`")),
    }
}

/// Reads `params`; returns the oversampling.
fn params(reader: &mut Reader<'_>, query: &mut Query) -> Decoded<f64> {
    let mut oversampling = 1.0f64;
    reader.object(|reader, key| {
        match key {
            "hnsw_ef" => {
                query.ef = match reader.value::<Option<usize>>()? {
                    Some(0) => return Err(DecodeError::invalid("value 0 invalid, must be 1 or larger")),
                    ef => ef.map(|ef| ef.min(limits::CANDIDATES_MAX)),
                }
            }
            "exact" => query.exact = reader.value::<Option<bool>>()?.unwrap_or(false),
            "indexed_only" => query.indexed_only = reader.value::<Option<bool>>()?.unwrap_or(false),
            "quantization" if reader.null()? => {}
            "quantization" => reader.object(|reader, key| {
                match key {
                    "rescore" => query.rescore = reader.value::<Option<bool>>()?.unwrap_or(true),
                    // Scores are exact once rescored; there is nothing more to ignore.
                    "ignore" if reader.value::<Option<bool>>()? == Some(true) => query.rescore = true,
                    "ignore" => {}
                    "oversampling" => match reader.value::<Option<f64>>()? {
                        Some(times) if times < 1.0 => {
                            return Err(DecodeError::invalid(format!("value {times} invalid, must be 1.0 or larger")));
                        }
                        times => oversampling = times.unwrap_or(1.0),
                    },
                    _ => reader.skip()?,
                }
                Ok(())
            })?,
            "acorn" if reader.null()? => {}
            // It steers how a graph is searched with a filter; there is none.
            "acorn" => reader.object(|reader, key| match key {
                "enable" => reader.value::<Option<bool>>().map(|_| ()),
                _ => reader.skip(),
            })?,
            "max_reads" => query.max_reads = reader.value::<Option<usize>>()?,
            "idf" => read_not_implemented(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(oversampling)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::PointId;
    use ramekin_fields::{Filter, Order, Path};
    use ramekin_vectors::{Parts, VectorParts};

    fn decoded(body: &str) -> Search {
        query(body.as_bytes(), &mut SharedReservation::endless()).unwrap()
    }

    #[test]
    fn targets() {
        assert_eq!(decoded("{}").query.target, Target::Ids);
        assert_eq!(decoded(r#"{"query":[1,2.5]}"#).query.target, Target::Vector(vec![1.0, 2.5]));
        assert_eq!(decoded(r#"{"query":{"nearest":[1]}}"#).query.target, Target::Vector(vec![1.0]));
        let order = Order { path: Path::parse("a").unwrap(), descending: false, start: None };
        assert_eq!(decoded(r#"{"query":{"order_by":"a"}}"#).query.target, Target::Order(order));
        assert_eq!(decoded(r#"{"query":7}"#).query.target, Target::Point(PointId::Num(7)));
        let uuid = r#"{"query":{"nearest":"00000000-0000-0000-0000-000000000007"}}"#;
        assert_eq!(decoded(uuid).query.target, Target::Point(PointId::Uuid(7)));
    }

    #[test]
    fn all_fields() {
        let search = decoded(
            r#"{"query":[1],"using":"a","limit":3,"offset":2,"score_threshold":0.5,"with_payload":{"exclude":["x"]},
                "with_vector":true,"filter":{"must":[]},"profile":true,"prefetch":[],"lookup_from":null,
                "params":{"hnsw_ef":64,"exact":true,"indexed_only":true,"quantization":{"rescore":false},"acorn":{"enable":true}}}"#,
        );
        let query = Query {
            target: Target::Vector(vec![1.0]),
            using: "a".into(),
            filter: Filter::default(),
            limit: 3,
            offset: 2,
            score_threshold: Some(0.5),
            exact: true,
            ef: Some(64),
            rescore: false,
            candidates: 0,
            max_reads: None,
            indexed_only: true,
            parts: Parts { payload: PayloadParts::Exclude(vec![Path::of_key("x")]), vectors: VectorParts::All },
        };
        assert_eq!(search, Search { query, profile: true, oversampling: 1.0 });
        let wish = decoded(r#"{"params":{"quantization":{"oversampling":2.5}},"limit":20}"#);
        assert_eq!((wish.query.ef, wish.query.candidates), (None, 50));
        assert_eq!(decoded(r#"{"params":{"max_reads":7}}"#).query.max_reads, Some(7));
    }

    #[test]
    fn the_older_form() {
        let body = br#"{"vector":{"name":"a","vector":[1,2]},"top":3}"#;
        let search = search(body, &mut SharedReservation::endless()).unwrap();
        assert_eq!((search.query.using.as_str(), search.query.limit), ("a", 3));
        assert_eq!(search.query.target, Target::Vector(vec![1.0, 2.0]));
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, kind, message) in [
            (r#"{"limit":0}"#, Kind::Invalid, "limit: value 0 invalid"),
            (r#"{"limit":-1}"#, Kind::Malformed, "limit: invalid value"),
            (r#"{"limit":18446744073709551616}"#, Kind::Malformed, "limit: invalid"),
            (r#"{"params":{"hnsw_ef":0}}"#, Kind::Invalid, "params.hnsw_ef: value 0 invalid"),
            (r#"{"params":{"quantization":{"oversampling":0.5}}}"#, Kind::Invalid, "params.quantization.oversampling"),
            (r#"{"params":{"max_reads":-5}}"#, Kind::Malformed, "params.max_reads"),
            (r#"{"params":{"max_reads":5,"exact":true}}"#, Kind::Invalid, "params: an exact search"),
            (r#"{"query":{"order_by":"a"},"params":{"max_reads":5}}"#, Kind::Invalid, "params: an order"),
            (r#"{"query":{"recommend":{}}}"#, Kind::Unsupported, "query.recommend: this kind of query is not built"),
            (r#"{"query":{"fusion":"rrf"},"prefetch":[{}]}"#, Kind::Unsupported, "query.fusion"),
            (r#"{"prefetch":[{"query":[1]}]}"#, Kind::Unsupported, "prefetch"),
            (r#"{"query":[[1]]}"#, Kind::Unsupported, "query[0]: a multivector"),
            (r#"{"query":{"indices":[1],"values":[1]}}"#, Kind::Unsupported, "query.indices: a sparse"),
            (r#"{"query":{"nearest":[1],"mmr":{}}}"#, Kind::Unsupported, "query.mmr"),
            (r#"{"query":{}}"#, Kind::Malformed, "query: expected a vector"),
            (r#"{"query":true}"#, Kind::Malformed, "query: expected a vector"),
            (r#"{"query":"x"}"#, Kind::Malformed, "query: value x is not a valid point ID"),
            (
                r#"{"filter":{"must":[{"key":"a","match":{"value":1.5}}]}}"#,
                Kind::Malformed,
                "filter.must[0].match.value",
            ),
            (r#"{"filter":{"most":[]}}"#, Kind::Malformed, "filter.most: unknown field"),
            (r#"{"with_payload":{"include":["a"],"exclude":["b"]}}"#, Kind::Malformed, "with_payload"),
            (r#"{"with_vector":3}"#, Kind::Malformed, "with_vector: expected a boolean"),
        ] {
            let error = query(body.as_bytes(), &mut SharedReservation::endless()).unwrap_err();
            assert_eq!(error.kind(), kind, "{body}: {error}");
            assert!(error.message().contains(message), "{body}: {error}");
        }
        let many = format!(r#"{{"searches":[{}{{}}]}}"#, "{},".repeat(limits::QUERIES_PER_BATCH_MAX));
        assert_eq!(query_batch(many.as_bytes(), &mut SharedReservation::endless()).unwrap_err().kind(), Kind::TooLarge);
    }
}
