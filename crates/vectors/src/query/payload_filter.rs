//! Which points of a view pass a filter.
//!
//! ```text
//!   points or rows ─► what the filter asks for: ids, names of vectors, keys of the payload ─► passes or not
//! ```
//!
//! Payloads are read where they stand, a few at a time, and only the keys that are asked for are parsed; nothing is kept.

use crate::payload;
use crate::query::index_filter::NewPassing;
use crate::query::read::{self, Place};
use crate::query::view::ReadView;
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_fields::{Point, Prepared, Subject};
use ramekin_pages::Pages;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) struct PayloadFilter<'a> {
    pub(crate) pages: &'a Pages,
    pub(crate) view: &'a ReadView<'a>,
    pub(crate) filter: &'a Prepared<'a>,
    /// Of payloads.
    keys: Box<[&'a str]>,
    /// Of each memtable of the view, once it was asked, what its fields say.
    new: RefCell<BTreeMap<usize, Rc<NewPassing>>>,
}

impl<'a> PayloadFilter<'a> {
    pub(crate) fn new(pages: &'a Pages, view: &'a ReadView<'a>, filter: &'a Prepared<'a>) -> Result<Self> {
        Ok(Self { pages, view, filter, keys: filter.keys(filter.room())?, new: RefCell::default() })
    }

    /// Which slots of a memtable pass, or may.
    pub(crate) fn new_points(&self, part: usize) -> Result<Rc<NewPassing>> {
        if let Some(made) = self.new.borrow().get(&part) {
            return Ok(made.clone());
        }
        let growing = self.view.memtables().nth(part).ok_or_else(|| Error::bug("a part is not of this view"))?;
        let made = Rc::new(self.new_passing(growing)?);
        self.new.borrow_mut().insert(part, made.clone());
        Ok(made)
    }

    /// Whether each point passes, in their order.
    pub(crate) fn points(&self, points: &[(PointId, Place)]) -> Result<Vec<bool>> {
        let mut passed = Vec::with_capacity(points.len());
        for points in points.chunks(read::TEXTS) {
            let known = points.iter().map(|(_, place)| match place {
                Place::Memtable(part, slot) => Ok(self.new_points(*part)?.of(*slot)),
                Place::Segment(..) => Ok(None),
            });
            let known = known.collect::<Result<Vec<_>>>()?;
            let asked = points.iter().zip(&known).filter(|(_, known)| known.is_none());
            let asked: Vec<_> = asked.map(|(point, _)| *point).collect();
            let mut answers = Vec::with_capacity(asked.len());
            if !asked.is_empty() {
                self.some(&asked, &mut answers)?;
            }
            let mut answers = answers.into_iter();
            passed.extend(known.into_iter().map(|known| known.unwrap_or_else(|| answers.next().unwrap_or(false))));
        }
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
        let points: Vec<_> = ids.into_iter().zip(rows.iter().map(|row| Place::Segment(segment, *row))).collect();
        self.points(&points)
    }

    /// Whether each of a few points passes.
    fn some(&self, points: &[(PointId, Place)], passed: &mut Vec<bool>) -> Result<()> {
        cancel::check()?;
        if self.keys.is_empty() {
            passed.extend(points.iter().map(|(id, place)| self.passes(*id, *place, &Map::new())));
            return cancel::check();
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
        let mut held = self.view.env.account.try_reserve(0)?;
        let mut values = self.view.env.account.try_reserve(0)?;
        let texts = read::payloads(self.pages, self.view, points, &mut held)?;
        for ((id, place), text) in points.iter().zip(texts) {
            let payload = payload::parse_keys(&text, &self.keys, &mut values)?;
            passed.push(self.passes(*id, *place, &payload));
            // What a long payload said is worth nothing if it was left half way.
            cancel::check()?;
        }
        Ok(())
    }

    fn passes(&self, id: PointId, place: Place, payload: &Map<String, Value>) -> bool {
        let has_vector = |name: &str| match place {
            Place::Memtable(part, slot) => self
                .view
                .memtables()
                .nth(part)
                .is_some_and(|part| part.read().column(name).is_some_and(|column| column.of_slot(slot).is_some())),
            Place::Segment(segment, row) => {
                self.view.segments[segment].vector(name).is_some_and(|(_, named)| named.present.ordinal(row).is_some())
            }
        };
        self.filter.passes(&Subject { payload, point: Some(Point { id, has_vector: &has_vector }) })
    }
}
