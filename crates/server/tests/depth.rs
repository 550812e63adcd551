//! The deepest filters and payloads that are taken, on the small stack of a reader: decoded, prepared, asked, changed, dropped.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_base::PointId;
use ramekin_base::limits::NESTING_MAX;
use ramekin_door_qdrant::decode;
use ramekin_fields::{Condition, Filter, Path, Point, Subject, parts};
use ramekin_memory::Budget;
use ramekin_node::READER_STACK_BYTES;
use serde_json::{Map, Value};

/// A body whose filter stands `times` times within itself.
fn body(before: &str, times: usize, after: &str) -> String {
    let innermost = r#"{"must":[{"key":"a.a.a","match":{"value":1}}]}"#;
    format!(r#"{{"filter":{}{innermost}{},"exact":true}}"#, before.repeat(times), after.repeat(times))
}

/// Objects or lists in each other, as deep as a body may be with what stands around them.
fn payload_text(open: &str, close: &str) -> String {
    let depth = NESTING_MAX - 8;
    format!(r#"{{"a":{}1{}}}"#, open.repeat(depth), close.repeat(depth))
}

fn payload(open: &str, close: &str) -> Map<String, Value> {
    serde_json::from_str(&payload_text(open, close)).unwrap()
}

fn asked(filter: Filter, payload: &Map<String, Value>) {
    let budget = Budget::new(64 << 20);
    let point = Point { id: PointId::Num(1), has_vector: &|name| name.is_empty() };
    let passes = |filter: &Filter| {
        filter.prepare(None, &budget.root()).unwrap().passes(&Subject { payload, point: Some(point) })
    };
    let is_in = passes(&filter);
    assert_ne!(passes(&Filter { must_not: [Condition::Filter(filter)].into(), ..Filter::default() }), is_in);
}

fn changed(payload: &Map<String, Value>) {
    let path = Path::parse(&["a"; 30].join(".")).unwrap();
    let (mut one, keys) = (payload.clone(), payload.clone());
    parts::merge(&mut one, Some(&path), &keys);
    parts::include(&mut one, std::slice::from_ref(&path));
    assert!(!Value::Object(one.clone()).to_string().is_empty());
    parts::exclude(&mut one, &[path]);
}

fn on_a_readers_stack(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(READER_STACK_BYTES).spawn_scoped(scope, work);
        thread.unwrap().join().unwrap();
    });
}

#[test]
fn the_deepest_filters_and_payloads_fit_a_readers_stack() {
    let forms = [
        (r#"{"must":["#, 29, "]}"),
        (r#"{"should":["#, 29, "]}"),
        (r#"{"must_not":["#, 29, "]}"),
        (r#"{"must":"#, 58, "}"),
        (r#"{"min_should":{"min_count":1,"conditions":["#, 19, "]}}"),
        (r#"{"must":[{"nested":{"key":"a","filter":"#, 14, "}}]}"),
    ];
    for (before, times, after) in forms {
        let (text, one_more) = (body(before, times, after), body(before, times + 2, after));
        assert!(decode::count(one_more.as_bytes()).is_err(), "{before} is as deep as it may be");
        for payload in [payload(r#"{"a":"#, "}"), payload("[", "]")].iter() {
            on_a_readers_stack(|| {
                let decode::Count { filter, .. } = decode::count(text.as_bytes()).unwrap();
                asked(filter, payload);
                changed(payload);
            });
        }
    }
}

#[test]
fn the_deepest_payloads_of_points_fit_a_readers_stack() {
    for (open, close) in [(r#"{"a":"#, "}"), ("[", "]")] {
        let payload = payload_text(open, close);
        let upsert = format!(r#"{{"points":[{{"id":1,"vector":[1],"payload":{payload}}}]}}"#);
        let set = format!(r#"{{"points":[1],"payload":{payload}}}"#);
        on_a_readers_stack(|| {
            drop(decode::upsert(upsert.as_bytes()).unwrap());
            drop(decode::set_payload(set.as_bytes()).unwrap());
        });
    }
}
