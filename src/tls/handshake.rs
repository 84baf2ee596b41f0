//! Does one handshake, and says of each that fails why.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{
    AlertDescription, CertificateError, Error, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::identity::{self, Identity};
use super::session::Session;
use crate::net::socket;

/// A client that speaks TLS from now on.
#[derive(Debug)]
pub struct Accepted {
    /// Its end.
    pub session: Session,
    /// What is known of it.
    pub peer: Arc<Peer>,
    /// Whether it was known from an earlier session.
    pub resumed: bool,
    /// Whether HTTP/2 was agreed on (ALPN); otherwise it is HTTP/1.
    pub http2: bool,
}

/// What a client's session says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `1.2` or `1.3`.
    pub version: &'static str,
    /// Who it is, if it has shown a certificate.
    pub identity: Option<Identity>,
    /// What it has shown, if it may ask again and again on its connection: it is judged anew each time.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// A client that does not.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub cause: Cause,
    stream: TcpStream,
}

impl Failed {
    /// Closes the connection so that the client can read the alert.
    pub async fn close(self) {
        socket::close_gently(&self.stream).await;
    }
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The client closed or reset the connection.
    ClientLeft,
    /// It was not over in time.
    Timeout,
    /// What the client sent is no TLS.
    NotTls,
    /// There is no version, cipher or other means that both sides have.
    Incompatible,
    /// The client does not trust our certificate.
    CertificateRefused,
    /// The client sent another alert.
    Alert,
    /// The client has to show a certificate, and shows none.
    ClientCertificateMissing,
    /// It has expired, or is not good yet.
    ClientCertificateExpired,
    /// It is on the revocation list, or on none where there should be one.
    ClientCertificateRevoked,
    /// It is of another authority, or faulty.
    ClientCertificateInvalid,
    /// The client breaks the protocol, or we do.
    Protocol,
}

impl Cause {
    /// Every cause, for metrics that show zero before the first.
    pub const ALL: [Self; 11] = [
        Self::ClientLeft,
        Self::Timeout,
        Self::NotTls,
        Self::Incompatible,
        Self::CertificateRefused,
        Self::Alert,
        Self::ClientCertificateMissing,
        Self::ClientCertificateExpired,
        Self::ClientCertificateRevoked,
        Self::ClientCertificateInvalid,
        Self::Protocol,
    ];

    /// The value of the label `cause`.
    pub fn label(self) -> &'static str {
        match self {
            Self::ClientLeft => "client_left",
            Self::Timeout => "timeout",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::CertificateRefused => "certificate_refused",
            Self::Alert => "alert",
            Self::ClientCertificateMissing => "client_certificate_missing",
            Self::ClientCertificateExpired => "client_certificate_expired",
            Self::ClientCertificateRevoked => "client_certificate_revoked",
            Self::ClientCertificateInvalid => "client_certificate_invalid",
            Self::Protocol => "protocol",
        }
    }

    fn of(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        inner.map_or(Self::ClientLeft, Self::of_tls)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the enums are rustls's, and grow")]
    fn of_tls(error: &Error) -> Self {
        match error {
            Error::InvalidMessage(_) => Self::NotTls,
            Error::PeerIncompatible(_) => Self::Incompatible,
            Error::NoCertificatesPresented => Self::ClientCertificateMissing,
            Error::InvalidCertificate(fault) => match fault {
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::ClientCertificateExpired,
                CertificateError::Revoked | CertificateError::UnknownRevocationStatus => Self::ClientCertificateRevoked,
                _ => Self::ClientCertificateInvalid,
            },
            Error::AlertReceived(alert) => match alert {
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA => Self::CertificateRefused,
                _ => Self::Alert,
            },
            _ => Self::Protocol,
        }
    }
}

/// Does the handshake of a client, of which `read` was taken from the socket already.
pub(super) async fn accept(
    stream: TcpStream,
    read: Vec<u8>,
    config: Option<Arc<ServerConfig>>,
    deadline: Instant,
) -> Result<Accepted, Failed> {
    let cause = Cause::Protocol;
    let Some(Ok(connection)) = config.map(ServerConnection::new) else {
        return Err(Failed { cause, stream });
    };
    let mut session = Session::new(stream, connection, read);
    let all = async {
        while !poll_fn(|context| session.poll_handshake(context)).await? {}
        io::Result::Ok(())
    };
    let cause = match timeout_at(deadline, all).await {
        Ok(Ok(())) if shows_what_has_expired(&mut session) => Cause::ClientCertificateExpired,
        Ok(Ok(())) => return Ok(accepted(session)),
        Ok(Err(error)) => Cause::of(&error),
        Err(_) => Cause::Timeout,
    };
    let stream = session.into_stream();
    Err(Failed { cause, stream })
}

/// A session that is resumed carries the certificate of the first one, however long ago that was.
fn shows_what_has_expired(session: &mut Session) -> bool {
    let certificate = session.connection().peer_certificates().and_then(<[_]>::first);
    certificate.is_some_and(|certificate| !identity::is_current(certificate))
}

fn accepted(mut session: Session) -> Accepted {
    let connection = session.connection();
    let certificates = connection.peer_certificates().unwrap_or_default();
    let http2 = connection.alpn_protocol() == Some(b"h2");
    let peer = Peer {
        version: match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "1.2",
            _ => "1.3",
        },
        identity: certificates.first().and_then(|certificate| Identity::of(certificate)),
        certificates: if http2 { certificates.to_vec() } else { Vec::new() },
    };
    Accepted {
        peer: Arc::new(peer),
        resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        http2,
        session,
    }
}
