//! The way through a proxy to the target, and a tunnel on that way.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::proxies::{Kind, Proxy};
use crate::secure::{Security, Session};
use crate::target::{ANSWER, Role};
use crate::websocket::WebSocket;

/// The way to the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    plain: SocketAddr,
    tls: SocketAddr,
    /// What to ask for; `None` where nobody asks.
    pub(crate) name: Option<&'a str>,
    /// `None` without TLS.
    pub(crate) security: Option<&'a Security>,
    is_websocket: bool,
}

impl Route<'static> {
    /// Through that proxy, under the name that all of them know.
    pub(crate) fn through(proxy: &Proxy) -> Self {
        Route {
            plain: proxy.address,
            tls: proxy.tls_address,
            name: (proxy.kind != Kind::HaProxy).then_some("target.bench:22"),
            security: None,
            is_websocket: false,
        }
    }

    /// The same for bulk, which the floor relays otherwise.
    pub(crate) fn for_bulk(proxy: &Proxy) -> Self {
        match proxy.kind {
            Kind::Floor => Self::through(proxy).named("bulk.bench:22"),
            Kind::Switchboard | Kind::Envoy | Kind::HaProxy => Self::through(proxy),
        }
    }
}

impl<'a> Route<'a> {
    /// The same way under another name.
    pub(crate) fn named(self, name: &'a str) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }

    /// The same way by TLS.
    pub(crate) fn secured(self, security: &'a Security) -> Self {
        Self {
            security: Some(security),
            ..self
        }
    }

    /// The same way by a WebSocket.
    pub(crate) fn by_websocket(self) -> Self {
        Self {
            is_websocket: true,
            ..self
        }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> SocketAddr {
        self.security.map_or(self.plain, |_| self.tls)
    }

    /// A tunnel that has its 200. Without CONNECT only the target's first line proves that there is one.
    pub(crate) fn set_up(self) -> io::Result<Tunnel> {
        let Some(name) = self.name else {
            return self.open(Role::Echo);
        };
        let mut tunnel = self.connect()?;
        if self.is_websocket {
            tunnel.write_all(upgrade(name).as_bytes())?;
            check_answer(&read_until(&mut tunnel, b"\r\n\r\n", 512)?, b"HTTP/1.1 101 ")?;
            return Ok(Tunnel::WebSocket(Box::new(WebSocket::new(tunnel))));
        }
        tunnel.write_all(head(name).as_bytes())?;
        // The announcement of an anchor may come with the answer.
        let at_once = if name.ends_with(ANCHORED) { 1 } else { 512 };
        let answer = read_until(&mut tunnel, b"\r\n\r\n", at_once)?;
        check_confirmed(&answer)?;
        Ok(tunnel)
    }

    /// A tunnel through which both sides have said their first line. An anchor announces itself before.
    pub(crate) fn open(self, role: Role) -> io::Result<Tunnel> {
        let mut tunnel = match self.name {
            Some(_) => self.set_up()?,
            None => self.connect()?,
        };
        tunnel.write_all(role.line().as_bytes())?;
        let mut answer = vec![0; ANSWER.len()];
        tunnel.read_exact(&mut answer)?;
        while !answer.ends_with(ANSWER) {
            let mut byte = [0];
            tunnel.read_exact(&mut byte)?;
            answer.extend(byte);
        }
        Ok(tunnel)
    }

    /// A connection to the proxy.
    pub(crate) fn connect(self) -> io::Result<Tunnel> {
        let socket = TcpStream::connect(self.address())?;
        socket.set_nodelay(true)?;
        match self.security {
            Some(security) => Ok(Tunnel::Tls(Box::new(security.begin(socket)?))),
            None => Ok(Tunnel::Plain(socket)),
        }
    }
}

/// A tunnel as its client has it.
#[derive(Debug)]
pub(crate) enum Tunnel {
    Plain(TcpStream),
    Tls(Box<Session>),
    WebSocket(Box<WebSocket>),
}

impl Tunnel {
    /// For another thread, which sends while this one receives.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Plain(socket) => Ok(Self::Plain(socket.try_clone()?)),
            Self::Tls(_) | Self::WebSocket(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Its connection, with which it ends.
    pub(crate) fn socket(&self) -> io::Result<TcpStream> {
        match self {
            Self::Plain(socket) => socket.try_clone(),
            Self::Tls(session) => session.sock.get_ref().try_clone(),
            Self::WebSocket(websocket) => websocket.tunnel.socket(),
        }
    }
}

impl Read for Tunnel {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(room),
            Self::Tls(session) => session.read(room),
            Self::WebSocket(websocket) => websocket.read(room),
        }
    }
}

impl Write for Tunnel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(session) => session.write(bytes),
            Self::WebSocket(websocket) => websocket.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write_vectored(pieces),
            Self::Tls(session) => session.write_vectored(pieces),
            Self::WebSocket(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(session) => session.flush(),
            Self::WebSocket(websocket) => websocket.flush(),
        }
    }
}

/// The names that anchors serve end so.
pub(crate) const ANCHORED: &str = ".anchored:22";

pub(crate) fn head(name: &str) -> String {
    format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n")
}

fn upgrade(name: &str) -> String {
    format!(
        "GET /ssh/{name} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: switchboard.v1\r\n\r\n"
    )
}

fn read_until(tunnel: &mut Tunnel, end: &[u8], at_once: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; at_once];
    while !bytes.ends_with(end) {
        let read = tunnel.read(&mut chunk)?;
        if read == 0 {
            // A refusal has a text behind its head.
            check_confirmed(&bytes)?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
    }
    Ok(bytes)
}

pub(crate) fn check_confirmed(answer: &[u8]) -> io::Result<()> {
    check_answer(answer, b"HTTP/1.1 200 ")
}

fn check_answer(answer: &[u8], start: &[u8]) -> io::Result<()> {
    if answer.starts_with(start) {
        return Ok(());
    }
    let line = String::from_utf8_lossy(answer);
    Err(io::Error::other(format!(
        "refused: {}",
        line.lines().next().unwrap_or_default()
    )))
}
