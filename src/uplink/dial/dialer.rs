//! Dials the proxy, repeatedly for a resumable session, and watches the path through the network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::deadline::{Deadline, Step};
use super::url::ProxyUrl;
use crate::base::platform;
use crate::net::keepalive::Keepalive;
use crate::protocol::resume::keys::SessionId;
use crate::uplink::error::ClientError;

/// Dials the proxy, and remembers its addresses and the last path.
#[derive(Debug, Default)]
pub(crate) struct ProxyDialer {
    /// The session to resume, and the time since a byte of its user has moved; `None` for a new one.
    pub(crate) session: Option<(SessionId, Duration)>,
    /// The step of the current attempt.
    pub(crate) step: Step,
    /// The timeout of the next connection if it resumes a session; `None` for the first connection.
    again: Option<Duration>,
    /// The last known addresses of the proxy's name.
    addresses: Vec<SocketAddr>,
    /// The lookup that is still running.
    lookup: JoinSet<io::Result<Vec<SocketAddr>>>,
    /// The path of the last connection.
    path: Option<Path>,
}

impl ProxyDialer {
    /// Sets the timeout of each further connection. All of them resume the session.
    pub(crate) fn set_again(&mut self, timeout: Duration) {
        self.again = Some(timeout);
    }

    /// Completes when the path to the proxy has changed, or exists again. Is cancel-safe.
    pub(crate) async fn path_changed(&mut self) {
        path_changed(&mut self.path).await;
        // The resolver may have changed, too.
        self.lookup = JoinSet::new();
    }

    /// Returns a connection to the proxy, and the deadline of the following steps.
    pub(crate) async fn connect(
        &mut self,
        proxy: &ProxyUrl,
        deadline: Deadline,
    ) -> Result<(TcpStream, Deadline), ClientError> {
        let is_first = self.again.is_none();
        let stream = loop {
            let until = self.again.map_or(deadline, Deadline::after);
            self.step = Step::Lookup;
            self.look_up(proxy, until).await?;
            self.step = Step::Connect;
            tokio::select! {
                stream = until.bound(Step::Connect, first_of(&self.addresses, "the proxy at ")) => break stream?,
                () = path_changed(&mut self.path), if !is_first => self.lookup = JoinSet::new(),
            }
        };
        // The lookup's answer would be too old for the next connection.
        self.lookup = JoinSet::new();
        self.path = stream.peer_addr().ok().map(Path::new);
        let deadline = match is_first {
            true => deadline,
            false => Deadline::after(deadline.timeout.min(SETUP_TIMEOUT)),
        };
        Ok((stream, deadline))
    }

    /// Looks up the addresses of the proxy's name. The last known addresses, if any, are used after an error or
    /// [`HEAD_START`]: without a network a resolver takes longer.
    async fn look_up(&mut self, proxy: &ProxyUrl, deadline: Deadline) -> Result<(), ClientError> {
        let has_some = !self.addresses.is_empty();
        let max = if has_some { HEAD_START } else { deadline.remaining() };
        if self.lookup.is_empty() {
            let (host, port) = (proxy.host().to_owned(), proxy.port());
            self.lookup
                .spawn(async move { Ok(lookup_host((host, port)).await?.collect()) });
        }
        let source = match timeout(max, self.lookup.join_next()).await {
            Ok(Some(Ok(Ok(found)))) if !found.is_empty() => {
                self.addresses = found;
                // The last connection's address comes first.
                let last = self.path.as_ref().map(|path| path.peer);
                self.addresses.sort_by_key(|address| Some(*address) != last);
                return Ok(());
            }
            Ok(_) | Err(_) if has_some => return Ok(()),
            Ok(Some(Ok(Err(error)))) => error,
            Ok(_) => io::Error::other("the name has no address"),
            Err(_) => return Err(deadline.exceeded(Step::Lookup)),
        };
        let text = format!("cannot look up {}", proxy.host());
        Err(ClientError::Immediately(anyhow!(source).context(text)))
    }
}

/// Connects to another server than the proxy, at the addresses of its host for which `is_allowed` is true.
pub(crate) async fn connect_to_server(
    url: &ProxyUrl,
    is_allowed: impl Fn(&SocketAddr) -> bool,
) -> Result<TcpStream, ClientError> {
    let found = lookup_host((url.host(), url.port())).await;
    let found = found.with_context(|| format!("cannot look up {}", url.host()));
    let addresses: Vec<_> = found.map_err(ClientError::Immediately)?.filter(is_allowed).collect();
    first_of(&addresses, "").await
}

/// Connects to the first address that answers. They are tried in order, each with a head start (RFC 8305 section 5).
/// The error is that of the last one to fail, with the name of the peer before its address.
async fn first_of(addresses: &[SocketAddr], peer: &'static str) -> Result<TcpStream, ClientError> {
    let mut connecting = JoinSet::new();
    let mut addresses = addresses.iter().copied().take(MAX_ADDRESSES);
    let mut error = anyhow!("the name has no address");
    loop {
        let next = addresses.next();
        if let Some(address) = next {
            connecting.spawn(async move {
                let connected = connect_to(address).await;
                connected.with_context(|| format!("cannot connect to {peer}{address}"))
            });
        }
        tokio::select! {
            Some(ended) = connecting.join_next() => match ended {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(failed)) => error = failed,
                // The task panicked or was aborted.
                Err(failed) => error = failed.into(),
            },
            () = sleep(HEAD_START), if next.is_some() => {}
            else => return Err(ClientError::Immediately(error)),
        }
    }
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    let set = || {
        // Otherwise a keystroke waits for the acknowledgement of the previous one (tcp(7)).
        stream.set_nodelay(true)?;
        // After its first bytes a session without an anchor has no other timeout, as ssh's keepalives are off.
        // Unacknowledged bytes would keep a dead connection for about 15 minutes (tcp(7), tcp_retries2).
        Keepalive::CLIENT.turn_on(&stream)?;
        platform::set_tcp_user_timeout(&stream, Keepalive::CLIENT.timeout())
    };
    set().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("the system refuses setsockopt(2): {error}"))
    })?;
    Ok(stream)
}

/// The path to the proxy: the address of this host for connections to it.
#[derive(Debug)]
struct Path {
    peer: SocketAddr,
    /// The address; `None` if there is no path.
    source: Option<IpAddr>,
    /// When to check it again.
    next: Instant,
}

impl Path {
    fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            source: source(peer),
            next: Instant::now() + BETWEEN_LOOKS,
        }
    }

    /// Returns whether there is a path that differs from the last call's.
    fn has_moved(&mut self, source: Option<IpAddr>) -> bool {
        let before = std::mem::replace(&mut self.source, source);
        // Without a path an attempt would fail, and the old connection may still recover.
        source.is_some() && source != before
    }
}

async fn path_changed(path: &mut Option<Path>) {
    let Some(path) = path else {
        return std::future::pending().await;
    };
    loop {
        sleep_until(path.next).await;
        path.next = Instant::now() + BETWEEN_LOOKS;
        if path.has_moved(source(path.peer)) {
            return;
        }
    }
}

/// Returns this host's address for connections to `peer`. No packet is sent (connect(2) of a datagram socket).
fn source(peer: SocketAddr) -> Option<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

/// The maximum number of addresses in one attempt.
const MAX_ADDRESSES: usize = 16;
/// The delay before the next address (RFC 8305 section 5), and before the last known addresses replace a slow lookup.
const HEAD_START: Duration = Duration::from_millis(250);
/// The timeout of TLS and the answer on a connection that resumes a session. The proxy need not wait for the target to
/// start: it runs, or the session is over.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between checks of the path. Only Linux has a safe call that reports changes.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use socket2::{Domain, SockRef, Socket, Type};

    fn dialing(addresses: Vec<SocketAddr>, again: Option<Duration>) -> ProxyDialer {
        ProxyDialer {
            addresses,
            again,
            ..ProxyDialer::default()
        }
    }

    fn patient() -> Deadline {
        Deadline::after(Duration::from_secs(120))
    }

    fn proxy_at(address: SocketAddr) -> ProxyUrl {
        format!("http://{address}").parse().unwrap()
    }

    /// Returns a listener whose kernel answers no SYN until its queue is emptied.
    fn full() -> (TcpListener, std::net::TcpStream, SocketAddr) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        // One more than this fits.
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let queued = std::net::TcpStream::connect(address).unwrap();
        // The connection is open as soon as the client has its SYN-ACK: its own ACK may still be on the way to the queue.
        while !is_queued(address) {
            std::thread::yield_now();
        }
        (socket.into(), queued, address)
    }

    /// Returns whether the queue of that listener has one connection: in state 0A, rx_queue is its length
    /// (proc_pid_net(5)).
    fn is_queued(at: SocketAddr) -> bool {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let listener = format!("0100007F:{:04X} 00000000:0000 0A 00000000:00000001 ", at.port());
        table.contains(&listener)
    }

    /// Returns a port that refuses: it is bound by a socket that does not listen.
    fn refusing() -> (Socket, SocketAddr) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    #[tokio::test]
    async fn an_attempt_to_go_on_ends_soon_though_no_syn_is_answered_and_the_next_one_is() {
        let (listener, _queued, address) = full();
        let mut again = dialing(vec![address], Some(Duration::from_millis(50)));
        let error = again.connect(&proxy_at(address), patient()).await.unwrap_err();
        assert!(
            error.to_string().starts_with("a connection to the proxy took longer"),
            "{error}"
        );
        listener.accept().unwrap();
        again.set_again(Duration::from_secs(120));
        let (stream, deadline) = again.connect(&proxy_at(address), patient()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert_eq!(deadline.timeout, SETUP_TIMEOUT);
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_holds_no_other_up_and_one_that_refuses_even_less() {
        let (_listener, _queued, dead) = full();
        let (_refusing, closed) = refusing();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = open.local_addr().unwrap();
        for before in [dead, closed] {
            let stream = first_of(&[before, address], "").await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), address);
            assert!(stream.nodelay().unwrap());
            let socket = SockRef::from(&stream);
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(60)));
        }
    }

    #[tokio::test]
    async fn the_last_addresses_serve_where_the_name_cannot_be_looked_up() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let again = Some(Duration::from_secs(120));
        let mut known = dialing(vec![open.local_addr().unwrap()], again);
        let proxy: ProxyUrl = "http://nowhere.invalid:1".parse().unwrap();
        let (stream, _) = known.connect(&proxy, patient()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open.local_addr().unwrap());
        // A resolver that hangs does not delay the connection either.
        known.lookup = JoinSet::new();
        known.lookup.spawn(std::future::pending());
        known.connect(&proxy, patient()).await.unwrap();
        let error = dialing(Vec::new(), again).connect(&proxy, patient()).await.unwrap_err();
        assert!(
            error.to_string().starts_with("cannot look up nowhere.invalid"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_port_that_refuses_ends_the_attempt_at_once() {
        let (_refusing, address) = refusing();
        for again in [None, Some(Duration::from_secs(120))] {
            let mut dialer = dialing(vec![address], again);
            let error = dialer.connect(&proxy_at(address), patient()).await.unwrap_err();
            assert_eq!(error.to_string(), format!("cannot connect to the proxy at {address}"));
        }
    }

    #[test]
    fn the_path_to_an_address_is_the_address_that_a_connection_there_has() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 9));
        assert_eq!(source(loopback), Some(loopback.ip()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_has_moved_when_it_is_another_one_or_there_is_one_again() {
        let [here, there] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let mut path = Path::new(SocketAddr::from(([127, 0, 0, 1], 9)));
        path.source = here;
        for (source, expected) in [
            (here, false),
            (there, true),
            (there, false),
            (None, false),
            (None, false),
            (there, true),
            (None, false),
            (here, true),
        ] {
            assert_eq!(path.has_moved(source), expected, "{source:?}");
        }
        // The path to this host is over its loopback, which the first look finds.
        let begun = Instant::now();
        let mut dialer = ProxyDialer {
            path: Some(path),
            ..ProxyDialer::default()
        };
        dialer.path_changed().await;
        assert!(begun.elapsed() <= BETWEEN_LOOKS);
        assert!(timeout(10 * BETWEEN_LOOKS, dialer.path_changed()).await.is_err());
    }
}
