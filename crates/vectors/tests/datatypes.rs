//! Vectors of float16 and uint8 through writes, seals, merges and restarts, against a plain model.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

use ramekin_base::{Kind, PointId, Rng, SystemClock};
use ramekin_disk::{Engine, probe};
use ramekin_fields::Filter;
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

const DIM: usize = 10;
const NAMES: [(&str, Datatype); 3] =
    [("bytes", Datatype::Uint8), ("halves", Datatype::Float16), ("plain", Datatype::Float32)];
const METRICS: [MetricName; 4] = [MetricName::Dot, MetricName::Cosine, MetricName::Euclid, MetricName::Manhattan];

fn open(folder: &Path, megabytes: u64) -> Store {
    let (disk, _) = probe(folder, Some(Engine::Pread)).unwrap();
    let budget = Budget::new(megabytes << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
    let account = budget.root().child("vectors", "");
    let clock = Arc::new(SystemClock::new());
    let folder = folder.to_owned();
    let options = StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads: false };
    Store::open(options).unwrap()
}

/// One vector of each datatype; every query goes to the cluster indexes unless it asks for exact scores.
fn config(metric: MetricName) -> CollectionConfig {
    let vector = |(name, datatype): (&str, Datatype)| {
        (name.to_owned(), VectorConfig { datatype, ..VectorConfig::new(DIM, metric) })
    };
    CollectionConfig { full_scan_threshold_kib: 0, ..CollectionConfig::new(NAMES.map(vector).into_iter().collect()) }
}

fn write(store: &Store, write: Write) -> Result<Written, ramekin_base::Error> {
    let (done, answer) = mpsc::sync_channel(1);
    store.write("c", write, Wait::Visible, Vec::new(), Box::new(move |outcome| done.send(outcome).unwrap()))?;
    store.step_writer();
    answer.recv().unwrap()
}

/// What a vector of these numbers is kept as.
fn kept(sent: &[f32], metric: MetricName, datatype: Datatype) -> Vec<f32> {
    let mut kept = sent.to_vec();
    if metric == MetricName::Cosine && datatype != Datatype::Uint8 {
        let length = sent.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        kept.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    datatype.round(&mut kept);
    kept
}

/// The score that users of the metric expect, in double precision.
fn scored(query: &[f32], x: &[f32], metric: MetricName, datatype: Datatype) -> f64 {
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        query.iter().zip(x).map(|(a, b)| term(f64::from(*a), f64::from(*b))).sum()
    };
    let product = sum(&|a, b| a * b);
    match metric {
        MetricName::Cosine if datatype == Datatype::Uint8 => {
            let lengths = sum(&|a, _| a * a).sqrt() * sum(&|_, b| b * b).sqrt();
            if lengths > 0.0 { product / lengths } else { 0.0 }
        }
        MetricName::Dot | MetricName::Cosine => product,
        MetricName::Euclid => sum(&|a, b| (a - b) * (a - b)).sqrt(),
        MetricName::Manhattan => sum(&|a, b| (a - b).abs()),
    }
}

type Vectors = BTreeMap<String, Vec<f32>>;
type Model = BTreeMap<PointId, Vectors>;

/// Numbers in heaps, some below 0 and some above 255.
fn numbers(rng: &mut Rng) -> Vec<f32> {
    let heap = rng.below(5);
    (0..DIM as u64).map(|at| 40.0 * (heap * at % 7) as f32 + 25.0 * rng.normal()).collect()
}

/// A batch of points, most with all vectors; the model gets what is kept of them.
fn batch(rng: &mut Rng, ids: Vec<PointId>, metric: MetricName, mut note: impl FnMut(PointId, &str, Vec<f32>)) -> Batch {
    let mut columns: Vec<Column> = NAMES
        .iter()
        .map(|(name, _)| Column { name: (*name).to_owned(), dim: DIM, present: Vec::new(), data: Vec::new() })
        .collect();
    for (at, id) in ids.iter().enumerate() {
        for ((name, datatype), column) in NAMES.into_iter().zip(&mut columns) {
            if rng.chance(0.9) {
                let sent = numbers(rng);
                column.present.push(at as u32);
                column.data.extend(&sent);
                note(*id, name, kept(&sent, metric, datatype));
            }
        }
    }
    Batch { ids, columns, payloads: Vec::new() }
}

fn ids(rng: &mut Rng, most: u64) -> Vec<PointId> {
    let mut ids: Vec<PointId> = (0..1 + rng.below(most)).map(|_| PointId::Num(rng.below(1500))).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// Every point is there, with exactly the values that were kept.
fn same(model: &Model, store: &Store) {
    let parts = Parts { payload: PayloadParts::None, vectors: VectorParts::All };
    let (mut from, mut seen) = (None, Model::new());
    loop {
        let page = store.scroll("c", from, 333, &Filter::default(), &parts).unwrap().value;
        let vectors = |record: Record| (record.id, record.vectors.unwrap().into_iter().collect());
        seen.extend(page.records.into_iter().map(vectors));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert!(seen == *model, "points differ");
}

/// Searches by a vector and by a point, exact and by the index. Returns how many of the nearest the index found, of how
/// many.
fn searched(rng: &mut Rng, model: &Model, store: &Store, metric: MetricName) -> [usize; 2] {
    let mut by_index = [0; 2];
    let is_distance = matches!(metric, MetricName::Euclid | MetricName::Manhattan);
    for (name, datatype) in NAMES {
        let held: Vec<(PointId, &Vec<f32>)> =
            model.iter().filter_map(|(id, held)| Some((*id, held.get(name)?))).collect();
        let by = held[rng.below(held.len() as u64) as usize];
        let sent = numbers(rng);
        for (target, asked, left_out) in [
            (Target::Vector(sent.clone()), &kept(&sent, metric, datatype), None),
            (Target::Point(by.0), by.1, Some(by.0)),
        ] {
            let truths = held.iter().filter(|(id, _)| Some(*id) != left_out);
            let truths: BTreeMap<PointId, f64> =
                truths.map(|(id, x)| (*id, scored(asked, x, metric, datatype))).collect();
            let mut best: Vec<f64> = truths.values().copied().collect();
            best.sort_by(|a, b| if is_distance { a.total_cmp(b) } else { b.total_cmp(a) });
            best.truncate(10);
            for (exact, rescore, apart) in [(true, true, 2e-5), (false, true, 2e-5), (false, false, 0.3)] {
                let plain = Query::new(target.clone(), 10);
                let query = Query { exact, rescore, using: name.to_owned(), ..plain };
                let found = store.query("c", &query).unwrap().0.value;
                assert_eq!(found.len(), best.len());
                for point in &found {
                    let (score, truth) = (f64::from(point.score), truths[&point.record.id]);
                    let scale = best[0].abs().max(truth.abs()) + 1e-3;
                    assert!((score - truth).abs() <= apart * scale, "{metric:?} {name} {exact} {score} {truth}");
                }
                let worst = best[best.len() - 1];
                let slack = 2e-5 * (worst.abs() + 1e-3);
                let good = |score: f64| if is_distance { score <= worst + slack } else { score >= worst - slack };
                let right = found.iter().filter(|point| good(truths[&point.record.id])).count();
                assert!(!exact || right == best.len(), "{metric:?} {name}: {right} of {}", best.len());
                if !exact && rescore {
                    by_index = [by_index[0] + right, by_index[1] + best.len()];
                }
            }
        }
    }
    by_index
}

#[test]
fn rounded_values_are_kept_and_scored_through_everything() {
    for metric in METRICS {
        let folder = tempfile::tempdir().unwrap();
        let (mut rng, mut model, mut by_index) = (Rng::new(8), Model::new(), [0; 2]);
        let mut store = open(folder.path(), 64);
        store.create_collection("c", config(metric)).unwrap();
        for round in 0..14 {
            let upsert = ids(&mut rng, 500);
            upsert.iter().for_each(|id| _ = model.insert(*id, Vectors::new()));
            let note = |id, name: &str, vector| _ = model.get_mut(&id).unwrap().insert(name.to_owned(), vector);
            let upsert = batch(&mut rng, upsert, metric, note);
            write(&store, Write::Upsert(upsert)).unwrap();
            let dead = ids(&mut rng, 40);
            dead.iter().for_each(|id| _ = model.remove(id));
            write(&store, Write::Delete(Selection::Ids(dead))).unwrap();
            // The vectors that a change does not name stay as they are; so do those of a changed payload.
            let some: Vec<PointId> = model.keys().copied().filter(|_| rng.chance(0.02)).collect();
            let note = |id, name: &str, vector| _ = model.get_mut(&id).unwrap().insert(name.to_owned(), vector);
            let changed = batch(&mut rng, some.clone(), metric, note);
            write(&store, Write::UpdateVectors(changed)).unwrap();
            write(
                &store,
                Write::Payload {
                    points: Selection::Ids(some),
                    change: PayloadChange::Merge { keys: "{\"a\":1}".into(), path: None },
                },
            )
            .unwrap();
            if rng.chance(0.5) {
                store.rotate_for_tests("c").unwrap();
            }
            if rng.chance(0.5) {
                while store.step() {}
            }
            if round % 4 == 3 {
                store.close();
                drop(store);
                store = open(folder.path(), 32);
            }
            let found = searched(&mut rng, &model, &store, metric);
            by_index = [by_index[0] + found[0], by_index[1] + found[1]];
        }
        assert!(by_index[0] * 100 >= by_index[1] * 88, "{metric:?}: the index found {by_index:?}");
        same(&model, &store);
        store.rotate_for_tests("c").unwrap();
        while store.step() {}
        same(&model, &store);
        searched(&mut rng, &model, &store, metric);
        store.close();
        drop(store);
        same(&model, &open(folder.path(), 48));
    }
}

#[test]
fn what_halves_cannot_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 48);
    store.create_collection("c", config(MetricName::Dot)).unwrap();
    let upsert = |name: &str, value: f32| {
        let column = Column { name: name.to_owned(), dim: DIM, present: vec![0], data: vec![value; DIM] };
        write(&store, Write::Upsert(Batch { ids: vec![PointId::Num(1)], columns: vec![column], payloads: Vec::new() }))
    };
    let ask = |name: &str, value: f32| {
        let query = Query { using: name.to_owned(), ..Query::new(Target::Vector(vec![value; DIM]), 1) };
        store.query("c", &query).map(|(held, _)| held.value.len())
    };
    for name in ["bytes", "halves", "plain"] {
        upsert(name, 65_519.0).unwrap();
        assert_eq!(ask(name, -65_519.0).unwrap(), 1);
        let (wrote, asked) = (upsert(name, 65_520.0), ask(name, -65_520.0));
        match name {
            "halves" => {
                assert_eq!((wrote.unwrap_err().kind(), asked.unwrap_err().kind()), (Kind::Malformed, Kind::Malformed));
            }
            _ => assert!(wrote.is_ok() && asked.is_ok()),
        }
    }
}

/// A collection's configuration as it was written before vectors had a datatype.
#[test]
fn a_configuration_of_old_is_one_of_floats() {
    let old = r#"{"dim":4,"metric":"Dot","echo":null}"#;
    let read: VectorConfig = serde_json::from_str(old).unwrap();
    assert_eq!(read.datatype, Datatype::Float32);
    let bytes = VectorConfig { datatype: Datatype::Uint8, ..read };
    assert_eq!(serde_json::from_str::<VectorConfig>(&serde_json::to_string(&bytes).unwrap()).unwrap(), bytes);
}
