//! Version 1: `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443` and a line's end.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::addresses::{AddressPair, HeaderLen, Malformed, SameFamily};

/// Returns whether these may be the first bytes of a header.
pub(super) fn may_be(start: &[u8]) -> bool {
    start.starts_with(PREFIX) || PREFIX.starts_with(start)
}

/// Returns the length of a header, which ends at the first line end, within [`MAX_BYTES`] bytes.
pub(super) fn extent(start: &[u8]) -> Result<HeaderLen, Malformed> {
    match start.windows(END.len()).position(|bytes| bytes == END) {
        Some(length) if length + END.len() <= MAX_BYTES => Ok(HeaderLen::Exactly(length + END.len())),
        None if start.len() < MAX_BYTES => Ok(HeaderLen::Incomplete),
        Some(_) | None => Err(Malformed),
    }
}

/// Reads a whole header. `None` for UNKNOWN, regardless of the rest.
pub(super) fn parse(header: &[u8]) -> Result<Option<AddressPair>, Malformed> {
    let text = header.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(END));
    let text = std::str::from_utf8(text.ok_or(Malformed)?).map_err(|_| Malformed)?;
    let mut words = text.split(' ');
    let protocol = words.next();
    if protocol == Some("UNKNOWN") {
        return Ok(None);
    }
    let words: Vec<_> = words.collect();
    let [source, destination, source_port, destination_port] = *words.as_slice() else {
        return Err(Malformed);
    };
    let address = match protocol {
        Some("TCP4") => address::<Ipv4Addr>,
        Some("TCP6") => address::<Ipv6Addr>,
        Some(_) | None => return Err(Malformed),
    };
    Ok(Some(AddressPair {
        source: SocketAddr::new(address(source)?, port(source_port)?),
        destination: SocketAddr::new(address(destination)?, port(destination_port)?),
    }))
}

/// Returns the bytes of a header with these addresses.
pub(super) fn encode(addresses: &AddressPair) -> Vec<u8> {
    let line = |protocol, source: (&dyn Display, u16), destination: (&dyn Display, u16)| {
        let (source, source_port) = source;
        let (destination, destination_port) = destination;
        format!("PROXY {protocol} {source} {destination} {source_port} {destination_port}\r\n").into_bytes()
    };
    match addresses.into() {
        SameFamily::V4(from, to) => line("TCP4", (from.ip(), from.port()), (to.ip(), to.port())),
        SameFamily::V6(from, to) => line("TCP6", (from.ip(), from.port()), (to.ip(), to.port())),
    }
}

fn address<T: FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, Malformed> {
    let address: T = text.parse().map_err(|_| Malformed)?;
    Ok(address.into().to_canonical())
}

/// Parses a port in digits, without a leading zero.
fn port(text: &str) -> Result<u16, Malformed> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain).ok_or(Malformed)
}

const PREFIX: &[u8] = b"PROXY ";
const END: &[u8] = b"\r\n";
/// The longest header of version 1, its line end included, in bytes.
const MAX_BYTES: usize = 107;
