//! Work whose client is gone ends: over a real socket, however the client went.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of sockets waits for them, with an end that nothing depends on"
)]

mod host;

use host::{House, open_with};
use ramekin_base::{Kind, cancel};
use ramekin_door_qdrant::{Keys, serve};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Nothing that is asserted here takes so long; without an end a failed test would hang.
const LONG: Duration = Duration::from_secs(60);

struct Served {
    _house: House,
    address: SocketAddr,
    /// Told when the planner begins.
    begun: Receiver<()>,
    /// Told why it ended.
    ended: Receiver<Option<Kind>>,
    stop: Option<oneshot::Sender<()>>,
    runtime: tokio::runtime::Runtime,
}

/// A door whose plans work until they are given up.
fn served() -> Served {
    let (begin, begun) = sync_channel(8);
    let (end, ended) = sync_channel(8);
    let plan = move |_: &_| {
        begin.send(()).unwrap();
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            if let Err(error) = cancel::check() {
                end.send(Some(error.kind())).unwrap();
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        end.send(None).unwrap();
        Ok(serde_json::json!({}))
    };
    let house = open_with(64, Keys::default(), Arc::new(plan));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let door = house.door.clone();
    runtime.spawn(serve(listener, None, door, async move {
        _ = stopped.await;
        tokio::time::Instant::now() + Duration::from_secs(10)
    }));
    Served { _house: house, address, begun, ended, stop: Some(stop), runtime }
}

impl Served {
    /// Asks for a plan that goes on; returns once it is worked on.
    fn ask(&self, query: &str, more: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address).unwrap();
        let body = r#"{"collections":[]}"#;
        let length = body.len();
        let head = format!("POST /memory/plan{query} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        client.write_all(format!("{head}{body}{more}").as_bytes()).unwrap();
        self.begun.recv_timeout(LONG).unwrap();
        client
    }

    fn has_ended(&self) {
        assert_eq!(self.ended.recv_timeout(LONG).unwrap(), Some(Kind::Cancelled));
    }
}

#[test]
fn work_ends_when_its_client_is_gone() {
    let served = served();
    let next = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    // The last is more than is read at once, and no more than the kernel holds for a connection.
    for more in ["", next, "GET", &next.repeat(300)] {
        drop(served.ask("", more));
        served.has_ended();
        // With bytes that it did not read, a client that closes resets the connection.
        let client = served.ask("", more);
        let reset = rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO));
        reset.unwrap();
        drop(client);
        served.has_ended();
        let client = served.ask("", more);
        client.shutdown(Shutdown::Write).unwrap();
        served.has_ended();
    }
}

#[test]
fn work_ends_when_its_time_is_over() {
    let served = served();
    let mut client = served.ask("?timeout=1", "");
    served.has_ended();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 429");
}

#[test]
fn work_ends_when_the_runtime_of_the_door_does() {
    let mut served = served();
    let _client = served.ask("", "");
    drop(served.stop.take());
    let Served { runtime, ended, .. } = served;
    runtime.shutdown_timeout(Duration::from_secs(1));
    assert_eq!(ended.recv_timeout(LONG).unwrap(), Some(Kind::Cancelled));
}
