//! The way for bytes to the proxy: a connection of TCP, or a tunnel through the proxy of the user's own network.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::deadline::{Deadline, Step};
use super::dialer::ProxyDialer;
use super::forward::ForwardProxy;
use super::io::BoxedIo;
use super::tls::{self, Trust};
use super::url::{ProxyUrl, Scheme};
use crate::uplink::error::ClientError;

/// A way that is open.
pub(crate) struct ProxyConnection {
    /// The bytes.
    pub(crate) stream: BoxedIo,
    /// The address of the proxy; `None` where another one is between.
    pub(crate) peer: Option<SocketAddr>,
    /// The time for what follows.
    pub(crate) deadline: Deadline,
}

/// Opens the way to `proxy`, through the other one if there is one.
pub(crate) async fn open(
    proxy: &ProxyUrl,
    forward: Option<&ForwardProxy>,
    dialing: &mut ProxyDialer,
    deadline: Deadline,
) -> Result<ProxyConnection, ClientError> {
    let Some(forward) = forward else {
        let (stream, deadline) = dialing.connect(proxy, deadline).await?;
        return Ok(ProxyConnection {
            peer: stream.peer_addr().ok(),
            stream: Box::new(stream),
            deadline,
        });
    };
    let opened = async {
        let (stream, deadline) = dialing.connect(forward.url(), deadline).await?;
        let stream = Box::pin(via_forward_proxy(forward, stream, proxy, deadline)).await?;
        Ok(ProxyConnection {
            stream,
            peer: None,
            deadline,
        })
    };
    opened.await.map_err(|error| forward.error(proxy, error))
}

/// Has another proxy connect to this one. The certificate of the other one has to be of an authority that the system
/// trusts, since `--ca` is for this one.
async fn via_forward_proxy(
    forward: &ForwardProxy,
    stream: TcpStream,
    proxy: &ProxyUrl,
    deadline: Deadline,
) -> Result<BoxedIo, ClientError> {
    let mut stream: BoxedIo = Box::new(stream);
    if forward.url().scheme() == Scheme::Https {
        let tls = tls::Connector::new(forward.url().host(), &Trust::default(), None)?;
        stream = Box::new(Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?);
    }
    forward.open(&mut stream, proxy, deadline).await?;
    Ok(stream)
}
