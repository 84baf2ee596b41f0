//! Detects a client's protocol by its first bytes, and does the TLS handshake.

use tokio::net::TcpStream;

use super::pending::PendingRequest;
use super::shared::{Port, SshMode};
use crate::base::boxed::boxed;
use crate::net::tls;
use crate::net::transport::{Transport, read_more};
use crate::proxy::exchange::Exchange;
use crate::proxy::http::{CredentialPolicy, RefusalMode};
use crate::tunnel::outcome::{Malformed, RefusalReason};
use crate::tunnel::stream::Stream;

/// A client whose protocol is known, with the bytes that were read.
#[derive(Debug)]
pub(super) enum NegotiatedProtocol {
    /// HTTP/1, in clear or over TLS.
    Http1(Stream, Vec<u8>),
    /// HTTP/2: in clear with prior knowledge, or over TLS by ALPN.
    Http2(Stream, Vec<u8>),
    /// SSH, on a port that is a jump host.
    Ssh(TcpStream, Vec<u8>),
}

/// Negotiates the protocol with a client of that port. `None` when the client was refused.
pub(super) async fn negotiate<'a>(
    mut stream: TcpStream,
    port: &Port,
    pending: PendingRequest<'a>,
) -> Option<(NegotiatedProtocol, PendingRequest<'a>)> {
    let mode = port.tls;
    if port.ssh == SshMode::Only {
        return Some((NegotiatedProtocol::Ssh(stream, Vec::new()), pending));
    }
    let looked = pending.step(async { Ok(sniff_protocol(&mut stream).await) }).await;
    let refusal = match looked {
        Ok((Protocol::Ssh, read)) if port.ssh == SshMode::Jump => {
            return Some((NegotiatedProtocol::Ssh(stream, read), pending));
        }
        Ok((Protocol::Tls | Protocol::Ssh | Protocol::Http1, read)) if mode == tls::Mode::Off => {
            return Some((NegotiatedProtocol::Http1(stream.into(), read), pending));
        }
        Ok((Protocol::Tls, read)) => return handshake(stream, read, pending).await,
        Ok((Protocol::Ssh, _)) => RefusalReason::Malformed(Malformed::Ssh),
        // A port probe.
        Ok((Protocol::Http1, read)) if read.is_empty() => RefusalReason::PortProbe,
        Ok((Protocol::Http1, read)) if mode == tls::Mode::Required => {
            boxed(refuse_cleartext(stream, read, pending)).await;
            return None;
        }
        Ok((Protocol::Http2, _)) if mode == tls::Mode::Required => RefusalReason::TlsRequired,
        Ok((Protocol::Http1, read)) => return Some((NegotiatedProtocol::Http1(stream.into(), read), pending)),
        Ok((Protocol::Http2, read)) => return Some((NegotiatedProtocol::Http2(stream.into(), read), pending)),
        Err(refusal) => refusal,
    };
    pending
        .refuse(Exchange::http1(stream, Vec::new()), &refusal.into())
        .await;
    None
}

/// Refuses a client in clear where TLS is required. Its request is read only to learn whether to refuse it in band.
async fn refuse_cleartext(stream: TcpStream, read: Vec<u8>, pending: PendingRequest<'_>) {
    let mut exchange = Exchange::http1(stream, read);
    if pending.refusals != RefusalMode::Http {
        // Whatever it asks for, it needs TLS.
        pending
            .step(exchange.read_head(CredentialPolicy::Ignored, None))
            .await
            .ok();
    }
    pending.refuse(exchange, &RefusalReason::TlsRequired.into()).await;
}

/// Does the TLS handshake of a client, of which `read` was already read.
async fn handshake<'a>(
    stream: TcpStream,
    read: Vec<u8>,
    mut pending: PendingRequest<'a>,
) -> Option<(NegotiatedProtocol, PendingRequest<'a>)> {
    // Before the handshake, which is the most expensive step of a connection.
    if let Err(refusal) = pending.admission {
        pending.record_unanswered(refusal);
        return None;
    }
    let tls = &pending.shared.tls;
    let accepted = pending
        .step(async { Ok(tls.accept(stream, read, pending.deadline()).await) })
        .await;
    match accepted {
        Ok(Ok(accepted)) => {
            pending.record.set_tls(&accepted);
            let session = accepted.stream.into();
            let negotiated = match accepted.http2 {
                true => NegotiatedProtocol::Http2(session, Vec::new()),
                false => NegotiatedProtocol::Http1(session, Vec::new()),
            };
            return Some((negotiated, pending));
        }
        Ok(Err(failed)) => {
            let failures = &pending.shared.metrics.tls_handshake_failures;
            failures.count([failed.cause.label()]);
            pending.linger(Some(RefusalReason::TlsHandshake), failed.close()).await;
        }
        // During a handshake no refusal can be sent.
        Err(refusal) => pending.record_unanswered(refusal),
    }
    None
}

/// The protocol of a client's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// A TLS handshake.
    Tls,
    /// An HTTP/2 connection with prior knowledge (RFC 9113 section 3.4).
    Http2,
    /// An SSH session: the client has no ProxyCommand.
    Ssh,
    /// An HTTP/1 request, or anything else, which is refused as one.
    Http1,
}

/// Reads until the protocol is known. A client that leaves before counts as one of HTTP/1.
async fn sniff_protocol(stream: &mut TcpStream) -> (Protocol, Vec<u8>) {
    let mut read = Vec::new();
    let (mut reader, _) = Transport::split(stream);
    loop {
        if let Some(protocol) = protocol(&read) {
            return (protocol, read);
        }
        match read_more(&mut reader, usize::MAX, &mut read).await {
            Ok(0) | Err(_) => return (Protocol::Http1, read),
            Ok(_) => {}
        }
    }
}

/// Returns the protocol that begins with these bytes; `None` while several may.
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

/// The content type of a TLS handshake record (RFC 8446 section 5.1), a method that only HTTP/2 has (RFC 9113 section
/// 3.4), and the identification of SSH (RFC 4253 section 4.2).
const STARTS: [(&[u8], Protocol); 3] = [
    (&[0x16], Protocol::Tls),
    (b"PRI ", Protocol::Http2),
    (b"SSH-", Protocol::Ssh),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_is_known_as_soon_as_the_bytes_decide_it() {
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
