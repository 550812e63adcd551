//! A collection as Qdrant's API shows it.
//!
//! ```text
//!   status · optimizer_status · counts · config { params, hnsw_config, optimizer_config, wal_config, ... }
//!      what was never said shows Qdrant's default, what was said is echoed;   recall, progress: ours
//! ```

use crate::decoders::collection_body::{HNSW, METADATA, OPTIMIZERS, PARAMS, QUANTIZATION, WAL};
use crate::decoders::sections::{Section, kept, overlaid};
use ramekin_fields::Path;
use ramekin_vectors::{
    CollectionConfig, FieldConfig, Info, MetricName, Progress, Status, UNNAMED, VectorConfig, VectorCount,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The whole answer of `GET collections/{name}`.
pub fn shown(info: &Info) -> Value {
    let status = match info.status {
        Status::Green => "green",
        Status::Yellow => "yellow",
        Status::Grey => "grey",
        Status::Red => "red",
    };
    let optimizer_status = match &info.optimizer {
        Ok(()) => json!("ok"),
        Err(error) => json!({ "error": error }),
    };
    let mut shown = json!({
        "status": status,
        "optimizer_status": optimizer_status,
        "points_count": info.points,
        "indexed_vectors_count": indexed_vectors(info),
        "segments_count": info.segments,
        "config": config(&info.config),
        "payload_schema": payload_schema(info),
        "recall": as_written(info.config.recall),
        "recall_measured": info.recall_measured,
        "progress": info.progress.as_ref().map(progress),
        "disk_bytes": info.bytes_on_disk,
    });
    let warnings: Vec<Value> =
        ignored(&info.config).chain(info.warnings.iter().cloned()).map(|text| json!({ "message": text })).collect();
    if !warnings.is_empty() {
        shown["warnings"] = Value::Array(warnings);
    }
    shown
}

/// KB of the vectors under one name from which clients expect that they are indexed, where nothing else is said.
const INDEXING_THRESHOLD: u64 = 10_000;

/// Vectors that an index finds. New ones are scanned in memory until they are sealed; they count once there are so many under their
/// name that clients wait for an index of them. A threshold of 0 says that there is to be none.
fn indexed_vectors(info: &Info) -> u64 {
    let said = kept(info.config.client_config.get(OPTIMIZERS)).get("indexing_threshold").and_then(Value::as_u64);
    let threshold = said.unwrap_or(INDEXING_THRESHOLD).saturating_mul(1024);
    let of = |(name, count): (&String, &VectorCount)| {
        let each = info.config.vectors.get(name).map_or(0, |vector| vector.dim * vector.datatype.bytes()) as u64;
        let counts = threshold > 0 && (count.sealed + count.new) * each >= threshold;
        count.sealed + if counts { count.new } else { 0 }
    };
    info.vectors.iter().map(of).sum()
}

/// What was said of vectors and has no effect: one line a vector.
fn ignored(config: &CollectionConfig) -> impl Iterator<Item = String> {
    let common = [HNSW, QUANTIZATION].map(|name| kept(config.client_config.get(name)));
    let is_ignored = move |vector: &VectorConfig| {
        let own = kept(vector.client_config.as_ref());
        let inline = |hnsw: &Section| hnsw.get("inline_storage").and_then(Value::as_bool);
        let inline = own.get(HNSW).and_then(Value::as_object).and_then(inline).or_else(|| inline(&common[0]));
        inline == Some(true) && !own.contains_key(QUANTIZATION) && common[1].is_empty()
    };
    config.vectors.iter().filter(move |(_, vector)| is_ignored(vector)).map(|(name, _)| {
        format!(
            "The `hnsw_config.inline_storage` option for vector '{name}' requires quantization to be enabled. This option will \
             be ignored."
        )
    })
}

/// An f32 widened to f64 shows digits that nobody wrote; its shortest text read again does not.
fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

/// Each indexed field: its kind, what was said of it, and how many points have a value for it.
fn payload_schema(info: &Info) -> Section {
    let of = |(path, field): (&Path, &FieldConfig)| {
        let of = |points: &BTreeMap<Path, u64>| points.get(path).copied().unwrap_or(0);
        let points = of(&info.indexed_points) + of(&info.new_points);
        let mut shown = json!({ "data_type": field.schema.name(), "points": points });
        if field.client_config.is_some() {
            shown["params"] = Value::Object(kept(field.client_config.as_ref()));
        }
        (path.to_string(), shown)
    };
    info.config.indexes.iter().map(of).collect()
}

fn progress(progress: &Progress) -> Value {
    json!({
        "what": progress.what,
        "done": progress.done,
        "total": progress.total,
        "rate_per_s": progress.rate_per_s,
        "left_s": progress.left_s,
    })
}

fn object(value: Value) -> Section {
    match value {
        Value::Object(section) => section,
        _ => Section::new(),
    }
}

/// The configuration with Qdrant's defaults below what was said.
pub fn config(config: &CollectionConfig) -> Value {
    let said = |name: &str| kept(config.client_config.get(name));
    let defaults =
        json!({ "shard_number": 1, "replication_factor": 1, "write_consistency_factor": 1, "on_disk_payload": true });
    let mut params = overlaid(object(defaults), said(PARAMS));
    params.insert("vectors".to_owned(), vectors(config));
    let hnsw = json!({
        "m": 16, "ef_construct": 100, "full_scan_threshold": config.full_scan_threshold_kib, "max_indexing_threads": 0,
    });
    let optimizer = json!({
        "deleted_threshold": config.deleted_threshold, "vacuum_min_vector_number": config.vacuum_min_vectors,
        "default_segment_number": 0, "max_segment_size": null, "memmap_threshold": null,
        "indexing_threshold": INDEXING_THRESHOLD,
        "flush_interval_sec": 5, "max_optimization_threads": null,
    });
    let mut optimizer = overlaid(object(optimizer), said(OPTIMIZERS));
    // "auto" is a way to ask; the answer is a number or nothing.
    if optimizer.get("max_optimization_threads").is_some_and(Value::is_string) {
        optimizer.insert("max_optimization_threads".to_owned(), Value::Null);
    }
    let wal = json!({ "wal_capacity_mb": 32, "wal_segments_ahead": 0, "wal_retain_closed": 1 });
    let quantization = said(QUANTIZATION);
    let mut shown = json!({
        "params": params,
        "hnsw_config": overlaid(object(hnsw), said(HNSW)),
        "optimizer_config": optimizer,
        "wal_config": overlaid(object(wal), said(WAL)),
        "quantization_config": (!quantization.is_empty()).then_some(quantization),
        "strict_mode_config": { "enabled": false },
    });
    if config.client_config.contains_key(METADATA) {
        shown[METADATA] = Value::Object(said(METADATA));
    }
    shown
}

fn vectors(config: &CollectionConfig) -> Value {
    match config.vectors.get(UNNAMED) {
        Some(vector) if config.vectors.len() == 1 => self::vector(vector),
        _ => config.vectors.iter().map(|(name, vector)| (name.clone(), self::vector(vector))).collect(),
    }
}

fn vector(vector: &VectorConfig) -> Value {
    let distance = match vector.metric {
        MetricName::Dot => "Dot",
        MetricName::Cosine => "Cosine",
        MetricName::Euclid => "Euclid",
        MetricName::Manhattan => "Manhattan",
    };
    let shape = object(json!({ "size": vector.dim, "distance": distance }));
    Value::Object(overlaid(shape, kept(vector.client_config.as_ref())))
}
