//! The whole door in one process: requests in, answers out, over a real store.

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

mod host;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use host::{House, open, open_on};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_door_qdrant::{Access, Keys, ROUTES};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::Arc;
use tower::ServiceExt;

struct Reply {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The result, in an envelope that is right.
    fn result(&self) -> Value {
        let body = self.json();
        assert_eq!((self.status, &body["status"]), (200, &json!("ok")), "{}", self.text);
        assert!(body["time"].as_f64().is_some_and(|time| time >= 0.0));
        body["result"].clone()
    }

    fn error(&self) -> String {
        let body = self.json();
        assert!(body["time"].is_number(), "{}", self.text);
        body["status"]["error"].as_str().unwrap_or_default().to_owned()
    }
}

async fn send(house: &House, request: Request<Body>) -> Reply {
    let (parts, body) = house.door.router().oneshot(request).await.unwrap().into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    Reply { status: parts.status.as_u16(), headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

async fn ask(house: &House, method: &str, path: &str, body: impl Into<Body>) -> Reply {
    send(house, Request::builder().method(method).uri(path).body(body.into()).unwrap()).await
}

async fn put(house: &House, path: &str, body: Value) -> Reply {
    ask(house, "PUT", path, body.to_string()).await
}

async fn post(house: &House, path: &str, body: Value) -> Reply {
    ask(house, "POST", path, body.to_string()).await
}

async fn get(house: &House, path: &str) -> Reply {
    ask(house, "GET", path, "").await
}

async fn with_points() -> House {
    let house = open(256, Keys::default());
    let vectors = json!({"vectors": {"size": 2, "distance": "Dot"}});
    assert_eq!(put(&house, "/collections/c", vectors).await.result(), json!(true));
    let points = json!({"points": [
        {"id": 1, "vector": [1, 0], "payload": {"a": {"b": 1, "c": 2}, "d": "x"}},
        {"id": 2, "vector": [0, 1]},
        {"id": "550e8400-e29b-41d4-a716-446655440000", "vector": [0.5, 0.1], "payload": {"d": "y"}},
    ]});
    let written = put(&house, "/collections/c/points?wait=true", points).await.result();
    assert_eq!(written["status"], "completed");
    assert!(written["operation_id"].is_u64());
    house
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collections_life() {
    let house = open(256, Keys::default());
    let body = json!({
        "vectors": {"size": 4, "distance": "Cosine", "on_disk": true, "hnsw_config": {"m": 8}},
        "hnsw_config": {"ef_construct": 50}, "optimizers_config": {"indexing_threshold": 0, "max_optimization_threads": "auto"},
        "quantization_config": {"scalar": {"type": "int8", "always_ram": true}}, "on_disk_payload": false,
        "metadata": {"owner": ["me"]}, "recall": 0.9,
    });
    assert_eq!(put(&house, "/collections/c?timeout=5", body.clone()).await.result(), json!(true));
    assert_eq!(put(&house, "/collections/c", body).await.status, 409);
    assert_eq!(get(&house, "/collections").await.result(), json!({"collections": [{"name": "c"}]}));
    assert_eq!(get(&house, "/collections/c/exists").await.result(), json!({"exists": true}));
    assert_eq!(get(&house, "/collections/x/exists").await.result(), json!({"exists": false}));
    assert_eq!(get(&house, "/collections/x").await.status, 404);

    let mut info = get(&house, "/collections/c").await.result();
    assert!(info["segments_count"].is_u64() && info["disk_bytes"].is_u64());
    info["segments_count"].take();
    info["disk_bytes"].take();
    let expected = json!({
        "status": "green", "optimizer_status": "ok", "points_count": 0, "indexed_vectors_count": 0,
        "segments_count": null, "disk_bytes": null, "payload_schema": {}, "recall": 0.9, "progress": null,
        "recall_measured": null,
        "config": {
            "params": {
                "vectors": {"size": 4, "distance": "Cosine", "on_disk": true, "hnsw_config": {"m": 8}},
                "shard_number": 1, "replication_factor": 1, "write_consistency_factor": 1, "on_disk_payload": false,
            },
            "hnsw_config": {"m": 16, "ef_construct": 50, "full_scan_threshold": 10000, "max_indexing_threads": 0},
            "optimizer_config": {
                "deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 0,
                "max_segment_size": null, "memmap_threshold": null, "indexing_threshold": 0,
                "flush_interval_sec": 5, "max_optimization_threads": null,
            },
            "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0, "wal_retain_closed": 1},
            "quantization_config": {"scalar": {"type": "int8", "always_ram": true}},
            "strict_mode_config": {"enabled": false},
            "metadata": {"owner": ["me"]},
        },
    });
    assert_eq!(info, expected);

    let change =
        json!({"hnsw_config": {"m": 32}, "quantization_config": "Disabled", "vectors": {"": {"on_disk": false}}});
    let changed = ask(&house, "PATCH", "/collections/c", change.to_string()).await;
    assert_eq!(changed.result(), json!(true));
    let config = get(&house, "/collections/c").await.result()["config"].clone();
    assert_eq!(config["hnsw_config"]["m"], 32);
    assert_eq!(config["hnsw_config"]["ef_construct"], 50);
    assert_eq!(config["quantization_config"], Value::Null);
    assert_eq!(config["params"]["vectors"]["on_disk"], false);

    assert_eq!(ask(&house, "DELETE", "/collections/c", "").await.result(), json!(true));
    assert_eq!(ask(&house, "DELETE", "/collections/c", "").await.result(), json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn points_are_read_as_they_were_written() {
    let house = with_points().await;
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    let one = get(&house, "/collections/c/points/1").await.result();
    assert_eq!(one, json!({"id": 1, "payload": {"a": {"b": 1, "c": 2}, "d": "x"}, "vector": [1.0, 0.0]}));
    assert_eq!(get(&house, "/collections/c/points/9").await.status, 404);
    assert_eq!(get(&house, "/collections/c/points/x").await.status, 400);

    let some =
        post(&house, "/collections/c/points", json!({"ids": [uuid, 9, 1], "with_payload": ["a.b"]})).await.result();
    assert_eq!(some, json!([{"id": uuid, "payload": {}}, {"id": 1, "payload": {"a": {"b": 1}}}]));

    let page = post(&house, "/collections/c/points/scroll", json!({"limit": 2, "with_payload": false})).await.result();
    assert_eq!(page, json!({"points": [{"id": 1}, {"id": 2}], "next_page_offset": uuid}));
    let rest = json!({"offset": uuid, "with_payload": {"exclude": ["d"]}, "with_vector": true});
    let page = post(&house, "/collections/c/points/scroll", rest).await.result();
    assert_eq!(page, json!({"points": [{"id": uuid, "payload": {}, "vector": [0.5, 0.1]}], "next_page_offset": null}));
    assert_eq!(post(&house, "/collections/c/points/count", json!({"exact": true})).await.result(), json!({"count": 3}));
}

#[tokio::test(flavor = "multi_thread")]
async fn searches() {
    let house = with_points().await;
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    let nearest = post(&house, "/collections/c/points/query", json!({"query": [1, 0.5], "limit": 2})).await.result();
    let ids: Vec<_> = nearest["points"].as_array().unwrap().iter().map(|point| point["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(uuid)]);
    let first = &nearest["points"][0];
    assert_eq!(first["score"], 1.0);
    assert!(first["version"].is_u64() && first.get("payload").is_none() && first.get("vector").is_none());

    let like = json!({"query": 1, "with_payload": true, "with_vector": true, "profile": true, "score_threshold": 0.2});
    let like = post(&house, "/collections/c/points/query", like).await.result();
    assert_eq!(like["points"][0]["id"], uuid);
    assert_eq!(like["points"][0]["payload"], json!({"d": "y"}));
    assert_eq!(like["points"][0]["vector"], json!([0.5, 0.1]));
    assert_eq!(like["points"].as_array().unwrap().len(), 1);
    assert!(like["profile"]["stages_us"]["scan"].is_u64());
    assert_eq!(post(&house, "/collections/c/points/query", json!({"query": 77})).await.status, 404);

    let batch = json!({"searches": [{"query": [1, 0], "limit": 1}, {"query": {"nearest": [0, 1]}, "limit": 1}, {}]});
    let batch = post(&house, "/collections/c/points/query/batch", batch).await.result();
    assert_eq!(batch[0]["points"][0]["id"], 1);
    assert_eq!(batch[1]["points"][0]["id"], 2);
    assert_eq!(batch[2]["points"].as_array().unwrap().len(), 3);
    let empty = post(&house, "/collections/c/points/query/batch", json!({"searches": []})).await.result();
    assert_eq!(empty, json!([]));

    let older = json!({"vector": [0, 1], "top": 1});
    assert_eq!(post(&house, "/collections/c/points/search", older.clone()).await.result()[0]["id"], 2);
    let older = post(&house, "/collections/c/points/search/batch", json!({"searches": [older]})).await.result();
    assert_eq!(older[0][0]["id"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn points_change_and_go() {
    let house = with_points().await;
    let points = "/collections/c/points";
    let set = json!({"payload": {"n": [1]}, "points": [1, 2]});
    assert_eq!(post(&house, &format!("{points}/payload?wait=true"), set).await.result()["status"], "completed");
    let keys = json!({"keys": ["a"], "points": [1]});
    assert_eq!(post(&house, &format!("{points}/payload/delete"), keys).await.result()["status"], "acknowledged");
    let clear = json!({"points": [2]});
    assert_eq!(post(&house, &format!("{points}/payload/clear?wait=true"), clear).await.status, 200);
    let all = post(&house, &format!("{points}/scroll"), json!({"limit": 2})).await.result();
    assert_eq!(all["points"], json!([{"id": 1, "payload": {"d": "x", "n": [1]}}, {"id": 2, "payload": {}}]));

    let vector = json!({"points": [{"id": 2, "vector": [3, 4]}]});
    assert_eq!(put(&house, &format!("{points}/vectors?wait=true"), vector).await.status, 200);
    assert_eq!(get(&house, &format!("{points}/2")).await.result()["vector"], json!([3.0, 4.0]));
    let columns = json!({"batch": {"ids": [5, 6], "vectors": [[1, 1], [2, 2]], "payloads": [null, {"x": null}]}});
    assert_eq!(put(&house, &format!("{points}?wait=true"), columns).await.status, 200);
    assert_eq!(get(&house, &format!("{points}/6")).await.result()["payload"], json!({"x": null}));
    let gone = json!({"points": [1, 5, 77]});
    assert_eq!(post(&house, &format!("{points}/delete?wait=true"), gone).await.status, 200);
    assert_eq!(post(&house, &format!("{points}/count"), json!({})).await.result()["count"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn named_vectors() {
    let house = open(256, Keys::default());
    let vectors = json!({"vectors": {"a": {"size": 1, "distance": "Dot"}, "b": {"size": 2, "distance": "Euclid"}}});
    assert_eq!(put(&house, "/collections/c", vectors).await.status, 200);
    let points = json!({"points": [{"id": 1, "vector": {"a": [1], "b": [3, 4]}}, {"id": 2, "vector": {"b": [0, 1]}}]});
    assert_eq!(put(&house, "/collections/c/points?wait=true", points).await.status, 200);
    let near = json!({"query": [0, 0], "using": "b", "with_vector": ["b"]});
    let near = post(&house, "/collections/c/points/query", near).await.result();
    assert_eq!(near["points"][0]["vector"], json!({"b": [0.0, 1.0]}));
    assert_eq!(near["points"][1]["score"], 5.0);
    let drop = json!({"points": [1], "vector": ["b"]});
    assert_eq!(post(&house, "/collections/c/points/vectors/delete?wait=true", drop).await.status, 200);
    assert_eq!(get(&house, "/collections/c/points/1").await.result()["vector"], json!({"a": [1.0]}));
    assert_eq!(post(&house, "/collections/c/points/query", json!({"query": [0], "using": "z"})).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn aliases() {
    let house = with_points().await;
    let create = json!({"actions": [{"create_alias": {"collection_name": "c", "alias_name": "other"}}]});
    assert_eq!(post(&house, "/collections/aliases", create).await.result(), json!(true));
    let expected = json!({"aliases": [{"alias_name": "other", "collection_name": "c"}]});
    assert_eq!(get(&house, "/aliases").await.result(), expected);
    assert_eq!(get(&house, "/collections/c/aliases").await.result(), expected);
    assert_eq!(get(&house, "/collections/other/points/1").await.status, 200);
    let missing = json!({"actions": [{"create_alias": {"collection_name": "x", "alias_name": "y"}}]});
    assert_eq!(post(&house, "/collections/aliases", missing).await.status, 404);
    assert_eq!(get(&house, "/collections/x/aliases").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_their_status() {
    let house = with_points().await;
    for (method, path, body, status, message) in [
        ("PUT", "/collections/c/points", "{", 400, "Format error in JSON body"),
        ("PUT", "/collections/c/points", r#"{"points":[{"id":1,"vector":[1]}]}"#, 400, "dim"),
        ("PUT", "/collections/c/points", r#"{"points":[{"id":1,"vector":{"x":[1]}}]}"#, 400, "x"),
        ("PUT", "/collections/x/points", r#"{"points":[{"id":1,"vector":[1]}]}"#, 404, "x"),
        ("PUT", "/collections/c/points?wait=maybe", r#"{"points":[]}"#, 400, "wait"),
        ("POST", "/collections/c/points/query", r#"{"limit":0}"#, 422, "limit"),
        ("POST", "/collections/c/points/query?timeout=0", "{}", 422, "timeout"),
        ("POST", "/collections/c/points/query", r#"{"query":[1,2,3]}"#, 400, "dim"),
        ("POST", "/collections/c/points/query", r#"{"filter":{"must":[{"key":"a"}]}}"#, 422, "filter.must[0]"),
        ("POST", "/collections/c/points/query/groups", "{}", 501, "groups"),
        ("POST", "/collections/c/points/delete", r#"{"filter":{"most":[]}}"#, 400, "filter.most"),
        ("POST", "/collections/c/points/batch", r#"{"operations":[{"remove":{}}]}"#, 400, "operations[0].remove"),
        ("PUT", "/collections/a%2Fb", r#"{"vectors":{"size":1,"distance":"Dot"}}"#, 422, "collection_name"),
        ("PUT", "/collections/%FF", "{}", 400, "path"),
        ("PUT", "/collections/y", r#"{"vectors":{"size":0,"distance":"Dot"}}"#, 422, "vectors.size"),
        ("GET", "/nothing", "", 404, "/nothing"),
        ("PUT", "/collections/c/points/scroll", "{}", 405, "scroll"),
        ("PUT", "/memory", r#"{"budget":"1MiB"}"#, 422, "budget"),
    ] {
        let reply = ask(&house, method, path, body).await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text);
        assert!(reply.error().contains(message), "{method} {path}: {}", reply.text);
    }
    let reply = ask(&house, "PUT", "/collections/c/points", vec![b' '; 33 << 20]).await;
    assert_eq!(reply.status, 413, "{}", reply.text);
    let compressed =
        Request::put("/collections/c/points").header("content-encoding", "gzip").body(Body::from("x")).unwrap();
    assert_eq!(send(&house, compressed).await.status, 400);
}

/// On a full disk points may go, and none may come.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_ends_half_way_is_not_called_refused() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let house = open_on(disk.clone(), 64);
    let vectors = json!({"vectors": {"size": 2, "distance": "Dot"}});
    assert_eq!(put(&house, "/collections/c", vectors).await.result(), json!(true));
    let point = |id: u64, payload: &str| json!({"points": [{"id": id, "vector": [1, 0], "payload": {"t": payload}}]});
    put(&house, "/collections/c/points?wait=true", point(1, "")).await.result();
    disk.set_faults(Faults { bytes_max: Some(1), ..Faults::default() });
    // More than the log's file has room for.
    let (adds, frees) = (json!({"upsert": point(2, &"x".repeat(100 << 10))}), json!({"delete": {"points": [1]}}));
    let batch =
        |operations: Value| post(&house, "/collections/c/points/batch?wait=true", json!({ "operations": operations }));
    let refused = batch(json!([adds])).await;
    assert_eq!((refused.status, refused.error().contains("batch")), (507, false), "{}", refused.text);
    let ended = batch(json!([frees, adds])).await;
    assert_eq!(ended.status, 503, "{}", ended.text);
    assert!(
        ended.error().contains("1 operation of the batch was done") && ended.error().contains("full"),
        "{}",
        ended.text
    );
    assert_eq!(get(&house, "/collections/c/points/1").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_says_so() {
    let house = open(256, Keys::default());
    let mut not_implemented = 0;
    for route in ROUTES {
        let path = route.path.replace("{collection_name}", "c").replace(['{', '}'], "");
        let reply = ask(&house, route.method, &path, "{}").await;
        assert!(reply.status != 405 && reply.status < 600, "{} {}: {}", route.method, path, reply.text);
        if reply.status == 501 {
            not_implemented += 1;
            assert_eq!(reply.error(), format!("{} {} is not built yet", route.method, route.path));
        }
    }
    assert!(not_implemented > 30, "{not_implemented}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_open_what_they_may() {
    let house = open(256, Keys { full: Some("full".into()), read_only: Some("reads".into()) });
    for route in ROUTES {
        let path = route.path.replace("{collection_name}", "c").replace(['{', '}'], "");
        for (key, allowed) in
            [(None, route.access == Access::Open), (Some("reads"), route.access != Access::Write), (Some("full"), true)]
        {
            let mut request = Request::builder().method(route.method).uri(&path);
            if let Some(key) = key {
                request = request.header("api-key", key);
            }
            let status = send(&house, request.body(Body::from("{}")).unwrap()).await.status;
            let refused = StatusCode::from_u16(status).is_ok_and(|status| matches!(status.as_u16(), 401 | 403));
            assert_eq!(refused, !allowed, "{} {path} with {key:?}: {status}", route.method);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_tells_about_itself() {
    let house = with_points().await;
    assert_eq!(
        get(&house, "/").await.json(),
        json!({"title": "qdrant - vector search engine", "version": "1.19.0", "commit": "unknown"})
    );
    for (path, text) in
        [("/healthz", "healthz check passed"), ("/livez", "healthz check passed"), ("/readyz", "all shards are ready")]
    {
        let reply = get(&house, path).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, text));
        assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    }
    let ledger = get(&house, "/memory").await.result();
    assert_eq!(ledger["budget_bytes"], 256 << 20);
    let accounts = ledger["accounts"].as_array().unwrap();
    assert!(accounts.iter().all(|account| account["name"].is_string() && account["bytes"].is_u64()));
    let metrics = get(&house, "/metrics").await;
    assert!(metrics.text.contains("collection_points{id=\"c\"} 3\n"), "{}", metrics.text);
    assert!(metrics.text.contains(
        "rest_responses_total{method=\"PUT\",endpoint=\"/collections/{collection_name}/points\",status=\"200\"} 1\n"
    ));
    for account in accounts {
        let line = format!("ramekin_memory_account_bytes{{account=\"{}\"}}", account["name"].as_str().unwrap());
        assert!(metrics.text.contains(&line), "{line}");
    }
    let writes = "ramekin_request_duration_seconds_bucket{kind=\"write\",le=\"+Inf\"} 1\n";
    assert!(metrics.text.contains(writes), "{}", metrics.text);
    let page = include_str!("../../../docs/OPERATIONS.md");
    let mut names = 0;
    for name in metrics.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(page.contains(&format!("\n| `{name}` | ")), "docs/OPERATIONS.md says nothing of {name}");
        names += 1;
    }
    let listed = page.split_once("## Metrics").unwrap().1.split("\n## ").next().unwrap().matches("\n| `").count();
    assert_eq!(listed, names, "docs/OPERATIONS.md has metrics that are not there");
    let telemetry = get(&house, "/telemetry?details_level=1").await.result();
    assert_eq!(telemetry["collections"]["number_of_collections"], 1);
    let moved = put(&house, "/memory", json!({"budget": "300MiB"})).await.result();
    assert_eq!((&moved["budget_bytes"], &moved["reached"]), (&json!(300 << 20), &json!(true)));
    assert_eq!(house.budget.limit(), 300 << 20);
}

/// What the accounts of bodies hold.
fn bodies(house: &House) -> u64 {
    let ledger = ramekin_memory::Ledger::take(&house.budget);
    let of_bodies = ledger.accounts.iter().filter(|line| line.name.starts_with("door/http/bodies"));
    of_bodies.map(|line| line.bytes).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_upload_leaves_nothing_booked() {
    let house = open(256, Keys::default());
    let vectors = json!({"vectors": {"size": 100, "distance": "Cosine"}});
    assert_eq!(put(&house, "/collections/c", vectors).await.status, 200);
    let vector: Vec<f64> = (0..100).map(|n| f64::from(n) / 7.0 + 0.001).collect();
    let points: Vec<_> = (0..1000).map(|id| json!({"id": id, "vector": vector, "payload": {"n": id}})).collect();
    let body = json!({"points": points}).to_string();
    assert!(body.len() > 1 << 20);
    assert_eq!(ask(&house, "PUT", "/collections/c/points?wait=true", body).await.status, 200);
    assert_eq!(post(&house, "/collections/c/points/count", json!({})).await.result()["count"], 1000);
    assert_eq!(bodies(&house), 0);
    let all = post(&house, "/collections/c/points/scroll", json!({"limit": 1000, "with_vector": true})).await;
    assert_eq!(all.result()["points"].as_array().unwrap().len(), 1000);
}

/// What a given-up request was decoded to stays booked until the job that owns it has ended.
#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_does_not_give_back_what_the_job_still_holds() {
    let house = with_points().await;
    let booked = || bodies(&house);
    assert_eq!(booked(), 0);
    let ids = (0..4_000).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let filter = format!(r#"{{"must":[{{"has_id":[{ids}]}}]}}"#);
    for (path, body) in [
        ("points/count", format!(r#"{{"filter":{filter}}}"#)),
        ("points/scroll", format!(r#"{{"filter":{filter}}}"#)),
        ("points/query", format!(r#"{{"query":[1,0],"filter":{filter}}}"#)),
        ("points/query/batch", format!(r#"{{"searches":[{{"query":[1,0],"filter":{filter}}}]}}"#)),
        ("points", format!(r#"{{"ids":[{ids}]}}"#)),
    ] {
        house.shut_pool(true);
        let reply = ask(&house, "POST", &format!("/collections/c/{path}?timeout=1"), body).await;
        assert_eq!(reply.status, 429, "{path}: {}", reply.text);
        // 32 bytes an id.
        assert!(booked() >= 4_000 * 32, "{path}: {}", booked());
        house.shut_pool(false);
        for _ in 0..1_000 {
            if booked() == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(booked(), 0, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_requests_are_answered_while_all_long_ones_wait() {
    let house = with_points().await;
    let wide = json!({"vectors": {"size": 2000, "distance": "Dot"}});
    put(&house, "/collections/wide", wide).await.result();
    house.shut_pool(true);
    for path in [
        "/collections",
        "/collections/c",
        "/collections/c/exists",
        "/collections/c/aliases",
        "/aliases",
        "/memory",
        "/metrics",
        "/telemetry",
        "/readyz",
    ] {
        let reply = get(&house, &format!("{path}?timeout=1")).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    }
    let numbers: Vec<f64> = (0..2000).map(|n| f64::from(n) / 3e3 - 0.333).collect();
    let wide = json!({"query": numbers});
    assert!(wide.to_string().len() > 32 << 10);
    for (name, query) in [("c", json!({"query": [1, 0.5], "with_payload": true})), ("wide", wide)] {
        let reply = post(&house, &format!("/collections/{name}/points/query?timeout=1"), query).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text);
    }
    // What takes longer waits for its turn.
    for query in [
        json!({"query": [1, 0.5], "limit": 1000, "with_payload": true}),
        json!({"query": [1, 0], "params": {"exact": true}}),
    ] {
        let reply = post(&house, "/collections/c/points/query?timeout=1", query).await;
        assert_eq!(reply.status, 429, "{}", reply.text);
    }
    house.shut_pool(false);
}

/// Who waits for another change of a collection holds no thread meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_collection_that_wait_for_another_keep_no_thread() {
    let house = Arc::new(with_points().await);
    let (release, gate) = std::sync::mpsc::sync_channel::<()>(0);
    let gate = std::sync::Mutex::new(gate);
    // The one who writes stands still.
    house.store.plant_for_tests(Box::new(move |place| {
        if place == "apply" {
            _ = gate.lock().unwrap().recv();
        }
    }));
    let point = json!({"points": [{"id": 9, "vector": [1, 0]}]});
    assert_eq!(put(&house, "/collections/c/points?timeout=1&wait=true", point).await.status, 503);
    let first = house.clone();
    let first = tokio::spawn(async move {
        ask(&first, "PATCH", "/collections/c?timeout=60", json!({"recall": 0.9}).to_string()).await.status
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let others = (0..3).map(|_| ask(&house, "PATCH", "/collections/c?timeout=1", r#"{"recall": 0.8}"#));
    for other in futures(others).await {
        assert_eq!(other.status, 429, "{}", other.text);
    }
    let count = post(&house, "/collections/c/points/count?timeout=2", json!({})).await;
    assert_eq!(count.status, 200, "{}", count.text);
    drop(release);
    assert_eq!(first.await.unwrap(), 200);
}

/// All of them together.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        for (one, done) in all.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = one.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        if all.iter().all(|(_, done)| done.is_some()) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, done)| done).collect()
}

/// A change of the budget takes a thread of the runtime, of which there are few.
#[test]
fn a_change_of_the_budget_waits_for_others_no_longer_than_it_may() {
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let house = open(256, Keys::default());
        let slow = json!({"budget": host::NEVER_REACHED});
        let (first, second, (third, took)) = tokio::join!(
            put(&house, "/memory?timeout=6", slow.clone()),
            put(&house, "/memory?timeout=6", slow.clone()),
            async {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                let from = tokio::time::Instant::now();
                (put(&house, "/memory?timeout=1", json!({"budget": "200MiB"})).await, from.elapsed())
            }
        );
        assert_eq!((first.status, second.status), (202, 202), "{} {}", first.text, second.text);
        assert!(third.status == 429 && took.as_secs() < 4, "{} after {took:?}", third.text);
        assert_eq!(put(&house, "/memory", json!({"budget": "200MiB"})).await.result()["reached"], true);
    });
}

/// An error repeats little of what it was sent, whatever that was.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_is_short_however_long_the_request() {
    let house = with_points().await;
    let long = "k".repeat(1 << 20);
    for (path, body) in [
        ("query", format!(r#"{{"filter":{{"{long}":1}}}}"#)),
        ("query", format!(r#"{{"limit":"{}"}}"#, "\\u0001".repeat(1 << 17))),
        ("query", format!(r#"{{"query":[1,0],"using":"{long}"}}"#)),
        ("query", format!(r#"{{"filter":{{"must":[{{"key":"a b{long}","match":{{"value":1}}}}]}}}}"#)),
        ("scroll", format!(r#"{{"order_by":"{long}"}}"#)),
        ("scroll", format!(r#"{{"with_vector":["{long}"]}}"#)),
        ("delete", format!(r#"{{"points":["{long}"]}}"#)),
    ] {
        let reply = ask(&house, "POST", &format!("/collections/c/points/{path}"), body).await;
        assert!(reply.status == 400 || reply.status == 422, "{path}: {}", reply.status);
        assert!(!reply.error().is_empty() && reply.error().len() <= 1024 && reply.text.len() < 8 << 10, "{path}");
    }
    let names = format!(r#"{{"with_vector":[{}""]}}"#, r#""","#.repeat(300_000));
    let reply = ask(&house, "POST", "/collections/c/points/scroll", names).await;
    assert_eq!(reply.result()["points"].as_array().unwrap().len(), 3);
}

/// There is no bound to a `limit` or an `offset`: what goes beyond the points there are asks for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_may_be_as_large_as_a_number_can_be() {
    let house = with_points().await;
    put(&house, "/collections/c/index", json!({"field_name": "d", "field_schema": "keyword"})).await.result();
    let most = u64::MAX;
    for (path, body, count) in [
        ("points/query", json!({"query": [1, 0], "limit": most}), 3),
        ("points/query", json!({"query": [1, 0], "limit": most, "offset": 1}), 2),
        ("points/query", json!({"query": [1, 0], "limit": 5, "offset": most}), 0),
        ("points/query", json!({"query": [1, 0], "limit": most, "filter": {"must": [{"has_id": [1, 2]}]}}), 2),
        ("points/query", json!({"limit": most, "offset": 2}), 1),
        ("points/scroll", json!({"limit": most}), 3),
        ("facet", json!({"key": "d", "limit": most}), 2),
    ] {
        let result = post(&house, &format!("/collections/c/{path}"), body.clone()).await.result();
        let list = result["points"].as_array().or(result["hits"].as_array()).unwrap();
        assert_eq!(list.len(), count, "{path} {body}");
    }
    let older = post(&house, "/collections/c/points/search", json!({"vector": [1, 0], "limit": most})).await.result();
    assert_eq!(older.as_array().unwrap().len(), 3);
}

/// A sum that leaves the range of a float on its way neither drops a point nor makes its score `null`.
#[tokio::test(flavor = "multi_thread")]
async fn scores_of_large_vectors_are_numbers() {
    let house = open(256, Keys::default());
    let vectors = json!({"vectors": {"size": 24, "distance": "Dot"}});
    put(&house, "/collections/c", vectors).await.result();
    let points = json!({"points": [
        {"id": 1, "vector": vec![1e38; 24]}, {"id": 2, "vector": vec![1; 24]}, {"id": 3, "vector": vec![3e38; 24]},
    ]});
    put(&house, "/collections/c/points?wait=true", points).await.result();
    let query = |query: Vec<f64>| json!({"query": query, "params": {"exact": true}});
    let signs = (0..24).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let found = post(&house, "/collections/c/points/query", query(signs)).await.result();
    let scores: Vec<_> = found["points"].as_array().unwrap().iter().map(|point| point["score"].as_f64()).collect();
    assert_eq!(scores, [Some(0.0); 3]);
    let found = post(&house, "/collections/c/points/query", query(vec![3e38; 24])).await.result();
    let points = found["points"].as_array().unwrap();
    assert!(points.len() == 3 && points.iter().all(|point| point["score"].is_f64()), "{found}");
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_answers_may_be_packed() {
    let house = with_points().await;
    let points: Vec<_> = (10..1_000).map(|id| json!({"id": id, "vector": [id, 1], "payload": {"d": "word"}})).collect();
    let body = packed(&json!({ "points": points }).to_string());
    let upsert = Request::put("/collections/c/points?wait=true").header("content-encoding", "gzip");
    let written = send(&house, upsert.body(Body::from(body)).unwrap()).await.result();
    assert_eq!(written["status"], "completed");
    let scroll = |encoding: &str| {
        let request = Request::post("/collections/c/points/scroll").header("accept-encoding", encoding);
        request.body(Body::from(r#"{"limit":10000}"#)).unwrap()
    };
    let plain = send(&house, scroll("identity")).await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let (parts, body) = house.door.router().oneshot(scroll("gzip")).await.unwrap().into_parts();
    assert_eq!(parts.headers["content-encoding"], "gzip");
    let body = to_bytes(body, usize::MAX).await.unwrap();
    assert!(body.len() * 4 < plain.text.len());
    let mut text = String::new();
    flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["result"], plain.result());

    let unknown = Request::put("/collections/c/points").header("content-encoding", "br").body(Body::from("x")).unwrap();
    assert_eq!(send(&house, unknown).await.status, 415);
    let bomb = packed(&" ".repeat(64 << 20));
    let bomb = Request::put("/collections/c/points").header("content-encoding", "gzip").body(Body::from(bomb)).unwrap();
    assert_eq!(send(&house, bomb).await.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_an_origin_may_use_the_door_where_it_is_named() {
    let question = || {
        let request = Request::builder().method("OPTIONS").uri("/collections/c/points/query");
        let request = request.header("origin", "https://a.example").header("access-control-request-method", "POST");
        request.header("access-control-request-headers", "api-key,content-type").body(Body::empty()).unwrap()
    };
    let closed = open(64, Keys::default());
    let reply = send(&closed, question()).await;
    assert!(reply.status == 405 && !reply.headers.contains_key("access-control-allow-origin"));
    drop(closed);
    let keys = Keys { full: Some("secret".to_owned()), read_only: None };
    let plan: std::sync::Arc<ramekin_door_qdrant::Planner> = std::sync::Arc::new(|_| Ok(Value::Null));
    let house = host::open_for(64, keys, plan, Some("https://a.example".to_owned()));
    let reply = send(&house, question()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["access-control-allow-origin"], "https://a.example");
    assert_eq!(reply.headers["access-control-allow-headers"], "api-key,content-type");
    assert!(reply.headers["access-control-allow-methods"].to_str().unwrap().contains("POST"));
    let reply = get(&house, "/collections").await;
    assert!(reply.status == 401 && reply.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn readiness_names_what_is_wrong_and_liveness_does_not() {
    let house = with_points().await;
    house.store.plant_for_tests(Box::new(|place| assert_ne!(place, "apply", "planted by a test")));
    let point = json!({"points": [{"id": 9, "vector": [1, 0]}]});
    assert_eq!(put(&house, "/collections/c/points?wait=true", point.clone()).await.status, 500);
    let ready = get(&house, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.error().contains("collection `c`") && ready.error().contains("planted by a test"), "{}", ready.text);
    assert_eq!(put(&house, "/collections/c/points?wait=true", point).await.status, 503);
    for path in ["/livez", "/healthz"] {
        assert_eq!(get(&house, path).await.status, 200, "{path}");
    }
    let info = get(&house, "/collections/c").await.result();
    assert_eq!(info["status"], "red");
    assert!(info["optimizer_status"]["error"].as_str().unwrap().contains("planted by a test"), "{info}");
    let metrics = get(&house, "/metrics").await.text;
    assert!(metrics.contains("\nramekin_faults 1\n"), "{metrics}");
    assert!(!metrics.contains("\nramekin_panics_total 0\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_decodes_stays_booked_when_its_request_is_given_up() {
    let house = open(64, Keys::default());
    let vectors = json!({"vectors": {"size": 2, "distance": "Dot"}});
    assert_eq!(put(&house, "/collections/c", vectors).await.result(), json!(true));
    let floor = house.budget.reserved();
    for (method, path, body) in [
        ("POST", "points/scroll", json!({"filter": {"must": []}})),
        ("PUT", "points", json!({"points": []})),
        ("POST", "points/batch", json!({"operations": []})),
    ] {
        house.shut_pool(true);
        let text = format!("{body}{}", " ".repeat(3 << 20));
        let request = Request::builder().method(method).uri(format!("/collections/c/{path}"));
        let mut asked = Box::pin(house.door.router().oneshot(request.body(Body::from(text)).unwrap()));
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(asked.as_mut().poll(context))).await.is_pending()
        );
        let booked = house.budget.reserved();
        assert!(booked >= floor + (6 << 20) - (64 << 20) / 32, "{path}: {booked} of {floor}");
        drop(asked);
        assert_eq!(house.budget.reserved(), booked, "{path}");
        house.shut_pool(false);
        while house.budget.reserved() > floor {
            tokio::task::yield_now().await;
        }
    }
}
