//! The tunnels and targets of the process in the JSON of the API.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::authority::Authority;
use crate::daemon::admin::api;
use crate::net::sock_diag::{DiagError, TcpInfo};
use crate::policy::allowlist::Target;
use crate::proxy::anchors::Anchor;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::tunnel::direction::Direction;
use crate::tunnel::outcome::RefusalReason;
use crate::tunnel::ssh::identification::Software;

/// Returns a tunnel as it is now.
pub(super) fn tunnel(open: &OpenTunnel) -> api::Tunnel {
    let info = &open.info;
    let [client_software, upstream_software] = info.software().map(software);
    let target = info.target.as_ref().map(|target| target.id());
    let rates = open.rates();
    let activity = open.activity();
    api::Tunnel {
        tunnel_id: info.id.to_string(),
        since: rfc3339(open.start.started),
        age_ms: millis(open.start.established.elapsed()),
        idle_ms: millis(activity.last_active.elapsed()),
        is_active: activity.is_active,
        last_active: rfc3339(open.start.to_system_time(activity.last_active)),
        client_address: info.client.ip(),
        client_port: info.client.port(),
        peer_address: Some(info.peer.ip()),
        client_software,
        user_name: info.user_name().to_owned(),
        http_version: info.http.to_owned(),
        tls_version: info.tls.as_ref().map_or("", |tls| tls.version).to_owned(),
        server_address: info.authority.as_ref().map_or("", Authority::host).to_owned(),
        server_port: info.authority.as_ref().map_or(0, Authority::port),
        target_namespace: target.map_or("", |id| &id.namespace).to_owned(),
        target_service: target.map_or("", |id| &id.service).to_owned(),
        upstream_address: info.upstream,
        upstream_node: info.node.to_string(),
        upstream_anchor: info.anchor.to_string(),
        upstream_software,
        is_resumable: open.guard.is_resumable(),
        bytes_sent: open.meter.bytes(Direction::Download),
        bytes_received: open.meter.bytes(Direction::Upload),
        sent_per_second: rates.download,
        received_per_second: rates.upload,
        download: limit(open, Direction::Download),
        upload: limit(open, Direction::Upload),
    }
}

/// Returns the connections of a tunnel.
pub(super) fn legs(seen: &[Result<TcpInfo, DiagError>; 2]) -> api::TcpLegs {
    let [client, upstream] = seen;
    let why = |(side, seen): (&str, &Result<TcpInfo, DiagError>)| {
        let unknown = seen.as_ref().err()?;
        Some(format!("{side}: {unknown}"))
    };
    let unknown: Vec<_> = [("client", client), ("upstream", upstream)]
        .into_iter()
        .filter_map(why)
        .collect();
    api::TcpLegs {
        client: client.as_ref().ok().map(leg),
        upstream: upstream.as_ref().ok().map(leg),
        unknown: unknown.join("; "),
    }
}

fn leg(info: &TcpInfo) -> api::Leg {
    let fraction = |duration: Duration| f64::from(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)) / 1e3;
    api::Leg {
        rtt_ms: fraction(info.rtt),
        rtt_variation_ms: fraction(info.rtt_variation),
        lowest_rtt_ms: fraction(info.lowest_rtt),
        retransmits: info.retransmits,
        out_of_order: info.out_of_order,
        delivery_rate: info.delivery_rate,
        in_flight: info.in_flight(),
        not_sent: info.not_sent,
        send_queue: info.send_queue,
        receive_queue: info.receive_queue,
        peer_window: info.peer_window,
        busy_ms: millis(info.busy),
        peer_window_limited_ms: millis(info.peer_window_limited),
    }
}

/// Returns a target as it is now, with that number of open tunnels.
pub(super) fn target(target: &Target, tunnels: usize, shared: &Shared) -> api::Target {
    let anchors = &shared.anchors.of(target.id());
    let unconfirmed_since = shared
        .allowlist
        .unconfirmed_since()
        .filter(|_| !target.id().is_static());
    // Those of a Service's pod are the Service's.
    let has_remarks = target.id().is_pod() || !target.id().service.contains('.');
    let remarks = has_remarks
        .then(|| shared.allowlist.remarks(target.id()).ok())
        .flatten();
    let last_dial = target.last_dial().map(|dial| api::Dial {
        at: rfc3339(dial.at),
        error: dial.error.map_or("", RefusalReason::label).to_owned(),
        sentence: dial.error.map(|error| error.phrase().to_string()).unwrap_or_default(),
    });
    let endpoints = target.endpoints();
    let connected = u32::try_from(anchors.len()).unwrap_or(u32::MAX);
    let [ready, total] = match target.dials_in() {
        Some(_) => [connected; 2],
        None => [endpoints.ready, endpoints.total],
    };
    let anchor = |(position, anchor): (usize, &Arc<Anchor>)| api::Anchor {
        address: anchor.addresses[0],
        user_name: anchor.user.to_string(),
        since: rfc3339(anchor.since),
        tunnels: anchor.tunnels.taken(),
        is_standby: position > 0,
    };
    let nodes = endpoints.nodes.iter().filter(|node| !node.is_empty());
    let nodes: BTreeSet<String> = nodes.map(ToString::to_string).collect();
    api::Target {
        namespace: target.id().namespace.to_string(),
        service: target.id().service.to_string(),
        endpoints_ready: ready,
        endpoints: total,
        addresses: endpoints.addresses.to_vec(),
        nodes: nodes.into_iter().collect(),
        anchors: anchors.iter().enumerate().map(anchor).collect(),
        is_cordoned: target.is_cordoned(),
        tunnels,
        last_activity: target.last_activity().map(rfc3339),
        last_dial,
        unconfirmed_since: unconfirmed_since.map(rfc3339),
        remarks: remarks.unwrap_or_default(),
    }
}

/// Returns a tunnel as a reason why its target is in use.
pub(super) fn reason(open: &OpenTunnel) -> api::TunnelUsage {
    let activity = open.activity();
    let [client_software, _] = open.info.software().map(software);
    api::TunnelUsage {
        tunnel_id: open.info.id.to_string(),
        client_address: open.info.client.ip(),
        client_software,
        user_name: open.info.user_name().to_owned(),
        since: rfc3339(open.start.started),
        is_active: activity.is_active,
        last_active: rfc3339(open.start.to_system_time(activity.last_active)),
        bytes_sent: open.meter.bytes(Direction::Download),
        bytes_received: open.meter.bytes(Direction::Upload),
    }
}

/// Returns the name of the software; empty if it is unknown.
fn software(software: Option<&Software>) -> String {
    software.map(ToString::to_string).unwrap_or_default()
}

/// Returns a time in RFC 3339, for JSON.
pub(super) fn rfc3339(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment.max(UNIX_EPOCH)).to_string()
}

/// Returns milliseconds, for JSON.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn limit(open: &OpenTunnel, direction: Direction) -> api::Limit {
    let rate_override = open.rate_overrides[direction].get();
    let of_target = || Some(open.info.target.as_ref()?.limit(direction).rate());
    api::Limit {
        rate: rate_override.or_else(of_target).unwrap_or_default().to_string(),
        is_own: rate_override.is_some(),
        waited_ms: millis(open.meter.throttled_time(direction)),
    }
}
