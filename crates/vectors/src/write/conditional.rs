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

use crate::api::{Batch, Column, Mode};
use crate::collection::Collection;
use crate::query::env::QueryEnv;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read;
use crate::query::view::ReadView;
use ramekin_base::Result;
use ramekin_fields::Filter;
use ramekin_memory::Reservation;
use std::ops::Range;

/// Of some points of a batch those that are to be written, and the memory for them.
pub(crate) fn written(
    env: &QueryEnv,
    collection: &Collection,
    batch: &Batch,
    range: Range<usize>,
    mode: Mode,
    filter: &Filter,
) -> Result<(Batch, Reservation)> {
    let ids = &batch.ids[range.clone()];
    let filter = collection.config.load().resolve(filter, &env.account)?;
    let view = &ReadView::pin(env, collection)?;
    let places = read::places(view, ids)?;
    let there: Vec<_> = ids.iter().zip(&places).filter_map(|(id, place)| Some((*id, (*place)?))).collect();
    let mut passed = PayloadFilter::new(&env.pages, view, &filter)?.points(&there)?.into_iter();
    let is_written = |place: &Option<read::Place>| match (place.is_some(), mode) {
        (false, Mode::Upsert | Mode::InsertOnly) => true,
        (false, Mode::UpdateOnly | Mode::Vectors) => false,
        (true, mode) => passed.next().unwrap_or(false) && mode != Mode::InsertOnly,
    };
    let written: Vec<bool> = places.iter().map(is_written).collect();
    let mut memory = env.account.try_reserve(batch.bytes_of(range.clone()) as u64)?;
    let part = part(batch, range, &written);
    memory.shrink(memory.bytes().saturating_sub(part.bytes() as u64));
    Ok((part, memory))
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
    use ramekin_base::PointId;

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
