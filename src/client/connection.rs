//! The connection to the proxy: of TCP, or through the proxy of the user's own network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;

use super::transport::Stream;
use super::{ClientError, Deadline, ForwardProxy, Options, ProxyUrl, Scheme, Step, Trust, tls};
use crate::keepalive::keep_alive;

/// A way for bytes to the proxy.
pub(super) struct Connection {
    /// The bytes.
    pub(super) stream: Stream,
    /// The address of the proxy; `None` where another one is between.
    pub(super) peer: Option<IpAddr>,
}

/// Opens the way that the settings ask for.
pub(super) async fn open(options: &Options, deadline: Deadline) -> Result<Connection, ClientError> {
    let Some(forward) = &options.forward else {
        let stream = connect(&options.proxy, deadline).await?;
        return Ok(Connection {
            peer: stream.peer_addr().ok().map(|peer| peer.ip()),
            stream: Box::new(stream),
        });
    };
    let opened = Box::pin(through(forward, &options.proxy, deadline)).await;
    let stream = opened.map_err(|error| forward.error(&options.proxy, error))?;
    Ok(Connection { stream, peer: None })
}

/// Has another proxy connect to this one. The certificate of the other one has to be of an authority that the system
/// trusts, since `--ca` is for this one.
async fn through(forward: &ForwardProxy, proxy: &ProxyUrl, deadline: Deadline) -> Result<Stream, ClientError> {
    let url = forward.url();
    let stream: Stream = Box::new(connect(url, deadline).await?);
    let mut stream = match url.scheme() {
        Scheme::Http => stream,
        Scheme::Https => {
            let tls = tls::Connector::new(url.host(), &Trust::default(), None, false)?;
            let stream: Stream = Box::new(Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?);
            stream
        }
    };
    forward.open(&mut stream, proxy, deadline).await?;
    Ok(stream)
}

/// Looks the proxy's name up and connects to the first of its addresses that accepts.
async fn connect(proxy: &ProxyUrl, deadline: Deadline) -> Result<TcpStream, ClientError> {
    let addresses = deadline.bound(Step::Lookup, lookup(proxy)).await?;
    connect_in_order(&addresses, deadline)
        .await
        .map_err(|error| error.unwrap_or_else(|| lookup_error(proxy, io::Error::other("the name has no address"))))
}

async fn lookup(proxy: &ProxyUrl) -> Result<Vec<SocketAddr>, ClientError> {
    match tokio::net::lookup_host((proxy.host(), proxy.port())).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(source) => Err(lookup_error(proxy, source)),
    }
}

fn lookup_error(proxy: &ProxyUrl, source: io::Error) -> ClientError {
    ClientError::Lookup {
        proxy: proxy.host().to_owned(),
        source,
    }
}

/// The error is that of the last address, or `None` without addresses.
async fn connect_in_order(addresses: &[SocketAddr], deadline: Deadline) -> Result<TcpStream, Option<ClientError>> {
    let mut error = None;
    for (tried, &address) in addresses.iter().enumerate() {
        // An equal share of the time left: a dead address must not use up the time of those behind it.
        let shares = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match connect_one(address, deadline.remaining() / shares).await {
            Ok(stream) => return Ok(stream),
            Err(source) => error = Some(ClientError::Connect { address, source }),
        }
    }
    Err(error)
}

async fn connect_one(address: SocketAddr, share: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(share, TcpStream::connect(address)).await??;
    // Without it a keystroke waits for the acknowledgement of the one before (tcp(7)).
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use tokio::net::TcpListener;

    async fn bound() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_followed_by_the_next() {
        let deadline = Deadline::after(Duration::from_secs(10));
        let (gone, closed) = bound().await;
        drop(gone);
        let (_listener, open) = bound().await;
        let stream = connect_in_order(&[closed, open], deadline).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
        assert!(stream.nodelay().unwrap());
        assert_eq!(
            SockRef::from(&stream).tcp_keepalive_time().unwrap(),
            Duration::from_secs(60)
        );

        let error = connect_in_order(&[closed, closed], deadline).await.unwrap_err();
        assert!(matches!(error, Some(ClientError::Connect { address, .. }) if address == closed));
        assert!(connect_in_order(&[], deadline).await.unwrap_err().is_none());
    }
}
