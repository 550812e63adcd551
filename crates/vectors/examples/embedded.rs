//! The store without a server: `cargo run -p ramekin-vectors --example embedded [FOLDER]`.
//!
//! ```text
//!   folder ─► lock ─► disk ─┐
//!   budget ─► accounts ─────┼─► Store::open ─► create ─► upsert ─► query with a filter ─► close
//!   pages (the one cache) ──┘
//! ```
//!
//! `ramekin-node` does the first column as a server needs it: it also keeps a budget, watches the kernel's charge, and runs
//! readers on threads of their own.

use ramekin_base::{Error, PointId, Result, SystemClock};
use ramekin_disk::FolderLock;
use ramekin_fields::{Condition, FieldCondition, Filter, Match, Path as Field, Scalar, Test};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::{
    Batch, CollectionConfig, Column, MetricName, Parts, PayloadParts, Query, Store, StoreOptions, Target, UNNAMED,
    VectorConfig, Wait, Write,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

const NAME: &str = "dishes";
/// Of all that the store takes. What of the process is not the store's stands beside it.
const BUDGET: u64 = 32 << 20;
/// Addresses for page files; they cost nothing until they are used.
const ADDRESSES: u64 = 1 << 40;

pub fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "ramekin-embedded".to_owned());
    for dish in run(Path::new(&folder))? {
        println!("{dish}");
    }
    Ok(())
}

/// Opens a store in the folder, which may hold one, writes three points, asks one question; gives what was found.
pub fn run(folder: &Path) -> Result<Vec<String>> {
    // One process a folder. The lock is given back when it is dropped, after the store.
    let _lock = FolderLock::make_and_take(folder)?;
    // io_uring where it works, else reads by threads.
    let (disk, _which) = ramekin_disk::probe(folder, None)?;
    let budget = Budget::new(BUDGET);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", "resident pages x 4 KiB"), &budget, ADDRESSES)?;
    let store = Store::open(StoreOptions {
        disk,
        folder: folder.to_owned(),
        pages,
        account: budget.root().child("vectors", ""),
        budget,
        clock: Arc::new(SystemClock::new()),
        build_threads: 1,
        threads: true,
    })?;

    // A store opens with all that was acknowledged; only the first run finds nothing.
    if store.config(NAME).is_err() {
        let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(3, MetricName::Cosine))]);
        store.create_collection(NAME, CollectionConfig::new(vectors))?;
    }
    upsert(&store)?;

    let sweet = FieldCondition {
        path: Field::of_key("course"),
        tests: [Test::Match(Match::Value(Scalar::Word("dessert".into())))].into(),
    };
    let query = Query {
        filter: Filter { must: [Condition::Field(sweet)].into(), ..Filter::default() },
        parts: Parts { payload: PayloadParts::All, ..Parts::default() },
        ..Query::new(Target::Vector(vec![0.9, 0.1, 0.1]), 10)
    };
    // Answers hold the memory that they are booked with until they are dropped.
    let (found, profile) = store.query(NAME, &query)?;
    let told = found.value.iter().map(|hit| {
        format!("{} at {:.3}: {}", hit.record.id, hit.score, hit.record.payload.as_deref().unwrap_or_default())
    });
    let told: Vec<String> = told.collect();
    drop(found);
    println!("{} reads of the disk", profile.reads);

    // What was accepted is seen through; without it the next start does that from the log.
    store.close();
    Ok(told)
}

/// Three dishes, by column: each vector name has its own.
fn upsert(store: &Store) -> Result<()> {
    let batch = Batch {
        ids: vec![PointId::Num(1), PointId::Num(2), PointId::Num(3)],
        columns: vec![Column {
            name: UNNAMED.to_owned(),
            dim: 3,
            present: vec![0, 1, 2],
            data: vec![0.9, 0.1, 0.0, 0.8, 0.2, 0.1, 0.0, 0.2, 0.9],
        }],
        payloads: vec![
            r#"{"name":"cheese soufflé","course":"main"}"#.into(),
            r#"{"name":"chocolate soufflé","course":"dessert"}"#.into(),
            r#"{"name":"crème brûlée","course":"dessert"}"#.into(),
        ],
    };
    // A write never blocks: it is queued, and its answer comes from a thread of the store, once it is durable and visible.
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |written| _ = done.send(written));
    store.write(NAME, Write::Upsert(batch), Wait::Visible, Vec::new(), done)?;
    answer.recv().map_err(|_| Error::closed("the store has stopped"))?.map(|_written| ())
}
