//! The format of the file: one reader a section, which fills the options of the stages that it concerns.
//!
//! A new section is a reader here and a line in [`config`]; a new key is a line in its reader.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::Config;
use super::kubernetes::kubernetes;
use super::limits::{limits, tunnel_limits};
use super::listen::addresses;
use super::section::{Field, Section};
use super::tls::tls;
use crate::allowlist::StaticTarget;
use crate::authority::Authority;
use crate::connect;
use crate::drain;
use crate::kubernetes as cluster;
use crate::limits::{Limits, TunnelOverrides};
use crate::net::dial;
use crate::net::proxy_header;
use crate::relay;
use crate::ssh::identification;
use crate::tls;

/// Reads the whole file. What is absent, and what is a fault, has its default.
pub(super) fn config(top: &mut Section<'_>) -> Config {
    let default = Config::default();
    let faults = top.faults();
    let tls = top
        .field("tls")
        .and_then(|field| field.section(tls))
        .unwrap_or_default();
    let (listen, admin) = addresses(top, &default, !tls.certificates.is_empty());
    // After a fault nobody knows what was meant.
    let knows_clients = top.faults() > faults
        || tls.client_auth != tls::ClientAuth::Off && listen.iter().any(|port| port.tls != tls::Mode::Off);
    let allowlist = top
        .field("allowlist")
        .and_then(|field| field.section(|keys| allowlist(keys, knows_clients)));
    let (targets, kubernetes) = allowlist.unwrap_or_default();
    let limits = top.field("limits").and_then(|field| field.section(limits));
    let ssh_only = top.value("ssh_only", truth).unwrap_or(true);
    let timeouts = top.field("timeouts").and_then(|field| field.section(timeouts));
    let timeouts = timeouts.unwrap_or_default();
    let drain = top.field("drain").and_then(|field| field.section(drain));
    Config {
        listen,
        admin,
        targets,
        kubernetes,
        limits: Limits {
            any_protocol: !ssh_only,
            ..limits.unwrap_or_default()
        },
        tls,
        handshake: timeouts.handshake,
        connect: timeouts.connect,
        identification: timeouts.identification,
        dial: timeouts.dial,
        relay: timeouts.relay,
        drain: drain.unwrap_or_default(),
    }
}

/// `knows_clients`: whether any of them can show a certificate.
fn allowlist(section: &mut Section<'_>, knows_clients: bool) -> (Vec<StaticTarget>, Option<cluster::Options>) {
    let targets = static_targets(section, knows_clients);
    let kubernetes = section
        .field("kubernetes")
        .and_then(|field| field.section(|keys| kubernetes(keys, knows_clients)));
    (targets, kubernetes.flatten())
}

fn static_targets(section: &mut Section<'_>, knows_clients: bool) -> Vec<StaticTarget> {
    let entries = section.field("static").map(|field| field.items()).unwrap_or_default();
    let mut lines = HashMap::new();
    entries
        .iter()
        .filter_map(|entry| {
            let target = entry.section(|keys| static_target(keys, &mut lines, knows_clients));
            target.flatten()
        })
        .collect()
}

/// `lines` says where each name was seen last: a name that leads to two places would lead to either.
fn static_target(
    section: &mut Section<'_>,
    lines: &mut HashMap<Authority, u64>,
    knows_clients: bool,
) -> Option<StaticTarget> {
    let name = section.required("name").and_then(|field| {
        let name = field.parse(target_name)?;
        if let Some(line) = lines.insert(name.clone(), field.line()) {
            field.fault(format!("{name} is on line {line} too"));
        }
        Some(name)
    });
    let addresses = section.required("addresses").map(|field| {
        let items = field.items();
        if field.is_list() && items.is_empty() {
            field.fault("at least one address is needed");
        }
        items.iter().filter_map(|item| item.parse(target_address)).collect()
    });
    let limits = section.field("limits").and_then(|field| field.section(tunnel_limits));
    let ssh_only = section.value("ssh_only", truth);
    let send_proxy_header = section.value("send_proxy_protocol", version);
    let allowed_clients = section.field("allowed_clients").map(|field| {
        if !knows_clients {
            field.fault("nobody can show a certificate: it needs `tls.client_auth`, and a port with `tls`");
        }
        let items = field.items();
        if field.is_list() && items.is_empty() {
            field.fault("at least one name is needed; without the key everybody may come");
        }
        items.iter().filter_map(|item| item.parse(client_name)).collect()
    });
    Some(StaticTarget {
        name: name?,
        addresses: addresses?,
        limits: TunnelOverrides {
            any_protocol: ssh_only.map(|ssh_only| !ssh_only),
            ..limits.unwrap_or_default()
        },
        send_proxy_header: send_proxy_header.flatten(),
        allowed_clients,
    })
}

/// As it stands in a certificate.
fn client_name(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Err("expected a name of a client certificate"),
        _ => Ok(text.into()),
    }
}

/// Of the PROXY protocol, or `None` for `off`.
fn version(text: &str) -> Result<Option<proxy_header::Version>, String> {
    match text {
        "off" => Ok(None),
        _ => text.parse().map(Some).map_err(|error| format!("{error}, or `off`")),
    }
}

#[derive(Default)]
struct Timeouts {
    handshake: tls::Options,
    connect: connect::Options,
    dial: dial::Options,
    identification: identification::Options,
    relay: relay::Options,
}

fn timeouts(section: &mut Section<'_>) -> Timeouts {
    let mut read = Timeouts::default();
    let head = section.value("head", brief);
    read.connect.head = head.unwrap_or(read.connect.head);
    let handshake = section.value("tls_handshake", brief);
    read.handshake.handshake = handshake.unwrap_or(read.handshake.handshake);
    dial(section, &mut read.dial);
    let identification = section.value("identification", brief);
    read.identification.identification = identification.unwrap_or(read.identification.identification);
    let idle = section.value("idle", |text| unless("off", text));
    read.relay.idle = idle.unwrap_or(read.relay.idle);
    let half_closed = section.value("half_closed", timeout);
    read.relay.half_closed = half_closed.unwrap_or(read.relay.half_closed);
    read
}

fn dial(section: &mut Section<'_>, options: &mut dial::Options) {
    let faults = section.faults();
    let one = section.field("dial_try");
    let all = section.field("dial");
    let read = |field: &Option<Field<'_>>| field.as_ref().and_then(|field| field.parse(brief));
    options.dial_try = read(&one).unwrap_or(options.dial_try);
    options.dial = read(&all).unwrap_or(options.dial);
    if section.faults() == faults
        && options.dial_try > options.dial
        && let Some(place) = one.or(all)
    {
        place.fault(format!(
            "one try ({:?}) may not take longer than the whole dial ({:?})",
            options.dial_try, options.dial
        ));
    }
}

fn drain(section: &mut Section<'_>) -> drain::Options {
    let default = drain::Options::default();
    drain::Options {
        delay: section.value("delay", duration).unwrap_or(default.delay),
        timeout: section.value("timeout", duration).unwrap_or(default.timeout),
        spread: section.value("spread", duration).unwrap_or(default.spread),
    }
}

fn target_address(text: &str) -> Result<SocketAddr, &'static str> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("port 0 can not be dialled"),
        Ok(address) => Ok(address),
        Err(_) => Err("names are not resolved: give IP:port"),
    }
}

fn target_name(text: &str) -> Result<Authority, String> {
    text.parse()
        .map_err(|error| format!("expected the host:port that clients ask for: {error}"))
}

/// A duration, or `None` for the word that means there is none.
pub(super) fn unless(word: &str, text: &str) -> Result<Option<Duration>, String> {
    if text == word {
        return Ok(None);
    }
    match timeout(text) {
        Ok(duration) => Ok(Some(duration)),
        Err(reason) => Err(format!("{reason}, or `{word}`")),
    }
}

/// `true` or `false`.
pub(super) fn truth(text: &str) -> Result<bool, &'static str> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("expected `true` or `false`"),
    }
}

/// A wait that may be none at all.
pub(super) fn at_most_an_hour(text: &str) -> Result<Duration, &'static str> {
    match duration(text)? {
        brief if brief <= LONGEST_BRIEF => Ok(brief),
        _ => Err("must be at most 1h"),
    }
}

/// How long a peer may keep a step of the handshake waiting.
fn brief(text: &str) -> Result<Duration, &'static str> {
    match timeout(text)? {
        brief if brief <= LONGEST_BRIEF => Ok(brief),
        _ => Err("must be at most 1h"),
    }
}

fn timeout(text: &str) -> Result<Duration, &'static str> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0s"),
        timeout => Ok(timeout),
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) => Err("must be at most 365d"),
        Err(_) => Err("expected a duration such as `250ms`, `10s` or `1h30m`"),
    }
}

/// An hour: every step of a handshake holds a descriptor, and clients give up long before.
const LONGEST_BRIEF: Duration = Duration::from_secs(3600);

/// A year. A longer one is a unit typed wrong, and `Instant::now() + Duration::MAX` panics.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
