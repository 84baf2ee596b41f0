//! The failures of a tunnel, each in a sentence for the user.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::credentials::CredentialError;
use super::deadline::Step;
use super::session::SessionError;
use super::tls::{CaError, CertificateFault, IdentityError};
use crate::authority::AuthorityError;
use crate::secret::Secret;

/// The failure of a tunnel: it did not open, or did not end in order.
///
/// Each message prints its own level. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The target is not `host:port`: an error of usage.
    #[error("the target is not HOST:PORT")]
    Target(#[source] AuthorityError),
    /// The file of `--ca` cannot be used.
    #[error("cannot use the certificates in {}", path.display())]
    Ca {
        /// The file as typed.
        path: PathBuf,
        /// Its fault.
        #[source]
        fault: CaError,
    },
    /// The files of `--cert` and `--key` cannot be used.
    #[error("cannot use the client certificate")]
    Identity(#[source] IdentityError),
    /// The proxy requires a client certificate, and there is none.
    #[error("the proxy requires a client certificate: give --cert and --key")]
    CertificateRequired(#[source] io::Error),
    /// The proxy does not accept the client certificate.
    #[error("the proxy refused the client certificate")]
    CertificateRefused(#[source] io::Error),
    /// The system has no list of trusted certificates in a usual place.
    #[error("the system has no trusted certificates: give the proxy's with --ca")]
    NoSystemRoots(#[source] Option<rustls_native_certs::Error>),
    /// The proxy's host, or the name in its place, cannot be the name in a certificate.
    #[error("{name} cannot be the proxy's name in a certificate")]
    TlsName {
        /// The name.
        name: String,
        /// The reason.
        #[source]
        source: rustls::pki_types::InvalidDnsNameError,
    },
    /// rustls refused the configuration.
    #[error("cannot set TLS up")]
    TlsSetup(#[source] rustls::Error),
    /// The event loop could not be started.
    #[error("cannot start the event loop")]
    Runtime(#[source] io::Error),
    /// The request cannot be written as one of HTTP/2.
    #[error("cannot ask for the target over HTTP/2")]
    Request(#[source] http::Error),
    /// The proxy's name has no address.
    #[error("cannot look up {proxy}")]
    Lookup {
        /// `host:port` of the proxy.
        proxy: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// No address of the proxy accepted the connection. This is the last one.
    #[error("cannot connect to the proxy at {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The proxy's certificate is not one to trust.
    #[error("the proxy is not trusted")]
    ProxyCertificate(#[source] CertificateFault),
    /// The peer has answered the TLS handshake with an HTTP response.
    #[error("the proxy speaks plain HTTP at this port: use http://")]
    PlainHttp,
    /// The way through the HTTP proxy of the user's own network is not open.
    #[error("{forward} in the environment does not lead to the proxy at {proxy} (--no-env-proxy goes without it)")]
    Forward {
        /// Its URL, and the variable that names it.
        forward: String,
        /// `host:port` of the proxy behind it.
        proxy: String,
        /// Its fault.
        #[source]
        source: Box<Self>,
    },
    /// The TLS handshake failed otherwise, as with a peer that does not speak TLS.
    #[error("the TLS handshake with the proxy failed")]
    Tls(#[source] io::Error),
    /// The time is over.
    #[error("{step} took longer than {timeout:?}")]
    Deadline {
        /// The step that was not completed.
        step: Step,
        /// The time for all steps together.
        timeout: Duration,
    },
    /// The proxy closed without a byte.
    #[error("the proxy closed the connection without an answer")]
    NoAnswer,
    /// The proxy closed in the middle of a response head.
    #[error("the proxy closed the connection in the middle of its answer")]
    TruncatedAnswer,
    /// The response head is over 16 KiB, or has over 128 fields.
    #[error("the head of the proxy's answer is too long")]
    LongAnswer,
    /// Over 100 interim responses (1xx), or over 64 KiB of them, in front of the answer.
    #[error("the proxy sends interim answers (1xx) without end")]
    EndlessAnswer,
    /// The peer's answer is not HTTP.
    #[error("the proxy's answer is not HTTP: are the address and the port right?")]
    NotHttp,
    /// The peer's answer is TLS.
    #[error("the proxy's answer is not HTTP but TLS: is the URL https://?")]
    AnsweredInTls,
    /// The proxy's answer is not 2xx.
    #[error(
        "the proxy answered {status}{}{reason}{}", if reason.is_empty() { "" } else { ": " },
        self.advice().map(|advice| format!(" ({advice})")).unwrap_or_default()
    )]
    Refused {
        /// The status code.
        status: u16,
        /// When another request makes sense, if the proxy says so.
        retry_after: Option<Duration>,
        /// How long the target has left to start, if the proxy has started it.
        starting: Option<Duration>,
        /// The reason phrase or the first line of the body, without control characters. It may be empty.
        reason: String,
    },
    /// The answer of a web server, or of another port of the proxy.
    #[error(
        "the proxy answered {status}{}{reason} (this is not a CONNECT proxy, or it knows no such name: are the host and the \
         port of its URL right?)", if reason.is_empty() { "" } else { ": " }
    )]
    NotProxy {
        /// The status code.
        status: u16,
        /// As of [`Self::Refused`].
        reason: String,
    },
    /// The proxy's answer is 407, and there are no credentials.
    #[error(
        "the proxy answered 407{}{reason} (give credentials: --kubeconfig, --context, --token-file, --token-command or \
         SWITCHBOARD_TOKEN)", if reason.is_empty() { "" } else { ": " }
    )]
    CredentialsRequired {
        /// As of [`Self::Refused`].
        reason: String,
    },
    /// There are no credentials for the proxy, or they may not be sent.
    #[error("cannot log in to the proxy")]
    Credentials(#[source] CredentialError),
    /// The tunnel was reset: its bytes are those of the target, and so may be its end. Bytes may be missing.
    #[error("the connection was reset: the target or the proxy has ended it, or the network has failed")]
    Reset(#[source] io::Error),
    /// The connection to the proxy was reset, or timed out. Bytes may be missing.
    #[error("the connection to the proxy was lost")]
    Lost(#[source] io::Error),
    /// The proxy reset the tunnel's stream, or the HTTP/2 connection under it. Bytes may be missing.
    #[error("the proxy aborted the tunnel ({})", code(.0))]
    Aborted(#[source] h2::Error),
    /// The proxy has ended the tunnel, and has said why. Bytes may be missing.
    #[error("{0}")]
    Ended(String),
    /// The proxy has broken the rules of HTTP/2.
    #[error("the proxy's HTTP/2 is faulty ({}; --http1.1 avoids it)", code(.0))]
    NotHttp2(#[source] h2::Error),
    /// More HTTP/2 frames that carry nothing than any proxy needs.
    #[error("the proxy floods the connection with HTTP/2 frames that carry nothing")]
    Flood,
    /// The session has no connection, or is over.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The target, or what is between, has closed the tunnel without a byte.
    #[error("the tunnel was closed before the target's first byte")]
    Unidentified,
    /// stdin cannot be read.
    #[error("cannot read stdin")]
    Input(#[source] io::Error),
    /// stdout cannot be written although its reader is there.
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
}

impl ClientError {
    /// The error without parts of a secret that the proxy may have quoted.
    pub(super) fn without(mut self, secret: &Secret) -> Self {
        if let Self::Refused { reason, .. } | Self::NotProxy { reason, .. } = &mut self {
            *reason = secret.redacted(reason);
        }
        self
    }

    /// The exit code of the process: 2 for an error of usage, else 1.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Target(_) | Self::Credentials(CredentialError::Cleartext)) {
            2
        } else {
            1
        }
    }
}

/// Whether another attempt to connect may succeed, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// None will, or the user's right is gone.
    Never,
    /// A proxy has answered, or what is in its place: each attempt costs it something.
    WithPauses,
    /// No proxy was reached, or it has only ended a connection, as does a balancer without a proxy behind it.
    Soon,
}

impl ClientError {
    /// What the failure says of the next attempt. What may be the network of the moment, such as a captive portal with its
    /// certificate, or a rollout, is tried again.
    pub(super) fn retry(&self) -> Retry {
        match self {
            Self::Session(error) => error.retry(),
            // 408, 425 and 429 ask for another request; a captive portal redirects.
            Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 408 | 425 | 429) => {
                Retry::Never
            }
            Self::CredentialsRequired { .. }
            | Self::NotProxy { .. }
            | Self::CertificateRequired(_)
            | Self::CertificateRefused(_)
            | Self::Target(_)
            | Self::TlsName { .. }
            | Self::TlsSetup(_)
            | Self::Runtime(_)
            | Self::Request(_)
            | Self::Input(_)
            | Self::Output(_) => Retry::Never,
            // As far away as the proxy behind it, which this one may not lead to at the moment.
            Self::Forward { source, .. } => match source.retry() {
                Retry::Soon => Retry::Soon,
                Retry::Never | Retry::WithPauses => Retry::WithPauses,
            },
            // Files may be replaced at the moment, and what gives credentials may need the network.
            Self::Ca { .. }
            | Self::Identity(_)
            | Self::NoSystemRoots(_)
            | Self::Credentials(_)
            | Self::Refused { .. }
            | Self::ProxyCertificate(_)
            | Self::PlainHttp
            | Self::LongAnswer
            | Self::EndlessAnswer
            | Self::NotHttp
            | Self::AnsweredInTls
            | Self::NotHttp2(_)
            | Self::Flood => Retry::WithPauses,
            Self::Lookup { .. }
            | Self::Connect { .. }
            | Self::Tls(_)
            | Self::Deadline { .. }
            | Self::NoAnswer
            | Self::TruncatedAnswer
            | Self::Lost(_)
            | Self::Unidentified
            | Self::Reset(_)
            | Self::Aborted(_)
            | Self::Ended(_) => Retry::Soon,
        }
    }
}

/// The name of an error code (RFC 9113 section 7).
fn code(error: &h2::Error) -> String {
    error
        .reason()
        .map_or_else(|| "no code".to_owned(), |reason| format!("{reason:?}"))
}
