//! What a request costs this machine besides the search: a stand-in for the server and its clients, over loopback.
//!
//! ```text
//!   8 threads: a request of a vector's size ──► 8 threads: read it, answer with the size of ten hits ──► ...
//! ```
//!
//! Sockets, wake-ups and changes of threads are most of what a small request costs, and they cost twice as much on one
//! machine as on another, and on a busy one. So they are measured, and HTTP and JSON are counted as a multiple of them.

use crate::usage::Usage;
use ramekin_base::{Clock, SystemClock};
use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

const CONNECTIONS: usize = 8;
const SECONDS: f64 = 0.3;
/// One side waits for the other so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// A query of a hundred numbers, and an answer of ten ids and scores.
const REQUEST: usize = 1_200;
const ANSWER: usize = 500;
/// Where nothing can be measured.
const USUAL_S: f64 = 10e-6;

/// The processor's seconds of one exchange, both sides together.
pub(super) fn exchange_s() -> f64 {
    let Ok(pairs) = (0..CONNECTIONS).map(|_| pair()).collect::<Result<Vec<_>>>() else { return USUAL_S };
    let clock = SystemClock::new();
    let start = clock.now();
    let goes_on = || (clock.now() - start).as_secs_f64() < SECONDS;
    let (mut count, mut used) = (0, 0.0);
    std::thread::scope(|scope| {
        let both = |(client, server)| [scope.spawn(|| answer(server)), scope.spawn(|| ask(client, &goes_on))];
        let threads: Vec<_> = pairs.into_iter().flat_map(both).collect();
        for thread in threads {
            let (asked, cpu_s) = thread.join().unwrap_or_default();
            count += asked;
            used += cpu_s;
        }
    });
    if count > 0 { used / count as f64 } else { USUAL_S }
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    Ok((client, server))
}

/// Until the other side closes. Exchanges that count, and the thread's own seconds.
fn answer(mut stream: TcpStream) -> (u64, f64) {
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).and_then(|()| stream.write_all(&[1; ANSWER])).is_ok() {}
    (0, Usage::of_thread().cpu_seconds)
}

fn ask(mut stream: TcpStream, goes_on: &dyn Fn() -> bool) -> (u64, f64) {
    let (mut answer, mut count) = ([0; ANSWER], 0);
    while goes_on() && stream.write_all(&[1; REQUEST]).and_then(|()| stream.read_exact(&mut answer)).is_ok() {
        count += 1;
    }
    (count, Usage::of_thread().cpu_seconds)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_exchange_costs_something() {
        let one = super::exchange_s();
        assert!(one > 1e-7 && one < 1e-2, "{one}");
    }
}
