//! What is listened on, and how a connection comes to speak HTTP.
//!
//! ```text
//!   tcp, unix ─► accepted ─► (TLS: h2 and http/1.1; the name in the client's certificate) ─► Stream, CommonName
//! ```

use crate::auth::CommonName;
use ramekin_base::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// What TLS holds of a connection: its keys, and a record each way.
pub(crate) const TLS_BYTES: u64 = 48 << 10;
/// A client that says nothing for so long is no client.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A socket that is bound.
pub enum Socket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// Which requests a listener takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    All,
    Grpc,
    /// All but gRPC.
    Http,
    /// `/metrics`, `/health`, `/livez` and `/readyz`.
    Metrics,
}

/// A socket with what it serves.
pub struct Listener {
    pub socket: Socket,
    pub tls: Option<Arc<ServerConfig>>,
    /// Clients may also come without TLS: the first byte of a connection says.
    pub is_mixed: bool,
    /// The name in a client's certificate is that of a user.
    pub names_users: bool,
    pub serves: Serves,
}

/// The bytes of a connection.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}
pub(crate) type Stream = Box<dyn Bytes>;

/// The listener while it is served.
pub(crate) enum Accepts {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Accepts {
    pub(crate) fn new(socket: Socket) -> Result<Self> {
        let failed = |error: std::io::Error| Error::from(error).at("a socket that was bound");
        Ok(match socket {
            Socket::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket).map_err(failed)?),
            Socket::Unix(socket) => Self::Unix(UnixListener::from_std(socket).map_err(failed)?),
        })
    }

    pub(crate) async fn accept(&self) -> std::io::Result<Accepted> {
        Ok(match self {
            Self::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                _ = stream.set_nodelay(true);
                Accepted::Tcp(stream)
            }
            Self::Unix(socket) => Accepted::Unix(socket.accept().await?.0),
        })
    }
}

/// A connection of which nothing was read.
pub(crate) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The first byte of a client that speaks TLS.
const TLS_HANDSHAKE: u8 = 22;

impl Accepted {
    /// Whether the client speaks TLS, by its first byte, which stays.
    pub(crate) async fn speaks_tls(&self) -> bool {
        let mut first = [0];
        match self {
            Self::Tcp(stream) => {
                matches!(timeout(HANDSHAKE, stream.peek(&mut first)).await, Ok(Ok(1))) && first[0] == TLS_HANDSHAKE
            }
            Self::Unix(_) => true,
        }
    }

    pub(crate) fn stream(self) -> Stream {
        match self {
            Self::Tcp(stream) => Box::new(stream),
            Self::Unix(stream) => Box::new(stream),
        }
    }
}

/// Speaks TLS on a connection. `None`: the client did not.
pub(crate) async fn secured(stream: Stream, tls: Arc<ServerConfig>) -> Option<(Stream, Option<CommonName>)> {
    match timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let name = certificate.and_then(common_name);
            Some((Box::new(stream), name))
        }
        Ok(Err(error)) => {
            tracing::debug!("TLS: {error}");
            None
        }
        Err(_) => {
            tracing::debug!("TLS: no hello in time");
            None
        }
    }
}

/// What kind of name a part of a subject is: 2.5.4.3, the common one.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;

fn common_name(certificate: &CertificateDer<'_>) -> Option<CommonName> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    of_subject(certificate.subject()).map(CommonName)
}

/// A subject is a list of sets of pairs of a kind and a text.
fn of_subject(mut subject: &[u8]) -> Option<String> {
    // It may be given with its own head.
    if subject.first() == Some(&SEQUENCE) && element(subject)?.2.is_empty() {
        subject = element(subject)?.1;
    }
    let mut found = None;
    while !subject.is_empty() {
        let (_, mut set, rest) = element(subject)?;
        while !set.is_empty() {
            let (_, pair, more) = element(set)?;
            let (tag, kind, text) = element(pair)?;
            if (tag, kind) == (OBJECT, COMMON_NAME) {
                // The last one counts, as where etcd reads it.
                found = Some(String::from_utf8(element(text)?.1.to_vec()).ok()?);
            }
            set = more;
        }
        subject = rest;
    }
    found
}

/// Tag and content of the first element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            if digits.len() > 4 {
                return None;
            }
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::of_subject;

    /// C=DE, CN=alice, with and without the head of the list.
    const SUBJECT: &[u8] =
        b"\x31\x0b\x30\x09\x06\x03\x55\x04\x06\x13\x02DE\x31\x0e\x30\x0c\x06\x03\x55\x04\x03\x0c\x05alice";

    #[test]
    fn the_common_name_of_a_subject_is_found() {
        assert_eq!(of_subject(SUBJECT).as_deref(), Some("alice"));
        let headed = [&[0x30, SUBJECT.len() as u8], SUBJECT].concat();
        assert_eq!(of_subject(&headed).as_deref(), Some("alice"));
        assert_eq!(of_subject(&SUBJECT[..13]), None);
        for cut in 0..SUBJECT.len() {
            assert_ne!(of_subject(&SUBJECT[..cut]).as_deref(), Some("alice"));
        }
    }
}
