//! Version 2: a signature, four bytes that describe the rest, two addresses, and extensions, which are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::addresses::{AddressPair, HeaderLen, Malformed, SameFamily};

/// Returns whether these may be the first bytes of a header.
pub(super) fn may_be(start: &[u8]) -> bool {
    start.starts_with(SIGNATURE) || SIGNATURE.starts_with(start)
}

/// Returns the length of a header, extensions included, from its length field.
pub(super) fn extent(start: &[u8]) -> Result<HeaderLen, Malformed> {
    let Some((fixed, _)) = start.split_first_chunk::<FIXED>() else {
        return Ok(HeaderLen::Incomplete);
    };
    let [.., high, low] = *fixed;
    match FIXED + usize::from(u16::from_be_bytes([high, low])) {
        length if length <= MAX_BYTES => Ok(HeaderLen::Exactly(length)),
        _ => Err(Malformed),
    }
}

/// Reads a whole header. `None` for a connection of the proxy itself (LOCAL), or of another protocol than TCP over IP.
pub(super) fn parse(header: &[u8]) -> Result<Option<AddressPair>, Malformed> {
    let (fixed, rest) = header.split_first_chunk::<FIXED>().ok_or(Malformed)?;
    let [.., command, protocol, _, _] = *fixed;
    match command {
        // The rest has no meaning.
        LOCAL => return Ok(None),
        PROXY => {}
        _ => return Err(Malformed),
    }
    match (protocol >> 4, protocol & 0xF) {
        (1, 1) => tcp::<4, Ipv4Addr>(rest).map(Some),
        (2, 1) => tcp::<16, Ipv6Addr>(rest).map(Some),
        // Unspecified, IPv4, IPv6 or Unix; unspecified, stream or datagram.
        (0..=3, 0..=2) => Ok(None),
        _ => Err(Malformed),
    }
}

/// Returns the bytes of a header with these addresses.
pub(super) fn encode(addresses: &AddressPair) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let [source_port, destination_port] = match addresses.into() {
        SameFamily::V4(source, destination) => {
            header.extend([PROXY, TCP4, 0, TCP4_BYTES]);
            header.extend(source.ip().octets());
            header.extend(destination.ip().octets());
            [source.port(), destination.port()]
        }
        SameFamily::V6(source, destination) => {
            header.extend([PROXY, TCP6, 0, TCP6_BYTES]);
            header.extend(source.ip().octets());
            header.extend(destination.ip().octets());
            [source.port(), destination.port()]
        }
    };
    header.extend(source_port.to_be_bytes());
    header.extend(destination_port.to_be_bytes());
    header
}

/// Returns the addresses of a family whose addresses have `BYTES` bytes.
fn tcp<const BYTES: usize, Ip: From<[u8; BYTES]> + Into<IpAddr>>(bytes: &[u8]) -> Result<AddressPair, Malformed> {
    let (source, bytes) = bytes.split_first_chunk::<BYTES>().ok_or(Malformed)?;
    let (destination, bytes) = bytes.split_first_chunk::<BYTES>().ok_or(Malformed)?;
    let [one, two, three, four] = *bytes.first_chunk().ok_or(Malformed)?;
    let address = |ip, port| SocketAddr::new(Ip::from(ip).into().to_canonical(), u16::from_be_bytes(port));
    Ok(AddressPair {
        source: address(*source, [one, two]),
        destination: address(*destination, [three, four]),
    })
}

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, the version with the command, the family with the protocol, and the length of the rest.
const FIXED: usize = 16;
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const TCP4_BYTES: u8 = 12;
const TCP6_BYTES: u8 = 36;
/// The longest header, extensions included, in bytes: the same as nginx. Certificate names are the longest extension.
const MAX_BYTES: usize = 4096;
