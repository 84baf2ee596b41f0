//! The floor: a program that does what a proxy has to do with as few system calls as that needs, and has no other feature.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use crate::bare_relay::{self, Pipe};
use crate::secure::server_config;
use crate::secure_floor;

/// The argument by which this program is started as the floor.
pub(crate) const ARGUMENT: &str = "--floor";

/// Serves for ever. The file has three addresses: CONNECT is served at the first one, by TLS at the second one, and all lead to the
/// third.
///
/// How a tunnel is relayed depends on the name that is asked for: [`BULK`] by a [`bare_relay`], [`TEN`] by one of 10 MiB/s, and any
/// other by the loop that has read its head.
pub(crate) fn run(settings: &Path) -> io::Result<()> {
    let text = fs::read_to_string(settings)?;
    let mut addresses = text.split_whitespace();
    let mut address = || -> io::Result<SocketAddr> {
        let text = addresses.next().ok_or(ErrorKind::InvalidInput)?;
        text.parse().map_err(io::Error::other)
    };
    let (connects, secure, target) = (
        TcpListener::bind(address()?)?,
        TcpListener::bind(address()?)?,
        address()?,
    );
    let config = server_config(settings.parent().unwrap_or(settings))?;
    thread::spawn(move || {
        for client in secure.incoming().flatten() {
            let config = Arc::clone(&config);
            // It ends with its client.
            thread::spawn(move || secure_floor::relay(client, target, config).ok());
        }
    });
    Loop::new(connects, target)?.run()
}

/// Splices a quantum, then sleeps until the next one is due.
fn relay_limited(client: &TcpStream, upstream: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (client.try_clone()?, upstream.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to).ok());
    let pipe = Pipe::new()?;
    let mut due = Instant::now();
    loop {
        let mut left = QUANTUM;
        while left > 0 {
            match pipe.splice(upstream, client, left)? {
                0 => return client.shutdown(Shutdown::Both),
                moved => left -= moved,
            }
        }
        due += NAP;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// One thread that waits by epoll(7), edge-triggered, and copies through one buffer.
struct Loop {
    epoll: OwnedFd,
    listener: TcpListener,
    target: SocketAddr,
    sockets: HashMap<u64, Socket>,
    next: u64,
    buffer: Vec<u8>,
}

struct Socket {
    stream: TcpStream,
    /// The other end; `None` while the head is not complete.
    other: Option<u64>,
    /// What a client has sent of its head.
    head: Vec<u8>,
    has_ended: bool,
}

impl Loop {
    fn new(listener: TcpListener, target: SocketAddr) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        epoll::add(&epoll, &listener, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self {
            epoll,
            listener,
            target,
            sockets: HashMap::new(),
            next: 1,
            buffer: vec![0; 64 * 1024],
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
            for event in &events {
                match event.data.u64() {
                    0 => self.accept()?,
                    number => {
                        if self.move_bytes(number).is_err() {
                            self.close(number);
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            self.add(stream, None, EventFlags::IN)?;
        }
        Ok(())
    }

    fn add(&mut self, stream: TcpStream, other: Option<u64>, flags: EventFlags) -> io::Result<u64> {
        let number = self.next;
        self.next += 1;
        epoll::add(&self.epoll, &stream, EventData::new_u64(number), flags | EventFlags::ET)?;
        let (head, has_ended) = (Vec::new(), false);
        let socket = Socket {
            stream,
            other,
            head,
            has_ended,
        };
        self.sockets.insert(number, socket);
        Ok(number)
    }

    /// Moves what a socket has, after the head if there is none yet.
    fn move_bytes(&mut self, number: u64) -> io::Result<()> {
        loop {
            let Some(socket) = self.sockets.get_mut(&number) else {
                return Ok(());
            };
            let read = match socket.stream.read(&mut self.buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                read => read?,
            };
            let bytes = self.buffer.get(..read).unwrap_or_default();
            let Some(other) = socket.other else {
                socket.head.extend_from_slice(bytes);
                if read == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                if socket.head.ends_with(b"\r\n\r\n") {
                    match named(&socket.head) {
                        BULK => self.hand_over(number, bare_relay::relay)?,
                        TEN => self.hand_over(number, relay_limited)?,
                        _ => self.connect(number)?,
                    }
                }
                continue;
            };
            socket.has_ended |= read == 0;
            let has_ended = socket.has_ended;
            let Some(other) = self.sockets.get_mut(&other) else {
                return Err(ErrorKind::BrokenPipe.into());
            };
            if read == 0 {
                if other.has_ended {
                    self.close(number);
                } else {
                    other.stream.shutdown(Shutdown::Write)?;
                }
                return Ok(());
            }
            debug_assert!(!has_ended, "bytes after the end");
            // Set-ups and keystrokes fit into any send buffer.
            other.stream.write_all(bytes)?;
        }
    }

    /// Connects to the target, and answers the client. On loopback a connection is there at once.
    fn connect(&mut self, client: u64) -> io::Result<()> {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        match connect(socket.as_fd(), &self.target) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let other = self.add(stream, Some(client), EventFlags::IN)?;
        if let Some(socket) = self.sockets.get_mut(&client) {
            socket.other = Some(other);
            answer(&socket.stream)?;
        }
        Ok(())
    }

    /// Gives a tunnel to a thread of its own, which blocks.
    fn hand_over(&mut self, client: u64, relay: Relay) -> io::Result<()> {
        let Some(Socket { stream, .. }) = self.sockets.remove(&client) else {
            return Ok(());
        };
        epoll::delete(&self.epoll, &stream)?;
        stream.set_nonblocking(false)?;
        let target = self.target;
        thread::spawn(move || {
            let relayed = answer(&stream).and_then(|()| relay(&stream, &TcpStream::connect(target)?));
            // It ends with its client.
            relayed.ok()
        });
        Ok(())
    }

    fn close(&mut self, number: u64) {
        let other = self.sockets.remove(&number).and_then(|socket| socket.other);
        if let Some(other) = other {
            self.sockets.remove(&other);
        }
    }
}

type Relay = fn(&TcpStream, &TcpStream) -> io::Result<()>;

/// Returns the authority of a CONNECT.
fn named(head: &[u8]) -> &[u8] {
    head.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

pub(crate) fn answer(mut client: impl Write) -> io::Result<()> {
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")
}

/// The authorities whose tunnels are relayed otherwise.
const BULK: &[u8] = b"bulk.bench:22";
const TEN: &[u8] = b"ten.bench:22";
/// As long as switchboard sleeps, and what 10 MiB/s bring in that time.
const NAP: Duration = Duration::from_millis(50);
const QUANTUM: usize = 512 * 1024;
