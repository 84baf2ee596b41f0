//! How a connection ended: exactly one [`Outcome`] each, which gives the status, the label and who ended it.

use std::fmt;

use crate::authority::AuthorityError;

/// The one ending of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended before the 200.
    Refused(Refusal),
    /// It was a tunnel, and the tunnel ended.
    Closed(Close),
}

impl Outcome {
    /// The status code that the client was sent, or would have been had it stayed.
    pub fn status(self) -> u16 {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::Closed(_) => 200,
        }
    }

    /// The value of the label `reason` and of the log field `reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.label(),
            Self::Closed(close) => close.reason.label(),
        }
    }

    /// Who ended it.
    pub fn by(self) -> Side {
        match self {
            Self::Refused(refusal) => refusal.by(),
            Self::Closed(close) => close.by,
        }
    }
}

/// A party to a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Downstream: who sent the CONNECT.
    Client,
    /// Upstream: the SSH server.
    Target,
    /// Switchboard itself.
    Proxy,
}

impl Side {
    /// Every side, for metrics that show zero before the first.
    pub const ALL: [Self; 3] = [Self::Client, Self::Target, Self::Proxy];

    /// The value of the label `by` and of the log field `closed_by`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Target => "target",
            Self::Proxy => "proxy",
        }
    }
}

/// How a tunnel ended, and who ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// Who ended it: for `eof` the side that finished first.
    pub by: Side,
    /// Why.
    pub reason: Reason,
}

/// Why a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Both sides finished.
    Eof,
    /// Nothing moved for the idle timeout, or for the half-closed one after one side had finished.
    Idle,
    /// A side reset its connection; the reset was passed on.
    Reset,
    /// The longest lifetime was reached.
    Lifetime,
    /// The drain deadline passed, or a second signal came.
    Drained,
    /// The target left the allowlist.
    Revoked,
    /// Any other error of a socket, such as a peer that vanished (ETIMEDOUT).
    Io,
    /// A defect of ours: the tunnel's task panicked or was dropped.
    Panic,
}

impl Reason {
    /// Every reason, for metrics that show zero before the first.
    pub const ALL: [Self; 8] = [
        Self::Eof,
        Self::Idle,
        Self::Reset,
        Self::Lifetime,
        Self::Drained,
        Self::Revoked,
        Self::Io,
        Self::Panic,
    ];

    /// The value of the label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Eof => "eof",
            Self::Idle => "idle",
            Self::Reset => "reset",
            Self::Lifetime => "lifetime",
            Self::Drained => "drained",
            Self::Revoked => "revoked",
            Self::Io => "io",
            Self::Panic => "panic",
        }
    }
}

/// Why a connection got no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The head breaks RFC 9112, or the target is not an authority.
    Malformed(Malformed),
    /// The target is not on the allowlist; whether its name or its port is unknown is not said.
    NotAllowed,
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
    /// The target is unknown, and so is the allowlist: the cluster has not told it yet.
    AllowlistUnknown,
    /// The process shuts down.
    Draining,
    /// The process is out of descriptors or memory for sockets.
    Exhausted,
    /// The client left before it had an answer.
    ClientLeft,
    /// The connection closed without a byte: a port probe, not a request.
    NoRequest,
    /// A defect of ours.
    Internal,
}

impl Refusal {
    /// Every refusal, with one fault for all that are malformed: for metrics that show zero before the first.
    pub const ALL: [Self; 16] = [
        Self::Malformed(Malformed::RequestLine),
        Self::NotAllowed,
        Self::MethodNotAllowed,
        Self::HeadTimeout,
        Self::HeadTooLarge,
        Self::TargetRefused,
        Self::TargetUnreachable,
        Self::DialTimeout,
        Self::NoEndpoint,
        Self::TargetFull,
        Self::AllowlistUnknown,
        Self::Draining,
        Self::Exhausted,
        Self::ClientLeft,
        Self::NoRequest,
        Self::Internal,
    ];

    /// The status code of the answer. 499 (as nginx has it) is never sent: there was nobody to send it to.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::NotAllowed => 403,
            Self::MethodNotAllowed => 405,
            Self::HeadTimeout => 408,
            Self::HeadTooLarge => 431,
            Self::ClientLeft | Self::NoRequest => 499,
            Self::Internal => 500,
            Self::TargetRefused | Self::TargetUnreachable => 502,
            Self::NoEndpoint | Self::TargetFull | Self::AllowlistUnknown | Self::Draining | Self::Exhausted => 503,
            Self::DialTimeout => 504,
        }
    }

    /// The value of the label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NotAllowed => "not_allowed",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::HeadTimeout => "head_timeout",
            Self::HeadTooLarge => "head_too_large",
            Self::TargetRefused => "target_refused",
            Self::TargetUnreachable => "target_unreachable",
            Self::DialTimeout => "dial_timeout",
            Self::NoEndpoint => "no_endpoint",
            Self::TargetFull => "target_full",
            Self::AllowlistUnknown => "allowlist_unknown",
            Self::Draining => "draining",
            Self::Exhausted => "exhausted",
            Self::ClientLeft => "client_left",
            Self::NoRequest => "no_request",
            Self::Internal => "internal",
        }
    }

    /// Who ended it.
    pub fn by(self) -> Side {
        match self {
            Self::ClientLeft | Self::NoRequest => Side::Client,
            Self::TargetRefused => Side::Target,
            Self::Malformed(_)
            | Self::NotAllowed
            | Self::MethodNotAllowed
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::TargetUnreachable
            | Self::DialTimeout
            | Self::NoEndpoint
            | Self::TargetFull
            | Self::AllowlistUnknown
            | Self::Draining
            | Self::Exhausted
            | Self::Internal => Side::Proxy,
        }
    }

    /// The reason phrase: one ASCII line, since it is all that most clients print.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Malformed(fault) => fault.phrase(),
            Self::NotAllowed => "the target is not on the allowlist",
            Self::MethodNotAllowed => "only CONNECT is served here",
            Self::HeadTimeout => "the request head did not arrive in time",
            Self::HeadTooLarge => "the request head is too large",
            Self::TargetRefused => "the target refused the connection",
            Self::TargetUnreachable => "the target cannot be reached",
            Self::DialTimeout => "the target did not answer in time",
            Self::NoEndpoint => "the target has no ready endpoint",
            Self::TargetFull => "the target has its most tunnels, try again later",
            Self::AllowlistUnknown => "the allowlist is not known yet, try again",
            Self::Draining => "this proxy is shutting down, try again",
            Self::Exhausted => "this proxy is out of sockets, try again",
            Self::ClientLeft => "the client left",
            Self::NoRequest => "no request",
            Self::Internal => "internal error",
        }
    }

    /// The error type for `Proxy-Status` (RFC 9209 section 2.3).
    pub fn proxy_status(self) -> &'static str {
        match self {
            Self::Malformed(_)
            | Self::MethodNotAllowed
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::ClientLeft
            | Self::NoRequest => "http_request_error",
            Self::NotAllowed => "http_request_denied",
            Self::TargetRefused => "connection_refused",
            Self::TargetUnreachable => "destination_ip_unroutable",
            Self::DialTimeout => "connection_timeout",
            Self::NoEndpoint | Self::AllowlistUnknown => "destination_unavailable",
            Self::TargetFull | Self::Draining | Self::Exhausted => "connection_limit_reached",
            Self::Internal => "proxy_internal_error",
        }
    }

    /// Whole seconds after which another try makes sense: `Retry-After` (RFC 9110 section 10.2.3).
    pub fn retry_after(self) -> Option<u32> {
        match self {
            Self::NoEndpoint | Self::AllowlistUnknown | Self::Draining | Self::Exhausted => Some(1),
            // Tunnels last: whoever waits for one to end need not ask every second.
            Self::TargetFull => Some(30),
            Self::Malformed(_)
            | Self::NotAllowed
            | Self::MethodNotAllowed
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::TargetRefused
            | Self::TargetUnreachable
            | Self::DialTimeout
            | Self::ClientLeft
            | Self::NoRequest
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
        let printable = |character| match character {
            ' '..='~' => character,
            _ => '?',
        };
        Self {
            refusal,
            phrase: Some(phrase.chars().map(printable).collect()),
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

/// What is wrong with a request head. Its phrase is the reason phrase of the 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The request target.
    Target(AuthorityError),
    /// The first bytes are a TLS handshake record.
    Tls,
    /// The request line is not `method target HTTP/1.x`.
    RequestLine,
    /// The version is neither 1.0 nor 1.1.
    Version,
    /// A field line breaks RFC 9112 section 5: a space before the colon, a folded line, a bare CR, a control byte.
    Field,
    /// HTTP/1.1 without Host (RFC 9112 section 3.2).
    NoHost,
    /// More than one Host.
    SeveralHosts,
    /// A Host that is not `host[:port]`.
    BadHost,
    /// Transfer-Encoding, or a Content-Length other than 0: a CONNECT has no content (RFC 9110 section 9.3.6).
    Content,
    /// The client finished in the middle of the head.
    Truncated,
}

impl Malformed {
    /// A short ASCII sentence that names the fault.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Target(error) => error.phrase(),
            Self::Tls => "this port does not speak TLS",
            Self::RequestLine => "the request line is malformed",
            Self::Version => "the HTTP version must be 1.0 or 1.1",
            Self::Field => "a header field is malformed",
            Self::NoHost => "the Host header is missing",
            Self::SeveralHosts => "there is more than one Host header",
            Self::BadHost => "the Host header is malformed",
            Self::Content => "a CONNECT request must not have content",
            Self::Truncated => "the request head is incomplete",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} by {}", self.status(), self.reason(), self.by().label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_words_and_phrases_are_short_ascii() {
        let mut labels: Vec<_> = Refusal::ALL.map(Refusal::label).to_vec();
        labels.extend(Reason::ALL.map(Reason::label));
        for label in &labels {
            assert!(
                label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{label}"
            );
        }
        labels.sort_unstable();
        let count = labels.len();
        labels.dedup();
        assert_eq!(labels.len(), count);
        for refusal in Refusal::ALL {
            let phrase = refusal.phrase();
            assert!(
                phrase.len() <= 60 && phrase.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{phrase}"
            );
        }
    }

    #[test]
    fn only_a_busy_proxy_says_when_to_come_back() {
        for refusal in Refusal::ALL {
            assert_eq!(refusal.retry_after().is_some(), refusal.status() == 503, "{refusal:?}");
        }
    }

    #[test]
    fn a_denial_has_the_words_of_its_refusal_or_harmless_ones_of_its_own() {
        let plain = Denial::from(Refusal::NoEndpoint);
        assert_eq!(plain.phrase(), Refusal::NoEndpoint.phrase());
        let told = Denial::told(Refusal::NoEndpoint, "none for a/b\r\nX: y\u{e9}");
        assert_eq!(told.phrase(), "none for a/b??X: y?");
    }

    #[test]
    fn an_outcome_names_status_reason_and_side() {
        let refused = Outcome::Refused(Refusal::TargetRefused);
        assert_eq!(refused.to_string(), "502 target_refused by target");
        let closed = Outcome::Closed(Close {
            by: Side::Client,
            reason: Reason::Eof,
        });
        assert_eq!(closed.to_string(), "200 eof by client");
    }
}
