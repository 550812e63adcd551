//! `POST /memory/plan`: what collections to be will take, and how they will be searched.
//!
//! ```text
//!   {"budget": "256MiB", "sample": "/path/on/the/server.npy",
//!    "collections": [{"points": 1000000, "vectors": {"size": 100, "distance": "Cosine"}, "payload_bytes": 200,
//!                     "fields": {"city": "keyword"}, "recall": 0.95, ... as in create collection}],
//!    "versions": {"keys": 1000000, "versions": 3, "key_bytes": 64, "value_bytes": 256,
//!                 "watchers": 10000, "streams": 10}}                          of etcd's door; either may be missing
//! ```

use crate::decoders::collection_body::CollectionBuilder;
use crate::errors::Outcome;
use crate::handlers::indexes;
use crate::handlers::memory::budget;
use crate::request::call::Call;
use crate::request::host::{Wanted, WantedVersions};
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

/// Keys, versions of all of them, and their bytes at most, so that no product of them is too large to be counted.
const KEYS_MAX: u64 = 1 << 32;
const VERSIONS_MAX: u64 = 1 << 32;
const KEY_MAX: u64 = 32_735;
const VALUE_MAX: u64 = 2 << 20;
const WATCHERS_MAX: u64 = 1 << 32;
/// Of those that are not named.
const KEY_USUAL: u64 = 64;
const VALUE_USUAL: u64 = 256;

/// Decodes the body of `POST /memory/plan`.
pub fn wanted(body: &[u8], room: &mut SharedReservation) -> Result<Wanted> {
    let mut wanted = Wanted { budget: None, expected: Vec::new(), versions: None, sample: None };
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
            "versions" if reader.null()? => {}
            "versions" => wanted.versions = Some(versions(reader)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    if !has_collections && wanted.versions.is_none() {
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

fn versions(reader: &mut Reader<'_>) -> Decoded<WantedVersions> {
    let (mut keys, mut streams) = (None, 1);
    let (key_bytes, value_bytes) = (KEY_USUAL, VALUE_USUAL);
    let mut wanted = WantedVersions { keys: 0, versions: 1, key_bytes, value_bytes, watchers: 0, streams: 0 };
    reader.object(|reader, key| {
        match key {
            "keys" => keys = Some(at_most(reader.value()?, KEYS_MAX)?),
            "versions" => wanted.versions = at_most(reader.value()?, VERSIONS_MAX)?.max(1),
            "key_bytes" => wanted.key_bytes = at_most(reader.value()?, KEY_MAX)?.max(1),
            "value_bytes" => wanted.value_bytes = at_most(reader.value()?, VALUE_MAX)?,
            "watchers" => wanted.watchers = at_most(reader.value()?, WATCHERS_MAX)?,
            "streams" => streams = at_most(reader.value()?, WATCHERS_MAX)?.max(1),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    wanted.keys = keys.ok_or_else(|| DecodeError::missing("keys"))?;
    at_most(wanted.keys.saturating_mul(wanted.versions), VERSIONS_MAX)?;
    // None has no watcher.
    wanted.streams = streams.min(wanted.watchers);
    Ok(wanted)
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
    fn a_plan_may_be_of_versions_alone() {
        let wanted = decoded(r#"{"versions":{"keys":1000,"versions":3,"value_bytes":9}}"#).unwrap();
        let versions =
            WantedVersions { keys: 1000, versions: 3, key_bytes: 64, value_bytes: 9, watchers: 0, streams: 0 };
        assert_eq!((wanted.versions, wanted.expected.len()), (Some(versions), 0));
        let watched = |body| decoded(body).unwrap().versions.map(|it| (it.watchers, it.streams));
        assert_eq!(watched(r#"{"versions":{"keys":1,"watchers":5}}"#), Some((5, 1)));
        assert_eq!(watched(r#"{"versions":{"keys":1,"streams":9,"watchers":5}}"#), Some((5, 5)));
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, kind, message) in [
            ("{}", Kind::Malformed, "missing field `collections`"),
            (r#"{"collections":[{}]}"#, Kind::Malformed, "collections[0]: missing field `points`"),
            (r#"{"collections":[{"points":-1}]}"#, Kind::Malformed, "points"),
            (r#"{"collections":[{"points":9999999999}]}"#, Kind::Invalid, "collections[0].points: value 9999999999"),
            (r#"{"collections":[{"points":1,"fields":{"a":"word"}}]}"#, Kind::Malformed, "fields.a"),
            (r#"{"versions":{}}"#, Kind::Malformed, "versions: missing field `keys`"),
            (r#"{"versions":{"keys":4294967296,"versions":2}}"#, Kind::Invalid, "versions: value 8589934592"),
            (
                r#"{"versions":{"keys":1,"value_bytes":99999999}}"#,
                Kind::Invalid,
                "versions.value_bytes: value 99999999",
            ),
            (r#"{"collections":[],"budget":"x"}"#, Kind::Invalid, "budget"),
            (r#"{"collections":[{"points":1,"vectors":{"size":0,"distance":"Dot"}}]}"#, Kind::Invalid, "size"),
        ] {
            let error = decoded(body).unwrap_err();
            assert_eq!(error.kind(), kind, "{body}: {error}");
            assert!(error.message().contains(message), "{body}: {error}");
        }
    }
}
