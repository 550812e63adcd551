//! A collection as Qdrant's API shows it.
//!
//! ```text
//!   status · optimizer_status · counts · config { params, hnsw_config, optimizer_config, wal_config, ... }
//!      what was never said shows Qdrant's default, what was said is echoed;   recall, progress: ours
//! ```

use crate::collection_body::{HNSW, METADATA, OPTIMIZERS, PARAMS, QUANTIZATION, WAL};
use crate::sections::{Section, kept, overlaid};
use ramekin_fields::Path;
use ramekin_vectors::{CollectionConfig, FieldConfig, Info, MetricName, Progress, Status, UNNAMED, VectorConfig};
use serde_json::{Value, json};

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
    json!({
        "status": status,
        "optimizer_status": optimizer_status,
        "points_count": info.points,
        "indexed_vectors_count": info.indexed_vectors,
        "segments_count": info.segments,
        "config": config(&info.config),
        "payload_schema": payload_schema(info),
        "recall": as_written(info.config.recall),
        "recall_measured": info.recall_measured,
        "warnings": info.warnings.iter().map(|text| json!({ "message": text })).collect::<Vec<_>>(),
        "progress": info.progress.as_ref().map(progress),
        "disk_bytes": info.bytes_on_disk,
    })
}

/// An f32 widened to f64 shows digits that nobody wrote; its shortest text read again does not.
fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

/// Each indexed field: its kind, what was said of it, and how many points have a value in the index.
fn payload_schema(info: &Info) -> Section {
    let of = |(path, field): (&Path, &FieldConfig)| {
        let points = info.indexed_points.get(path).copied().unwrap_or(0);
        let mut shown = json!({ "data_type": field.schema.name(), "points": points });
        if field.echo.is_some() {
            shown["params"] = Value::Object(kept(field.echo.as_ref()));
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
    let said = |name: &str| kept(config.echo.get(name));
    let defaults =
        json!({ "shard_number": 1, "replication_factor": 1, "write_consistency_factor": 1, "on_disk_payload": true });
    let mut params = overlaid(object(defaults), said(PARAMS));
    params.insert("vectors".to_owned(), vectors(config));
    let hnsw = json!({
        "m": 16, "ef_construct": 100, "full_scan_threshold": config.full_scan_threshold_kib, "max_indexing_threads": 0,
    });
    let optimizer = json!({
        "deleted_threshold": config.deleted_threshold, "vacuum_min_vector_number": config.vacuum_min_vectors,
        "default_segment_number": 0, "max_segment_size": null, "memmap_threshold": null, "indexing_threshold": 10_000,
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
    if config.echo.contains_key(METADATA) {
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
    Value::Object(overlaid(shape, kept(vector.echo.as_ref())))
}
