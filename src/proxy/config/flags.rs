//! The faults of flags and environment variables together with the file that they override.

use super::listen::{admin_fault, taken};
use super::{Config, Overrides};
use crate::base::yaml::diagnostic::Diagnostics;

/// Adds the faults of `by`. `config`: the file's settings, overridden by `by`.
pub(super) fn check(by: &Overrides, config: &Config, findings: &Diagnostics) {
    let blame = |flag: &str, reason: String| findings.fault_of_a_flag(flag, reason);
    if !by.listen.is_empty() {
        ports(config, |reason| blame("--listen", reason));
        clients(config, |reason| blame("--listen", reason));
    }
    let flag = if by.listen.is_empty() { "--admin" } else { "--listen" };
    if (by.admin.is_some() || !by.listen.is_empty())
        && let Some(reason) = admin_fault(config.admin, &config.listen)
    {
        blame(flag, reason);
    }
}

/// Reports ports that one process cannot have together.
fn ports(config: &Config, fault: impl Fn(String)) {
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
fn clients(config: &Config, fault: impl Fn(String)) {
    let mut targets = config.allowlist.targets.iter();
    if let Some(target) = targets.find(|target| target.allowed_clients.is_some()) {
        fault(format!(
            "no client has a certificate at these ports: `allowed_clients` of {} needs a port with `tls`, which only the \
             file can have",
            target.name
        ));
    }
}
