//! The scenarios of TLS and HTTP/2. The loads are those of the plain one.

use std::io;
use std::net::SocketAddr;

use crate::load::{Bulk, open_many, round_trips, set_ups};
use crate::proxies::{Kind, Machine, Program, Proxy};
use crate::route::Route;
use crate::scenarios::{
    CLIENTS, Effort, Figure, Scenario, WARM_UP, carry, common, counted_set_ups, held_by_idle, http, micros, ours,
    percentile, with_floor,
};
use crate::secure::Security;
use crate::target::Role::{self, Download, Echo, Upload};

/// In the order of a round.
pub(crate) const SCENARIOS: [Scenario; 15] = [
    with_floor("tls-down8", |proxy, effort| {
        tls(proxy, effort, Download, 8, ["tls-down8.cpu", "tls-down8.rate"])
    }),
    with_floor("tls-down1", |proxy, effort| {
        tls(proxy, effort, Download, 1, ["tls-down1.cpu", "tls-down1.rate"])
    }),
    with_floor("tls-up8", |proxy, effort| {
        tls(proxy, effort, Upload, 8, ["tls-up8.cpu", "tls-up8.rate"])
    }),
    with_floor("tls-up1", |proxy, effort| {
        tls(proxy, effort, Upload, 1, ["tls-up1.cpu", "tls-up1.rate"])
    }),
    ours("tls-trip", |proxy, effort| trip(proxy, effort, false, "tls-trip.p50")),
    ours("ws-trip", |proxy, effort| trip(proxy, effort, true, "ws-trip.p50")),
    ours("ws-down8", |proxy, effort| {
        websocket(proxy, effort, Download, ["ws-down8.cpu", "ws-down8.rate"])
    }),
    ours("ws-up8", |proxy, effort| {
        websocket(proxy, effort, Upload, ["ws-up8.cpu", "ws-up8.rate"])
    }),
    common("tls-full", full),
    common("tls-resumed", resumed),
    http("h2-down50", |proxy, effort| {
        http2(proxy, effort, Download, 50, ["h2-down50.cpu", "h2-down50.rate"])
    }),
    http("h2-down1", |proxy, effort| {
        http2(proxy, effort, Download, 1, ["h2-down1.cpu", "h2-down1.rate"])
    }),
    http("h2-up50", |proxy, effort| {
        http2(proxy, effort, Upload, 50, ["h2-up50.cpu", "h2-up50.rate"])
    }),
    http("h2-up1", |proxy, effort| {
        http2(proxy, effort, Upload, 1, ["h2-up1.cpu", "h2-up1.rate"])
    }),
    http("h2c-down8", |proxy, effort| {
        let bulk = Bulk::over_http2(Route::through(proxy), Download, [8, 1])?;
        Ok(carry(proxy, &bulk, effort.period).figures(["h2c-down8.cpu", "h2c-down8.rate"]))
    }),
];

/// HTTP/1.1 by TLS, one tunnel on each connection.
fn tls(proxy: &Proxy, effort: Effort, role: Role, tunnels: usize, rows: [&'static str; 2]) -> io::Result<Vec<Figure>> {
    let security = Security::new(HTTP1)?;
    let bulk = Bulk::start(Route::through(proxy).secured(&security), role, tunnels)?;
    Ok(carry(proxy, &bulk, effort.period).figures(rows))
}

/// Eight WebSockets by TLS.
fn websocket(proxy: &Proxy, effort: Effort, role: Role, rows: [&'static str; 2]) -> io::Result<Vec<Figure>> {
    let security = Security::new(HTTP1)?;
    let route = Route::through(proxy).secured(&security).by_websocket();
    let bulk = Bulk::start(route, role, 8)?;
    Ok(carry(proxy, &bulk, effort.period).figures(rows))
}

/// Round trips by TLS, or by a WebSocket in it.
fn trip(proxy: &Proxy, effort: Effort, is_websocket: bool, row: &'static str) -> io::Result<Vec<Figure>> {
    let security = Security::new(HTTP1)?;
    let route = Route::through(proxy).secured(&security);
    let route = if is_websocket { route.by_websocket() } else { route };
    let mut tunnel = [route.open(Echo)?];
    round_trips(&mut tunnel, WARM_UP)?;
    let times = round_trips(&mut tunnel, effort.period)?;
    Ok(vec![(row, micros(percentile(&times, 0.5)))])
}

/// HTTP/2 by TLS, all tunnels on one connection.
fn http2(
    proxy: &Proxy,
    effort: Effort,
    role: Role,
    tunnels: usize,
    rows: [&'static str; 2],
) -> io::Result<Vec<Figure>> {
    let security = Security::new(HTTP2)?;
    let route = Route::through(proxy).secured(&security);
    let bulk = Bulk::over_http2(route, role, [1, tunnels])?;
    Ok(carry(proxy, &bulk, effort.period).figures(rows))
}

fn full(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let security = Security::new(HTTP1)?;
    let route = Route::through(proxy).secured(&security);
    set_ups(route, CLIENTS, WARM_UP)?;
    counted_set_ups(proxy, route, effort, ["tls-full.rate", "tls-full.cpu", "tls-full.p99"])
}

fn resumed(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let security = Security::resuming(HTTP1)?;
    let route = Route::through(proxy).secured(&security);
    set_ups(route, CLIENTS, WARM_UP)?;
    let full = security.full_handshakes();
    let rows = ["tls-resumed.rate", "tls-resumed.cpu", "tls-resumed.p99"];
    let figures = counted_set_ups(proxy, route, effort, rows)?;
    match security.full_handshakes() - full {
        0 => Ok(figures),
        full => Err(io::Error::other(format!("{full} sessions were not resumed"))),
    }
}

/// Idle tunnels by TLS.
pub(crate) fn idle_tls(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    let proxy = program.start(target, &Machine::default())?;
    let security = Security::new(HTTP1)?;
    let route = Route::through(&proxy).secured(&security);
    let ([memory, _], _tunnels) = held_by_idle(&proxy, effort.idle_tunnels, |count| open_many(route, Echo, count))?;
    Ok(vec![("tls-idle.memory", memory)])
}

/// Idle WebSockets by TLS.
pub(crate) fn idle_websockets(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    if program.kind != Kind::Switchboard {
        return Ok(Vec::new());
    }
    let proxy = program.start(target, &Machine::default())?;
    let security = Security::new(HTTP1)?;
    let route = Route::through(&proxy).secured(&security).by_websocket();
    let ([memory, _], _tunnels) = held_by_idle(&proxy, effort.idle_tunnels, |count| open_many(route, Echo, count))?;
    Ok(vec![("ws-idle.memory", memory)])
}

/// Idle tunnels by HTTP/2 and TLS: many on a connection, and each on one of its own.
pub(crate) fn idle_http2(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    if program.kind == Kind::HaProxy {
        return Ok(Vec::new());
    }
    let security = Security::new(HTTP2)?;
    let memory_of = |tunnels: usize, on_each: usize| {
        let proxy = program.start(target, &Machine::default())?;
        let route = Route::through(&proxy).secured(&security);
        let open = |count: usize| Bulk::over_http2(route, Echo, [count / on_each, on_each]);
        let ([memory, _], _tunnels) = held_by_idle(&proxy, tunnels, open)?;
        io::Result::Ok(memory)
    };
    Ok(vec![
        ("h2-idle.memory", memory_of(effort.idle_tunnels, 50)?),
        ("h2-idle-alone.memory", memory_of(effort.idle_tunnels / 9, 1)?),
    ])
}

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";
