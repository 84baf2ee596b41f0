//! The rows of the table: what is measured, and what is to be reached.

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
    /// At most so much of another row's own figure.
    OfRow(&'static str, f64),
    /// That at most, whatever others need.
    Absolute(f64),
    /// Shown only.
    None,
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
pub(crate) const ROWS: [Row; 27] = [
    less(
        "down8.cpu",
        "download, 8 tunnels: CPU-s per GiB",
        3,
        Goal::OfEnvoy(0.45),
    ),
    more("down8.rate", "download, 8 tunnels: GiB/s", 2, Goal::OfEnvoy(1.1)),
    less("down1.cpu", "download, 1 tunnel: CPU-s per GiB", 3, Goal::OfEnvoy(0.75)),
    more("down1.rate", "download, 1 tunnel: GiB/s", 2, Goal::None),
    less("up8.cpu", "upload, 8 tunnels: CPU-s per GiB", 3, Goal::OfEnvoy(0.45)),
    more("up8.rate", "upload, 8 tunnels: GiB/s", 2, Goal::OfEnvoy(1.1)),
    less("up1.cpu", "upload, 1 tunnel: CPU-s per GiB", 3, Goal::OfEnvoy(0.75)),
    more("up1.rate", "upload, 1 tunnel: GiB/s", 2, Goal::None),
    less(
        "both8.cpu",
        "both ways, 8 tunnels: CPU-s per GiB",
        3,
        Goal::OfEnvoy(0.45),
    ),
    more("both8.rate", "both ways, 8 tunnels: GiB/s", 2, Goal::OfEnvoy(1.1)),
    less(
        "both1.cpu",
        "both ways, 1 tunnel: CPU-s per GiB",
        3,
        Goal::OfEnvoy(0.75),
    ),
    more("both1.rate", "both ways, 1 tunnel: GiB/s", 2, Goal::None),
    less("trip.cpu", "64-byte round trip: CPU µs", 1, Goal::OfEnvoy(0.8)),
    less("trip.p50", "64-byte round trip: p50 µs", 0, Goal::OfEnvoy(1.0)),
    less("trip.p99", "64-byte round trip: p99 µs", 0, Goal::OfEnvoy(1.0)),
    less("beside.p50", "beside 4 × 60 MiB/s: p50 µs", 0, Goal::OfEnvoy(0.8)),
    less("beside.p99", "beside 4 × 60 MiB/s: p99 µs", 0, Goal::OfEnvoy(0.75)),
    more("setup.rate", "set-up, 8 clients: tunnels/s", 0, Goal::OfEnvoy(2.4)),
    less("setup.cpu", "set-up: CPU µs per tunnel", 1, Goal::OfEnvoy(0.5)),
    less("setup.p99", "set-up, 8 clients: p99 ms", 2, Goal::None),
    less("idle.memory", "idle tunnel: KiB", 1, Goal::Absolute(4.0)),
    less("idle.descriptors", "idle tunnel: descriptors", 2, Goal::Absolute(2.0)),
    less(
        "idle.cpu",
        "all idle tunnels together: CPU ms a second",
        2,
        Goal::Absolute(1.0),
    ),
    less(
        "limited.cpu",
        "limited to 10 MiB/s: CPU-s per GiB",
        3,
        Goal::OfRow("down1.cpu", 1.2),
    ),
    less(
        "fifty.cpu",
        "50 tunnels limited to 1 MiB/s: cores",
        4,
        Goal::Absolute(0.08),
    ),
    less("pinned.p50", "one core, 3,500 set-ups/s: p50 ms", 2, Goal::None),
    less(
        "pinned.p99",
        "one core, 3,500 set-ups/s: p99 ms",
        2,
        Goal::Absolute(10.0),
    ),
];
