//! One life of a store: from its start to a pulled plug.

use super::model::{self, Model, Point, Points, UNSURE_MAX};
use super::plan::{Plan, Step};
use crate::run::{End, excused, unless_panic};
use ramekin_base::{Error, Kind, ManualClock, PointId, Result, Rng};
use ramekin_disk::Disk;
use ramekin_disk::sim::SimDisk;
use ramekin_fields::{
    Condition, FieldCondition, Filter, Order, OrderValue, Path as FieldPath, Schema, Span, Start, Test,
};
use ramekin_memory::{Budget, Reservation};
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub const DIM: usize = 6;
const NAME: &str = "points";
const FOLDER: &str = "/data";
/// With so much in reserve there is room for a delete, however full the disk is.
const RESERVE: u64 = 256 << 10;

/// A store that runs in this thread only, and the clock that it sees.
pub struct Life {
    store: Store,
    pages: Pages,
    clock: Arc<ManualClock>,
    disk: Arc<SimDisk>,
    _elsewhere: Reservation,
}

impl Life {
    /// Opens the store. A panic while it does ends the process, as far as anyone can tell.
    pub fn begin(disk: &Arc<SimDisk>, plan: &Plan) -> Result<Self> {
        excused(disk, || Self::open(disk, plan))
    }

    fn open(sim: &Arc<SimDisk>, plan: &Plan) -> Result<Self> {
        let disk: Arc<dyn Disk> = sim.clone();
        let budget = Budget::new(plan.budget);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", "pages"), &budget, 1 << 32)?;
        let clock = Arc::new(ManualClock::default());
        sim.set_clock(clock.clone());
        let elsewhere = budget.root().child("elsewhere", "what others hold").try_reserve(plan.elsewhere)?;
        let account = budget.root().child("vectors", "the store");
        let folder = Path::new(FOLDER).to_owned();
        let options = StoreOptions {
            disk,
            folder,
            pages: pages.clone(),
            budget,
            account,
            clock: clock.clone(),
            build_threads: 1,
            threads: false,
        };
        let store = Store::open(options)?;
        if store.collections().is_empty() {
            match store.create_collection(NAME, config(plan.datatype)) {
                Err(error) if error.kind() != Kind::Exists => return Err(error),
                _ => {}
            }
        }
        Ok(Self { store, pages, clock, disk: sim.clone(), _elsewhere: elsewhere })
    }

    /// Changed payloads of sealed points: in memory, and files of them.
    pub fn patches(&self) -> Result<(usize, usize)> {
        self.store.patches_for_tests(NAME)
    }

    /// Points of segments that indexes of fields hold.
    pub fn indexed(&self) -> Result<u64> {
        Ok(excused(&self.disk, || self.store.info(NAME))?.indexed_points.values().sum())
    }

    /// Everything that is stored, read as a client would.
    pub fn contents(&self) -> Result<Points> {
        excused(&self.disk, || self.read_all())
    }

    fn read_all(&self) -> Result<Points> {
        let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
        let (mut points, mut from) = (Points::new(), None);
        loop {
            let page = self.store.scroll(NAME, from, 64, &Filter::default(), &parts)?.value;
            points.extend(page.records.into_iter().map(model::of_record));
            from = page.next;
            if from.is_none() {
                return Ok(points);
            }
        }
    }

    /// One step of a kind; reads are checked on the spot. What it draws it draws before it asks the store, so that a panic
    /// inside leaves the seed's course as it was.
    pub fn step(&self, kind: Step, rng: &mut Rng, plan: &Plan, model: &mut Model) -> Result<(), End> {
        if rng.chance(0.5) {
            self.pages.evict_all();
        }
        match kind {
            Step::Upsert => self.write(upsert(rng, plan), model),
            Step::Delete => {
                self.write(Write::Delete(Selection::Ids((0..1 + rng.below(5)).map(|_| id(rng, plan)).collect())), model)
            }
            Step::DeleteByFilter => self.write(Write::Delete(few(rng)), model),
            Step::UpdateVectors => self.write(change(rng, plan), model),
            Step::Payload => self.write(payload(rng, plan), model),
            Step::PayloadByFilter => {
                let change = PayloadChange::Merge { keys: format!("{{\"f\":{}}}", rng.below(9)).into(), path: None };
                self.write(Write::Payload { points: few(rng), change }, model)
            }
            Step::Together => {
                let count = 2 + rng.below(7);
                let mut draw = || match rng.below(8) {
                    0 => upsert(rng, plan),
                    1 => Write::Delete(Selection::Ids(vec![id(rng, plan)])),
                    2 | 3 => change(rng, plan),
                    _ => payload(rng, plan),
                };
                let writes = (0..count).map(|_| draw()).collect();
                self.writes(writes, model)
            }
            Step::Index => {
                let index = FieldConfig {
                    schema: Arc::new(Schema::Integer { lookup: true, range: true }),
                    client_config: None,
                };
                let index = Some(index).filter(|_| rng.chance(0.8));
                self.change(|| {
                    self.store.set_index(NAME, FieldPath::of_key("n"), index)?;
                    self.store.step();
                    Ok(())
                })
            }
            Step::Rotate => self.change(|| self.store.rotate_for_tests(NAME).map(|_| ())),
            Step::Fold => self.change(|| {
                self.store.fold_for_tests(NAME)?;
                self.store.step();
                Ok(())
            }),
            Step::Background => {
                self.clock.advance(Duration::from_millis(rng.below(3000)));
                self.change(|| {
                    self.store.step();
                    Ok(())
                })
            }
            Step::Search => self.search(rng, plan, model),
            Step::Get => self.get(rng, plan, model),
            Step::Scroll => self.scroll(rng, plan, model),
            Step::Count => self.count(rng, model),
            Step::Ordered => self.ordered(rng, model),
            Step::Open => Ok(()),
        }
    }

    fn write(&self, write: Write, model: &mut Model) -> Result<(), End> {
        self.writes(vec![write], model)
    }

    /// Writes that wait for the writer together, in this order.
    fn writes(&self, writes: Vec<Write>, model: &mut Model) -> Result<(), End> {
        let panics = self.disk.counts().panics;
        let has_reserve = self.disk.file_bytes(&Path::new(FOLDER).join("RESERVE")).is_ok_and(|bytes| bytes >= RESERVE);
        let (tell, answers): (Vec<_>, Vec<_>) = writes.iter().map(|_| mpsc::sync_channel(1)).unzip();
        let asked = writes.clone();
        let handed = unless_panic(|| -> Result<()> {
            for (asked, tell) in asked.into_iter().zip(tell) {
                let done = Box::new(move |outcome| _ = tell.send(outcome));
                self.store.write(NAME, asked, Wait::Visible, Vec::new(), done)?;
            }
            self.store.step_writer();
            Ok(())
        });
        match handed {
            Some(handed) => handed?,
            // A writer that panics outside of its requests is gone, and with it this life.
            None => {
                writes.into_iter().for_each(|write| model.note(write, false));
                return Err(End::Trouble(Error::closed("the writer panicked")));
            }
        }
        let mut end = Ok(());
        for (write, answer) in writes.into_iter().zip(answers) {
            let must_fit = has_reserve && matches!(write, Write::Delete(_));
            let told = self.told(answer.try_recv().ok(), panics, must_fit);
            model.note(write, matches!(told, Told::Done));
            match told {
                Told::Done => {}
                Told::Refused(error) if model.unsure() < UNSURE_MAX && error.kind() != Kind::Closed => {}
                Told::Refused(error) => end = end.and(Err(End::Trouble(error))),
                Told::End(by) => end = end.and(Err(by)),
            }
        }
        end
    }

    /// What an answer to a write says of it; `panics`: how many the disk had planted before.
    fn told(&self, answer: Option<Result<Written>>, panics: u64, must_fit: bool) -> Told {
        let has_panicked = self.disk.counts().panics > panics;
        match answer {
            Some(Ok(_)) => Told::Done,
            // A point that is not there is an answer: the others were changed.
            Some(Err(error)) if error.kind() == Kind::NotFound => Told::Done,
            Some(Err(error)) if error.kind() == Kind::NoSpace && must_fit => {
                Told::End(End::Wrong(format!("a full disk has no room for a delete: {error}")))
            }
            Some(Err(error)) if error.kind() == Kind::Bug && has_panicked => Told::End(End::Trouble(error)),
            Some(Err(error)) if error.kind() == Kind::Bug => Told::End(End::Wrong(error.to_string())),
            Some(Err(error)) => Told::Refused(error),
            // The writer's panic cost this request its answer. Readers may see it done or not, and the model does not
            // follow both: the next life tells which.
            None if has_panicked => Told::End(End::Trouble(Error::closed("a write panicked"))),
            None => Told::End(End::Wrong("a write got no answer".to_owned())),
        }
    }

    /// Does what changes no point. A background that panics outside of its jobs is gone, and with it this life.
    fn change(&self, act: impl FnOnce() -> Result<()>) -> Result<(), End> {
        Ok(excused(&self.disk, act)?)
    }

    fn search(&self, rng: &mut Rng, plan: &Plan, model: &Model) -> Result<(), End> {
        let vector = vector(rng, plan);
        let product = |held: &Point| held.vector.iter().zip(&vector).map(|(a, b)| a * b).sum::<f32>();
        let mut wanted: Vec<f32> = model.live.values().map(product).collect();
        wanted.sort_by(|a, b| b.total_cmp(a));
        let query = Query { exact: rng.chance(0.5), ..Query::new(Target::Vector(vector.clone()), 5) };
        let Some(found) = self.read(|| self.store.query(NAME, &query).map(|(held, _)| held.value))? else {
            return Ok(());
        };
        let scores: Vec<f32> = found.iter().map(|scored| scored.score).collect();
        let right =
            scores.len() == wanted.len().min(5) && scores.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-3);
        match right {
            true => Ok(()),
            false => {
                Err(End::Wrong(format!("a search found {scores:?}, the best are {:?}", &wanted[..wanted.len().min(5)])))
            }
        }
    }

    fn get(&self, rng: &mut Rng, plan: &Plan, model: &Model) -> Result<(), End> {
        let ids: Vec<PointId> = (0..1 + rng.below(6)).map(|_| id(rng, plan)).collect();
        let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
        let Some(found) = self.read(|| self.store.get(NAME, &ids, &parts).map(|held| held.value))? else {
            return Ok(());
        };
        let found: Vec<_> = found.into_iter().map(model::of_record).collect();
        let wanted: Vec<_> = ids.iter().filter_map(|id| Some((*id, model.live.get(id)?.clone()))).collect();
        if found == wanted { Ok(()) } else { Err(End::Wrong(format!("get found {found:?}, wanted {wanted:?}"))) }
    }

    fn scroll(&self, rng: &mut Rng, plan: &Plan, model: &Model) -> Result<(), End> {
        let (from, limit) = (id(rng, plan), 1 + rng.below(20) as usize);
        let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
        let read = || self.store.scroll(NAME, Some(from), limit, &Filter::default(), &parts).map(|held| held.value);
        let Some(page) = self.read(read)? else { return Ok(()) };
        let found: Vec<_> = page.records.into_iter().map(model::of_record).collect();
        let wanted: Vec<_> = model.live.range(from..).map(|(id, point)| (*id, point.clone())).take(limit).collect();
        match found == wanted {
            true => Ok(()),
            false => Err(End::Wrong(format!("a scroll from {from} found {found:?}, wanted {wanted:?}"))),
        }
    }

    /// How many points have a number below a bound.
    fn count(&self, rng: &mut Rng, model: &Model) -> Result<(), End> {
        let bound = rng.below(1_000_000) as i64;
        let filter = below(bound);
        let Some(found) = self.read(|| self.store.count(NAME, &filter, true))? else { return Ok(()) };
        let wanted = numbers(model).filter(|(number, _)| *number < bound).count() as u64;
        match found == wanted {
            true => Ok(()),
            false => Err(End::Wrong(format!("{found} points were counted below {bound}, there are {wanted}"))),
        }
    }

    /// The first points in the order of their numbers, where these have an index.
    fn ordered(&self, rng: &mut Rng, model: &Model) -> Result<(), End> {
        let (descending, limit) = (rng.chance(0.5), 1 + rng.below(30) as usize);
        let start = rng.below(1_000_000) as i64;
        let order = Order { path: FieldPath::of_key("n"), descending, start: Some(Start::Integer(start)) };
        let scroll = || match self.store.scroll_ordered(NAME, &order, limit, &Filter::default(), &Parts::default()) {
            Ok(found) => Ok(Some(found.value)),
            Err(error) if error.kind() == Kind::Malformed => Ok(None),
            Err(error) => Err(error),
        };
        let Some(Some(found)) = self.read(scroll)? else { return Ok(()) };
        let mut wanted: Vec<_> =
            numbers(model).filter(|(number, _)| if descending { *number <= start } else { *number >= start }).collect();
        wanted.sort();
        if descending {
            wanted.reverse();
        }
        wanted.truncate(limit);
        let wanted: Vec<_> = wanted.into_iter().map(|(number, id)| (OrderValue::Integer(number), id)).collect();
        let found: Vec<_> = found.into_iter().filter_map(|record| Some((record.order_value?, record.id))).collect();
        match found == wanted {
            true => Ok(()),
            false => Err(End::Wrong(format!("an ordered scroll from {start} found {found:?}, wanted {wanted:?}"))),
        }
    }

    /// A read may fail where the disk does, or where it panics; then there is nothing to check. It may never lie.
    fn read<T>(&self, read: impl Fn() -> Result<T>) -> Result<Option<T>, End> {
        let Some(read) = unless_panic(read) else { return Ok(None) };
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) => match error.kind() {
                Kind::Io | Kind::Corrupt | Kind::Busy | Kind::NoMemory => Ok(None),
                // The panic of another thread's job is told to whoever waited for its pages.
                Kind::Bug if self.disk.counts().panics > 0 => Ok(None),
                Kind::Closed => Err(End::Trouble(error)),
                _ => Err(End::Wrong(format!("a read failed: {error}"))),
            },
        }
    }
}

/// What is known of a write by its answer.
enum Told {
    Done,
    /// It may be done or not.
    Refused(Error),
    /// The life ends by it.
    End(End),
}

/// A selection of the few points whose number is small.
fn few(rng: &mut Rng) -> Selection {
    Selection::Filter(below(rng.below(80_000) as i64))
}

/// Passes the points whose number is below `bound`.
fn below(bound: i64) -> Filter {
    let test = Test::Range(Span { lt: Some(bound as f64), ..Span::default() });
    let condition = Condition::Field(FieldCondition { path: FieldPath::of_key("n"), tests: [test].into() });
    Filter { must: [condition].into(), ..Filter::default() }
}

/// The points that have a number, with it.
fn numbers(model: &Model) -> impl Iterator<Item = (i64, PointId)> + '_ {
    model.live.iter().filter_map(move |(id, point)| Some((model::number(&point.payload)?, *id)))
}

fn config(datatype: Datatype) -> CollectionConfig {
    let vector = VectorConfig { datatype, ..VectorConfig::new(DIM, MetricName::Dot) };
    CollectionConfig { vacuum_min_vectors: 50, ..CollectionConfig::new(BTreeMap::from([(UNNAMED.to_owned(), vector)])) }
}

fn id(rng: &mut Rng, plan: &Plan) -> PointId {
    let number = rng.below(plan.ids);
    if number.is_multiple_of(3) { PointId::Uuid(ramekin_base::rng::mix(number).into()) } else { PointId::Num(number) }
}

/// Values that the datatype has: what is stored is what was sent.
fn vector(rng: &mut Rng, plan: &Plan) -> Vec<f32> {
    let value = |rng: &mut Rng| match plan.datatype {
        Datatype::Uint8 => 60.0 + 40.0 * rng.normal(),
        _ => rng.normal(),
    };
    let mut vector: Vec<f32> = (0..DIM).map(|_| value(rng)).collect();
    plan.datatype.round(&mut vector);
    vector
}

fn batch(rng: &mut Rng, plan: &Plan, ids: Vec<PointId>, payloads: bool) -> Batch {
    let mut batch = Batch::default();
    let mut column = Column { name: String::new(), dim: DIM, present: Vec::new(), data: Vec::new() };
    for (at, id) in ids.into_iter().enumerate() {
        column.present.push(at as u32);
        column.data.extend(vector(rng, plan));
        batch.ids.push(id);
        if payloads {
            let text = if rng.chance(0.7) { format!("{{\"n\":{}}}", rng.below(1_000_000)) } else { String::new() };
            batch.payloads.push(text.into());
        }
    }
    batch.columns.push(column);
    batch
}

fn ids(rng: &mut Rng, plan: &Plan, most: u64) -> Vec<PointId> {
    let mut ids: Vec<PointId> = (0..1 + rng.below(most)).map(|_| id(rng, plan)).collect();
    ids.sort();
    ids.dedup();
    ids
}

fn upsert(rng: &mut Rng, plan: &Plan) -> Write {
    let ids = ids(rng, plan, 40);
    Write::Upsert(batch(rng, plan, ids, true))
}

fn change(rng: &mut Rng, plan: &Plan) -> Write {
    // Few points, so that a change is one record and happens whole or not at all.
    let ids = ids(rng, plan, 4);
    Write::UpdateVectors(batch(rng, plan, ids, false))
}

/// A change of payloads. It is one record too: short texts of a few dozen points.
fn payload(rng: &mut Rng, plan: &Plan) -> Write {
    let ids = ids(rng, plan, 30);
    let value = rng.below(1000);
    let change = match rng.below(6) {
        0..=2 => PayloadChange::Merge { keys: format!("{{\"m{}\":{value}}}", rng.below(3)).into(), path: None },
        3 => PayloadChange::Overwrite(format!("{{\"o\":{value}}}").into()),
        4 => PayloadChange::DeleteKeys(vec![ramekin_fields::Path::of_key("n"), ramekin_fields::Path::of_key("m1")]),
        _ => PayloadChange::Clear,
    };
    Write::Payload { points: Selection::Ids(ids), change }
}
