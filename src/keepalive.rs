//! Keepalive of TCP: of the proxy's sockets and of its client's.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Turns keepalive on: a dead peer is noticed after two minutes, and no NAT forgets an idle session.
///
/// # Errors
/// What setsockopt(2) says.
pub(crate) fn keep_alive<'a, S>(socket: &'a S) -> io::Result<()>
where
    SockRef<'a>: From<&'a S>,
{
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL);
    let socket = SockRef::from(socket);
    let all = keepalive.clone().with_retries(KEEPALIVE_PROBES);
    // Windows before version 1703 of 10, and wine, have a number of probes of their own: TCP_KEEPCNT is WSAENOPROTOOPT.
    socket
        .set_tcp_keepalive(&all)
        .or_else(|_| socket.set_tcp_keepalive(&keepalive))
}

const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
