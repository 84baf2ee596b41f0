//! The warnings and notes about a configuration that has no faults, after flags and environment were applied.

mod access;

use super::Config;
use crate::base::yaml::field::Field;
use crate::kubernetes::Options;
use crate::net::tls::{ClientAuth, Mode};
use crate::policy::allowlist::TargetId;
use crate::proxy::connection::Port;
use crate::tunnel::proxy_header::Policy;

/// Adds the findings, with positions in the file, `top`.
pub(super) fn add(config: &Config, top: &Field<'_>) {
    locked_out(config, top);
    if config.limits.reports {
        top.at("allowlist.report_only").warning(
            "REPORT MODE: `ssh_only` is not enforced, so any protocol reaches the targets of the allowlist; what \
             `ssh_only` and `access` would refuse is logged. This mode is meant for the days of a migration",
        );
    }
    without_effect(config, top);
    tls(config, top);
    if let Some(rules) = config
        .cluster
        .as_ref()
        .map(Options::needed_rules)
        .filter(|rules| !rules.is_empty())
    {
        let cluster = top.at("allowlist.kubernetes");
        cluster.note(format!("the ServiceAccount needs a Role with these rules: {rules}"));
    }
    access::add(config, top);
}

/// Reports values that another key makes meaningless.
fn without_effect(config: &Config, top: &Field<'_>) {
    for section in [
        "access.kubernetes",
        "access.tickets",
        "access.ssh_keys",
        "allowlist.kubernetes",
    ]
    .map(|key| top.at(key))
    {
        // A kubeconfig may be read by another section, or it is a fault.
        if section.is_given() && !["enabled", "kubeconfig"].iter().any(|key| section.at(key).is_given()) {
            section.warning("no effect without `enabled: true`");
        }
    }
    for (target, entry) in config.targets.iter().zip(top.at("allowlist.static").items()) {
        let files = entry.at("host_keys");
        if files.is_given() && target.host_keys.is_none() {
            files.warning("no effect: `allowlist.host_keys` lacks `config`");
        }
    }
    if let Some(cluster) = &config.cluster {
        of_cluster(cluster, &top.at("allowlist.kubernetes"));
    }
    let service = top.at("anchors.service");
    if service.is_given() && config.anchors.as_ref().is_some_and(|own| own.replicas.is_some()) {
        service.warning("no effect: `replicas` is a number; `auto` reads this Service");
    }
    if config.limits.ceiling.ssh_only && !config.limits.ssh_only {
        top.at("limits.ceiling.ssh_only")
            .warning("no effect: `ssh_only` is false, so no Service needs the annotation that this forbids");
    }
}

fn of_cluster(cluster: &Options, field: &Field<'_>) {
    let pods = field.at("pods");
    if pods.is_given() && !cluster.pods.enabled && !pods.at("enabled").is_given() {
        pods.warning("no effect without `enabled: true`");
    }
    let suffixes = field.at("public_suffixes");
    let named = suffixes.items().zip(&cluster.public_suffixes);
    for (suffix, _) in named.filter(|(_, name)| cluster.pods.enabled && ***name == *TargetId::POD_DOMAIN) {
        suffix.warning("no Service has such a name: with `pods` they are names of pods");
    }
    let kinds = field.at("workload_kinds");
    // Those that the documented file shows are the default.
    let are_own = cluster.workload_kinds != Options::default().workload_kinds;
    if kinds.is_given() && are_own && !cluster.wakes && !cluster.reports_activity {
        kinds.warning("no effect without `wake` or `report_activity`");
    }
    let useless = kinds.items().zip(&cluster.workload_kinds);
    for (kind, _) in useless.filter(|(_, kind)| kind.patch.is_none() && kind.activity.is_none()) {
        kind.warning("no effect: it has neither `patch` nor `activity`");
    }
    if cluster.wakes && cluster.workload_kinds.iter().all(|kind| kind.patch.is_none()) {
        field
            .at("wake")
            .warning("no effect: no kind of `workload_kinds` has a `patch`");
    }
}

/// Reports settings with which no client gets a tunnel.
fn locked_out(config: &Config, top: &Field<'_>) {
    if config.targets.is_empty() && config.cluster.is_none() {
        top.at("allowlist").warning(
            "there is no target, so every request is refused with 403: add one to `allowlist.static`, or set \
             `allowlist.kubernetes.enabled`",
        );
    }
    if !config.listen.is_empty() && config.listen.iter().all(trusts_only_the_other_family) {
        top.at("listen").warning(
            "no client gets in: every port requires a PROXY header, and no network of its `trusted_proxies` has \
             addresses of the port's family (IPv4 or IPv6)",
        );
    }
}

/// Returns whether a port trusts only load balancers of the family that cannot reach it.
fn trusts_only_the_other_family(port: &Port) -> bool {
    let address = port.listener.address;
    match &port.proxy_header {
        Policy::Required { trusted } if address.is_ipv4() => !trusted.iter().any(|network| network.addr().is_ipv4()),
        // IPv4 clients reach `[::]` as well.
        Policy::Required { trusted } if !address.ip().is_unspecified() => {
            !trusted.iter().any(|network| network.addr().is_ipv6())
        }
        Policy::Required { .. } | Policy::Off => false,
    }
}

fn tls(config: &Config, top: &Field<'_>) {
    if !config.tls.certificates.is_empty() && config.listen.iter().all(|port| port.tls == Mode::Off) {
        top.at("tls.certificates")
            .note("they are not used: no port has `tls: optional` or `tls: required`");
    }
    let plain = config.listen.iter().find(|port| port.tls != Mode::Required);
    if let (ClientAuth::Required, Some(port)) = (config.tls.client_auth, plain) {
        top.at("tls.client_auth").warning(format!(
            "{} accepts plain HTTP, where clients show no certificate: set `tls: required` there, or \
             `allowed_clients` of the targets",
            port.listener.address
        ));
    }
}
