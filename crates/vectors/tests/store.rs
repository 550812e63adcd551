//! The store on a real disk, in one thread: every answer against a plain model.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

use ramekin_base::{PointId, Rng, SystemClock};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_disk::{Disk, Engine, probe};
use ramekin_fields::Filter;
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

const DIM: usize = 12;

fn open(folder: &Path, megabytes: u64) -> Store {
    let (disk, _) = probe(folder, Some(Engine::Pread)).unwrap();
    open_on(disk, folder, megabytes)
}

fn open_on(disk: Arc<dyn Disk>, folder: &Path, megabytes: u64) -> Store {
    let budget = Budget::new(megabytes << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
    let account = budget.root().child("vectors", "");
    let clock = Arc::new(SystemClock::new());
    Store::open(StoreOptions {
        disk,
        folder: folder.to_owned(),
        pages,
        budget,
        account,
        clock,
        build_threads: 1,
        threads: false,
    })
    .unwrap()
}

fn config(metric: MetricName) -> CollectionConfig {
    let vector = VectorConfig::new(DIM, metric);
    CollectionConfig::new(BTreeMap::from([(UNNAMED.to_owned(), vector)]))
}

fn write(store: &Store, write: Write) -> Result<Written, ramekin_base::Error> {
    let (done, answer) = mpsc::sync_channel(1);
    store.write("c", write, Wait::Visible, Vec::new(), Box::new(move |outcome| done.send(outcome).unwrap()))?;
    store.step_writer();
    answer.recv().unwrap()
}

type Model = BTreeMap<PointId, (Vec<f32>, String)>;

fn points(rng: &mut Rng, ids: impl Iterator<Item = PointId>, model: &mut Model) -> Write {
    let mut batch = Batch::default();
    let mut column = Column { name: String::new(), dim: DIM, present: Vec::new(), data: Vec::new() };
    for (at, id) in ids.enumerate() {
        let vector: Vec<f32> = (0..DIM).map(|_| rng.normal()).collect();
        let payload = if rng.chance(0.8) { format!("{{\"n\":{}}}", rng.below(1000)) } else { String::new() };
        column.present.push(at as u32);
        column.data.extend(&vector);
        batch.ids.push(id);
        batch.payloads.push(payload.as_str().into());
        model.insert(id, (vector, payload));
    }
    batch.columns.push(column);
    Write::Upsert(batch)
}

fn everything() -> Parts {
    Parts { payload: PayloadParts::All, vectors: VectorParts::All }
}

fn same(model: &Model, store: &Store) {
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), model.len() as u64);
    let (mut from, mut seen) = (None, Vec::new());
    loop {
        let page = store.scroll("c", from, 333, &Filter::default(), &everything()).unwrap().value;
        seen.extend(page.records);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(seen.iter().map(|record| record.id).collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
    for record in seen {
        let (vector, payload) = &model[&record.id];
        assert_eq!(record.vectors.unwrap()[0].1, *vector, "{}", record.id);
        let wanted = if payload.is_empty() { "{}" } else { payload };
        assert_eq!(record.payload.unwrap(), *wanted, "{}", record.id);
    }
}

fn query(vector: Vec<f32>, limit: usize) -> Query {
    Query { exact: true, ..Query::new(Target::Vector(vector), limit) }
}

fn searched(rng: &mut Rng, model: &Model, store: &Store) {
    let vector: Vec<f32> = (0..DIM).map(|_| rng.normal()).collect();
    let mut wanted: Vec<(f32, PointId)> =
        model.iter().map(|(id, (held, _))| (held.iter().zip(&vector).map(|(a, b)| a * b).sum(), *id)).collect();
    wanted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let found = store.query("c", &query(vector, 10)).unwrap().0.value;
    assert_eq!(found.len(), model.len().min(10));
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found.score - wanted.0).abs() < 1e-4, "{found:?} {wanted:?}");
    }
}

fn id(rng: &mut Rng) -> PointId {
    let number = rng.below(4000);
    if number.is_multiple_of(3) { PointId::Uuid(ramekin_base::rng::mix(number).into()) } else { PointId::Num(number) }
}

#[test]
fn a_store_answers_as_its_model_through_seals_merges_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(5);
    let mut model = Model::new();
    let mut store = open(folder.path(), 64);
    store.create_collection("c", config(MetricName::Dot)).unwrap();
    for round in 0..60 {
        let count = 1 + rng.below(400);
        let mut ids: Vec<PointId> = (0..count).map(|_| id(&mut rng)).collect();
        ids.sort();
        ids.dedup();
        let upsert = points(&mut rng, ids.into_iter(), &mut model);
        write(&store, upsert).unwrap();
        let dead: Vec<PointId> = (0..rng.below(60)).map(|_| id(&mut rng)).collect();
        dead.iter().for_each(|id| _ = model.remove(id));
        write(&store, Write::Delete(Selection::Ids(dead))).unwrap();
        if rng.chance(0.3) {
            store.rotate_for_tests("c").unwrap();
        }
        if rng.chance(0.3) {
            while store.step() {}
        }
        if rng.chance(0.2) {
            store.close();
            drop(store);
            store = open(folder.path(), if round % 2 == 0 { 64 } else { 32 });
        }
        searched(&mut rng, &model, &store);
    }
    same(&model, &store);
    store.close();
    drop(store);
    same(&model, &open(folder.path(), 48));
}

#[test]
fn changes_of_parts_of_points() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(6);
    let mut model = Model::new();
    let store = open(folder.path(), 64);
    store.create_collection("c", config(MetricName::Dot)).unwrap();
    let upsert = points(&mut rng, (0..200).map(PointId::Num), &mut model);
    write(&store, upsert).unwrap();
    store.rotate_for_tests("c").unwrap();
    while store.step() {}
    let ids = vec![PointId::Num(7), PointId::Num(9999)];
    // Who waits hears of the point that is missing; the other was changed.
    let missing = write(
        &store,
        Write::Payload { points: Selection::Ids(ids), change: PayloadChange::Overwrite("{\"x\":1}".into()) },
    );
    assert_eq!(missing.unwrap_err().kind(), ramekin_base::Kind::NotFound);
    model.get_mut(&PointId::Num(7)).unwrap().1 = "{\"x\":1}".into();
    let column = Column { name: String::new(), dim: DIM, present: vec![0], data: vec![0.5; DIM] };
    let batch = |ids: &[u64]| {
        let present = (0..ids.len() as u32).collect();
        let column = Column { present, data: vec![0.5; ids.len() * DIM], ..column.clone() };
        Batch { ids: ids.iter().copied().map(PointId::Num).collect(), columns: vec![column], payloads: Vec::new() }
    };
    write(&store, Write::UpdateVectors(batch(&[8]))).unwrap();
    let missing = write(&store, Write::UpdateVectors(batch(&[5000, 9])));
    assert_eq!(missing.unwrap_err().kind(), ramekin_base::Kind::NotFound);
    for id in [8, 9] {
        model.get_mut(&PointId::Num(id)).unwrap().0 = vec![0.5; DIM];
    }
    same(&model, &store);
}

fn aliases(store: &Store) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut note = |alias: &str, collection: &str| {
        all.push((alias.to_owned(), collection.to_owned()));
        Ok(())
    };
    store.each_alias(&mut note).unwrap();
    all
}

#[test]
fn names_and_aliases() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 64);
    store.create_collection("c", config(MetricName::Cosine)).unwrap();
    assert_eq!(store.create_collection("c", config(MetricName::Dot)).unwrap_err().kind(), ramekin_base::Kind::Exists);
    store.change_aliases(vec![AliasAction::Create { alias: "a".into(), collection: "c".into() }]).unwrap();
    assert!(store.info("a").is_ok());
    store.close();
    drop(store);
    let store = open(folder.path(), 64);
    assert_eq!(aliases(&store), [("a".to_owned(), "c".to_owned())]);
    assert!(store.drop_collection("c").unwrap());
    assert!(!store.drop_collection("c").unwrap());
    assert!(aliases(&store).is_empty() && store.collections().is_empty());
    assert_eq!(store.info("c").unwrap_err().kind(), ramekin_base::Kind::NotFound);
}

#[test]
fn several_segments_give_as_many_results_as_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 48);
    let config = CollectionConfig { full_scan_threshold_kib: 0, ..config(MetricName::Dot) };
    store.create_collection("c", config).unwrap();
    let (mut rng, mut model) = (Rng::new(5), Model::new());
    for ids in [0..600, 600..800] {
        write(&store, points(&mut rng, ids.map(PointId::Num), &mut model)).unwrap();
        store.rotate_for_tests("c").unwrap();
        while store.step() {}
    }
    for limit in [10, 600, 601, 750, 800, 900] {
        let query = Query::new(Target::Vector((0..DIM).map(|_| rng.normal()).collect()), limit);
        let found = store.query("c", &query).unwrap().0.value;
        assert_eq!(found.len(), limit.min(800));
        assert!(found.windows(2).all(|pair| pair[0].score >= pair[1].score));
    }
}

/// What a start finds in the manifest need not be written again: only a log that grew is worth an edit.
#[test]
fn a_start_after_which_nothing_was_written_leaves_the_manifest_as_it_was() {
    let disk = Arc::new(SimDisk::with_block(1, Faults::default(), 4096));
    let folder = Path::new("/data");
    let manifest = || {
        let mut bytes = Vec::new();
        disk.edit(&folder.join("MANIFEST"), |held| bytes = held.clone()).unwrap();
        bytes
    };
    let lives = |acts: &dyn Fn(&Store)| {
        let store = open_on(disk.clone(), folder, 64);
        acts(&store);
        while store.step() {}
        store.close();
        manifest()
    };
    let written = lives(&|store| {
        store.create_collection("c", config(MetricName::Dot)).unwrap();
        write(store, points(&mut Rng::new(1), (0..9).map(PointId::Num), &mut Model::new())).unwrap();
    });
    assert_eq!(lives(&|_| ()), written);
    assert_ne!(
        lives(&|store| _ = write(store, Write::Delete(Selection::Ids(vec![PointId::Num(1)]))).unwrap()),
        written
    );
}
