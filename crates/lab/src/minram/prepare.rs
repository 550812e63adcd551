//! The collection: uploaded once, in big batches, without a limit, until it is green.
//!
//! ```text
//!   OUT/uploaded.json   what OUT/data holds; written when it is complete, so that a later run can take it as it is
//!   OUT/data            the server's
//! ```

use super::Options;
use crate::dataset::Dataset;
use crate::files;
use crate::http::{Connection, request};
use crate::pause::{pause, until};
use crate::progress::Progress;
use crate::server::{READY, Server, Start};
use ramekin_base::{Error, Result, SystemClock};
use ramekin_vecmath::Metric;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

pub(super) const COLLECTION: &str = "lab";
/// A batch may take so long: peers index while they take it.
const BATCH_MAX: Duration = Duration::from_secs(600);
/// So long the index may take.
const GREEN_MAX: Duration = Duration::from_secs(24 * 3600);
/// Looks in a row at which a new collection must be green: some servers are green for a moment before they begin to index.
const STEADY: u32 = 5;
/// Bytes of a float as text, about.
const FLOAT_TEXT: usize = 13;

pub(super) fn prepare(options: &Options, out: &Path, set: &Dataset, progress: &Progress) -> Result<()> {
    let wanted = signature(options, set);
    let (data, note) = (out.join("data"), out.join("uploaded.json"));
    if let Ok(text) = files::read_text(&note)
        && options.reuse
    {
        let held: Value = serde_json::from_str(&text).unwrap_or_default();
        if held != wanted {
            let text = format!(
                "holds another upload ({held}); this run asks for {wanted}. Name another --out, or leave --reuse out"
            );
            return Err(Error::exists(text).at(data.display()));
        }
        progress.say(format!("{} is taken as it is", data.display()));
        return Ok(());
    }
    if !note.exists() && !files::is_empty(&data)? {
        let text = "is not empty and was not made here (no uploaded.json beside it); name another --out";
        return Err(Error::exists(text).at(data.display()));
    }
    files::remove_all(&note)?;
    files::remove_all(&data)?;
    files::make_folder(&data)?;
    let log = out.join("upload.log");
    let memory = options.upload_memory;
    let start = Start {
        recipe: &options.recipe,
        data: &data,
        memory,
        limit: None,
        log: &log,
        ready: READY,
        patience: options.patience,
    };
    let server = Server::start(&start).map_err(|error| error.at(&options.recipe.name))?;
    let uploaded = upload(options, set, &server, progress);
    uploaded.map_err(|error| error.at(format!("upload to {}", options.recipe.name)))?;
    server.stop()?;
    files::write_text(&note, &format!("{wanted:#}\n"))
}

/// What an upload is made of: the same text, the same data.
fn signature(options: &Options, set: &Dataset) -> Value {
    json!({
        "server": options.recipe.template(), "vectors": set.name, "rows": set.rows, "dim": set.dim,
        "metric": distance(set.metric), "payload_bytes": options.payload_bytes, "create": options.create,
    })
}

pub(super) fn distance(metric: Metric) -> &'static str {
    match metric {
        Metric::Cosine => "Cosine",
        Metric::Dot => "Dot",
        Metric::Euclid => "Euclid",
        Metric::Manhattan => "Manhattan",
    }
}

fn upload(options: &Options, set: &Dataset, server: &Server, progress: &Progress) -> Result<()> {
    let mut connection = Connection::new(server.port, BATCH_MAX);
    let mut body = json!({"vectors": {"size": set.dim, "distance": distance(set.metric)}});
    for (name, value) in &options.create {
        body[name] = value.clone();
    }
    connection.must("PUT", &format!("/collections/{COLLECTION}?timeout=60"), &body.to_string())?;
    let batch = (options.batch_bytes / (set.dim * FLOAT_TEXT + options.payload_bytes + 16)).max(1);
    for from in (0..set.rows).step_by(batch) {
        let to = (from + batch).min(set.rows);
        let body = points(from, &set.floats(from, to)?, set.dim, options.payload_bytes);
        send(&mut connection, &request("PUT", &format!("/collections/{COLLECTION}/points?wait=false"), &body))?;
        progress.tick(|| format!("uploaded {to} of {} rows", set.rows));
    }
    progress.say(format!("uploaded {} rows; waiting until they are indexed", set.rows));
    wait_green(&mut connection, Some(set.rows), STEADY, GREEN_MAX, progress)?;
    progress.say("green");
    Ok(())
}

/// A batch in columns. The shortest text of a float gives back all of its bits.
fn points(first: usize, vectors: &[f32], dim: usize, payload_bytes: usize) -> String {
    let rows = vectors.len() / dim;
    let mut out = String::with_capacity(vectors.len() * FLOAT_TEXT + rows * (payload_bytes + 16));
    // Writing to a string cannot fail.
    let _ = write!(out, "{{\"batch\":{{\"ids\":[");
    (0..rows).for_each(|row| _ = write!(out, "{}{}", if row == 0 { "" } else { "," }, first + row));
    out.push_str("],\"vectors\":[");
    for (row, vector) in vectors.chunks_exact(dim).enumerate() {
        out.push_str(if row == 0 { "[" } else { ",[" });
        numbers(vector, &mut out);
        out.push(']');
    }
    out.push(']');
    if payload_bytes > 0 {
        let text = "payload ".repeat(payload_bytes.div_ceil(8));
        let payload = json!({"text": &text[..payload_bytes]}).to_string();
        let all = vec![payload; rows].join(",");
        let _ = write!(out, ",\"payloads\":[{all}]");
    }
    out + "}}"
}

/// Numbers with commas between.
pub(super) fn numbers(vector: &[f32], out: &mut String) {
    for (at, value) in vector.iter().enumerate() {
        let _ = write!(out, "{}{value}", if at == 0 { "" } else { "," });
    }
}

/// Waits out refusals: a server in a budget says when to come again.
fn send(connection: &mut Connection, request: &[u8]) -> Result<()> {
    for _ in 0..1000 {
        let answer = connection.send(request)?;
        match answer.status {
            200 | 202 => return Ok(()),
            429 | 503 => {
                let wait = answer.retry_s.unwrap_or(1).clamp(1, 30);
                pause(Duration::from_secs(wait));
            }
            status => {
                let said = String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]).into_owned();
                return Err(Error::io(format!("a batch of points was answered with {status}: {said}")));
            }
        }
    }
    Err(Error::busy("a batch of points was refused a thousand times"))
}

/// Until the collection is green at `steady` looks in a row, and holds so many points if that is asked.
pub(super) fn wait_green(
    connection: &mut Connection,
    points: Option<usize>,
    steady: u32,
    limit: Duration,
    progress: &Progress,
) -> Result<()> {
    let (mut last, mut seen) = (String::new(), 0);
    let green = until(&SystemClock::new(), limit, Duration::from_millis(200), || {
        let info = connection.must("GET", &format!("/collections/{COLLECTION}"), "")?;
        let status = info["status"].as_str().unwrap_or("unknown").to_owned();
        let held = info["points_count"].as_u64().unwrap_or(0);
        last = format!("{status}, {held} points, {} indexed", info["indexed_vectors_count"].as_u64().unwrap_or(0));
        progress.tick(|| last.clone());
        if status == "red" {
            return Err(Error::corrupt(format!("the collection is red: {}", info["optimizer_status"])));
        }
        let is_well = status == "green" && points.is_none_or(|points| held >= points as u64);
        seen = if is_well { seen + 1 } else { 0 };
        Ok((seen >= steady).then_some(()))
    })?;
    green.ok_or_else(|| Error::busy(format!("not green after {:.0} s: {last}", limit.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_holds_every_bit() {
        let vectors = [0.1f32, -1.0e-30, f32::MAX, 3.0, 1.0 / 3.0, -0.0];
        let body: Value = serde_json::from_str(&points(7, &vectors, 3, 9)).unwrap();
        let batch = &body["batch"];
        assert_eq!(batch["ids"], json!([7, 8]));
        assert_eq!(batch["payloads"], json!([{"text": "payload p"}, {"text": "payload p"}]));
        let back: Vec<f32> = batch["vectors"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|row| row.as_array().unwrap().iter())
            .map(|value| value.as_f64().unwrap() as f32)
            .collect();
        assert_eq!(back, vectors);
        assert!(serde_json::from_str::<Value>(&points(0, &vectors, 6, 0)).unwrap()["batch"]["payloads"].is_null());
    }
}
