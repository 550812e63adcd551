//! The client's side of HTTP/1.1: one connection that is kept, requests prepared beforehand.
//!
//! ```text
//!   prepared bytes ──► stream ──► status line, length or chunks ──► body in a buffer that is used again
//! ```
//!
//! It reads what it needs of an answer and nothing more, so that the load costs little beside the server; and it is bounded, so that
//! what answers there cannot fill our memory. What it runs over is its owner's: a socket of this machine, or TLS.

use ramekin_base::{Error, Result};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

/// An answer that is larger than this is no answer to what the lab asks.
const ANSWER_MAX: usize = 64 << 20;
const READ_BYTES: usize = 64 << 10;

/// A request as it goes over the wire.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length:";
    format!("{method} {path} HTTP/1.1\r\n{head} {length}\r\n\r\n{body}").into_bytes()
}

/// What a connection runs over.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Makes the stream of a connection, at first and where the one before has ended.
pub type Opener = Box<dyn Fn() -> Result<Box<dyn Stream>> + Send>;

/// One connection.
pub struct Connection {
    opener: Opener,
    /// Bytes of an answer at most.
    most: usize,
    stream: Option<Box<dyn Stream>>,
    room: Vec<u8>,
    filled: usize,
}

/// Status and body; the body stays in the connection's buffer until the next request.
#[derive(Debug)]
pub struct Response<'a> {
    pub status: u16,
    pub body: &'a [u8],
    /// `Retry-After`, seconds.
    pub retry_s: Option<u64>,
}

struct Head {
    status: u16,
    /// `None`: chunked.
    length: Option<usize>,
    close: bool,
    retry_s: Option<u64>,
}

impl Connection {
    /// To a port of this machine.
    pub fn new(port: u16, timeout: Duration) -> Self {
        let opener = move || -> Result<Box<dyn Stream>> {
            let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), timeout)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(Box::new(stream))
        };
        Self::over(Box::new(opener), ANSWER_MAX)
    }

    /// Over a stream of any kind, for answers of so many bytes at most.
    pub fn over(opener: Opener, most: usize) -> Self {
        Self { opener, most, stream: None, room: vec![0; READ_BYTES.min(most)], filled: 0 }
    }

    /// Opens the connection unless it is open.
    pub fn open(&mut self) -> Result<()> {
        if self.stream.is_none() {
            self.stream = Some((self.opener)()?);
            self.filled = 0;
        }
        Ok(())
    }

    /// Sends a prepared request and reads its answer. After an error the connection is closed.
    pub fn send(&mut self, request: &[u8]) -> Result<Response<'_>> {
        self.open()?;
        match self.exchange(request) {
            Ok((head, body)) => {
                if head.close {
                    self.stream = None;
                }
                Ok(Response { status: head.status, body: &self.room[body], retry_s: head.retry_s })
            }
            Err(error) => {
                self.stream = None;
                Err(error)
            }
        }
    }

    /// The `result` of an answer, or an error that names what was asked.
    pub fn must(&mut self, method: &str, path: &str, body: &str) -> Result<Value> {
        let answer = self.send(&request(method, path, body)).map_err(|error| error.at(format!("{method} {path}")))?;
        let status = answer.status;
        let value: Value = serde_json::from_slice(answer.body).unwrap_or_default();
        if status < 300 {
            return Ok(value["result"].clone());
        }
        let said = value["status"]["error"].as_str().map(str::to_owned);
        let said =
            said.unwrap_or_else(|| String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]).into_owned());
        Err(Error::io(format!("{method} {path}: {status} {said}")))
    }

    fn exchange(&mut self, request: &[u8]) -> Result<(Head, Range<usize>)> {
        let Some(stream) = &mut self.stream else { return Err(Error::closed("the connection is not open")) };
        stream.write_all(request)?;
        stream.flush()?;
        self.filled = 0;
        let mut looked = 0;
        let end = loop {
            let found = self.room[looked..self.filled].windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(at) = found {
                break looked + at + 4;
            }
            looked = self.filled.saturating_sub(3);
            self.more()?;
        };
        let head = head(&self.room[..end], self.most)?;
        let body = match head.length {
            Some(length) => {
                while self.filled < end + length {
                    self.more()?;
                }
                end..end + length
            }
            None => self.chunks(end)?,
        };
        Ok((head, body))
    }

    fn more(&mut self) -> Result<()> {
        if self.filled == self.room.len() {
            if self.room.len() >= self.most {
                return Err(Error::too_large(format!("an answer of more than {} bytes", self.most)));
            }
            self.room.resize((self.room.len() * 2).min(self.most), 0);
        }
        let Some(stream) = &mut self.stream else { return Err(Error::closed("the connection is not open")) };
        match stream.read(&mut self.room[self.filled..]) {
            Ok(0) => Err(Error::closed("the server closed the connection")),
            Ok(more) => {
                self.filled += more;
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves chunks together behind the head.
    fn chunks(&mut self, start: usize) -> Result<Range<usize>> {
        let (mut at, mut body) = (start, start);
        loop {
            let line = loop {
                if let Some(len) = self.room[at..self.filled].windows(2).position(|two| two == b"\r\n") {
                    break len;
                }
                self.more()?;
            };
            let text = String::from_utf8_lossy(&self.room[at..at + line]);
            let digits = text.split(';').next().unwrap_or_default().trim().to_owned();
            let len = usize::from_str_radix(&digits, 16).ok().filter(|len| *len <= self.most);
            let len = len.ok_or_else(|| Error::malformed(format!("'{digits}' is no length of a chunk")))?;
            at += line + 2;
            while self.filled < at + len + 2 {
                self.more()?;
            }
            self.room.copy_within(at..at + len, body);
            body += len;
            at += len + 2;
            if len == 0 {
                return Ok(start..body);
            }
        }
    }
}

fn head(bytes: &[u8], most: usize) -> Result<Head> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| Error::malformed(format!("'{first}' is no answer in HTTP/1.1")))?;
    let mut head = Head { status, length: Some(0), close: false, retry_s: None };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let length = value.parse().ok().filter(|length| *length <= most);
                let wrong = || Error::malformed(format!("a content-length of '{value}'"));
                head.length = Some(length.ok_or_else(wrong)?);
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => head.length = None,
            "connection" => head.close = value.eq_ignore_ascii_case("close"),
            "retry-after" => head.retry_s = value.parse().ok(),
            _ => {}
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers each connection with the given bytes, a few at a time.
    fn server(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut room = [0; 1024];
            while stream.read(&mut room).is_ok_and(|read| read > 0) {
                answer.chunks(7).for_each(|part| stream.write_all(part).unwrap());
            }
        });
        port
    }

    #[test]
    fn answers_with_a_length_and_in_chunks_are_read_one_after_the_other() {
        let cases: [&[u8]; 2] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"result\": \"a\"}",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"res\r\na\r\nult\": \"a\"}\r\n0\r\n\r\n",
        ];
        for answer in cases {
            let mut connection = Connection::new(server(answer), Duration::from_secs(5));
            for _ in 0..3 {
                assert_eq!(connection.must("GET", "/", "").unwrap(), "a");
            }
        }
    }

    #[test]
    fn an_answer_has_a_bound() {
        let port =
            server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n0123456789abcdef0123456789abcdef");
        let opener = move || -> Result<Box<dyn Stream>> { Ok(Box::new(TcpStream::connect(("127.0.0.1", port))?)) };
        let mut connection = Connection::over(Box::new(opener), 50);
        assert!(connection.must("GET", "/", "").is_err());
    }

    #[test]
    fn what_is_refused_or_is_no_http_is_an_error() {
        let cases: [(&[u8], &str); 4] = [
            (
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\n\r\n{\"status\":{\"error\":\"not here\"}}",
                "404 not here",
            ),
            (b"SSH-2.0-nothing\r\n\r\n", "no answer in HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "content-length"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk"),
        ];
        for (answer, wanted) in cases {
            let error = Connection::new(server(answer), Duration::from_secs(5)).must("GET", "/x", "").unwrap_err();
            assert!(error.message().contains(wanted), "{error}");
        }
    }
}
