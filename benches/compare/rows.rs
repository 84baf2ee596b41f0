//! The rows of the table: what is measured, and what is to be reached.

use self::Goal::{Absolute, OfEnvoy, OfFloor, OfRow};

/// A figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) label: &'static str,
    /// Digits behind the point.
    pub(crate) digits: usize,
    /// Whether more of it is better.
    pub(crate) more: bool,
    pub(crate) goal: Goal,
}

/// What switchboard has to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// So much of Envoy's figure, at most or, where more is better, at least.
    OfEnvoy(f64),
    /// So much of the floor's figure, at most or, where more is better, at least.
    OfFloor(f64),
    /// So much of another row's own figure, at most or, where more is better, at least.
    OfRow(&'static str, f64),
    /// That at most, whatever others need.
    Absolute(f64),
    /// Shown only.
    None,
    /// The load tool's own figure, for judging the rows beside it: not compared.
    LoadTool,
}

const fn less(id: &'static str, label: &'static str, digits: usize, goal: Goal) -> Row {
    let more = false;
    Row {
        id,
        label,
        digits,
        more,
        goal,
    }
}

const fn more(id: &'static str, label: &'static str, digits: usize, goal: Goal) -> Row {
    let more = true;
    Row {
        id,
        label,
        digits,
        more,
        goal,
    }
}

/// All of them, in the order of the table.
pub(crate) const ROWS: [Row; 87] = [
    less("down8.cpu", "download, 8 tunnels: CPU-s per GiB", 3, OfEnvoy(0.6)),
    more("down8.rate", "download, 8 tunnels: GiB/s", 2, OfEnvoy(1.1)),
    less("down1.cpu", "download, 1 tunnel: CPU-s per GiB", 3, OfEnvoy(0.9)),
    more("down1.rate", "download, 1 tunnel: GiB/s", 2, OfEnvoy(0.9)),
    less("up8.cpu", "upload, 8 tunnels: CPU-s per GiB", 3, OfEnvoy(0.6)),
    more("up8.rate", "upload, 8 tunnels: GiB/s", 2, OfEnvoy(1.1)),
    less("up1.cpu", "upload, 1 tunnel: CPU-s per GiB", 3, OfEnvoy(0.9)),
    more("up1.rate", "upload, 1 tunnel: GiB/s", 2, OfEnvoy(0.9)),
    less("both8.cpu", "both ways, 8 tunnels: CPU-s per GiB", 3, OfEnvoy(0.65)),
    more("both8.rate", "both ways, 8 tunnels: GiB/s", 2, OfEnvoy(1.1)),
    less("both1.cpu", "both ways, 1 tunnel: CPU-s per GiB", 3, OfEnvoy(0.9)),
    more("both1.rate", "both ways, 1 tunnel: GiB/s", 2, OfEnvoy(0.9)),
    less("trip.cpu", "64-byte round trip: CPU µs", 1, OfEnvoy(0.9)),
    less("trip.p50", "64-byte round trip: p50 µs", 0, OfEnvoy(1.0)),
    less("trip.p99", "64-byte round trip: p99 µs", 0, OfEnvoy(1.0)),
    less("beside.p50", "beside 4 × 60 MiB/s: p50 µs", 0, OfFloor(1.3)),
    less("beside.p99", "beside 4 × 60 MiB/s: p99 µs", 0, OfFloor(1.5)),
    less("paced.p50", "1,000 typing beside 8 × 60 MiB/s: p50 ms", 2, Goal::None),
    less("paced.p99", "1,000 typing beside 8 × 60 MiB/s: p99 ms", 2, Goal::None),
    less("paced.cores", "1,000 typing beside 8 × 60 MiB/s: cores", 2, Goal::None),
    more("paced.rate", "1,000 typing beside 8 × 60 MiB/s: GiB/s", 2, Goal::None),
    less("paced.late", "the same: load tool late by p99 ms", 2, Goal::LoadTool),
    less("typing.p50", "1,000 typing beside 8 downloads: p50 ms", 2, Goal::None),
    less("typing.p99", "1,000 typing beside 8 downloads: p99 ms", 2, Goal::None),
    less("typing.cores", "1,000 typing beside 8 downloads: cores", 2, Goal::None),
    more("typing.rate", "1,000 typing beside 8 downloads: GiB/s", 2, Goal::None),
    less("typing.late", "the same: load tool late by p99 ms", 2, Goal::LoadTool),
    more("setup.rate", "set-up, 8 clients: tunnels/s", 0, OfEnvoy(1.2)),
    less("setup.cpu", "set-up: CPU µs per tunnel", 1, OfEnvoy(0.75)),
    less("setup.p99", "set-up, 8 clients: p99 ms", 2, OfEnvoy(1.05)),
    less("idle.memory", "idle tunnel: KiB", 1, Absolute(4.0)),
    less(
        "idle.kernel",
        "idle tunnel: KiB of the kernel, with both peers' sockets",
        1,
        Goal::None,
    ),
    less("idle.descriptors", "idle tunnel: descriptors", 2, Absolute(2.0)),
    less(
        "idle.cpu",
        "all idle tunnels together: CPU ms a second",
        2,
        Absolute(20.0),
    ),
    less(
        "slow.descriptors",
        "2,000 downloads of 64 KiB a second: descriptors each",
        2,
        Absolute(2.1),
    ),
    less("slow.memory", "the same: KiB each", 1, Goal::None),
    less("slow.cores", "the same: cores", 2, Goal::None),
    less("limited.cpu", "limited to 10 MiB/s: CPU-s per GiB", 3, OfFloor(2.5)),
    less("fifty.cpu", "50 tunnels limited to 1 MiB/s: cores", 4, Absolute(0.08)),
    less("pinned.p50", "one core, 3,500 set-ups/s: p50 ms", 2, Goal::None),
    less("pinned.p99", "one core, 3,500 set-ups/s: p99 ms", 2, OfEnvoy(0.95)),
    less(
        "tls-down8.cpu",
        "TLS download, 8 tunnels: CPU-s per GiB",
        3,
        OfEnvoy(0.9),
    ),
    more("tls-down8.rate", "TLS download, 8 tunnels: GiB/s", 2, Goal::None),
    less(
        "tls-down1.cpu",
        "TLS download, 1 tunnel: CPU-s per GiB",
        3,
        OfEnvoy(1.0),
    ),
    more("tls-down1.rate", "TLS download, 1 tunnel: GiB/s", 2, Goal::None),
    less("tls-up8.cpu", "TLS upload, 8 tunnels: CPU-s per GiB", 3, OfEnvoy(0.9)),
    more("tls-up8.rate", "TLS upload, 8 tunnels: GiB/s", 2, Goal::None),
    less("tls-up1.cpu", "TLS upload, 1 tunnel: CPU-s per GiB", 3, OfEnvoy(0.9)),
    more("tls-up1.rate", "TLS upload, 1 tunnel: GiB/s", 2, Goal::None),
    less("tls-trip.p50", "TLS 64-byte round trip: p50 µs", 0, Goal::None),
    less(
        "ws-trip.p50",
        "WebSocket 64-byte round trip: p50 µs",
        0,
        OfRow("tls-trip.p50", 1.2),
    ),
    less(
        "ws-down8.cpu",
        "WebSocket download, 8 tunnels: CPU-s per GiB",
        3,
        OfRow("tls-down8.cpu", 1.3),
    ),
    more("ws-down8.rate", "WebSocket download, 8 tunnels: GiB/s", 2, Goal::None),
    less(
        "ws-up8.cpu",
        "WebSocket upload, 8 tunnels: CPU-s per GiB",
        3,
        OfRow("tls-up8.cpu", 1.3),
    ),
    more("ws-up8.rate", "WebSocket upload, 8 tunnels: GiB/s", 2, Goal::None),
    less("ws-idle.memory", "idle WebSocket: KiB", 1, Goal::None),
    more("tls-full.rate", "TLS set-up, full: tunnels/s", 0, Goal::None),
    less("tls-full.cpu", "TLS set-up, full: CPU µs per tunnel", 1, OfEnvoy(0.8)),
    less("tls-full.p99", "TLS set-up, full: p99 ms", 2, Goal::None),
    more("tls-resumed.rate", "TLS set-up, resumed: tunnels/s", 0, Goal::None),
    less(
        "tls-resumed.cpu",
        "TLS set-up, resumed: CPU µs per tunnel",
        1,
        OfEnvoy(0.8),
    ),
    less("tls-resumed.p99", "TLS set-up, resumed: p99 ms", 2, Goal::None),
    less("tls-idle.memory", "idle TLS tunnel: KiB", 1, Absolute(20.0)),
    less(
        "h2-down50.cpu",
        "h2 download, 50 streams: CPU-s per GiB",
        3,
        OfEnvoy(1.0),
    ),
    more("h2-down50.rate", "h2 download, 50 streams: GiB/s", 2, Goal::None),
    less("h2-down1.cpu", "h2 download, 1 stream: CPU-s per GiB", 3, OfEnvoy(1.2)),
    more("h2-down1.rate", "h2 download, 1 stream: GiB/s", 2, Goal::None),
    less("h2-up50.cpu", "h2 upload, 50 streams: CPU-s per GiB", 3, OfEnvoy(1.0)),
    more("h2-up50.rate", "h2 upload, 50 streams: GiB/s", 2, Goal::None),
    less("h2-up1.cpu", "h2 upload, 1 stream: CPU-s per GiB", 3, OfEnvoy(1.0)),
    more("h2-up1.rate", "h2 upload, 1 stream: GiB/s", 2, Goal::None),
    less(
        "h2c-down8.cpu",
        "h2c download, 8 connections: CPU-s per GiB",
        3,
        Goal::None,
    ),
    more("h2c-down8.rate", "h2c download, 8 connections: GiB/s", 2, Goal::None),
    less(
        "h2-idle.memory",
        "idle h2 tunnel, 50 on a connection: KiB",
        1,
        Absolute(12.0),
    ),
    less(
        "h2-idle-alone.memory",
        "idle h2 tunnel, alone on its own: KiB",
        1,
        Goal::None,
    ),
    less(
        "anchor-down8.cpu",
        "download by an anchor, 8 tunnels: CPU-s per GiB",
        3,
        OfRow("h2c-up8.cpu", 1.4),
    ),
    more(
        "anchor-down8.rate",
        "download by an anchor, 8 tunnels: GiB/s",
        2,
        OfRow("h2c-up8.rate", 0.5),
    ),
    less("h2c-up8.cpu", "h2c upload, 8 streams: CPU-s per GiB", 3, Goal::None),
    more("h2c-up8.rate", "h2c upload, 8 streams: GiB/s", 2, Goal::None),
    less("alone.p50", "set-up, 1 client: p50 ms", 3, Goal::None),
    less(
        "anchor-alone.p50",
        "set-up by an anchor, 1 client: p50 ms",
        3,
        Goal::None,
    ),
    less(
        "beside-dialled.p99",
        "beside 4 × 60 MiB/s, one target: p99 µs",
        0,
        Goal::None,
    ),
    less(
        "anchor-beside.p99",
        "beside 4 × 60 MiB/s of the same anchor: p99 µs",
        0,
        Goal::None,
    ),
    less(
        "slow-link.p50",
        "beside 60 uploads to an anchor at 1 MB/s: p50 ms",
        0,
        Goal::None,
    ),
    less(
        "slow-link.p99",
        "beside 60 uploads to an anchor at 1 MB/s: p99 ms",
        0,
        Goal::None,
    ),
    less("anchor-idle.memory", "idle anchor: KiB", 1, Absolute(24.0)),
    less("anchor-tls-idle.memory", "idle anchor by TLS: KiB", 1, Absolute(32.0)),
];
