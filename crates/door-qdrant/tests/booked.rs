//! What a decoder holds at its peak is booked, whatever the body is made of: the allocator counts beside the account.
//!
//! ```text
//!   a body, one field of it as large as can be ─► every decoder
//!       most bytes allocated on this thread  <=  most bytes booked + SLACK
//! ```

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use ramekin_door_qdrant::decode;
use ramekin_fields::parts::{tree_and_text_bytes, tree_bytes};
use ramekin_memory::Budget;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what this thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn add(bytes: usize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: all is handed to the system's allocator; beside it only numbers of this thread change.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // What grows moves: both places are in use for a moment.
        if size > layout.size() {
            add(size);
            HELD.set(HELD.get().saturating_sub(layout.size()));
        } else {
            HELD.set(HELD.get().saturating_sub(layout.size() - size));
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is not booked: flaws, names, a page of anything, and steps in which bookings grow.
const SLACK: u64 = 12 << 10;

const BODY: usize = 24 << 10;

/// `one` again and again, with commas between, as long as a body may be.
fn many(one: &str) -> String {
    let mut text = one.to_owned();
    while text.len() < BODY {
        text.push(',');
        text.push_str(one);
    }
    text
}

/// An object of as many keys as a body may hold, no two alike.
fn keyed(value: &str) -> String {
    let (mut text, mut keys) = (String::from("{"), 0);
    while text.len() < BODY {
        let comma = if keys > 0 { "," } else { "" };
        text.push_str(&format!("{comma}\"k{keys}\":{value}"));
        keys += 1;
    }
    text + "}"
}

/// A string in quotes that is as long as a body may be.
fn long(piece: &str) -> String {
    format!("\"{}\"", piece.repeat(BODY / piece.len()))
}

/// Bodies of which one field is as large as can be.
fn bodies() -> Vec<String> {
    let mut bodies = Vec::new();
    let texts = [long("word "), long("\\u0001"), long("a.")];
    let lists = ["\"\"", "\"a\"", "\"\\n\"", "1", "-9", "0.5", "{}", "null", "[1]", "{\"id\":1,\"vector\":[1]}"];
    let lists: Vec<String> = lists.iter().map(|one| format!("[{}]", many(one))).collect();
    for value in texts.iter().chain(&lists) {
        for field in [
            "with_vector",
            "with_payload",
            "limit",
            "offset",
            "points",
            "ids",
            "keys",
            "vector",
            "key",
            "using",
            "query",
            "searches",
            "operations",
            "order_by",
            "field_name",
            "field_schema",
            "collections",
            "sample",
            "batch",
            "filter",
            "params",
            "vectors",
            "payload",
            "update_mode",
            "budget",
            "actions",
            "metadata",
        ] {
            bodies.push(format!("{{\"{field}\":{value}}}"));
        }
        for filter in ["must", "should", "must_not", "min_should", "unknown"] {
            bodies.push(format!("{{\"filter\":{{\"{filter}\":{value}}}}}"));
        }
        for condition in ["has_id", "has_vector", "is_empty", "is_null", "key", "nested", "slice", "match"] {
            bodies.push(format!("{{\"filter\":{{\"must\":[{{\"{condition}\":{value}}}]}}}}"));
        }
        for test in ["value", "any", "except", "text", "text_any", "phrase", "prefix"] {
            bodies.push(format!("{{\"filter\":{{\"must\":[{{\"key\":\"a\",\"match\":{{\"{test}\":{value}}}}}]}}}}"));
        }
        for test in ["range", "values_count", "geo_radius", "geo_bounding_box", "geo_polygon"] {
            bodies.push(format!("{{\"filter\":{{\"must\":[{{\"key\":\"a\",\"{test}\":{value}}}]}}}}"));
        }
        for field in ["ids", "vectors", "payloads"] {
            bodies.push(format!("{{\"batch\":{{\"{field}\":{value}}}}}"));
        }
        bodies.push(format!("{{\"collections\":[{{\"points\":1,\"name\":{value}}}]}}"));
        bodies.push(format!("{{\"points\":[{{\"id\":{value},\"vector\":{value}}}]}}"));
    }
    for key in texts {
        bodies.push(format!("{{{key}:1}}"));
        bodies.push(format!("{{\"filter\":{{{key}:1}}}}"));
        bodies.push(format!("{{\"collections\":[{{\"points\":1,\"fields\":{{{key}:\"integer\"}}}}]}}"));
        bodies.push(format!("{{\"points\":[{{\"id\":1,\"vector\":{{{key}:[1]}}}}]}}"));
        bodies.push(format!("{{\"points\":[{{\"id\":1,\"vector\":[1],\"payload\":{{{key}:1}}}}]}}"));
    }
    for value in ["{}", "1", "\"a\"", "[1]", r#"{"size":1,"distance":"Dot"}"#, r#"{"hnsw_config":{"m":1}}"#] {
        let object = keyed(value);
        bodies.push(object.clone());
        for path in [
            "with_vector",
            "with_payload",
            "points",
            "vector",
            "query",
            "order_by",
            "field_schema",
            "batch",
            "filter",
            "params",
            "vectors",
            "payload",
            "vectors_config",
            "sparse_vectors",
            "hnsw_config",
            "optimizers_config",
            "wal_config",
            "quantization_config",
            "strict_mode_config",
            "metadata",
            "lookup_from",
            "prefetch",
            "fields",
            "rename_alias",
            "vectors.a",
            "vectors.a.hnsw_config",
            "vectors.a.quantization_config",
            "vectors.a.quantization_config.scalar",
            "quantization_config.product",
            "strict_mode_config.a",
            "field_schema.stopwords",
            "filter.must",
            "filter.min_should",
            "params.quantization",
            "query.recommend",
            "query.context",
            "query.discover",
            "query.fusion",
            "query.mmr",
            "update_filter",
        ] {
            let open: String = path.split('.').map(|key| format!("{{\"{key}\":")).collect();
            bodies.push(format!("{open}{object}{}", "}".repeat(path.split('.').count())));
        }
        for list in ["points", "searches", "operations", "collections", "actions", "prefetch"] {
            bodies.push(format!("{{\"{list}\":[{object}]}}"));
            for key in ["vector", "payload", "fields", "vectors", "upsert", "set_payload", "update_vectors"] {
                bodies.push(format!("{{\"{list}\":[{{\"id\":1,\"points\":1,\"{key}\":{object}}}]}}"));
            }
        }
    }
    for item in [r#"{"":0}"#, "0", "[0]", r#"{"a":[{}]}"#] {
        bodies.push(format!(r#"{{"metadata":{{"a":[{}]}}}}"#, many(item)));
    }
    let alias = format!(r#"{{"create_alias":{{"alias_name":"{0}","collection_name":"{0}"}}}}"#, "n".repeat(200));
    bodies.push(format!(r#"{{"actions":[{}]}}"#, many(&alias)));
    let corner = many(r#"{"lon":1,"lat":2}"#);
    bodies.push(format!(
        r#"{{"filter":{{"must":[{{"key":"a","geo_polygon":{{"exterior":{{"points":[{corner}]}}}}}}]}}}}"#
    ));
    let condition = many(r#"{"key":"a","match":{"any":["x","y"]}}"#);
    bodies.push(format!(r#"{{"filter":{{"must":[{condition}]}}}}"#));
    bodies.push(format!(r#"{{"searches":[{}]}}"#, many(r#"{"query":[1],"with_payload":["a"]}"#)));
    bodies
}

#[test]
fn what_is_decoded_is_booked_before_it_is_held() {
    for body in bodies() {
        for (name, decoder) in decode::BOOKED {
            let tally = Budget::new(1 << 40);
            let account = tally.root().child("bodies", "");
            let before = HELD.get();
            PEAK.set(before);
            let outcome = decoder(body.as_bytes(), &account);
            let (held, booked) = (PEAK.get() - before, tally.peak());
            assert!(
                held as u64 <= booked + SLACK,
                "{name} of {}... holds {held} bytes, {booked} are booked: {outcome:?}",
                ramekin_base::excerpt(&body, 100)
            );
            assert_eq!(tally.reserved(), 0);
        }
    }
}

#[test]
fn a_tree_of_json_takes_no_more_than_is_said_of_its_text() {
    let lists = ["0", "[]", "{}", "[0]", "\"\"", "{\"a\":1}", "{\"a\":{\"b\":[1,2]}}", "null", "1e9", "\"\\u0001\""];
    let texts = lists.iter().map(|one| format!("[{}]", many(one)));
    let objects = ["0", "{}", "[0]", "\"a\"", "{\"a\":1,\"b\":2}", "{\"a\":{\"b\":{}}}"].iter().map(|one| keyed(one));
    for text in texts.chain(objects).chain([long("word "), long("\\n")]) {
        let before = HELD.get();
        PEAK.set(before);
        let tree: serde_json::Value = serde_json::from_str(&text).unwrap();
        let parsed = PEAK.get() - before;
        assert!(parsed as u64 <= tree_bytes(&text) + SLACK, "{}: {parsed} bytes", ramekin_base::excerpt(&text, 60));
        let written = tree.to_string();
        let all = HELD.get() - before;
        assert!(all as u64 <= tree_and_text_bytes(&text) + SLACK, "{}: {all}", ramekin_base::excerpt(&written, 60));
    }
}
