//! Why a connection got no tunnel, and what the client is told of it.

use super::{Malformed, Side};
use crate::text::ascii;

/// Why a connection got no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The head breaks RFC 9112, or the target is not an authority.
    Malformed(Malformed),
    /// The target is not on the allowlist; whether its name or its port is unknown is not said.
    NotAllowed,
    /// The target is for other clients, who show a certificate.
    ClientNotAllowed,
    /// What the client showed when its HTTP/2 connection began would not let it in any more.
    CertificateLapsed,
    /// The port wants TLS, and the client has begun without.
    TlsRequired,
    /// The TLS handshake failed.
    TlsHandshake,
    /// Another method than CONNECT.
    MethodNotAllowed,
    /// The head was not complete in time.
    HeadTimeout,
    /// The head is larger than 16 KiB or has more than 64 fields.
    HeadTooLarge,
    /// The target's host answered with a reset.
    TargetRefused,
    /// No route to the target's host, or another error of the dial.
    TargetUnreachable,
    /// No address answered before the dial deadline.
    DialTimeout,
    /// The target has no address to dial.
    NoEndpoint,
    /// The target has as many tunnels as it may have.
    TargetFull,
    /// As many clients as may are waiting for the target to answer.
    TargetBusy,
    /// The client has as many tunnels as it may have.
    ClientFull,
    /// The client connects too often.
    ConnectRate,
    /// The process has as many tunnels as it may have.
    ProxyFull,
    /// Too many requests are incomplete, of the client or in all, and this one has waited longest.
    Crowded,
    /// The target is unknown, and so is the allowlist: the cluster has not told it yet.
    AllowlistUnknown,
    /// A header of the PROXY protocol is required, and whoever connected is not trusted to send one.
    UntrustedProxy,
    /// The header of the PROXY protocol is missing or malformed.
    BadProxyHeader,
    /// The process shuts down.
    Draining,
    /// The process is out of descriptors or memory for sockets.
    Exhausted,
    /// The client left before it had an answer.
    ClientLeft,
    /// The connection closed without a byte: a port probe, not a request.
    NoRequest,
    /// An HTTP/2 connection sent so many frames that move nothing that it was ended (RFC 9113 section 10.5).
    Flood,
    /// A defect of ours.
    Internal,
}

impl Refusal {
    /// Every refusal, with one fault for all that are malformed: for metrics that show zero before the first.
    pub const ALL: [Self; 28] = [
        Self::Malformed(Malformed::RequestLine),
        Self::NotAllowed,
        Self::ClientNotAllowed,
        Self::CertificateLapsed,
        Self::TlsRequired,
        Self::TlsHandshake,
        Self::MethodNotAllowed,
        Self::HeadTimeout,
        Self::HeadTooLarge,
        Self::TargetRefused,
        Self::TargetUnreachable,
        Self::DialTimeout,
        Self::NoEndpoint,
        Self::TargetFull,
        Self::TargetBusy,
        Self::ClientFull,
        Self::ConnectRate,
        Self::ProxyFull,
        Self::Crowded,
        Self::AllowlistUnknown,
        Self::UntrustedProxy,
        Self::BadProxyHeader,
        Self::Draining,
        Self::Exhausted,
        Self::ClientLeft,
        Self::NoRequest,
        Self::Flood,
        Self::Internal,
    ];

    /// The status code of the answer. 499 (as nginx has it) is never sent: there was nobody to send it to.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) | Self::BadProxyHeader | Self::TlsRequired | Self::Flood => 400,
            Self::NotAllowed | Self::ClientNotAllowed | Self::CertificateLapsed | Self::UntrustedProxy => 403,
            Self::MethodNotAllowed => 405,
            Self::HeadTimeout => 408,
            Self::ClientFull | Self::ConnectRate => 429,
            Self::HeadTooLarge => 431,
            Self::ClientLeft | Self::NoRequest | Self::TlsHandshake => 499,
            Self::Internal => 500,
            Self::TargetRefused | Self::TargetUnreachable => 502,
            Self::NoEndpoint
            | Self::TargetFull
            | Self::TargetBusy
            | Self::ProxyFull
            | Self::Crowded
            | Self::AllowlistUnknown
            | Self::Draining
            | Self::Exhausted => 503,
            Self::DialTimeout => 504,
        }
    }

    /// The value of the label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NotAllowed => "not_allowed",
            Self::ClientNotAllowed => "client_not_allowed",
            Self::CertificateLapsed => "certificate_lapsed",
            Self::TlsRequired => "tls_required",
            Self::TlsHandshake => "tls_handshake",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::HeadTimeout => "head_timeout",
            Self::HeadTooLarge => "head_too_large",
            Self::TargetRefused => "target_refused",
            Self::TargetUnreachable => "target_unreachable",
            Self::DialTimeout => "dial_timeout",
            Self::NoEndpoint => "no_endpoint",
            Self::TargetFull => "target_full",
            Self::TargetBusy => "target_busy",
            Self::ClientFull => "client_full",
            Self::ConnectRate => "connect_rate",
            Self::ProxyFull => "proxy_full",
            Self::Crowded => "crowded",
            Self::AllowlistUnknown => "allowlist_unknown",
            Self::UntrustedProxy => "untrusted_proxy",
            Self::BadProxyHeader => "bad_proxy_header",
            Self::Draining => "draining",
            Self::Exhausted => "exhausted",
            Self::ClientLeft => "client_left",
            Self::NoRequest => "no_request",
            Self::Flood => "flood",
            Self::Internal => "internal",
        }
    }

    /// Who ended it.
    pub fn by(self) -> Side {
        match self {
            Self::ClientLeft | Self::NoRequest | Self::TlsHandshake => Side::Client,
            Self::TargetRefused => Side::Target,
            Self::Malformed(_)
            | Self::NotAllowed
            | Self::ClientNotAllowed
            | Self::CertificateLapsed
            | Self::TlsRequired
            | Self::MethodNotAllowed
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::TargetUnreachable
            | Self::DialTimeout
            | Self::NoEndpoint
            | Self::TargetFull
            | Self::TargetBusy
            | Self::ClientFull
            | Self::ConnectRate
            | Self::ProxyFull
            | Self::Crowded
            | Self::AllowlistUnknown
            | Self::UntrustedProxy
            | Self::BadProxyHeader
            | Self::Draining
            | Self::Exhausted
            | Self::Flood
            | Self::Internal => Side::Proxy,
        }
    }

    /// The reason phrase: one ASCII line, since it is all that most clients print.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Malformed(fault) => fault.phrase(),
            Self::NotAllowed => "the target is not on the allowlist",
            Self::ClientNotAllowed => "the target wants a client certificate of another name",
            Self::CertificateLapsed => "what the client has shown is no longer good: connect anew",
            Self::TlsRequired => "this port wants TLS: use an https:// proxy",
            Self::TlsHandshake => "the TLS handshake failed",
            Self::MethodNotAllowed => "only CONNECT is served here",
            Self::HeadTimeout => "the request head did not arrive in time",
            Self::HeadTooLarge => "the request head is too large",
            Self::TargetRefused => "the target refused the connection",
            Self::TargetUnreachable => "the target cannot be reached",
            Self::DialTimeout => "the target did not answer in time",
            Self::NoEndpoint => "the target has no ready endpoint",
            Self::TargetFull => "the target has its most tunnels, try again later",
            Self::TargetBusy => "too many wait for the target, try again",
            Self::ClientFull => "this address has its most tunnels, try again later",
            Self::ConnectRate => "this address connects too often, try again",
            Self::ProxyFull => "this proxy has its most tunnels, try again later",
            Self::Crowded => "too many requests are incomplete, try again",
            Self::AllowlistUnknown => "the allowlist is not known yet, try again",
            Self::UntrustedProxy => "only a trusted load balancer may connect here",
            Self::BadProxyHeader => "the PROXY protocol header is missing or malformed",
            Self::Draining => "this proxy is shutting down, try again",
            Self::Exhausted => "this proxy is out of sockets, try again",
            Self::ClientLeft => "the client left",
            Self::NoRequest => "no request",
            Self::Flood => "too many HTTP/2 frames",
            Self::Internal => "internal error",
        }
    }

    /// The error type for `Proxy-Status` (RFC 9209 section 2.3).
    pub fn proxy_status(self) -> &'static str {
        match self {
            Self::Malformed(_)
            | Self::TlsRequired
            | Self::MethodNotAllowed
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::BadProxyHeader
            | Self::ClientLeft
            | Self::NoRequest
            | Self::Flood => "http_request_error",
            Self::TlsHandshake => "tls_protocol_error",
            Self::NotAllowed | Self::ClientNotAllowed | Self::CertificateLapsed | Self::UntrustedProxy => {
                "http_request_denied"
            }
            Self::TargetRefused => "connection_refused",
            Self::TargetUnreachable => "destination_ip_unroutable",
            Self::DialTimeout => "connection_timeout",
            Self::NoEndpoint | Self::AllowlistUnknown => "destination_unavailable",
            Self::TargetFull
            | Self::TargetBusy
            | Self::ClientFull
            | Self::ConnectRate
            | Self::ProxyFull
            | Self::Crowded
            | Self::Draining
            | Self::Exhausted => "connection_limit_reached",
            Self::Internal => "proxy_internal_error",
        }
    }

    /// Whole seconds after which another try makes sense: `Retry-After` (RFC 9110 section 10.2.3).
    pub fn retry_after(self) -> Option<u32> {
        match self {
            Self::NoEndpoint
            | Self::TargetBusy
            | Self::ConnectRate
            | Self::Crowded
            | Self::AllowlistUnknown
            | Self::Draining
            | Self::Exhausted => Some(1),
            // Another replica may have room.
            Self::ProxyFull => Some(5),
            // Tunnels last: whoever waits for one to end need not ask every second.
            Self::TargetFull | Self::ClientFull => Some(30),
            Self::Malformed(_)
            | Self::NotAllowed
            | Self::ClientNotAllowed
            | Self::CertificateLapsed
            | Self::TlsRequired
            | Self::TlsHandshake
            | Self::MethodNotAllowed
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::TargetRefused
            | Self::TargetUnreachable
            | Self::DialTimeout
            | Self::UntrustedProxy
            | Self::BadProxyHeader
            | Self::ClientLeft
            | Self::NoRequest
            | Self::Flood
            | Self::Internal => None,
        }
    }

    /// Whether there is still somebody to answer.
    pub fn is_answered(self) -> bool {
        self.status() != 499
    }
}

/// A refusal, and what the client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Which.
    pub refusal: Refusal,
    phrase: Option<Box<str>>,
}

impl Denial {
    /// A refusal in words of its own. Bytes that do not belong in a reason phrase become `?`.
    pub fn told(refusal: Refusal, phrase: &str) -> Self {
        Self {
            refusal,
            phrase: Some(ascii(phrase.chars())),
        }
    }

    /// The reason phrase: one ASCII line.
    pub fn phrase(&self) -> &str {
        self.phrase.as_deref().unwrap_or_else(|| self.refusal.phrase())
    }
}

/// In the refusal's own words.
impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, phrase: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_busy_proxy_says_when_to_come_back() {
        for refusal in Refusal::ALL {
            let busy = matches!(refusal.status(), 429 | 503);
            assert_eq!(refusal.retry_after().is_some(), busy, "{refusal:?}");
        }
    }

    #[test]
    fn a_denial_has_the_words_of_its_refusal_or_harmless_ones_of_its_own() {
        let plain = Denial::from(Refusal::NoEndpoint);
        assert_eq!(plain.phrase(), Refusal::NoEndpoint.phrase());
        let told = Denial::told(Refusal::NoEndpoint, "none for a/b\r\nX: y\u{e9}");
        assert_eq!(told.phrase(), "none for a/b??X: y?");
    }
}
