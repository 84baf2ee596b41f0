//! The settings of one tunnel.

use std::time::{Duration, SystemTime};

use super::known_hosts::HostKeyOutput;
use super::stderr::UserOutput;
use crate::protocol::resume::{self, Timing};
use crate::uplink;

/// The settings of one tunnel.
#[derive(Clone, Debug)]
pub struct Options {
    /// The connection to the proxy.
    pub uplink: uplink::Options,
    /// The `host:port` to request. It is checked as an [`Authority`] and then sent as typed: to other proxies two
    /// spellings of one name may be different targets.
    ///
    /// [`Authority`]: crate::base::authority::Authority
    pub target: String,
    /// The settings of a session, if there is an anchor beside the target. `None`: plain relay, without detection.
    pub session: Option<Settings>,
    /// How long to retry after a 429 or 503. `None`: not at all.
    pub wait: Option<Duration>,
    /// True if a failure goes to stderr, too, when it was reported to ssh in band.
    pub verbose: bool,
    /// The messages to the user while the tunnel is open or waited for.
    pub output: UserOutput,
    /// True if the proxy is to start no workload for the tunnel.
    pub no_wake: bool,
    /// The receiver of the target's host keys; `None` if the proxy is not asked for them.
    pub host_keys: Option<HostKeyOutput>,
}

/// The settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The bytes of each stream that are kept until they are acknowledged, 4 KiB to 64 MiB.
    pub window: u32,
    /// The times by which the path is watched.
    pub timing: Timing,
    /// The time for which the session waits for a connection.
    pub grace: Duration,
    /// The wall clock, by which a sleep of the host is noticed.
    pub clock: fn() -> SystemTime,
}

impl Default for Settings {
    fn default() -> Self {
        let resume::Options { window, timing, .. } = resume::Options::default();
        Self {
            window,
            timing,
            grace: GRACE,
            clock: SystemTime::now,
        }
    }
}

/// Says whether a session will be resumable.
pub(super) fn resumption(is_wanted: bool, has_anchor: bool) -> &'static str {
    match (is_wanted, has_anchor) {
        (true, true) => "the session will be resumable: the target has an anchor",
        (true, false) => "the session will not be resumable: the target has no anchor",
        (false, _) => "the session will not be resumable: --resume is off",
    }
}

/// As long as an anchor keeps a session: 24 hours.
const GRACE: Duration = Duration::from_secs(24 * 3600);
