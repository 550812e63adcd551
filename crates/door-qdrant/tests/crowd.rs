//! A crowd of connections that do nothing keeps nobody out: over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of sockets waits for them, with an end that nothing depends on"
)]

mod host;

use host::{House, open};
use ramekin_door_qdrant::{Keys, places, serve};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::sync::oneshot;

/// Nothing that is asserted here takes so long, and less than what an idle connection is kept for.
const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 24;
/// What a connection is booked at between requests.
const SEAT: u64 = 18 << 10;
const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";

struct Served {
    house: House,
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
    _runtime: tokio::runtime::Runtime,
}

fn served() -> Served {
    let house = open(MIB, Keys::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let door = house.door.clone();
    runtime.spawn(serve(listener, None, door, async move {
        _ = stopped.await;
        tokio::time::Instant::now()
    }));
    Served { house, address, _stop: stop, _runtime: runtime }
}

impl Served {
    fn connect(&self, sends: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client.write_all(sends.as_bytes()).unwrap();
        client
    }

    /// Bytes that requests and connections hold now.
    fn held(&self) -> u64 {
        let ledger = ramekin_memory::Ledger::take(&self.house.budget);
        let of_door =
            |name: &str| ["connections", "questions", "requests", "uploads"].iter().any(|one| name.ends_with(one));
        ledger.accounts.iter().filter(|line| of_door(&line.name)).map(|line| line.bytes).sum()
    }
}

fn status(client: &mut TcpStream) -> String {
    let mut start = [0; 12];
    client.read_exact(&mut start).unwrap();
    String::from_utf8(start.to_vec()).unwrap()
}

fn is_closed(client: &mut TcpStream) -> bool {
    match client.read(&mut [0; 1]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn connections_that_stall_in_a_header_make_way_for_new_ones() {
    let served = served();
    let most = places(MIB << 20, None);
    assert!(most >= 256, "{most} places: the machine allows few files");
    let mut stalled: Vec<_> = (0..most + 20).map(|_| served.connect("GET /healthz HTTP/1.1\r\nHo")).collect();
    for _ in 0..3 {
        assert_eq!(status(&mut served.connect(HEALTHZ)), "HTTP/1.1 200");
    }
    // The first to come have been idle longest.
    assert!(is_closed(&mut stalled[0]));
}

#[test]
fn there_are_as_many_places_as_were_asked_for() {
    assert_eq!((places(MIB << 20, Some(20)), places(MIB << 20, Some(1)), places(MIB << 20, None)), (20, 16, 384));
}

#[test]
fn a_header_has_a_deadline_and_a_silent_connection_more_time() {
    let served = served();
    let (mut stalled, mut silent) = (served.connect("GET /healthz HTTP/1.1\r\nHo"), served.connect(""));
    let mut kept = served.connect(HEALTHZ);
    assert_eq!(status(&mut kept), "HTTP/1.1 200");
    assert!(is_closed(&mut stalled));
    for client in [&mut silent, &mut kept] {
        client.write_all(HEALTHZ.as_bytes()).unwrap();
    }
    assert_eq!(status(&mut silent), "HTTP/1.1 200");
}

#[test]
fn an_idle_connection_holds_little_and_one_whose_answer_is_not_read_what_it_had() {
    let served = served();
    let mut idle: Vec<_> = (0..100).map(|_| served.connect(HEALTHZ)).collect();
    idle.iter_mut().for_each(|client| assert_eq!(status(client), "HTTP/1.1 200"));
    let end = std::time::Instant::now() + LONG;
    while served.held() > 100 * SEAT {
        assert!(std::time::Instant::now() < end, "{} bytes are held", served.held());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(served.held(), 100 * SEAT);
    // A header that fills more than a connection's seat is booked beside it.
    let long = format!("GET /healthz HTTP/1.1\r\nhost: a\r\nx: {}\r\n", "a".repeat(12 << 10));
    let _wide = served.connect(&long);
    while served.held() != 101 * SEAT + (8 << 10) {
        assert!(std::time::Instant::now() < end, "{} bytes are held", served.held());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn uploads_that_wait_keep_no_small_request_out() {
    let served = served();
    let upload = format!("PUT /collections/c/points HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", 1 << 20);
    let first = upload + &"[".repeat(20 << 10);
    // Each has its first bytes there and then says nothing more.
    let _waiting: Vec<_> = (0..120).map(|_| served.connect(&first)).collect();
    let body = r#"{"query": [1], "limit": 1}"#;
    let query = format!(
        "POST /collections/none/points/query HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (request, expected) in [(HEALTHZ, "HTTP/1.1 200"), (query.as_str(), "HTTP/1.1 404")] {
        assert_eq!(status(&mut served.connect(request)), expected);
    }
}

/// Clients that send just fast enough for a server on which nobody waits, on many connections, until it is dropped.
struct Drips {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drips {
    /// A connection for each header; who is cut comes again.
    fn start(address: SocketAddr, headers: Vec<String>) -> Self {
        let stop = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let is_over = stop.clone();
        let drip = move || {
            let connect = |header: &str| {
                let mut client = TcpStream::connect(address).ok()?;
                client.set_nonblocking(true).ok()?;
                client.write_all(header.as_bytes()).ok()?;
                Some(client)
            };
            let mut clients: Vec<_> = headers.iter().map(|header| connect(header)).collect();
            // 17 KiB a second; in chunks of as many bytes, where the length is not known.
            let (plain, chunk) = (vec![b' '; 1741], [b"6cd\r\n".as_slice(), &[b' '; 1741], b"\r\n"].concat());
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                for (client, header) in clients.iter_mut().zip(&headers) {
                    let piece = if header.contains("chunked") { &chunk } else { &plain };
                    let sent = client.as_mut().map(|client| client.write(piece).map_err(|error| error.kind()));
                    if !matches!(sent, Some(Ok(_) | Err(ErrorKind::WouldBlock))) {
                        *client = connect(header);
                    }
                }
            }
        };
        Self { stop, thread: Some(std::thread::spawn(drip)) }
    }
}

impl Drop for Drips {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn many_that_send_slowly_keep_no_small_body_out() {
    let served = served();
    let put = |length: &str| format!("PUT /collections/c/points HTTP/1.1\r\nhost: a\r\n{length}\r\n\r\n");
    let kinds =
        ["content-length: 4000000", "content-length: 60000", "content-length: 16000", "transfer-encoding: chunked"];
    for kind in kinds {
        let _drips = Drips::start(served.address, vec![put(kind); 300]);
        // All of them are there, and those that came first are under way.
        std::thread::sleep(Duration::from_secs(1));
        for bytes in [1_000, 60_000] {
            let body = format!("{{\"points\": []{}}}", " ".repeat(bytes));
            let from = std::time::Instant::now();
            let mut client = served.connect(&(put(&format!("content-length: {}", body.len())) + &body));
            assert_eq!(status(&mut client), "HTTP/1.1 404", "{bytes} bytes beside {kind}");
            assert!(from.elapsed() < Duration::from_secs(8), "{bytes} bytes beside {kind} took {:?}", from.elapsed());
        }
    }
}
