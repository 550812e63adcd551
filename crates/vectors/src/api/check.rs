//! What is allowed: names, configurations, and writes, checked before they reach the log.

use crate::api::{Batch, CollectionConfig, CollectionPatch, Parts, VectorConfig, VectorParts, Write};
use ramekin_base::limits::{DIM_MAX, NAME_MAX, POINTS_PER_REQUEST_MAX, VECTOR_NAMES_MAX};
use ramekin_base::{Error, Result, Size};

/// Signs that no name holds: those that paths and file systems give a meaning.
const SIGNS: &str = "<>:\"/\\|?*";

/// Whether a collection or an alias may be named so. Clients take `.` and `..` out of a path before they send it, so what is
/// named so could not be reached.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::invalid(format!("a name has from 1 to {NAME_MAX} bytes, this one has {}", name.len())));
    }
    if name == "." || name == ".." {
        return Err(Error::invalid(format!("a name cannot be {name:?}")));
    }
    match name.chars().find(|sign| SIGNS.contains(*sign) || sign.is_control()) {
        Some(sign) => Err(Error::invalid(format!("a name cannot contain {sign:?}"))),
        None => Ok(()),
    }
}

pub(crate) fn config(config: &CollectionConfig) -> Result<()> {
    if config.vectors.len() > VECTOR_NAMES_MAX {
        let got = config.vectors.len();
        return Err(Error::invalid(format!("{got} named vectors; at most {VECTOR_NAMES_MAX} are allowed")));
    }
    for (name, vector) in &config.vectors {
        if vector.dim == 0 || vector.dim > DIM_MAX {
            return Err(Error::invalid(format!("vectors.size is {}; 1 to {DIM_MAX} are allowed", vector.dim)));
        }
        if name.len() > NAME_MAX {
            return Err(Error::invalid(format!(
                "a vector's name has {} bytes; at most {NAME_MAX} are allowed",
                name.len()
            )));
        }
    }
    if !(0.5..=0.999).contains(&config.recall) {
        return Err(Error::invalid(format!("recall is {}; 0.5 to 0.999 is allowed", config.recall)));
    }
    Ok(())
}

/// What a flush takes beside the largest record of a point, whose payload may be a sixteenth of the budget.
pub(crate) const BESIDE_LARGEST: u64 = 768 << 10;

/// What a flush of vectors takes for each dimension and besides, as measured; `tests/largest.rs` fails where it is less.
const FLUSH_BYTES_A_DIMENSION: u64 = 720;
const FLUSH_BYTES_BESIDES: u64 = 448 << 10;

/// Whether a flush that has so many bytes can write such vectors out: else new points would stay in memory for good.
pub(crate) fn flushes(config: &CollectionConfig, flush_work: u64) -> Result<()> {
    let Some(dim) = config.vectors.values().map(|vector| vector.dim).max() else { return Ok(()) };
    let needed = FLUSH_BYTES_BESIDES + dim as u64 * FLUSH_BYTES_A_DIMENSION;
    if needed <= flush_work {
        return Ok(());
    }
    Err(Error::no_memory(format!(
        "to write vectors of {dim} dimensions out takes {}, and under this budget {} are for that; a budget of {} is enough",
        Size(needed),
        Size(flush_work),
        Size(needed.saturating_sub(BESIDE_LARGEST) * 16)
    )))
}

/// The vectors that are to be returned.
pub(crate) fn parts(parts: &Parts, config: &CollectionConfig) -> Result<()> {
    match &parts.vectors {
        VectorParts::Names(names) => known(names, config),
        VectorParts::None | VectorParts::All => Ok(()),
    }
}

fn known(names: &[String], config: &CollectionConfig) -> Result<()> {
    match names.iter().find(|name| !config.vectors.contains_key(*name)) {
        Some(name) => Err(unknown(name)),
        None => Ok(()),
    }
}

/// Checks a write against its collection, and brings vectors to what is kept of them. A payload may have `payload_max` bytes.
pub(crate) fn write(write: &mut Write, config: &CollectionConfig, payload_max: usize) -> Result<()> {
    match write {
        Write::Upsert(batch) | Write::UpdateVectors(batch) | Write::Conditional { batch, .. } => {
            self::batch(batch, config, payload_max)
        }
        Write::DeleteVectors { names, .. } => known(names, config),
        Write::Delete(_) | Write::Payload { .. } => Ok(()),
    }
}

fn unknown(name: &str) -> Error {
    Error::malformed(format!("Not existing vector name error: {name}"))
}

fn batch(batch: &mut Batch, config: &CollectionConfig, payload_max: usize) -> Result<()> {
    let points = batch.ids.len();
    if points > POINTS_PER_REQUEST_MAX {
        return Err(Error::too_large(format!(
            "{points} points in one request; at most {POINTS_PER_REQUEST_MAX} are allowed"
        )));
    }
    if !batch.payloads.is_empty() && batch.payloads.len() != points {
        return Err(Error::malformed(format!("{} payloads for {points} points", batch.payloads.len())));
    }
    if let Some(payload) = batch.payloads.iter().find(|payload| payload.len() > payload_max) {
        return Err(Error::too_large(format!(
            "a payload of {} bytes; at most {payload_max} are allowed under this budget",
            payload.len()
        )));
    }
    for column in &mut batch.columns {
        let known = config.vectors.get(&column.name).ok_or_else(|| unknown(&column.name))?;
        check_dim(column.dim, known.dim)?;
        let ascending = column.present.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = column.present.last().is_none_or(|last| (*last as usize) < points);
        if !ascending || !inside || column.data.len() != column.present.len() * column.dim {
            return Err(Error::bug("a column that does not fit its batch"));
        }
        if column.data.iter().any(|value| !value.is_finite()) {
            return Err(Error::malformed("a vector holds a value that is not a finite number"));
        }
        column.data.chunks_exact_mut(column.dim).for_each(|vector| known.keep(vector));
        in_range(&column.data, known)?;
    }
    Ok(())
}

/// Kept values of finite ones: a datatype may be too small for them.
pub(crate) fn in_range(kept: &[f32], config: &VectorConfig) -> Result<()> {
    if kept.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    let name = config.datatype.name();
    Err(Error::malformed(format!("a vector holds a value that is too large for {name}; scale it, or use float32")))
}

impl CollectionPatch {
    /// The configuration after the change.
    pub fn apply(&self, old: &CollectionConfig) -> CollectionConfig {
        let mut new = old.clone();
        new.full_scan_threshold_kib = self.full_scan_threshold_kib.unwrap_or(old.full_scan_threshold_kib);
        new.deleted_threshold = self.deleted_threshold.unwrap_or(old.deleted_threshold);
        new.vacuum_min_vectors = self.vacuum_min_vectors.unwrap_or(old.vacuum_min_vectors);
        new.recall = self.recall.unwrap_or(old.recall);
        new.client_config.extend(self.client_config.clone());
        for (name, client_config) in &self.vector_client_config {
            if let Some(vector) = new.vectors.get_mut(name) {
                vector.client_config = Some(client_config.clone());
            }
        }
        for (name, placement) in &self.placements {
            if let Some(vector) = new.vectors.get_mut(name) {
                vector.placement = *placement;
            }
        }
        new
    }
}

/// A vector must have as many dimensions as its collection says.
pub(crate) fn check_dim(got: usize, want: usize) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => Err(Error::malformed(format!("Vector dimension error: expected dim: {want}, got {got}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["my collection-1_ö", ".a", "...", &"x".repeat(255)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a\0", "a\n", "a\u{1f}", "a?", &"x".repeat(256)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
