//! The format of `allowlist.kubernetes`.

use std::path::PathBuf;

use ipnet::IpNet;

use super::schema::{at_most_an_hour, truth};
use super::section::{Field, Section};
use crate::authority::Authority;
use crate::kubernetes::Options;

/// Reads the section; `None` unless it is enabled. Its other keys are checked in any case.
///
/// `knows_clients`: whether any of them can show a certificate.
pub(super) fn kubernetes(section: &mut Section<'_>, knows_clients: bool) -> Option<Options> {
    let default = Options::default();
    let enabled = section.value("enabled", truth).unwrap_or_default();
    let options = Options {
        kubeconfig: section.value("kubeconfig", path),
        namespaces: list(section, "namespaces", label),
        namespace_selector: section.value("namespace_selector", selector),
        selector: section.value("selector", selector).unwrap_or(default.selector),
        annotation_prefix: section
            .value("annotation_prefix", prefix)
            .unwrap_or(default.annotation_prefix),
        cluster_domain: section
            .value("cluster_domain", domain)
            .unwrap_or(default.cluster_domain),
        public_suffixes: list(section, "public_suffixes", domain),
        alias_port: section.value("alias_port", port).unwrap_or(default.alias_port),
        allowed_cidrs: list(section, "allowed_cidrs", network),
        wait_for_ready: section
            .value("wait_for_ready", at_most_an_hour)
            .unwrap_or(default.wait_for_ready),
        keeps_removed: section
            .value("on_removal", keeps_removed)
            .unwrap_or(default.keeps_removed),
        snapshot_file: section.value("snapshot_file", path),
        knows_clients,
    };
    enabled.then_some(options)
}

fn list<T>(section: &mut Section<'_>, name: &'static str, parse: impl Fn(&str) -> Result<T, &'static str>) -> Vec<T> {
    let items = section.field(name).map(|field| field.items()).unwrap_or_default();
    let item = |item: &Field<'_>| item.parse(&parse);
    items.iter().filter_map(item).collect()
}

/// An address with the length of its prefix.
pub(super) fn network(text: &str) -> Result<IpNet, &'static str> {
    text.parse()
        .map_err(|_| "expected a network such as `10.0.0.0/8` or `fd00::/8`")
}

fn path(text: &str) -> Result<PathBuf, &'static str> {
    match text {
        "" => Err("expected the path of a file"),
        _ => Ok(text.into()),
    }
}

/// The name of a Namespace (RFC 1123).
fn label(text: &str) -> Result<Box<str>, &'static str> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-') {
        Ok(text.into())
    } else {
        Err("expected the name of a Namespace: lower case letters, digits and `-`")
    }
}

/// The API server knows the whole grammar. Here it is only kept from selecting everything by accident.
fn selector(text: &str) -> Result<Box<str>, &'static str> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=!,() ".contains(&byte);
    if !text.trim().is_empty() && text.bytes().all(known) {
        Ok(text.trim().into())
    } else {
        Err("expected a label selector such as `switchboard.dev/expose=true`")
    }
}

fn prefix(text: &str) -> Result<Box<str>, &'static str> {
    match text.strip_suffix('/').map(domain) {
        Some(Ok(_)) => Ok(text.into()),
        _ => Err("expected a DNS name with a slash, such as `switchboard.dev/`"),
    }
}

fn domain(text: &str) -> Result<Box<str>, &'static str> {
    let name = text.trim_matches('.').to_ascii_lowercase();
    match format!("{name}:1").parse::<Authority>() {
        Ok(_) => Ok(name.into()),
        Err(_) => Err("expected a DNS name such as `ssh.example.com`"),
    }
}

fn port(text: &str) -> Result<u16, &'static str> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("expected a port: 1 to 65535"),
    }
}

fn keeps_removed(text: &str) -> Result<bool, &'static str> {
    match text {
        "close" => Ok(false),
        "keep" => Ok(true),
        _ => Err("expected `close` or `keep`"),
    }
}
