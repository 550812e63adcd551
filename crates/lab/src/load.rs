//! Load: each prepared request once, in one shuffled order that all connections draw from.
//!
//! ```text
//!   order [7 2 9 …] ──► next ──┬─ connection 1, its own thread ──► latency, status, ids against the truth
//!                              └─ connection n
//! ```
//!
//! No body is built and no JSON is parsed while the clock runs: an answer is scanned for its ids, and that is all.

use crate::http::Connection;
use ramekin_base::{Clock, Rng, SystemClock};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Failures in a row after which a connection gives up: the server is gone.
const FAILURES_MAX: u32 = 3;

/// What to send.
pub struct Load<'a> {
    pub port: u16,
    pub requests: &'a [Vec<u8>],
    /// Numbers of requests, each sent once.
    pub order: &'a [u32],
    pub connections: usize,
    /// It ends here even if not all were sent.
    pub seconds: f64,
    /// One request may take so long.
    pub timeout: Duration,
    /// The right ids of each request, so many a request; empty: answers are not looked at.
    pub truth: &'a [u32],
    pub k: usize,
}

/// What came back.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub seconds: f64,
    pub answered: u64,
    /// Statuses other than 200, and failures by what they said.
    pub failed: BTreeMap<String, u64>,
    /// Milliseconds of those that were answered, in order of size.
    pub laps_ms: Vec<f32>,
    /// Right ids among those found, and how many there could have been.
    pub found: u64,
    pub wanted: u64,
}

impl Seen {
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.answered as f64 / self.seconds } else { 0.0 }
    }

    pub fn recall(&self) -> f64 {
        if self.wanted == 0 { f64::NAN } else { self.found as f64 / self.wanted as f64 }
    }

    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

/// The numbers below `count` in an order from a seed (Fisher and Yates).
pub fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut rng = Rng::new(seed);
    for at in (1..count).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    order
}

impl Load<'_> {
    pub fn run(&self) -> Seen {
        let clock = SystemClock::new();
        let (next, gone) = (AtomicUsize::new(0), AtomicBool::new(false));
        let ready = Barrier::new(self.connections + 1);
        let mut seen = Seen::default();
        std::thread::scope(|scope| {
            let one = || scope.spawn(|| self.one(&clock, &next, &gone, &ready));
            let threads: Vec<_> = (0..self.connections).map(|_| one()).collect();
            ready.wait();
            let start = clock.now();
            for thread in threads {
                let part = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                seen.add(part);
            }
            seen.seconds = (clock.now() - start).as_secs_f64();
        });
        seen.laps_ms.sort_unstable_by(f32::total_cmp);
        seen
    }

    fn one(&self, clock: &SystemClock, next: &AtomicUsize, gone: &AtomicBool, ready: &Barrier) -> Seen {
        let mut seen = Seen::default();
        let mut connection = Connection::new(self.port, self.timeout);
        // Whoever cannot connect finds out again with its first request.
        let _ = connection.open();
        ready.wait();
        let end = clock.now() + Duration::from_secs_f64(self.seconds);
        let mut failures = 0;
        while !gone.load(Ordering::Relaxed) {
            let Some(number) = self.order.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let begun = clock.now();
            if begun >= end {
                break;
            }
            match connection.send(&self.requests[*number as usize]) {
                Ok(answer) if answer.status == 200 => {
                    seen.laps_ms.push((clock.now() - begun).as_secs_f32() * 1e3);
                    seen.answered += 1;
                    failures = 0;
                    if let Some(truth) = self.truth.chunks(self.k.max(1)).nth(*number as usize) {
                        seen.wanted += truth.len() as u64;
                        seen.found +=
                            ids(answer.body).filter(|id| truth.iter().any(|t| u64::from(*t) == *id)).count() as u64;
                    }
                }
                Ok(answer) => *seen.failed.entry(format!("status {}", answer.status)).or_default() += 1,
                Err(error) => {
                    *seen.failed.entry(error.message().to_owned()).or_default() += 1;
                    failures += 1;
                    if failures >= FAILURES_MAX {
                        gone.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
        seen
    }
}

impl Seen {
    fn add(&mut self, part: Seen) {
        self.answered += part.answered;
        self.found += part.found;
        self.wanted += part.wanted;
        self.laps_ms.extend(part.laps_ms);
        part.failed.into_iter().for_each(|(what, count)| *self.failed.entry(what).or_default() += count);
    }
}

/// Ids of the points of an answer, `{"result":{"points":[{"id":7, …}, …]}}`: numbers under `"id"` in the fourth nesting,
/// so that an `id` in a payload is not one.
pub fn ids(body: &[u8]) -> impl Iterator<Item = u64> + '_ {
    const DEPTH: u32 = 4;
    let (mut at, mut depth) = (0, 0u32);
    std::iter::from_fn(move || {
        while at < body.len() {
            match body[at] {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                b'"' => {
                    let start = at + 1;
                    at = end_of_text(body, start);
                    if depth == DEPTH
                        && body.get(start..at) == Some(b"id")
                        && let Some(id) = number_after(body, at + 1)
                    {
                        at += 1;
                        return Some(id);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        None
    })
}

/// Where a text ends that begins at `at`: the place of its closing quote.
fn end_of_text(body: &[u8], mut at: usize) -> usize {
    while at < body.len() && body[at] != b'"' {
        at += if body[at] == b'\\' { 2 } else { 1 };
    }
    at.min(body.len())
}

fn number_after(body: &[u8], at: usize) -> Option<u64> {
    let rest = body.get(at..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.clone().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    number.filter(|_| digits.count() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_points_are_found_and_no_others() {
        let body = br#"{"result":{"points":[{"id":7,"version":0,"payload":{"id":9,"t":"{\"id\":8"}},
            {"score":1.0,"id": 18446744073709551615},{"id":"0b0e8d4c-uuid","x":[{"id":3}]}]},"status":"ok","id":5}"#;
        assert_eq!(ids(body).collect::<Vec<_>>(), [7, u64::MAX]);
        for broken in [&b""[..], b"{{{{\"id\"", b"{{{{\"id\":", b"{{{{\"i\\", b"{{{{\"id\":99999999999999999999}"] {
            assert_eq!(ids(broken).count(), 0);
        }
    }

    #[test]
    fn an_order_holds_each_number_once() {
        let mut order = shuffled(1000, 3);
        assert_ne!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(order, shuffled(1000, 3));
        order.sort_unstable();
        assert!(order.iter().enumerate().all(|(at, number)| at as u32 == *number));
        assert!(shuffled(0, 1).is_empty());
    }

    #[test]
    fn a_server_that_is_not_there_ends_the_load() {
        let requests = vec![vec![b'x']; 1000];
        let order = shuffled(1000, 1);
        let timeout = Duration::from_millis(200);
        let load = Load {
            port: 1,
            requests: &requests,
            order: &order,
            connections: 2,
            seconds: 20.0,
            timeout,
            truth: &[],
            k: 10,
        };
        let seen = load.run();
        assert!(seen.answered == 0 && seen.failures() >= 3 && seen.failures() < 10, "{seen:?}");
        assert!(seen.rate() == 0.0 && seen.recall().is_nan());
    }
}
