//! The connection to the proxy: over TCP, or through the forward proxy of the user's own network.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::deadline::{Deadline, Step};
use super::dialer::ProxyDialer;
use super::forward::ForwardProxy;
use super::io::BoxedIo;
use super::tls::{self, Trust};
use super::url::{ProxyUrl, Scheme};
use crate::uplink::error::ClientError;

/// An open connection.
pub(crate) struct ProxyConnection {
    /// The byte stream.
    pub(crate) stream: BoxedIo,
    /// The address of the proxy; `None` if there is another proxy in between.
    pub(crate) peer: Option<SocketAddr>,
    /// The deadline of the following steps.
    pub(crate) deadline: Deadline,
}

/// Connects to `proxy`, through the forward proxy if there is one.
pub(crate) async fn open(
    proxy: &ProxyUrl,
    forward: Option<&ForwardProxy>,
    dialer: &mut ProxyDialer,
    deadline: Deadline,
) -> Result<ProxyConnection, ClientError> {
    let Some(forward) = forward else {
        let (stream, deadline) = dialer.connect(proxy, deadline).await?;
        return Ok(ProxyConnection {
            peer: stream.peer_addr().ok(),
            stream: Box::new(stream),
            deadline,
        });
    };
    let opened = async {
        let (stream, deadline) = dialer.connect(forward.url(), deadline).await?;
        let stream = Box::pin(via_forward_proxy(forward, stream, proxy, deadline)).await?;
        Ok(ProxyConnection {
            stream,
            peer: None,
            deadline,
        })
    };
    opened.await.map_err(|error| forward.error(proxy, error))
}

/// Connects to a server through a forward proxy. The system must trust the forward proxy's certificate: `--ca` only
/// applies to the server.
pub(super) async fn via_forward_proxy(
    forward: &ForwardProxy,
    stream: TcpStream,
    server: &ProxyUrl,
    deadline: Deadline,
) -> Result<BoxedIo, ClientError> {
    let mut stream: BoxedIo = Box::new(stream);
    if forward.url().scheme() == Scheme::Https {
        let tls = tls::Connector::new(forward.url().host(), &Trust::default(), None)?;
        stream = Box::new(Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?);
    }
    forward.open(&mut stream, server, deadline).await?;
    Ok(stream)
}
