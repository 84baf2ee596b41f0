//! One TCP connection to the proxy: the lookup of its name, the addresses in their order, the socket's options.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::base::platform;
use crate::client::{ClientError, Deadline, ProxyUrl};
use crate::net::keepalive::Keepalive;

/// The addresses of the proxy's name.
pub(in crate::client) async fn lookup(proxy: &ProxyUrl) -> Result<Vec<SocketAddr>, ClientError> {
    match tokio::net::lookup_host((proxy.host(), proxy.port())).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(source) => Err(ClientError::Lookup {
            proxy: proxy.host().to_owned(),
            source,
        }),
    }
}

/// Connects to the first address that accepts. The error is that of the last address, or `None` without addresses.
pub(in crate::client) async fn connect_in_order(
    addresses: &[SocketAddr],
    deadline: Deadline,
) -> Result<TcpStream, Option<ClientError>> {
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

/// Connects to one address within that time.
pub(in crate::client) async fn connect_one(address: SocketAddr, share: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(share, TcpStream::connect(address)).await??;
    // Without it a keystroke waits for the acknowledgement of the one before (tcp(7)).
    stream.set_nodelay(true)?;
    // Behind its first bytes a session without an anchor has no other clock: ssh's keepalives are off. Bytes that no peer
    // acknowledges would keep a dead path for about 15 minutes (tcp(7), tcp_retries2).
    Keepalive::CLIENT.turn_on(&stream)?;
    platform::give_up_after(&stream, Keepalive::CLIENT.longest())?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use tokio::net::{TcpListener, TcpSocket};

    async fn bound() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_followed_by_the_next() {
        let deadline = Deadline::after(Duration::from_secs(10));
        // Its port is taken by a socket that does not listen.
        let gone = TcpSocket::new_v4().unwrap();
        gone.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = gone.local_addr().unwrap();
        let (_listener, open) = bound().await;
        let stream = connect_in_order(&[closed, open], deadline).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(60)));

        let error = connect_in_order(&[closed, closed], deadline).await.unwrap_err();
        assert!(matches!(error, Some(ClientError::Connect { address, .. }) if address == closed));
        assert!(connect_in_order(&[], deadline).await.unwrap_err().is_none());
    }
}
