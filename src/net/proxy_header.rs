//! Reads and writes the PROXY protocol header, in which whoever passes a connection on says whose it is.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. The crate `ppp` checks this one in the tests; in its
//! place it would refuse an UNKNOWN with more than four words and a LOCAL of an unknown family, which have to pass.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;

use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::outcome::Refusal;

mod v1;
mod v2;

/// From whom a port takes headers.
///
/// There is no "if there is one": behind a load balancer that adds none, a client could write its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// From nobody: a connection is of whom it comes from.
    #[default]
    Off,
    /// From each of these networks, and every connection must begin with one; from anywhere else nothing is taken.
    Required {
        /// At least one.
        trusted: Box<[IpNet]>,
    },
}

/// The two ends of a connection, as its first proxy saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Whose connection it is.
    pub source: SocketAddr,
    /// Where that client connected to.
    pub destination: SocketAddr,
}

/// A format of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Takes the header off a connection, if there has to be one. `None`: the connection is of whom it comes from.
///
/// Not a byte behind the header is taken: whatever is spoken there finds the socket as if there had been none.
///
/// # Errors
/// [`Refusal::UntrustedProxy`], [`Refusal::BadProxyHeader`], [`Refusal::NoRequest`] or [`Refusal::ClientLeft`].
pub async fn read(stream: &mut TcpStream, peer: IpAddr, policy: &Policy) -> Result<Option<Addresses>, Refusal> {
    let Policy::Required { trusted } = policy else {
        return Ok(None);
    };
    if !trusted.iter().any(|network| network.contains(&peer)) {
        return Err(Refusal::UntrustedProxy);
    }
    // Boxed: most ports have no header, and need no room for one.
    let header = Box::pin(take(stream)).await?;
    parse(&header).map_err(|Malformed| Refusal::BadProxyHeader)
}

/// Writes a header. It fits the send buffer of a fresh socket, so that this does not wait.
///
/// # Errors
/// What write(2) says.
pub async fn write(stream: &mut TcpStream, version: Version, passage: &Addresses) -> io::Result<()> {
    stream.write_all(&encode(version, passage)).await
}

/// A header that says whose connection it is.
pub fn encode(version: Version, passage: &Addresses) -> Vec<u8> {
    match version {
        Version::V1 => v1::encode(passage),
        Version::V2 => v2::encode(passage),
    }
}

/// The length of the header that these bytes begin with, and what it says. `None` means that more bytes are needed.
///
/// # Errors
/// They begin with no header of either version.
pub fn decode(bytes: &[u8]) -> Result<Option<(usize, Option<Addresses>)>, Malformed> {
    let Extent::Exactly(length) = extent(bytes)? else {
        return Ok(None);
    };
    let header = bytes.get(..length).map(parse).transpose()?;
    Ok(header.map(|passage| (length, passage)))
}

/// Not a header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// How long the header is that begins like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Longer than what is known of it.
    Longer,
    /// That long.
    Exactly(usize),
}

/// Looks at what has come, takes as much of it as belongs to the header, and waits for more if that is not all.
async fn take(stream: &mut TcpStream) -> Result<Vec<u8>, Refusal> {
    let mut header = Vec::new();
    loop {
        let known = header.len();
        let gone = |_| match known {
            0 => Refusal::NoRequest,
            _ => Refusal::ClientLeft,
        };
        header.resize(known + CHUNK, 0);
        let came = stream.peek(of(&mut header, known)).await.map_err(gone)?;
        header.truncate(known + came);
        match (came, known) {
            (0, 0) => return Err(Refusal::NoRequest),
            (0, _) => return Err(Refusal::BadProxyHeader),
            _ => {}
        }
        let extent = extent(&header).map_err(|Malformed| Refusal::BadProxyHeader)?;
        if let Extent::Exactly(length) = extent {
            header.truncate(length);
        }
        // It is there: this does not wait.
        stream.read_exact(of(&mut header, known)).await.map_err(gone)?;
        if extent == Extent::Exactly(header.len()) {
            return Ok(header);
        }
    }
}

fn of(header: &mut [u8], known: usize) -> &mut [u8] {
    header.get_mut(known..).unwrap_or_default()
}

fn extent(start: &[u8]) -> Result<Extent, Malformed> {
    if v2::may_be(start) {
        v2::extent(start)
    } else if v1::may_be(start) {
        v1::extent(start)
    } else {
        Err(Malformed)
    }
}

fn parse(header: &[u8]) -> Result<Option<Addresses>, Malformed> {
    if v2::may_be(header) {
        v2::parse(header)
    } else {
        v1::parse(header)
    }
}

impl Addresses {
    /// That of a connection that nobody has passed on.
    pub fn of(stream: &TcpStream, peer: SocketAddr) -> Self {
        let address = stream.local_addr().unwrap_or(peer);
        Self {
            source: peer,
            destination: SocketAddr::new(address.ip().to_canonical(), address.port()),
        }
    }
}

/// A passage as a header can say it: neither version can mix the families.
enum Ends {
    V4(SocketAddrV4, SocketAddrV4),
    V6(SocketAddrV6, SocketAddrV6),
}

impl From<&Addresses> for Ends {
    fn from(passage: &Addresses) -> Self {
        let mapped = |address: SocketAddr| match address {
            SocketAddr::V4(address) => SocketAddrV6::new(address.ip().to_ipv6_mapped(), address.port(), 0, 0),
            SocketAddr::V6(address) => address,
        };
        match (passage.source, passage.destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Self::V4(source, destination),
            (source, destination) => Self::V6(mapped(source), mapped(destination)),
        }
    }
}

/// Prints `v1` or `v2`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

/// Reads what `Display` prints.
impl FromStr for Version {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            _ => Err("expected `v1` or `v2`"),
        }
    }
}

/// More than a header without extensions has.
const CHUNK: usize = 256;

#[cfg(test)]
mod tests;
