//! The sections `listen` and `admin`: the ports, and the protocols of each.

use std::net::SocketAddr;

use crate::config::Config;
use crate::config::form::{self, BOOLEAN, Form, NETWORK, Schema};
use crate::config::section::{Field, Section};
use crate::net::listener::Options;
use crate::net::proxy_header::Policy;
use crate::tls::Mode;
use crate::tunnel::Port;

/// Reads `listen` and `admin`, no two of which may be the same address.
///
/// `has_certificates`: whether there are certificates for a port that speaks TLS.
pub(super) fn read(top: &mut Section<'_>, has_certificates: bool) -> (Vec<Port>, SocketAddr) {
    let default = Config::default();
    let listen_field = top.field("listen");
    let admin_field = top.field("admin");
    let listen = listen_field
        .as_ref()
        .map_or(default.listen, |field| ports(field, has_certificates));
    let admin = match &admin_field {
        Some(field) => field.parse(&LOCAL_ADDRESS),
        None => Some(default.admin),
    };
    if let Some(admin) = admin
        && let Some(port) = listen.iter().find(|port| collide(port.listener.address, admin))
        && let Some(field) = admin_field.or(listen_field)
    {
        field.fault(match port.listener.address {
            same if same == admin => format!("`listen` and `admin` are both {admin}"),
            other => format!("{admin} is taken by {other} of `listen`"),
        });
    }
    (listen, admin.unwrap_or(default.admin))
}

/// One port or a list of ports. Each is an address, or a map with the key `address`.
fn ports(field: &Field<'_>, has_certificates: bool) -> Vec<Port> {
    let entries = field.items_or_itself();
    if entries.is_empty() {
        field.fault("at least one address is needed");
    }
    let mut known = Vec::new();
    let read = |entry: Field<'_>| {
        if entry.is_map() {
            entry.section(|keys| port(keys, &mut known, has_certificates)).flatten()
        } else {
            address(&entry, false, &mut known).map(Port::from)
        }
    };
    entries.into_iter().filter_map(read).collect()
}

fn port(section: &mut Section<'_>, known: &mut Vec<KnownAddress>, has_certificates: bool) -> Option<Port> {
    let address_field = section.required("address");
    let tls_field = section.field("tls");
    let tls = tls_field.as_ref().and_then(|field| field.parse(&TLS_MODE));
    let tls = tls.unwrap_or_default();
    if let Some(field) = tls_field
        && tls != Mode::Off
        && !has_certificates
    {
        field.fault("needs `tls.certificates`");
    }
    let proxy_header = proxy_header(section);
    let reuse_port = section.value("reuse_port", &BOOLEAN).unwrap_or_default();
    let address = address(&address_field?, reuse_port, known)?;
    Some(Port {
        listener: Options { address, reuse_port },
        proxy_header,
        tls,
    })
}

/// An address that was read before.
struct KnownAddress {
    address: SocketAddr,
    reuse_port: bool,
    line: u64,
}

fn address(field: &Field<'_>, reuse_port: bool, known: &mut Vec<KnownAddress>) -> Option<SocketAddr> {
    let address = field.parse(&LOCAL_ADDRESS)?;
    for other in known.iter().filter(|other| collide(other.address, address)) {
        let line = other.line;
        if other.address == address {
            field.fault(format!("{address} is on line {line} too"));
        } else if !(reuse_port && other.reuse_port) {
            field.fault(format!("{address} is taken by {} on line {line}", other.address));
        }
    }
    known.push(KnownAddress {
        address,
        reuse_port,
        line: field.line(),
    });
    Some(address)
}

/// Whether two sockets cannot listen at these addresses at once. Port 0 is a different port each time.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let (one_ip, other_ip) = (one.ip(), other.ip());
    // Whether `[::]` includes IPv4 depends on the host (net.ipv6.bindv6only), so the two families never collide here.
    let is_within = one_ip.is_ipv4() == other_ip.is_ipv4() && (one_ip.is_unspecified() || other_ip.is_unspecified());
    one.port() == other.port() && one.port() != 0 && (one_ip == other_ip || is_within)
}

/// Reads `proxy_protocol` and `trusted_proxies`, each of which needs the other.
fn proxy_header(section: &mut Section<'_>) -> Policy {
    let faults = section.faults();
    let mode = section.field("proxy_protocol");
    let list = section.field("trusted_proxies");
    let items = list.as_ref().map(Field::items).unwrap_or_default();
    let trusted: Box<[_]> = items.iter().filter_map(|item| item.parse(&NETWORK)).collect();
    let required = mode.as_ref().and_then(|mode| mode.parse(&PROXY_PROTOCOL));
    if section.faults() > faults {
        return Policy::Off;
    }
    match (mode, list) {
        (Some(mode), _) if required == Some(true) && trusted.is_empty() => {
            mode.fault("needs `trusted_proxies`: without it any client could claim any address");
        }
        (_, Some(list)) if required != Some(true) && !trusted.is_empty() => {
            list.fault("has no effect without `proxy_protocol: required`");
        }
        (None | Some(_), None | Some(_)) => {}
    }
    match required {
        Some(true) => Policy::Required { trusted },
        Some(false) | None => Policy::Off,
    }
}

const TLS_MODE: Form<Mode> = Form {
    parse: tls_mode,
    schema: Schema::Words(&["off", "optional", "required"]),
};
const PROXY_PROTOCOL: Form<bool> = Form {
    parse: is_required,
    schema: Schema::Words(&["off", "required"]),
};
const LOCAL_ADDRESS: Form<SocketAddr> = Form {
    parse: local_address,
    schema: Schema::Pattern(form::ADDRESS),
};

fn tls_mode(text: &str) -> Result<Mode, &'static str> {
    match text {
        "off" => Ok(Mode::Off),
        "optional" => Ok(Mode::Optional),
        "required" => Ok(Mode::Required),
        _ => Err("expected `off`, `optional` or `required`"),
    }
}

fn is_required(text: &str) -> Result<bool, &'static str> {
    match text {
        "off" => Ok(false),
        "required" => Ok(true),
        "optional" => Err("must be `off` or `required`: where the header is optional, a client can forge it"),
        _ => Err("expected `off` or `required`"),
    }
}

fn local_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected IP:port such as `0.0.0.0:8080` or `[::]:8080`")
}
