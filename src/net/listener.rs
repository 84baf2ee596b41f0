//! Binds a public port and accepts connections from it, even when the process runs out of descriptors.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::listen_conflicts::{collide, is_same, leaves_ipv4};
use super::socket;

/// The address of a port, and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address; with port 0 the kernel chooses.
    pub address: SocketAddr,
    /// True if other processes of the same user may have the port, too (SO_REUSEPORT): the kernel spreads clients over
    /// all of them, so a new process can take over from an old one.
    pub reuse_port: bool,
    /// True if a port at `[::]` leaves IPv4 clients to another port (IPV6_V6ONLY).
    pub ipv6_only: bool,
}

/// A port of this process alone.
impl From<SocketAddr> for Options {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            reuse_port: false,
            ipv6_only: false,
        }
    }
}

impl Options {
    /// Returns these options for use next to all public ports of the process: a port at `[::]` leaves IPv4 clients to
    /// one at `0.0.0.0` with the same number.
    pub fn resolve_overlap<'a>(&self, all: impl IntoIterator<Item = &'a Self>) -> Self {
        let ipv6_only = all.into_iter().any(|other| leaves_ipv4(self.address, other.address));
        Self {
            ipv6_only,
            ..self.clone()
        }
    }

    /// Returns whether two public ports exclude each other, even if their [overlap is resolved](Self::resolve_overlap).
    pub fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.address, other.address);
        let are_shared = self.reuse_port && other.reuse_port;
        // One address twice is a mistake, though the system allows it if the port is shared.
        is_same(one, two) || !are_shared && !leaves_ipv4(one, two) && !leaves_ipv4(two, one) && collide(one, two)
    }
}

/// Binds the port, with a backlog that holds a burst of 2,000 clients.
///
/// # Errors
/// Those of socket(2), bind(2) and listen(2): most often EADDRINUSE or EACCES.
pub fn bind(options: &Options) -> io::Result<TcpListener> {
    let create = |address| Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let (socket, address) = match (create(options.address), without_ipv6(options)) {
        (Err(error), Some(address)) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
            (create(address)?, address)
        }
        (created, _) => (created?, options.address),
    };
    let refused = |error: io::Error| io::Error::new(error.kind(), format!("the system refuses setsockopt(2): {error}"));
    socket.set_reuse_address(true).map_err(refused)?;
    if options.reuse_port {
        socket.set_reuse_port(true).map_err(refused)?;
    }
    if let IpAddr::V6(ip) = address.ip()
        && ip.is_unspecified()
    {
        // Set whether true or false, because the default depends on the host (net.ipv6.bindv6only).
        socket.set_only_v6(options.ipv6_only).map_err(refused)?;
    }
    socket.set_nonblocking(true)?;
    // Accepted sockets inherit these options: six system calls less for each connection.
    socket::prepare(&socket).map_err(refused)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Returns the address of a port at `[::]` on a kernel without IPv6 (ipv6.disable=1); `None` for other ports.
fn without_ipv6(options: &Options) -> Option<SocketAddr> {
    let Options { address, ipv6_only, .. } = *options;
    let is_dual_stack = address.is_ipv6() && address.ip().is_unspecified() && !ipv6_only;
    is_dual_stack.then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// A listener, and whether other processes may share its port.
#[derive(Debug)]
pub struct BoundListener {
    /// The listener.
    pub listener: TcpListener,
    /// As [`Options::reuse_port`].
    pub is_shared: bool,
}

/// A port of this process alone.
impl From<TcpListener> for BoundListener {
    fn from(listener: TcpListener) -> Self {
        Self {
            listener,
            is_shared: false,
        }
    }
}

/// Hands every connection to `serve`, which must not block, until `stop` completes.
///
/// At the descriptor limit it pauses instead of spinning, and calls `paused` once for each pause. After `stop`, a
/// shared port is served for [`TAPER`] more. The connections then in the backlog are still handed over: closing the
/// listener would reset them.
pub async fn accept(
    BoundListener { listener, is_shared }: BoundListener,
    stop: impl Future<Output = ()>,
    mut serve: impl FnMut(TcpStream, SocketAddr),
    mut paused: impl FnMut(),
) {
    accept_until(stop, &listener, &mut serve, &mut paused).await;
    if is_shared {
        stop_queuing_syns(&listener);
        accept_until(sleep(TAPER), &listener, &mut serve, &mut paused).await;
    }
    if let Ok(listener) = listener.into_std() {
        drain_backlog(&listener, serve);
    }
}

/// Makes the kernel keep no state for TCP handshakes that begin from now on.
///
/// A close resets the handshakes that the kernel holds for this listener, even if another process listens on the port
/// (unless net.ipv4.tcp_migrate_req is on). With a backlog of 0 the kernel holds none, and answers a SYN with a cookie:
/// the connection goes to a process that listens when the client returns the cookie. Without cookies
/// (net.ipv4.tcp_syncookies) the kernel drops the SYN, and the client sends it again a second later.
fn stop_queuing_syns(listener: &TcpListener) {
    if let Err(error) = rustix::net::listen(listener, 0) {
        warn!(%error, "cannot leave the shared port gently");
    }
}

async fn accept_until(
    stop: impl Future<Output = ()>,
    listener: &TcpListener,
    serve: &mut impl FnMut(TcpStream, SocketAddr),
    paused: &mut impl FnMut(),
) {
    let mut stop = pin!(stop);
    let mut at_once = 0;
    let mut quiet_until = Instant::now();
    loop {
        // Yields, because a pending connection that is evicted for a new one keeps its descriptor until its task runs.
        at_once += 1;
        if at_once > AT_ONCE {
            at_once = 1;
            yield_now().await;
        }
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => hand_over(serve, stream, peer),
            Err(error) if concerns_one_client(&error) => {}
            Err(error) => {
                paused();
                // Without this limit, a process without descriptors would log ten lines a second.
                if quiet_until <= Instant::now() {
                    quiet_until = Instant::now() + BETWEEN_WARNINGS;
                    let address = listener.local_addr().ok().map(tracing::field::display);
                    warn!(%error, address, "cannot accept, pausing");
                }
                tokio::select! {
                    () = &mut stop => return,
                    () = sleep(PAUSE) => {}
                }
            }
        }
    }
}

/// Accepts the connections in the backlog, and does not wait for more; bounded, as clients may still be connecting.
fn drain_backlog(listener: &std::net::TcpListener, mut serve: impl FnMut(TcpStream, SocketAddr)) {
    for _ in 0..BACKLOG {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            // A client that has left already is no end of the backlog.
            Err(error) if concerns_one_client(&error) && error.kind() != io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            hand_over(&mut serve, stream, peer);
        }
    }
}

/// Calls `serve`. Its panic, which the panic hook logs, costs this connection, and not the port.
fn hand_over(serve: &mut impl FnMut(TcpStream, SocketAddr), stream: TcpStream, peer: SocketAddr) {
    catch_unwind(AssertUnwindSafe(|| serve(stream, canonical(peer)))).ok();
}

/// Returns the address of a client of a dual-stack socket: `192.0.2.1`, not `::ffff:192.0.2.1`.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// Returns whether the error belongs to the connection that was about to be accepted (accept(2), "Error handling").
///
/// All other errors, such as EMFILE, ENOMEM, or EPERM of a seccomp profile, would recur at the next accept: a plain
/// loop would spin.
fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::AGAIN
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
        )
    )
}

/// Returns the address at which this host reaches a listener of its own: an unspecified one becomes loopback of IPv4, which
/// `[::]` takes, too, and which is there where IPv6 is off.
pub(crate) fn reachable(listening: SocketAddr) -> SocketAddr {
    match listening.ip().is_unspecified() {
        true => (Ipv4Addr::LOCALHOST, listening.port()).into(),
        false => listening,
    }
}

/// With tokio's default, 1,024, half of 2,000 simultaneous clients wait a second and send a second SYN.
const BACKLOG: i32 = 4096;
/// Connections that a listener accepts before other tasks run. Each may evict a pending one, whose descriptor is
/// closed by its task.
pub(crate) const AT_ONCE: usize = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// Between two messages about pauses.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(10);
/// The time for which a shared port still accepts after the stop. Handshakes in progress end within it: if their ACK is
/// lost, the kernel resends the SYN-ACK after 1 s.
const TAPER: Duration = Duration::from_millis(1500);

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::timeout;

    fn loopback() -> Options {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()
    }

    async fn accept_until_served(
        listener: TcpListener,
        serve: impl FnMut(TcpStream, SocketAddr),
        served: &AtomicUsize,
        clients: usize,
    ) {
        let all = async {
            while served.load(Ordering::Relaxed) < clients {
                yield_now().await
            }
        };
        timeout(Duration::from_secs(60), accept(listener.into(), all, serve, || {}))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_burst_of_connections_is_accepted_in_parts_so_that_their_tasks_run() {
        const CLIENTS: usize = 100;
        let listener = bind(&loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let (waiting, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut max = 0;
        let serve = |stream, _| {
            max = max.max(waiting.fetch_add(1, Ordering::Relaxed) + 1);
            let (waiting, served) = (Arc::clone(&waiting), Arc::clone(&served));
            tokio::spawn(async move {
                drop::<TcpStream>(stream);
                waiting.fetch_sub(1, Ordering::Relaxed);
                served.fetch_add(1, Ordering::Relaxed);
            });
        };
        accept_until_served(listener, serve, &served, CLIENTS).await;
        assert!(max <= AT_ONCE, "{max}");
        drop(clients);
    }

    #[tokio::test]
    async fn a_panic_costs_its_connection_and_not_the_port() {
        const CLIENTS: usize = 3;
        let listener = bind(&loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let _clients = [(); CLIENTS].map(|()| std::net::TcpStream::connect(address).unwrap());
        let served = AtomicUsize::new(0);
        let serve = |_, _| assert!(served.fetch_add(1, Ordering::Relaxed) > 0, "the first one");
        accept_until_served(listener, serve, &served, CLIENTS).await;
    }

    #[test]
    fn only_errors_of_one_connection_are_ignored() {
        for (errno, ignored) in [
            (Errno::CONNABORTED, true),
            (Errno::PERM, false),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOBUFS, false),
            (Errno::NOMEM, false),
            (Errno::BADF, false),
        ] {
            assert_eq!(concerns_one_client(&errno.into()), ignored, "{errno:?}");
        }
    }

    #[test]
    fn an_ipv4_client_of_a_dual_stack_port_keeps_its_address() {
        for (seen, known) in [
            ("[::ffff:192.0.2.1]:7", "192.0.2.1:7"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ] {
            assert_eq!(canonical(seen.parse().unwrap()), known.parse().unwrap());
        }
    }

    #[tokio::test]
    async fn accepted_sockets_have_their_options() {
        let listener = bind(&loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = accepted.unwrap().0;
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(120)));
    }

    #[tokio::test]
    async fn connections_in_the_backlog_at_the_stop_are_still_served() {
        let listener = bind(&loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..10)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let mut served = 0;
        accept(listener.into(), std::future::ready(()), |_, _| served += 1, || ()).await;
        assert_eq!(served, clients.len());
        std::net::TcpStream::connect(address).unwrap_err();
    }

    #[tokio::test]
    async fn a_port_is_shared_only_if_both_listeners_want_it() {
        let shared = Options {
            reuse_port: true,
            ..loopback()
        };
        let first = bind(&shared).unwrap();
        let there = Options {
            address: first.local_addr().unwrap(),
            ..shared
        };
        let alone = Options {
            reuse_port: false,
            ..there
        };
        assert_eq!(bind(&alone).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let second = bind(&there).unwrap();
        assert_eq!(second.local_addr().unwrap(), there.address);
    }

    const PLACES: [&str; 6] = [
        "0.0.0.0",
        "127.0.0.1",
        "127.0.0.2",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ];

    fn at(place: &str, port: u16, reuse_port: bool) -> Options {
        Options {
            reuse_port,
            ..format!("{place}:{port}").parse::<SocketAddr>().unwrap().into()
        }
    }

    /// Returns whether the system lets one process listen at both. Another process may have taken the number since.
    fn can_listen(places: [&str; 2], reuse_port: [bool; 2]) -> bool {
        (0..20).any(|_| {
            // A number of which neither family has a socket yet.
            let number = bind(&at("[::]", 0, false)).unwrap().local_addr().unwrap().port();
            let ports = [0, 1].map(|index| at(places[index], number, reuse_port[index]));
            let bound = ports.iter().map(|port| bind(&port.resolve_overlap(&ports)));
            bound.collect::<Result<Vec<_>, _>>().is_ok()
        })
    }

    #[tokio::test]
    async fn two_ports_overlap_if_the_system_refuses_the_second() {
        for one in PLACES {
            for other in PLACES {
                for reuse_port in [[false, false], [true, false], [true, true]] {
                    let [first, second] = [at(one, 1, reuse_port[0]), at(other, 1, reuse_port[1])];
                    let is_mistake = is_same(first.address, second.address) && reuse_port == [true, true];
                    assert_eq!(
                        first.overlaps(&second),
                        is_mistake || !can_listen([one, other], reuse_port),
                        "{one} and {other}, reuse_port: {reuse_port:?}"
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn a_port_at_any_ipv6_address_takes_ipv4_clients_but_beside_a_port_that_does() {
        let alone = bind(&at("[::]", 0, false)).unwrap();
        let number = alone.local_addr().unwrap().port();
        let (client, accepted) = tokio::join!(TcpStream::connect((Ipv4Addr::LOCALHOST, number)), alone.accept());
        drop((client.unwrap(), accepted.unwrap(), alone));
        let ports = [at("[::]", number, true), at("0.0.0.0", number, true)];
        for (port, ipv6_only) in [(ports[0].clone(), false), (ports[0].resolve_overlap(&ports), true)] {
            let bound = bind(&port).unwrap();
            assert_eq!(SockRef::from(&bound).only_v6().unwrap(), ipv6_only);
        }
    }

    /// Clients connect all the time while one of two listeners leaves.
    #[tokio::test]
    async fn no_connection_is_lost_when_a_listener_of_a_shared_port_leaves() {
        let mut options = Options {
            reuse_port: true,
            ..loopback()
        };
        let first = bind(&options).unwrap();
        options.address = first.local_addr().unwrap();
        let second = bind(&options).unwrap();
        let served = std::cell::Cell::new(0);
        let serve = |stream: TcpStream, _| {
            // Each gets its byte: a client that is reset gets none.
            assert_eq!(SockRef::from(&stream).send(b"x").unwrap(), 1);
            served.set(served.get() + 1);
        };
        let address = options.address;
        let clients = async {
            let leaves = Instant::now() + TAPER + Duration::from_millis(500);
            let mut came = 0;
            while Instant::now() < leaves {
                let mut client = TcpStream::connect(address).await.unwrap();
                tokio::io::AsyncReadExt::read_exact(&mut client, &mut [0])
                    .await
                    .unwrap();
                came += 1;
            }
            came
        };
        let [first, second] = [first, second].map(|listener| BoundListener {
            listener,
            is_shared: true,
        });
        let leaving = accept(first, sleep(Duration::from_millis(100)), serve, || ());
        let staying = accept(second, std::future::pending(), serve, || ());
        let ((), came) = tokio::select! {
            both = async { tokio::join!(leaving, clients) } => both,
            () = staying => unreachable!("it has not been told to stop"),
        };
        assert_eq!(served.get(), came);
        assert!(came > 1, "{came}");
    }

    #[test]
    fn a_dual_stack_port_takes_ipv4_alone_on_a_kernel_without_ipv6() {
        let port = |address: &str, ipv6_only| Options {
            ipv6_only,
            ..address.parse::<SocketAddr>().unwrap().into()
        };
        assert_eq!(without_ipv6(&port("[::]:8080", false)), "0.0.0.0:8080".parse().ok());
        for (address, ipv6_only) in [("[::]:8080", true), ("[::1]:8080", false), ("0.0.0.0:8080", false)] {
            assert_eq!(without_ipv6(&port(address, ipv6_only)), None);
        }
    }

    #[test]
    fn an_unspecified_address_is_asked_on_loopback() {
        for (admin, asked) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "127.0.0.1:9090"),
            ("[::1]:9090", "[::1]:9090"),
            ("192.0.2.1:9090", "192.0.2.1:9090"),
        ] {
            assert_eq!(reachable(admin.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
