//! The sections of a collection's configuration: what may stand in them, as tables.
//!
//! ```text
//!   {"hnsw_config":{"m":16,"ef_construct":100}, "optimizers_config":{..}, "wal_config":{..}, ...}
//!        └─ HNSW: name, kind of value, least and most
//! ```
//!
//! A section is checked against its table, kept as it came (without `null`s and unknown fields) and
//! echoed. The tables follow the specification of Qdrant's API.

use crate::decoders::text_index;
use crate::wire::json::{DecodeError, Decoded, Reader};
use ramekin_vectors::Datatype;
use serde_json::{Map, Value};

/// A section as it is kept: field to value.
pub type Section = Map<String, Value>;

/// A kind of value.
#[derive(Clone, Copy)]
pub enum Shape {
    /// A whole number of at least this.
    Whole(u64),
    /// A number from the first to the second.
    Number(f64, f64),
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number or this word.
    WholeOr(&'static str),
    Section(&'static [Field]),
    /// What this reads.
    Read(fn(&mut Reader<'_>) -> Decoded<Value>),
    /// In Qdrant's API, but not built: only `null`, `false`, 0 and empty pass.
    NotImplemented,
}

use Shape::{Bool, NotImplemented, Number, Whole, WholeOr, Word};

/// A field of a section: name, kind, whether it must be there.
pub type Field = (&'static str, Shape, bool);

const MEMORY: Shape = Word(&["cold", "cached", "pinned"]);

pub const HNSW: &[Field] = &[
    ("m", Whole(0), false),
    ("ef_construct", Whole(4), false),
    ("full_scan_threshold", Whole(10), false),
    ("max_indexing_threads", Whole(0), false),
    ("on_disk", Bool, false),
    ("memory", MEMORY, false),
    ("payload_m", Whole(0), false),
    ("inline_storage", Bool, false),
];

pub const OPTIMIZERS: &[Field] = &[
    ("deleted_threshold", Number(0.0, 1.0), false),
    ("vacuum_min_vector_number", Whole(100), false),
    ("default_segment_number", Whole(0), false),
    ("max_segment_size", Whole(1), false),
    ("memmap_threshold", Whole(0), false),
    ("indexing_threshold", Whole(0), false),
    ("flush_interval_sec", Whole(0), false),
    ("max_optimization_threads", WholeOr("auto"), false),
    ("prevent_unoptimized", Bool, false),
];

pub const WAL: &[Field] = &[
    ("wal_capacity_mb", Whole(1), false),
    ("wal_segments_ahead", Whole(0), false),
    ("wal_retain_closed", Whole(0), false),
];

const SCALAR: &[Field] = &[
    ("type", Word(&["int8"]), true),
    ("quantile", Number(0.5, 1.0), false),
    ("always_ram", Bool, false),
    ("memory", MEMORY, false),
];

const PRODUCT: &[Field] = &[
    ("compression", Word(&["x4", "x8", "x16", "x32", "x64"]), true),
    ("always_ram", Bool, false),
    ("memory", MEMORY, false),
];

const BINARY: &[Field] = &[
    ("always_ram", Bool, false),
    ("memory", MEMORY, false),
    ("encoding", Word(&["one_bit", "two_bits", "one_and_half_bits"]), false),
    ("query_encoding", Word(&["default", "binary", "scalar4bits", "scalar8bits"]), false),
];

const TURBO: &[Field] = &[
    ("always_ram", Bool, false),
    ("memory", MEMORY, false),
    ("bits", Word(&["bits1", "bits1_5", "bits2", "bits4", "bits8"]), false),
];

/// The kinds of quantisation; exactly one of them is named.
const QUANTIZATION: &[Field] = &[
    ("scalar", Shape::Section(SCALAR), false),
    ("product", Shape::Section(PRODUCT), false),
    ("binary", Shape::Section(BINARY), false),
    ("turbo", Shape::Section(TURBO), false),
];

const PAYLOAD: &[Field] = &[("memory", Shape::Read(evictable), false)];

/// Parameters of a collection beside its vectors. One node holds one shard and one replica of it.
pub const PARAMS: &[Field] = &[
    ("shard_number", Whole(1), false),
    ("sharding_method", Word(&["auto"]), false),
    ("replication_factor", Whole(1), false),
    ("write_consistency_factor", Whole(1), false),
    ("read_fan_out_factor", Whole(0), false),
    ("read_fan_out_delay_ms", Whole(0), false),
    ("on_disk_payload", Bool, false),
    ("payload", Shape::Section(PAYLOAD), false),
];

const DATATYPES: [&str; 3] = [Datatype::Float32.name(), Datatype::Float16.name(), Datatype::Uint8.name()];

/// What may be said of one vector beside its size and distance.
pub const VECTOR: &[Field] = &[
    ("on_disk", Bool, false),
    ("memory", Shape::Read(evictable), false),
    ("datatype", Word(&DATATYPES), false),
    ("multivector_config", NotImplemented, false),
];

/// Kinds of indexes of payload fields.
pub const FIELD_KINDS: [&str; 8] = ["keyword", "integer", "float", "geo", "text", "bool", "datetime", "uuid"];

/// What may be said of an index of a payload field, whatever its kind.
pub const FIELD: &[Field] = &[
    ("type", Word(&FIELD_KINDS), true),
    ("is_tenant", Bool, false),
    ("is_principal", Bool, false),
    ("on_disk", Bool, false),
    ("memory", MEMORY, false),
    ("enable_hnsw", Bool, false),
    ("prefix", Bool, false),
    ("lookup", Bool, false),
    ("range", Bool, false),
    ("tokenizer", Word(&["word", "whitespace", "prefix", "multilingual"]), false),
    ("min_token_len", Whole(0), false),
    ("max_token_len", Whole(0), false),
    ("lowercase", Bool, false),
    ("phrase_matching", Bool, false),
    ("ascii_folding", Bool, false),
    ("stopwords", Shape::Read(text_index::stop_words), false),
    ("stemmer", Shape::Read(text_index::stemmer), false),
];

/// Strict mode limits requests; a limit that is not kept must not be promised.
pub const STRICT_MODE: &[Field] = &[("enabled", NotImplemented, false)];

/// Fields of a collection's configuration that have a second name in Qdrant's API, which is the first here.
const SECOND_NAMES: [(&str, &str); 6] = [
    ("quantization", "quantization_config"),
    ("optimizer_config", "optimizers_config"),
    ("full_scan_threshold_kb", "full_scan_threshold"),
    ("max_segment_size_kb", "max_segment_size"),
    ("memmap_threshold_kb", "memmap_threshold"),
    ("indexing_threshold_kb", "indexing_threshold"),
];

/// The name under which a field is kept and shown.
pub fn field_name(key: &str) -> &str {
    SECOND_NAMES.iter().find(|(second, _)| *second == key).map_or(key, |(_, name)| name)
}

/// Reads the section `table` describes.
pub fn read(reader: &mut Reader<'_>, table: &[Field]) -> Decoded<Section> {
    let mut section = Section::new();
    reader.object(|reader, key| {
        let key = field_name(key);
        match table.iter().find(|(name, ..)| *name == key) {
            Some((name, kind, _)) if !reader.null()? => {
                if let Some(value) = field(reader, kind)? {
                    section.insert((*name).to_owned(), value);
                }
            }
            Some(_) => {}
            None => reader.skip()?,
        }
        Ok(())
    })?;
    for (name, _, required) in table {
        if *required && !section.contains_key(*name) {
            return Err(DecodeError::missing(name));
        }
    }
    Ok(section)
}

/// Reads one value of a section; the value is not `null`.
pub fn field(reader: &mut Reader<'_>, kind: &Shape) -> Decoded<Option<Value>> {
    let value = match kind {
        Whole(least) => Value::from(whole(reader, *least)?),
        Number(least, most) => {
            let number = reader.value::<f64>()?;
            if !(*least..=*most).contains(&number) {
                return Err(DecodeError::invalid(format!(
                    "value {number} invalid, must be from {least:?} to {most:?}"
                )));
            }
            Value::from(number)
        }
        Bool => Value::from(reader.value::<bool>()?),
        Word(words) => Value::from(word(reader, words)?),
        WholeOr(other) if reader.peek()? == b'"' => Value::from(word(reader, &[*other])?),
        WholeOr(_) => Value::from(whole(reader, 0)?),
        Shape::Section(table) => Value::Object(read(reader, table)?),
        Shape::Read(read) => read(reader)?,
        NotImplemented => match reader.raw()? {
            "false" | "0" | "{}" | "[]" => return Ok(None),
            _ => return Err(DecodeError::not_implemented("this field")),
        },
    };
    Ok(Some(value))
}

fn whole(reader: &mut Reader<'_>, least: u64) -> Decoded<u64> {
    let number = reader.value::<u64>()?;
    if number < least {
        return Err(DecodeError::invalid(format!("value {number} invalid, must be {least} or larger")));
    }
    Ok(number)
}

/// Words of Qdrant's API that are not built here, wherever they stand.
const WORDS_NOT_BUILT: [&str; 4] = ["turbo4", "custom", "max_sim", "armenian"];

/// Reads one of these words.
pub fn word(reader: &mut Reader<'_>, words: &[&'static str]) -> Decoded<&'static str> {
    let text = reader.string()?;
    match words.iter().find(|word| **word == text) {
        Some(word) => Ok(word),
        None if WORDS_NOT_BUILT.contains(&text.as_ref()) => Err(DecodeError::not_implemented(format!("`{text}`"))),
        None => {
            let text: String = text.chars().take(80).collect();
            Err(DecodeError::malformed(format!("unknown variant `{text}`, expected one of `{}`", words.join("`, `"))))
        }
    }
}

/// Where vectors and payloads are to be: they are read through a cache, so nothing pins them.
fn evictable(reader: &mut Reader<'_>) -> Decoded<Value> {
    match word(reader, &["cold", "cached", "pinned"])? {
        "pinned" => Err(DecodeError::invalid("value \"pinned\" invalid, must be `cold` or `cached`")),
        memory => Ok(Value::from(memory)),
    }
}

/// Reads a `quantization_config`: exactly one kind.
pub fn quantization(reader: &mut Reader<'_>) -> Decoded<Section> {
    let section = read(reader, QUANTIZATION)?;
    if section.len() != 1 {
        return Err(DecodeError::malformed("expected exactly one of `scalar`, `product`, `binary`, `turbo`"));
    }
    Ok(section)
}

/// Reads a `quantization_config` of a change: a kind, or `"Disabled"`, which is `None`.
pub fn quantization_change(reader: &mut Reader<'_>) -> Decoded<Option<Section>> {
    if reader.peek()? == b'"' {
        return word(reader, &["Disabled"]).map(|_| None);
    }
    quantization(reader).map(Some)
}

/// The section of a kept text; what cannot be read is empty.
pub fn kept(text: Option<&String>) -> Section {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The section with the fields of `newer` laid over it.
#[must_use]
pub fn overlaid(mut section: Section, newer: Section) -> Section {
    section.extend(newer);
    section
}

/// The text that is kept of a section.
pub fn text(section: &Section) -> String {
    Value::Object(section.clone()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::{Error, Kind};

    fn section(text: &str, table: &[Field]) -> Result<String, Error> {
        let mut reader = Reader::new(text.as_bytes()).map_err(Error::from)?;
        Ok(super::text(&read(&mut reader, table).map_err(Error::from)?))
    }

    #[test]
    fn a_section_is_kept_as_it_came() {
        let kept = section(r#"{"m":16,"ef_construct":100,"on_disk":null,"new_thing":[1]}"#, HNSW).unwrap();
        assert_eq!(kept, r#"{"ef_construct":100,"m":16}"#);
        let kept = section(r#"{"max_optimization_threads":"auto","deleted_threshold":0.25}"#, OPTIMIZERS).unwrap();
        assert_eq!(kept, r#"{"deleted_threshold":0.25,"max_optimization_threads":"auto"}"#);
    }

    #[test]
    fn refusals() {
        for (text, table, kind, message) in [
            (r#"{"ef_construct":3}"#, HNSW, Kind::Invalid, "ef_construct: value 3 invalid, must be 4 or larger"),
            (r#"{"m":-1}"#, HNSW, Kind::Malformed, "m: invalid value: integer `-1`"),
            (r#"{"memory":"hot"}"#, HNSW, Kind::Malformed, "memory: unknown variant `hot`"),
            (r#"{"deleted_threshold":1.5}"#, OPTIMIZERS, Kind::Invalid, "deleted_threshold: value 1.5 invalid"),
            (r#"{"datatype":"turbo4"}"#, VECTOR, Kind::Unsupported, "datatype: `turbo4` is not built yet"),
            (r#"{"datatype":"float64"}"#, VECTOR, Kind::Malformed, "datatype: unknown variant `float64`"),
            (r#"{"multivector_config":{"comparator":"max_sim"}}"#, VECTOR, Kind::Unsupported, "multivector_config"),
            (r#"{"enabled":true}"#, STRICT_MODE, Kind::Unsupported, "enabled"),
            (r#"{"scalar":{}}"#, QUANTIZATION, Kind::Malformed, "scalar: missing field `type`"),
        ] {
            let error = section(text, table).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(message), "{error}");
        }
    }
}
