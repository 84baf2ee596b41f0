//! The metrics of the proxy, and all that its page has.

use std::sync::Arc;

use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use crate::kubernetes::metrics::ClusterMetrics;
use crate::net::tls;
use crate::policy::access::metrics::AccessMetrics;
use crate::tunnel::exposition::{
    Counters, FAST, Gauges, counter, counters, gauge, gauges, histogram, metrics, page, registry,
};
use crate::tunnel::outcome::{CloseReason, Outcome, RefusalReason, Side};
use crate::tunnel::target_metrics::TargetMetrics;

metrics! {
    /// The metrics of one process; a clone is another handle on them. The values of labels come from enums and from the
    /// allowlist, never from a client.
    pub struct Metrics(
        /// Those of the targets.
        pub targets: Arc<TargetMetrics>,
        /// Those of access.
        pub access: AccessMetrics,
        /// Those of the cluster.
        pub cluster: ClusterMetrics,
        registry: Registry
    );

    /// Connections accepted on the public ports.
    pub connections_accepted: IntCounter = counter("switchboard_connections_accepted_total");
    /// Open connections, tunnels or not.
    pub connections_active: IntGauge = gauge("switchboard_connections_active");
    /// Connections whose request is not complete.
    pub connections_unfinished: IntGauge = gauge("switchboard_connections_unfinished");
    /// Open tunnels whose sessions outlive them.
    pub tunnels_resumable: IntGauge = gauge("switchboard_tunnels_resumable");
    /// The most tunnels at a time: as configured, or as the limit of open files allows.
    pub tunnels_limit: IntGauge = gauge("switchboard_tunnels_limit");
    /// Requests answered, by status code and reason.
    pub connect_requests: Counters<2> = counters("switchboard_connect_requests_total", &["code", "reason"]);
    /// Clients that were told in band, by an SSH disconnect, why they have no session.
    pub in_band_disconnects: IntCounter = counter("switchboard_in_band_disconnects_total");
    /// Tunnels that ended, by reason and by the side that ended them.
    pub tunnels_closed: Counters<2> = counters("switchboard_tunnels_closed_total", &["reason", "by"]);
    /// Tunnels that `ssh_only` would have ended and requests that `access` would have refused, by rule.
    pub report_only_refusals: Counters<1> = counters("switchboard_report_only_refusals_total", &["rule"]);
    /// Seconds of a dial, all its tries together, whether it succeeded or not.
    pub dial_duration: Histogram = histogram("switchboard_dial_duration_seconds", &FAST);
    /// Seconds from the accept, or over HTTP/2 from the request, to the answer.
    pub handshake_duration: Histogram = histogram("switchboard_handshake_duration_seconds", &FAST);
    /// Seconds from the 200 to the end of the tunnel.
    pub tunnel_duration: Histogram = histogram("switchboard_tunnel_duration_seconds", &SLOW);
    /// Pauses of a listener for lack of descriptors or memory.
    pub accept_paused: IntCounter = counter("switchboard_accept_paused_total");
    /// Kernel pipes that hold bytes of fast tunnels.
    pub pipes_in_use: IntGauge = gauge("switchboard_pipes_in_use");
    /// 1 for the engine that relays bulk between plain sockets: splice, or copy where there are no pipes.
    pub relay_engine: Gauges<1> = gauges("switchboard_relay_engine", &["engine"]);
    /// Targets on the allowlist.
    pub allowlist_targets: IntGauge = gauge("switchboard_allowlist_targets");
    /// Names that both a Service and `allowlist.static` claim.
    pub allowlist_name_conflicts: IntGauge = gauge("switchboard_allowlist_name_conflicts");
    /// Registrations of anchors, by result.
    pub anchor_registrations: Counters<1> = counters("switchboard_anchor_registrations_total", &["result"]);
    /// Anchors that are connected.
    pub anchors: IntGauge = gauge("switchboard_anchors");
    /// Tunnels that anchors carry.
    pub anchor_streams: IntGauge = gauge("switchboard_anchor_streams");
    /// 1 from the beginning of the drain.
    pub draining: IntGauge = gauge("switchboard_draining");
    /// TLS handshakes that succeeded, by version, and whether they resumed an earlier session.
    pub tls_handshakes: Counters<2> = counters("switchboard_tls_handshakes_total", &["version", "resumed"]);
    /// TLS handshakes that failed, by cause.
    pub tls_handshake_failures: Counters<1> = counters("switchboard_tls_handshake_failures_total", &["cause"]);
    /// When the first certificate of a file's chain expires, in seconds since 1970.
    pub tls_certificate_expiry: Gauges<1> = gauges(
        "switchboard_tls_certificate_expiry_timestamp_seconds",
        &["certificate"]
    );
    /// The nextUpdate of an authority's revocation list, in seconds since 1970.
    pub tls_crl_next_update: Gauges<1> = gauges("switchboard_tls_crl_next_update_timestamp_seconds", &["issuer"]);
    /// Reads of changed TLS files that failed; the loaded ones stay in use.
    pub tls_reload_failures: IntCounter = counter("switchboard_tls_reload_failures_total");
    /// 0 after a failed reload of the configuration, else 1.
    pub config_last_reload_successful: IntGauge = gauge("switchboard_config_last_reload_successful");
    /// Failed reloads of the configuration.
    pub config_reload_failures: IntCounter = counter("switchboard_config_reload_failures_total");
    /// Log lines dropped because they were not read fast enough, or could not be written.
    pub log_lines_dropped: IntCounter = counter("switchboard_log_lines_dropped_total");
    /// Always 1; the version is a label.
    pub build_info: Gauges<1> = gauges("switchboard_build_info", &["version"]);
}

impl Metrics {
    /// Creates all metrics, with the value 0.
    ///
    /// # Errors
    /// A name that is declared twice, or is not a metric name.
    pub fn new() -> prometheus::Result<Self> {
        let registry = registry()?;
        let targets = TargetMetrics::new(&registry)?;
        let access = AccessMetrics::declare(&registry)?;
        let cluster = ClusterMetrics::new(&registry)?;
        let metrics = Self::declare(&registry, targets, access, cluster, registry.clone())?;
        metrics.build_info.set([env!("CARGO_PKG_VERSION")], 1);
        metrics.config_last_reload_successful.set(1);
        metrics.relay_splices(true);
        metrics.show_zeros();
        Ok(metrics)
    }

    /// Creates series with the value 0.
    fn show_zeros(&self) {
        self.requests(200, "established");
        self.requests(200, LISTED);
        for refusal in RefusalReason::ALL {
            self.requests(refusal.status(), refusal.label());
        }
        for version in ["1.2", "1.3"] {
            for resumed in ["false", "true"] {
                self.tls_handshakes.zero([version, resumed]);
            }
        }
        for cause in tls::FailureCause::ALL {
            self.tls_handshake_failures.zero([cause.label()]);
        }
        for reason in CloseReason::ALL {
            for by in Side::ALL {
                self.tunnels_closed.zero([reason.label(), by.label()]);
            }
        }
        self.anchor_registrations.zero(["registered"]);
        for rule in ["ssh_only", "access"] {
            self.report_only_refusals.zero([rule]);
        }
    }

    /// Notes which engine moves bulk between plain sockets.
    pub fn relay_splices(&self, splices: bool) {
        for (engine, is_in_use) in [("splice", splices), ("copy", !splices)] {
            self.relay_engine.set([engine], is_in_use);
        }
    }

    /// Counts a TLS handshake.
    pub fn tls_accepted(&self, accepted: &tls::CompletedHandshake) {
        let resumed = if accepted.resumed { "true" } else { "false" };
        self.tls_handshakes.count([accepted.client.version, resumed]);
    }

    /// Sets the expiry of these certificates and the nextUpdate of these revocation lists, and removes the series of all
    /// others.
    pub fn tls_timestamps(&self, expiries: &[(String, i64)], next_updates: &[(String, i64)]) {
        let of_lists = (&self.tls_crl_next_update, next_updates);
        for (gauges, timestamps) in [(&self.tls_certificate_expiry, expiries), of_lists] {
            let series = gauges.series();
            series.reset();
            for (name, timestamp) in timestamps {
                series.with_label_values(&[name.as_str()]).set(*timestamp);
            }
        }
    }

    /// Counts an answer: `None` is the 200.
    pub fn answered(&self, refused: Option<Outcome>) {
        let (code, reason) = refused.map_or((200, "established"), |outcome| (outcome.status(), outcome.reason()));
        self.requests(code, reason).inc();
    }

    /// Counts a list of names that was sent.
    pub fn listed(&self) {
        self.requests(200, LISTED).inc();
    }

    fn requests(&self, code: u16, reason: &str) -> IntCounter {
        let series = self.connect_requests.series();
        series.with_label_values(&[code.to_string().as_str(), reason])
    }

    /// Counts the end of a tunnel.
    pub fn closed(&self, outcome: Outcome) {
        self.tunnels_closed.count([outcome.reason(), outcome.by().label()]);
    }

    /// Returns the page in the text format 0.0.4, with the bytes of open tunnels.
    ///
    /// # Errors
    /// A metric without a series; each has one.
    pub fn encode(&self) -> prometheus::Result<String> {
        self.targets.collect();
        page(&self.registry)
    }
}

/// The reason of an answer that is a list of names.
const LISTED: &str = "listed";
/// Seconds: from a quick `scp` to a session of a week.
const SLOW: [f64; 9] = [1.0, 10.0, 60.0, 600.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0];
