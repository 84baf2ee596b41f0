//! The section `allowlist`: the static targets, and the cluster.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::{kubernetes, limits};
use crate::base::authority::Authority;
use crate::base::values::unless;
use crate::kubernetes::Options;
use crate::policy::allowlist::{StaticTarget, UserLists};
use crate::proxy::config::form::{self, BOOLEAN, CLIENT_NAME, Form, Schema, USER_NAME};
use crate::proxy::config::section::{Field, Section};
use crate::tunnel::limits::TunnelOverrides;
use crate::tunnel::proxy_header::Version;

/// What the section holds.
#[derive(Debug, Default)]
pub(super) struct Allowlist {
    pub(super) targets: Vec<StaticTarget>,
    pub(super) kubernetes: Option<Options>,
    /// The kubeconfig, whether or not the Services are read.
    pub(super) kubeconfig: Option<PathBuf>,
    /// Whether what `ssh_only` and `access` would refuse is reported only.
    pub(super) report: bool,
}

/// Reads the section. `knows_clients`: whether a port asks clients for certificates. `is_shared`: whether `access` reads the
/// same cluster.
pub(super) fn read(section: &mut Section<'_>, knows_clients: bool, is_shared: bool) -> Allowlist {
    let report = section.value("report", &BOOLEAN).unwrap_or_default();
    let targets = static_targets(section, knows_clients);
    let (kubernetes, kubeconfig) = section
        .field("kubernetes")
        .and_then(|field| field.section(|keys| kubernetes::read(keys, knows_clients, is_shared)))
        .unwrap_or_default();
    Allowlist {
        targets,
        kubernetes,
        kubeconfig,
        report,
    }
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

/// `lines`: the line of each name that was read before. A name of two targets would be ambiguous.
fn static_target(
    section: &mut Section<'_>,
    lines: &mut HashMap<Authority, u64>,
    knows_clients: bool,
) -> Option<StaticTarget> {
    let name = section.required("name").and_then(|field| {
        let name = field.parse(&TARGET_NAME)?;
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
        items.iter().filter_map(|item| item.parse(&TARGET_ADDRESS)).collect()
    });
    let limits = section.field("limits").and_then(|field| field.section(limits::tunnel));
    let ssh_only = section.value("ssh_only", &BOOLEAN);
    let send_proxy_header = section.value("send_proxy_protocol", &SEND_PROXY_PROTOCOL);
    let allowed_clients = section
        .field("allowed_clients")
        .map(|field| allowed_clients(&field, knows_clients));
    let user_lists = user_lists(section);
    Some(StaticTarget {
        name: name?,
        addresses: addresses?,
        limits: TunnelOverrides {
            ssh_only,
            ..limits.unwrap_or_default()
        },
        send_proxy_header: send_proxy_header.flatten(),
        allowed_clients,
        user_lists,
    })
}

fn allowed_clients(field: &Field<'_>, knows_clients: bool) -> Box<[Box<str>]> {
    if !knows_clients {
        field.fault("no client has a certificate: `allowed_clients` needs `tls.client_auth` and a port with `tls`");
    }
    let items = field.items();
    if field.is_list() && items.is_empty() {
        field.fault("at least one name is needed; without the key every client is allowed");
    }
    items.iter().filter_map(|item| item.parse(&CLIENT_NAME)).collect()
}

/// The users and groups that may reach the target, if one of the keys is there.
fn user_lists(section: &mut Section<'_>) -> Option<UserLists> {
    let users = section.field("allowed_users").map(|field| names(&field));
    let groups = section.field("allowed_groups").map(|field| names(&field));
    (users.is_some() || groups.is_some()).then(|| UserLists {
        users: users.unwrap_or_default(),
        groups: groups.unwrap_or_default(),
    })
}

fn names(field: &Field<'_>) -> Box<[Box<str>]> {
    let items = field.items();
    if field.is_list() && items.is_empty() {
        field.fault("at least one name is needed; without both keys the API server is asked");
    }
    items.iter().filter_map(|item| item.parse(&USER_NAME)).collect()
}

const TARGET_NAME: Form<Authority, String> = Form {
    parse: target_name,
    schema: Schema::Pattern(":[0-9]{1,5}$"),
};
const TARGET_ADDRESS: Form<SocketAddr> = Form {
    parse: target_address,
    schema: Schema::Pattern(form::ADDRESS),
};
const SEND_PROXY_PROTOCOL: Form<Option<Version>, String> = Form {
    parse: |text| unless("off", text, str::parse),
    schema: Schema::Words(&["off", "v1", "v2"]),
};

fn target_address(text: &str) -> Result<SocketAddr, &'static str> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("port 0 cannot be dialled"),
        Ok(address) => Ok(address),
        Err(_) => Err("names are not resolved: give IP:port"),
    }
}

fn target_name(text: &str) -> Result<Authority, String> {
    text.parse()
        .map_err(|error| format!("expected the host:port that clients ask for: {error}"))
}
