//! Asks the kernel about a TCP connection by its addresses (sock_diag(7)), without its socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// A client of sock_diag(7), with several sockets, so that threads seldom wait for each other.
#[derive(Debug, Default)]
pub struct SockDiag([Mutex<DiagSocket>; SOCKETS]);

#[derive(Debug, Default)]
struct DiagSocket {
    socket: Option<OwnedFd>,
    /// The number of the last query.
    asked: u32,
    /// The number of the last answer.
    answered: u32,
}

/// The addresses of a connection: this end's and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAddrs {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

/// The reason why a connection is not known.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    /// It is closed, or nothing is left of it but a TIME_WAIT.
    #[error("it is closed")]
    Closed,
    /// A kernel without sock_diag, such as gVisor's, or a seccomp profile that refuses it.
    #[error("the kernel does not tell (sock_diag: {0})")]
    Unavailable(io::Error),
}

/// The kernel's counts of a connection, from this end of it: `struct tcp_info` of linux/tcp.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_variation: Duration,
    /// The lowest one of the last minutes.
    pub lowest_rtt: Duration,
    /// Bytes of a full segment.
    pub segment: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Segments that came out of order.
    pub out_of_order: u32,
    /// Bytes a second at which the peer has acknowledged.
    pub delivery_rate: u64,
    /// Bytes that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes that were written and not acknowledged.
    pub send_queue: u32,
    /// Bytes of the send queue that were not sent yet.
    pub not_sent: u32,
    /// Bytes that came and were not read.
    pub receive_queue: u32,
    /// The receive window that the peer has announced.
    pub peer_window: u32,
    /// Time since the last segment of the peer.
    pub silence: Duration,
    /// Time with something in the send queue.
    pub busy: Duration,
    /// The part of `busy` in which the peer's receive window held bytes back.
    pub peer_window_limited: Duration,
}

impl TcpInfo {
    /// Returns whether bytes wait for the peer's receive window, and the peer is alive: it answers window probes.
    pub fn is_window_closed(&self) -> bool {
        self.send_queue > 0 && (self.in_flight() == 0 || self.peer_window == 0) && self.silence < MAX_PROBE_SILENCE
    }

    /// Returns the bytes that were sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.send_queue.saturating_sub(self.not_sent)
    }
}

impl SockDiag {
    /// Returns the kernel's counts of that connection. It takes two system calls, three without a socket, and no wait.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn look_up(&self, addresses: SocketAddrs) -> Result<TcpInfo, DiagError> {
        let [seen] = self.look_up_all([Some(addresses)]);
        seen
    }

    /// Like [`look_up`](Self::look_up), for several connections with one query; [`DiagError::Closed`] for `None`.
    pub fn look_up_all<const N: usize>(&self, all: [Option<SocketAddrs>; N]) -> [Result<TcpInfo, DiagError>; N] {
        let mut asking = self.socket_for(all.iter().flatten().next()).lock();
        let mut failed = asking.query(&all).err();
        let seen = all.map(|addresses| {
            if addresses.is_none() {
                return Err(DiagError::Closed);
            }
            let answer = failed.map_or_else(|| asking.answer(), Err);
            failed = answer.as_ref().err().copied();
            match answer {
                Ok(Some(info)) => Ok(info),
                Ok(None) => Err(DiagError::Closed),
                Err(errno) => Err(DiagError::Unavailable(errno.into())),
            }
        });
        if failed.is_some() {
            // A late answer would be received instead of the next query's, which would fail.
            asking.socket = None;
        }
        seen
    }

    fn socket_for(&self, addresses: Option<&SocketAddrs>) -> &Mutex<DiagSocket> {
        let Self([first, rest @ ..]) = self;
        let number = addresses.map_or(0, |addresses| usize::from(addresses.peer.port()) % SOCKETS);
        rest.get(number).unwrap_or(first)
    }
}

impl DiagSocket {
    /// Sends a request for each connection. The kernel takes the messages of one send(2) one by one (netlink(7)), and
    /// answers each within that call.
    fn query(&mut self, all: &[Option<SocketAddrs>]) -> Result<(), Errno> {
        self.answered = self.asked;
        let mut requests = Vec::with_capacity(all.len() * REQUEST_BYTES);
        for addresses in all.iter().flatten() {
            self.asked = self.asked.wrapping_add(1);
            add_request(&mut requests, *addresses, self.asked);
        }
        if requests.is_empty() {
            return Ok(());
        }
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.socket.insert(socket_with(
                AddressFamily::NETLINK,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC,
                Some(netlink::SOCK_DIAG),
            )?),
        };
        send(socket, &requests, SendFlags::empty()).map(drop)
    }

    /// Returns the next answer; `None` as for [`parse`].
    fn answer(&mut self) -> Result<Option<TcpInfo>, Errno> {
        self.answered = self.answered.wrapping_add(1);
        let mut answer = [0; MAX_RESPONSE_BYTES];
        let socket = self.socket.as_ref().ok_or(Errno::BADF)?;
        let (length, _) = recv(socket, &mut answer, RecvFlags::DONTWAIT)?;
        parse(answer.get(..length).unwrap_or_default(), self.answered)
    }
}

/// Adds a `struct nlmsghdr` and a `struct inet_diag_req_v2` (linux/netlink.h, linux/inet_diag.h).
fn add_request(question: &mut Vec<u8>, addresses: SocketAddrs, sequence: u32) {
    question.extend(QUESTION_LENGTH.to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(NLM_F_REQUEST.to_ne_bytes());
    question.extend(sequence.to_ne_bytes());
    // The kernel fills in the netlink port.
    question.extend([0; 4]);
    let [local, peer] = [addresses.local, addresses.peer].map(|address| address.ip().to_canonical());
    question.extend([
        if local.is_ipv4() { AF_INET } else { AF_INET6 },
        IPPROTO_TCP,
        WITH_INFO,
        0,
    ]);
    // In any state.
    question.extend(u32::MAX.to_ne_bytes());
    question.extend(addresses.local.port().to_be_bytes());
    question.extend(addresses.peer.port().to_be_bytes());
    for address in [local, peer] {
        match address {
            IpAddr::V4(address) => {
                question.extend(address.octets());
                question.extend([0; 12]);
            }
            IpAddr::V6(address) => question.extend(address.octets()),
        }
    }
    let interface = match addresses.local {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(local) => local.scope_id(),
    };
    question.extend(interface.to_ne_bytes());
    // INET_DIAG_NOCOOKIE: the addresses are enough.
    question.extend([0xff; 8]);
}

/// Reads an answer. `None`: there is no such connection, or nothing is left of it but a TIME_WAIT.
fn parse(answer: &[u8], sequence: u32) -> Result<Option<TcpInfo>, Errno> {
    let header = Fields(answer);
    if header.u32(8) != sequence {
        return Err(Errno::BADMSG);
    }
    let body = answer.get(HEADER..).unwrap_or_default();
    match header.u16(4) {
        NLMSG_ERROR => match Errno::from_raw_os_error(Fields(body).u32(0).cast_signed().wrapping_neg()) {
            Errno::NOENT => Ok(None),
            error => Err(error),
        },
        SOCK_DIAG_BY_FAMILY => Ok(info_in(body)),
        _ => Err(Errno::BADMSG),
    }
}

/// Returns the `struct tcp_info` in a `struct inet_diag_msg` with its attributes.
fn info_in(body: &[u8]) -> Option<TcpInfo> {
    let queues = Fields(body);
    // The kernel looks up a socket as for a segment: if the connection is gone, it finds the listener of the port.
    if body.get(1) == Some(&TCP_LISTEN) {
        return None;
    }
    let mut attributes = body.get(MESSAGE..)?;
    loop {
        let length = usize::from(Fields(attributes).u16(0));
        let value = attributes.get(4..length)?;
        if Fields(attributes).u16(2) == INET_DIAG_INFO {
            return Some(info(&Fields(value), [queues.u32(56), queues.u32(60)]));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Reads the fields at the offsets of `struct tcp_info`, which only grows at its end: fields that an old kernel lacks
/// are 0.
fn info(fields: &Fields<'_>, [receive_queue, send_queue]: [u32; 2]) -> TcpInfo {
    let micros = |at| Duration::from_micros(u64::from(fields.u32(at)));
    let lowest_rtt = match fields.u32(148) {
        // Not measured yet.
        u32::MAX => Duration::ZERO,
        lowest => Duration::from_micros(lowest.into()),
    };
    TcpInfo {
        rtt: micros(68),
        rtt_variation: micros(72),
        lowest_rtt,
        segment: fields.u32(16),
        retransmits: fields.u32(100),
        out_of_order: fields.u32(224),
        delivery_rate: fields.u64(160),
        acknowledged: fields.u64(120),
        send_queue,
        not_sent: fields.u32(144),
        receive_queue,
        peer_window: fields.u32(228),
        silence: Duration::from_millis(fields.u32(52).min(fields.u32(56)).into()),
        busy: Duration::from_micros(fields.u64(168)),
        peer_window_limited: Duration::from_micros(fields.u64(176)),
    }
}

/// Numbers in the host's order, by their offsets; 0 after the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> u16 {
        self.bytes(at).map_or(0, u16::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> u32 {
        self.bytes(at).map_or(0, u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        self.bytes(at).map_or(0, u64::from_ne_bytes)
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}

/// The kernel probes a closed window at least every two minutes (TCP_RTO_MAX of net/tcp.h): a live peer misses no two
/// probes in a row.
const MAX_PROBE_SILENCE: Duration = Duration::from_secs(300);
/// `sizeof(struct nlmsghdr)`.
const HEADER: usize = 16;
/// The same, and `sizeof(struct inet_diag_req_v2)`.
const REQUEST_BYTES: usize = HEADER + 56;
const QUESTION_LENGTH: u32 = 16 + 56;
/// `sizeof(struct inet_diag_msg)`.
const MESSAGE: usize = 72;
/// Enough for the threads of a large machine: each holds a socket for microseconds.
const SOCKETS: usize = 8;
/// About 400 bytes are used.
const MAX_RESPONSE_BYTES: usize = 4096;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const INET_DIAG_INFO: u16 = 2;
/// `1 << (INET_DIAG_INFO - 1)`.
const WITH_INFO: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// linux/tcp_states.h.
const TCP_LISTEN: u8 = 10;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair(host: &str) -> (TcpStream, TcpStream, TcpListener) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = if host == "::" { "127.0.0.1" } else { host };
        let client = TcpStream::connect((to, port)).unwrap();
        (client, listener.accept().unwrap().0, listener)
    }

    fn ends(stream: &TcpStream) -> SocketAddrs {
        SocketAddrs {
            local: stream.local_addr().unwrap(),
            peer: stream.peer_addr().unwrap(),
        }
    }

    /// `::` is a listener of both families, whose IPv4 clients have mapped addresses.
    #[test]
    fn a_connection_of_either_family_is_known_and_a_closed_one_is_not() {
        let diag = SockDiag::default();
        for host in ["127.0.0.1", "::1", "::"] {
            // The listener stays: it is found in place of a connection that is gone.
            let (mut client, server, _listener) = pair(host);
            client.write_all(b"12345").unwrap();
            (&server).read_exact(&mut [0; 3]).unwrap();
            let seen = diag.look_up(ends(&server)).unwrap();
            assert_eq!((seen.receive_queue, seen.send_queue), (2, 0), "{host}");
            let other = diag.look_up(ends(&client)).unwrap();
            assert!(other.acknowledged >= 5 && other.rtt > Duration::ZERO, "{other:?}");
            assert_eq!(other.in_flight(), 0);
            let gone = ends(&server);
            drop((client, server));
            assert!(matches!(diag.look_up(gone), Err(DiagError::Closed)), "{host}");
        }
    }

    #[test]
    fn both_connections_of_a_tunnel_are_asked_for_at_once() {
        let diag = SockDiag::default();
        let (client, server, _listener) = pair("127.0.0.1");
        let (other, gone, _other_listener) = pair("::1");
        (&client).write_all(b"12345").unwrap();
        (&server).read_exact(&mut [0; 3]).unwrap();
        let [near, missing, far] = diag.look_up_all([Some(ends(&server)), None, Some(ends(&other))]);
        assert_eq!(near.unwrap().receive_queue, 2);
        assert!(matches!(missing, Err(DiagError::Closed)));
        assert_eq!(far.unwrap().receive_queue, 0);
        let left = ends(&gone);
        drop((other, gone));
        // The first answer is that of the first question, whether there is such a connection or not.
        let [near, far] = diag.look_up_all([Some(left), Some(ends(&server))]);
        assert!(matches!(near, Err(DiagError::Closed)));
        assert_eq!(far.unwrap().receive_queue, 2);
        assert!(matches!(
            diag.look_up_all([None, None]),
            [Err(DiagError::Closed), Err(DiagError::Closed)]
        ));
    }

    #[test]
    fn a_window_is_closed_while_bytes_wait_for_a_peer_that_answers() {
        let info = |send_queue, not_sent, peer_window, silence| TcpInfo {
            send_queue,
            not_sent,
            peer_window,
            silence: Duration::from_secs(silence),
            ..TcpInfo::default()
        };
        for (seen, is_closed) in [
            (info(0, 0, 0, 0), false),
            (info(5, 5, 0, 121), true),
            // Less of a window than a segment.
            (info(5, 5, 100, 0), true),
            // The window was closed after that was sent: the peer drops it, and it is sent again.
            (info(5, 2, 0, 0), true),
            (info(5, 2, 100, 0), false),
            (info(5, 5, 0, 300), false),
        ] {
            assert_eq!(seen.is_window_closed(), is_closed, "{seen:?}");
        }
    }

    #[test]
    fn foreign_and_short_answers_are_none() {
        assert_eq!(parse(&[], 1), Err(Errno::BADMSG));
        let mut refused = vec![0; HEADER];
        refused[4] = 2;
        refused[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        refused.extend((-2_i32).to_ne_bytes());
        assert_eq!(parse(&refused, 7), Ok(None));
        assert_eq!(parse(&refused, 8), Err(Errno::BADMSG));
        refused[4] = 20;
        for length in 0..200 {
            let mut answer = refused.clone();
            answer.resize(HEADER + length, 0);
            assert_eq!(parse(&answer, 7), Ok(None), "{length}");
        }
    }
}
