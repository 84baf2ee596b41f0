//! Prints static targets as the section `allowlist` of a configuration file.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::diagnostics::ImportDiagnostics;
use super::entry::{Entry, Target};

/// Returns the section. `resolve` returns the addresses of an entry whose target is a Service, or why there are none.
pub(super) fn section(
    entries: Vec<Entry>,
    resolve: impl Fn(&Entry) -> Result<Vec<SocketAddr>, String>,
    diagnostics: &mut ImportDiagnostics,
) -> String {
    let mut lines = String::new();
    for entry in entries {
        let addresses = match &entry.target {
            Target::Addresses(addresses) => Ok(addresses.clone()),
            Target::Service(..) => resolve(&entry),
        };
        match addresses {
            Ok(addresses) => push(&mut lines, &entry, &addresses, diagnostics),
            Err(reason) => diagnostics.error(entry.location, format!("{}: {reason}", entry.name)),
        }
    }
    match lines.as_str() {
        "" => "allowlist:\n  static: []\n".to_owned(),
        lines => format!("allowlist:\n  static:\n{lines}"),
    }
}

fn push(lines: &mut String, entry: &Entry, addresses: &[SocketAddr], diagnostics: &mut ImportDiagnostics) {
    let name = &entry.name;
    if let Some(odd) = addresses.iter().find(|address| is_odd(address.ip())) {
        let reason = "a loopback, link-local or other special address: check that it is meant";
        diagnostics.note(entry.location, format!("{name} points to {odd}, {reason}"));
    }
    if entry.settings.idle.is_some() {
        let reason = "the idle timeout is left out: `timeouts.idle` applies to all static targets";
        diagnostics.warning(entry.location, format!("{name}: {reason}"));
    }
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let rate = entry
        .settings
        .rate
        .map(|rate| format!(", limits: {{download: {rate}, upload: {rate}}}"));
    let header = entry
        .settings
        .proxy_header
        .map(|version| format!(", send_proxy_protocol: {version}"));
    let [rate, header] = [rate, header].map(Option::unwrap_or_default);
    // Writing to a String does not fail.
    writeln!(
        lines,
        "    - {{name: \"{name}\", addresses: {addresses:?}{rate}{header}}}"
    )
    .ok();
}

/// Returns whether an address is one that a Service could not have.
fn is_odd(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}
