//! The warnings and notes about access: settings without effect, and targets that no user reaches.

use crate::base::yaml::field::Field;
use crate::net::tls;
use crate::policy::access::{Cleartext, Mode};
use crate::proxy::config::Config;
use crate::proxy::config::rules::proves_users;
use crate::proxy::connection::{Port, SshMode};
use crate::tunnel::limits::{ClientCaps, UserCaps};

/// Adds the findings.
pub(super) fn add(config: &Config, top: &Field<'_>) {
    let has_door = config.listen.iter().any(|port| port.ssh != SshMode::Off);
    let of_ssh = [
        ("access.ssh_authorities", config.access.ssh_authorities.is_some()),
        ("access.ssh_keys", config.access.ssh_keys.is_some()),
    ];
    for (key, _) in of_ssh.iter().filter(|(_, is_set)| *is_set && !has_door) {
        top.at(key)
            .note("has no effect without a port with `ssh`: only a jump host takes it");
    }
    match config.access.mode {
        Mode::Open => without_effect(config, top),
        Mode::Report => {
            unreachable(config, top);
            shared_names(config, top);
            cleartext(config, top, "would be refused");
            limits_without_effect(config, top);
        }
        Mode::Enforce => {
            unreachable(config, top);
            shared_names(config, top);
            cleartext(config, top, "is refused");
            let (client, default) = (config.limits.client, ClientCaps::default());
            let of = |caps: ClientCaps| (caps.download, caps.upload, caps.tunnels);
            if of(client) != of(default) {
                top.at("limits.client").note(
                    "rates and `max_tunnels`: no effect with `access.mode: enforce`, where `limits.user` applies",
                );
            }
        }
    }
}

/// Reports settings about users, without effect here.
fn without_effect(config: &Config, top: &Field<'_>) {
    if proves_users(&config.access) && !config.takes_anchors() {
        top.at("access.mode").warning(
            "`open`: every client reaches every target, and the other keys of `access` have no effect; set `report` or \
             `enforce`",
        );
    }
    let targets = config.targets.iter();
    let named = targets.filter(|target| target.user_lists().is_some());
    if let Some(names) = some(named.map(|target| &target.name)) {
        top.at("allowlist.static").warning(format!(
            "`allowed_users` and `allowed_groups` of {names} have no effect: `access.mode` is `open`"
        ));
    }
    if config.lists_names {
        let listing = top.at("allowlist.listing");
        listing.warning("no effect: with `access.mode: open` there are no users to list names to");
    }
    limits_without_effect(config, top);
}

fn limits_without_effect(config: &Config, top: &Field<'_>) {
    let default = UserCaps {
        anchors: config.limits.user.anchors,
        ..UserCaps::default()
    };
    if config.limits.user != default {
        top.at("limits.user")
            .note("no effect: users have limits of their own with `access.mode: enforce`");
    }
}

/// Reports targets that no user may reach.
fn unreachable(config: &Config, top: &Field<'_>) {
    let targets = config.targets.iter();
    let unnamed = targets.filter(|target| target.user_lists().is_none());
    if let Some(names) = some(unnamed.map(|target| &target.name)) {
        top.at("allowlist.static").warning(format!(
            "no user may reach {names}: the API server knows no static target, so each needs `allowed_users` or \
             `allowed_groups`"
        ));
    }
    if config.cluster.is_some() && config.access.kubernetes.is_none() {
        top.at("access.kubernetes").warning(
            "not enabled, so no API server is asked: users reach only the Services whose annotations allowed-users or \
             allowed-groups name them",
        );
    }
}

/// Reports ports where credentials are in clear.
fn cleartext(config: &Config, top: &Field<'_>, refused: &str) {
    let rule = config.access.cleartext;
    let is_concerned = |port: &&Port| rule == Cleartext::Refuse || !port.listener.address.ip().is_loopback();
    let mut concerned = config.listen.iter().filter(is_concerned);
    let Some(plain) = concerned.clone().find(|port| port.tls == tls::Mode::Off) else {
        return;
    };
    let (field, address) = (top.at("access.cleartext"), plain.listener.address);
    let from = if rule == Cleartext::Refuse {
        ""
    } else {
        " from another host"
    };
    match rule {
        Cleartext::Allow => field.note(format!(
            "{address} accepts credentials in clear: that is safe only behind a load balancer that terminates TLS"
        )),
        Cleartext::Refuse | Cleartext::Loopback if concerned.all(|port| port.tls == tls::Mode::Off) => {
            field.warning(format!(
                "every request{from} {refused}: credentials need TLS, and no port has it; set `tls` of a port, or \
                 `cleartext: allow` behind a load balancer that terminates TLS"
            ));
        }
        Cleartext::Refuse | Cleartext::Loopback => field.note(format!(
            "every request to {address}{from} {refused}: credentials need TLS"
        )),
    }
}

/// Reports several sources of users without a prefix: a name that several of them know is one user.
fn shared_names(config: &Config, top: &Field<'_>) {
    let access = &config.access;
    let issuers = (0..).zip(&access.oidc);
    let issuers = issuers.filter(|(_, issuer)| issuer.username_prefix.is_none());
    let file = access.users.as_ref().filter(|file| file.username_prefix.is_none());
    let authorities = access.ssh_authorities.as_ref();
    let authorities = authorities.filter(|file| file.username_prefix.is_none());
    let keys = access
        .ssh_keys
        .as_ref()
        .filter(|secret| secret.username_prefix.is_none());
    let sources = access.kubernetes.iter().map(|_| "kubernetes".to_owned());
    let sources = sources.chain(issuers.map(|(index, _)| format!("oidc[{index}]")));
    let others = [
        file.map(|_| "users"),
        keys.map(|_| "ssh_keys"),
        authorities.map(|_| "ssh_authorities"),
    ];
    let sources: Vec<_> = sources.chain(others.into_iter().flatten().map(str::to_owned)).collect();
    if let [others @ .., last] = &*sources
        && !others.is_empty()
    {
        top.at("access").warning(format!(
            "{} and {last} prove names of one space: `alice` of each is one user with the rights of all; set \
             `username_prefix`, or set it to \"\" where that is meant",
            others.join(", ")
        ));
    }
}

/// Returns the first names, and the number of the others; `None` without any.
fn some(names: impl Iterator<Item = impl ToString>) -> Option<String> {
    let names: Vec<_> = names.map(|name| name.to_string()).collect();
    let (first, others) = names.split_at(names.len().min(MAX_NAMED));
    match (first, others.len()) {
        ([], _) => None,
        (first, 0) => Some(first.join(", ")),
        (first, others) => Some(format!("{} and {others} more", first.join(", "))),
    }
}

/// The maximum number of names in a warning: its line fits a terminal.
const MAX_NAMED: usize = 3;
