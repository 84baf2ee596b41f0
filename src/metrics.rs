//! Every metric that operators see: declared here and nowhere else.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::process_collector::ProcessCollector;
use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

/// Why the metrics cannot be declared or written.
pub use prometheus::Error;

use self::declare::{counter, counters, gauge, histogram, registered};
use self::targets::TargetMetrics;
pub use self::targets::TargetSeries;
use crate::outcome::{Outcome, Reason, Refusal, Side};
use crate::ssh::identification::Family;
use crate::tls;

mod declare;
mod targets;

/// The metrics of one process; a clone is another handle on them. Labels come from our enums or the allowlist, never from what a client sent.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Connections taken from the public ports.
    pub connections_accepted: IntCounter,
    /// Those that are open.
    pub connections_active: IntGauge,
    /// Those of them whose request is not complete.
    pub connections_unfinished: IntGauge,
    /// How many tunnels there may be.
    pub tunnels_limit: IntGauge,
    connect_requests: IntCounterVec,
    tunnels_closed: IntCounterVec,
    identifications: IntCounterVec,
    /// A dial of a target, all its tries together, whether it succeeded or not.
    pub dial_duration: Histogram,
    /// From the accept to the answer.
    pub handshake_duration: Histogram,
    /// From the 200 to the end.
    pub tunnel_duration: Histogram,
    /// Pauses of a listener for want of descriptors or memory.
    pub accept_paused: IntCounter,
    /// Pipes that hold bytes of hot directions.
    pub pipes_in_use: IntGauge,
    /// Targets on the allowlist.
    pub allowlist_targets: IntGauge,
    /// Names that are claimed more than once.
    pub allowlist_name_conflicts: IntGauge,
    /// Whether a list that lost most of its objects is held back.
    pub allowlist_shrink_held: IntGauge,
    /// Annotations that are not understood.
    pub annotation_errors: IntCounter,
    watch_errors: IntCounterVec,
    /// When the allowlist was last known to be current, in seconds since 1970.
    pub allowlist_last_sync_timestamp: Gauge,
    /// 1 from the first signal on.
    pub draining: IntGauge,
    tls_handshakes: IntCounterVec,
    tls_handshake_failures: IntCounterVec,
    tls_certificate_expiry: IntGaugeVec,
    /// Looks at changed TLS files that found faults in them.
    pub tls_reload_failures: IntCounter,
    /// Whether the last reload of the configuration was applied.
    pub config_last_reload_successful: IntGauge,
    /// Reloads that were refused because of faults.
    pub config_reload_failures: IntCounter,
    /// Log lines thrown away because nobody read them fast enough.
    pub log_lines_dropped: IntGauge,
    targets: Arc<TargetMetrics>,
}

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// A name that is declared twice, or is not a metric name.
    #[expect(clippy::too_many_lines, reason = "one declaration after the other")]
    pub fn new() -> prometheus::Result<Self> {
        let into = &Registry::new();
        process_and_build(into)?;
        let metrics = Self {
            connections_accepted: counter(
                into,
                "switchboard_connections_accepted_total",
                "Connections taken from the public ports.",
            )?,
            connections_active: gauge(into, "switchboard_connections_active", "Connections that are open.")?,
            connections_unfinished: gauge(
                into,
                "switchboard_connections_unfinished",
                "Connections whose request is not complete.",
            )?,
            tunnels_limit: gauge(
                into,
                "switchboard_tunnels_limit",
                "How many tunnels there may be: as configured, or as the limit of open files allows.",
            )?,
            connect_requests: counters(
                into,
                "switchboard_connect_requests_total",
                "Requests answered, by status code and reason.",
                &["code", "reason"],
            )?,
            tunnels_closed: counters(
                into,
                "switchboard_tunnels_closed_total",
                "Tunnels that ended, by reason and by who ended them.",
                &["reason", "by"],
            )?,
            identifications: counters(
                into,
                "switchboard_identifications_total",
                "SSH software that has identified itself, by family.",
                &["side", "family"],
            )?,
            dial_duration: histogram(
                into,
                "switchboard_dial_duration_seconds",
                "Dials of targets, all tries of one together.",
                &FAST,
            )?,
            handshake_duration: histogram(
                into,
                "switchboard_handshake_duration_seconds",
                "From the accept to the answer.",
                &FAST,
            )?,
            tunnel_duration: histogram(
                into,
                "switchboard_tunnel_duration_seconds",
                "From the 200 to the end of the tunnel.",
                &SLOW,
            )?,
            accept_paused: counter(
                into,
                "switchboard_accept_paused_total",
                "Pauses of a listener for want of descriptors or memory.",
            )?,
            pipes_in_use: gauge(
                into,
                "switchboard_pipes_in_use",
                "Pipes that hold bytes of hot directions.",
            )?,
            allowlist_targets: gauge(into, "switchboard_allowlist_targets", "Targets on the allowlist.")?,
            allowlist_name_conflicts: gauge(
                into,
                "switchboard_allowlist_name_conflicts",
                "Names that more than one Service, or a Service and the configuration, claim.",
            )?,
            allowlist_shrink_held: gauge(
                into,
                "switchboard_allowlist_shrink_held",
                "1 while a list from the cluster that lost most of its objects is held back.",
            )?,
            annotation_errors: counter(
                into,
                "switchboard_annotation_errors_total",
                "Annotations of Services that were not understood, or ask for what they may not have.",
            )?,
            watch_errors: counters(
                into,
                "switchboard_watch_errors_total",
                "Failed lists and watches of the cluster, by what went wrong.",
                &["kind"],
            )?,
            allowlist_last_sync_timestamp: registered(
                into,
                Gauge::new(
                    "switchboard_allowlist_last_sync_timestamp_seconds",
                    "When the allowlist was last known to be current, since 1970.",
                )?,
            )?,
            draining: gauge(into, "switchboard_draining", "1 from the first signal on.")?,
            tls_handshakes: counters(
                into,
                "switchboard_tls_handshakes_total",
                "TLS handshakes that succeeded, by version, and whether they resumed an earlier session.",
                &["version", "resumed"],
            )?,
            tls_handshake_failures: counters(
                into,
                "switchboard_tls_handshake_failures_total",
                "TLS handshakes that failed, by cause.",
                &["cause"],
            )?,
            tls_certificate_expiry: registered(
                into,
                IntGaugeVec::new(
                    Opts::new(
                        "switchboard_tls_certificate_expiry_timestamp_seconds",
                        "When the first certificate of a file's chain expires, since 1970.",
                    ),
                    &["certificate"],
                )?,
            )?,
            tls_reload_failures: counter(
                into,
                "switchboard_tls_reload_failures_total",
                "Looks at changed TLS files that found faults in them: the old ones serve on.",
            )?,
            config_last_reload_successful: gauge(
                into,
                "switchboard_config_last_reload_successful",
                "Whether the last reload of the configuration was applied.",
            )?,
            config_reload_failures: counter(
                into,
                "switchboard_config_reload_failures_total",
                "Reloads refused because of faults in the file.",
            )?,
            log_lines_dropped: gauge(
                into,
                "switchboard_log_lines_dropped",
                "Log lines thrown away because they were not read fast enough.",
            )?,
            targets: Arc::new(TargetMetrics::new(into)?),
            registry: into.clone(),
        };
        metrics.config_last_reload_successful.set(1);
        metrics.show_zeros();
        Ok(metrics)
    }

    /// A rate needs a first zero: without it the first event of a kind never shows.
    fn show_zeros(&self) {
        self.requests(200, "established");
        for refusal in Refusal::ALL {
            self.requests(refusal.status(), refusal.label());
        }
        for version in ["1.2", "1.3"] {
            for resumed in ["false", "true"] {
                self.tls_handshakes.with_label_values(&[version, resumed]);
            }
        }
        for cause in tls::Cause::ALL {
            self.tls_handshake_failures.with_label_values(&[cause.label()]);
        }
        for reason in Reason::ALL {
            for by in Side::ALL {
                self.tunnels_closed.with_label_values(&[reason.label(), by.label()]);
            }
        }
        for side in [Side::Client, Side::Target] {
            for family in Family::ALL {
                self.identifications.with_label_values(&[side.label(), family.label()]);
            }
        }
    }

    /// Counts a failed list or watch; `kind` says what went wrong, and is never what a peer sent.
    pub fn watch_failed(&self, kind: &'static str) {
        self.watch_errors.with_label_values(&[kind]).inc();
    }

    /// Shows a failure of that kind at zero.
    pub fn watch_may_fail(&self, kind: &'static str) {
        self.watch_errors.with_label_values(&[kind]);
    }

    /// Notes that the allowlist is current.
    pub fn allowlist_synced(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.allowlist_last_sync_timestamp.set(now.as_secs_f64());
    }

    /// Counts a TLS handshake.
    pub fn tls_accepted(&self, accepted: &tls::Accepted) {
        let resumed = if accepted.resumed { "true" } else { "false" };
        self.tls_handshakes
            .with_label_values(&[accepted.peer.version, resumed])
            .inc();
    }

    /// Counts one that failed.
    pub fn tls_failed(&self, cause: tls::Cause) {
        self.tls_handshake_failures.with_label_values(&[cause.label()]).inc();
    }

    /// Shows until when certificates are good: those, and no others.
    pub fn tls_expiries(&self, expiries: &[tls::Expiry]) {
        self.tls_certificate_expiry.reset();
        for tls::Expiry { certificate, timestamp } in expiries {
            self.tls_certificate_expiry
                .with_label_values(&[certificate.as_str()])
                .set(*timestamp);
        }
    }

    /// Counts an answer: `None` is the 200.
    pub fn answered(&self, refused: Option<Outcome>) {
        let (code, reason) = refused.map_or((200, "established"), |outcome| (outcome.status(), outcome.reason()));
        self.requests(code, reason).inc();
    }

    fn requests(&self, code: u16, reason: &str) -> IntCounter {
        self.connect_requests
            .with_label_values(&[code.to_string().as_str(), reason])
    }

    /// Counts what a side says that it is.
    pub fn identified(&self, side: Side, family: Family) {
        self.identifications
            .with_label_values(&[side.label(), family.label()])
            .inc();
    }

    /// Counts the end of a tunnel.
    pub fn closed(&self, outcome: Outcome) {
        self.tunnels_closed
            .with_label_values(&[outcome.reason(), outcome.by().label()])
            .inc();
    }

    /// The series of one target. They exist as long as somebody holds them: a target that is gone leaves none behind.
    pub fn target(&self, namespace: &str, service: &str) -> Arc<TargetSeries> {
        self.targets.series(namespace, service)
    }

    /// The text format 0.0.4, with the bytes of tunnels that run.
    ///
    /// # Errors
    /// A metric without a value; there is none.
    pub fn encode(&self) -> prometheus::Result<String> {
        self.targets.fold();
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

fn process_and_build(into: &Registry) -> prometheus::Result<()> {
    into.register(Box::new(ProcessCollector::for_self()))?;
    let info = Opts::new("switchboard_build_info", "Always 1; says what runs.");
    let info = registered(into, IntGaugeVec::new(info, &["version"])?)?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    Ok(())
}

/// Seconds: a dial in the cluster takes a millisecond, its deadline is ten seconds.
const FAST: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];
/// Seconds: from a quick `scp` to a session of a week.
const SLOW: [f64; 9] = [1.0, 10.0, 60.0, 600.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0];
