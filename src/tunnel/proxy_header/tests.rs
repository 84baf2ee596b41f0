//! Headers in pieces, with bytes after them, unusual ones and long ones. The crate `ppp` is the oracle.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::net::TcpListener;

use super::*;

mod properties;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let near = near.unwrap();
    near.set_nodelay(true).unwrap();
    (near, far.unwrap().0)
}

fn trusting(network: &str) -> Policy {
    Policy::Required {
        trusted: [network.parse().unwrap()].into(),
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns the result of reading a connection that sends these pieces, and the bytes that are left on it.
async fn read_pieces(pieces: &[&[u8]]) -> (Result<Option<AddressPair>, RefusalReason>, Vec<u8>) {
    let (mut near, mut far) = pair().await;
    let policy = trusting("127.0.0.0/8");
    let send = async {
        for piece in pieces {
            // A refused header ends the connection early.
            near.write_all(piece).await.ok();
            tokio::task::yield_now().await;
        }
        near.shutdown().await.ok();
    };
    let (read, ()) = tokio::join!(read(&mut far, LOOPBACK, &policy), send);
    let mut left = Vec::new();
    far.read_to_end(&mut left).await.unwrap();
    (read, left)
}

async fn read_all(bytes: &[u8]) -> Result<Option<AddressPair>, RefusalReason> {
    read_pieces(&[bytes]).await.0
}

fn addresses(source: &str, destination: &str) -> AddressPair {
    AddressPair {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

/// Returns a header of version 2 with `rest` after its fixed part. `protocol` is the family and the protocol.
fn v2_header(command: u8, protocol: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, protocol]);
    header.extend(length);
    header.extend(rest);
    header
}

fn four() -> AddressPair {
    addresses("192.0.2.1:56324", "198.51.100.2:443")
}

fn six() -> AddressPair {
    addresses("[2001:db8::1]:56324", "[2001:db8::2]:443")
}

/// 192.0.2.1:56324 to 198.51.100.2:443.
const FOUR: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xDC, 0x04, 1, 0xBB];

#[tokio::test]
async fn both_versions_name_the_addresses() {
    for (header, expected) in [
        (
            b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n".to_vec(),
            Some(four()),
        ),
        (
            b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n".to_vec(),
            Some(six()),
        ),
        // An IPv4 client of a dual-stack load balancer.
        (
            b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:198.51.100.2 56324 443\r\n".to_vec(),
            Some(four()),
        ),
        (
            b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n".to_vec(),
            Some(addresses("0.0.0.0:0", "255.255.255.255:65535")),
        ),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(), None),
        (b"PROXY UNKNOWN a b c d e f g h\r\n".to_vec(), None),
        (v2_header(PROXY, 0x11, &FOUR), Some(four())),
        (v2::encode(&six()), Some(six())),
        (v2_header(LOCAL, 0x00, &[]), None),
        // The health check of a proxy that fills the rest in all the same, or with values that do not exist.
        (v2_header(LOCAL, 0x11, &FOUR), None),
        (v2_header(LOCAL, 0xFF, &[1]), None),
        // Unix sockets, datagrams, unspecified.
        (v2_header(PROXY, 0x31, &[b'/'; 216]), None),
        (v2_header(PROXY, 0x12, &FOUR), None),
        (v2_header(PROXY, 0x00, &[]), None),
    ] {
        assert_eq!(read_all(&header).await, Ok(expected), "{}", header.escape_ascii());
    }
}

#[tokio::test]
async fn malformed_headers_are_refused() {
    let long_line = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
    let just_too_long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
    assert_eq!(just_too_long.len(), 108);
    for header in [
        b"CONNECT a:22 HTTP/1.1\r\n\r\n".as_slice(),
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\0\0",
        b"\r\n\r\nCONNECT a:22 HTTP/1.1\r\n\r\n",
        b"PROXY\r\n",
        b"PROXY \r\n",
        b"PROXYTCP4 1.1.1.1 1.1.1.1 1 1\r\n",
        b"proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY tcp4 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n",
        b"PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 \r\n",
        b"PROXY TCP4 1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 01.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 ::1 ::1 1 1\r\n",
        b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1  1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\rx\r\n",
        b"PROXY TCP4 1.1.1.1\0 1.1.1.1 1 1\r\n",
        b"PROXY \xff\xfe\r\n",
        &long_line,
        just_too_long.as_bytes(),
        // Cut off.
        b"P",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r",
        b"\r\n\r\n\0\r\nQUIT\n\x21",
        &v2_header(PROXY, 0x11, &FOUR)[..27],
        // Versions, commands, families and protocols that do not exist.
        &v2_header(0x11, 0x11, &FOUR),
        &v2_header(0x31, 0x11, &FOUR),
        &v2_header(0x22, 0x11, &FOUR),
        &v2_header(PROXY, 0x41, &FOUR),
        &v2_header(PROXY, 0x13, &FOUR),
        // Too short for its addresses.
        &v2_header(PROXY, 0x11, &FOUR[..11]),
        &v2_header(PROXY, 0x21, &FOUR),
        &v2_header(PROXY, 0x11, &[0; 4081]),
    ] {
        let read = read_all(header).await;
        assert_eq!(read, Err(RefusalReason::BadProxyHeader), "{}", header.escape_ascii());
    }
    assert_eq!(read_all(b"").await, Err(RefusalReason::PortProbe));
}

#[tokio::test]
async fn a_header_that_is_too_long_is_refused_before_it_has_arrived() {
    let (mut near, mut far) = pair().await;
    near.write_all(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff").await.unwrap();
    let read = read(&mut far, LOOPBACK, &trusting("127.0.0.1/32")).await;
    assert_eq!(read, Err(RefusalReason::BadProxyHeader));
}

#[tokio::test]
async fn extensions_are_skipped_and_the_bytes_behind_are_left() {
    let mut rest = FOUR.to_vec();
    rest.extend([0xEA, 0, 5, 1, b'v', b'p', b'c', b'e']);
    // One whose length is wrong, too: they are not parsed.
    rest.extend([0x20, 0xFF, 0xFF]);
    let small = v2_header(PROXY, 0x11, &rest);
    rest.resize(4080, 7);
    let max = v2_header(PROXY, 0x11, &rest);
    for header in [small, max] {
        let glued = [header.as_slice(), b"CONNECT a:22 HTTP/1.1\r\n"].concat();
        let (read, left) = read_pieces(&[&glued]).await;
        assert_eq!(read, Ok(Some(four())));
        assert_eq!(left, b"CONNECT a:22 HTTP/1.1\r\n");
    }
}

#[tokio::test]
async fn a_header_may_arrive_byte_by_byte() {
    for version in [Version::V1, Version::V2] {
        for expected in [four(), six()] {
            let mut bytes = encode(version, &expected);
            bytes.extend(b"\r\n\r\nPROXY ");
            let pieces: Vec<_> = bytes.chunks(1).collect();
            let (read, left) = read_pieces(&pieces).await;
            assert_eq!(read, Ok(Some(expected)));
            assert_eq!(left, b"\r\n\r\nPROXY ");
        }
    }
}

#[tokio::test]
async fn headers_are_taken_from_trusted_peers_only_and_not_read_where_none_is_required() {
    let header = encode(Version::V1, &four());
    for (policy, expected, left) in [
        (trusting("127.0.0.1/32"), Ok(Some(four())), 0),
        (trusting("10.0.0.0/8"), Err(RefusalReason::UntrustedProxy), header.len()),
        (trusting("::/0"), Err(RefusalReason::UntrustedProxy), header.len()),
        (Policy::Off, Ok(None), header.len()),
    ] {
        let (mut near, mut far) = pair().await;
        near.write_all(&header).await.unwrap();
        near.shutdown().await.unwrap();
        assert_eq!(read(&mut far, LOOPBACK, &policy).await, expected, "{policy:?}");
        let mut rest = Vec::new();
        assert_eq!(far.read_to_end(&mut rest).await.unwrap(), left);
    }
}

#[tokio::test]
async fn a_reset_before_the_end_of_the_header_is_a_client_that_left() {
    for (sent, expected) in [
        ("", RefusalReason::PortProbe),
        ("PROXY", RefusalReason::ClientDisconnected),
    ] {
        let (mut near, mut far) = pair().await;
        near.write_all(sent.as_bytes()).await.unwrap();
        let policy = trusting("127.0.0.1/32");
        let reading = read(&mut far, LOOPBACK, &policy);
        let reset = async {
            // The read is polled first, and has taken all that was sent.
            tokio::task::yield_now().await;
            crate::net::socket::reset_on_drop(&near);
            drop(near);
        };
        let (read, ()) = tokio::join!(biased; reading, reset);
        assert_eq!(read, Err(expected));
    }
}

#[test]
fn a_pair_of_both_families_is_written_as_ipv6() {
    let mixed = addresses("192.0.2.1:1", "[2001:db8::2]:2");
    assert_eq!(v1::encode(&mixed), b"PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n");
}

#[test]
fn a_version_has_a_name() {
    for version in [Version::V1, Version::V2] {
        assert_eq!(version.to_string().parse(), Ok(version));
    }
    assert!("1".parse::<Version>().is_err());
}

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
