//! One request and its answer, over HTTP/1 or HTTP/2, or a channel of SSH: the 200 and the refusals are written here, and
//! only here.

use serde::Deserialize;

use crate::protocol::host_key::PublishedKeys;
use crate::tunnel::http2::Request;
use crate::tunnel::outcome::RefusalReason;
use crate::tunnel::stream::Stream;

mod channel;
mod client_program;
pub mod head;
pub mod http1;
pub(in crate::proxy) mod http2;
mod request;
mod websocket;

pub use self::channel::ChannelExchange;
pub use self::client_program::ClientProgram;
use self::http1::Http1Exchange;
pub use self::request::{ConnectRequest, CredentialPolicy, ListingRequest, Purpose, RequestHead};
pub(crate) use self::request::{HostKeysField, NamedSession};
pub use self::websocket::{Forwarding, WebSocketOptions};

/// How a port sends refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalMode {
    /// By status, reason phrase and body.
    #[default]
    Http,
    /// In band to the [programs](ClientProgram::SshProxyCommand) that SSH clients run: a 200, and after it an SSH
    /// disconnect with the sentence, which SSH clients print. By HTTP to all others.
    Auto,
    /// In band to every program whose CONNECT was read, except `switchboard connect`, which needs the status.
    Ssh,
}

impl RefusalMode {
    /// Returns whether that program is refused in band.
    pub fn are_in_band(self, program: ClientProgram) -> bool {
        match (self, program) {
            (Self::Http, _)
            | (_, ClientProgram::Unread | ClientProgram::SwitchboardConnect)
            | (Self::Auto, ClientProgram::Other) => false,
            (Self::Auto, ClientProgram::SshProxyCommand)
            | (Self::Ssh, ClientProgram::SshProxyCommand | ClientProgram::Other) => true,
        }
    }
}

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

    /// Sends the 101 of a [`Purpose::Registration`], with these fields. Returns the stream, and the bytes after the
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
