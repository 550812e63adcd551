//! One life, again and again: each time another reservation, or another call of the disk, fails. Whatever failed says so or is
//! done another way; afterwards everything works, every answer is right, and the books are empty.
//!
//! ```text
//!   the life   create · index · 2,000 points · 2 flushes · deletes, changes by filter · merge · filters · restart · all again
//!   the sweep  n = 1, 1 + stride, ...   to the last reservation, and to the last call      FAILURE_STRIDE (50; 1 in full)
//! ```

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{Error, Kind, Result, Rng};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_memory::Budget;
use ramekin_vectors::{Batch, PayloadChange, Selection, Write};
use std::path::Path;
use std::sync::Arc;
use world::{Fault, Model, Point, World, asked, id, payload, upsert};

const POINTS: u64 = 2_000;
const BATCH: u64 = 100;
const BUDGET: u64 = 48 << 20;

/// What is to fail.
#[derive(Debug, Clone, Copy)]
enum Failing {
    Reservation(u64),
    Call(u64),
}

/// A store that is opened again where it cannot go on.
struct Life {
    disk: Arc<SimDisk>,
    budget: Budget,
    world: Option<World>,
    model: Model,
    reopened: u64,
}

/// What a write does to the model.
type Effect<'a> = &'a dyn Fn(&mut Model);

impl Life {
    fn new(failing: Failing) -> Self {
        let faults = match failing {
            Failing::Call(nth) => Faults { call_fails: Trigger::nth(nth), ..Faults::default() },
            Failing::Reservation(_) => Faults::default(),
        };
        let budget = Budget::new(BUDGET);
        if let Failing::Reservation(nth) = failing {
            budget.fail_nth_for_tests(nth);
        }
        let disk = Arc::new(SimDisk::with_block(7, faults, 4096));
        Self { disk, budget, world: None, model: Model::new(), reopened: 0 }
    }

    /// The open store. One that does not open is tried again once: the failure is past.
    fn world(&mut self) -> Result<&World> {
        if self.world.is_none() {
            let disk: Arc<dyn Disk> = self.disk.clone();
            let open = || World::open(&disk, Path::new("/data"), &self.budget);
            let opened = open().or_else(|_| {
                if self.budget.reserved() > 0 {
                    return Err(Error::bug(format!(
                        "{} bytes are left of a store that did not open",
                        self.budget.reserved()
                    )));
                }
                open()
            })?;
            self.world = Some(opened);
        }
        Ok(self.world.as_ref().unwrap())
    }

    fn close(&mut self) {
        if let Some(world) = self.world.take() {
            world.store.close();
        }
    }

    /// Does a step; if it fails it is tried again, and once more after the store was opened again.
    fn step<T>(&mut self, what: &str, step: impl Fn(&World) -> Result<T>) -> Result<T, String> {
        let named = |error: Error| format!("{what}: {error}");
        if let Ok(done) = self.world().and_then(&step) {
            return Ok(done);
        }
        if let Ok(done) = self.world().and_then(&step) {
            return Ok(done);
        }
        self.close();
        self.reopened += 1;
        self.world().and_then(&step).map_err(named)
    }

    fn write(&mut self, what: &str, write: &Write, change: impl Fn(&mut Model)) -> Result<(), String> {
        self.writes(what, &[(write.clone(), &change)])
    }

    /// Writes that wait for the writer together. One that fails has been done whole or not at all; then all are done again.
    fn writes(&mut self, what: &str, writes: &[(Write, Effect<'_>)]) -> Result<(), String> {
        let after = |chosen: u32| {
            let mut model = self.model.clone();
            let done = writes.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
            done.for_each(|(_, (_, change))| change(&mut model));
            model
        };
        let all = (1 << writes.len()) - 1;
        let states: Vec<Model> = (0..=all).rev().map(after).collect();
        let asked: Vec<Write> = writes.iter().map(|(write, _)| write.clone()).collect();
        // That a point is not there is an answer.
        let failed = |answer: &Result<()>| answer.as_ref().is_err_and(|error| error.kind() != Kind::NotFound);
        let done = |world: &World| world.writes(&asked).into_iter().find(failed).unwrap_or(Ok(()));
        if let Err(error) = self.world().and_then(done) {
            if error.kind() == Kind::Bug {
                return Err(format!("{what}: {error}"));
            }
            let fits = |world: &World| {
                let mut held = Ok(());
                for state in &states {
                    held = world.holds(state);
                    if !matches!(held, Err(Fault::Wrong(_))) {
                        break;
                    }
                }
                held
            };
            // Read where it stands, and after a restart: both must be one of these states.
            for _ in 0..2 {
                match self.world().map_err(Fault::Failed).and_then(fits) {
                    Ok(()) => {}
                    Err(Fault::Wrong(wrong)) => {
                        return Err(format!("{what} failed ({error}), and was half done: {wrong}"));
                    }
                    Err(Fault::Failed(_)) => {}
                }
                self.close();
            }
            for write in &asked {
                self.step(what, |world| world.write(write.clone()))?;
            }
        }
        self.model = states.into_iter().next().unwrap_or_default();
        Ok(())
    }

    /// A drawn filter selects, counts and finds what it should, and `everything` is what the model says. A read that fails says
    /// so and is asked again; it never lies.
    fn right(&mut self, when: &str, everything: bool) -> Result<(), String> {
        let (model, mut last) = (self.model.clone(), None);
        let right = (0..3).any(|turn| {
            if turn == 2 {
                self.close();
            }
            let seen = self.world().map_err(Fault::Failed).and_then(|world| {
                if everything {
                    world.holds(&model)?;
                }
                world.answers(&model, &mut Rng::new(model.len() as u64))
            });
            seen.map_err(|fault| last = Some(fault)).is_ok()
        });
        if !right || matches!(last, Some(Fault::Wrong(_))) {
            return Err(format!("{when}: {last:?}"));
        }
        Ok(())
    }

    fn live(&mut self) -> Result<(), String> {
        self.step("create", |world| match world.create() {
            Err(error) if error.kind() == Kind::Exists => Ok(()),
            done => done,
        })?;
        self.step("index", |world| world.index_number())?;
        for half in 0..2 {
            for first in (half * POINTS / 2..(half + 1) * POINTS / 2).step_by(BATCH as usize) {
                let points: Vec<_> = (first..first + BATCH).map(|number| (id(number), number)).collect();
                self.write("upsert", &upsert(&points), |model| {
                    model.extend(points.iter().map(|(id, tag)| (*id, Point { vector: *tag, payload: *tag })));
                })?;
            }
            self.changes(half)?;
            self.step("flush", World::flush)?;
            self.right("after a flush", false)?;
        }
        self.changes(2)?;
        self.step("merge", |world| {
            world.settle();
            Ok(())
        })?;
        self.right("after a merge", false)?;
        self.close();
        self.right("after a restart", true)
    }

    /// Deletes, and payloads of all that pass a filter. One record each: what is selected is few.
    fn changes(&mut self, turn: u64) -> Result<(), String> {
        let ids: Vec<_> = (0..40).map(|at| id(turn * 37 + at * 11)).collect();
        self.write("delete", &Write::Delete(Selection::Ids(ids.clone())), |model| {
            ids.iter().for_each(|id| _ = model.remove(id));
        })?;
        let (tag, filter) = (1_000_000 + turn, asked(&mut Rng::new(turn)));
        let change = PayloadChange::Overwrite(payload(tag).into());
        let write = Write::Payload { points: Selection::Filter(filter.filter), change };
        self.write("set by a filter", &write, |model| {
            model
                .iter_mut()
                .filter(|(id, point)| (filter.passes)(id, point))
                .for_each(|(_, point)| point.payload = tag);
        })?;
        self.together(turn)
    }

    /// Writes of the same points, each of which sees the one before.
    fn together(&mut self, turn: u64) -> Result<(), String> {
        let (named, tag) = ((0..12).map(|at| id(turn * 41 + at * 7)).collect::<Vec<_>>(), 2_000_000 + turn * 10);
        let set = |model: &mut Model, change: fn(&mut Point, u64), tag| {
            named.iter().for_each(|id| _ = model.get_mut(id).map(|point| change(point, tag)));
        };
        let points = named.iter().map(|id| (*id, tag)).collect::<Vec<_>>();
        let Write::Upsert(batch) = upsert(&points) else { return Err("an upsert is none".to_owned()) };
        let vectors = Write::UpdateVectors(Batch { payloads: Vec::new(), ..batch });
        let ids = || Selection::Ids(named.clone());
        let change = PayloadChange::Overwrite(payload(tag + 1).into());
        let payloads = Write::Payload { points: ids(), change };
        self.writes(
            "writes together",
            &[
                (payloads, &|model| set(model, |point, tag| point.payload = tag, tag + 1)),
                (vectors, &|model| set(model, |point, tag| point.vector = tag, tag)),
                (Write::Delete(Selection::Ids(named[..3].to_vec())), &|model| {
                    named[..3].iter().for_each(|id| _ = model.remove(id));
                }),
                (upsert(&[(named[1], tag + 2)]), &|model| {
                    model.insert(named[1], Point { vector: tag + 2, payload: tag + 2 });
                }),
            ],
        )
    }
}

/// Lives once; how many reservations and calls there were.
fn live(failing: Failing) -> Result<(u64, u64), String> {
    let mut life = Life::new(failing);
    life.live()?;
    life.close();
    match life.budget.reserved() {
        0 => Ok((life.budget.fail_nth_for_tests(0), life.disk.operations())),
        left => Err(format!("{left} bytes are booked when all is closed")),
    }
}

fn stride() -> usize {
    std::env::var("FAILURE_STRIDE").ok().and_then(|text| text.parse().ok()).unwrap_or(50)
}

fn sweep(what: &str, most: u64, failing: fn(u64) -> Failing) {
    let mut wrong = Vec::new();
    for nth in (1..=most).step_by(stride()) {
        let lived = std::panic::catch_unwind(|| live(failing(nth)));
        if let Err(error) = lived.unwrap_or_else(|_| Err("a panic".to_owned())) {
            wrong.push(format!("{:?}: {error}", failing(nth)));
        }
    }
    println!("{what}: 1 to {most} in steps of {}, {} went wrong", stride(), wrong.len());
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn any_one_reservation_may_fail() {
    let (reservations, _) = live(Failing::Reservation(0)).unwrap();
    sweep("reservations", reservations, Failing::Reservation);
}

#[test]
fn any_one_call_of_the_disk_may_fail() {
    let (_, calls) = live(Failing::Call(0)).unwrap();
    sweep("calls of the disk", calls, Failing::Call);
}
