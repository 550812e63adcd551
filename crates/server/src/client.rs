//! One GET to a running server: enough HTTP for `ramekin memory`, and no more.
//!
//! It asks in HTTP/1.0, so that the answer is plain bytes up to the end of the connection. What comes back
//! is bounded: an address that is not a ramekin must not fill our memory.

use crate::tls;
use ramekin_base::{Error, Result};
use rustls::pki_types::ServerName;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// Largest answer, bytes.
const ANSWER_MAX: u64 = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

/// An address cut into its parts.
#[derive(Debug, PartialEq, Eq)]
struct Url {
    tls: bool,
    host: String,
    port: u16,
    path: String,
}

/// Fetches `path` below `url`; `trusted` is needed for https.
pub fn get(url: &str, path: &str, api_key: Option<&str>, trusted: Option<&Path>) -> Result<Vec<u8>> {
    let url = Url::parse(url)?;
    let place = format!("{}:{}", url.host, url.port);
    let stream =
        connect(&url).map_err(|error| Error::io(format!("no answer: {error}; is the server up?")).at(&place))?;
    let key = api_key.map(|key| format!("api-key: {key}\r\n")).unwrap_or_default();
    let request = format!("GET {}{path} HTTP/1.0\r\nHost: {}\r\n{key}\r\n", url.path, url.host);
    let answer = match (url.tls, trusted) {
        (false, _) => exchange(stream, &request),
        (true, Some(trusted)) => {
            let name = ServerName::try_from(url.host.clone())
                .map_err(|_| Error::invalid(format!("'{}' is not a name that a certificate can have", url.host)))?;
            let session = rustls::ClientConnection::new(tls::client(trusted)?, name)
                .map_err(|error| Error::io(error.to_string()).at(&place))?;
            exchange(rustls::StreamOwned::new(session, stream), &request)
        }
        (true, None) => return Err(Error::invalid("for https name the certificates to trust with --ca FILE")),
    };
    let answer = answer.map_err(|error| Error::io(format!("the connection failed: {error}")).at(&place))?;
    body(&answer).map(<[u8]>::to_vec).map_err(|error| error.at(&place))
}

fn connect(url: &Url) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(mut stream: impl Read + Write, request: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The body of an answer with status 200; anything else is an error with the server's own words.
fn body(answer: &[u8]) -> Result<&[u8]> {
    let wrong = || Error::malformed("what answers there does not speak HTTP");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(wrong)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| wrong())?;
    let mut words = head.split_whitespace();
    let (version, status) = (words.next().ok_or_else(wrong)?, words.next().ok_or_else(wrong)?);
    let body = &answer[end + 4..];
    match status {
        _ if !version.starts_with("HTTP/1.") => Err(wrong()),
        "200" => Ok(body),
        "401" | "403" => Err(Error::invalid(format!("status {status}: give the key with --api-key"))),
        "404" => Err(Error::not_found("status 404: this server keeps no ledger; is it a ramekin?")),
        _ => Err(Error::io(format!("status {status}: {}", String::from_utf8_lossy(&body[..body.len().min(500)])))),
    }
}

impl Url {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("'{text}' is not a URL; write http://127.0.0.1:6333"));
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong()),
            None => (false, text),
        };
        let (place, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (place, 6333),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let odd = |text: &str| text.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'@');
        if host.is_empty() || odd(host) || odd(path) {
            return Err(wrong());
        }
        Ok(Self { tls, host: host.to_owned(), port, path: path.trim_end_matches('/').to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_as_people_write_them() {
        let url = |tls, host: &str, port, path: &str| Url { tls, host: host.to_owned(), port, path: path.to_owned() };
        for (text, parts) in [
            ("http://localhost:6333", url(false, "localhost", 6333, "")),
            ("127.0.0.1:7000/", url(false, "127.0.0.1", 7000, "")),
            ("https://[::1]:7000/behind/", url(true, "::1", 7000, "/behind")),
            ("[::1]", url(false, "::1", 6333, "")),
            ("example.org", url(false, "example.org", 6333, "")),
        ] {
            assert_eq!(Url::parse(text).unwrap(), parts, "{text}");
        }
        for text in ["", "ftp://x", "http://", "http://x:port", "http://a b", "http://x/\r\nHost: y"] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\na: b\r\n\r\n{}").unwrap(), b"{}");
        for wrong in [
            &b""[..],
            b"\r\n\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.0 500 x\r\n\r\noops",
            b"HTTP/1.1\r\n\r\n",
            b"\xff\xff\r\n\r\n",
        ] {
            assert!(body(wrong).is_err());
        }
        assert!(body(b"HTTP/1.1 401 x\r\n\r\n").unwrap_err().message().contains("--api-key"));
    }
}
