//! Does one TLS handshake, and classifies each failure.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{
    AlertDescription, CertificateError, Error, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::stream::TlsStream;
use crate::net::socket;
use crate::net::x509::CertificateNames;

/// A handshake that succeeded.
#[derive(Debug)]
pub struct CompletedHandshake {
    /// The session.
    pub stream: TlsStream,
    /// The client.
    pub client: Arc<ClientTls>,
    /// True if it resumed an earlier session.
    pub resumed: bool,
    /// True if ALPN chose HTTP/2; otherwise it is HTTP/1.
    pub http2: bool,
}

/// The client of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// `1.2` or `1.3`.
    pub version: &'static str,
    /// The identity in its certificate, if it has presented one.
    pub identity: Option<CertificateNames>,
    /// Its certificates, verified again for each HTTP/2 request and, if they prove a user, while tunnels run.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// A handshake that failed.
#[derive(Debug)]
pub struct HandshakeFailure {
    /// The cause.
    pub cause: FailureCause,
    stream: TcpStream,
}

impl HandshakeFailure {
    /// Closes the connection so that the client can read the alert.
    pub async fn close(self) {
        socket::close_gently(&self.stream).await;
    }
}

/// The cause of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The client closed or reset the connection.
    ClientLeft,
    /// The deadline passed.
    Timeout,
    /// The client does not speak TLS.
    NotTls,
    /// Client and proxy have no version, cipher suite or the like in common.
    Incompatible,
    /// The client does not trust the proxy's certificate.
    CertificateRefused,
    /// The client sent another alert.
    Alert,
    /// The client has to present a certificate, and presents none.
    ClientCertificateMissing,
    /// The client certificate has expired, or is not valid yet.
    ClientCertificateExpired,
    /// The client certificate is revoked, or its authority has no revocation list.
    ClientCertificateRevoked,
    /// The revocation list of the client certificate's authority is past its nextUpdate.
    CrlExpired,
    /// The client certificate is of another authority, or invalid.
    ClientCertificateInvalid,
    /// A violation of the protocol, or a failure in the proxy.
    Protocol,
}

impl FailureCause {
    /// Every cause, for metrics that show zero before the first.
    pub const ALL: [Self; 12] = [
        Self::ClientLeft,
        Self::Timeout,
        Self::NotTls,
        Self::Incompatible,
        Self::CertificateRefused,
        Self::Alert,
        Self::ClientCertificateMissing,
        Self::ClientCertificateExpired,
        Self::ClientCertificateRevoked,
        Self::CrlExpired,
        Self::ClientCertificateInvalid,
        Self::Protocol,
    ];

    /// Returns the value of the label `cause`.
    pub fn label(self) -> &'static str {
        match self {
            Self::ClientLeft => "client_disconnected",
            Self::Timeout => "timeout",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::CertificateRefused => "certificate_refused",
            Self::Alert => "alert",
            Self::ClientCertificateMissing => "client_certificate_missing",
            Self::ClientCertificateExpired => "client_certificate_expired",
            Self::ClientCertificateRevoked => "client_certificate_revoked",
            Self::CrlExpired => "crl_expired",
            Self::ClientCertificateInvalid => "client_certificate_invalid",
            Self::Protocol => "protocol",
        }
    }

    fn from_error(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        inner.map_or(Self::ClientLeft, Self::from_tls)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the enums are rustls's, and grow")]
    pub(super) fn from_tls(error: &Error) -> Self {
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
                CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
                    Self::CrlExpired
                }
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

/// Does the handshake with a client. `read`: the bytes read before it.
pub(super) async fn accept(
    stream: TcpStream,
    read: Vec<u8>,
    config: Option<Arc<ServerConfig>>,
    deadline: Instant,
) -> Result<CompletedHandshake, HandshakeFailure> {
    let cause = FailureCause::Protocol;
    let Some(Ok(connection)) = config.map(ServerConnection::new) else {
        return Err(HandshakeFailure { cause, stream });
    };
    let mut tls_stream = TlsStream::new(stream, connection, read);
    let all = async {
        while !poll_fn(|context| tls_stream.poll_handshake(context)).await? {}
        io::Result::Ok(())
    };
    let cause = match timeout_at(deadline, all).await {
        Ok(Ok(())) => return Ok(accepted(tls_stream)),
        Ok(Err(error)) => FailureCause::from_error(&error),
        Err(_) => FailureCause::Timeout,
    };
    let stream = tls_stream.into_stream();
    Err(HandshakeFailure { cause, stream })
}

fn accepted(mut stream: TlsStream) -> CompletedHandshake {
    let connection = stream.connection();
    let certificates = connection.peer_certificates().unwrap_or_default();
    let http2 = connection.alpn_protocol() == Some(b"h2");
    let client = ClientTls {
        version: match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "1.2",
            _ => "1.3",
        },
        identity: certificates
            .first()
            .and_then(|certificate| CertificateNames::from_certificate(certificate)),
        certificates: certificates.to_vec(),
    };
    CompletedHandshake {
        client: Arc::new(client),
        resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        http2,
        stream,
    }
}
