//! Asks real queries again with more care, to see which recall they had.

use crate::collection::health::FaultKind;
use crate::collection::{Collection, View};
use crate::inner::StoreInner;
use crate::query::search::segments;
use ramekin_ann::{Scratch, Search, SearchParams};
use ramekin_base::Result;
use std::sync::Arc;

/// Results that are compared.
const K: usize = 10;
/// The recall of the search that is compared with.
const REFERENCE_RECALL: f32 = 0.998;

/// Looks at one kept query of one collection. False: there is none.
pub(crate) fn check_one(shared: &StoreInner) -> bool {
    for collection in shared.collections().iter() {
        let Some((using, vector)) = collection.recall_monitor.next() else { continue };
        let target_recall = collection.config.load().recall;
        match compare(shared, collection, &using, &vector, target_recall) {
            Ok((found, wanted)) => collection.recall_monitor.tell(found, wanted, target_recall),
            // It tells nothing of the recall.
            Err(error) => shared.noted(collection, FaultKind::Read, &error),
        }
        return true;
    }
    false
}

/// How many of the results of a careful search the usual one finds, and how many those are.
fn compare(
    shared: &StoreInner,
    collection: &Arc<Collection>,
    using: &str,
    vector: &[f32],
    target_recall: f32,
) -> Result<(u64, u64)> {
    let view: Arc<View> = collection.view.load_full();
    // Of its own: a careful search makes it large, and those of the readers should not all become so.
    let mut scratch = Scratch::new(&shared.accounts.reservoir)?;
    let mut hits = |recall: f32| {
        let params = SearchParams { recall: Some(recall), ..SearchParams::default() };
        segments(&view, using, &params, Search::begin(&shared.pages, vector, K, None, &mut scratch), None)
    };
    let (usual, right) = (hits(collection.recall_monitor.recall(target_recall))?, hits(REFERENCE_RECALL)?);
    let is_found = |right: &&ramekin_ann::Hit| usual.iter().any(|hit| (hit.index, hit.row) == (right.index, right.row));
    Ok((right.iter().filter(is_found).count() as u64, right.len() as u64))
}
