//! The addresses that may be dialled. Without this filter, the author of a Service could reach the proxy's own host, or the
//! cloud's metadata service, through the proxy.

use std::collections::HashSet;
use std::fs;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The reason why an address may not be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressClass {
    /// `0.0.0.0/8` and `::`: this host.
    Unspecified,
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `169.254.0.0/16` and `fe80::/10`: mostly metadata services.
    LinkLocal,
    /// A metadata or credential service that is not link-local.
    Metadata,
    /// `fec0::/10`, deprecated by RFC 3879.
    SiteLocal,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `240.0.0.0/4`, with the broadcast address.
    Reserved,
    /// An address of this host.
    Own,
    /// Not in `allowed_cidrs`.
    NotAllowed,
}

impl AddressClass {
    /// Returns the field `class` of log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata service",
            Self::SiteLocal => "site-local",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved or broadcast",
            Self::Own => "this host's own",
            Self::NotAllowed => "not in allowed_cidrs",
        }
    }
}

/// The addresses that may be dialled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressFilter {
    /// `allowed_cidrs`; empty for all addresses but dangerous ones.
    allowed: Vec<IpNet>,
    /// The addresses of this host.
    own_addresses: HashSet<IpAddr>,
}

impl AddressFilter {
    /// Creates a filter that allows these networks, or all if there are none. See [`check`](Self::check).
    pub(crate) fn new(allowed: &[IpNet]) -> Self {
        Self {
            allowed: allowed.to_vec(),
            own_addresses: own_addresses(),
        }
    }

    /// Returns this filter with the host's current addresses; `None` if they are the same or cannot be read.
    pub(crate) fn read_again(&self) -> Option<Self> {
        let own_addresses = own_addresses();
        // If there are none, /proc could not be read: a host always has loopback addresses.
        (!own_addresses.is_empty() && own_addresses != self.own_addresses).then(|| Self {
            allowed: self.allowed.clone(),
            own_addresses,
        })
    }

    /// Checks that an address may be dialled. An IPv4-mapped address is the IPv4 address. Any other IPv4 address in an IPv6
    /// address can only forbid it: the author of a Service chooses the last half of an address in any network.
    ///
    /// A dangerous address needs an allowed network whose addresses are all of its class: `127.0.0.2/32` allows that
    /// address, `0.0.0.0/0` no dangerous one.
    ///
    /// # Errors
    /// Why it may not be dialled.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), AddressClass> {
        let address = address.to_canonical();
        for judged in iter::once(address).chain(embedded(address)) {
            let named = |net: &&IpNet| net.contains(&judged) || net.contains(&address);
            if let Some(class) = self.class(judged)
                && !self.allowed.iter().filter(named).any(|net| self.is_all(net, class))
            {
                return Err(class);
            }
        }
        match self.allowed.is_empty() || self.allowed.iter().any(|net| net.contains(&address)) {
            true => Ok(()),
            false => Err(AddressClass::NotAllowed),
        }
    }

    fn class(&self, address: IpAddr) -> Option<AddressClass> {
        let class = match address {
            IpAddr::V4(address) => class_v4(address),
            IpAddr::V6(address) => class_v6(address),
        };
        class.or_else(|| self.own_addresses.contains(&address).then_some(AddressClass::Own))
    }

    fn is_all(&self, net: &IpNet, class: AddressClass) -> bool {
        self.class(net.network()) == Some(class) && self.class(net.broadcast()) == Some(class)
    }
}

/// Returns the IPv4 addresses that any known mechanism may translate an IPv6 address to.
fn embedded(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = address else {
        return Vec::new();
    };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    let mut found = match [a, b, c, d, e, f] {
        // IPv4-translated (RFC 2765), and IPv4-compatible but for :: and ::1.
        [0, 0, 0, 0, 0xffff, 0] => vec![v4(g, h)],
        [0, 0, 0, 0, 0, 0] if g != 0 || h > 1 => vec![v4(g, h)],
        // NAT64 with the well-known prefix (RFC 6052), and with one of those for local use.
        [0x64, 0xff9b, 0, 0, 0, 0] => vec![v4(g, h)],
        [0x64, 0xff9b, 1, ..] => local_nat64(v6),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => vec![v4(high, low)],
        // Teredo (RFC 4380): the server, and the client's address with all bits inverted.
        [0x2001, 0, high, low, ..] => vec![v4(high, low), v4(!g, !h)],
        _ => Vec::new(),
    };
    // ISATAP (RFC 5214 section 6.1), in any network, also in one of 6to4, for a private or a global IPv4 address.
    if let (0 | 0x200, 0x5efe) = (e, f) {
        found.push(v4(g, h));
    }
    found
}

/// Returns the IPv4 addresses that an address of `64:ff9b:1::/48` may be translated to (RFC 8215), for each length of a prefix
/// (RFC 6052 section 2.2). Wrong lengths often give addresses in `0.0.0.0/8`, which no router forwards: these are left
/// out unless there are no others. The suffix is ignored, as translators do.
fn local_nat64(address: Ipv6Addr) -> Vec<IpAddr> {
    let [_, _, _, _, _, _, a, b, _, c, d, e, f, g, h, i] = address.octets();
    let of_lengths = [[a, b, c, d], [b, c, d, e], [c, d, e, f], [f, g, h, i]].map(Ipv4Addr::from);
    let routed: Vec<_> = of_lengths.into_iter().filter(|v4| v4.octets()[0] != 0).collect();
    match routed.is_empty() {
        true => vec![Ipv4Addr::UNSPECIFIED.into()],
        false => routed.into_iter().map(IpAddr::V4).collect(),
    }
}

fn class_v4(address: Ipv4Addr) -> Option<AddressClass> {
    Some(match address.octets() {
        [0, ..] => AddressClass::Unspecified,
        [127, ..] => AddressClass::Loopback,
        [169, 254, ..] => AddressClass::LinkLocal,
        [224..=239, ..] => AddressClass::Multicast,
        [240..=255, ..] => AddressClass::Reserved,
        // Alibaba Cloud, "Instance metadata".
        [100, 100, 100, 200] => AddressClass::Metadata,
        // Microsoft Azure, "What is IP address 168.63.129.16?".
        [168, 63, 129, 16] => AddressClass::Metadata,
        // Oracle Cloud Infrastructure Classic.
        [192, 0, 0, 192] => AddressClass::Metadata,
        _ => return None,
    })
}

fn class_v6(address: Ipv6Addr) -> Option<AddressClass> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        [0xfec0..=0xfeff, ..] => AddressClass::SiteLocal,
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        // The local services of AWS: metadata ::254 (Amazon EC2 User Guide), DNS ::253, time ::123, and credentials ::23
        // (Amazon EKS User Guide, "Set up the Amazon EKS Pod Identity Agent").
        [0xfd00, 0xec2, ..] => AddressClass::Metadata,
        // Google Cloud, "About VM metadata".
        [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => AddressClass::Metadata,
        // Oracle Cloud Infrastructure, its SDK for Python: the signer of instance principals.
        [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe] => AddressClass::Metadata,
        // Alibaba Cloud, as in cloud-init's data source for it.
        [0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200] => AddressClass::Metadata,
        // Akamai Connected Cloud, as in the documents of cloud-init, "Akamai".
        [0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1] => AddressClass::Metadata,
        // Scaleway, as in the documents of cloud-init, "Scaleway".
        [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42] => AddressClass::Metadata,
        _ => return None,
    })
}

/// Returns the addresses of this host's interfaces, from `/proc/net`; empty if it cannot be read.
///
/// No dependency offers getifaddrs(3) without `unsafe`. A bind does not test an address: with `ip_nonlocal_bind` it
/// succeeds for every one.
fn own_addresses() -> HashSet<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let v4 = local_v4(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::V4);
    let v6 = local_v6(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::V6);
    v4.chain(v6).collect()
}

/// Parses fib_trie: a leaf is a line `|-- ADDRESS`, followed by its routes, such as `/32 host LOCAL`.
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

/// Parses if_inet6: each line begins with an address of 32 hexadecimal digits.
fn local_v6(table: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    table.lines().filter_map(address).map(Ipv6Addr::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn guards(allowed: &[&str]) -> AddressFilter {
        let allowed: Vec<_> = allowed.iter().map(|net| net.parse().unwrap()).collect();
        AddressFilter {
            allowed,
            own_addresses: ["10.1.2.3".parse().unwrap(), "fd00::3".parse().unwrap()].into(),
        }
    }

    fn check(filter: &AddressFilter, address: &str) -> Result<(), AddressClass> {
        filter.check(address.parse().unwrap())
    }

    #[test]
    fn dangerous_addresses_are_refused_in_every_translation() {
        let open = guards(&[]);
        for (v4, class) in [
            ("0.0.0.0", AddressClass::Unspecified),
            ("0.1.2.3", AddressClass::Unspecified),
            ("127.0.0.1", AddressClass::Loopback),
            ("127.255.0.1", AddressClass::Loopback),
            ("169.254.169.254", AddressClass::LinkLocal),
            ("239.1.1.1", AddressClass::Multicast),
            ("255.255.255.255", AddressClass::Reserved),
            ("240.0.0.1", AddressClass::Reserved),
            ("169.254.170.2", AddressClass::LinkLocal),
            ("169.254.170.23", AddressClass::LinkLocal),
            ("169.254.42.42", AddressClass::LinkLocal),
            ("169.254.0.23", AddressClass::LinkLocal),
            ("100.100.100.200", AddressClass::Metadata),
            ("192.0.0.192", AddressClass::Metadata),
            ("168.63.129.16", AddressClass::Metadata),
            ("10.1.2.3", AddressClass::Own),
        ] {
            assert_eq!(check(&open, v4), Err(class), "{v4}");
            let [a, b, c, d] = v4.parse::<Ipv4Addr>().unwrap().octets();
            for translated in [
                format!("::ffff:{v4}"),
                format!("::ffff:0:{v4}"),
                format!("64:ff9b::{v4}"),
                format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1"),
            ] {
                assert_eq!(check(&open, &translated), Err(class), "{translated}");
            }
            if v4 != "0.0.0.0" {
                assert_eq!(check(&open, &format!("::{v4}")), Err(class), "::{v4}");
            }
        }
    }

    #[test]
    fn dangerous_ipv6_addresses_are_refused_and_their_neighbours_are_not() {
        let open = guards(&[]);
        for (v6, class) in [
            ("::", AddressClass::Unspecified),
            ("::1", AddressClass::Loopback),
            ("fe80::1", AddressClass::LinkLocal),
            ("febf::1", AddressClass::LinkLocal),
            ("ff02::1", AddressClass::Multicast),
            ("fd00:ec2::254", AddressClass::Metadata),
            ("fd00:ec2::23", AddressClass::Metadata),
            ("fd00:ec2::253", AddressClass::Metadata),
            ("fd00:ec2:ffff::1", AddressClass::Metadata),
            ("fd20:ce::254", AddressClass::Metadata),
            ("fd00:c1::a9fe:a9fe", AddressClass::Metadata),
            ("fd00:100::100:200", AddressClass::Metadata),
            ("fd00:a9fe:a9fe::1", AddressClass::Metadata),
            ("fd00:42::42", AddressClass::Metadata),
            ("fe80::a9fe:a9fe", AddressClass::LinkLocal),
            ("fd00::3", AddressClass::Own),
            ("fec0::1", AddressClass::SiteLocal),
            ("feff:ffff::1", AddressClass::SiteLocal),
            ("64:ff9b:1::", AddressClass::Unspecified),
        ] {
            assert_eq!(check(&open, v6), Err(class), "{v6}");
        }
        for harmless in [
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "fd00::1",
            "fd00:ec3::254",
            "fd00:c1::1",
            "fd00:42::43",
            "2001:db8::1",
            "2001:1::1",
        ] {
            assert_eq!(check(&open, harmless), Ok(()), "{harmless}");
        }
    }

    /// 169.254.169.254 is a9fe:a9fe, and 10.0.0.9 is 0a00:0009.
    #[test]
    fn an_address_with_an_embedded_ipv4_address_is_as_dangerous_as_that() {
        let open = guards(&[]);
        for (translation, dangerous, harmless) in [
            ("RFC 8215 /96", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1::a00:9"),
            (
                "RFC 8215 /96 of a subnet",
                "64:ff9b:1:7::a9fe:a9fe",
                "64:ff9b:1:a00::a00:9",
            ),
            ("RFC 8215 /64", "64:ff9b:1:0:a9:fea9:fe00::", "64:ff9b:1:0:a:0:900::"),
            ("RFC 8215 /56", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:a:0:9::"),
            ("RFC 8215 /48", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a00:0:900::"),
            (
                "RFC 8215 /48 with a suffix",
                "64:ff9b:1:a9fe:a9:fe01:2:3",
                "64:ff9b:1:a00:0:901:a00:3",
            ),
            (
                "Teredo client",
                "2001::c0a8:101:0:ffff:5601:5601",
                "2001::c0a8:101:0:ffff:f5ff:fff6",
            ),
            (
                "Teredo server",
                "2001::a9fe:a9fe:0:ffff:f5ff:fff6",
                "2001::a00:9:0:ffff:f5ff:fff6",
            ),
            ("ISATAP", "2001:db8::5efe:a9fe:a9fe", "2001:db8::5efe:a00:9"),
            (
                "ISATAP, universal",
                "2001:db8::200:5efe:a9fe:a9fe",
                "2001:db8::200:5efe:a00:9",
            ),
            ("6to4", "2002:a9fe:a9fe::1", "2002:a00:9::1"),
        ] {
            let class = check(&open, dangerous);
            assert_eq!(class, Err(AddressClass::LinkLocal), "{translation}: {dangerous}");
            assert_eq!(check(&open, harmless), Ok(()), "{translation}: {harmless}");
            let elsewhere = guards(&["10.0.0.0/30", "192.168.0.0/16"]);
            let class = check(&elsewhere, harmless);
            assert_eq!(class, Err(AddressClass::NotAllowed), "{translation}: {harmless}");
            let of_v4 = guards(&["0.0.0.0/0"]);
            let class = check(&of_v4, harmless);
            assert_eq!(
                class,
                Err(AddressClass::NotAllowed),
                "{translation}: {harmless} is no IPv4 address"
            );
            let of_both = guards(&["10.0.0.0/8", "2000::/3", "64:ff9b:1::/48"]);
            assert_eq!(check(&of_both, harmless), Ok(()), "{translation}: {harmless}");
        }
        assert_eq!(check(&open, "fe80::5efe:a00:9"), Err(AddressClass::LinkLocal));
        let both = "2002:a00:9::5efe:a9fe:a9fe";
        assert_eq!(check(&open, both), Err(AddressClass::LinkLocal), "ISATAP in 6to4");
        // A network of a translation opens no address that is dangerous behind it.
        let translated = guards(&["64:ff9b:1::/48", "64:ff9b:1::a9fe:a9fe/128"]);
        assert_eq!(check(&translated, "64:ff9b:1::a00:9"), Ok(()));
        assert_eq!(check(&translated, "64:ff9b:1::a9fe:a9fe"), Err(AddressClass::LinkLocal));
    }

    #[test]
    fn an_allowed_network_opens_only_harmless_addresses_of_it() {
        let some = guards(&["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(check(&some, "10.0.0.1"), Ok(()));
        assert_eq!(check(&some, "::ffff:10.0.0.1"), Ok(()));
        assert_eq!(check(&some, "fd00::1"), Ok(()));
        assert_eq!(check(&some, "192.168.0.1"), Err(AddressClass::NotAllowed));
        assert_eq!(check(&some, "2001:db8::1"), Err(AddressClass::NotAllowed));
        assert_eq!(check(&some, "10.1.2.3"), Err(AddressClass::Own));
        let all = guards(&["0.0.0.0/0", "::/0", "126.0.0.0/7"]);
        for dangerous in [
            "127.0.0.1",
            "169.254.169.254",
            "10.1.2.3",
            "::1",
            "fe80::1",
            "fd00:ec2::23",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
        ] {
            assert!(check(&all, dangerous).is_err(), "{dangerous}");
            assert!(check(&some, dangerous).is_err(), "{dangerous}");
        }
        // An interface id that spells an address of 10/8, in another network, and the forms that are no IPv4 addresses.
        for spelled in [
            "2001:db8:bad:1:0:5efe:a00:1",
            "2001:db8:bad:1:200:5efe:a00:1",
            "::ffff:0:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:a00:1::1",
        ] {
            assert_eq!(check(&some, spelled), Err(AddressClass::NotAllowed), "{spelled}");
        }
        let deliberate = guards(&["127.0.0.2/32", "10.1.2.3/32"]);
        assert_eq!(check(&deliberate, "127.0.0.2"), Ok(()));
        assert_eq!(check(&deliberate, "10.1.2.3"), Ok(()));
        assert_eq!(check(&deliberate, "127.0.0.1"), Err(AddressClass::Loopback));
    }

    #[test]
    fn own_addresses_that_have_changed_are_read_again() {
        let before = guards(&["10.0.0.0/8"]);
        assert_eq!(check(&before, "10.1.2.3"), Err(AddressClass::Own));
        let now = before.read_again().unwrap();
        assert_eq!(check(&now, "10.1.2.3"), Ok(()));
        assert_eq!(now.own_addresses, own_addresses());
        assert_eq!(now.allowed, before.allowed);
        assert_eq!(now.read_again(), None);
    }

    #[test]
    fn own_addresses_are_read_from_the_kernel() {
        let own_addresses = own_addresses();
        assert!(own_addresses.contains(&"127.0.0.1".parse().unwrap()));
        // Nothing is sent: `connect` only looks up the route, if there is one.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            assert!(own_addresses.contains(&socket.local_addr().unwrap().ip()));
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
