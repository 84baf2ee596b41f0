//! The addresses at which sockets of one process can listen together: one rule for the configuration and the sockets.
//!
//! A socket at `[::]` takes IPv4 clients, too (IPV6_V6ONLY is off, whatever net.ipv6.bindv6only says). If a public port
//! at `0.0.0.0` has the same number, that port takes them (IPV6_V6ONLY is on), so both can be configured.

use std::net::{IpAddr, SocketAddr};

/// Returns whether `address` is `[::]` and leaves the IPv4 clients of its port to a public port at `other`.
pub(crate) fn leaves_ipv4(address: SocketAddr, other: SocketAddr) -> bool {
    is_any_ipv6(address) && is_one_number(address, other) && is_any_ipv4(other)
}

/// Returns whether two sockets cannot listen at these addresses together, given that `[::]` includes IPv4.
pub(crate) fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let is_within = |one: SocketAddr, other: SocketAddr| {
        is_any_ipv6(one) || (is_any_ipv4(one) && other.ip().to_canonical().is_ipv4())
    };
    is_same(one, other) || is_one_number(one, other) && (is_within(one, other) || is_within(other, one))
}

/// Returns whether two addresses are the same, also if one is IPv4-mapped IPv6. A link-local address differs on each
/// interface.
pub(crate) fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    let interface = |address| match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    };
    is_one_number(one, other)
        && one.ip().to_canonical() == other.ip().to_canonical()
        && interface(one) == interface(other)
}

/// Returns whether the ports have the same number. For port 0 the kernel chooses a different number each time.
fn is_one_number(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.port() != 0
}

fn is_any_ipv6(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unspecified())
}

fn is_any_ipv4(address: SocketAddr) -> bool {
    matches!(address.ip().to_canonical(), IpAddr::V4(ip) if ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_any_ipv6_address_takes_ipv4_unless_another_port_has_it() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (one, other, leaves) in [
            ("[::]:1", "0.0.0.0:1", true),
            ("[::]:1", "0.0.0.0:2", false),
            ("[::]:0", "0.0.0.0:0", false),
            ("[::]:1", "127.0.0.1:1", false),
            ("[::1]:1", "0.0.0.0:1", false),
            ("0.0.0.0:1", "[::]:1", false),
        ] {
            assert_eq!(leaves_ipv4(address(one), address(other)), leaves, "{one} {other}");
        }
        for (one, other, collides) in [
            ("[::]:1", "0.0.0.0:1", true),
            ("[::]:0", "0.0.0.0:0", false),
            ("[fe80::1%1]:1", "[fe80::1%2]:1", false),
            ("[fe80::1%1]:1", "[fe80::1%1]:1", true),
            ("10.0.0.1:1", "[::ffff:10.0.0.1]:1", true),
        ] {
            assert_eq!(collide(address(one), address(other)), collides, "{one} {other}");
        }
    }
}
