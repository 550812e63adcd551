//! The plain model that the store is checked against: a sorted map, and what may still be in the air.
//!
//! ```text
//!   base      what was there when the store was last opened
//!   writes    every write since, in order: acknowledged or not
//!
//!   after a crash the store must equal base, then all acknowledged writes, with any of the others
//!   among them in their order: whoever got no answer may find his write done or not, never half
//! ```

use ramekin_base::PointId;
use ramekin_fields::{Condition, Test, parts};
use ramekin_vectors::{Batch, PayloadChange, Record, Selection, Write};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A point as the model knows it: its one vector and its payload's text.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub vector: Vec<f32>,
    pub payload: String,
}

pub type Points = BTreeMap<PointId, Point>;

/// Unanswered writes that a life may collect before it must end: each doubles what is to be tried.
pub const UNSURE_MAX: usize = 8;

#[derive(Default)]
pub struct Model {
    base: Points,
    writes: Vec<(Write, bool)>,
    /// What readers must see now.
    pub live: Points,
}

impl Model {
    pub fn note(&mut self, write: Write, acknowledged: bool) {
        if acknowledged {
            apply(&mut self.live, &write);
        }
        self.writes.push((write, acknowledged));
    }

    pub fn unsure(&self) -> usize {
        self.writes.iter().filter(|(_, acknowledged)| !acknowledged).count()
    }

    /// Settles what a crash left in the air: `found` must be one of the states that are allowed.
    /// `damaged`: a bit was flipped, which may have cost the newest record, as a torn write does.
    pub fn settle(&mut self, found: Points, damaged: bool) -> Result<(), String> {
        let unsure = self.unsure();
        let shortest = if damaged { 0 } else { self.writes.len() };
        let allowed = (shortest..=self.writes.len())
            .rev()
            .any(|end| (0..1u32 << unsure).any(|chosen| self.state(&self.writes[..end], chosen) == found));
        if !allowed {
            return Err(difference(&self.live, &found));
        }
        self.writes.clear();
        self.base = found.clone();
        self.live = found;
        Ok(())
    }

    /// The state if, of the unanswered writes, those whose bit is set were done.
    fn state(&self, writes: &[(Write, bool)], chosen: u32) -> Points {
        let mut state = self.base.clone();
        let mut bit = 0;
        for (write, acknowledged) in writes {
            if !acknowledged {
                bit += 1;
            }
            if *acknowledged || chosen >> (bit - 1) & 1 == 1 {
                apply(&mut state, write);
            }
        }
        state
    }
}

/// What a write does to points.
fn apply(points: &mut Points, write: &Write) {
    match write {
        Write::Upsert(batch) => {
            for (at, (id, vector)) in vectors(batch).enumerate() {
                let payload = batch.payloads.get(at).map_or(String::new(), |text| text.to_string());
                points.insert(id, Point { vector, payload });
            }
        }
        Write::Delete(selection) => selected(points, selection).iter().for_each(|id| _ = points.remove(id)),
        Write::UpdateVectors(batch) => {
            for (id, vector) in vectors(batch) {
                points.entry(id).and_modify(|point| point.vector = vector);
            }
        }
        Write::Payload { points: selection, change } => selected(points, selection).iter().for_each(|id| {
            points.entry(*id).and_modify(|point| point.payload = changed(&point.payload, change));
        }),
        // No life does these.
        Write::DeleteVectors { .. } | Write::Conditional { .. } => {}
    }
}

/// The points that a write is for. The only filter of a life is a bound of a point's number.
fn selected(points: &Points, selection: &Selection) -> Vec<PointId> {
    let filter = match selection {
        Selection::Ids(ids) => return ids.to_vec(),
        Selection::Filter(filter) => filter,
    };
    let bound = filter.must.iter().find_map(|condition| match condition {
        Condition::Field(field) => field.tests.iter().find_map(|test| match test {
            Test::Range(span) => span.lt,
            _ => None,
        }),
        _ => None,
    });
    let passes =
        |point: &Point| number(&point.payload).zip(bound).is_some_and(|(number, bound)| (number as f64) < bound);
    points.iter().filter(|(_, point)| passes(point)).map(|(id, _)| *id).collect()
}

/// The number in a payload.
pub fn number(payload: &str) -> Option<i64> {
    serde_json::from_str::<Value>(payload).ok()?.get("n")?.as_i64()
}

/// A payload's text after a change.
fn changed(stored: &str, change: &PayloadChange) -> String {
    let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let mut payload = object(stored);
    match change {
        PayloadChange::Merge { keys: new, .. } => payload.extend(object(new)),
        PayloadChange::Overwrite(new) => payload = object(new),
        PayloadChange::DeleteKeys(keys) => keys.iter().for_each(|key| parts::remove(&mut payload, key)),
        PayloadChange::Clear => payload.clear(),
    }
    if payload.is_empty() { String::new() } else { Value::Object(payload).to_string() }
}

fn vectors(batch: &Batch) -> impl Iterator<Item = (PointId, Vec<f32>)> + '_ {
    let column = &batch.columns[0];
    let vectors = column.present.iter().zip(column.data.chunks_exact(column.dim));
    vectors.map(|(at, vector)| (batch.ids[*at as usize], vector.to_vec()))
}

/// What a store's own record says, as the model would.
pub fn of_record(record: Record) -> (PointId, Point) {
    let vector = record.vectors.unwrap_or_default().pop().map(|(_, vector)| vector).unwrap_or_default();
    let payload = record.payload.filter(|text| text != "{}").unwrap_or_default();
    (record.id, Point { vector, payload })
}

/// The first difference in words.
pub fn difference(wanted: &Points, found: &Points) -> String {
    for (id, point) in wanted {
        match found.get(id) {
            None => return format!("point {id} was acknowledged and is gone"),
            Some(held) if held != point => return format!("point {id} is {held:?}, acknowledged was {point:?}"),
            Some(_) => {}
        }
    }
    match found.keys().find(|id| !wanted.contains_key(id)) {
        Some(id) => format!("point {id} is there, and should be deleted"),
        None => "no difference".to_owned(),
    }
}
