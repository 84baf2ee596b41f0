//! The errors of a request head.

use crate::base::authority::AuthorityError;

/// An error of a request head. Its phrase is the reason phrase of the 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The request target is not an authority.
    Target(AuthorityError),
    /// The first bytes are a TLS handshake record.
    Tls,
    /// The first bytes are an SSH identification: the client has no ProxyCommand.
    Ssh,
    /// The request line is not `method target HTTP/1.x`.
    RequestLine,
    /// The version is neither 1.0 nor 1.1.
    Version,
    /// A field line breaks RFC 9112 section 5: a space before the colon, a folded line, a bare CR, a control byte.
    Field,
    /// An HTTP/1.1 request without Host (RFC 9112 section 3.2).
    NoHost,
    /// The request has more than one Host.
    SeveralHosts,
    /// The Host is not `host[:port]`.
    BadHost,
    /// The request has Transfer-Encoding or a Content-Length, over HTTP/1 other than 0. A CONNECT has no content (RFC 9110
    /// section 9.3.6), and the bytes after an upgrade are those of the tunnel.
    Content,
    /// The client closed its side in the middle of the head.
    Truncated,
    /// A CONNECT over HTTP/2 without `:authority` (RFC 9113 section 8.5).
    NoAuthority,
    /// The connection breaks RFC 9113.
    Frame,
    /// A WebSocket request without one key of 16 bytes (RFC 6455 section 4.1).
    WebSocketKey,
    /// A WebSocket request for another subprotocol.
    Subprotocol,
    /// The connection of a jump host breaks RFC 4253.
    NotSsh,
}

impl Malformed {
    /// Returns a short ASCII sentence that names the error.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Target(error) => error.phrase(),
            Self::Tls => "this port does not speak TLS",
            Self::Ssh => "this is an HTTP CONNECT proxy: set a ProxyCommand",
            Self::RequestLine => "the request line is malformed",
            Self::Version => "the HTTP version must be 1.0 or 1.1",
            Self::Field => "a header field is malformed",
            Self::NoHost => "the Host header is missing",
            Self::SeveralHosts => "there is more than one Host header",
            Self::BadHost => "the Host header is malformed",
            Self::Content => "the request must not have content",
            Self::Truncated => "the request head is incomplete",
            Self::NoAuthority => "the :authority is missing",
            Self::Frame => "the HTTP/2 connection is malformed",
            Self::WebSocketKey => "the Sec-WebSocket-Key is missing or malformed",
            Self::Subprotocol => "the WebSocket subprotocol must be switchboard.v1",
            Self::NotSsh => "the SSH connection is malformed",
        }
    }
}
