//! TCP keepalive, for the proxy's sockets and for those of its clients.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// The times after which a silent connection is probed, and dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    /// The silence before the first probe.
    idle: Duration,
    /// The time between two probes.
    interval: Duration,
    /// The unanswered probes after which the connection is dropped.
    probes: u32,
}

impl Keepalive {
    /// The proxy's: a dead peer is noticed after two minutes, and no NAT forgets an idle session.
    pub(crate) const PROXY: Self = Self {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    };
    /// The client's: shorter, because a person waits.
    pub(crate) const CLIENT: Self = Self {
        idle: Duration::from_secs(30),
        interval: Duration::from_secs(10),
        probes: 3,
    };

    /// Returns the time after which a dead peer is noticed.
    pub(crate) fn timeout(self) -> Duration {
        self.idle + self.interval * self.probes
    }

    /// Turns keepalive on.
    ///
    /// # Errors
    /// The error of setsockopt(2).
    pub(crate) fn turn_on<'a, S>(self, socket: &'a S) -> io::Result<()>
    where
        SockRef<'a>: From<&'a S>,
    {
        let keepalive = TcpKeepalive::new().with_time(self.idle).with_interval(self.interval);
        let socket = SockRef::from(socket);
        let all = keepalive.clone().with_retries(self.probes);
        // Windows 10 before version 1703, and wine, fix the number of probes: TCP_KEEPCNT fails with WSAENOPROTOOPT.
        socket
            .set_tcp_keepalive(&all)
            .or_else(|_| socket.set_tcp_keepalive(&keepalive))
    }
}
