//! Reads and writes the PROXY protocol header, in which a proxy names the client of a connection that it forwards.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. The crate `ppp` is the oracle of the tests. It cannot
//! be the parser: it refuses an UNKNOWN with more than four words and a LOCAL of an unknown family, which are valid.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::addresses::HeaderLen;
pub use self::addresses::{AddressPair, Malformed};
use crate::base::boxed::boxed;
use crate::tunnel::outcome::RefusalReason;

mod addresses;
mod v1;
mod v2;

/// The peers from which a port takes headers.
///
/// A header is never optional: behind a load balancer that adds none, a client could write its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None: the peer of a connection is its client.
    #[default]
    Off,
    /// Those in these networks, whose connections must all begin with a header. Other peers are refused.
    Required {
        /// At least one.
        trusted: Box<[IpNet]>,
    },
}

/// The format of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Reads the header of a connection, if the policy requires one. `None`: the peer is the client.
///
/// No byte after the header is read.
///
/// # Errors
/// [`RefusalReason::UntrustedProxy`], [`RefusalReason::BadProxyHeader`], [`RefusalReason::PortProbe`] or
/// [`RefusalReason::ClientDisconnected`].
pub async fn read(stream: &mut TcpStream, peer: IpAddr, policy: &Policy) -> Result<Option<AddressPair>, RefusalReason> {
    let Policy::Required { trusted } = policy else {
        return Ok(None);
    };
    if !trusted.iter().any(|network| network.contains(&peer)) {
        return Err(RefusalReason::UntrustedProxy);
    }
    let header = boxed(read_header(stream)).await?;
    parse(&header).map_err(|Malformed| RefusalReason::BadProxyHeader)
}

/// Writes a header. It fits the send buffer of a new socket, so this does not wait.
///
/// # Errors
/// The error of write(2).
pub async fn write(stream: &mut TcpStream, version: Version, addresses: &AddressPair) -> io::Result<()> {
    stream.write_all(&encode(version, addresses)).await
}

/// Returns the bytes of a header with these addresses.
pub fn encode(version: Version, addresses: &AddressPair) -> Vec<u8> {
    match version {
        Version::V1 => v1::encode(addresses),
        Version::V2 => v2::encode(addresses),
    }
}

/// Returns the length of the header at the start of these bytes, and its addresses, if any; `None` if more bytes are
/// needed.
///
/// # Errors
/// They begin with a header of neither version.
pub fn decode(bytes: &[u8]) -> Result<Option<(usize, Option<AddressPair>)>, Malformed> {
    let HeaderLen::Exactly(length) = extent(bytes)? else {
        return Ok(None);
    };
    let header = bytes.get(..length).map(parse).transpose()?;
    Ok(header.map(|addresses| (length, addresses)))
}

/// Peeks at the bytes in the socket, reads those of the header, and waits for more until it is complete.
async fn read_header(stream: &mut TcpStream) -> Result<Vec<u8>, RefusalReason> {
    let mut header = Vec::new();
    loop {
        let known = header.len();
        let gone = |_| match known {
            0 => RefusalReason::PortProbe,
            _ => RefusalReason::ClientDisconnected,
        };
        header.resize(known + CHUNK, 0);
        let peeked = stream.peek(after(&mut header, known)).await.map_err(gone)?;
        header.truncate(known + peeked);
        match (peeked, known) {
            (0, 0) => return Err(RefusalReason::PortProbe),
            (0, _) => return Err(RefusalReason::BadProxyHeader),
            _ => {}
        }
        let extent = extent(&header).map_err(|Malformed| RefusalReason::BadProxyHeader)?;
        if let HeaderLen::Exactly(length) = extent {
            header.truncate(length);
        }
        // The bytes have been peeked at: this does not wait.
        stream.read_exact(after(&mut header, known)).await.map_err(gone)?;
        if extent == HeaderLen::Exactly(header.len()) {
            return Ok(header);
        }
    }
}

fn after(header: &mut [u8], known: usize) -> &mut [u8] {
    header.get_mut(known..).unwrap_or_default()
}

fn extent(start: &[u8]) -> Result<HeaderLen, Malformed> {
    if v2::may_be(start) {
        v2::extent(start)
    } else if v1::may_be(start) {
        v1::extent(start)
    } else {
        Err(Malformed)
    }
}

fn parse(header: &[u8]) -> Result<Option<AddressPair>, Malformed> {
    if v2::may_be(header) {
        v2::parse(header)
    } else {
        v1::parse(header)
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

/// In bytes: more than a header without extensions has.
const CHUNK: usize = 256;

#[cfg(test)]
mod tests;
