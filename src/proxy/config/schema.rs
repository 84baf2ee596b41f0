//! The format of the file: one reader for each section.
//!
//! A new section is a module here and a line in [`config`]; a new key is a line in the reader of its section.

use self::allowlist::Allowlist;
use super::Config;
use super::form::{BOOLEAN, DURATION};
use super::section::Section;
use crate::net::tls::{ClientAuth, Mode};
use crate::tunnel::drain;
use crate::tunnel::limits::Limits;

pub(crate) mod access;
mod allowlist;
mod kubernetes;
mod limits;
pub(crate) mod listen;
mod timeouts;
mod tls;

/// Reads the whole file. A value that is absent or a fault has its default.
pub(super) fn config(top: &mut Section<'_>) -> Config {
    let faults = top.faults();
    let tls = top.field("tls").and_then(|field| field.section(tls::read));
    let tls = tls.unwrap_or_default();
    let (listen, admin) = listen::read(top, tls.has_certificates);
    // After a fault in these sections it is not known whether the ports are meant to ask for certificates.
    let knows_clients = top.faults() > faults
        || tls.settings.client_auth != ClientAuth::Off && listen.iter().any(|port| port.tls != Mode::Off);
    tls.check_files();
    let access = top
        .field("access")
        .and_then(|field| field.section(|keys| access::read(keys, knows_clients)));
    let mut access = access.unwrap_or_default();
    let is_shared = access.reads_cluster() && access.kubeconfig.is_none();
    let allowlist = top
        .field("allowlist")
        .and_then(|field| field.section(|keys| allowlist::read(keys, knows_clients, is_shared)));
    let Allowlist {
        targets,
        kubernetes,
        kubeconfig,
        report,
    } = allowlist.unwrap_or_default();
    if is_shared {
        access.kubeconfig = kubeconfig;
    }
    if report && access.mode == crate::policy::access::Mode::Enforce {
        // Neither key may undo what the other one says.
        top.itself()
            .at("allowlist.report")
            .fault("what `access.mode: enforce` refuses is not served: set `access.mode: report`, or this to false");
    }
    let limits = top.field("limits").and_then(|field| field.section(limits::read));
    let limits = limits.unwrap_or_default();
    let ssh_only = top.value("ssh_only", &BOOLEAN).unwrap_or(limits.ssh_only);
    let timeouts = top.field("timeouts").and_then(|field| field.section(timeouts::read));
    let timeouts = timeouts.unwrap_or_default();
    let drain = top.field("drain").and_then(|field| field.section(drain));
    Config {
        listen,
        admin,
        access,
        targets,
        kubernetes,
        limits: Limits {
            ssh_only,
            reports: report,
            ..limits
        },
        tls: tls.settings,
        handshake: timeouts.handshake,
        connect: timeouts.connect,
        identification: timeouts.identification,
        dial: timeouts.dial,
        relay: timeouts.relay,
        drain: drain.unwrap_or_default(),
    }
}

fn drain(section: &mut Section<'_>) -> drain::Options {
    let default = drain::Options::default();
    drain::Options {
        delay: section.value("delay", &DURATION).unwrap_or(default.delay),
        timeout: section.value("timeout", &DURATION).unwrap_or(default.timeout),
        spread: section.value("spread", &DURATION).unwrap_or(default.spread),
        resumable_spread: section
            .value("resumable_spread", &DURATION)
            .unwrap_or(default.resumable_spread),
    }
}
