//! Which points of a view pass a filter.
//!
//! ```text
//!   points or rows ─► what the filter asks for: ids, names of vectors, keys of the payload ─► passes or not
//! ```
//!
//! Payloads are read where they stand, a few at a time, and only the keys that are asked for are parsed; nothing is kept.

use crate::collection::View;
use crate::payload;
use crate::read::{self, Place};
use crate::shared::Shared;
use ramekin_base::{PointId, Result};
use ramekin_fields::{Filter, Point, Subject};
use ramekin_pages::Pages;
use serde_json::{Map, Value};

pub(crate) struct Matching<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) pages: &'a Pages,
    pub(crate) view: &'a View,
    /// Asked as the collection's indexes answer.
    pub(crate) filter: &'a Filter,
    /// Of payloads.
    keys: Vec<&'a str>,
}

impl<'a> Matching<'a> {
    pub(crate) fn new(shared: &'a Shared, pages: &'a Pages, view: &'a View, filter: &'a Filter) -> Self {
        Self { shared, pages, view, filter, keys: filter.keys() }
    }

    /// Whether each point passes, in their order.
    pub(crate) fn points(&self, points: &[(PointId, Place)]) -> Result<Vec<bool>> {
        let mut passed = Vec::with_capacity(points.len());
        points.chunks(read::TEXTS).try_for_each(|points| self.some(points, &mut passed))?;
        Ok(passed)
    }

    /// The points that pass, in their order.
    pub(crate) fn keep(&self, points: &mut Vec<(PointId, Place)>) -> Result<()> {
        if self.filter.is_empty() {
            return Ok(());
        }
        let mut passed = self.points(points)?.into_iter();
        points.retain(|_| passed.next().unwrap_or(false));
        Ok(())
    }

    /// Whether each of a few rows of a segment passes.
    pub(crate) fn rows(&self, segment: usize, rows: &[u32]) -> Result<Vec<bool>> {
        let ids = match self.filter.needs_id() {
            true => self.view.segments[segment].ids(self.pages, rows)?,
            false => vec![PointId::Num(0); rows.len()],
        };
        let points: Vec<_> = ids.into_iter().zip(rows.iter().map(|row| Place::Sealed(segment, *row))).collect();
        self.points(&points)
    }

    /// Whether each of a few points passes.
    fn some(&self, points: &[(PointId, Place)], passed: &mut Vec<bool>) -> Result<()> {
        if self.keys.is_empty() {
            passed.extend(points.iter().map(|(id, place)| self.passes(*id, *place, &Map::new())));
            return Ok(());
        }
        let before = passed.len();
        match self.read(points, passed) {
            // Payloads that are long: fewer at a time may fit.
            Err(error) if error.kind().is_memory() && points.len() > 1 => {
                passed.truncate(before);
                let (first, second) = points.split_at(points.len() / 2);
                self.some(first, passed)?;
                self.some(second, passed)
            }
            read => read,
        }
    }

    fn read(&self, points: &[(PointId, Place)], passed: &mut Vec<bool>) -> Result<()> {
        let mut held = self.shared.accounts.queries.try_reserve(0)?;
        let mut values = self.shared.accounts.queries.try_reserve(0)?;
        let texts = read::payloads(self.shared, self.pages, self.view, points, &mut held)?;
        for ((id, place), text) in points.iter().zip(texts) {
            let payload = payload::parse_keys(&text, &self.keys, &mut values)?;
            passed.push(self.passes(*id, *place, &payload));
        }
        Ok(())
    }

    fn passes(&self, id: PointId, place: Place, payload: &Map<String, Value>) -> bool {
        let has_vector = |name: &str| match place {
            Place::Growing(part, slot) => self
                .view
                .growing()
                .nth(part)
                .is_some_and(|part| part.read().column(name).is_some_and(|column| column.of_slot(slot).is_some())),
            Place::Sealed(segment, row) => {
                self.view.segments[segment].vector(name).is_some_and(|(_, named)| named.present.ordinal(row).is_some())
            }
        };
        self.filter.passes(&Subject { payload, point: Some(Point { id, has_vector: &has_vector }) })
    }
}
