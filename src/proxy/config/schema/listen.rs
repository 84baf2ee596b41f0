//! The sections `listen` and `admin`: the ports, and the protocols of each.

use std::net::SocketAddr;

use crate::net::listen_conflicts::collide;
use crate::net::listener::Options;
use crate::net::tls::Mode;
use crate::proxy::config::Config;
use crate::proxy::config::form::{self, BOOLEAN, Form, NETWORK, Schema};
use crate::proxy::config::section::{Field, Section};
use crate::proxy::connection::Port;
use crate::proxy::http::Refusals;
use crate::tunnel::proxy_header::Policy;

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
        && let Some(reason) = admin_fault(admin, &listen)
        && let Some(field) = admin_field.or(listen_field)
    {
        field.fault(reason);
    }
    (listen, admin.unwrap_or(default.admin))
}

/// The reason why the admin port cannot be at that address beside these public ports.
pub(in crate::proxy::config) fn admin_fault(admin: SocketAddr, listen: &[Port]) -> Option<String> {
    let addresses = || listen.iter().map(|port| port.listener.address);
    // Not `overlaps`: the clients of one number are either all those of the admin port, or none is.
    let other = addresses().find(|address| collide(*address, admin))?;
    Some(match other {
        same if same == admin => format!("`listen` and `admin` are both {admin}"),
        other => format!("{} of `listen`", taken(admin, other)),
    })
}

/// The reason why two sockets cannot have these addresses.
pub(in crate::proxy::config) fn taken(address: SocketAddr, by: SocketAddr) -> String {
    let is_any_ipv6 = |address: SocketAddr| address.is_ipv6() && address.ip().is_unspecified();
    let hint = match address.is_ipv4() != by.is_ipv4() && (is_any_ipv6(address) || is_any_ipv6(by)) {
        true => " (`[::]` takes IPv4, too)",
        false => "",
    };
    format!("{address}{hint} is taken by {by}")
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

fn port(section: &mut Section<'_>, known: &mut Vec<KnownPort>, has_certificates: bool) -> Option<Port> {
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
    let refusals = section.value("refusals", &REFUSALS).unwrap_or_default();
    let address = address(&address_field?, reuse_port, known)?;
    Some(Port {
        listener: Options {
            reuse_port,
            ..address.into()
        },
        proxy_header,
        tls,
        refusals,
    })
}

/// A port that was read before.
struct KnownPort {
    listener: Options,
    line: u64,
}

fn address(field: &Field<'_>, reuse_port: bool, known: &mut Vec<KnownPort>) -> Option<SocketAddr> {
    let address = field.parse(&LOCAL_ADDRESS)?;
    let listener = Options {
        reuse_port,
        ..address.into()
    };
    for other in known.iter().filter(|other| other.listener.overlaps(&listener)) {
        let line = other.line;
        field.fault(match other.listener.address {
            same if same == address => format!("{address} is on line {line} too"),
            other => format!("{} on line {line}", taken(address, other)),
        });
    }
    known.push(KnownPort {
        listener,
        line: field.line(),
    });
    Some(address)
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
const REFUSALS: Form<Refusals> = Form {
    parse: refusals,
    schema: Schema::Words(&["http", "auto", "ssh"]),
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

fn refusals(text: &str) -> Result<Refusals, &'static str> {
    match text {
        "http" => Ok(Refusals::Http),
        "auto" => Ok(Refusals::Auto),
        "ssh" => Ok(Refusals::Ssh),
        _ => Err("expected `http`, `auto` or `ssh`"),
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
