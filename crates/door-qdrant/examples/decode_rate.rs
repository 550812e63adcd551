//! How fast bodies are decoded: `cargo run --release -p ramekin-door-qdrant --example decode_rate`.

use ramekin_base::{Clock, Rng, SystemClock};
use ramekin_door_qdrant::decode;
use std::fmt::Write;

fn vector(rng: &mut Rng, dim: usize, wide: bool) -> String {
    let numbers: Vec<String> = (0..dim)
        .map(|_| {
            let number = rng.normal();
            // Python prints an f32 as the f64 that it becomes there; others print it as short as it can be.
            if wide { format!("{:?}", f64::from(number)) } else { format!("{number:?}") }
        })
        .collect();
    format!("[{}]", numbers.join(","))
}

fn main() {
    let mut rng = Rng::new(1);
    let clock = SystemClock::new();
    for (name, dim, wide, columnar, payload) in [
        ("list, 100-d, f64 digits", 100, true, false, false),
        ("list, 100-d, f64 digits, payload", 100, true, false, true),
        ("list, 100-d, f32 digits", 100, false, false, false),
        ("columns, 100-d, f64 digits", 100, true, true, false),
        ("columns, 768-d, f32 digits", 768, false, true, false),
    ] {
        let rows: Vec<String> =
            (0..(1 << 20) / (dim * if wide { 20 } else { 11 })).map(|_| vector(&mut rng, dim, wide)).collect();
        let mut body = String::new();
        if columnar {
            let ids: Vec<String> = (0..rows.len()).map(|id| id.to_string()).collect();
            let _ = write!(body, r#"{{"batch":{{"ids":[{}],"vectors":[{}]}}}}"#, ids.join(","), rows.join(","));
        } else {
            let text = if payload {
                format!(r#","payload":{{"text":"{}","n":[1,2,3]}}"#, "lorem ipsum ".repeat(16))
            } else {
                String::new()
            };
            let points: Vec<String> =
                rows.iter().enumerate().map(|(id, row)| format!(r#"{{"id":{id},"vector":{row}{text}}}"#)).collect();
            let _ = write!(body, r#"{{"points":[{}]}}"#, points.join(","));
        }
        let mut best = f64::MAX;
        for _ in 0..50 {
            let from = clock.now();
            let decoded = decode::upsert(body.as_bytes());
            best = best.min((clock.now() - from).as_secs_f64());
            assert!(decoded.is_ok());
        }
        println!("{name:36} {:8} bytes  {:6.0} MB/s", body.len(), body.len() as f64 / best / 1e6);
    }
}
