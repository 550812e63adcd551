//! What a query holds from its beginning to its end: a collection at one moment.
//!
//! ```text
//!   ReadView ─┬─ view   memtables, segments, who is dead, what changed: nothing that is written later shows
//!             └─ log    the files that payloads of its points stand in: they stay readable when the log is trimmed
//! ```

use crate::collection::{Collection, View};
use crate::query::env::QueryEnv;
use ramekin_base::{Error, Result, cancel};
use ramekin_log::LogReader;
use std::ops::Deref;
use std::sync::Arc;

pub(crate) struct ReadView<'a> {
    pub(crate) env: &'a QueryEnv,
    view: Arc<View>,
    pub(crate) log: LogReader,
}

impl Deref for ReadView<'_> {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl<'a> ReadView<'a> {
    /// The collection as it is now.
    pub(crate) fn pin(env: &'a QueryEnv, collection: &Collection) -> Result<Self> {
        let reader = env.log()?;
        loop {
            let view = collection.view.load_full();
            let log = reader.pin();
            // What a view needs may be trimmed before the log is pinned, but not what the newest view of a collection needs.
            if log.start() <= view.needs_from() {
                return Ok(Self { env, view, log });
            }
            // No newer one comes of a collection that is gone, and nobody keeps its log.
            if collection.is_dropped() {
                return Err(Error::not_found("the collection was deleted"));
            }
            cancel::check()?;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]
mod tests {
    use super::*;
    use crate::api::*;
    use crate::query::count;
    use crate::query::read::{self, Fetcher};
    use crate::state::options::StoreOptions;
    use crate::store::Store;
    use ramekin_base::{ManualClock, PointId, Rng};
    use ramekin_fields::{Condition, FieldCondition, Filter, Path, Schema, Span, Test};
    use ramekin_memory::Budget;
    use ramekin_pages::Pages;
    use std::collections::BTreeMap;
    use std::sync::mpsc;
    use std::time::Duration;

    const IDS: u64 = 400;

    type Model = BTreeMap<PointId, (f32, u64)>;

    fn open(folder: &std::path::Path, clock: Arc<ManualClock>) -> Store {
        let (disk, _) = ramekin_disk::probe(folder, Some(ramekin_disk::Engine::Pread)).unwrap();
        let budget = Budget::new(32 << 20);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
        let (account, folder) = (budget.root().child("vectors", ""), folder.to_owned());
        let options = StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads: false };
        Store::open(options).unwrap()
    }

    fn write(store: &Store, write: Write) {
        let (done, answer) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome| done.send(outcome).unwrap());
        store.write("c", write, Wait::Visible, Vec::new(), done).unwrap();
        store.step_writer();
        _ = answer.recv().unwrap().unwrap();
    }

    /// All points of a view, by every way in which they can be found.
    fn seen(view: &ReadView<'_>) -> Model {
        let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
        let ids: Vec<PointId> = (0..IDS).map(PointId::Num).collect();
        let places = read::places(view, &ids).unwrap();
        let wanted: Vec<_> = ids.iter().zip(places).filter_map(|(id, place)| Some((*id, place?))).collect();
        let records = Fetcher::new(&view.env.pages, view, &parts).unwrap().records(&wanted).unwrap();
        assert_eq!(records.len() as u64, view.live());
        let of = |record: Record| {
            let payload: serde_json::Value = serde_json::from_str(&record.payload.unwrap()).unwrap();
            (record.id, (record.vectors.unwrap()[0].1[0], payload["n"].as_u64().unwrap()))
        };
        records.into_iter().map(of).collect()
    }

    fn below(most: u64) -> Filter {
        let test = Test::Range(Span { lt: Some(most as f64), ..Span::default() });
        Filter {
            must: [Condition::Field(FieldCondition { path: Path::parse("n").unwrap(), tests: [test].into() })].into(),
            ..Filter::default()
        }
    }

    fn batch(ids: &[PointId], value: u64) -> Batch {
        let points = 0..ids.len() as u32;
        let column = Column {
            name: UNNAMED.into(),
            dim: 1,
            present: points.clone().collect(),
            data: points.map(|n| (value + u64::from(n)) as f32).collect(),
        };
        let payloads = (0..ids.len() as u64).map(|n| format!("{{\"n\":{}}}", (value + n) % 1000).into()).collect();
        Batch { ids: ids.to_vec(), columns: vec![column], payloads }
    }

    /// One step of a drawn history.
    fn step(store: &Store, rng: &mut Rng, model: &mut Model, clock: &ManualClock, value: u64) {
        let first = rng.below(IDS - 20);
        let ids: Vec<PointId> = (first..first + 1 + rng.below(20)).map(PointId::Num).collect();
        match rng.below(10) {
            0..4 => {
                write(store, Write::Upsert(batch(&ids, value)));
                let of = |(n, id): (u64, &PointId)| (*id, ((value + n) as f32, (value + n) % 1000));
                model.extend((0..).zip(&ids).map(of));
            }
            4 | 5 => {
                ids.iter().for_each(|id| _ = model.remove(id));
                write(store, Write::Delete(Selection::Ids(ids)));
            }
            6 | 7 => {
                let here: Vec<PointId> = ids.into_iter().filter(|id| model.contains_key(id)).collect();
                here.iter().for_each(|id| model.get_mut(id).unwrap().1 = value % 1000);
                if !here.is_empty() {
                    let change = PayloadChange::Overwrite(format!("{{\"n\":{}}}", value % 1000).into());
                    write(store, Write::Payload { points: Selection::Ids(here), change });
                }
            }
            8 => {
                _ = store.rotate_for_tests("c").unwrap();
                clock.advance(Duration::from_secs(3));
                while store.step() {}
            }
            _ => {
                store.fold_for_tests("c").unwrap();
                while store.step() {}
            }
        }
    }

    #[test]
    fn a_view_stays_as_it_was_whatever_is_written_flushed_merged_and_trimmed() {
        for seed in 0..6 {
            let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
            let (store, mut rng, mut model) = (open(folder.path(), clock.clone()), Rng::new(seed), Model::new());
            let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(1, MetricName::Dot))]);
            store
                .create_collection("c", CollectionConfig { vacuum_min_vectors: 10, ..CollectionConfig::new(vectors) })
                .unwrap();
            let schema = Schema::Integer { lookup: true, range: true };
            let index = FieldConfig { schema: Arc::new(schema), client_config: None };
            store.set_index("c", Path::parse("n").unwrap(), Some(index)).unwrap();
            let collection = store.shared().find("c").unwrap();
            let mut kept: Vec<(ReadView<'_>, Model)> = Vec::new();
            for at in 0..250u64 {
                step(&store, &mut rng, &mut model, &clock, at * 20);
                kept.push((ReadView::pin(&store.shared().env, &collection).unwrap(), model.clone()));
                if kept.len() > 12 {
                    kept.swap_remove(rng.below(12) as usize);
                }
                let (view, model) = &kept[rng.below(kept.len() as u64) as usize];
                assert_eq!(seen(view), *model, "seed {seed}, step {at}");
                let most = rng.below(1000);
                let filter = below(most);
                let config = collection.config.load();
                let filter = config.resolve(&filter, &store.shared().accounts.queries).unwrap();
                let expected = model.values().filter(|(_, n)| *n < most).count() as u64;
                assert_eq!(count::of_view(view, &filter, true).unwrap(), expected, "seed {seed}, step {at}");
            }
            drop(kept);
            store.close();
        }
    }

    /// Whose log is gone with it: a view of a collection that was deleted is refused, and does not wait for a newer one.
    #[test]
    fn a_collection_that_was_deleted_is_pinned_by_nobody() {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
        let store = open(folder.path(), clock.clone());
        let vectors = || BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(1, MetricName::Dot))]);
        store.create_collection("c", CollectionConfig::new(vectors())).unwrap();
        write(&store, Write::Upsert(batch(&[PointId::Num(1)], 1)));
        let gone = store.shared().find("c").unwrap();
        assert!(store.drop_collection("c").unwrap());
        store.create_collection("c", CollectionConfig::new(vectors())).unwrap();
        // Until the log has gone on by more than a file, and what it began with is trimmed.
        let log = store.shared().env.log().unwrap().clone();
        for round in 0..400 {
            let ids: Vec<PointId> = (0..400).map(PointId::Num).collect();
            let payloads = (0..400).map(|_| format!("{{\"t\":\"{}\"}}", "x".repeat(400)).into()).collect();
            write(&store, Write::Upsert(Batch { payloads, ..batch(&ids, round) }));
            if round % 20 == 19 {
                _ = store.rotate_for_tests("c").unwrap();
                clock.advance(Duration::from_secs(3));
                while store.step() {}
            }
            if log.pin().start() > gone.view.load().needs_from() {
                break;
            }
        }
        assert!(log.pin().start() > gone.view.load().needs_from(), "the log was trimmed");
        let refused = ReadView::pin(&store.shared().env, &gone).err().unwrap();
        assert_eq!(refused.kind(), ramekin_base::Kind::NotFound);
        store.close();
    }

    #[test]
    fn no_read_waits_for_a_change_and_names_are_listed_once() {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
        let store = open(folder.path(), clock.clone());
        let vectors = || BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(1, MetricName::Dot))]);
        store.create_collection("c", CollectionConfig::new(vectors())).unwrap();
        let ids: Vec<PointId> = (0..300).map(PointId::Num).collect();
        write(&store, Write::Upsert(batch(&ids, 0)));
        assert!(store.rotate_for_tests("c").unwrap());
        while store.step() {}
        write(&store, Write::Upsert(batch(&ids[..100], 500)));
        let collection = store.shared().find("c").unwrap();
        let (told, done) = mpsc::sync_channel(1);
        std::thread::scope(|scope| {
            let change = collection.change.lock();
            scope.spawn(|| {
                let (parts, filter) = (Parts::default(), below(600));
                let counts = [&Filter::default(), &filter].map(|filter| store.count("c", filter, true).unwrap());
                let info = store.info("c").unwrap().points;
                let found = store.query("c", &Query::new(Target::Vector(vec![1.0]), 1000)).unwrap().0.value.len();
                let page = store.scroll("c", None, 1000, &Filter::default(), &parts).unwrap().value.records.len();
                told.send((counts, info, found, page)).unwrap();
            });
            let read = done.recv_timeout(Duration::from_secs(60));
            drop(change);
            assert_eq!(read.expect("a read waits for the change"), ([300, 300], 300, 300, 300));
        });
        // Whoever looks at all collections shares one list, until there are others.
        let listed = || store.shared().collections();
        let before = listed();
        assert!(Arc::ptr_eq(&before, &listed()));
        store.create_collection("d", CollectionConfig::new(vectors())).unwrap();
        assert_eq!((before.len(), listed().len()), (1, 2));
        store.close();
    }
}
