//! Connects to one of a target's addresses, before a deadline.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use rustix::io::Errno;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::net::socket;
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// The times of a dial, and its pacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest time at one address.
    pub dial_try: Duration,
    /// The longest time at all addresses together.
    pub dial: Duration,
    /// True if a connection to a loopback address is made without pacing.
    pub unpaced_on_loopback: bool,
}

/// A connection to a target, for one client only: never pooled, never opened ahead.
#[derive(Debug)]
pub struct Upstream<S = TcpStream> {
    /// The connected socket, with its [options](socket::prepare) set, or a stream on the connection of an anchor.
    pub stream: S,
    /// The peer's address of the connection.
    pub address: SocketAddr,
    /// The proxy's own address of the connection.
    pub local: SocketAddr,
}

/// The failure of a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialError {
    /// The refusal of the request.
    pub reason: RefusalReason,
    /// The system's error at the last address; `None` if there was none, as at the deadline.
    pub errno: Option<Errno>,
}

impl From<RefusalReason> for DialError {
    fn from(reason: RefusalReason) -> Self {
        Self { reason, errno: None }
    }
}

impl From<DialError> for Refusal {
    fn from(error: DialError) -> Self {
        error.reason.into()
    }
}

/// Tries the addresses in turn, beginning with the one at `start` (modulo their number), until one connects.
///
/// The caller spreads the load by counting `start` up. Dropping the future ends the attempt that is in progress.
///
/// # Errors
/// The error of the last address that was tried; [`RefusalReason::NoEndpoint`] without addresses.
pub async fn dial(addresses: &[SocketAddr], start: usize, options: &Options) -> Result<Upstream, DialError> {
    let deadline = Instant::now() + options.dial;
    let mut last = DialError::from(RefusalReason::NoEndpoint);
    for address in in_turn(addresses, start) {
        let try_deadline = deadline.min(Instant::now() + options.dial_try);
        match timeout_at(try_deadline, connect(address, options)).await {
            Ok(Ok(upstream)) => return Ok(upstream),
            Ok(Err(error)) => {
                last = DialError {
                    reason: classify(&error),
                    errno: Errno::from_io_error(&error),
                };
            }
            Err(_) => last = RefusalReason::DialTimeout.into(),
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(last)
}

fn in_turn(addresses: &[SocketAddr], start: usize) -> impl Iterator<Item = SocketAddr> {
    let start = start.checked_rem(addresses.len()).unwrap_or_default();
    let (before, from) = addresses.split_at(start);
    from.iter().chain(before).copied()
}

async fn connect(address: SocketAddr, options: &Options) -> io::Result<Upstream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if options.unpaced_on_loopback && address.ip().is_loopback() {
        socket::do_not_pace(&socket);
    }
    let stream = socket.connect(address).await?;
    let local = stream.local_addr()?;
    if connects_to_itself(&stream, [local, address])? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    socket::prepare(&stream)?;
    Ok(Upstream { stream, address, local })
}

/// Returns whether a dial has connected to itself (TCP simultaneous open), where no server listens: a dial to a free
/// port of this host's ephemeral range can pick that port as its own. One dial of 28,000 has equal ports, so the system
/// call for the peer is rare.
fn connects_to_itself(stream: &TcpStream, [local, dialled]: [SocketAddr; 2]) -> io::Result<bool> {
    Ok(local.port() == dialled.port() && local == stream.peer_addr()?)
}

fn classify(error: &io::Error) -> RefusalReason {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::AGAIN) => {
            RefusalReason::OutOfSockets
        }
        Some(Errno::TIMEDOUT) => RefusalReason::DialTimeout,
        // ENOTCONN: the connection was reset before the system call for its peer.
        Some(Errno::CONNREFUSED | Errno::CONNRESET | Errno::NOTCONN) => RefusalReason::TargetRefused,
        Some(_) => RefusalReason::TargetUnreachable,
        None if error.kind() == io::ErrorKind::ConnectionRefused => RefusalReason::TargetRefused,
        None => RefusalReason::TargetUnreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use tokio::net::TcpListener;

    const OPTIONS: Options = Options {
        dial_try: Duration::from_secs(3),
        dial: Duration::from_secs(10),
        unpaced_on_loopback: false,
    };

    #[tokio::test]
    async fn only_a_connection_to_loopback_is_not_paced_where_that_is_asked_for() {
        let (_listener, address) = listening().await;
        let control = async |unpaced_on_loopback| {
            let options = Options {
                unpaced_on_loopback,
                ..OPTIONS
            };
            let stream = dial(&[address], 0, &options).await.unwrap().stream;
            SockRef::from(&stream).tcp_congestion().unwrap()
        };
        let of_system = SockRef::from(&TcpSocket::new_v4().unwrap()).tcp_congestion().unwrap();
        assert_eq!(control(false).await, of_system);
        assert!(control(true).await.starts_with(b"reno\0"));
    }

    async fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Returns an address of loopback without a listener.
    async fn closed() -> SocketAddr {
        listening().await.1
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_refuses() {
        let (_listener, open) = listening().await;
        let closed = closed().await;
        for start in 0..3 {
            let upstream = dial(&[closed, open], start, &OPTIONS).await.unwrap();
            assert_eq!(upstream.address, open);
            assert!(upstream.stream.nodelay().unwrap());
        }
    }

    #[tokio::test]
    async fn a_socket_that_is_connected_to_itself_is_known_by_its_addresses() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        // The kernel lets both ends of a connection be one socket (TCP simultaneous open).
        let stream = socket.connect(address).await.unwrap();
        assert!(connects_to_itself(&stream, [stream.local_addr().unwrap(), address]).unwrap());
        let (_listener, open) = listening().await;
        let upstream = connect(open, &OPTIONS).await.unwrap();
        assert_eq!(upstream.local, upstream.stream.local_addr().unwrap());
        assert!(!connects_to_itself(&upstream.stream, [upstream.local, open]).unwrap());
    }

    #[tokio::test]
    async fn counting_up_spreads_over_the_addresses() {
        let (_one, first) = listening().await;
        let (_two, second) = listening().await;
        let mut reached = Vec::new();
        for start in 0..4 {
            reached.push(dial(&[first, second], start, &OPTIONS).await.unwrap().address);
        }
        assert_eq!(reached, [first, second, first, second]);
    }

    #[tokio::test]
    async fn each_failure_has_its_refusal() {
        let error = |reason, errno| DialError { reason, errno };
        let refused = dial(&[closed().await], 0, &OPTIONS).await.unwrap_err();
        assert_eq!(refused, error(RefusalReason::TargetRefused, Some(Errno::CONNREFUSED)));
        // No TCP connection leads to an address of all.
        let broadcast = "127.255.255.255:22".parse().unwrap();
        let unreachable = dial(&[broadcast], 0, &OPTIONS).await.unwrap_err();
        assert_eq!(
            unreachable,
            error(RefusalReason::TargetUnreachable, Some(Errno::NETUNREACH))
        );
        let none = dial(&[], 7, &OPTIONS).await.unwrap_err();
        assert_eq!(none, error(RefusalReason::NoEndpoint, None));
        for (errno, refusal) in [
            (Errno::MFILE, RefusalReason::OutOfSockets),
            (Errno::ADDRNOTAVAIL, RefusalReason::OutOfSockets),
            (Errno::TIMEDOUT, RefusalReason::DialTimeout),
            (Errno::CONNRESET, RefusalReason::TargetRefused),
            (Errno::NOTCONN, RefusalReason::TargetRefused),
            (Errno::HOSTUNREACH, RefusalReason::TargetUnreachable),
            (Errno::NETUNREACH, RefusalReason::TargetUnreachable),
        ] {
            assert_eq!(classify(&errno.into()), refusal, "{errno:?}");
        }
    }

    #[tokio::test]
    async fn a_blackhole_ends_at_its_deadline_and_the_next_address_is_tried() {
        // A listener whose queue is full drops further SYNs, as a blackhole does.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket
            .bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into())
            .unwrap();
        socket.listen(0).unwrap();
        let blackhole = socket.local_addr().unwrap().as_socket().unwrap();
        let _queued = std::net::TcpStream::connect(blackhole).unwrap();
        let (_listener, open) = listening().await;
        let options = Options {
            dial_try: Duration::from_millis(50),
            dial: Duration::from_secs(5),
            ..OPTIONS
        };
        assert_eq!(
            dial(&[blackhole], 0, &options).await.unwrap_err(),
            RefusalReason::DialTimeout.into()
        );
        assert_eq!(dial(&[blackhole, open], 0, &options).await.unwrap().address, open);
    }
}
