//! What a collection tells of itself, and the store of what is wrong with it.

use crate::api::{Info, Status, VectorCount};
use crate::background;
use crate::collection::View;
use crate::collection::health::FaultKind;
use crate::query::field_points;
use crate::query::view::ReadView;
use crate::store::Store;
use ramekin_base::Result;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Red collections that are named when the store is asked how it is.
const FAULTS_MAX: usize = 16;

impl Store {
    pub fn info(&self, name: &str) -> Result<Info> {
        let collection = self.shared.find(name)?;
        let view = ReadView::pin(&self.shared.env, &collection)?;
        let error = collection.fault();
        let status = match (&error, background::is_busy(&self.shared, &collection)) {
            (Some(_), _) => Status::Red,
            (None, true) => Status::Yellow,
            (None, false) => Status::Green,
        };
        let vectors = vector_counts(&view);
        let progress = collection.progress.first();
        let config = collection.config.load_full();
        Ok(Info {
            recall_measured: collection.recall_monitor.measured(),
            warnings: collection.recall_monitor.warning(config.recall).into_iter().collect(),
            indexed_points: field_points::points(&view, &config, &|error| {
                self.shared.noted(&collection, FaultKind::Read, error)
            }),
            new_points: field_points::new_points(&view, &config),
            config,
            status,
            optimizer: error.map_or(Ok(()), Err),
            points: view.live(),
            indexed_vectors: vectors.values().map(|count| count.sealed).sum(),
            vectors,
            segments: (view.segments.len() + view.immutable.len() + 1) as u64,
            progress,
            bytes_on_disk: view.segments.iter().map(|segment| segment.bytes_on_disk()).sum(),
            last_operation: self.shared.seqno.load(Ordering::SeqCst),
        })
    }

    /// Why the store is not well, a line each: dead threads, writes that are refused, collections that are red. Empty: it is.
    pub fn faults(&self) -> Vec<String> {
        let shared = &self.shared;
        let dead =
            shared.threads.dead().into_iter().map(|(name, cause)| format!("the thread `{name}` is dead: {cause}"));
        let mut faults: Vec<String> = dead.chain(shared.health.worst()).collect();
        let collections = shared.collections();
        let red = collections.iter().filter_map(|held| Some(format!("collection `{}`: {}", held.name, held.fault()?)));
        faults.extend(red.take(FAULTS_MAX));
        faults
    }
}

/// Of each name, the vectors in segments and in memory.
fn vector_counts(view: &View) -> BTreeMap<String, VectorCount> {
    let mut counts = BTreeMap::<String, VectorCount>::new();
    for (meta, named) in view.segments.iter().flat_map(|segment| segment.vectors()) {
        counts.entry(meta.name.clone()).or_default().sealed += named.index.len() as u64;
    }
    for part in view.memtables() {
        let part = part.read();
        for (name, _) in part.columns() {
            counts.entry(name.to_owned()).or_default().new += part.live_vectors(name);
        }
    }
    counts
}
