//! Addresses that etcd's door listens on: `http://HOST:PORT`, `https://...`, `unix://HOST:PORT`, which is a socket in a file of that name.

use ramekin_base::{Error, Result};
use ramekin_door_etcd::Socket;
use rustix::fs::{FileType, stat, unlink};
use std::fmt;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixListener;

/// One address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    is_unix: bool,
    pub is_secured: bool,
    /// It is also named without TLS.
    pub is_mixed: bool,
    /// Host and port; or the file.
    place: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.is_unix, self.is_secured) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "unix",
            (true, true) => "unixs",
        };
        write!(f, "{scheme}://{}", self.place)
    }
}

impl Address {
    /// Of `HOST:PORT`.
    pub fn plain(place: &str, is_secured: bool) -> Self {
        Self { is_unix: false, is_secured, is_mixed: false, place: place.to_owned() }
    }

    /// Of an address with its scheme.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("'{text}' is no address to listen on; write http://HOST:PORT, https:// or unix://"))
        };
        let (scheme, place) = text.trim().split_once("://").ok_or_else(wrong)?;
        let place = place.trim_end_matches('/');
        let (is_unix, is_secured) = match scheme {
            "http" => (false, false),
            "https" => (false, true),
            "unix" => (true, false),
            "unixs" => (true, true),
            _ => return Err(wrong()),
        };
        let has_port =
            place.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if place.is_empty() || (!is_unix && !has_port) {
            return Err(wrong());
        }
        Ok(Self { is_unix, is_secured, is_mixed: false, place: place.to_owned() })
    }

    /// The kernel is to choose a port.
    pub fn has_no_port(&self) -> bool {
        !self.is_unix && self.place.ends_with(":0")
    }

    /// Several, separated by commas. A place that is named both with TLS and without is one.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        for one in text.split(',').filter(|one| !one.trim().is_empty()) {
            let one = Self::parse(one)?;
            match all.iter_mut().find(|it| it.place == one.place && it.is_unix == one.is_unix) {
                Some(it) => {
                    it.is_mixed |= it.is_secured != one.is_secured;
                    it.is_secured |= one.is_secured;
                }
                None => all.push(one),
            }
        }
        Ok(all)
    }

    /// Where it is, without the scheme.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Binds it: `localhost` in both families, where the machine has both.
    pub fn bind(&self) -> io::Result<Vec<Socket>> {
        if self.is_unix {
            return Ok(vec![Socket::Unix(bind_file(&self.place)?)]);
        }
        let Some(port) = self.place.strip_prefix("localhost:") else {
            return Ok(vec![Socket::Tcp(bind(&*self.place)?)]);
        };
        let first = bind(format!("127.0.0.1:{port}"))?;
        let port = first.local_addr()?.port();
        match bind(format!("[::1]:{port}")) {
            Ok(second) => Ok(vec![Socket::Tcp(first), Socket::Tcp(second)]),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            Err(_) => Ok(vec![Socket::Tcp(first)]),
        }
    }
}

fn bind(place: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(place)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A socket that an earlier process left is in the way; another file stays.
fn bind_file(path: &str) -> io::Result<UnixListener> {
    if stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket) {
        unlink(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["http://localhost:2379", "https://[::1]:1", "unix://localhost:5", "unixs://a:5"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        let two = Address::parse_all("http://127.0.0.1:1/,https://127.0.0.1:2").unwrap();
        assert!(!two[0].is_secured && two[1].is_secured);
        let one = Address::parse_all("http://localhost:1,https://localhost:1,http://localhost:2").unwrap();
        let found: Vec<_> = one.iter().map(|it| (it.place(), it.is_secured, it.is_mixed)).collect();
        assert_eq!(found, [("localhost:1", true, true), ("localhost:2", false, false)]);
        for text in ["localhost:2379", "http://localhost", "ftp://a:1", "http://:1", "http://a:70000", "unix://"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_socket_that_was_left_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:1");
        let address = Address::parse(&format!("unix://{}", path.display())).unwrap();
        drop(address.bind().unwrap());
        assert_eq!(address.bind().unwrap().len(), 1);
    }
}
