//! The warnings and notes about access: settings without effect, and targets that no user reaches.

use crate::base::yaml::field::Field;
use crate::net::tls;
use crate::policy::access::{Cleartext, Mode};
use crate::proxy::config::Config;
use crate::proxy::config::rules::proves_users;
use crate::proxy::connection::Port;
use crate::tunnel::limits::UserCaps;

/// Adds the findings.
pub(super) fn add(config: &Config, top: &Field<'_>) {
    match config.access.mode {
        Mode::Open => without_effect(config, top),
        Mode::Report => {
            unreachable(config, top);
            cleartext(config, top, "would be refused");
            limits_without_effect(config, top);
        }
        Mode::Enforce => {
            unreachable(config, top);
            cleartext(config, top, "is refused");
        }
    }
}

/// Settings about users, where none is asked for.
fn without_effect(config: &Config, top: &Field<'_>) {
    if proves_users(&config.access) {
        top.at("access.mode").warning(
            "`open`: every client reaches every target, and the other keys of `access` have no effect; set `report` or \
             `enforce`",
        );
    }
    let targets = config.allowlist.targets.iter();
    let named = targets.filter(|target| target.user_lists().is_some());
    if let Some(names) = some(named.map(|target| &target.name)) {
        top.at("allowlist.static").warning(format!(
            "`allowed_users` and `allowed_groups` of {names} have no effect: `access.mode` is `open`"
        ));
    }
    limits_without_effect(config, top);
}

fn limits_without_effect(config: &Config, top: &Field<'_>) {
    if config.limits.user != UserCaps::default() {
        top.at("limits.user")
            .note("no effect: users have limits of their own with `access.mode: enforce`");
    }
}

/// Targets that no user may reach.
fn unreachable(config: &Config, top: &Field<'_>) {
    let targets = config.allowlist.targets.iter();
    let unnamed = targets.filter(|target| target.user_lists().is_none());
    if let Some(names) = some(unnamed.map(|target| &target.name)) {
        top.at("allowlist.static").warning(format!(
            "no user may reach {names}: the API server knows no static target, so it needs `allowed_users` or \
             `allowed_groups`"
        ));
    }
    if config.allowlist.kubernetes.is_some() && config.access.kubernetes.is_none() {
        top.at("access.kubernetes").warning(
            "not enabled, so no API server is asked: users reach only the Services whose annotations allowed-users or \
             allowed-groups name them",
        );
    }
}

/// Ports where credentials are in clear.
fn cleartext(config: &Config, top: &Field<'_>, refused: &str) {
    let is_local = |port: &&Port| port.listener.address.ip().is_loopback();
    let mut public = config.listen.iter().filter(|port| !is_local(port));
    let plain = public.clone().find(|port| port.tls == tls::Mode::Off);
    match (config.access.cleartext, plain) {
        (Cleartext::Refuse, Some(_)) if public.all(|port| port.tls == tls::Mode::Off) => {
            top.at("access.cleartext").warning(format!(
                "every request from another host {refused}: credentials need TLS, and no port has it; set `tls` of a \
                 port, or `cleartext: allow` behind a load balancer that ends TLS"
            ));
        }
        (Cleartext::Refuse, Some(port)) => top.at("access.cleartext").note(format!(
            "every request to {} from another host {refused}: credentials need TLS",
            port.listener.address
        )),
        (Cleartext::Allow, Some(port)) => top.at("access.cleartext").note(format!(
            "{} accepts credentials in clear: that is safe only behind a load balancer that ends TLS",
            port.listener.address
        )),
        (Cleartext::Refuse | Cleartext::Allow, None) => {}
    }
}

/// The first names, and the number of the others; `None` without any.
fn some(names: impl Iterator<Item = impl ToString>) -> Option<String> {
    let names: Vec<_> = names.map(|name| name.to_string()).collect();
    let (first, others) = names.split_at(names.len().min(MAX_NAMED));
    match (first, others.len()) {
        ([], _) => None,
        (first, 0) => Some(first.join(", ")),
        (first, others) => Some(format!("{} and {others} more", first.join(", "))),
    }
}

/// In a line that fits a terminal.
const MAX_NAMED: usize = 3;
