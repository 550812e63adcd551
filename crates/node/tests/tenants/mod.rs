//! A node with stores of counters beside its store of vectors, for tests and measurements of the arbiter.
#![allow(dead_code, reason = "each user needs its part")]

#[path = "../../../engine/tests/toy/mod.rs"]
pub mod toy;

use ramekin_base::{PointId, Result, SystemClock};
use ramekin_disk::Engine as DiskEngine;
pub use ramekin_engine::open_bytes;
use ramekin_engine::{Durability, Engine, EngineOptions};
use ramekin_node::{Folder, Node, NodeOptions, Place, Tenant, Wants};
use ramekin_vectors::{Batch, CollectionConfig, Column, MetricName, Query, Target, UNNAMED, VectorConfig, Wait, Write};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use toy::{Command, Counters};

pub const DIM: usize = 64;
const NAME: &str = "points";

/// A store of counters that shares the budget.
pub struct Toy(pub Engine<Counters>);

impl Toy {
    pub fn open(place: Place) -> Result<Self> {
        Self::of(place, 1)
    }

    pub fn of(place: Place, trees: usize) -> Result<Self> {
        let Place { disk, folder, pages, budget, account, share, clock } = place;
        let durability = Durability::Interval(Duration::from_millis(200));
        let options = EngineOptions { disk, folder, pages, budget, account, share, clock, durability, threads: true };
        Engine::open(options, Counters::of(trees)).map(Self)
    }

    /// One unit of so many counters, from one on.
    pub fn add(&self, first: u64, count: u64) -> Result<()> {
        let adds = (first..first + count).map(|key| Command::Add { key, by: 1, least: 0 });
        self.0.execute(Command::Both(adds.collect())).map(|_| ())
    }
}

impl Tenant for Toy {
    fn wants(&self) -> Wants {
        Wants {
            idle: self.0.idle_share(),
            least: self.0.least_share(),
            needed: self.0.idle_share(),
            most: self.0.most_share(),
            requests: self.0.stats().asked(),
        }
    }

    fn shrink(&self, share: u64, _: Duration) -> Result<()> {
        self.0.resize(share)
    }

    fn resize(&self, share: u64) -> Result<()> {
        self.0.resize(share)
    }
}

/// A node of its own in a folder.
pub fn node(folder: &Path, memory: u64) -> Result<Node> {
    let options = NodeOptions {
        memory,
        code_bytes: 4 << 20,
        other_threads: 4,
        doors: |_| 0,
        clock: Arc::new(SystemClock::new()),
        on_fault: Box::new(|_| {}),
    };
    let node = Node::open(Folder::take(folder, Some(DiskEngine::Pread))?, options)?;
    node.make_way_for_doors();
    Ok(node)
}

pub fn make_collection(node: &Node) -> Result<()> {
    let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(DIM, MetricName::Cosine))]);
    node.store().create_collection(NAME, CollectionConfig::new(vectors)).map(|_| ())
}

/// A drawn vector of a number.
pub fn vector(number: u64) -> Vec<f32> {
    let mut rng = ramekin_base::Rng::new(number);
    (0..DIM).map(|_| rng.below(2001) as f32 / 1000.0 - 1.0).collect()
}

/// Writes so many points, from one on, and waits until they are durable and visible.
pub fn upsert(node: &Node, first: u64, count: u64) -> Result<()> {
    let numbers = first..first + count;
    let batch = Batch {
        ids: numbers.clone().map(PointId::Num).collect(),
        columns: vec![Column {
            name: UNNAMED.to_owned(),
            dim: DIM,
            present: (0..count as u32).collect(),
            data: numbers.flat_map(vector).collect(),
        }],
        payloads: (0..count).map(|_| "{}".into()).collect(),
    };
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |written| _ = done.send(written));
    node.store().write(NAME, Write::Upsert(batch), Wait::Visible, Vec::new(), done)?;
    answer.recv().unwrap_or_else(|_| Err(ramekin_base::Error::closed("the store has stopped"))).map(|_| ())
}

pub fn search(node: &Node, number: u64) -> Result<usize> {
    let (found, _) = node.store().query(NAME, &Query::new(Target::Vector(vector(number)), 10))?;
    Ok(found.value.len())
}
