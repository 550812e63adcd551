//! A small collection of which every answer can be said from a plain model: what tests of failures, damage and rewriting share.
//!
//! ```text
//!   tag ─► vector, payload        pure functions of one number
//!   model: id ─► tag of its vector, tag of its payload
//!   World: a store in this thread on any disk, with a clock that stands still
//! ```

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]
#![allow(dead_code, reason = "each test uses a part of it")]

use ramekin_base::rng::mix;
use ramekin_base::{Error, Kind, ManualClock, PointId, Result, Rng};
use ramekin_disk::Disk;
use ramekin_fields::{Condition, FieldCondition, Filter, Match, Path as FieldPath, Scalar, Schema, Span, Test};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub const DIM: usize = 8;
pub const NAME: &str = "points";
const WORDS: [&str; 6] = ["red", "green", "blue", "quick", "brown", "lazy"];

/// What an answer was, seen beside the model.
#[derive(Debug)]
pub enum Fault {
    /// The store said that it could not.
    Failed(Error),
    /// The store said something else.
    Wrong(String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub fn vector(tag: u64) -> Vec<f32> {
    let mut rng = Rng::new(tag);
    (0..DIM).map(|_| rng.normal()).collect()
}

/// A payload's number, its word, and the words of its text.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    pub number: i64,
    pub word: &'static str,
    pub text: [&'static str; 3],
}

pub fn fields(tag: u64) -> Fields {
    let at = |turn: u64| WORDS[(mix(tag + turn) % WORDS.len() as u64) as usize];
    Fields { number: (mix(tag) % 1000) as i64, word: at(1), text: [at(2), at(3), at(4)] }
}

/// Its keys ascend, as those of a payload that was changed do.
pub fn payload(tag: u64) -> String {
    let Fields { number, word, text } = fields(tag);
    format!(r#"{{"number":{number},"text":"{}","word":"{word}"}}"#, text.join(" "))
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub vector: u64,
    pub payload: u64,
}

pub type Model = BTreeMap<PointId, Point>;

pub fn id(number: u64) -> PointId {
    if number % 5 == 2 { PointId::Uuid(mix(number).into()) } else { PointId::Num(number) }
}

/// Whether a point passes.
pub type Passes = Box<dyn Fn(&PointId, &Point) -> bool>;

/// A filter, and whether a point passes it.
pub struct Asked {
    pub filter: Filter,
    pub passes: Passes,
}

pub fn on(field: &str, test: Test) -> Condition {
    Condition::Field(FieldCondition { path: FieldPath::of_key(field), tests: [test].into() })
}

pub fn must(conditions: Vec<Condition>) -> Filter {
    Filter { must: conditions.into(), ..Filter::default() }
}

/// A condition drawn by chance.
pub fn condition(rng: &mut Rng) -> (Condition, Passes) {
    let word = WORDS[rng.below(WORDS.len() as u64) as usize];
    match rng.below(5) {
        0 | 1 => {
            let (from, to) = (rng.below(1000) as i64, rng.below(1200) as i64);
            let span = Span { gte: Some(from as f64), lt: Some(to as f64), ..Span::default() };
            (
                on("number", Test::Range(span)),
                Box::new(move |_, point| (from..to).contains(&fields(point.payload).number)),
            )
        }
        2 => (
            on("word", Test::Match(Match::Value(Scalar::Word(word.into())))),
            Box::new(move |_, point| fields(point.payload).word == word),
        ),
        3 => (
            on("text", Test::Match(Match::Text(word.into()))),
            Box::new(move |_, point| fields(point.payload).text.contains(&word)),
        ),
        _ => {
            let mut ids: Vec<PointId> = (0..rng.below(200)).map(id).collect();
            ids.sort();
            let held = ids.clone();
            (Condition::HasId(ids.into()), Box::new(move |id, _| held.binary_search(id).is_ok()))
        }
    }
}

pub fn asked(rng: &mut Rng) -> Asked {
    let (one, passes_one) = condition(rng);
    let (other, passes_other) = condition(rng);
    match rng.below(4) {
        0 => Asked { filter: must(vec![one]), passes: passes_one },
        1 => Asked {
            filter: must(vec![one, other]),
            passes: Box::new(move |id, point| passes_one(id, point) && passes_other(id, point)),
        },
        2 => Asked {
            filter: Filter { should: [one, other].into(), ..Filter::default() },
            passes: Box::new(move |id, point| passes_one(id, point) || passes_other(id, point)),
        },
        _ => Asked {
            filter: Filter { must: [one].into(), must_not: [other].into(), ..Filter::default() },
            passes: Box::new(move |id, point| passes_one(id, point) && !passes_other(id, point)),
        },
    }
}

pub fn upsert(points: &[(PointId, u64)]) -> Write {
    let mut batch = Batch::default();
    let mut column = Column { name: String::new(), dim: DIM, present: Vec::new(), data: Vec::new() };
    for (at, (id, tag)) in points.iter().enumerate() {
        column.present.push(at as u32);
        column.data.extend(vector(*tag));
        batch.ids.push(*id);
        batch.payloads.push(payload(*tag).into());
    }
    batch.columns.push(column);
    Write::Upsert(batch)
}

pub fn everything() -> Parts {
    Parts { payload: PayloadParts::All, vectors: VectorParts::All }
}

pub struct World {
    pub store: Store,
    pub budget: Budget,
    pub clock: Arc<ManualClock>,
}

impl World {
    /// Opens what is there, in this thread alone. `budget` is the caller's, so that he may see what is left of it.
    pub fn open(disk: &Arc<dyn Disk>, folder: &Path, budget: &Budget) -> Result<Self> {
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), budget, 1 << 32)?;
        let clock = Arc::new(ManualClock::default());
        let account = budget.root().child("vectors", "");
        let store = Store::open(StoreOptions {
            disk: disk.clone(),
            folder: folder.to_owned(),
            pages,
            budget: budget.clone(),
            account,
            clock: clock.clone(),
            build_threads: 1,
            threads: false,
        })?;
        Ok(Self { store, budget: budget.clone(), clock })
    }

    pub fn create(&self) -> Result<()> {
        self.create_other(NAME)
    }

    pub fn create_other(&self, name: &str) -> Result<()> {
        let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(DIM, MetricName::Dot))]);
        let config = CollectionConfig { vacuum_min_vectors: 100, ..CollectionConfig::new(vectors) };
        self.store.create_collection(name, config)
    }

    pub fn index(&self, field: &str, schema: Schema) -> Result<u64> {
        self.index_of(NAME, field, schema)
    }

    pub fn index_of(&self, name: &str, field: &str, schema: Schema) -> Result<u64> {
        let index = FieldConfig { schema: Arc::new(schema), client_config: None };
        self.store.set_index(name, FieldPath::of_key(field), Some(index))
    }

    pub fn index_number(&self) -> Result<u64> {
        self.index("number", Schema::Integer { lookup: true, range: true })
    }

    pub fn drop_index(&self) -> Result<u64> {
        self.store.set_index(NAME, FieldPath::of_key("number"), None)
    }

    pub fn write(&self, write: Write) -> Result<()> {
        match self.writes(std::slice::from_ref(&write)).pop() {
            Some(Err(error)) if error.kind() == Kind::NotFound => Ok(()),
            answer => answer.unwrap_or_else(|| Err(Error::bug("a write got no answer"))),
        }
    }

    /// Hands all writes over, then does them: what each was answered.
    pub fn writes(&self, writes: &[Write]) -> Vec<Result<()>> {
        let submit = |write: &Write| {
            let (done, answer) = mpsc::sync_channel(1);
            let done = Box::new(move |outcome| _ = done.send(outcome));
            self.store.write(NAME, write.clone(), Wait::Visible, Vec::new(), done).map(|()| answer)
        };
        let answers: Vec<_> = writes.iter().map(submit).collect();
        self.store.step_writer();
        let told = |answer: Result<mpsc::Receiver<Result<Written>>>| match answer?.try_recv() {
            Ok(written) => written.map(|_| ()),
            Err(_) => Err(Error::bug("a write got no answer")),
        };
        answers.into_iter().map(told).collect()
    }

    /// All that waits is done; what failed is tried again after its pause.
    pub fn settle(&self) {
        for _ in 0..20 {
            self.clock.advance(Duration::from_secs(70));
            let mut did = false;
            while self.store.step() {
                did = true;
            }
            if !did {
                return;
            }
        }
    }

    pub fn flush(&self) -> Result<()> {
        self.store.rotate_for_tests(NAME)?;
        self.settle();
        Ok(())
    }

    pub fn contents(&self) -> Result<Vec<Record>> {
        let (mut records, mut from) = (Vec::new(), None);
        loop {
            let page = self.store.scroll(NAME, from, 500, &Filter::default(), &everything())?.value;
            records.extend(page.records);
            from = page.next;
            if from.is_none() {
                return Ok(records);
            }
        }
    }

    /// Whether all that is stored is what the model says.
    pub fn holds(&self, model: &Model) -> Result<(), Fault> {
        let records = self.contents()?;
        let found = records.len();
        for record in records {
            let Some(point) = model.get(&record.id) else {
                return Err(Fault::Wrong(format!("point {} is there and should not be", record.id)));
            };
            if record.vectors.as_ref().is_none_or(|vectors| vectors[0].1 != vector(point.vector)) {
                return Err(Fault::Wrong(format!("point {}: another vector", record.id)));
            }
            if record.payload.as_deref() != Some(&payload(point.payload)) {
                return Err(Fault::Wrong(format!("point {}: its payload is {:?}", record.id, record.payload)));
            }
        }
        let counted = self.store.count(NAME, &Filter::default(), true)? as usize;
        match (found, counted) == (model.len(), model.len()) {
            true => Ok(()),
            false => Err(Fault::Wrong(format!("{found} points, counted {counted}, of {}", model.len()))),
        }
    }

    /// Whether a drawn filter selects, counts and finds what it should.
    pub fn answers(&self, model: &Model, rng: &mut Rng) -> Result<(), Fault> {
        let Asked { filter, passes } = asked(rng);
        let wanted: Vec<PointId> = model.iter().filter(|(id, point)| passes(id, point)).map(|(id, _)| *id).collect();
        let page = self.store.scroll(NAME, None, model.len() + 10, &filter, &Parts::default())?.value;
        let found: Vec<PointId> = page.records.iter().map(|record| record.id).collect();
        if found != wanted {
            return Err(Fault::Wrong(format!("{filter:?} selects {} points, not {}", found.len(), wanted.len())));
        }
        let counted = self.store.count(NAME, &filter, true)?;
        if counted != wanted.len() as u64 {
            return Err(Fault::Wrong(format!("{filter:?} counts {counted} points, not {}", wanted.len())));
        }
        let target = vector(rng.next_u64());
        let score = |id: &PointId| -> f32 { vector(model[id].vector).iter().zip(&target).map(|(a, b)| a * b).sum() };
        let mut best: Vec<f32> = wanted.iter().map(score).collect();
        best.sort_by(|a, b| b.total_cmp(a));
        best.truncate(5);
        let query = Query { exact: true, filter, ..Query::new(Target::Vector(target.clone()), 5) };
        let scored = self.store.query(NAME, &query)?.0.value;
        let scores: Vec<f32> = scored.iter().map(|scored| scored.score).collect();
        match scores.len() == best.len() && scores.iter().zip(&best).all(|(a, b)| (a - b).abs() < 1e-3) {
            true => Ok(()),
            false => Err(Fault::Wrong(format!("a search scores {scores:?}, the best are {best:?}"))),
        }
    }
}
