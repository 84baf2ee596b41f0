//! The settings `listen` and `admin`: which ports there are, and what is spoken on them.

use std::net::SocketAddr;

use super::Config;
use super::kubernetes::network;
use super::schema::truth;
use super::section::{Field, Section};
use crate::net::listener::Options;
use crate::net::proxy_header::Policy;
use crate::tls;
use crate::tunnel::Port;

/// Reads `listen` and `admin`: no two of them may be one address.
///
/// A port that speaks TLS needs a certificate to show.
pub(super) fn addresses(top: &mut Section<'_>, default: &Config, has_certificates: bool) -> (Vec<Port>, SocketAddr) {
    let listen_field = top.field("listen");
    let admin_field = top.field("admin");
    let listen = listen_field
        .as_ref()
        .map_or_else(|| default.listen.clone(), |field| listen(field, has_certificates));
    let admin = match &admin_field {
        Some(field) => field.parse(local_address),
        None => Some(default.admin),
    };
    if let Some(admin) = admin
        && let Some(port) = listen.iter().find(|port| collide(port.listener.address, admin))
        && let Some(place) = admin_field.or(listen_field)
    {
        place.fault(match port.listener.address {
            same if same == admin => format!("`listen` and `admin` are both {admin}"),
            other => format!("{admin} cannot be had beside {other} of `listen`"),
        });
    }
    (listen, admin.unwrap_or(default.admin))
}

/// One port, or a list of them; each is an address, or a map with the key `address`.
fn listen(field: &Field<'_>, has_certificates: bool) -> Vec<Port> {
    let entries = if field.is_list() {
        field.items()
    } else {
        vec![field.clone()]
    };
    if entries.is_empty() {
        field.fault("at least one address is needed");
    }
    let mut seen = Vec::new();
    let read = |entry: Field<'_>| {
        if entry.is_map() {
            entry.section(|keys| port(keys, &mut seen, has_certificates)).flatten()
        } else {
            address(&entry, false, &mut seen).map(Port::from)
        }
    };
    entries.into_iter().filter_map(read).collect()
}

fn port(section: &mut Section<'_>, seen: &mut Vec<Seen>, has_certificates: bool) -> Option<Port> {
    let place = section.required("address");
    let tls = section.field("tls");
    let mode = tls.as_ref().and_then(|field| field.parse(tls_mode)).unwrap_or_default();
    if let Some(place) = tls
        && mode != tls::Mode::Off
        && !has_certificates
    {
        place.fault("needs `tls.certificates`");
    }
    let proxy_header = proxy_header(section);
    let reuse_port = section.value("reuse_port", truth).unwrap_or_default();
    let address = address(&place?, reuse_port, seen)?;
    Some(Port {
        listener: Options { address, reuse_port },
        proxy_header,
        tls: mode,
    })
}

/// An address that was read before, and where.
struct Seen {
    address: SocketAddr,
    reuse_port: bool,
    line: u64,
}

fn address(place: &Field<'_>, reuse_port: bool, seen: &mut Vec<Seen>) -> Option<SocketAddr> {
    let address = place.parse(local_address)?;
    for other in seen.iter().filter(|other| collide(other.address, address)) {
        let (known, line) = (other.address, other.line);
        if known == address {
            place.fault(format!("{address} is on line {line} too"));
        } else if !(reuse_port && other.reuse_port) {
            place.fault(format!("{address} cannot be had beside {known} on line {line}"));
        }
    }
    seen.push(Seen {
        address,
        reuse_port,
        line: place.line(),
    });
    Some(address)
}

/// Whether two sockets cannot listen there at once. Port 0 is another port each time.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let (one_ip, other_ip) = (one.ip(), other.ip());
    // `[::]` may stand for IPv4, too: that is for the host to say.
    let is_within = one_ip.is_ipv4() == other_ip.is_ipv4() && (one_ip.is_unspecified() || other_ip.is_unspecified());
    one.port() == other.port() && one.port() != 0 && (one_ip == other_ip || is_within)
}

/// `proxy_protocol` and `trusted_proxies`: neither is of use without the other.
fn proxy_header(section: &mut Section<'_>) -> Policy {
    let faults = section.faults();
    let mode = section.field("proxy_protocol");
    let list = section.field("trusted_proxies");
    let items = list.as_ref().map(Field::items).unwrap_or_default();
    let trusted: Box<[_]> = items.iter().filter_map(|item| item.parse(network)).collect();
    let required = mode.as_ref().and_then(|mode| mode.parse(is_required));
    if section.faults() > faults {
        return Policy::Off;
    }
    match (mode, list) {
        (Some(mode), _) if required == Some(true) && trusted.is_empty() => {
            mode.fault("needs `trusted_proxies`: else anyone could claim any address");
        }
        (_, Some(list)) if required != Some(true) && !trusted.is_empty() => {
            list.fault("of no use without `proxy_protocol: required`");
        }
        (None | Some(_), None | Some(_)) => {}
    }
    match required {
        Some(true) => Policy::Required { trusted },
        Some(false) | None => Policy::Off,
    }
}

fn tls_mode(text: &str) -> Result<tls::Mode, &'static str> {
    match text {
        "off" => Ok(tls::Mode::Off),
        "optional" => Ok(tls::Mode::Optional),
        "required" => Ok(tls::Mode::Required),
        _ => Err("expected `off`, `optional` or `required`"),
    }
}

fn is_required(text: &str) -> Result<bool, &'static str> {
    match text {
        "off" => Ok(false),
        "required" => Ok(true),
        "optional" => Err("must be `off` or `required`: if the header may be absent, a client can write it"),
        _ => Err("expected `off` or `required`"),
    }
}

fn local_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected IP:port such as `0.0.0.0:8080` or `[::]:8080`")
}
