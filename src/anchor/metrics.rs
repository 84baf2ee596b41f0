//! Every metric of the program `anchor`: declared here and nowhere else.

use prometheus::{IntCounter, IntGauge, Registry, Result};

use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::exposition::{
    Counters, Gauges, counter, counters, gauge, gauges, metrics, page, raise_to, registry,
};
use crate::tunnel::relay::meter::Totals;

metrics! {
    /// The metrics of an anchor. No label comes from a peer.
    pub struct Metrics(
        /// The metrics of an anchor that dials in.
        pub dial_in: DialInMetrics,
        registry: Registry
    );

    /// Sessions, by state: with a connection, without one, or kept to say how they ended.
    pub sessions: Gauges<1> = gauges("switchboard_anchor_sessions", &["state"]);
    /// Sessions that ended, by reason.
    pub session_ends: Counters<1> = counters("switchboard_anchor_session_ends_total", &["reason"]);
    /// Connections, by what their handshake has led to.
    pub handshakes: Counters<1> = counters("switchboard_anchor_handshakes_total", &["result"]);
    /// Bytes passed on, by direction, of sessions and of plain connections.
    bytes: Counters<2> = counters("switchboard_anchor_bytes_total", &["direction", "kind"]);
    /// Connections that have begun to carry a session, its first one included.
    pub attachments: IntCounter = counter("switchboard_anchor_attachments_total");
    /// Connections in the handshake.
    pub handshakes_in_progress: IntGauge = gauge("switchboard_anchor_handshakes_in_progress");
    /// Open plain connections.
    pub plain: IntGauge = gauge("switchboard_anchor_plain_connections");
    /// Capacity of the buffers of all sessions.
    pub memory: IntGauge = gauge("switchboard_anchor_memory_bytes");
    /// The setting --memory.
    pub memory_limit: IntGauge = gauge("switchboard_anchor_memory_limit_bytes");
    /// Pauses of the listener for lack of descriptors or memory.
    pub accept_paused: IntCounter = counter("switchboard_anchor_accept_paused_total");
    /// Access lines that were left out, as there were too many in a second.
    pub access_log_lines_dropped: IntCounter = counter("switchboard_anchor_access_log_lines_dropped_total");
    /// Log lines dropped because they were not read fast enough, or could not be written.
    pub log_lines_dropped: IntCounter = counter("switchboard_log_lines_dropped_total");
    /// Always 1; the version is a label.
    build_info: Gauges<1> = gauges("switchboard_build_info", &["version"]);
}

metrics! {
    /// The metrics of an anchor that dials in.
    pub struct DialInMetrics();

    /// Replicas of the proxy that the anchor is connected to.
    pub replicas: IntGauge = gauge("switchboard_anchor_replicas");
    /// Replicas of the proxy that the anchor has to be connected to.
    pub replicas_wanted: IntGauge = gauge("switchboard_anchor_replicas_wanted");
    /// Dials of the anchor to the proxy, by result.
    pub dials: Counters<1> = counters("switchboard_anchor_dials_total", &["result"]);
    /// Requests of the proxy for a name that the anchor does not serve.
    pub misdirected: IntCounter = counter("switchboard_anchor_misdirected_total");
}

/// The bytes of all sessions.
pub type SessionBytes = Both<IntCounter>;

impl Metrics {
    /// Creates all metrics.
    ///
    /// # Errors
    /// A name that is declared twice, or is not a metric name.
    pub fn new() -> Result<Self> {
        let registry = registry()?;
        let metrics = Self::declare(&registry, DialInMetrics::declare(&registry)?, registry.clone())?;
        metrics.build_info.set([env!("CARGO_PKG_VERSION")], 1);
        Ok(metrics)
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
