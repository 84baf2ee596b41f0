//! The section `timeouts`: the deadlines of every wait for a peer.

use crate::net::tls;
use crate::proxy::config::form::{BRIEF_TIMEOUT, TIMEOUT, TIMEOUT_OR_OFF};
use crate::proxy::config::section::{Field, Section};
use crate::proxy::http;
use crate::tunnel::dial;
use crate::tunnel::relay;
use crate::tunnel::ssh::identification;

/// The options of the stages that have a deadline.
#[derive(Default)]
pub(super) struct Timeouts {
    pub(super) handshake: tls::Options,
    pub(super) connect: http::Options,
    pub(super) dial: dial::Options,
    pub(super) identification: identification::Options,
    pub(super) relay: relay::Options,
}

/// Reads the section.
pub(super) fn read(section: &mut Section<'_>) -> Timeouts {
    let mut read = Timeouts::default();
    let head = section.value("head", &BRIEF_TIMEOUT);
    read.connect.head = head.unwrap_or(read.connect.head);
    let handshake = section.value("tls_handshake", &BRIEF_TIMEOUT);
    read.handshake.handshake = handshake.unwrap_or(read.handshake.handshake);
    dial(section, &mut read.dial);
    let identification = section.value("identification", &BRIEF_TIMEOUT);
    read.identification.identification = identification.unwrap_or(read.identification.identification);
    let idle = section.value("idle", &TIMEOUT_OR_OFF);
    read.relay.idle = idle.unwrap_or(read.relay.idle);
    let half_closed = section.value("half_closed", &TIMEOUT);
    read.relay.half_closed = half_closed.unwrap_or(read.relay.half_closed);
    read
}

fn dial(section: &mut Section<'_>, options: &mut dial::Options) {
    let faults = section.faults();
    let one = section.field("dial_try");
    let all = section.field("dial");
    let read = |field: &Option<Field<'_>>| field.as_ref().and_then(|field| field.parse(&BRIEF_TIMEOUT));
    options.dial_try = read(&one).unwrap_or(options.dial_try);
    options.dial = read(&all).unwrap_or(options.dial);
    if section.faults() == faults
        && options.dial_try > options.dial
        && let Some(field) = one.or(all)
    {
        field.fault(format!(
            "one try ({:?}) may not take longer than the whole dial ({:?})",
            options.dial_try, options.dial
        ));
    }
}
