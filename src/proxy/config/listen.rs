//! The keys and flags `listen` and `admin`: the ports, and the protocols of each.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use super::{Config, Overrides};
use crate::base::yaml::diagnostic::Diagnostics;
use crate::base::yaml::field::Field;
use crate::base::yaml::forms::{self, Schema};
use crate::daemon::admin::ScrapeNetworks;
use crate::net::listen_conflicts::collide;
use crate::net::listener;
use crate::net::tls::Mode;
use crate::protocol::websocket::handshake::plain_path;
use crate::proxy::connection::{Port, SshMode};
use crate::proxy::http::{RefusalMode, WebSocketOptions};
use crate::tunnel::proxy_header::Policy;
use crate::tunnel::ssh::jump::JumpHost;

/// Reads one port or a list of ports. Each is an address, or a map with the key `address`.
pub(super) fn ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Port>, D::Error> {
    Ok(match Ports::deserialize(deserializer)? {
        Ports::List(ports) => ports.into_iter().map(Port::from).collect(),
        Ports::Address(address) => vec![address.into()],
        Ports::Keys(keys) => vec![PortForm::Keys(keys).into()],
    })
}

#[derive(Deserialize)]
#[serde(rename = "any of")]
enum Ports {
    #[serde(rename = "a list")]
    List(Vec<PortForm>),
    #[serde(rename = "a single value", deserialize_with = "forms::one::<LocalAddress, _>")]
    Address(SocketAddr),
    #[serde(rename = "a map")]
    Keys(PortKeys),
}

#[derive(Deserialize)]
#[serde(rename = "any of")]
enum PortForm {
    #[serde(rename = "a single value", deserialize_with = "forms::one::<LocalAddress, _>")]
    Address(SocketAddr),
    #[serde(rename = "a map")]
    Keys(PortKeys),
}

#[derive(Deserialize)]
#[serde(rename = "address", deny_unknown_fields)]
struct PortKeys {
    #[serde(deserialize_with = "forms::one::<LocalAddress, _>")]
    address: SocketAddr,
    #[serde(default)]
    tls: Mode,
    /// True if a header is required.
    #[serde(default, deserialize_with = "forms::one::<ProxyProtocol, _>")]
    proxy_protocol: bool,
    #[serde(default, deserialize_with = "forms::list::<forms::Network, _, _>")]
    trusted_proxies: Box<[IpNet]>,
    #[serde(default)]
    reuse_port: bool,
    #[serde(default)]
    refusals: RefusalMode,
    #[serde(default)]
    websocket: Option<WebSocketKeys>,
    #[serde(default)]
    ssh: SshMode,
    /// The private keys of the jump host.
    #[serde(default)]
    host_keys: Box<[PathBuf]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WebSocketKeys {
    #[serde(deserialize_with = "forms::one::<UrlPath, _>")]
    path: Box<str>,
    #[serde(default)]
    trusted_tls: bool,
}

impl From<PortForm> for Port {
    fn from(port: PortForm) -> Self {
        match port {
            PortForm::Address(address) => address.into(),
            PortForm::Keys(keys) => Self {
                listener: listener::Options {
                    reuse_port: keys.reuse_port,
                    ..keys.address.into()
                },
                websocket: keys.websocket.map(|websocket| {
                    Arc::new(WebSocketOptions {
                        path: websocket.path,
                        trusted_tls: websocket.trusted_tls,
                        trusted_proxies: keys.trusted_proxies.clone(),
                    })
                }),
                proxy_header: match keys.proxy_protocol {
                    true => Policy::Required {
                        trusted: keys.trusted_proxies,
                    },
                    false => Policy::Off,
                },
                tls: keys.tls,
                refusals: keys.refusals,
                ssh: keys.ssh,
                host_keys: keys.host_keys,
                jump_host: None,
            },
        }
    }
}

/// Reads a word, or a list of networks.
pub(super) fn scrape_networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ScrapeNetworks, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "any of")]
    enum Peers {
        #[serde(rename = "a single value", deserialize_with = "forms::one::<ScrapePeers, _>")]
        Word(ScrapeNetworks),
        #[serde(rename = "a list", deserialize_with = "forms::list::<forms::Network, _, _>")]
        Networks(Vec<IpNet>),
    }
    Ok(match Peers::deserialize(deserializer)? {
        Peers::Word(peers) => peers,
        Peers::Networks(networks) => Some(networks.into()),
    })
}

forms::forms! {
    pub(super) LocalAddress: SocketAddr = local_address, forms::ADDRESS;
    ScrapePeers: ScrapeNetworks = scrape_peers, Schema::Words(&["all", "loopback"]);
    ProxyProtocol: bool = is_required, Schema::Words(&["off", "required"]);
    UrlPath: Box<str> = url_path, Schema::Text;
}

fn local_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected IP:port such as `0.0.0.0:8080` or `[::]:8080`")
}

fn scrape_peers(text: &str) -> Result<ScrapeNetworks, &'static str> {
    match text {
        "all" => Ok(None),
        "loopback" => Ok(Some(Arc::default())),
        _ => Err("expected `all`, `loopback` or a list of networks"),
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

/// Parses the path of WebSocket requests, and removes a slash at its end.
fn url_path(text: &str) -> Result<Box<str>, &'static str> {
    let path = plain_path(text).filter(|_| text.starts_with('/'));
    let path = path.ok_or("expected a path such as `/ssh`, of letters, digits and `-._~/`")?;
    Ok(path.into())
}

/// Reports the faults of ports that no key has alone, and reads the keys of jump hosts. `has_certificates`: true if there are
/// certificates for a port that speaks TLS.
pub(super) fn check(ports: &mut [Port], top: &Field<'_>, has_certificates: bool) {
    let listen = top.at("listen");
    if ports.is_empty() && !listen.has_faults() {
        listen.fault("at least one address is needed");
    }
    let places: Vec<_> = listen.items().collect();
    for (port, field) in ports.iter_mut().zip(&places) {
        jump_host(port, field);
    }
    let mut before = Vec::new();
    for (port, field) in ports.iter().zip(&places) {
        if port.tls != Mode::Off && !has_certificates {
            field.at("tls").fault("needs `tls.certificates`");
        }
        proxy_header(port, field);
        let address = Some(field.at("address")).filter(Field::is_given);
        conflicts(port, address.as_ref().unwrap_or(field), &mut before);
    }
}

/// Reports `proxy_protocol` without `trusted_proxies`, and the reverse.
fn proxy_header(port: &Port, field: &Field<'_>) {
    let (mode, list) = (field.at("proxy_protocol"), field.at("trusted_proxies"));
    if mode.has_faults() || list.has_faults() {
        return;
    }
    match &port.proxy_header {
        Policy::Required { trusted } if trusted.is_empty() => {
            mode.fault("needs `trusted_proxies`: without it any client could claim any address");
        }
        Policy::Off if list.items().next().is_some() && port.websocket.is_none() => {
            list.fault("has no effect without `proxy_protocol: required` or `websocket`");
        }
        Policy::Required { .. } | Policy::Off => {}
    }
    let websocket = port.websocket.as_ref();
    if websocket.is_some_and(|websocket| websocket.trusted_tls && websocket.trusted_proxies.is_empty()) {
        let trusted_tls = field.at("websocket.trusted_tls");
        trusted_tls.fault("needs `trusted_proxies`: without it any client could count as one of TLS");
    }
}

/// Reads the keys of a jump host, and reports their faults and those of the keys beside them.
fn jump_host(port: &mut Port, field: &Field<'_>) {
    let (mode, files) = (field.at("ssh"), field.at("host_keys"));
    if mode.has_faults() || files.has_faults() {
        return;
    }
    match port.ssh {
        SshMode::Off if !port.host_keys.is_empty() => files.fault("has no effect without `ssh`"),
        SshMode::Off => {}
        SshMode::Only if port.tls != Mode::Off && cfg!(feature = "jump") => {
            mode.fault("a port for SSH only has no `tls`");
        }
        SshMode::Jump | SshMode::Only => match JumpHost::load(&port.host_keys) {
            // A build without jump hosts needs no keys.
            Err(fault) if port.host_keys.is_empty() || !cfg!(feature = "jump") => mode.fault(fault),
            Err(fault) => files.fault(fault),
            Ok(jump_host) => port.jump_host = Some(Arc::new(jump_host)),
        },
    }
}

/// Reports an address that overlaps an earlier one. `before`: the earlier ports, and the line of each.
fn conflicts<'a>(port: &'a Port, field: &Field<'_>, before: &mut Vec<(&'a Port, u64)>) {
    let address = port.listener.address;
    for (other, line) in before
        .iter()
        .filter(|(other, _)| other.listener.overlaps(&port.listener))
    {
        field.fault(match other.listener.address {
            same if same == address => format!("{address} is on line {line} too"),
            other => format!("{} on line {line}", taken(address, other)),
        });
    }
    before.push((port, field.line()));
}

/// Reports an admin port that conflicts with a public one.
pub(super) fn check_admin(address: SocketAddr, ports: &[Port], top: &Field<'_>) {
    let (listen, admin) = (top.at("listen"), top.at("admin"));
    if !admin.is_faulty()
        && !listen.is_faulty()
        && let Some(reason) = admin_fault(address, ports)
    {
        let field = if admin.is_given() { admin } else { listen };
        field.fault(reason);
    }
}

/// Returns why the admin port conflicts with these public ports; `None` if it does not.
fn admin_fault(admin: SocketAddr, listen: &[Port]) -> Option<String> {
    let addresses = || listen.iter().map(|port| port.listener.address);
    // Not `overlaps`: a public port may share its port number with another public port, but not with the admin port.
    let other = addresses().find(|address| collide(*address, admin))?;
    Some(match other {
        same if same == admin => format!("`listen` and `admin` are both {admin}"),
        other => format!("{} of `listen`", taken(admin, other)),
    })
}

/// Returns why two sockets cannot have these addresses.
fn taken(address: SocketAddr, by: SocketAddr) -> String {
    let is_any_ipv6 = |address: SocketAddr| address.is_ipv6() && address.ip().is_unspecified();
    let hint = match address.is_ipv4() != by.is_ipv4() && (is_any_ipv6(address) || is_any_ipv6(by)) {
        true => " (`[::]` takes IPv4, too)",
        false => "",
    };
    format!("{address}{hint} is taken by {by}")
}

/// Adds the faults of the flags and their variables. `config`: the file's settings, overridden by `overrides`.
pub(super) fn check_flags(overrides: &Overrides, config: &Config, diagnostics: &Diagnostics) {
    let blame = |flag: &str, reason: String| diagnostics.fault_of_a_flag(flag, reason);
    if !overrides.listen.is_empty() {
        conflicts_of_flags(config, |reason| blame("--listen", reason));
        client_names(config, |reason| blame("--listen", reason));
    }
    let flag = if overrides.listen.is_empty() {
        "--admin"
    } else {
        "--listen"
    };
    if (overrides.admin.is_some() || !overrides.listen.is_empty())
        && let Some(reason) = admin_fault(config.admin, &config.listen)
    {
        blame(flag, reason);
    }
}

/// Reports ports that one process cannot have together.
fn conflicts_of_flags(config: &Config, fault: impl Fn(String)) {
    for (index, port) in config.listen.iter().enumerate() {
        let before = config.listen.iter().take(index);
        for other in before.filter(|other| other.listener.overlaps(&port.listener)) {
            let (address, other) = (port.listener.address, other.listener.address);
            fault(match address == other {
                true => format!("{address} is there twice"),
                false => taken(address, other),
            });
        }
    }
}

/// Reports `allowed_clients`: a flag's port has no TLS, so no client has a certificate.
fn client_names(config: &Config, fault: impl Fn(String)) {
    let mut targets = config.targets.iter();
    if let Some(target) = targets.find(|target| target.allowed_clients.is_some()) {
        fault(format!(
            "no client has a certificate at these ports: `allowed_clients` of {} needs a port with `tls`, which only the \
             file can have",
            target.name
        ));
    }
}
