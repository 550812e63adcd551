//! Bodies that make or change a collection.
//!
//! ```text
//!   {"vectors":{"size":100,"distance":"Cosine", ...}}            one unnamed vector
//!   {"vectors":{"a":{"size":..},"b":{..}}}                       named vectors
//!     + shard_number, on_disk_payload, ..., hnsw_config, optimizers_config, wal_config,
//!       quantization_config, metadata: checked (sections.rs), kept, echoed;   recall: ours
//! ```

use crate::decoders::placement::placements;
use crate::decoders::sections::{self, Section};
use crate::wire::json::{DecodeError, Decoded, Reader};
use crate::wire::vector::checked_name;
use ramekin_base::{Error, Kind, Result, limits};
use ramekin_fields::parts::tree_bytes;
use ramekin_memory::SharedReservation;
use ramekin_vectors::{CollectionConfig, CollectionPatch, Datatype, MetricName, UNNAMED, VectorConfig};
use serde_json::Value;
use std::collections::BTreeMap;

/// Names under which sections are kept.
pub const PARAMS: &str = "params";
pub const HNSW: &str = "hnsw_config";
pub const OPTIMIZERS: &str = "optimizers_config";
pub const WAL: &str = "wal_config";
pub const QUANTIZATION: &str = "quantization_config";
pub const METADATA: &str = "metadata";
/// A field of a vector; it never changes.
const DATATYPE: &str = "datatype";

/// Largest `metadata` of a collection, bytes of JSON: it stays in memory.
const METADATA_MAX: usize = 64 << 10;

/// Decodes the body of `PUT collections/{name}`.
pub fn create(body: &[u8], room: &mut SharedReservation) -> Result<CollectionConfig> {
    let mut builder = CollectionBuilder::default();
    let mut reader = Reader::new(body)?;
    reader.object(|reader, key| builder.field(reader, key, room))?;
    reader.finish()?;
    Ok(builder.config())
}

/// A configuration while its fields are read.
#[derive(Default)]
pub struct CollectionBuilder {
    vectors: BTreeMap<String, VectorConfig>,
    kept: BTreeMap<String, Section>,
    recall: Option<f32>,
}

impl CollectionBuilder {
    pub fn field(&mut self, reader: &mut Reader<'_>, key: &str, room: &mut SharedReservation) -> Decoded<()> {
        let key = sections::field_name(key);
        match key {
            "vectors" if !reader.null()? => self.vectors = read_vectors(reader, room)?,
            "sparse_vectors" => empty_object(reader)?,
            "recall" => self.recall = read_recall(reader)?,
            _ => section(reader, key, &mut self.kept, room)?,
        }
        Ok(())
    }

    pub fn config(self) -> CollectionConfig {
        let Self { vectors, kept, recall } = self;
        let (hnsw, optimizers) = (kept.get(HNSW), kept.get(OPTIMIZERS));
        let mut config = CollectionConfig::new(vectors);
        config.full_scan_threshold_kib = whole(hnsw, "full_scan_threshold").unwrap_or(config.full_scan_threshold_kib);
        config.deleted_threshold = number(optimizers, "deleted_threshold").unwrap_or(config.deleted_threshold);
        config.vacuum_min_vectors = whole(optimizers, "vacuum_min_vector_number").unwrap_or(config.vacuum_min_vectors);
        config.recall = recall.unwrap_or(config.recall);
        config.client_config = kept.into_iter().map(|(name, section)| (name, sections::text(&section))).collect();
        let mut placements = placements(&config);
        for (name, vector) in &mut config.vectors {
            vector.placement = placements.remove(name).unwrap_or_default();
        }
        config
    }
}

fn whole(section: Option<&Section>, field: &str) -> Option<u64> {
    section?.get(field)?.as_u64()
}

fn number(section: Option<&Section>, field: &str) -> Option<f64> {
    section?.get(field)?.as_f64()
}

/// Only `{}` and `null` pass: what would be inside is not built.
fn empty_object(reader: &mut Reader<'_>) -> Decoded<()> {
    if reader.null()? {
        return Ok(());
    }
    reader.object(|_, _| Err(DecodeError::not_implemented("a sparse vector")))
}

fn read_recall(reader: &mut Reader<'_>) -> Decoded<Option<f32>> {
    match reader.value::<Option<f32>>()? {
        Some(recall) if !(0.5..=0.999).contains(&recall) => {
            Err(DecodeError::invalid(format!("value {recall} invalid, must be from 0.5 to 0.999")))
        }
        recall => Ok(recall),
    }
}

/// Reads a section that a collection has, new or changed; passes over what no collection has.
fn section(
    reader: &mut Reader<'_>,
    key: &str,
    kept: &mut BTreeMap<String, Section>,
    room: &mut SharedReservation,
) -> Decoded<()> {
    let params = sections::PARAMS.iter().find(|(name, ..)| *name == key);
    if reader.peek()? == b'n' {
        return reader.null().map(|_| ());
    }
    if let Some((name, shape, _)) = params {
        let value = sections::field(reader, shape)?;
        kept.entry(PARAMS.to_owned()).or_default().extend(value.map(|value| ((*name).to_owned(), value)));
        return Ok(());
    }
    let section = match key {
        HNSW => sections::read(reader, sections::HNSW)?,
        OPTIMIZERS => sections::read(reader, sections::OPTIMIZERS)?,
        WAL => sections::read(reader, sections::WAL)?,
        QUANTIZATION => sections::quantization(reader)?,
        METADATA => metadata(reader, room)?,
        "strict_mode_config" => return sections::read(reader, sections::STRICT_MODE).map(|_| ()),
        _ => return reader.skip(),
    };
    kept.insert(key.to_owned(), section);
    Ok(())
}

fn metadata(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Section> {
    let text = reader.clone().raw_object()?;
    if text.len() > METADATA_MAX {
        return Err(DecodeError::new(Kind::TooLarge, format!("more than {METADATA_MAX} bytes")));
    }
    // Once as it is read, and once when its text is made.
    room.take(2 * tree_bytes(text))?;
    reader.value_up_to(METADATA_MAX)
}

/// Metadata with the keys of a change laid over it: a `null` takes its key out.
fn metadata_change(mut metadata: Section, change: Section) -> Result<Section> {
    for (key, value) in change {
        match value {
            Value::Null => metadata.remove(&key),
            value => metadata.insert(key, value),
        };
    }
    match sections::text(&metadata).len() {
        0..=METADATA_MAX => Ok(metadata),
        bytes => Err(Error::too_large(format!("{METADATA}: {bytes} bytes, at most {METADATA_MAX} are allowed"))),
    }
}

/// Reads `vectors`: the parameters of one vector, or an object from names to such parameters.
fn read_vectors(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<BTreeMap<String, VectorConfig>> {
    let mut single = false;
    reader.clone().object(|ahead, key| {
        single |= matches!(key, "size" | "distance") && ahead.peek()? != b'{';
        ahead.skip()
    })?;
    if single {
        return Ok(BTreeMap::from([(UNNAMED.to_owned(), vector(reader, room)?)]));
    }
    let mut vectors = BTreeMap::new();
    reader.object(|reader, name| {
        vectors.insert(checked_name(name)?.to_owned(), vector(reader, room)?);
        check_count(vectors.len())
    })?;
    Ok(vectors)
}

/// What is known of a vector takes at most so much as a tree, however long its text is.
const VECTOR_TREE_MAX: u64 = 16 << 10;

/// Books what the vector that comes next takes: once as it is read, and once when its text is made.
fn book_vector(reader: &Reader<'_>, room: &mut SharedReservation) -> Decoded<()> {
    let text = reader.clone().raw_object()?;
    Ok(room.take(2 * tree_bytes(text).min(VECTOR_TREE_MAX))?)
}

/// Refuses more vectors than a collection may have.
fn check_count(vectors: usize) -> Decoded<()> {
    match vectors > limits::VECTOR_NAMES_MAX {
        true => Err(DecodeError::invalid(format!("at most {} vectors are allowed", limits::VECTOR_NAMES_MAX))),
        false => Ok(()),
    }
}

fn vector(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<VectorConfig> {
    book_vector(reader, room)?;
    let (mut dim, mut metric) = (None, None);
    let mut client_config = Section::new();
    reader.object(|reader, key| {
        match key {
            "size" => dim = Some(size(reader)?),
            "distance" => metric = Some(distance(reader)?),
            _ => vector_field(reader, key, &mut client_config)?,
        }
        Ok(())
    })?;
    let dim = dim.ok_or_else(|| DecodeError::missing("size"))?;
    let metric = metric.ok_or_else(|| DecodeError::missing("distance"))?;
    // It is kept to be echoed as it came too.
    let named = |datatype: &Datatype| client_config.get(DATATYPE).is_some_and(|said| said == datatype.name());
    let datatype = Datatype::ALL.into_iter().find(named).unwrap_or_default();
    let client_config = (!client_config.is_empty()).then(|| sections::text(&client_config));
    Ok(VectorConfig { datatype, client_config, ..VectorConfig::new(dim, metric) })
}

/// Reads what may be said of a vector beside its size and distance.
fn vector_field(reader: &mut Reader<'_>, key: &str, client_config: &mut Section) -> Decoded<()> {
    if reader.null()? {
        return Ok(());
    }
    let key = sections::field_name(key);
    let value = match key {
        HNSW => Some(Value::Object(sections::read(reader, sections::HNSW)?)),
        QUANTIZATION => Some(Value::Object(sections::quantization(reader)?)),
        _ => match sections::VECTOR.iter().find(|(name, ..)| *name == key) {
            Some((_, shape, _)) => sections::field(reader, shape)?,
            None => return reader.skip(),
        },
    };
    client_config.extend(value.map(|value| (key.to_owned(), value)));
    Ok(())
}

fn size(reader: &mut Reader<'_>) -> Decoded<usize> {
    let size = reader.value::<u64>()?;
    if !(1..=limits::DIM_MAX as u64).contains(&size) {
        return Err(DecodeError::invalid(format!("value {size} invalid, must be from 1 to {}", limits::DIM_MAX)));
    }
    Ok(size as usize)
}

fn distance(reader: &mut Reader<'_>) -> Decoded<MetricName> {
    match reader.string()?.as_ref() {
        "Cosine" => Ok(MetricName::Cosine),
        "Euclid" => Ok(MetricName::Euclid),
        "Dot" => Ok(MetricName::Dot),
        "Manhattan" => Ok(MetricName::Manhattan),
        _ => Err(DecodeError::malformed("unknown variant, expected one of `Cosine`, `Euclid`, `Dot`, `Manhattan`")),
    }
}

/// A change of quantisation: none, `"Disabled"`, or another one.
type Quantization = Option<Option<Section>>;

/// The body of `PATCH collections/{name}`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Change {
    kept: BTreeMap<String, Section>,
    quantization: Quantization,
    vectors: BTreeMap<String, (Section, Quantization)>,
    recall: Option<f32>,
}

/// Decodes the body of `PATCH collections/{name}`.
pub fn change(body: &[u8], room: &mut SharedReservation) -> Result<Change> {
    let mut change = Change::default();
    let mut reader = Reader::new(body)?;
    reader.object(|reader, key| {
        let key = sections::field_name(key);
        match key {
            "vectors" | PARAMS | QUANTIZATION if reader.null()? => {}
            "vectors" => reader.object(|reader, name| {
                let changed = vector_change(reader, room)?;
                change.vectors.insert(checked_name(name)?.to_owned(), changed);
                check_count(change.vectors.len())
            })?,
            PARAMS => {
                change.kept.insert(PARAMS.to_owned(), sections::read(reader, sections::PARAMS)?);
            }
            QUANTIZATION => change.quantization = Some(sections::quantization_change(reader)?),
            "sparse_vectors" => empty_object(reader)?,
            "recall" => change.recall = read_recall(reader)?,
            // A change names parameters inside `params`, and knows no log.
            WAL => reader.skip()?,
            _ if sections::PARAMS.iter().any(|(name, ..)| *name == key) => reader.skip()?,
            _ => section(reader, key, &mut change.kept, room)?,
        }
        Ok(())
    })?;
    reader.finish()?;
    Ok(change)
}

fn vector_change(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<(Section, Quantization)> {
    book_vector(reader, room)?;
    let (mut client_config, mut quantization) = (Section::new(), None);
    reader.object(|reader, key| match sections::field_name(key) {
        QUANTIZATION if !reader.null()? => {
            quantization = Some(sections::quantization_change(reader)?);
            Ok(())
        }
        DATATYPE => reader.skip(),
        _ => vector_field(reader, key, &mut client_config),
    })?;
    Ok((client_config, quantization))
}

impl Change {
    /// The change against the collection as it is: new fields are laid over those that are kept.
    pub fn against(self, now: &CollectionConfig) -> Result<CollectionPatch> {
        let (hnsw, optimizers) = (self.kept.get(HNSW), self.kept.get(OPTIMIZERS));
        let mut patch = CollectionPatch {
            full_scan_threshold_kib: whole(hnsw, "full_scan_threshold"),
            deleted_threshold: number(optimizers, "deleted_threshold"),
            vacuum_min_vectors: whole(optimizers, "vacuum_min_vector_number"),
            recall: self.recall,
            ..CollectionPatch::default()
        };
        for (name, newer) in self.kept {
            let older = sections::kept(now.client_config.get(&name));
            let section = match name.as_str() {
                METADATA => metadata_change(older, newer)?,
                _ => sections::overlaid(older, newer),
            };
            patch.client_config.insert(name, sections::text(&section));
        }
        if let Some(quantization) = self.quantization {
            let text = quantization.map_or_else(|| "null".to_owned(), |section| sections::text(&section));
            patch.client_config.insert(QUANTIZATION.to_owned(), text);
        }
        for (name, (newer, quantization)) in self.vectors {
            let vector = now
                .vectors
                .get(&name)
                .ok_or_else(|| Error::malformed(format!("Not existing vector name error: {name}")))?;
            let mut section = sections::kept(vector.client_config.as_ref());
            let hnsw = match (section.remove(HNSW), newer.get(HNSW)) {
                // An empty object takes it away: the collection's own holds again.
                (_, Some(Value::Object(newer))) if newer.is_empty() => None,
                (Some(Value::Object(older)), Some(Value::Object(newer))) => {
                    Some(sections::overlaid(older, newer.clone()))
                }
                (Some(Value::Object(older)), _) => Some(older),
                (_, Some(Value::Object(newer))) => Some(newer.clone()),
                _ => None,
            };
            section.extend(newer.into_iter().filter(|(name, _)| name != HNSW));
            section.extend(hnsw.map(|hnsw| (HNSW.to_owned(), Value::Object(hnsw))));
            match quantization {
                Some(Some(quantization)) => {
                    section.insert(QUANTIZATION.to_owned(), Value::Object(quantization));
                }
                Some(None) => {
                    section.remove(QUANTIZATION);
                }
                None => {}
            }
            patch.vector_client_config.insert(name, sections::text(&section));
        }
        patch.placements = placements(&patch.apply(now));
        Ok(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(body: &str) -> CollectionConfig {
        create(body.as_bytes(), &mut SharedReservation::endless()).unwrap()
    }

    #[test]
    fn one_vector_or_several() {
        let one = created(r#"{"vectors":{"size":4,"distance":"Dot","on_disk":true,"hnsw_config":{"m":8}}}"#);
        let vector = &one.vectors[UNNAMED];
        assert_eq!((vector.dim, vector.metric), (4, MetricName::Dot));
        assert_eq!(vector.client_config.as_deref(), Some(r#"{"hnsw_config":{"m":8},"on_disk":true}"#));
        let two = created(r#"{"vectors":{"size":{"size":4,"distance":"Dot"},"b":{"size":5,"distance":"Euclid"}}}"#);
        assert_eq!(two.vectors.keys().collect::<Vec<_>>(), ["b", "size"]);
        assert!(created("{}").vectors.is_empty());
        let three = created(
            r#"{"vectors":{"a":{"size":4,"distance":"Dot","datatype":"uint8"},"b":{"size":4,"distance":"Dot","datatype":null},
                "c":{"size":4,"distance":"Cosine","datatype":"float16"}}}"#,
        );
        let datatypes: Vec<Datatype> = three.vectors.values().map(|vector| vector.datatype).collect();
        assert_eq!(datatypes, [Datatype::Uint8, Datatype::Float32, Datatype::Float16]);
        assert_eq!(three.vectors["a"].client_config.as_deref(), Some(r#"{"datatype":"uint8"}"#));
        let change =
            change(br#"{"vectors":{"a":{"datatype":"float32","on_disk":true}}}"#, &mut SharedReservation::endless())
                .unwrap();
        let patch = change.against(&three).unwrap();
        assert_eq!(patch.vector_client_config["a"], r#"{"datatype":"uint8","on_disk":true}"#);
    }

    #[test]
    fn what_matters_is_taken_out_and_all_is_kept() {
        let config = created(
            r#"{"vectors":{},"shard_number":2,"on_disk_payload":true,"recall":0.9,"unknown":[{}],
                "hnsw_config":{"full_scan_threshold":20},"optimizers_config":{"deleted_threshold":0.5,"vacuum_min_vector_number":100},
                "quantization_config":{"scalar":{"type":"int8"}},"metadata":{"a":[1]},"strict_mode_config":{"enabled":false}}"#,
        );
        assert_eq!((config.full_scan_threshold_kib, config.vacuum_min_vectors), (20, 100));
        assert_eq!((config.deleted_threshold, config.recall), (0.5, 0.9));
        assert_eq!(config.client_config[PARAMS], r#"{"on_disk_payload":true,"shard_number":2}"#);
        assert_eq!(config.client_config[METADATA], r#"{"a":[1]}"#);
    }

    #[test]
    fn a_change_is_laid_over_what_is_kept() {
        let now = created(
            r#"{"vectors":{"size":4,"distance":"Dot","hnsw_config":{"m":8,"ef_construct":50}},"hnsw_config":{"m":16},
                "quantization_config":{"scalar":{"type":"int8"}}}"#,
        );
        let change = change(
            br#"{"hnsw_config":{"full_scan_threshold":77},"quantization_config":"Disabled","recall":0.8,
                "vectors":{"":{"hnsw_config":{"m":9},"on_disk":true,"quantization_config":{"binary":{}}}}}"#,
            &mut SharedReservation::endless(),
        );
        let patch = change.unwrap().against(&now).unwrap();
        assert_eq!(patch.full_scan_threshold_kib, Some(77));
        assert_eq!(patch.recall, Some(0.8));
        assert_eq!(patch.client_config[HNSW], r#"{"full_scan_threshold":77,"m":16}"#);
        assert_eq!(patch.client_config[QUANTIZATION], "null");
        let vector = r#"{"hnsw_config":{"ef_construct":50,"m":9},"on_disk":true,"quantization_config":{"binary":{}}}"#;
        assert_eq!(patch.vector_client_config[UNNAMED], vector);
        let unset =
            super::change(br#"{"vectors":{"":{"hnsw_config":{},"on_disk":true}}}"#, &mut SharedReservation::endless());
        let patch = unset.unwrap().against(&now).unwrap();
        assert_eq!(patch.vector_client_config[UNNAMED], r#"{"on_disk":true}"#);
        let other = super::change(br#"{"vectors":{"x":{}}}"#, &mut SharedReservation::endless()).unwrap().against(&now);
        assert_eq!(other.unwrap_err().kind(), Kind::Malformed);
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, kind, message) in [
            (r#"{"vectors":{"size":0,"distance":"Dot"}}"#, Kind::Invalid, "vectors.size: value 0 invalid"),
            (r#"{"vectors":{"size":4,"distance":"Far"}}"#, Kind::Malformed, "vectors.distance: unknown variant"),
            (r#"{"vectors":{"size":4}}"#, Kind::Malformed, "vectors: missing field `distance`"),
            (r#"{"vectors":{"a":{"size":4}}}"#, Kind::Malformed, "vectors.a: missing field `distance`"),
            (r#"{"vectors":{"size":4,"distance":"Dot","datatype":"turbo4"}}"#, Kind::Unsupported, "vectors.datatype"),
            (r#"{"sparse_vectors":{"s":{}}}"#, Kind::Unsupported, "sparse_vectors.s"),
            (r#"{"sharding_method":"custom"}"#, Kind::Unsupported, "sharding_method"),
            (r#"{"strict_mode_config":{"enabled":true}}"#, Kind::Unsupported, "strict_mode_config.enabled"),
            (r#"{"hnsw_config":{"ef_construct":1}}"#, Kind::Invalid, "hnsw_config.ef_construct"),
            (r#"{"recall":1.0}"#, Kind::Invalid, "recall"),
            (r#"{"shard_number":0}"#, Kind::Invalid, "shard_number"),
            (r#"{"quantization_config":{}}"#, Kind::Malformed, "quantization_config: expected exactly one"),
        ] {
            let error = create(body.as_bytes(), &mut SharedReservation::endless()).unwrap_err();
            assert_eq!(error.kind(), kind, "{body}: {error}");
            assert!(error.message().contains(message), "{body}: {error}");
        }
    }
}
