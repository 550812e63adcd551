//! A load, and watchers, over etcd's JSON gateway, which both servers have: no client of gRPC is needed.

use super::Options;
use crate::http::{Connection, request};
use crate::pause::pause;
use crate::progress::Progress;
use crate::server::Server;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ramekin_base::{Clock, Error, Result, Rng, SystemClock};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// A server that has no memory for the moment says this.
const SHORT: &str = "too many requests";
const AGAIN: Duration = Duration::from_millis(20);
/// So often it may say it to one request.
const TRIES: usize = 3000;

/// On one stream; a request that asks for them all is short enough.
pub(super) const WATCHERS_A_STREAM: u64 = 1000;
/// What an answer says of each of them.
const CREATED: &[u8] = b"\"created\":true";

/// What is written to one server.
pub(super) struct Load<'a> {
    pub(super) options: &'a Options,
    pub(super) keys: u64,
    pub(super) versions: u64,
}

/// One key, the same whenever it is asked for; neighbours in time are none in the order of keys.
fn key(number: u64, bytes: usize) -> Vec<u8> {
    let drawn = Rng::new(number).next_u64() as u32;
    let mut key = format!("{drawn:08x}{number:08x}").into_bytes();
    key.resize(bytes, b'.');
    key
}

fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

impl Load<'_> {
    /// Writes all versions of all keys; seconds.
    pub(super) fn run(&self, port: u16, progress: &Progress) -> Result<f64> {
        let batches = self.keys.div_ceil(self.options.batch);
        let (next, total) = (AtomicU64::new(0), batches * self.versions);
        let clock = SystemClock::new();
        let start = clock.now();
        let work = || -> Result<()> {
            let mut connection = Connection::new(port, PATIENCE);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return Ok(());
                }
                asked(&mut connection, "/v3/kv/txn", &self.batch(number % batches, number))?;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.options.connections).map(|_| scope.spawn(work)).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                pause(AGAIN);
                let (done, seconds) = (next.load(Ordering::Relaxed).min(total), (clock.now() - start).as_secs_f64());
                progress.tick(|| said(done * self.options.batch, total * self.options.batch, seconds));
            }
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(Error::bug("a thread of the load has panicked")))
            };
            threads.into_iter().try_for_each(ended)
        })?;
        Ok((clock.now() - start).as_secs_f64())
    }

    /// A transaction of puts; the seed draws their values.
    fn batch(&self, batch: u64, seed: u64) -> String {
        let mut rng = Rng::new(seed);
        let (first, bytes) = (batch * self.options.batch, self.options.value_bytes);
        let put = |number: u64| {
            let value: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            let key = base64(&key(number, self.options.key_bytes));
            json!({"request_put": {"key": key, "value": base64(&value[..bytes])}})
        };
        let puts: Vec<Value> = (first..(first + self.options.batch).min(self.keys)).map(put).collect();
        json!({"success": puts}).to_string()
    }

    /// One put, so that it is known to take some.
    pub(super) fn put_one(&self, port: u16) -> Result<()> {
        let (key, value) = (base64(&key(0, self.options.key_bytes)), base64(&vec![b'.'; self.options.value_bytes]));
        let put = json!({"key": key, "value": value}).to_string();
        asked(&mut Connection::new(port, PATIENCE), "/v3/kv/put", &put).map(|_| ())
    }

    /// After a restart all keys are there.
    pub(super) fn verify(&self, port: u16) -> Result<()> {
        let all = json!({"key": base64(&[0]), "range_end": base64(&[0]), "count_only": true}).to_string();
        let found = asked(&mut Connection::new(port, PATIENCE), "/v3/kv/range", &all)?;
        // 64-bit numbers are texts in JSON.
        let count = found["count"].as_str().and_then(|count| count.parse::<u64>().ok());
        match count == Some(self.keys) {
            true => Ok(()),
            false => Err(Error::corrupt(format!("of {} keys {} are there after a restart", self.keys, found["count"]))),
        }
    }
}

/// Streams of watchers, which end with it.
pub(super) struct Watching(#[expect(dead_code, reason = "held open")] Vec<TcpStream>);

impl Watching {
    /// Once each watcher has been confirmed.
    pub(super) fn open(server: &Server, options: &Options) -> Result<Self> {
        let create = |number: u64| {
            // Of keys that nobody writes.
            let key = base64(&key(u64::from(u32::MAX) - number, options.key_bytes));
            json!({"create_request": {"key": key}}).to_string()
        };
        let mut streams = Vec::new();
        for first in (0..options.watchers).step_by(WATCHERS_A_STREAM as usize) {
            let last = (first + WATCHERS_A_STREAM).min(options.watchers);
            let body: String = (first..last).map(create).collect();
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&request("POST", "/v3/watch", &body))?;
            confirmed(&mut stream, last - first).map_err(|error| error.at("/v3/watch"))?;
            streams.push(stream);
        }
        Ok(Self(streams))
    }
}

/// Reads until so many watchers are there.
fn confirmed(stream: &mut impl Read, wanted: u64) -> Result<()> {
    let (mut seen, mut text, mut room) = (0, Vec::new(), vec![0; 64 << 10]);
    while seen < wanted {
        let length = stream.read(&mut room)?;
        if length == 0 {
            let said = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
            return Err(Error::io(format!("the stream ended after {seen} of {wanted} watchers: {said}")));
        }
        text.extend_from_slice(&room[..length]);
        let mut at = 0;
        while let Some(found) = text[at..].windows(CREATED.len()).position(|part| part == CREATED) {
            seen += 1;
            at += found + CREATED.len();
        }
        // What may be the beginning of one more stays.
        text.drain(..at.max(text.len().saturating_sub(CREATED.len() - 1)));
    }
    Ok(())
}

fn said(done: u64, total: u64, seconds: f64) -> String {
    let rate = done as f64 / seconds.max(1e-9);
    format!("{done} of {total} versions, {rate:.0}/s, {:.0} s left", (total - done) as f64 / rate.max(1e-9))
}

/// Asks until there is memory for it.
fn asked(connection: &mut Connection, path: &str, body: &str) -> Result<Value> {
    let request = request("POST", path, body);
    for _ in 0..TRIES {
        let answer = connection.send(&request).map_err(|error| error.at(path))?;
        if answer.status == 200 {
            return serde_json::from_slice(answer.body).map_err(|error| Error::malformed(error.to_string()).at(path));
        }
        let said = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]).into_owned();
        if !said.contains(SHORT) {
            return Err(Error::io(format!("{path}: {} {said}", answer.status)));
        }
        pause(AGAIN);
    }
    Err(Error::busy(format!("{path}: {SHORT}, for too long")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_differ_and_have_their_length() {
        let all: BTreeSet<_> = (0..10_000).map(|number| key(number, 20)).collect();
        assert!(all.len() == 10_000 && all.iter().all(|key| key.len() == 20));
        assert!(key(1, 20) > key(0, 20) || key(2, 20) < key(1, 20), "not all in order");
    }

    #[test]
    fn watchers_are_counted_wherever_an_answer_is_cut() {
        struct Bits<'a>(&'a [u8]);
        impl Read for Bits<'_> {
            fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
                let length = self.0.len().min(7);
                room[..length].copy_from_slice(&self.0[..length]);
                self.0 = &self.0[length..];
                Ok(length)
            }
        }
        let text = br#"{"result":{"created":true}}"#.repeat(20);
        confirmed(&mut Bits(&text), 20).unwrap();
        let error = confirmed(&mut Bits(&text), 21).unwrap_err();
        assert!(error.message().contains("after 20 of 21 watchers"), "{error}");
    }
}
