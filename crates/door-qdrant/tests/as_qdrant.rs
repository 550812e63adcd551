//! Small things that clients and their tests rely on: texts, statuses, second names of fields.

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

#[allow(dead_code, reason = "the other tests look at more of it")]
mod host;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use host::{House, open};
use ramekin_door_qdrant::Keys;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Status, headers and body of an answer.
async fn answered(house: &House, method: &str, path: &str, body: &str) -> (u16, HeaderMap, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
    let (parts, body) = house.door.router().oneshot(request).await.unwrap().into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn ask(house: &House, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, text) = answered(house, method, path, &body.to_string()).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// The result of a request that succeeds.
async fn must(house: &House, method: &str, path: &str, body: Value) -> Value {
    let (status, mut answer) = ask(house, method, path, &body).await;
    assert_eq!(status, 200, "{method} {path}: {answer}");
    answer["result"].take()
}

/// Status and message of a request that is refused.
async fn refused(house: &House, method: &str, path: &str, body: Value) -> (u16, String) {
    let (status, answer) = ask(house, method, path, &body).await;
    (status, answer["status"]["error"].as_str().unwrap_or_default().to_owned())
}

async fn with_collection(body: Value) -> House {
    let house = open(256, Keys::default());
    must(&house, "PUT", "/collections/c", body).await;
    house
}

async fn plain() -> House {
    with_collection(json!({"vectors": {"size": 2, "distance": "Dot"}})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_has_three_fields_and_our_version_is_a_header() {
    let house = plain().await;
    let (status, headers, text) = answered(&house, "GET", "/", "").await;
    let root: Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&str> = root.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((status, keys), (200, vec!["commit", "title", "version"]));
    assert!(root.as_object().unwrap().values().all(Value::is_string), "{root}");
    assert_eq!(headers["x-ramekin-version"], "0.0.0");
    for path in ["/healthz", "/livez"] {
        assert_eq!(answered(&house, "GET", path, "").await.2, "healthz check passed");
    }
    assert_eq!(answered(&house, "GET", "/readyz", "").await.2, "all shards are ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_have_the_prefix_of_their_kind() {
    let house = plain().await;
    let points = "/collections/c/points";
    let vectors = json!({"vectors": {"size": 2, "distance": "Dot"}});
    for (method, path, body, status, message) in [
        (
            "PUT",
            points,
            json!({"points": [{"id": 1, "vector": [1]}]}),
            400,
            "Wrong input: Vector dimension error: expected dim: 2, got 1",
        ),
        (
            "PUT",
            points,
            json!({"points": [{"id": 1, "vector": {"x": [1]}}]}),
            400,
            "Wrong input: Not existing vector name error: x",
        ),
        ("PUT", "/collections/c", vectors, 409, "Wrong input: Collection `c` already exists!"),
        (
            "PATCH",
            "/collections/c",
            json!({"vectors": {"x": {}}}),
            400,
            "Wrong input: Not existing vector name error: x",
        ),
        ("GET", "/collections/x", json!({}), 404, "Not found: Collection `x` doesn't exist!"),
        ("GET", "/collections/c/points/7", json!({}), 404, "Not found: Point with id 7 does not exists!"),
        ("POST", "/collections/c/points/query", json!({"query": 7}), 404, "Not found: No point with id 7 found"),
        (
            "POST",
            "/collections/c/points/payload?wait=true",
            json!({"payload": {"a": 1}, "points": [7]}),
            404,
            "Not found: No point with id 7 found",
        ),
        (
            "POST",
            "/collections/aliases",
            json!({"actions": [{"delete_alias": {"alias_name": "n"}}]}),
            404,
            "Not found: Alias n does not exists!",
        ),
        ("GET", "/collections/c/points/abc", json!({}), 400, "Wrong input: Can not recognize \"abc\" as point id"),
        (
            "PUT",
            "/collections/c/index",
            json!({"field_name": "a"}),
            400,
            "Bad request: Can't auto-detect field type, please specify `field_schema` in the request",
        ),
    ] {
        assert_eq!(refused(&house, method, path, body).await, (status, message.to_owned()), "{method} {path}");
    }
    let (status, message) =
        refused(&house, "POST", "/collections/c/points/scroll", json!({"offset": 1, "order_by": "a"})).await;
    assert!(
        status == 400 && message.starts_with("Wrong input: Cannot use an `offset` when using `order_by`"),
        "{message}"
    );
    let (status, message) = refused(&house, "GET", "/collections/c?timeout=x", json!({})).await;
    assert!(status == 400 && message.starts_with("Format error in query parameters: timeout"), "{message}");
    // What is wrong with the request itself says where, and has none.
    let (status, message) = refused(&house, "PUT", points, json!({"points": 5})).await;
    assert!(status == 400 && message.starts_with("Format error in JSON body: points"), "{message}");
    let (status, message) = refused(&house, "POST", "/collections/c/points/query", json!({"limit": 0})).await;
    assert!(status == 422 && message.starts_with("Validation error in JSON body: [limit"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_read_under_their_second_names() {
    let house = with_collection(json!({
        "vectors": {"size": 2, "distance": "Dot", "quantization": {"binary": {}}, "hnsw_config": {"full_scan_threshold_kb": 30}},
        "quantization": {"scalar": {"type": "int8"}},
        "optimizer_config": {"max_segment_size_kb": 1, "memmap_threshold_kb": 2, "indexing_threshold_kb": 3},
    }))
    .await;
    let config = must(&house, "GET", "/collections/c", Value::Null).await["config"].take();
    assert_eq!(config["quantization_config"], json!({"scalar": {"type": "int8"}}));
    assert_eq!(config["params"]["vectors"]["quantization_config"], json!({"binary": {}}));
    assert_eq!(config["params"]["vectors"]["hnsw_config"], json!({"full_scan_threshold": 30}));
    let optimizer = &config["optimizer_config"];
    for (field, value) in [("max_segment_size", 1), ("memmap_threshold", 2), ("indexing_threshold", 3)] {
        assert_eq!(optimizer[field], value, "{optimizer}");
    }
    let change = json!({
        "optimizer_config": {"indexing_threshold_kb": 4}, "quantization": "Disabled", "vectors": {"": {"quantization": "Disabled"}},
    });
    must(&house, "PATCH", "/collections/c", change).await;
    let config = must(&house, "GET", "/collections/c", Value::Null).await["config"].take();
    assert_eq!(config["optimizer_config"]["indexing_threshold"], 4);
    assert_eq!(config["quantization_config"], Value::Null);
    assert!(config["params"]["vectors"].get("quantization_config").is_none(), "{config}");

    let points = json!({"points": [{"id": 1, "vectors": [1, 2]}, {"id": 2, "vector": [1, 2]}]});
    must(&house, "PUT", "/collections/c/points?wait=true", points).await;
    let moved = json!({"points": [{"id": 1, "vectors": [3, 4]}]});
    must(&house, "PUT", "/collections/c/points/vectors?wait=true", moved).await;
    assert_eq!(must(&house, "GET", "/collections/c/points/1", Value::Null).await["vector"], json!([3.0, 4.0]));
    let gone = json!({"points": [1], "vectors": [""]});
    must(&house, "POST", "/collections/c/points/vectors/delete?wait=true", gone).await;
    assert_eq!(must(&house, "GET", "/collections/c/points/1", Value::Null).await["vector"], json!({}));
    let index = json!({"field_name": "a", "field_type": "keyword"});
    must(&house, "PUT", "/collections/c/index?wait=true", index).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_refused() {
    let house = plain().await;
    let long = "x".repeat(256);
    let (reads, query) = (format!("/collections/{long}"), format!("/collections/{long}/points/query"));
    let vector = |more: Value| {
        let mut vectors = json!({"size": 2, "distance": "Dot"});
        vectors.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "vectors": vectors })
    };
    for (method, path, body, status, message) in [
        ("PUT", "/collections/c/points/vectors", json!({}), 422, "points"),
        ("PUT", "/collections/c/points/vectors", json!({"points": []}), 422, "points"),
        (
            "PUT",
            "/collections/c/points/vectors",
            json!({"points": [{"id": 1, "vector": {}}]}),
            422,
            "points[0].vector: must specify vectors",
        ),
        ("PUT", "/collections/d", vector(json!({"memory": "pinned"})), 422, "vectors.memory"),
        ("PUT", "/collections/d", json!({"vectors": {}, "payload": {"memory": "pinned"}}), 422, "payload.memory"),
        ("PUT", "/collections/d", vector(json!({"memory": "hot"})), 400, "unknown variant `hot`"),
        (
            "POST",
            "/collections/c/points/count",
            json!({"filter": {"must": [{"slice": {"total": 0, "index": 0}}]}}),
            400,
            "slice.total",
        ),
        (
            "POST",
            "/collections/c/points/count",
            json!({"filter": {"min_should": {"conditions": [{"has_id": [1]}], "min_count": 0}}}),
            422,
            "min_should.min_count: value 0 invalid, must be 1 or larger",
        ),
        (
            "PUT",
            "/collections/c/index",
            json!({"field_name": "a", "field_schema": {"type": "integer", "lookup": false, "range": false}}),
            422,
            "the 'lookup' and 'range' capabilities can't be both disabled",
        ),
        (
            "PUT",
            "/collections/c/points",
            json!({"batch": {"ids": [1, 2], "vectors": [[1, 2], [1, 2, 3]]}}),
            400,
            "Vector dimension error: expected dim: 2, got 3",
        ),
        (
            "PUT",
            "/collections/c/points",
            json!({"batch": {"ids": [1, 2], "vectors": [[1, 2], [1]]}}),
            400,
            "Vector dimension error: expected dim: 2, got 1",
        ),
        ("PUT", &reads, json!({"vectors": {}}), 422, "collection_name"),
        ("GET", &reads, Value::Null, 422, "collection_name"),
        ("POST", &query, json!({"query": [1, 2]}), 422, "collection_name"),
        ("PUT", "/collections/%2E", json!({"vectors": {}}), 422, "collection_name"),
        ("PUT", "/collections/%2E%2E", json!({"vectors": {}}), 422, "collection_name"),
        ("PUT", "/collections/d", json!({"vectors": {&long: {"size": 2, "distance": "Dot"}}}), 422, "255"),
        ("PUT", "/collections/c/points", json!({"points": [{"id": 1, "vector": {&long: [1]}}]}), 422, "255"),
        ("POST", "/collections/c/points/query", json!({"query": [1, 2], "using": &long}), 422, "using"),
        (
            "POST",
            "/collections/aliases",
            json!({"actions": [{"create_alias": {"collection_name": "c", "alias_name": &long}}]}),
            422,
            "alias_name",
        ),
        (
            "POST",
            "/collections/aliases",
            json!({"actions": [{"create_alias": {"collection_name": "c", "alias_name": ".."}}]}),
            422,
            "create_alias",
        ),
    ] {
        let (found, text) = refused(&house, method, path, body).await;
        assert!(found == status && text.contains(message), "{method} {path}: {found} {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_not_named_like_an_alias() {
    let house = plain().await;
    let create = json!({"actions": [{"create_alias": {"collection_name": "c", "alias_name": "other"}}]});
    must(&house, "POST", "/collections/aliases", create).await;
    let (status, text) = refused(&house, "PUT", "/collections/other", json!({"vectors": {}})).await;
    assert_eq!(
        (status, text.starts_with("Wrong input: Can't create collection with name other.")),
        (400, true),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_may_be_named_like_a_part_of_a_path() {
    let house = plain().await;
    let vectors = json!({"vectors": {"size": 2, "distance": "Dot"}});
    for name in ["aliases", "collections", "points", "exists"] {
        let path = |rest: &str| format!("/collections/{name}{rest}");
        must(&house, "PUT", &path(""), vectors.clone()).await;
        must(&house, "PUT", &path("/points?wait=true"), json!({"points": [{"id": 1, "vector": [1, 2]}]})).await;
        must(&house, "PATCH", &path(""), json!({"recall": 0.9})).await;
        assert_eq!(must(&house, "GET", &path(""), Value::Null).await["points_count"], 1);
        assert_eq!(must(&house, "GET", &path("/exists"), Value::Null).await["exists"], true);
        assert_eq!(must(&house, "GET", &path("/aliases"), Value::Null).await, json!({"aliases": []}));
        let found = must(&house, "POST", &path("/points/query"), json!({"query": [1, 2]})).await;
        assert_eq!(found["points"][0]["id"], 1);
        // Under this method it is a path of its own.
        let create = json!({"actions": [{"create_alias": {"collection_name": name, "alias_name": "other"}}]});
        must(&house, "POST", "/collections/aliases", create).await;
        assert_eq!(must(&house, "GET", "/collections/other", Value::Null).await["points_count"], 1);
        assert_eq!(must(&house, "DELETE", &path(""), Value::Null).await, true);
        assert_eq!(refused(&house, "GET", &path(""), Value::Null).await.0, 404);
    }
    assert_eq!(answered(&house, "POST", "/collections/c", "{}").await.0, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_takes_a_key_of_the_metadata() {
    let house = with_collection(json!({"vectors": {}, "metadata": {"a": 1, "b": {"c": 2}}})).await;
    must(&house, "PATCH", "/collections/c", json!({"metadata": {"a": null, "d": [3]}})).await;
    let metadata = async || must(&house, "GET", "/collections/c", Value::Null).await["config"]["metadata"].take();
    assert_eq!(metadata().await, json!({"b": {"c": 2}, "d": [3]}));
    must(&house, "PATCH", "/collections/c", json!({"metadata": null})).await;
    assert_eq!(metadata().await, json!({"b": {"c": 2}, "d": [3]}));
    // Many small changes are held to the size of one.
    for key in ["x", "y"] {
        let body = json!({"metadata": {key: "z".repeat(40 << 10)}});
        let (status, answer) = ask(&house, "PATCH", "/collections/c", &body).await;
        assert_eq!(status, if key == "x" { 200 } else { 413 }, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_are_there_only_if_something_is_ignored() {
    let house = plain().await;
    assert!(must(&house, "GET", "/collections/c", Value::Null).await.get("warnings").is_none());
    must(&house, "PATCH", "/collections/c", json!({"hnsw_config": {"inline_storage": true}})).await;
    let warnings = must(&house, "GET", "/collections/c", Value::Null).await["warnings"].take();
    let message = warnings[0]["message"].as_str().unwrap();
    assert!(message.contains("inline_storage") && message.contains("requires quantization"), "{message}");
    must(&house, "PATCH", "/collections/c", json!({"quantization_config": {"binary": {}}})).await;
    assert!(must(&house, "GET", "/collections/c", Value::Null).await.get("warnings").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_vectors_count_as_indexed_above_the_threshold() {
    let house = with_collection(json!({
        "vectors": {"size": 256, "distance": "Dot"}, "optimizers_config": {"indexing_threshold": 4},
    }))
    .await;
    let vector = vec![1; 256];
    let points = async |ids: std::ops::Range<u64>| {
        let points: Vec<_> = ids.map(|id| json!({"id": id, "vector": vector})).collect();
        must(&house, "PUT", "/collections/c/points?wait=true", json!({ "points": points })).await;
        must(&house, "GET", "/collections/c", Value::Null).await["indexed_vectors_count"].take()
    };
    assert_eq!(points(0..3).await, 0);
    // Replaced points are one each; a KB a vector.
    assert_eq!(points(0..3).await, 0);
    assert_eq!(points(3..5).await, 5);
    must(&house, "PATCH", "/collections/c", json!({"optimizers_config": {"indexing_threshold": 0}})).await;
    assert_eq!(points(5..6).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_points_count_in_the_index_of_a_field() {
    let house = plain().await;
    let count = async |field: &str| {
        must(&house, "GET", "/collections/c", Value::Null).await["payload_schema"][field]["points"].take()
    };
    let index = async |field: &str, kind: &str| {
        let body = json!({"field_name": field, "field_schema": kind});
        must(&house, "PUT", "/collections/c/index?wait=true", body).await;
    };
    index("before", "integer").await;
    let payloads =
        [json!({"before": 1, "after": "x"}), json!({"before": "no number"}), json!({"after": ["y", "z"]}), json!({})];
    let points: Vec<_> = payloads
        .iter()
        .enumerate()
        .map(|(id, payload)| json!({"id": id, "vector": [1, 2], "payload": payload}))
        .collect();
    must(&house, "PUT", "/collections/c/points?wait=true", json!({ "points": points })).await;
    index("after", "keyword").await;
    assert_eq!((count("before").await, count("after").await), (json!(1), json!(2)));
    let change = json!({"points": [3], "payload": {"before": 7, "after": "w"}});
    must(&house, "POST", "/collections/c/points/payload?wait=true", change).await;
    must(&house, "POST", "/collections/c/points/delete?wait=true", json!({"points": [0]})).await;
    assert_eq!((count("before").await, count("after").await), (json!(1), json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_stands_twice_has_its_last_value_everywhere() {
    let house = plain().await;
    let points = r#"{"points":[{"id":1,"vector":[1,2],"payload":{"d":1,"o":{"e":1,"e":2},"d":2}}]}"#;
    let (status, ..) = answered(&house, "PUT", "/collections/c/points?wait=true", points).await;
    assert_eq!(status, 200);
    let stored = async || {
        let all = answered(&house, "POST", "/collections/c/points/scroll", "{}").await.2;
        let (_, after) = all.split_once("\"payload\":").unwrap();
        after.split_once("}],\"next_page_offset\"").unwrap().0.to_owned()
    };
    assert_eq!(stored().await, r#"{"o":{"e":2},"d":2}"#);
    for (value, count) in [(1, 0), (2, 1)] {
        let filter = json!({"filter": {"must": [{"key": "d", "match": {"value": value}}]}});
        assert_eq!(must(&house, "POST", "/collections/c/points/count", filter).await["count"], count);
    }
    let change = r#"{"points":[1],"payload":{"f":[{"g":1,"g":2}]}}"#;
    assert_eq!(answered(&house, "PUT", "/collections/c/points/payload?wait=true", change).await.0, 200);
    assert_eq!(stored().await, r#"{"f":[{"g":2}]}"#);
}

/// `METHOD path` of all that Qdrant 1.19 serves, of its specification and beside it.
const SERVED: &str = include_str!("qdrant_paths.txt");

#[tokio::test(flavor = "multi_thread")]
async fn every_path_of_the_api_is_answered_by_name() {
    let house = plain().await;
    let mut not_implemented = 0;
    for line in SERVED.lines() {
        let (method, path) = line.split_once(' ').unwrap();
        let asked = path.replace("{collection_name}", "nowhere").replace(['{', '}'], "");
        let (status, text) = refused(&house, method, &asked, json!({})).await;
        assert!(status != 405 && !text.contains("no endpoint"), "{line}: {status} {text}");
        if status == 501 {
            not_implemented += 1;
            assert!(text.contains(path), "{line}: {text}");
        }
    }
    assert!(not_implemented > 30, "{not_implemented}");
}
