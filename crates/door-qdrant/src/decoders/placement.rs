//! Where a client wishes the parts of a vector to be: read out of the sections that are kept for the echo.
//!
//! ```text
//!   vectors.{on_disk, memory}        ─► originals          "on_disk": true  =  "memory": "cold"
//!   hnsw_config.{on_disk, memory}    ─► what finds them     the vector's own, else the collection's
//!   quantization_config.<kind>.{always_ram, memory}, its kind and rate ─► codes
//!                                                          "always_ram": true  =  "memory": "pinned"
//! ```
//!
//! Our codes serve every kind of quantisation; the kind and rate that a client names is the most that they may take.

use crate::decoders::collection_body::{HNSW, QUANTIZATION};
use crate::decoders::sections::{Section, kept};
use ramekin_vectors::{CollectionConfig, MemoryTier, Placement};
use serde_json::Value;
use std::collections::BTreeMap;

/// The wishes for each vector of a collection.
pub fn placements(config: &CollectionConfig) -> BTreeMap<String, Placement> {
    let common = [HNSW, QUANTIZATION].map(|name| kept(config.client_config.get(name)));
    let of = |client_config: Option<&String>| {
        let own = kept(client_config);
        let [hnsw, quantization] = [HNSW, QUANTIZATION].map(|name| own.get(name).and_then(Value::as_object));
        placement(&own, &overlaid(&common[0], hnsw), quantization.unwrap_or(&common[1]))
    };
    config.vectors.iter().map(|(name, vector)| (name.clone(), of(vector.client_config.as_ref()))).collect()
}

/// What a vector says of its index goes before what the collection says, field by field.
fn overlaid(common: &Section, own: Option<&Section>) -> Section {
    crate::decoders::sections::overlaid(common.clone(), own.cloned().unwrap_or_default())
}

fn placement(vector: &Section, hnsw: &Section, quantization: &Section) -> Placement {
    let kind = quantization.iter().next().and_then(|(kind, fields)| Some((kind.as_str(), fields.as_object()?)));
    let pinned = |fields: &Section| {
        fields.get("always_ram").and_then(Value::as_bool).map(|always| match always {
            true => MemoryTier::Pinned,
            false => MemoryTier::Cached,
        })
    };
    Placement {
        vectors: memory_tier(vector).unwrap_or_default(),
        index: memory_tier(hnsw).unwrap_or_default(),
        codes: kind.and_then(|(_, fields)| memory_tier(fields).or_else(|| pinned(fields))).unwrap_or_default(),
        code_bits_max: kind.and_then(|(kind, fields)| bits(kind, fields)),
        ef_construct: hnsw.get("ef_construct").and_then(Value::as_u64).map(|ef| ef as usize),
    }
}

/// `memory` goes before the older `on_disk`.
fn memory_tier(section: &Section) -> Option<MemoryTier> {
    match section.get("memory").and_then(Value::as_str) {
        Some("cold") => Some(MemoryTier::Cold),
        Some("cached") => Some(MemoryTier::Cached),
        Some("pinned") => Some(MemoryTier::Pinned),
        _ => match section.get("on_disk")?.as_bool()? {
            true => Some(MemoryTier::Cold),
            false => Some(MemoryTier::Cached),
        },
    }
}

/// Bits a dimension that a kind of quantisation takes.
fn bits(kind: &str, fields: &Section) -> Option<f32> {
    let word = |field: &str| fields.get(field).and_then(Value::as_str);
    match (kind, word("compression"), word("encoding"), word("bits")) {
        ("scalar", ..) => Some(8.0),
        ("product", Some(rate), ..) => Some(32.0 / rate.strip_prefix('x')?.parse::<f32>().ok()?),
        ("binary", _, Some("two_bits"), _) | ("turbo", _, _, Some("bits2")) => Some(2.0),
        ("binary", _, Some("one_and_half_bits"), _) | ("turbo", _, _, Some("bits1_5")) => Some(1.5),
        ("turbo", _, _, Some("bits1")) | ("binary", ..) => Some(1.0),
        ("turbo", _, _, Some("bits8")) => Some(8.0),
        // Its default.
        ("turbo", ..) => Some(4.0),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]
mod tests {
    use super::*;
    use crate::decoders::collection_body::create;
    use ramekin_memory::SharedReservation;

    fn of(body: &str) -> Placement {
        create(body.as_bytes(), &mut SharedReservation::endless())
            .unwrap()
            .vectors
            .into_values()
            .next()
            .unwrap()
            .placement
    }

    fn quantised(text: &str) -> Placement {
        of(&format!(r#"{{"vectors":{{"size":4,"distance":"Dot"}},"quantization_config":{text}}}"#))
    }

    #[test]
    fn nothing_said_is_cached() {
        assert_eq!(of(r#"{"vectors":{"size":4,"distance":"Dot"}}"#), Placement::default());
    }

    #[test]
    fn every_kind_and_rate_is_a_bound() {
        for (text, bits) in [
            (r#"{"scalar":{"type":"int8"}}"#, 8.0),
            (r#"{"product":{"compression":"x4"}}"#, 8.0),
            (r#"{"product":{"compression":"x16"}}"#, 2.0),
            (r#"{"product":{"compression":"x64"}}"#, 0.5),
            (r#"{"binary":{}}"#, 1.0),
            (r#"{"binary":{"encoding":"one_and_half_bits"}}"#, 1.5),
            (r#"{"binary":{"encoding":"two_bits","query_encoding":"scalar8bits"}}"#, 2.0),
            (r#"{"turbo":{}}"#, 4.0),
            (r#"{"turbo":{"bits":"bits1"}}"#, 1.0),
            (r#"{"turbo":{"bits":"bits8"}}"#, 8.0),
        ] {
            assert_eq!(quantised(text).code_bits_max, Some(bits), "{text}");
        }
    }

    #[test]
    fn wishes_of_both_generations() {
        assert_eq!(quantised(r#"{"scalar":{"type":"int8","always_ram":true}}"#).codes, MemoryTier::Pinned);
        assert_eq!(quantised(r#"{"binary":{"always_ram":true,"memory":"cold"}}"#).codes, MemoryTier::Cold);
        let old = of(r#"{"vectors":{"size":4,"distance":"Dot","on_disk":true},"hnsw_config":{"on_disk":true}}"#);
        assert_eq!((old.vectors, old.index, old.codes), (MemoryTier::Cold, MemoryTier::Cold, MemoryTier::Cached));
        let own = of(r#"{"vectors":{"size":4,"distance":"Dot","memory":"cached","hnsw_config":{"memory":"pinned"},
            "quantization_config":{"turbo":{"bits":"bits2"}}},"hnsw_config":{"on_disk":true},
            "quantization_config":{"scalar":{"type":"int8"}}}"#);
        assert_eq!((own.vectors, own.index, own.code_bits_max), (MemoryTier::Cached, MemoryTier::Pinned, Some(2.0)));
        let careful = of(r#"{"vectors":{"size":4,"distance":"Dot"},"hnsw_config":{"ef_construct":400}}"#);
        assert_eq!(careful.ef_construct, Some(400));
    }
}
