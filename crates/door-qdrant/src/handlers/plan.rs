//! `POST /memory/plan`: what collections to be will take, and how they will be searched.
//!
//! ```text
//!   {"budget": "256MiB", "sample": "/path/on/the/server.npy",
//!    "collections": [{"points": 1000000, "vectors": {"size": 100, "distance": "Cosine"}, "payload_bytes": 200,
//!                     "fields": {"city": "keyword"}, "recall": 0.95, ... as in create collection}]}
//! ```

use crate::decoders::collection_body::CollectionBuilder;
use crate::errors::Outcome;
use crate::handlers::indexes;
use crate::handlers::memory::budget;
use crate::request::call::Call;
use crate::request::host::Wanted;
use crate::response::BookedResponse;
use crate::wire::filter::path;
use crate::wire::json::{DecodeError, Decoded, Reader};
use ramekin_base::limits::{FIELD_INDEXES_MAX, NAME_MAX};
use ramekin_base::{Kind, Lane, Result, excerpt};
use ramekin_memory::SharedReservation;
use ramekin_vectors::{CollectionConfig, Expected};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Collections of one plan at most.
const COLLECTIONS_MAX: usize = 256;
/// Points of one collection at most: the rows of a segment are counted in 32 bits.
const POINTS_MAX: u64 = u32::MAX as u64;
/// A payload at most, as a body may hold.
const PAYLOAD_MAX: u64 = ramekin_base::limits::PAYLOAD_MAX as u64;

/// Decodes the body of `POST /memory/plan`.
pub fn wanted(body: &[u8], room: &mut SharedReservation) -> Result<Wanted> {
    let mut wanted = Wanted { budget: None, expected: Vec::new(), sample: None };
    let mut has_collections = false;
    let mut reader = Reader::new(body)?;
    reader.object(|reader, key| {
        match key {
            "budget" if reader.null()? => {}
            "budget" => wanted.budget = Some(budget(reader)?),
            "sample" if reader.null()? => {}
            "sample" => wanted.sample = Some(PathBuf::from(reader.text(room)?.into_string())),
            "collections" => {
                has_collections = true;
                reader.array(|reader, at| {
                    if at >= COLLECTIONS_MAX {
                        let text = format!("a plan may hold at most {COLLECTIONS_MAX} collections");
                        return Err(DecodeError::new(Kind::TooLarge, text));
                    }
                    room.extend(&mut wanted.expected, 1)?;
                    wanted.expected.push(collection(reader, at, room)?);
                    Ok(())
                })?;
            }
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    if !has_collections {
        return Err(DecodeError::missing("collections").into());
    }
    Ok(wanted)
}

fn collection(reader: &mut Reader<'_>, at: usize, room: &mut SharedReservation) -> Decoded<Expected> {
    let (mut builder, mut points, mut payload_bytes, mut indexes) =
        (CollectionBuilder::default(), None, 0, BTreeMap::new());
    let mut name = format!("collection-{}", at + 1);
    reader.object(|reader, key| {
        match key {
            "name" => name = excerpt(&reader.string()?, NAME_MAX).to_owned(),
            "points" => points = Some(at_most(reader.value()?, POINTS_MAX)?),
            "payload_bytes" => payload_bytes = at_most(reader.value::<Option<u64>>()?.unwrap_or(0), PAYLOAD_MAX)?,
            "fields" if reader.null()? => {}
            "fields" => reader.object(|reader, field| {
                if indexes.len() == FIELD_INDEXES_MAX {
                    return Err(DecodeError::invalid(format!("at most {FIELD_INDEXES_MAX} fields are allowed")));
                }
                indexes.insert(path(field, room)?, indexes::read(reader)?);
                Ok(())
            })?,
            _ => builder.field(reader, key, room)?,
        }
        Ok(())
    })?;
    let points = points.ok_or_else(|| DecodeError::missing("points"))?;
    let config = CollectionConfig { indexes, ..builder.config() };
    Ok(Expected { name, config, points, payload_bytes })
}

fn at_most(value: u64, most: u64) -> Decoded<u64> {
    match value <= most {
        true => Ok(value),
        false => Err(DecodeError::invalid(format!("value {value} invalid, must be {most} or smaller"))),
    }
}

/// `POST /memory/plan`
pub async fn post(mut call: Call) -> Outcome<BookedResponse> {
    let wanted = call.decode(wanted).await?;
    let plan = move |door: &crate::request::state::DoorInner| (door.host.plan)(&wanted);
    let plan = call.door.run(Lane::Reads, call.options.until, plan).await?;
    BookedResponse::result(&plan, call.took())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(body: &str) -> Result<Wanted> {
        wanted(body.as_bytes(), &mut SharedReservation::endless())
    }

    #[test]
    fn a_plan_names_collections_as_they_are_created() {
        let body = r#"{"budget":"64MiB","sample":"/s.npy","collections":[
            {"points":1000,"vectors":{"size":4,"distance":"Dot"},"payload_bytes":20,"fields":{"a.b":"integer"},"recall":0.9,
             "quantization_config":{"scalar":{"type":"int8"}}},{"points":7,"vectors":{"a":{"size":2,"distance":"Cosine"}}}]}"#;
        let wanted = decoded(body).unwrap();
        assert_eq!((wanted.budget, wanted.sample), (Some(64 << 20), Some("/s.npy".into())));
        let [one, two] = &wanted.expected[..] else { panic!("two collections") };
        assert_eq!((one.points, one.payload_bytes, one.config.recall), (1000, 20, 0.9));
        assert_eq!(one.config.indexes.keys().map(ToString::to_string).collect::<Vec<_>>(), ["a.b"]);
        assert_eq!(one.config.vectors[""].placement.code_bits_max, Some(8.0));
        assert_eq!((two.name.as_str(), two.points, two.config.vectors["a"].dim), ("collection-2", 7, 2));
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, kind, message) in [
            ("{}", Kind::Malformed, "missing field `collections`"),
            (r#"{"collections":[{}]}"#, Kind::Malformed, "collections[0]: missing field `points`"),
            (r#"{"collections":[{"points":-1}]}"#, Kind::Malformed, "points"),
            (r#"{"collections":[{"points":9999999999}]}"#, Kind::Invalid, "collections[0].points: value 9999999999"),
            (r#"{"collections":[{"points":1,"fields":{"a":"word"}}]}"#, Kind::Malformed, "fields.a"),
            (r#"{"collections":[],"budget":"x"}"#, Kind::Invalid, "budget"),
            (r#"{"collections":[{"points":1,"vectors":{"size":0,"distance":"Dot"}}]}"#, Kind::Invalid, "size"),
        ] {
            let error = decoded(body).unwrap_err();
            assert_eq!(error.kind(), kind, "{body}: {error}");
            assert!(error.message().contains(message), "{body}: {error}");
        }
    }
}
