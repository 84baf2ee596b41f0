//! One end of a connection, on either side of the proxy, that is driven byte by byte.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::{DEADLINE, eventually};

/// A client or a target. Every read and write ends at the deadline.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
}

impl Peer {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap()
    }

    /// Connects, if the port is open.
    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Self> {
        TcpStream::connect_timeout(&address, DEADLINE).map(Self::of)
    }

    /// Connects from another address of this host: all of 127.0.0.0/8 are.
    pub(crate) fn connect_from(source: Ipv4Addr, address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddrV4::new(source, 0).into()).unwrap();
        socket.connect_timeout(&address.into(), DEADLINE).unwrap();
        Self::of(socket.into())
    }

    /// This connection.
    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream }
    }

    /// The number of bytes from here that the other end's kernel has, and its process has not read.
    ///
    /// The other end is on this host, and the table lists it from its side: its address, ours, its state and its queues
    /// (proc_pid_net(5)). What was sent over loopback is in its queue when the write returns.
    pub(crate) fn unread_by(&self, other: SocketAddr) -> usize {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let (its, ours) = (as_in_the_table(other), as_in_the_table(self.address()));
        let queue = table.lines().find_map(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let is_it = columns.next() == Some(&its) && columns.next() == Some(&ours);
            is_it.then(|| columns.nth(1).unwrap().split_once(':').unwrap().1)
        });
        queue.map_or(0, |queue| usize::from_str_radix(queue, 16).unwrap())
    }

    /// The address of this end.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// The address of the other end.
    pub(crate) fn other(&self) -> SocketAddr {
        self.stream.peer_addr().unwrap()
    }

    /// The same connection, for another thread.
    pub(crate) fn again(&self) -> Self {
        Self {
            stream: self.stream.try_clone().unwrap(),
        }
    }

    /// Writes all of it, in one write where the kernel has room.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    /// Writes all of it, unless the other end is gone.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Writes what the kernel takes within a moment, and says how much that was.
    pub(crate) fn send_what_fits(&mut self, bytes: &[u8]) -> usize {
        self.stream.set_write_timeout(Some(A_MOMENT)).unwrap();
        let written = self.stream.write(bytes).unwrap_or_default();
        self.stream.set_write_timeout(Some(DEADLINE)).unwrap();
        written
    }

    /// The other end has gone, one way or another, whatever it sent before.
    pub(crate) fn ends(&mut self) {
        let error = self.stream.read_to_end(&mut Vec::new()).err().map(|error| error.kind());
        assert!(
            matches!(error, None | Some(io::ErrorKind::ConnectionReset)),
            "{error:?}"
        );
    }

    /// Reads as many bytes as expected, which they have to be.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut read = vec![0; expected.len()];
        self.stream.read_exact(&mut read).unwrap();
        assert!(read == expected, "{} instead of {}", shown(&read), shown(expected));
    }

    /// Reads up to the end of that text, which comes behind other bytes, and returns all.
    #[track_caller]
    pub(crate) fn read_past(&mut self, text: &str) -> String {
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(text.as_bytes()) {
            let came = self.stream.read_exact(&mut byte);
            assert!(came.is_ok(), "{came:?} instead of {text:?} behind {}", shown(&read));
            read.extend_from_slice(&byte);
        }
        String::from_utf8_lossy(&read).into_owned()
    }

    /// Reads so many bytes.
    pub(crate) fn read_exact<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let mut read = [0; LENGTH];
        self.stream.read_exact(&mut read).unwrap();
        read
    }

    /// Fills the buffer.
    pub(crate) fn read_into(&mut self, buffer: &mut [u8]) {
        self.stream.read_exact(buffer).unwrap();
    }

    /// The bytes of one read.
    pub(crate) fn read_once(&mut self) -> Vec<u8> {
        self.try_read_once().unwrap()
    }

    /// The bytes of one read, or why there are none.
    pub(crate) fn try_read_once(&mut self) -> io::Result<Vec<u8>> {
        let mut chunk = vec![0; 64 * 1024];
        let read = self.stream.read(&mut chunk)?;
        chunk.truncate(read);
        Ok(chunk)
    }

    /// The bytes of one read, if any come within that time.
    pub(crate) fn read_within(&mut self, time: Duration) -> Option<Vec<u8>> {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut chunk = vec![0; 64 * 1024];
        let read = self.stream.read(&mut chunk);
        self.stream.set_read_timeout(Some(DEADLINE)).unwrap();
        match read {
            Ok(read) => Some(chunk[..read].to_vec()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                None
            }
        }
    }

    /// Everything up to the end of the stream, which has to be an orderly one.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        rest
    }

    /// All bytes up to the end of the stream, or the error that ends it.
    pub(crate) fn try_rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).map(|_| rest)
    }

    /// All bytes up to the reset of the connection.
    #[track_caller]
    pub(crate) fn rest_before_reset(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let error = self.stream.read_to_end(&mut rest).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        rest
    }

    /// All of it as text.
    #[track_caller]
    pub(crate) fn rest_as_text(&mut self) -> String {
        String::from_utf8(self.rest()).unwrap()
    }

    /// The other end has finished, and sent nothing before that.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(shown(&self.rest()), "\"\"");
    }

    /// The other end has reset the connection, and sent nothing before that.
    #[track_caller]
    pub(crate) fn expect_reset(&mut self) {
        let error = self.stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    }

    /// The other end has gone after it had finished: a read says end of stream as before, only a write finds out.
    pub(crate) fn expect_late_reset(&mut self) {
        let error = eventually("a reset", || self.stream.write(b"x").err());
        let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        assert!(kinds.contains(&error.kind()), "{error}");
    }

    /// Sends what is written, then the end of the stream. The other direction stays open.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes with a reset.
    pub(crate) fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// An address of IPv4 as /proc/net/tcp has it.
pub(crate) fn as_in_the_table(address: SocketAddr) -> String {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is none of the tests' addresses")
    };
    let ip = u32::from_le_bytes(address.ip().octets());
    format!("{ip:08X}:{:04X}", address.port())
}

impl From<Peer> for TcpStream {
    fn from(peer: Peer) -> Self {
        peer.stream
    }
}

/// Bytes as a failed test shows them.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(300)];
    let more = if start.len() < bytes.len() { "…" } else { "" };
    format!("\"{}\"{more}", start.escape_ascii())
}

const A_MOMENT: Duration = Duration::from_millis(50);
