//! Every metric of the program `anchor`: declared here and nowhere else.

use prometheus::{IntCounter, IntGauge, Registry, Result};

use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::exposition::declare::{Counters, Gauges, counter, counters, gauge, gauges, raise_to};
use crate::tunnel::exposition::{page, registry};
use crate::tunnel::relay::meter::Totals;

/// The metrics of an anchor. No label comes from a peer.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Sessions, by state.
    pub sessions: Gauges<1>,
    /// Sessions that ended, by reason.
    pub session_ends: Counters<1>,
    /// Connections, by the result of their handshake.
    pub handshakes: Counters<1>,
    bytes: Counters<2>,
    /// Connections that were attached to a session, its first one included.
    pub attachments: IntCounter,
    /// Connections in the handshake.
    pub handshakes_in_progress: IntGauge,
    /// Open plain connections.
    pub plain: IntGauge,
    /// Capacity of the buffers of all sessions.
    pub memory: IntGauge,
    /// Maximum of that capacity.
    pub memory_limit: IntGauge,
    /// The metrics of an anchor that dials in.
    pub dial_in: DialInMetrics,
    /// Pauses of the listener.
    pub accept_paused: IntCounter,
    /// Access lines that were left out.
    pub access_log_lines_dropped: IntCounter,
    /// Log lines dropped.
    pub log_lines_dropped: IntCounter,
    registry: Registry,
}

/// The metrics of an anchor that dials in.
#[derive(Clone, Debug)]
pub struct DialInMetrics {
    /// Replicas of the proxy that are connected.
    pub replicas: IntGauge,
    /// Replicas that the anchor has to be connected to.
    pub replicas_wanted: IntGauge,
    /// Dials to the proxy, by result.
    pub dials: Counters<1>,
    /// Requests of the proxy for a name that the anchor does not serve.
    pub misdirected: IntCounter,
}

impl DialInMetrics {
    fn new(registry: &Registry) -> Result<Self> {
        Ok(Self {
            replicas: gauge(
                registry,
                "switchboard_anchor_replicas",
                "Replicas of the proxy that the anchor is connected to.",
            )?,
            replicas_wanted: gauge(
                registry,
                "switchboard_anchor_replicas_wanted",
                "Replicas of the proxy that the anchor has to be connected to.",
            )?,
            dials: counters(
                registry,
                "switchboard_anchor_dials_total",
                "Dials of the anchor to the proxy, by result.",
                &["result"],
            )?,
            misdirected: counter(
                registry,
                "switchboard_anchor_misdirected_total",
                "Requests of the proxy for a name that the anchor does not serve.",
            )?,
        })
    }
}

/// The bytes of all sessions.
pub type SessionBytes = Both<IntCounter>;

impl Metrics {
    /// Creates all metrics.
    ///
    /// # Errors
    /// A name that is declared twice, or is not a metric name.
    pub fn new() -> Result<Self> {
        let registry = &registry()?;
        let build_info = gauges(
            registry,
            "switchboard_build_info",
            "Always 1; the version is a label.",
            &["version"],
        )?;
        build_info.set([env!("CARGO_PKG_VERSION")], 1);
        let sessions = "Sessions, by state: with a connection, without one, or kept to say how they ended.";
        let ends = "Sessions that ended, by reason.";
        let handshakes = "Connections, by what their handshake has led to.";
        let bytes = "Bytes passed on, by direction, of sessions and of plain connections.";
        let attachments = "Connections that have begun to carry a session, its first one included.";
        let accept_paused = "Pauses of the listener for lack of descriptors or memory.";
        let left_out = "Access lines that were left out, as there were too many in a second.";
        let dropped = "Log lines dropped because they were not read fast enough, or could not be written.";
        Ok(Self {
            sessions: gauges(registry, "switchboard_anchor_sessions", sessions, &["state"])?,
            session_ends: counters(registry, "switchboard_anchor_session_ends_total", ends, &["reason"])?,
            handshakes: counters(registry, "switchboard_anchor_handshakes_total", handshakes, &["result"])?,
            bytes: counters(
                registry,
                "switchboard_anchor_bytes_total",
                bytes,
                &["direction", "kind"],
            )?,
            attachments: counter(registry, "switchboard_anchor_attachments_total", attachments)?,
            dial_in: DialInMetrics::new(registry)?,
            handshakes_in_progress: gauge(
                registry,
                "switchboard_anchor_handshakes_in_progress",
                "Connections in the handshake.",
            )?,
            plain: gauge(
                registry,
                "switchboard_anchor_plain_connections",
                "Open plain connections.",
            )?,
            memory: gauge(
                registry,
                "switchboard_anchor_memory_bytes",
                "Capacity of the buffers of all sessions.",
            )?,
            memory_limit: gauge(
                registry,
                "switchboard_anchor_memory_limit_bytes",
                "The setting --memory.",
            )?,
            accept_paused: counter(registry, "switchboard_anchor_accept_paused_total", accept_paused)?,
            access_log_lines_dropped: counter(registry, "switchboard_anchor_access_log_lines_dropped_total", left_out)?,
            log_lines_dropped: counter(registry, "switchboard_log_lines_dropped_total", dropped)?,
            registry: registry.clone(),
        })
    }

    /// Returns the counters of the bytes of sessions.
    pub fn session_bytes(&self) -> SessionBytes {
        Both::from_fn(|direction| self.bytes.with_labels([direction.label(), "session"]))
    }

    /// Sets the bytes of plain connections.
    pub fn plain_bytes(&self, totals: &Totals) {
        for direction in Direction::ALL {
            let counter = self.bytes.with_labels([direction.label(), "plain"]);
            raise_to(&counter, totals.bytes(direction));
        }
    }

    /// Returns the page in the text format 0.0.4.
    ///
    /// # Errors
    /// A metric without a series; each has one.
    pub fn encode(&self) -> Result<String> {
        page(&self.registry)
    }
}
