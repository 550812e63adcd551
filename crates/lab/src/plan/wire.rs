//! What a request costs this machine besides the search: a stand-in for the server and its clients, over loopback.
//!
//! ```text
//!   8 threads: a request of a vector's size ──► 8 threads: read it, answer with the size of ten hits ──► ...
//! ```
//!
//! Sockets, wake-ups and changes of threads are most of what a small request costs, and they cost twice as much on one
//! machine as on another, and on a busy one. So they are measured, and HTTP and JSON are counted as a multiple of them.

use crate::usage::Usage;
use ramekin_base::{Clock, Error, Result, SystemClock};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

const CONNECTIONS: usize = 8;
const SECONDS: f64 = 0.3;
/// A query of a hundred numbers, and an answer of ten ids and scores.
const REQUEST: usize = 1_200;
const ANSWER: usize = 500;

/// The processor's seconds of one exchange, both sides together.
pub(super) fn exchange_s() -> Result<f64> {
    let failed = |error: std::io::Error| Error::io(format!("the loopback interface: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut pairs = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(address).map_err(failed)?;
        let (server, _) = listener.accept().map_err(failed)?;
        client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).map_err(failed)?;
        pairs.push((client, server));
    }
    let (clock, count) = (SystemClock::new(), AtomicU64::new(0));
    let (start, before) = (clock.now(), Usage::now());
    let goes_on = || (clock.now() - start).as_secs_f64() < SECONDS;
    std::thread::scope(|scope| {
        for (client, server) in pairs {
            scope.spawn(|| answer(server));
            scope.spawn(|| ask(client, &count, &goes_on));
        }
    });
    let used = Usage::now().cpu_seconds - before.cpu_seconds;
    match count.into_inner() {
        0 => Err(Error::io("the loopback interface answers nothing")),
        count => Ok(used / count as f64),
    }
}

/// Until the other side closes.
fn answer(mut stream: TcpStream) {
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).and_then(|()| stream.write_all(&[1; ANSWER])).is_ok() {}
}

fn ask(mut stream: TcpStream, count: &AtomicU64, goes_on: &dyn Fn() -> bool) {
    let mut answer = [0; ANSWER];
    while goes_on() && stream.write_all(&[1; REQUEST]).and_then(|()| stream.read_exact(&mut answer)).is_ok() {
        count.fetch_add(1, Ordering::Relaxed);
    }
}
