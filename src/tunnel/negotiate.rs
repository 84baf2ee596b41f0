//! Takes a client in by the door that it comes to: it looks at the first bytes, and does the TLS handshake.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::connect::{Refused, refuse};
use crate::net::transport::{Reader, Transport};
use crate::outcome::{Malformed, Refusal};
use crate::tls::{Accepted, Failed, Mode, Tls};

/// Who may come in, and how.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Whether the port speaks TLS.
    pub mode: Mode,
    /// What it speaks it with.
    pub tls: &'a Tls,
    /// When a handshake has to be over.
    pub deadline: Instant,
    /// Whether the client comes as seldom as it has to.
    pub paced: Result<(), Refusal>,
}

/// A client that can be asked what it wants.
#[derive(Debug)]
pub enum Entered {
    /// As it came, with what was read of it.
    Plain(TcpStream, Vec<u8>),
    /// The same, when what was read begins HTTP/2.
    Http2(TcpStream, Vec<u8>),
    /// By TLS.
    Tls(Accepted),
}

/// A client that cannot.
#[derive(Debug)]
pub enum TurnedAway {
    /// It has been told why.
    Refused(Refused<TcpStream>),
    /// Its TLS handshake failed.
    Handshake(Failed),
    /// There is no way to tell it.
    Silently(Refusal),
}

/// Finds out what a client speaks, and speaks it.
///
/// # Errors
/// Why it may not come in. `late` says when it has taken too long.
pub async fn enter(
    mut stream: TcpStream,
    terms: &Terms<'_>,
    late: impl Future<Output = Refusal>,
) -> Result<Entered, TurnedAway> {
    let mut late = pin!(late);
    let looked = tokio::select! {
        biased;
        looked = look(&mut stream) => Ok(looked),
        refusal = late.as_mut() => Err(refusal),
    };
    let refusal = match looked {
        Ok((Protocol::Tls | Protocol::Ssh | Protocol::Http1, read)) if terms.mode == Mode::Off => {
            return Ok(Entered::Plain(stream, read));
        }
        Ok((Protocol::Tls, read)) => {
            // Here already: a handshake is the dearest part of a connection.
            terms.paced.map_err(TurnedAway::Silently)?;
            return tokio::select! {
                biased;
                accepted = terms.tls.accept(stream, read, terms.deadline) => {
                    accepted.map(Entered::Tls).map_err(TurnedAway::Handshake)
                }
                refusal = late => Err(TurnedAway::Silently(refusal)),
            };
        }
        Ok((Protocol::Ssh, _)) => Refusal::Malformed(Malformed::Ssh),
        // A port probe.
        Ok((Protocol::Http1, read)) if read.is_empty() => Refusal::NoRequest,
        Ok((Protocol::Http1 | Protocol::Http2, _)) if terms.mode == Mode::Required => Refusal::TlsRequired,
        Ok((Protocol::Http1, read)) => return Ok(Entered::Plain(stream, read)),
        Ok((Protocol::Http2, read)) => return Ok(Entered::Http2(stream, read)),
        Err(refusal) => refusal,
    };
    Err(TurnedAway::Refused(refuse(stream, refusal).await))
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// It begins a TLS handshake.
    Tls,
    /// It begins an HTTP/2 connection with prior knowledge (RFC 9113 section 3.4).
    Http2,
    /// It begins an SSH session: it has no ProxyCommand.
    Ssh,
    /// It makes an HTTP/1 request, or something that is to be refused as one.
    Http1,
}

/// Reads until it is known what the client speaks, and gives back what was read. A client that leaves makes no request.
async fn look(stream: &mut TcpStream) -> (Protocol, Vec<u8>) {
    let mut read = Vec::new();
    let (mut source, _) = Transport::split(stream);
    loop {
        if let Some(protocol) = protocol(&read) {
            return (protocol, read);
        }
        match poll_fn(|context| poll_read_some(&mut source, context, &mut read)).await {
            Ok(0) | Err(_) => return (Protocol::Http1, read),
            Ok(_) => {}
        }
    }
}

/// What begins like that; `None` while it may be one or the other.
fn protocol(bytes: &[u8]) -> Option<Protocol> {
    for (start, protocol) in STARTS {
        if bytes.starts_with(start) {
            return Some(protocol);
        }
        if start.starts_with(bytes) {
            return None;
        }
    }
    Some(Protocol::Http1)
}

/// Not async: its chunk must not live as long as the wait for the client.
fn poll_read_some(source: &mut impl Reader, context: &mut Context<'_>, read: &mut Vec<u8>) -> Poll<io::Result<usize>> {
    let bytes = &mut [0; CHUNK];
    let bytes = ready!(source.poll_read(context, bytes))?;
    read.extend(bytes);
    Poll::Ready(Ok(bytes.len()))
}

/// The content type of a TLS handshake record (RFC 8446 section 5.1), a method that only HTTP/2 has (RFC 9113 section
/// 3.4), and the identification of SSH (RFC 4253 section 4.2).
const STARTS: [(&[u8], Protocol); 3] = [
    (&[0x16], Protocol::Tls),
    (b"PRI ", Protocol::Http2),
    (b"SSH-", Protocol::Ssh),
];
/// Most heads, and most ClientHellos, come whole in one read of this size.
const CHUNK: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_are_read_as_decide() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"\x16", Some(Protocol::Tls)),
            (b"\x16\x03\x01", Some(Protocol::Tls)),
            (b"\x15\x03\x01", Some(Protocol::Http1)),
            (b"P", None),
            (b"PRI", None),
            (b"PRI * HTTP/2.0\r\n", Some(Protocol::Http2)),
            (b"PR", None),
            (b"PROPFIND", Some(Protocol::Http1)),
            (b"PUT", Some(Protocol::Http1)),
            (b"S", None),
            (b"SSH-2.0-x", Some(Protocol::Ssh)),
            (b"SEARCH", Some(Protocol::Http1)),
            (b"C", Some(Protocol::Http1)),
            (b"\r\nCONNECT", Some(Protocol::Http1)),
            (b"\0", Some(Protocol::Http1)),
        ] {
            assert_eq!(protocol(bytes), expected, "{bytes:?}");
        }
    }
}
