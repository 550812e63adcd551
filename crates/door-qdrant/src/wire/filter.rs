//! Filters on the wire.
//!
//! ```text
//!   {"must": [...], "should": [...], "must_not": [...], "min_should": {"conditions": [...], "min_count": 2}}
//!
//!   a condition   {"key": "a.b[].c", "match": {..} | "range": {..} | "geo_radius": {..} | "values_count": {..} ...}
//!                 {"is_empty": {"key": ..}}  {"is_null": {"key": ..}}  {"has_id": [..]}  {"has_vector": ".."}
//!                 {"slice": {"total": 4, "index": 0}}  {"nested": {"key": .., "filter": {..}}}  or a filter again
//! ```
//!
//! Where a list of conditions is expected, one alone will do.

use super::id;
use super::json::{DecodeError, Decoded, Reader};
use ramekin_base::excerpt;
use ramekin_fields::{
    Condition, FieldCondition, Filter, GeoBox, GeoPoint, GeoPolygon, GeoRadius, Match, MinShould, Path, Scalar,
    Scalars, Span, Test, micros,
};
use ramekin_memory::{BookedVec, SharedReservation};

/// Reads a filter; `null` is an empty one.
pub fn read(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Filter> {
    let mut filter = Filter::default();
    if !reader.null()? {
        reader.object(|reader, key| match part(reader, key, room, &mut filter)? {
            true => Ok(()),
            false => {
                Err(DecodeError::malformed("unknown field, expected one of `must`, `should`, `must_not`, `min_should`"))
            }
        })?;
    }
    Ok(filter)
}

/// Reads a field of a filter; false if it is none.
fn part(reader: &mut Reader<'_>, key: &str, room: &mut SharedReservation, filter: &mut Filter) -> Decoded<bool> {
    match key {
        "must" => filter.must = conditions(reader, room)?.boxed()?,
        "should" => filter.should = conditions(reader, room)?.boxed()?,
        "must_not" => filter.must_not = conditions(reader, room)?.boxed()?,
        "min_should" if reader.null()? => {}
        "min_should" => filter.min_should = Some(min_should(reader, room)?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn conditions(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<BookedVec<Condition>> {
    let mut list = BookedVec::new(room);
    match reader.peek()? {
        b'n' => _ = reader.null()?,
        b'{' => {
            list.push(condition(reader, room)?)?;
        }
        b'[' => {
            reader.array(|reader, _| Ok(list.push(condition(reader, room)?)?))?;
        }
        _ => return Err(reader.expected("a condition or a list of conditions")),
    }
    Ok(list)
}

fn min_should(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<MinShould> {
    let (mut list, mut least) = (None, None);
    reader.object(|reader, key| {
        match key {
            "conditions" => list = Some(conditions(reader, room)?),
            "min_count" => match reader.value()? {
                0 => return Err(DecodeError::invalid("value 0 invalid, must be 1 or larger")),
                count => least = Some(count),
            },
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(MinShould {
        conditions: list.ok_or_else(|| DecodeError::missing("conditions"))?.boxed()?,
        least: least.ok_or_else(|| DecodeError::missing("min_count"))?,
    })
}

const KINDS: &str = "expected a condition: an object with `key` and one of `match`, `range`, `geo_bounding_box`, \
     `geo_radius`, `geo_polygon`, `values_count`, `is_empty`, `is_null`; or with `is_empty`, `is_null`, `has_id`, \
     `has_vector`, `slice` or `nested`; or a filter";

/// Reads a condition.
fn condition(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Condition> {
    let (mut path, mut tests, mut other) = (None, BookedVec::new(room), None);
    let (mut filter, mut is_filter) = (Filter::default(), true);
    reader.object(|reader, key| {
        if part(reader, key, room, &mut filter)? {
            return Ok(());
        }
        is_filter = false;
        match key {
            "key" => path = Some(read_path(reader, room)?),
            "is_empty" if reader.peek()? == b'{' => other = Some(Condition::IsEmpty(path_of_object(reader, room)?)),
            "is_null" if reader.peek()? == b'{' => other = Some(Condition::IsNull(path_of_object(reader, room)?)),
            "has_id" => {
                let mut ids = id::list(reader, room)?.finish();
                ids.sort_unstable();
                ids.dedup();
                other = Some(Condition::HasId(ids.into()));
            }
            "has_vector" => {
                other = Some(Condition::HasVector(reader.text(room)?));
            }
            "slice" => other = Some(slice(reader)?),
            "nested" => other = Some(nested(reader, room)?),
            _ => {
                if let Some(test) = test(reader, key, room)? {
                    tests.push(test)?;
                }
            }
        }
        Ok(())
    })?;
    match (path, other) {
        (Some(_), _) if tests.is_empty() => Err(DecodeError::invalid("At least one field condition must be specified")),
        (Some(path), _) => Ok(Condition::Field(FieldCondition { path, tests: tests.boxed()? })),
        (None, Some(other)) => Ok(other),
        (None, None) if is_filter => Ok(Condition::Filter(filter)),
        (None, None) => Err(DecodeError::malformed(KINDS)),
    }
}

/// Reads what the values at a path are tested for; `null` and fields of other names are passed over.
fn test(reader: &mut Reader<'_>, key: &str, room: &mut SharedReservation) -> Decoded<Option<Test>> {
    if reader.null()? {
        return Ok(None);
    }
    Ok(Some(match key {
        "match" => Test::Match(read_match(reader, room)?),
        "range" => range(reader)?,
        "values_count" => Test::Count(span(reader, |reader| reader.value())?),
        "geo_bounding_box" => Test::Box(geo_box(reader)?),
        "geo_radius" => Test::Radius(geo_radius(reader)?),
        "geo_polygon" => Test::Polygon(geo_polygon(reader, room)?),
        "is_empty" => Test::IsEmpty(reader.value()?),
        "is_null" => Test::IsNull(reader.value()?),
        _ => {
            reader.skip()?;
            return Ok(None);
        }
    }))
}

/// Reads a path into a payload.
pub fn read_path(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Path> {
    let text = reader.text(room)?;
    path(&text, room)
}

/// Books and reads a path.
pub fn path(text: &str, room: &mut SharedReservation) -> Decoded<Path> {
    room.take(text.len() as u64 * PATH_BYTES)?;
    Ok(Path::parse(text)?)
}

/// Bytes that a path may take for each byte of its text: `[]` is a step.
const PATH_BYTES: u64 = 12;

/// Reads `{"key": path}`.
fn path_of_object(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Path> {
    let mut path = None;
    reader.object(|reader, key| match key {
        "key" => {
            path = Some(read_path(reader, room)?);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    path.ok_or_else(|| DecodeError::missing("key"))
}

fn nested(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Condition> {
    let (mut path, mut filter) = (None, None);
    reader.object(|reader, key| {
        match key {
            "key" => path = Some(read_path(reader, room)?),
            "filter" => filter = Some(read(reader, room)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    room.take(Path::STEP_BYTES)?;
    let path = path.ok_or_else(|| DecodeError::missing("key"))?.to_elements();
    let filter = filter.ok_or_else(|| DecodeError::missing("filter"))?;
    Ok(Condition::Nested { path, filter })
}

fn slice(reader: &mut Reader<'_>) -> Decoded<Condition> {
    let (mut total, mut index) = (None, None);
    reader.object(|reader, key| {
        match key {
            "total" => match reader.value::<u32>()? {
                0 => return Err(DecodeError::malformed("Slice total must be greater than 0")),
                found => total = Some(found),
            },
            "index" => index = Some(reader.value::<u32>()?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    let total = total.ok_or_else(|| DecodeError::missing("total"))?;
    let index = index.ok_or_else(|| DecodeError::missing("index"))?;
    match index < total {
        true => Ok(Condition::Slice { total, index }),
        false => Err(DecodeError::invalid(format_args!("index {index} invalid, must be less than total ({total})"))),
    }
}

const MATCHES: &str =
    "expected one of `value`, `text`, `text_any`, `phrase`, `prefix`, `any`, `except` in the match condition";

fn read_match(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Match> {
    let mut found = None;
    reader.object(|reader, key| {
        let read = match key {
            "value" => Match::Value(match reader.peek()? {
                b'"' => Scalar::Word(reader.text(room)?),
                b't' | b'f' => Scalar::Bool(reader.value()?),
                b'-' | b'0'..=b'9' => Scalar::Integer(reader.value()?),
                _ => return Err(reader.expected("a string, an integer or a boolean")),
            }),
            "text" => Match::Text(reader.text(room)?),
            "text_any" => Match::TextAny(reader.text(room)?),
            "phrase" => Match::Phrase(reader.text(room)?),
            "prefix" => Match::Prefix(reader.text(room)?),
            "any" => Match::Any(scalars(reader, room)?),
            "except" => Match::Except(scalars(reader, room)?),
            _ => return reader.skip(),
        };
        match found.replace(read) {
            None => Ok(()),
            Some(_) => Err(DecodeError::malformed("a match condition asks for one thing; use several conditions")),
        }
    })?;
    found.ok_or_else(|| DecodeError::malformed(MATCHES))
}

/// Reads a list of strings or of integers.
fn scalars(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Scalars> {
    let (mut words, mut integers) = (BookedVec::new(room), BookedVec::new(room));
    let count = reader.clone().count()?;
    reader.array(|reader, _| {
        match reader.peek()? {
            b'"' if integers.is_empty() => {
                if words.is_empty() {
                    words.reserve(count)?;
                }
                words.push(reader.text(room)?)?;
            }
            b'-' | b'0'..=b'9' if words.is_empty() => {
                if integers.is_empty() {
                    integers.reserve(count)?;
                }
                integers.push(reader.value()?)?;
            }
            _ => return Err(reader.expected("a list of strings or a list of integers")),
        }
        Ok(())
    })?;
    Ok(match integers.is_empty() {
        true => Scalars::words(words.boxed()?),
        false => Scalars::integers(integers.boxed()?),
    })
}

/// Reads bounds, each by `bound`.
fn span<T>(reader: &mut Reader<'_>, mut bound: impl FnMut(&mut Reader<'_>) -> Decoded<T>) -> Decoded<Span<T>> {
    let mut span = Span::default();
    reader.object(|reader, key| {
        let place = match key {
            "gt" => &mut span.gt,
            "gte" => &mut span.gte,
            "lt" => &mut span.lt,
            "lte" => &mut span.lte,
            _ => return reader.skip(),
        };
        if !reader.null()? {
            *place = Some(bound(reader)?);
        }
        Ok(())
    })?;
    Ok(span)
}

/// Reads a range of numbers or of times: the first bound says which.
fn range(reader: &mut Reader<'_>) -> Decoded<Test> {
    let mut ahead = reader.clone();
    let mut is_time = false;
    ahead.object(|reader, _| {
        is_time |= reader.peek()? == b'"';
        reader.skip()
    })?;
    match is_time {
        true => Ok(Test::Times(span(reader, time)?)),
        false => Ok(Test::Range(span(reader, |reader| reader.value())?)),
    }
}

/// Reads a time: microseconds since 1970.
pub fn time(reader: &mut Reader<'_>) -> Decoded<i64> {
    let text = reader.string()?;
    micros(&text).ok_or_else(|| {
        let text = excerpt(&text, 80);
        DecodeError::malformed(format_args!("'{text}' is not in a supported date/time format, please use RFC 3339"))
    })
}

fn geo_point(reader: &mut Reader<'_>) -> Decoded<GeoPoint> {
    let (mut lon, mut lat) = (None, None);
    reader.object(|reader, key| {
        match key {
            "lon" => lon = Some(reader.value::<f64>()?),
            "lat" => lat = Some(reader.value::<f64>()?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(GeoPoint::new(lon.ok_or_else(|| DecodeError::missing("lon"))?, lat.ok_or_else(|| DecodeError::missing("lat"))?)?)
}

fn geo_box(reader: &mut Reader<'_>) -> Decoded<GeoBox> {
    let (mut top_left, mut bottom_right) = (None, None);
    reader.object(|reader, key| {
        match key {
            "top_left" => top_left = Some(geo_point(reader)?),
            "bottom_right" => bottom_right = Some(geo_point(reader)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(GeoBox {
        top_left: top_left.ok_or_else(|| DecodeError::missing("top_left"))?,
        bottom_right: bottom_right.ok_or_else(|| DecodeError::missing("bottom_right"))?,
    })
}

fn geo_radius(reader: &mut Reader<'_>) -> Decoded<GeoRadius> {
    let (mut center, mut radius) = (None, None);
    reader.object(|reader, key| {
        match key {
            "center" => center = Some(geo_point(reader)?),
            "radius" => radius = Some(reader.value::<f64>()?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(GeoRadius {
        center: center.ok_or_else(|| DecodeError::missing("center"))?,
        radius: radius.ok_or_else(|| DecodeError::missing("radius"))?,
    })
}

fn geo_polygon(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<GeoPolygon> {
    let (mut exterior, mut interiors) = (None, BookedVec::new(room));
    reader.object(|reader, key| {
        match key {
            "exterior" => exterior = Some(ring(reader, room)?),
            "interiors" if reader.null()? => {}
            "interiors" => _ = reader.array(|reader, _| Ok(interiors.push(ring(reader, room)?.boxed()?)?))?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    let exterior = exterior.ok_or_else(|| DecodeError::missing("exterior"))?;
    Ok(GeoPolygon::new(exterior.boxed()?, interiors.boxed()?)?)
}

/// Reads `{"points": [...]}`.
fn ring(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<BookedVec<GeoPoint>> {
    let mut points = None;
    reader.object(|reader, key| match key {
        "points" => {
            let mut list = BookedVec::new(room);
            reader.array(|reader, _| Ok(list.push(geo_point(reader)?)?))?;
            points = Some(list);
            Ok(())
        }
        _ => reader.skip(),
    })?;
    points.ok_or_else(|| DecodeError::missing("points"))
}

/// Reads a field of Qdrant's API that is not built here: only `null` passes.
pub fn read_not_implemented(reader: &mut Reader<'_>) -> Decoded<()> {
    if reader.null()? { Ok(()) } else { Err(DecodeError::not_implemented("this field")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ramekin_base::{Error, Kind, PointId, Result};

    fn decode(text: &str) -> Result<Filter> {
        let mut reader = Reader::new(text.as_bytes())?;
        let filter = read(&mut reader, &mut SharedReservation::endless())?;
        reader.finish()?;
        Ok(filter)
    }

    /// The only condition of a filter.
    fn one(condition: &str) -> Result<Condition> {
        Ok(decode(&format!(r#"{{"must":{condition}}}"#))?.must[0].clone())
    }

    fn test_of(test: &str) -> Test {
        match one(&format!(r#"{{"key":"a.b[]",{test}}}"#)).unwrap() {
            Condition::Field(field) => {
                assert_eq!(field.path, Path::parse("a.b[]").unwrap());
                field.tests[0].clone()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_condition() {
        let path = Path::parse("a").unwrap();
        assert_eq!(one(r#"{"is_empty":{"key":"a"}}"#).unwrap(), Condition::IsEmpty(path.clone()));
        assert_eq!(one(r#"{"is_null":{"key":"a"}}"#).unwrap(), Condition::IsNull(path.clone()));
        let ids = [PointId::Num(1), PointId::Num(2)];
        assert_eq!(one(r#"{"has_id":[2,1,2]}"#).unwrap(), Condition::HasId(ids.into()));
        assert_eq!(one(r#"{"has_vector":"a"}"#).unwrap(), Condition::HasVector("a".into()));
        assert_eq!(one(r#"{"slice":{"total":3,"index":2}}"#).unwrap(), Condition::Slice { total: 3, index: 2 });
        let nested = Condition::Nested { path: path.to_elements(), filter: Filter::default() };
        assert_eq!(one(r#"{"nested":{"key":"a","filter":{}}}"#).unwrap(), nested);
        assert_eq!(one("{}").unwrap(), Condition::Filter(Filter::default()));
        assert!(
            matches!(one(r#"{"should":[{"has_id":[1]}]}"#).unwrap(), Condition::Filter(filter) if filter.should.len() == 1)
        );
        assert_eq!(decode("null").unwrap(), Filter::default());
        let filter = decode(r#"{"min_should":{"conditions":[{"has_id":[]}],"min_count":1},"must":null}"#).unwrap();
        assert_eq!(filter.min_should.unwrap().least, 1);
    }

    #[test]
    fn every_test_of_a_field() {
        let word = |text: &str| Match::Value(Scalar::Word(text.into()));
        assert_eq!(test_of(r#""match":{"value":"x"}"#), Test::Match(word("x")));
        assert_eq!(test_of(r#""match":{"value":-3}"#), Test::Match(Match::Value(Scalar::Integer(-3))));
        assert_eq!(test_of(r#""match":{"value":true}"#), Test::Match(Match::Value(Scalar::Bool(true))));
        assert_eq!(
            test_of(r#""match":{"any":["b","a"]}"#),
            Test::Match(Match::Any(Scalars::words(["a".into(), "b".into()].into())))
        );
        assert_eq!(
            test_of(r#""match":{"except":[2,1]}"#),
            Test::Match(Match::Except(Scalars::integers([1, 2].into())))
        );
        assert_eq!(test_of(r#""match":{"phrase":"x y"}"#), Test::Match(Match::Phrase("x y".into())));
        let span = Span { gt: Some(1.0), lte: Some(2.5), ..Span::default() };
        assert_eq!(test_of(r#""range":{"gt":1,"lte":2.5,"lt":null}"#), Test::Range(span));
        let span = Span { gte: Some(86_400_000_000), ..Span::default() };
        assert_eq!(test_of(r#""range":{"gte":"1970-01-02"}"#), Test::Times(span));
        assert_eq!(test_of(r#""values_count":{"lt":3}"#), Test::Count(Span { lt: Some(3), ..Span::default() }));
        assert_eq!(test_of(r#""is_empty":true"#), Test::IsEmpty(true));
        assert_eq!(test_of(r#""is_null":false"#), Test::IsNull(false));
        assert!(
            matches!(test_of(r#""geo_radius":{"center":{"lon":1,"lat":2},"radius":5}"#), Test::Radius(area) if area.radius == 5.0)
        );
        assert!(matches!(
            test_of(r#""geo_bounding_box":{"top_left":{"lon":1,"lat":2},"bottom_right":{"lon":3,"lat":0}}"#),
            Test::Box(area) if area.bottom_right.lon == 3.0
        ));
        let ring = r#"{"points":[{"lon":0,"lat":0},{"lon":1,"lat":0},{"lon":1,"lat":1},{"lon":0,"lat":0}]}"#;
        assert!(matches!(
            test_of(&format!(r#""geo_polygon":{{"exterior":{ring},"interiors":[{ring}]}}"#)),
            Test::Polygon(_)
        ));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, kind, said) in [
            (r#"{"musst":[]}"#, Kind::Malformed, "musst: unknown field"),
            (r#"{"must":5}"#, Kind::Malformed, "must: expected a condition"),
            (r#"{"must":[{"kez":"a"}]}"#, Kind::Malformed, "must[0]: expected a condition"),
            (r#"{"must":[{"key":"a"}]}"#, Kind::Invalid, "At least one field condition"),
            (r#"{"must":[{"key":"a b","match":{"value":1}}]}"#, Kind::Malformed, "Invalid json path"),
            (r#"{"must":[{"key":"a","match":{"value":1.5}}]}"#, Kind::Malformed, "must[0].match.value"),
            (r#"{"must":[{"key":"a","match":{"any":[1,"a"]}}]}"#, Kind::Malformed, "any[1]"),
            (r#"{"must":[{"key":"a","match":{"like":"a"}}]}"#, Kind::Malformed, "expected one of `value`"),
            (r#"{"must":[{"key":"a","match":{"value":1,"any":[1]}}]}"#, Kind::Malformed, "asks for one thing"),
            (r#"{"must":[{"key":"a","range":{"gt":1,"lt":"2020-01-01"}}]}"#, Kind::Malformed, "range.gt"),
            (
                r#"{"must":[{"key":"a","range":{"gt":"yesterday"}}]}"#,
                Kind::Malformed,
                "'yesterday' is not in a supported",
            ),
            (r#"{"must":[{"key":"a","values_count":{"gt":-1}}]}"#, Kind::Malformed, "values_count.gt"),
            (r#"{"must":[{"key":"a","geo_radius":{"radius":1}}]}"#, Kind::Malformed, "missing field `center`"),
            (
                r#"{"must":[{"key":"a","geo_radius":{"center":{"lon":181,"lat":0},"radius":1}}]}"#,
                Kind::Malformed,
                "within [-180;180]",
            ),
            (
                r#"{"must":[{"key":"a","geo_polygon":{"exterior":{"points":[]}}}]}"#,
                Kind::Invalid,
                "the size must be at least 4, got 0",
            ),
            (r#"{"must":[{"slice":{"total":2,"index":2}}]}"#, Kind::Invalid, "must be less than total"),
            (r#"{"must":[{"slice":{"total":0,"index":0}}]}"#, Kind::Malformed, "slice.total: Slice total must be"),
            (r#"{"must":[{"nested":{"key":"a"}}]}"#, Kind::Malformed, "missing field `filter`"),
            (r#"{"must":[{"has_id":["x"]}]}"#, Kind::Malformed, "not a valid point ID"),
            (r#"{"min_should":{"conditions":[]}}"#, Kind::Malformed, "missing field `min_count`"),
        ] {
            let error = decode(text).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(error.message().contains(said), "{text}: {error}");
        }
        let deep = |depth: usize| format!("{}{{}}{}", r#"{"must":"#.repeat(depth), "}".repeat(depth));
        assert!(decode(&deep(60)).is_ok());
        assert!(decode(&deep(100)).unwrap_err().message().contains("nest"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"\{"(must|should|nested|key|match|range|any|has_id|geo_radius)":[\[\]{}",:0-9a-z.]{0,40}\}"#) {
            let _: Result<Filter, Error> = decode(&text);
        }
    }
}
