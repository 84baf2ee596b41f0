//! Any header, and any bytes. The crate `ppp` is the oracle.

use std::net::SocketAddr;

use ppp::v2::{Command, Protocol, Type};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Returns the addresses that `ppp` reads out of a whole header; `None` if it is malformed.
pub(super) fn oracle(header: &[u8]) -> Option<Option<AddressPair>> {
    let of = |source: IpAddr, source_port, destination: IpAddr, destination_port| AddressPair {
        source: (source.to_canonical(), source_port).into(),
        destination: (destination.to_canonical(), destination_port).into(),
    };
    match ppp::HeaderResult::parse(header) {
        ppp::HeaderResult::V1(read) => Some(match read.ok()?.addresses {
            ppp::v1::Addresses::Unknown => None,
            ppp::v1::Addresses::Tcp4(ends) => Some(of(
                ends.source_address.into(),
                ends.source_port,
                ends.destination_address.into(),
                ends.destination_port,
            )),
            ppp::v1::Addresses::Tcp6(ends) => Some(of(
                ends.source_address.into(),
                ends.source_port,
                ends.destination_address.into(),
                ends.destination_port,
            )),
        }),
        ppp::HeaderResult::V2(read) => {
            let read = read.ok()?;
            if read.command == Command::Local || read.protocol != Protocol::Stream {
                return Some(None);
            }
            Some(match read.addresses {
                ppp::v2::Addresses::Unspecified | ppp::v2::Addresses::Unix(_) => None,
                ppp::v2::Addresses::IPv4(ends) => Some(of(
                    ends.source_address.into(),
                    ends.source_port,
                    ends.destination_address.into(),
                    ends.destination_port,
                )),
                ppp::v2::Addresses::IPv6(ends) => Some(of(
                    ends.source_address.into(),
                    ends.source_port,
                    ends.destination_address.into(),
                    ends.destination_port,
                )),
            })
        }
    }
}

/// Returns the length of a header that has arrived at once, as [`read_header`] finds it.
pub(super) fn framed(bytes: &[u8]) -> Result<usize, Malformed> {
    match extent(bytes)? {
        HeaderLen::Exactly(length) if length <= bytes.len() => Ok(length),
        HeaderLen::Exactly(_) | HeaderLen::Incomplete => Err(Malformed),
    }
}

pub(super) fn addresses() -> impl Strategy<Value = AddressPair> {
    let address = || {
        let ip = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits))),
            any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits)).to_canonical()),
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    };
    (address(), address()).prop_map(|(source, destination)| AddressPair { source, destination })
}

proptest! {
    #[test]
    fn a_written_header_is_read_back(addresses in addresses(), behind in vec(any::<u8>(), 0..40)) {
        for version in [Version::V1, Version::V2] {
            let header = encode(version, &addresses);
            prop_assert_eq!(parse(&header), Ok(Some(addresses)));
            prop_assert_eq!(oracle(&header), Some(Some(addresses)));
            let glued = [header.clone(), behind.clone()].concat();
            prop_assert_eq!(framed(&glued), Ok(header.len()));
            for cut in 1..header.len() {
                prop_assert!(matches!(extent(&header[..cut]), Ok(HeaderLen::Incomplete | HeaderLen::Exactly(_))));
                prop_assert_eq!(framed(&header[..cut]), Err(Malformed));
            }
        }
    }

    #[test]
    fn a_damaged_header_is_read_as_the_oracle_reads_it(
        addresses in addresses(),
        edits in vec((any::<proptest::sample::Index>(), prop_oneof![any::<u8>(), proptest::sample::select(b" \r\n0:.".to_vec())]), 1..4),
    ) {
        for version in [Version::V1, Version::V2] {
            let mut header = encode(version, &addresses);
            for (at, byte) in &edits {
                let at = at.index(header.len());
                header[at] = *byte;
            }
            let read = framed(&header).and_then(|length| parse(&header[..length]));
            // The oracle takes a `+` before a port and a space for a CR, and parses the family of a LOCAL.
            if let (Ok(read), Some(theirs)) = (read, oracle(&header)) {
                prop_assert_eq!(read, theirs, "{}", header.escape_ascii());
            }
            if read.is_err() {
                let theirs = oracle(&header);
                let lax = header.contains(&b'+') || header.ends_with(b" \n");
                prop_assert!(theirs.is_none() || lax, "{}", header.escape_ascii());
            }
        }
    }

    #[test]
    fn no_bytes_panic(start in proptest::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"]), rest in vec(any::<u8>(), 0..300)) {
        let bytes = [start, &rest].concat();
        if let Ok(length) = framed(&bytes) {
            prop_assert!(length <= 4096);
            parse(&bytes[..length]).ok();
        }
    }

    #[test]
    fn extensions_written_by_another_encoder_are_skipped(addresses in addresses(), values in vec(vec(any::<u8>(), 0..60), 0..6)) {
        let theirs = ppp::v2::Addresses::from((addresses.source, addresses.destination));
        let mut builder = ppp::v2::Builder::with_addresses(ppp::v2::Version::Two | Command::Proxy, Protocol::Stream, theirs);
        for value in &values {
            builder = builder.write_tlv(Type::NoOp, value).unwrap();
        }
        let header = builder.build().unwrap();
        let mixed = addresses.source.is_ipv4() != addresses.destination.is_ipv4();
        prop_assert_eq!(framed(&header), Ok(header.len()));
        prop_assert_eq!(parse(&header), Ok((!mixed).then_some(addresses)));
    }
}
