//! Which requests are short: they take milliseconds, and always have a thread, whatever else runs.
//!
//! ```text
//!   the ledger, the metrics, lists of collections and of aliases, what a collection is    all of them
//!   a body to decode                                                                      of up to BODY_SMALL
//!   a search                                                                              one small query, see below
//! ```
//!
//! All else waits for its turn among reads and writes.

use crate::decoders::search::Search;
use crate::limits::BODY_SMALL;
use ramekin_base::Lane;
use ramekin_vectors::{PayloadParts, Target, VectorParts};

/// One small query has no filter, leaves it to the index what it looks at, and asks for no more than this: results, those that
/// are passed over among them; results of which payloads or vectors are read, too; candidates, by `hnsw_ef` or `oversampling`.
const RESULTS_MOST: usize = 1_000;
const RECORDS_MOST: usize = 100;
const CANDIDATES_MOST: usize = 1_000;

/// Where a search waits.
pub fn of_search(search: &Search) -> Lane {
    let query = &search.query;
    let is_bare = query.parts.payload == PayloadParts::None && query.parts.vectors == VectorParts::None;
    let results = query.limit.saturating_add(query.offset);
    let is_small = query.filter.is_empty()
        && !query.exact
        && matches!(query.target, Target::Vector(_) | Target::Point(_))
        && results <= if is_bare { RESULTS_MOST } else { RECORDS_MOST }
        && query.ef.unwrap_or(0).max(query.candidates) <= CANDIDATES_MOST;
    if is_small { Lane::Short } else { Lane::Reads }
}

/// Where the decoding of a body waits.
pub fn of_body(bytes: usize) -> Lane {
    if bytes as u64 <= BODY_SMALL { Lane::Short } else { Lane::Reads }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoders::search::query;
    use ramekin_memory::SharedReservation;

    #[test]
    fn one_small_query_is_short_and_what_takes_longer_is_not() {
        for (body, lane) in [
            (r#"{"query":[1,2]}"#, Lane::Short),
            (r#"{"query":7,"limit":100,"with_payload":true,"with_vector":true}"#, Lane::Short),
            (r#"{"query":[1],"limit":900,"offset":100,"filter":{"must":[]}}"#, Lane::Short),
            (r#"{"query":[1],"params":{"hnsw_ef":512,"quantization":{"oversampling":4.0}}}"#, Lane::Short),
            (r#"{"query":[1],"limit":900,"offset":101}"#, Lane::Reads),
            (r#"{"query":[1],"limit":101,"with_payload":["a"]}"#, Lane::Reads),
            (r#"{"query":[1],"limit":101,"with_vector":true}"#, Lane::Reads),
            (r#"{"query":[1],"offset":1000,"with_payload":true}"#, Lane::Reads),
            (r#"{"query":[1],"params":{"hnsw_ef":1001}}"#, Lane::Reads),
            (r#"{"query":[1],"params":{"quantization":{"oversampling":101}}}"#, Lane::Reads),
            (r#"{"query":[1],"params":{"exact":true}}"#, Lane::Reads),
            (r#"{"query":[1],"filter":{"must":[{"has_id":[1]}]}}"#, Lane::Reads),
            (r#"{"query":{"order_by":"a"}}"#, Lane::Reads),
            ("{}", Lane::Reads),
        ] {
            let search = query(body.as_bytes(), &mut SharedReservation::endless()).unwrap();
            assert_eq!(of_search(&search), lane, "{body}");
        }
        // 2,000 numbers as they are printed.
        assert_eq!((of_body(2_000 * 21), of_body(1 << 20)), (Lane::Short, Lane::Reads));
    }
}
