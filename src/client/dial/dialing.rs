//! The TCP connections to the proxy, one after the other: what is known of the way from the one before, and when another
//! way leads there.
//!
//! A session that has lost its connection does not wait for the kernel, which repeats a SYN that was lost after 1, 3 and 7
//! seconds (`tcp_syn_retries` in tcp(7)): another connection begins while the earlier ones wait, as in RFC 8305, and the
//! first that is answered is used. Only that one carries a request.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::connection::{connect_in_order, connect_one, lookup};
use crate::base::platform::Changes;
use crate::client::{ClientError, Deadline, ProxyUrl, Step};

/// How the proxy is reached.
#[derive(Debug, Default)]
pub(in crate::client) struct Dialing {
    /// The step of an attempt that was begun last.
    pub(in crate::client) step: Step,
    /// The addresses that the proxy's name had last.
    addresses: Vec<SocketAddr>,
    /// The time between two connections of one attempt. `None`: one connection, and each address in its turn.
    pace: Option<Duration>,
    watch: Option<Watch>,
    beside: Option<Beside>,
}

/// Another path to the proxy than that of the connection in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Another {
    /// The network of this host has changed.
    Path,
    /// A connection that was begun beside the one in use is answered: the next attempt has it.
    Connection,
}

/// The connections that are begun beside one that is silent. None of them carries a byte before it is used.
#[derive(Debug, Default)]
struct Beside {
    rounds: Rounds,
    /// When the next one begins. `None`: now.
    next: Option<Instant>,
    answered: Option<TcpStream>,
}

impl Dialing {
    /// Watches the network of this host from now on.
    pub(in crate::client) fn watch(&mut self) {
        // Where the kernel or a sandbox does not offer it, a change is noticed by silence and pauses.
        self.watch = Watch::open(self.addresses.first().copied()).ok();
    }

    /// Sets the time between two rounds of the next attempt.
    pub(in crate::client) fn set_pace(&mut self, pace: Duration) {
        self.pace = Some(pace);
    }

    /// Completes when another path leads to the proxy than before. It may be dropped at any time.
    pub(in crate::client) async fn moved(&mut self) {
        moved(&mut self.watch).await;
    }

    /// The same for a connection in use. If that is silent, others are begun beside it, one in so much time (`pace`), and it
    /// completes as well when one of them is answered. It may be dropped at any time.
    pub(in crate::client) async fn another(&mut self, pace: Option<Duration>) -> Another {
        let Self {
            addresses,
            watch,
            beside,
            ..
        } = self;
        let answered = async {
            match pace {
                Some(pace) => beside.get_or_insert_default().answered(addresses, pace).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = moved(watch) => Another::Path,
            () = answered => Another::Connection,
        }
    }

    /// The connection in use is silent no more: those beside it are closed.
    pub(in crate::client) fn keep(&mut self) {
        self.beside = None;
    }

    /// A connection to the proxy, and the time for what follows on it.
    pub(in crate::client) async fn connect(
        &mut self,
        proxy: &ProxyUrl,
        deadline: Deadline,
    ) -> Result<(TcpStream, Deadline), ClientError> {
        let (stream, deadline) = match self.pace {
            None => (self.connect_once(proxy, deadline).await?, deadline),
            Some(pace) => {
                let stream = self.connect_again(proxy, deadline, pace).await?;
                (stream, Deadline::after(deadline.timeout.min(LONGEST_SET_UP)))
            }
        };
        if let (Some(watch), Ok(peer)) = (&mut self.watch, stream.peer_addr()) {
            watch.peer = Some(peer);
            watch.source = source(peer);
        }
        Ok((stream, deadline))
    }

    async fn connect_once(&mut self, proxy: &ProxyUrl, deadline: Deadline) -> Result<TcpStream, ClientError> {
        self.step = Step::Lookup;
        self.addresses = deadline.bound(Step::Lookup, lookup(proxy)).await?;
        self.step = Step::Connect;
        let connected = connect_in_order(&self.addresses, deadline).await;
        connected.map_err(|error| error.unwrap_or_else(|| no_address(proxy)))
    }

    /// Begins rounds of connections until one of them is answered, or all have failed. Where the lookup has
    /// no answer within HEAD_START, the addresses of the last lookup are used.
    async fn connect_again(
        &mut self,
        proxy: &ProxyUrl,
        deadline: Deadline,
        pace: Duration,
    ) -> Result<TcpStream, ClientError> {
        if let Some(stream) = self.beside.take().and_then(|beside| beside.answered) {
            return Ok(stream);
        }
        let mut in_flight = InFlight::default();
        in_flight.look_up(proxy);
        let mut next = Instant::now() + HEAD_START;
        loop {
            let is_due = tokio::select! {
                () = sleep_until(next) => true,
                Some(found) = in_flight.lookups.join_next() => match joined(found) {
                    Ok(found) if found.is_empty() => false,
                    Ok(found) => {
                        let is_known = found.iter().all(|address| self.addresses.contains(address));
                        self.addresses = found;
                        !is_known || in_flight.rounds.is_empty()
                    }
                    Err(error) => {
                        in_flight.error = Some(error);
                        in_flight.rounds.is_empty()
                    }
                },
                Some(ended) = in_flight.rounds.join_next() => match ended {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => {
                        in_flight.error = error.or(in_flight.error);
                        false
                    }
                    // A task that was not run to its end.
                    Err(_) => false,
                },
                () = self.moved() => true,
                () = sleep_until(deadline.at) => return Err(in_flight.error.unwrap_or_else(|| no_answer(deadline))),
            };
            if is_due {
                begin_round(&mut in_flight.rounds, &self.addresses);
            }
            if in_flight.lookups.is_empty() && in_flight.rounds.is_empty() {
                return Err(in_flight.error.unwrap_or_else(|| no_address(proxy)));
            }
            if next <= Instant::now() {
                in_flight.look_up(proxy);
            }
            if is_due {
                next = Instant::now() + pace;
            }
        }
    }
}

impl Beside {
    async fn answered(&mut self, addresses: &[SocketAddr], pace: Duration) {
        while self.answered.is_none() {
            let now = Instant::now();
            let next = match self.next {
                Some(next) if next > now => next,
                _ => {
                    begin_round(&mut self.rounds, addresses);
                    *self.next.insert(now + pace)
                }
            };
            tokio::select! {
                () = sleep_until(next) => {}
                Some(ended) = self.rounds.join_next() => {
                    if let Ok(Ok(stream)) = ended {
                        self.answered = Some(stream);
                    }
                }
            }
        }
    }
}

/// Connections that are not answered.
type Rounds = JoinSet<Result<TcpStream, Option<ClientError>>>;

/// What one attempt has begun and is not answered.
#[derive(Default)]
struct InFlight {
    lookups: JoinSet<Result<Vec<SocketAddr>, ClientError>>,
    rounds: Rounds,
    error: Option<ClientError>,
}

impl InFlight {
    fn look_up(&mut self, proxy: &ProxyUrl) {
        if self.lookups.len() < MOST_LOOKUPS {
            let proxy = proxy.clone();
            self.lookups.spawn(async move { lookup(&proxy).await });
        }
    }
}

fn begin_round(rounds: &mut Rounds, addresses: &[SocketAddr]) {
    if rounds.len() < MOST_ROUNDS && !addresses.is_empty() {
        rounds.spawn(round(addresses.to_vec()));
    }
}

/// Connects to the first address that answers. Each has a head start, in their order. The error is that of the last one, or
/// `None` without addresses.
async fn round(addresses: Vec<SocketAddr>) -> Result<TcpStream, Option<ClientError>> {
    let mut pending = JoinSet::new();
    let mut addresses = addresses.into_iter().take(MOST_ADDRESSES).peekable();
    let mut next = Instant::now();
    let mut error = None;
    while addresses.peek().is_some() || !pending.is_empty() {
        tokio::select! {
            () = sleep_until(next), if addresses.peek().is_some() => {}
            Some(ended) = pending.join_next() => match joined(ended) {
                Ok(stream) => return Ok(stream),
                Err(failed) => error = Some(failed),
            },
        }
        if let Some(address) = addresses.next() {
            next = Instant::now() + HEAD_START;
            pending.spawn(async move {
                let connected = connect_one(address, LONGEST_ROUND).await;
                connected.map_err(|source| ClientError::Connect { address, source })
            });
        }
    }
    Err(error)
}

/// The result of a task, which may have failed to run.
fn joined<T>(ended: Result<Result<T, ClientError>, JoinError>) -> Result<T, ClientError> {
    ended.unwrap_or_else(|error| Err(ClientError::Runtime(io::Error::other(error))))
}

fn no_address(proxy: &ProxyUrl) -> ClientError {
    ClientError::Lookup {
        proxy: proxy.host().to_owned(),
        source: io::Error::other("the name has no address"),
    }
}

fn no_answer(deadline: Deadline) -> ClientError {
    ClientError::Deadline {
        step: Step::Connect,
        timeout: deadline.timeout,
    }
}

async fn moved(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.moved().await,
        None => std::future::pending().await,
    }
}

/// The path to the proxy: the address of this host that a connection there would have.
#[derive(Debug)]
struct Watch {
    changes: Changes,
    peer: Option<SocketAddr>,
    source: Option<IpAddr>,
    /// The earliest time at which the path is looked at again.
    next: Instant,
}

impl Watch {
    fn open(peer: Option<SocketAddr>) -> io::Result<Self> {
        Ok(Self {
            changes: Changes::open()?,
            peer,
            source: peer.and_then(source),
            next: Instant::now(),
        })
    }

    async fn moved(&mut self) {
        loop {
            sleep_until(self.next).await;
            self.changes.next().await;
            self.next = Instant::now() + BETWEEN_LOOKS;
            let now = self.peer.and_then(source);
            let is_another = now != self.source;
            self.source = now;
            // Without any path an attempt is in vain, and the old connection may still recover.
            if is_another && now.is_some() {
                self.next = Instant::now() + BETWEEN_MOVES;
                return;
            }
        }
    }
}

/// The address of this host from which the kernel reaches that one. No packet is sent (connect(2) of a datagram socket).
fn source(peer: SocketAddr) -> Option<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

/// Rounds at a time: at a pace of 0.7 s they cover a round trip of 6 s.
const MOST_ROUNDS: usize = 8;
/// The time of one connection of a round.
const LONGEST_ROUND: Duration = Duration::from_secs(6);
/// Addresses of a round.
const MOST_ADDRESSES: usize = 6;
/// The time in front of the next address (RFC 8305 section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Lookups at a time: each may hold a thread for as long as the resolver waits.
const MOST_LOOKUPS: usize = 3;
/// The time for TLS and the answer on a connection that carries a session again: the proxy has its target, or the session
/// is over.
const LONGEST_SET_UP: Duration = Duration::from_secs(10);
/// Between two looks at a network that changes without end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Between two attempts because of such changes.
const BETWEEN_MOVES: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use socket2::{Domain, Socket, Type};

    fn dialing(addresses: Vec<SocketAddr>) -> Dialing {
        Dialing {
            addresses,
            pace: Some(Duration::from_millis(20)),
            ..Dialing::default()
        }
    }

    fn patient() -> Deadline {
        Deadline::after(Duration::from_secs(120))
    }

    /// A listener whose kernel answers no SYN until its queue is emptied.
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

    /// Whether the queue of that listener has one connection: the length is its bytes to read (state 0A of proc_pid_net(5)).
    fn is_queued(at: SocketAddr) -> bool {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let listener = format!("0100007F:{:04X} 00000000:0000 0A 00000000:00000001 ", at.port());
        table.contains(&listener)
    }

    /// The connections to that port that wait for an answer to their SYN (state 02 of proc_pid_net(5)).
    fn unanswered(to: SocketAddr) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let peer = format!("0100007F:{:04X} 02", to.port());
        table.lines().filter(|line| line.contains(&peer)).count()
    }

    #[tokio::test]
    async fn a_syn_that_is_lost_is_followed_by_others_up_to_a_bound_and_one_connection_is_used() {
        let (listener, _queued, address) = full();
        let mut dialing = dialing(vec![address]);
        let proxy: ProxyUrl = format!("http://{address}").parse().unwrap();
        tokio::select! {
            _ = dialing.connect(&proxy, patient()) => panic!("its queue is full"),
            () = async {
                while unanswered(address) < MOST_ROUNDS {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // Several paces later there are no more, and fewer only where a round's time is over.
                for _ in 0..10 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let unanswered = unanswered(address);
                    assert!(unanswered <= MOST_ROUNDS, "{unanswered}");
                }
            } => {}
        }
        // What was begun is given up with the attempt.
        while unanswered(address) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        listener.set_nonblocking(true).unwrap();
        let answering = async {
            // Again and again: a SYN that the kernel has sent once more may have had the first answer.
            loop {
                listener.accept().ok();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let (stream, deadline) = tokio::select! {
            connected = dialing.connect(&proxy, patient()) => connected.unwrap(),
            () = answering => unreachable!("it is endless"),
        };
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert_eq!(deadline.timeout, LONGEST_SET_UP);
    }

    #[tokio::test]
    async fn a_connection_beside_a_silent_one_is_that_of_the_next_attempt() {
        let (listener, _queued, address) = full();
        let mut dialing = dialing(vec![address]);
        let proxy: ProxyUrl = format!("http://{address}").parse().unwrap();
        let pace = Some(Duration::from_millis(20));
        // Asked for again and again, as by a session that has to look at other things meanwhile.
        while unanswered(address) < 3 {
            tokio::time::timeout(Duration::from_millis(5), dialing.another(pace))
                .await
                .unwrap_err();
        }
        dialing.keep();
        while unanswered(address) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let accepted = listener.accept().unwrap();
        assert_eq!(dialing.another(pace).await, Another::Connection);
        let (stream, _) = dialing.connect(&proxy, patient()).await.unwrap();
        // Those before it are not given up by the kernel at once: they may have been answered, too.
        let is_ours = |accepted: std::net::TcpStream| accepted.peer_addr().unwrap() == stream.local_addr().unwrap();
        drop(accepted);
        while !is_ours(listener.accept().unwrap().0) {}
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_holds_no_other_up() {
        let (_listener, _queued, dead) = full();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = open.local_addr().unwrap();
        let stream = round(vec![dead, address]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert!(round(Vec::new()).await.unwrap_err().is_none());
    }

    #[tokio::test]
    async fn the_last_addresses_serve_where_the_name_cannot_be_looked_up() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut known = dialing(vec![open.local_addr().unwrap()]);
        let proxy: ProxyUrl = "http://nowhere.invalid:1".parse().unwrap();
        let (stream, _) = known.connect(&proxy, patient()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open.local_addr().unwrap());
        let error = dialing(Vec::new()).connect(&proxy, patient()).await.unwrap_err();
        assert!(matches!(error, ClientError::Lookup { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_port_that_refuses_ends_the_attempt_at_once() {
        // Its port is taken by a socket that does not listen.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let proxy: ProxyUrl = format!("http://{address}").parse().unwrap();
        let error = dialing(vec![address]).connect(&proxy, patient()).await.unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    }

    #[test]
    fn the_path_to_an_address_is_the_address_that_a_connection_there_has() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 9));
        assert_eq!(source(loopback), Some(loopback.ip()));
    }
}
