//! One request and its answer, over HTTP or by a channel of SSH.

pub use self::channel::ChannelExchange;
use crate::protocol::host_key::PublishedKeys;
use crate::proxy::http::http1::Http1Exchange;
use crate::proxy::http::{CredentialPolicy, RequestHead, WebSocketOptions, http2};
use crate::tunnel::http2::Request;
use crate::tunnel::outcome::RefusalReason;
use crate::tunnel::stream::Stream;

mod channel;

/// A client's one request and its one answer (RFC 9110 section 9.3.6).
#[derive(Debug)]
pub enum Exchange {
    /// Over HTTP/1.
    Http1(Http1Exchange),
    /// On a stream of an HTTP/2 connection.
    Http2(Box<Request>),
    /// By a channel of an SSH connection.
    Ssh(Box<ChannelExchange>),
}

impl From<Request> for Exchange {
    fn from(request: Request) -> Self {
        Self::Http2(Box::new(request))
    }
}

impl Exchange {
    /// Creates an exchange over HTTP/1 of which `read` has been read.
    pub fn http1(stream: impl Into<Stream>, read: Vec<u8>) -> Self {
        Self::Http1(Http1Exchange::new(stream.into(), read))
    }

    /// Returns the version of HTTP: `1` or `2`; empty for SSH.
    pub fn version(&self) -> &'static str {
        match self {
            Self::Http1(_) => "1",
            Self::Http2(_) => "2",
            Self::Ssh(_) => "",
        }
    }

    /// Reads until the request is complete. `websocket`: also one for a WebSocket.
    ///
    /// # Errors
    /// The refusal, which the bytes that were read have decided.
    pub async fn read_head(
        &mut self,
        credentials: CredentialPolicy,
        websocket: Option<&WebSocketOptions>,
    ) -> Result<RequestHead, RefusalReason> {
        match self {
            Self::Http1(exchange) => exchange.read_head(credentials, websocket).await,
            Self::Http2(request) => http2::read_head(request, credentials, websocket),
            Self::Ssh(exchange) => exchange.read_head(credentials),
        }
    }

    /// Completes when the client leaves before its answer, with the refusal to record.
    pub async fn client_gone(&mut self) -> RefusalReason {
        match self {
            Self::Http1(exchange) => exchange.client_gone().await,
            Self::Http2(request) => http2::client_gone(request).await,
            Self::Ssh(exchange) => exchange.client_gone().await,
        }
    }

    /// Sends the 200 or 101, which repeats the marker of an end notice and has these host keys. Returns the stream of the
    /// tunnel, and the bytes after the head. The head and these bytes are at most 16 KiB together.
    ///
    /// # Errors
    /// [`RefusalReason::ClientDisconnected`].
    pub async fn accept(self, host_keys: Option<&PublishedKeys>) -> Result<(Stream, Vec<u8>), RefusalReason> {
        match self {
            Self::Http1(exchange) => exchange.accept(host_keys).await,
            // Early data is in the stream.
            Self::Http2(request) => Ok((http2::accept(*request, host_keys)?, Vec::new())),
            Self::Ssh(exchange) => Ok((exchange.accept()?, Vec::new())),
        }
    }

    /// Sends the 101 of a [registration](crate::protocol::registration), with these fields. Returns the stream, and the bytes after the
    /// head.
    ///
    /// # Errors
    /// [`RefusalReason::ClientDisconnected`].
    pub async fn upgrade(self, fields: &str) -> Result<(Stream, Vec<u8>), RefusalReason> {
        match self {
            Self::Http1(exchange) => exchange.upgrade(fields).await,
            // HTTP/2 has no upgrade (RFC 9113 section 8.6), so no request for one has been read.
            Self::Http2(_) | Self::Ssh(_) => Err(RefusalReason::MethodNotAllowed),
        }
    }

    /// Sends a 200 with a listing in JSON. Returns the stream, for the caller to close gracefully.
    ///
    /// # Errors
    /// [`RefusalReason::ClientDisconnected`].
    pub async fn list(self, listing: &str) -> Result<Stream, RefusalReason> {
        match self {
            Self::Http1(exchange) => exchange.list(listing).await,
            Self::Http2(request) => http2::list(*request, listing).await,
            // No list is asked for.
            Self::Ssh(_) => Err(RefusalReason::MethodNotAllowed),
        }
    }
}
