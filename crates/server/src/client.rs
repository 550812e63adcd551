//! One GET to a running server, for `ramekin memory`: an address as people write it, and what a refusal means to them.
//!
//! ```text
//!   URL, key, certificates ─► TCP, or TLS over it ─► the lab's connection (HTTP/1.1, bounded) ─► body, or what to do
//! ```

use crate::tls;
use ramekin_base::{Error, Kind, Result};
use ramekin_lab::http::{Connection, Opener, Stream};
use rustls::pki_types::ServerName;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// Largest answer, bytes: an address that is not a ramekin must not fill our memory.
const ANSWER_MAX: usize = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

/// An address cut into its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    let key = api_key.map(|key| format!("api-key: {key}\r\n")).unwrap_or_default();
    let request = format!("GET {}{path} HTTP/1.1\r\nHost: {}\r\n{key}Connection: close\r\n\r\n", url.path, url.host);
    let mut connection = Connection::over(opener(&url, trusted)?, ANSWER_MAX);
    connection.open().map_err(|error| error.at(&place))?;
    let answer = connection.send(request.as_bytes()).map_err(|error| match error.kind() {
        Kind::Malformed | Kind::TooLarge => Error::malformed(format!("what answers there is no ramekin: {error}")),
        _ => Error::io(format!("the connection failed: {error}")),
    });
    let answer = answer.map_err(|error| error.at(&place))?;
    body(answer.status, answer.body).map(<[u8]>::to_vec).map_err(|error| error.at(&place))
}

/// How the address is reached.
fn opener(url: &Url, trusted: Option<&Path>) -> Result<Opener> {
    let url = url.clone();
    if !url.tls {
        return Ok(Box::new(move || Ok(Box::new(connect(&url)?) as Box<dyn Stream>)));
    }
    let trusted = trusted.ok_or_else(|| Error::invalid("for https name the certificates to trust with --ca FILE"))?;
    let config = tls::client(trusted)?;
    let name = ServerName::try_from(url.host.clone())
        .map_err(|_| Error::invalid(format!("'{}' is not a name that a certificate can have", url.host)))?;
    Ok(Box::new(move || {
        let session = rustls::ClientConnection::new(config.clone(), name.clone());
        let session = session.map_err(|error| Error::io(error.to_string()))?;
        Ok(Box::new(rustls::StreamOwned::new(session, connect(&url)?)) as Box<dyn Stream>)
    }))
}

fn connect(url: &Url) -> Result<TcpStream> {
    reach(url).map_err(|error| Error::io(format!("no answer: {error}; is the server up?")))
}

fn reach(url: &Url) -> std::io::Result<TcpStream> {
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

/// The body of an answer with status 200; anything else is an error with the server's own words.
fn body(status: u16, body: &[u8]) -> Result<&[u8]> {
    match status {
        200 => Ok(body),
        401 | 403 => Err(Error::invalid(format!("status {status}: give the key with --api-key"))),
        404 => Err(Error::not_found("status 404: this server keeps no ledger; is it a ramekin?")),
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
        assert_eq!(body(200, b"{}").unwrap(), b"{}");
        assert!(body(401, b"").unwrap_err().message().contains("--api-key"));
        assert!(body(404, b"").unwrap_err().message().contains("is it a ramekin"));
        assert!(body(500, b"oops").unwrap_err().message().contains("oops"));
    }

    #[test]
    fn who_speaks_no_http_is_named() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream.write_all(b"SSH-2.0\r\n\r\n").unwrap();
        });
        let error = get(&format!("127.0.0.1:{port}"), "/memory", None, None).unwrap_err();
        assert!(error.message().contains("no ramekin") && error.message().contains(&port.to_string()), "{error}");
    }
}
