//! The SSH server's side: listeners that a test accepts from, one that echoes, and one that never answers.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener};
use std::thread;

use socket2::{Domain, SockRef, Socket, Type};

use super::peer::Peer;
use super::{DEADLINE, eventually};

/// A listener whose connections the test drives itself.
#[derive(Debug)]
pub(crate) struct Target {
    listener: TcpListener,
}

impl Target {
    /// Listens on a port of loopback.
    pub(crate) fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // accept(2) obeys it too.
        SockRef::from(&listener).set_read_timeout(Some(DEADLINE)).unwrap();
        Self { listener }
    }

    /// The same, whose kernel keeps little of what its connections are sent.
    pub(crate) fn that_reads_little() -> Self {
        let target = Self::listen();
        SockRef::from(&target.listener).set_recv_buffer_size(4096).unwrap();
        target
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// The next connection.
    #[track_caller]
    pub(crate) fn accept(&self) -> Peer {
        Peer::of(self.listener.accept().unwrap().0)
    }

    /// No connection is waiting to be accepted.
    #[track_caller]
    pub(crate) fn expect_no_connection(&self) {
        self.listener.set_nonblocking(true).unwrap();
        let error = self.listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        self.listener.set_nonblocking(false).unwrap();
    }
}

/// An address that refuses connections: its port is taken, by a socket that does not listen. The kernel gives the port to no
/// other socket, and one that is bound to it by name and has SO_REUSEADDR, as those of servers have, may listen there.
#[derive(Debug)]
pub(crate) struct Closed {
    socket: Socket,
}

impl Closed {
    /// Takes a port of loopback.
    pub(crate) fn bind() -> Self {
        Self::on(Ipv4Addr::LOCALHOST)
    }

    /// Takes a port of that address.
    pub(crate) fn on(address: impl Into<IpAddr>) -> Self {
        let any = SocketAddr::new(address.into(), 0);
        let socket = Socket::new(Domain::for_address(any), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&any.into()).unwrap();
        Self { socket }
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap().as_socket().unwrap()
    }
}

/// A listener that sends back what it reads, on every connection.
#[derive(Debug)]
pub(crate) struct Echo {
    listener: TcpListener,
}

impl Echo {
    /// Listens on a port of loopback.
    pub(crate) fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = accepting.accept() {
                thread::spawn(move || {
                    let mut chunk = [0; 16 * 1024];
                    while let Ok(read @ 1..) = stream.read(&mut chunk) {
                        if stream.write_all(&chunk[..read]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { listener }
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // Wakes the accept that is under way.
        SockRef::from(&self.listener).shutdown(Shutdown::Both).unwrap();
    }
}

/// An address whose kernel answers no SYN: its accept queue is full.
#[derive(Debug)]
pub(crate) struct Blackhole {
    socket: Socket,
    _queued: Peer,
}

impl Blackhole {
    /// Listens on a port of loopback, and fills its queue.
    pub(crate) fn open() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let queued = Peer::connect(address);
        // The connection is open as soon as the client has its SYN-ACK: its own ACK may still be on the way to the queue, whose
        // length the table has as the bytes to be read (proc_pid_net(5)).
        let full = format!("0100007F:{:04X} 00000000:0000 0A 00000000:00000001 ", address.port());
        let is_full = || fs::read_to_string("/proc/net/tcp").unwrap().contains(&full);
        eventually("the queue is full", || is_full().then_some(()));
        Self {
            socket,
            _queued: queued,
        }
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap().as_socket().unwrap()
    }

    /// The number of dials to it that are under way on this host.
    ///
    /// The kernel writes its table a page at a time: a socket may be in two of them when others come and go,
    /// so each is counted by its own address.
    pub(crate) fn dials(&self) -> usize {
        let port = format!("0100007F:{:04X}", self.address().port());
        let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
        let dials = sockets.lines().filter_map(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let own = columns.next()?;
            (columns.next() == Some(&port) && columns.next() == Some(SYN_SENT)).then_some(own)
        });
        dials.collect::<HashSet<_>>().len()
    }

    /// Waits until so many dials are under way.
    #[track_caller]
    pub(crate) fn expect_dials(&self, count: usize) {
        eventually("dials under way", || (self.dials() == count).then_some(()));
    }

    /// Makes room in the queue, and gives the connection that comes then: the next SYN is sent within seconds.
    pub(crate) fn relent(&self) -> Peer {
        self.socket.accept().unwrap();
        Peer::of(self.socket.accept().unwrap().0.into())
    }
}

/// The state of a socket that waits for an answer to its SYN (include/net/tcp_states.h).
const SYN_SENT: &str = "02";
