//! The table of refusals: one row for each reason not to open a tunnel, with its answer, its label and its side.

use std::io;

use super::{Malformed, Side};
use crate::protocol::phrase::Phrase;

refusals! {
    /// The head breaks RFC 9112, or the request target is not an authority.
    Malformed(fault: Malformed = Malformed::RequestLine) =>
        400, "malformed", Proxy, "http_request_error", None, 1,
        fault.phrase();
    /// The target is not on the allowlist. The answer does not tell an unknown name from an unknown port.
    NotAllowed =>
        403, "not_allowed", Proxy, "http_request_denied", None, 10,
        Phrase::of_target("", " is not on the allowlist");
    /// The client has no certificate, or none with a name that the target allows.
    ClientNotAllowed =>
        403, "client_not_allowed", Proxy, "http_request_denied", None, 10,
        "the client certificate does not name an allowed client";
    /// The request names no user, and only users are served.
    CredentialsRequired =>
        407, "credentials_required", Proxy, "http_request_denied", None, 1,
        "credentials are required: a token, or a user and a password";
    /// The credential authenticates no user: it is wrong, malformed or expired, or none that is accepted here.
    CredentialsRefused =>
        407, "credentials_refused", Proxy, "http_request_denied", None, 1,
        "the credentials are wrong or have expired";
    /// Too many wrong tickets or passwords came before. The credential was not checked and may be right, so the status
    /// is not 407: a client drops its credential after a 407.
    GuessRate =>
        429, "guess_rate", Proxy, "connection_limit_reached", Some(10), 1,
        "too many wrong credentials from this network or for this user";
    /// The connection is in clear, where a credential can be read by others.
    CleartextCredentials =>
        403, "cleartext_credentials", Proxy, "http_request_denied", None, 1,
        "credentials need TLS: use an https:// proxy";
    /// The client's identity is not accepted: it is two users at once, or an identity of the cluster itself.
    IdentityRefused =>
        403, "identity_refused", Proxy, "http_request_denied", None, 1,
        "the client's identity is not accepted here";
    /// The user may not reach the target.
    NotAuthorized =>
        403, "not_authorized", Proxy, "http_request_denied", None, 10,
        Phrase::of_target("the user may not ssh to ", "");
    /// An operator has ended the session that the request continues.
    SessionEnded =>
        403, "session_ended", Proxy, "http_request_denied", None, 10,
        "an operator ended the connection";
    /// An operator has blocked the user or the client for some time.
    Blocked =>
        403, "blocked", Proxy, "http_request_denied", None, 10,
        "an operator has blocked this user or address";
    /// The source of users or permissions does not answer, and no recent answer is cached.
    AuthorizationUnavailable =>
        503, "authorization_unavailable", Proxy, "destination_unavailable", Some(5), 10,
        "access cannot be decided now, try again";
    /// The certificate of the connection's handshake has expired or been revoked since, or its authority is gone.
    CertificateInvalidated =>
        403, "certificate_invalidated", Proxy, "http_request_denied", None, 10,
        "the client certificate is no longer valid, reconnect";
    /// The port requires TLS, and the client has begun without it.
    TlsRequired =>
        400, "tls_required", Proxy, "http_request_error", None, 1,
        "this port requires TLS: use an https:// proxy";
    /// The TLS handshake failed.
    TlsHandshake =>
        499, "tls_handshake", Client, "tls_protocol_error", None, 1,
        "the TLS handshake failed";
    /// A TLS record before the answer cannot be decrypted, or breaks the protocol: the client is sent an alert.
    TlsRecord =>
        499, "tls_record", Client, "tls_protocol_error", None, 1,
        "a TLS record is broken";
    /// The method is not CONNECT.
    MethodNotAllowed =>
        405, "method_not_allowed", Proxy, "http_request_error", None, 1,
        "only CONNECT is served here";
    /// The path is that of WebSocket requests, and the request is none of version 13.
    UpgradeRequired =>
        426, "upgrade_required", Proxy, "http_request_error", None, 1,
        "a WebSocket of version 13 is needed here";
    /// The WebSocket request comes from a page in a browser.
    OriginRefused =>
        403, "origin_refused", Proxy, "http_request_denied", None, 1,
        "pages of web sites may not open tunnels";
    /// The head was not complete before its deadline.
    RequestHeaderTimeout =>
        408, "request_header_timeout", Proxy, "http_request_error", None, 1,
        "the request head did not arrive in time";
    /// The head is larger than 16 KiB or has more than 64 fields.
    RequestHeaderTooLarge =>
        431, "request_header_too_large", Proxy, "http_request_error", None, 1,
        "the request head is too large";
    /// The target's host answered the dial with a reset.
    TargetRefused =>
        502, "target_refused", Target, "connection_refused", None, 10,
        Phrase::of_target("", " refused the connection");
    /// There is no route to the target's host, or the dial failed for another reason.
    TargetUnreachable =>
        502, "target_unreachable", Proxy, "destination_ip_unroutable", None, 10,
        Phrase::of_target("", " cannot be reached");
    /// No address of the target answered before the dial's deadline.
    DialTimeout =>
        504, "dial_timeout", Proxy, "connection_timeout", None, 10,
        Phrase::of_target("", " did not answer in time");
    /// The target has no address to dial.
    NoEndpoint =>
        503, "no_endpoint", Proxy, "destination_unavailable", Some(1), 10,
        Phrase::of_target("", " has no ready endpoint");
    /// The target dials in, and none of its anchors is connected to this replica.
    NoAnchor =>
        503, "no_anchor", Proxy, "destination_unavailable", Some(1), 10,
        "no anchor of the target is connected, try again";
    /// The target has as many anchors as it may have.
    TargetAnchorsFull =>
        503, "target_anchors_full", Proxy, "connection_limit_reached", Some(30), 10,
        Phrase::of_target("", " has reached its limit of anchors").advising(", try again later");
    /// The user has as many anchors as it may have.
    UserAnchorsFull =>
        429, "user_anchors_full", Proxy, "connection_limit_reached", Some(30), 10,
        Phrase::from("this user has reached the limit of anchors").advising(", try again later");
    /// The target has been asked to start, and has no address to dial yet.
    TargetStarting =>
        503, "target_starting", Proxy, "destination_unavailable", Some(30), 10,
        Phrase::of_target("", " is starting, try again in 30 s");
    /// The target has reached its tunnel limit. Tunnels last for hours: a client need not try again every second.
    TargetFull =>
        503, "target_full", Proxy, "connection_limit_reached", Some(30), 10,
        Phrase::of_target("", " has reached its tunnel limit").advising(", try again later");
    /// The target takes no new tunnels: its limit is 0 or cannot be read, or an operator has cordoned it.
    TargetClosed =>
        503, "target_closed", Proxy, "connection_limit_reached", Some(30), 10,
        Phrase::of_target("", " is closed to new tunnels");
    /// The target has reached its limit of dials in progress.
    TargetBusy =>
        503, "target_busy", Proxy, "connection_limit_reached", Some(1), 10,
        Phrase::of_target("too many connections to ", " are in progress, try again");
    /// The client address has reached its tunnel limit.
    ClientFull =>
        429, "client_full", Proxy, "connection_limit_reached", Some(30), 10,
        Phrase::from("this client address has reached its tunnel limit").advising(", try again later");
    /// The user has reached its tunnel limit.
    UserFull =>
        429, "user_full", Proxy, "connection_limit_reached", Some(30), 10,
        Phrase::from("this user has reached the tunnel limit").advising(", try again later");
    /// A list of names for the user is in progress.
    UserListing =>
        429, "user_listing", Proxy, "connection_limit_reached", Some(1), 10,
        "a list of names for this user is in progress, try again";
    /// The client address has exceeded its connect rate.
    ConnectRate =>
        429, "connect_rate", Proxy, "connection_limit_reached", Some(1), 1,
        "this client address connects too often, try again";
    /// The process has reached its tunnel limit. Another replica may have free slots.
    ProxyFull =>
        503, "proxy_full", Proxy, "connection_limit_reached", Some(5), 10,
        Phrase::from("the proxy has reached its tunnel limit").advising(", try again later");
    /// The request was evicted as the oldest incomplete one: of its client or of all, whichever limit was reached.
    Evicted =>
        503, "evicted", Proxy, "connection_limit_reached", Some(1), 1,
        "too many requests are incomplete, try again";
    /// The allowlist is incomplete, and the target unknown: the first list of the cluster has not arrived, or none since a reload.
    AllowlistNotReady =>
        503, "allowlist_not_ready", Proxy, "destination_unavailable", Some(1), 10,
        "the allowlist is not loaded yet, try again";
    /// The port requires a PROXY protocol header, and the peer is not trusted to send one.
    UntrustedProxy =>
        403, "untrusted_proxy", Proxy, "http_request_denied", None, 1,
        "only a trusted load balancer may connect here";
    /// The PROXY protocol header is missing or malformed.
    BadProxyHeader =>
        400, "bad_proxy_header", Proxy, "http_request_error", None, 1,
        "the PROXY protocol header is missing or malformed";
    /// The process drains.
    Draining =>
        503, "draining", Proxy, "connection_limit_reached", Some(1), 10,
        "the proxy is shutting down, try again";
    /// The process is out of descriptors, or of memory for sockets.
    OutOfSockets =>
        503, "out_of_sockets", Proxy, "connection_limit_reached", Some(1), 10,
        "the proxy is out of sockets, try again";
    /// The client left before it had an answer.
    ClientDisconnected =>
        499, "client_disconnected", Client, "http_request_error", None, 10,
        "the client left";
    /// The connection closed without a byte: a port probe, not a request.
    PortProbe =>
        499, "port_probe", Client, "http_request_error", None, 1,
        "no request";
    /// The HTTP/2 connection was ended for too many frames that carry nothing (RFC 9113 section 10.5).
    Flood =>
        400, "flood", Proxy, "http_request_error", None, 1,
        "too many HTTP/2 frames";
    /// A bug of the proxy.
    Internal =>
        500, "internal", Proxy, "proxy_internal_error", None, 10,
        "internal error";
}

impl RefusalReason {
    /// Returns the status code of the answer. 499 is for logs only, as in nginx: no answer reaches the client.
    pub fn status(self) -> u16 {
        self.row().status
    }

    /// Returns the value of the label `reason` and of the log field `reason`.
    pub fn label(self) -> &'static str {
        self.row().label
    }

    /// Returns the side that ended the connection.
    pub fn by(self) -> Side {
        self.row().by
    }

    /// Returns the error type for `Proxy-Status` (RFC 9209 section 2.3).
    pub fn proxy_status(self) -> &'static str {
        self.row().proxy_status
    }

    /// Returns the whole seconds after which a retry makes sense: `Retry-After` (RFC 9110 section 10.2.3).
    pub fn retry_after(self) -> Option<u32> {
        self.row().retry_after
    }

    /// Returns the most access lines a second for one client: 1 if a stranger can cause any number of equal lines, more
    /// if operators search for the attempts of a single user.
    pub fn lines_a_second(self) -> u32 {
        self.row().lines_a_second
    }

    /// Returns the reason phrase: one ASCII line, since most clients print nothing else.
    pub fn phrase(self) -> Phrase {
        self.row().phrase
    }

    /// Returns whether the refusal may be sent in band. A 407 is not: clients ask for a password only after its status.
    pub fn may_be_in_band(self) -> bool {
        self.is_answered() && self.status() != 407
    }

    /// Returns whether a cap or a rate for clients has been reached.
    pub fn is_of_a_limit(self) -> bool {
        matches!(
            self,
            Self::TargetFull
                | Self::TargetClosed
                | Self::TargetBusy
                | Self::ClientFull
                | Self::UserFull
                | Self::UserListing
                | Self::ConnectRate
                | Self::GuessRate
                | Self::ProxyFull
                | Self::Evicted
        )
    }

    /// Returns whether the status is one for the client, not for logs only.
    pub fn is_answered(self) -> bool {
        self.status() != 499
    }
}

/// Everything that a refusal means to the client, the metrics and the log.
struct Row {
    status: u16,
    label: &'static str,
    by: Side,
    proxy_status: &'static str,
    retry_after: Option<u32>,
    lines_a_second: u32,
    phrase: Phrase,
}

/// Makes the enum, its list and its rows from one table, so that none of them can lack a refusal. A row is
/// `Variant => status, label, side that ended it, Proxy-Status error, Retry-After in seconds, access
/// lines a second, phrase;`. A variant with a detail also states the detail's type, and its value in the list.
macro_rules! refusals {
    ($(
        $(#[$doc:meta])*
        $refusal:ident $(($detail:ident: $Detail:ty = $listed:expr))? =>
            $status:literal, $label:literal, $by:ident, $proxy_status:literal, $retry_after:expr,
            $lines:literal, $phrase:expr;
    )*) => {
        /// Why a connection gets no tunnel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RefusalReason {
            $($(#[$doc])* $refusal $(($Detail))?,)*
        }

        impl RefusalReason {
            /// Every refusal, `Malformed` once. Metrics export each label from the start, with the value 0.
            pub const ALL: &[Self] = &[$(Self::$refusal $(($listed))?),*];

            fn row(self) -> Row {
                match self {
                    $(Self::$refusal $(($detail))? => Row {
                        status: $status,
                        label: $label,
                        by: Side::$by,
                        proxy_status: $proxy_status,
                        retry_after: $retry_after,
                        lines_a_second: $lines,
                        phrase: $phrase.into(),
                    },)*
                }
            }
        }
    };
}
// By path, so that the table may stand above its macro.
use refusals;

/// Returns the refusal for an error of the client's connection: `TlsRecord` for a broken TLS record, else `otherwise`.
pub fn refusal_of(error: &io::Error, otherwise: RefusalReason) -> RefusalReason {
    if error.kind() == io::ErrorKind::InvalidData {
        RefusalReason::TlsRecord
    } else {
        otherwise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_429_and_503_say_when_to_try_again() {
        for refusal in RefusalReason::ALL {
            let is_busy = matches!(refusal.status(), 429 | 503);
            assert_eq!(refusal.retry_after().is_some(), is_busy, "{refusal:?}");
        }
    }

    /// RFC 9209 section 2.3, in so far as it fits.
    #[test]
    fn each_proxy_status_error_is_registered() {
        for refusal in RefusalReason::ALL {
            let error = refusal.proxy_status();
            assert!(REGISTERED.contains(&error), "{error}");
        }
    }

    const REGISTERED: [&str; 9] = [
        "destination_unavailable",
        "destination_ip_unroutable",
        "connection_refused",
        "connection_timeout",
        "connection_limit_reached",
        "tls_protocol_error",
        "http_request_error",
        "http_request_denied",
        "proxy_internal_error",
    ];
}
