//! Which addresses may be dialled: whoever may write Services must not reach the proxy's own host through it.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Why an address may not be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// `0.0.0.0/8` and `::`: this host.
    Unspecified,
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `169.254.0.0/16` and `fe80::/10`: cloud metadata, mostly.
    LinkLocal,
    /// A metadata service that is not link-local.
    Metadata,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `240.0.0.0/4`, the broadcast address in it.
    Reserved,
    /// An address of this host.
    Own,
    /// Not in `allowed_cidrs`.
    NotAllowed,
}

impl Class {
    /// What log lines call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata service",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved or broadcast",
            Self::Own => "this host's own",
            Self::NotAllowed => "not in allowed_cidrs",
        }
    }
}

/// What may be dialled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guards {
    allowed: Vec<IpNet>,
    own: HashSet<IpAddr>,
}

impl Guards {
    /// Guards that let these networks pass, or every harmless one if there are none.
    pub(crate) fn new(allowed: &[IpNet]) -> Self {
        Self {
            allowed: allowed.to_vec(),
            own: own_addresses(),
        }
    }

    /// Whether an address may be dialled.
    ///
    /// A dangerous one may only if the operator named its like and nothing else: `127.0.0.2/32` opens that address,
    /// and `0.0.0.0/0` opens none.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), Class> {
        let plain = plain(address);
        let named = |net: &&IpNet| net.contains(&plain) || net.contains(&address);
        match self.class(plain) {
            Some(class) => match self.allowed.iter().filter(named).any(|net| self.is_all(net, class)) {
                true => Ok(()),
                false => Err(class),
            },
            None if self.allowed.is_empty() || self.allowed.iter().any(|net| named(&net)) => Ok(()),
            None => Err(Class::NotAllowed),
        }
    }

    fn class(&self, address: IpAddr) -> Option<Class> {
        let class = match address {
            IpAddr::V4(address) => class_v4(address),
            IpAddr::V6(address) => class_v6(address),
        };
        class.or_else(|| self.own.contains(&address).then_some(Class::Own))
    }

    fn is_all(&self, net: &IpNet, class: Class) -> bool {
        self.class(net.network()) == Some(class) && self.class(net.broadcast()) == Some(class)
    }
}

/// The IPv4 address that an IPv6 one stands for, by whatever translation.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match [a, b, c, d, e, f] {
        // Mapped (also in its translated form), and compatible but for :: and ::1.
        [0, 0, 0, 0, 0, 0xffff] | [0, 0, 0, 0, 0xffff, 0] => v4(g, h).into(),
        [0, 0, 0, 0, 0, 0] if g != 0 || h > 1 => v4(g, h).into(),
        // NAT64 (RFC 6052) and 6to4 (RFC 3056).
        [0x64, 0xff9b, 0, 0, 0, 0] => v4(g, h).into(),
        [0x2002, high, low, ..] => v4(high, low).into(),
        _ => address,
    }
}

fn class_v4(address: Ipv4Addr) -> Option<Class> {
    Some(match address.octets() {
        [0, ..] => Class::Unspecified,
        [127, ..] => Class::Loopback,
        [169, 254, ..] => Class::LinkLocal,
        [224..=239, ..] => Class::Multicast,
        [240..=255, ..] => Class::Reserved,
        // Alibaba, Azure, Oracle.
        [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192] => Class::Metadata,
        _ => return None,
    })
}

fn class_v6(address: Ipv6Addr) -> Option<Class> {
    if METADATA_V6.contains(&address) {
        return Some(Class::Metadata);
    }
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Class::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Class::Loopback,
        [0xfe80..=0xfebf, ..] => Class::LinkLocal,
        [0xff00..=0xffff, ..] => Class::Multicast,
        _ => return None,
    })
}

/// AWS and Google.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The addresses of this host's interfaces, as the kernel's routing tables have them.
///
/// Not by getifaddrs(3), which has no safe form here, and not by trying to bind each: with `ip_nonlocal_bind` that
/// succeeds for every address.
fn own_addresses() -> HashSet<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let v4 = local_v4(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::V4);
    let v6 = local_v6(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::V6);
    v4.chain(v6).collect()
}

/// A leaf is a line `|-- ADDRESS`, and the routes of it follow: `/32 host LOCAL`.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut leaf: Option<Ipv4Addr> = None;
    let mut found = Vec::new();
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(leaf);
        }
    }
    found
}

/// Each line begins with the address in 32 hexadecimal digits.
fn local_v6(table: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    table.lines().filter_map(address).map(Ipv6Addr::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn guards(allowed: &[&str]) -> Guards {
        let allowed: Vec<_> = allowed.iter().map(|net| net.parse().unwrap()).collect();
        Guards {
            allowed,
            own: ["10.1.2.3".parse().unwrap(), "fd00::3".parse().unwrap()].into(),
        }
    }

    fn check(guards: &Guards, address: &str) -> Result<(), Class> {
        guards.check(address.parse().unwrap())
    }

    #[test]
    fn dangerous_addresses_are_refused_in_every_disguise() {
        let open = guards(&[]);
        for (v4, class) in [
            ("0.0.0.0", Class::Unspecified),
            ("0.1.2.3", Class::Unspecified),
            ("127.0.0.1", Class::Loopback),
            ("127.255.0.1", Class::Loopback),
            ("169.254.169.254", Class::LinkLocal),
            ("239.1.1.1", Class::Multicast),
            ("255.255.255.255", Class::Reserved),
            ("240.0.0.1", Class::Reserved),
            ("168.63.129.16", Class::Metadata),
            ("10.1.2.3", Class::Own),
        ] {
            assert_eq!(check(&open, v4), Err(class), "{v4}");
            let [a, b, c, d] = v4.parse::<Ipv4Addr>().unwrap().octets();
            for disguise in [
                format!("::ffff:{v4}"),
                format!("::ffff:0:{v4}"),
                format!("64:ff9b::{v4}"),
                format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1"),
            ] {
                assert_eq!(check(&open, &disguise), Err(class), "{disguise}");
            }
            if v4 != "0.0.0.0" {
                assert_eq!(check(&open, &format!("::{v4}")), Err(class), "::{v4}");
            }
        }
        for (v6, class) in [
            ("::", Class::Unspecified),
            ("::1", Class::Loopback),
            ("fe80::1", Class::LinkLocal),
            ("febf::1", Class::LinkLocal),
            ("ff02::1", Class::Multicast),
            ("fd00:ec2::254", Class::Metadata),
            ("fd00::3", Class::Own),
        ] {
            assert_eq!(check(&open, v6), Err(class), "{v6}");
        }
        for harmless in ["10.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "2001:db8::1"] {
            assert_eq!(check(&open, harmless), Ok(()), "{harmless}");
        }
    }

    #[test]
    fn a_network_opens_what_it_names_and_nothing_dangerous_beside() {
        let some = guards(&["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(check(&some, "10.0.0.1"), Ok(()));
        assert_eq!(check(&some, "::ffff:10.0.0.1"), Ok(()));
        assert_eq!(check(&some, "fd00::1"), Ok(()));
        assert_eq!(check(&some, "192.168.0.1"), Err(Class::NotAllowed));
        assert_eq!(check(&some, "2001:db8::1"), Err(Class::NotAllowed));
        assert_eq!(check(&some, "10.1.2.3"), Err(Class::Own));
        let all = guards(&["0.0.0.0/0", "::/0", "126.0.0.0/7"]);
        for dangerous in ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "fe80::1"] {
            assert!(check(&all, dangerous).is_err(), "{dangerous}");
        }
        let deliberate = guards(&["127.0.0.2/32", "10.1.2.3/32"]);
        assert_eq!(check(&deliberate, "127.0.0.2"), Ok(()));
        assert_eq!(check(&deliberate, "10.1.2.3"), Ok(()));
        assert_eq!(check(&deliberate, "127.0.0.1"), Err(Class::Loopback));
    }

    #[test]
    fn own_addresses_are_found() {
        let own = own_addresses();
        assert!(own.contains(&"127.0.0.1".parse().unwrap()));
        // Nothing is sent: it only asks for the route, if there is one.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            assert!(own.contains(&socket.local_addr().unwrap().ip()));
        }
        let table =
            "fe80000000000000025056fffec00008 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n";
        assert_eq!(
            local_v6(table),
            [
                "fe80::250:56ff:fec0:8".parse::<Ipv6Addr>().unwrap(),
                Ipv6Addr::LOCALHOST
            ]
        );
    }
}
