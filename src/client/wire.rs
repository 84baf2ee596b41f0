//! Opens the TCP connection to the proxy.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

use super::{ClientError, Deadline, ProxyUrl, Step};
use crate::net::socket;

/// Looks the proxy up and connects to the first of its addresses that answers.
pub(super) async fn connect(proxy: &ProxyUrl, deadline: Deadline) -> Result<TcpStream, ClientError> {
    let addresses = deadline.bound(Step::Lookup, lookup(proxy)).await?;
    connect_in_order(&addresses, deadline)
        .await
        .map_err(|fault| fault.unwrap_or_else(|| lookup_fault(proxy, io::Error::other("the name has no address"))))
}

/// Appends what the peer sent next to `buffer`'s spare capacity. 0 is the peer's end.
///
/// rustls reports a peer that ends without close_notify as `UnexpectedEof`. Many proxies end like that, and SSH checks
/// its stream's integrity itself, so it is an end like any other.
pub(super) async fn read_some(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<usize> {
    match stream.read_buf(buffer).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => read,
    }
}

async fn lookup(proxy: &ProxyUrl) -> Result<Vec<SocketAddr>, ClientError> {
    match tokio::net::lookup_host((proxy.host(), proxy.port())).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(source) => Err(lookup_fault(proxy, source)),
    }
}

fn lookup_fault(proxy: &ProxyUrl, source: io::Error) -> ClientError {
    ClientError::Lookup {
        proxy: proxy.host().to_owned(),
        source,
    }
}

/// The error is the last address's; `None` if there was no address.
async fn connect_in_order(addresses: &[SocketAddr], deadline: Deadline) -> Result<TcpStream, Option<ClientError>> {
    let mut fault = None;
    for (tried, &address) in addresses.iter().enumerate() {
        // An equal share of what is left: one dead address must not take the time of the live ones behind it.
        let shares = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match connect_one(address, deadline.remaining() / shares).await {
            Ok(stream) => return Ok(stream),
            Err(source) => fault = Some(ClientError::Connect { address, source }),
        }
    }
    Err(fault)
}

async fn connect_one(address: SocketAddr, share: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(share, TcpStream::connect(address)).await??;
    // A keystroke must not wait for the acknowledgement of the one before it.
    stream.set_nodelay(true)?;
    socket::keep_alive(&stream)?;
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
    async fn a_refusing_address_passes_the_turn_to_the_next() {
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

        let fault = connect_in_order(&[closed, closed], deadline).await.unwrap_err();
        assert!(matches!(fault, Some(ClientError::Connect { address, .. }) if address == closed));
        assert!(connect_in_order(&[], deadline).await.unwrap_err().is_none());
    }
}
