//! Batches of which only some points count, by what is there when their turn comes.
//!
//! ```text
//!   point of the batch     upsert          insert_only   update_only, vectors
//!   not there yet          written         written       left out
//!   there, passes filter   written         left out      written
//!   there, does not        left out        left out      left out
//! ```
//!
//! What is left over is an upsert like any other, or a change of vectors.

use crate::api::{Batch, Column, Mode, Parts, PayloadParts, Record, VectorParts};
use crate::collection::Collection;
use crate::payload;
use crate::query::env::QueryEnv;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read;
use crate::query::view::ReadView;
use crate::write::staged::{self, Staged};
use ramekin_base::{PointId, Result};
use ramekin_fields::{Filter, Point, Prepared, Subject};
use ramekin_memory::Reservation;
use std::collections::HashMap;
use std::ops::Range;

/// Of some points of a batch those that are to be written by what changes `before` left, and the memory for them.
pub(crate) fn written(
    env: &QueryEnv,
    collection: &Collection,
    before: &Staged,
    (batch, range): (&Batch, Range<usize>),
    (mode, filter): (Mode, &Filter),
) -> Result<(Batch, Reservation)> {
    let ids = &batch.ids[range.clone()];
    let filter = collection.config.load().resolve(filter, &env.account)?;
    let (known, stored): (Vec<PointId>, Vec<PointId>) = ids.iter().partition(|id| before.is_known(id));
    let mut passed = passed_as_stored(env, collection, &stored, &filter)?;
    passed.extend(passed_as_staged(env, collection, before, &known, &filter)?);
    let is_written = |id: &PointId| match (passed.get(id), mode) {
        (None, Mode::Upsert | Mode::InsertOnly) => true,
        (None, Mode::UpdateOnly | Mode::Vectors) => false,
        (Some(passed), mode) => *passed && mode != Mode::InsertOnly,
    };
    let written: Vec<bool> = ids.iter().map(is_written).collect();
    let mut memory = env.account.try_reserve(batch.bytes_of(range.clone()) as u64)?;
    let part = part(batch, range, &written);
    memory.shrink(memory.bytes().saturating_sub(part.bytes() as u64));
    Ok((part, memory))
}

/// Whether points pass a filter as they are stored; those that are not there are left out.
fn passed_as_stored(
    env: &QueryEnv,
    collection: &Collection,
    ids: &[PointId],
    filter: &Prepared<'_>,
) -> Result<HashMap<PointId, bool>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let view = &ReadView::pin(env, collection)?;
    let places = read::places(view, ids)?;
    let there: Vec<_> = ids.iter().zip(places).filter_map(|(id, place)| Some((*id, place?))).collect();
    let passed = PayloadFilter::new(&env.pages, view, filter)?.points(&there)?;
    Ok(there.into_iter().map(|(id, _)| id).zip(passed).collect())
}

/// The same as changes left them that are not applied yet.
fn passed_as_staged(
    env: &QueryEnv,
    collection: &Collection,
    before: &Staged,
    ids: &[PointId],
    filter: &Prepared<'_>,
) -> Result<HashMap<PointId, bool>> {
    let vectors = if filter.needs_vectors() { VectorParts::All } else { VectorParts::None };
    let parts = Parts { payload: PayloadParts::All, vectors };
    let held = staged::get(env, collection, before, ids, &parts)?;
    let (keys, mut memory) = (filter.keys(filter.room())?, env.account.try_reserve(0)?);
    let passes = |record: Record| {
        let payload = payload::parse_keys(record.payload.as_deref().unwrap_or_default(), &keys, &mut memory)?;
        let has_vector = |name: &str| record.vectors.iter().flatten().any(|(own, _)| own == name);
        let point = Some(Point { id: record.id, has_vector: &has_vector });
        Ok((record.id, filter.passes(&Subject { payload: &payload, point })))
    };
    held.value.into_iter().map(passes).collect()
}

/// The points of `range` that are `kept`.
fn part(batch: &Batch, range: Range<usize>, kept: &[bool]) -> Batch {
    let is_kept = |point: usize| range.contains(&point) && kept[point - range.start];
    // Where a point of the batch stands in what is left.
    let place = |point: u32| kept[..point as usize - range.start].iter().filter(|kept| **kept).count() as u32;
    let column = |column: &Column| {
        let kept = || column.present.iter().enumerate().filter(|(_, point)| is_kept(**point as usize));
        let points = kept().count();
        let (mut present, mut data) = (Vec::with_capacity(points), Vec::with_capacity(points * column.dim));
        for (at, point) in kept() {
            present.push(place(*point));
            data.extend_from_slice(&column.data[at * column.dim..(at + 1) * column.dim]);
        }
        Column { name: column.name.clone(), dim: column.dim, present, data }
    };
    let points = || range.clone().filter(|point| is_kept(*point));
    Batch {
        ids: points().map(|point| batch.ids[point]).collect(),
        columns: batch.columns.iter().map(column).collect(),
        payloads: points().filter_map(|point| batch.payloads.get(point).cloned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_batch_keeps_what_belongs_to_its_points() {
        let batch = Batch {
            ids: (0..5).map(PointId::Num).collect(),
            columns: vec![Column {
                name: "a".into(),
                dim: 2,
                present: vec![1, 2, 4],
                data: vec![1., 1., 2., 2., 4., 4.],
            }],
            payloads: ["0", "1", "2", "3", "4"].map(Into::into).into(),
        };
        let part = part(&batch, 1..5, &[false, true, false, true]);
        assert_eq!(part.ids, [PointId::Num(2), PointId::Num(4)]);
        assert_eq!((&part.columns[0].present[..], &part.columns[0].data[..]), (&[0, 1][..], &[2., 2., 4., 4.][..]));
        assert_eq!(part.payloads, ["2".into(), "4".into()] as [Box<str>; 2]);
    }
}
