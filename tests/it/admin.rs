//! The admin port: its pages, every metric with its type and labels, and what they count.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Blackhole, Target};
use crate::harness::{allow, eventually, request};
use rustix::time::{ClockId, clock_gettime};
use switchboard::tunnel::drain::DrainResult;

/// Every metric with the prefix `switchboard_`: its type, and its labels in the order of the page.
const METRICS: [(&str, &str, &[&str]); 49] = [
    ("switchboard_build_info", "gauge", &["version"]),
    ("switchboard_connections_accepted_total", "counter", &[]),
    ("switchboard_connections_active", "gauge", &[]),
    ("switchboard_connections_unfinished", "gauge", &[]),
    ("switchboard_tunnels_limit", "gauge", &[]),
    ("switchboard_tunnels_resumable", "gauge", &[]),
    ("switchboard_connect_requests_total", "counter", &["code", "reason"]),
    ("switchboard_in_band_disconnects_total", "counter", &[]),
    (
        "switchboard_tunnels_active",
        "gauge",
        &["target_namespace", "target_service"],
    ),
    ("switchboard_tunnels_closed_total", "counter", &["by", "reason"]),
    ("switchboard_report_only_refusals_total", "counter", &["rule"]),
    (
        "switchboard_tunnel_bytes_total",
        "counter",
        &["direction", "target_namespace", "target_service"],
    ),
    (
        "switchboard_target_last_activity_timestamp_seconds",
        "gauge",
        &["target_namespace", "target_service"],
    ),
    ("switchboard_throttled_seconds_total", "counter", &["direction"]),
    ("switchboard_dial_duration_seconds", "histogram", &[]),
    ("switchboard_handshake_duration_seconds", "histogram", &[]),
    ("switchboard_tunnel_duration_seconds", "histogram", &[]),
    ("switchboard_accept_paused_total", "counter", &[]),
    ("switchboard_pipes_in_use", "gauge", &[]),
    ("switchboard_relay_engine", "gauge", &["engine"]),
    ("switchboard_allowlist_targets", "gauge", &[]),
    ("switchboard_allowlist_last_sync_timestamp_seconds", "gauge", &[]),
    ("switchboard_allowlist_name_conflicts", "gauge", &[]),
    ("switchboard_allowlist_removals_held", "gauge", &[]),
    ("switchboard_allowlist_lists_missing", "gauge", &[]),
    ("switchboard_allowlist_namespaces_forbidden", "gauge", &[]),
    ("switchboard_annotation_errors_total", "counter", &[]),
    ("switchboard_anchor_registrations_total", "counter", &["result"]),
    ("switchboard_anchors", "gauge", &[]),
    ("switchboard_anchor_streams", "gauge", &[]),
    ("switchboard_wakes_total", "counter", &["result"]),
    ("switchboard_service_events_total", "counter", &["result"]),
    ("switchboard_activity_reports_total", "counter", &["result"]),
    ("switchboard_draining", "gauge", &[]),
    ("switchboard_access_requests_total", "counter", &["method", "result"]),
    ("switchboard_access_reviews_total", "counter", &["kind", "result"]),
    ("switchboard_access_review_duration_seconds", "histogram", &[]),
    ("switchboard_access_cache_entries", "gauge", &["cache"]),
    ("switchboard_access_cache_hits_total", "counter", &["answer"]),
    ("switchboard_access_rechecks_total", "counter", &["result"]),
    ("switchboard_access_active_grants", "gauge", &[]),
    ("switchboard_access_tickets", "gauge", &["state"]),
    ("switchboard_access_cleartext_credentials_total", "counter", &[]),
    ("switchboard_tls_handshakes_total", "counter", &["resumed", "version"]),
    ("switchboard_tls_handshake_failures_total", "counter", &["cause"]),
    ("switchboard_tls_reload_failures_total", "counter", &[]),
    ("switchboard_config_last_reload_successful", "gauge", &[]),
    ("switchboard_config_reload_failures_total", "counter", &[]),
    ("switchboard_log_lines_dropped_total", "counter", &[]),
];

/// The operating system's metrics of a process.
const PROCESS: [(&str, &str); 5] = [
    ("process_cpu_seconds_total", "counter"),
    ("process_max_fds", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
];

#[test]
fn every_metric_has_its_type_and_its_labels() {
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("devbox:22", target.address())]));
    let (_client, _server) = proxy.tunnel("devbox:22", &target);
    // The first tunnel makes the series of its target, behind its 200.
    proxy.settles(TUNNELS, 1.0);
    let response = proxy.ask_admin("GET", "/metrics");
    assert_eq!(response.status, 200);
    assert!(
        response.head.contains("\r\ncontent-type: text/plain; version=0.0.4"),
        "{}",
        response.head
    );
    let page = proxy.scrape();
    let ours: BTreeMap<&str, &str> = page
        .types
        .iter()
        .filter(|(name, _)| name.starts_with("switchboard_"))
        .map(|(name, kind)| (name.as_str(), kind.as_str()))
        .collect();
    let declared: BTreeMap<&str, &str> = METRICS.iter().map(|&(name, kind, _)| (name, kind)).collect();
    assert_eq!(ours, declared);
    for (name, _, labels) in METRICS {
        assert_eq!(page.labels(name), labels, "{name}");
    }
    for (name, kind) in PROCESS {
        assert_eq!(page.types[name], kind, "{name}");
    }
    let version = format!(r#"build_info{{version="{}"}}"#, env!("CARGO_PKG_VERSION"));
    assert_eq!(page.value(&version), 1.0);
    assert_eq!(page.value("allowlist_targets"), 1.0);
    assert_eq!(page.value("config_last_reload_successful"), 1.0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - page.value("allowlist_last_sync_timestamp_seconds");
    assert!((-1.0..600.0).contains(&age), "{age}");
}

#[test]
fn each_ending_of_a_tunnel_shows_zero_before_its_first() {
    let proxy = Proxy::start("");
    let page = proxy.scrape();
    for reason in [
        "eof",
        "idle",
        "reset",
        "truncated",
        "lifetime",
        "drained",
        "target_removed",
        "not_ssh",
        "vanished",
        "io",
        "panic",
    ] {
        for by in ["client", "target", "proxy"] {
            let series = format!("switchboard_tunnels_closed_total{{by=\"{by}\",reason=\"{reason}\"}}");
            assert_eq!(page.values.get(&series), Some(&0.0), "{series}");
        }
    }
    for direction in ["upload", "download"] {
        let series = format!("switchboard_throttled_seconds_total{{direction=\"{direction}\"}}");
        assert_eq!(page.values.get(&series), Some(&0.0), "{series}");
    }
}

/// The proxy is a part of this process: the processor time of both is the same.
#[test]
fn the_processor_time_is_exact() {
    let used = || {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        Duration::try_from(used).unwrap().as_secs_f64()
    };
    let proxy = Proxy::start("");
    for _ in 0..3 {
        let before = used();
        let shown = proxy.scrape().values["process_cpu_seconds_total"];
        let after = used();
        assert!((before..after).contains(&shown), "{shown} is not in {before}..{after}");
    }
}

/// The bytes of both directions of the target `devbox:22`.
fn bytes(proxy: &Proxy) -> [f64; 2] {
    let page = proxy.scrape();
    ["upload", "download"].map(|direction| {
        page.value(&format!(
            r#"tunnel_bytes_total{{direction="{direction}",target_namespace="static",target_service="devbox:22"}}"#
        ))
    })
}

const TUNNELS: &str = r#"tunnels_active{target_namespace="static",target_service="devbox:22"}"#;

#[test]
fn bytes_are_counted_while_a_tunnel_runs_and_exactly_at_its_end() {
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("devbox:22", target.address())]));
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    proxy.settles(TUNNELS, 1.0);
    let (mut up, mut down) = (0, 0);
    for chunk in [1_usize, 1_000, 70_000, 1_000_000] {
        let sent = client.again();
        let upload = std::thread::spawn(move || {
            let mut sent = sent;
            sent.send(vec![b'u'; chunk]);
        });
        server.expect(vec![b'u'; chunk]);
        upload.join().unwrap();
        server.send("down");
        client.expect("down");
        up += chunk;
        down += 4;
        let counted = [up, down].map(|count| f64::from(u32::try_from(count).unwrap()));
        eventually("the bytes are counted", || (bytes(&proxy) == counted).then_some(()));
    }
    let (mut second, mut second_server) = proxy.tunnel("devbox:22", &target);
    proxy.settles(TUNNELS, 2.0);
    second.send("early");
    second_server.expect("early");
    for peer in [&mut client, &mut server, &mut second, &mut second_server] {
        peer.finish();
    }
    proxy.settles(TUNNELS, 0.0);
    // Behind its tunnel, a connection ends.
    proxy.settles("connections_active", 0.0);
    assert_eq!(
        bytes(&proxy),
        [up + 5, down].map(|count| f64::from(u32::try_from(count).unwrap()))
    );
    let page = proxy.scrape();
    assert_eq!(page.value("connections_accepted_total"), 2.0);
    assert_eq!(page.value("tunnel_duration_seconds_count"), 2.0);
    assert_eq!(page.value("handshake_duration_seconds_count"), 2.0);
    assert_eq!(page.value("dial_duration_seconds_count"), 2.0);
    assert_eq!(page.value("pipes_in_use"), 0.0);
}

#[test]
fn each_answer_is_counted_by_its_code_and_reason() {
    let (target, blackhole) = (Target::listen(), Blackhole::open());
    let list = allow(&[("devbox:22", target.address()), ("silent:22", blackhole.address())]);
    let timeouts = "timeouts: {request_header: 2s, dial: 300ms, connect: 300ms}\n";
    let proxy = Proxy::start(&format!("{list}{timeouts}"));
    let table: [(&str, &str, Option<String>); 8] = [
        ("200", "established", Some(request("devbox:22"))),
        ("400", "malformed", Some(request("devbox"))),
        ("403", "not_allowed", Some(request("other:22"))),
        (
            "405",
            "method_not_allowed",
            Some("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
        ),
        ("408", "request_header_timeout", Some("CONN".to_owned())),
        ("431", "request_header_too_large", Some("A".repeat(17_000))),
        ("499", "port_probe", None),
        ("504", "dial_timeout", Some(request("silent:22"))),
    ];
    let mut expected = Vec::new();
    for (code, reason, head) in table {
        let mut client = Peer::connect(proxy.public());
        match head {
            Some(head) => {
                client.send(head);
                client.expect(format!("HTTP/1.1 {code} "));
            }
            None => client.finish(),
        }
        drop(client);
        let labels = format!(r#"code="{code}",reason="{reason}""#);
        proxy.settles(&format!("connect_requests_total{{{labels}}}"), 1.0);
        expected.push((labels, 1.0));
    }
    assert_eq!(proxy.scrape().counted("connect_requests_total"), expected);
}

#[test]
fn a_target_that_leaves_the_list_leaves_no_series_behind() {
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("devbox:22", target.address())]));
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    proxy.settles(TUNNELS, 1.0);
    proxy.reload("");
    client.expect_reset();
    server.expect_reset();
    drop((client, server));
    let gone = || {
        let page = proxy.scrape();
        (!page.values.keys().any(|series| series.contains("devbox"))).then_some(page)
    };
    let page = eventually("no series of a target that is gone", gone);
    assert_eq!(page.value("allowlist_targets"), 0.0);
}

const PATHS: &str = "here are /metrics, /livez, /readyz, /drain, /activity, /tunnels, /targets, /clients, /restrictions, /ended, /refusals and /events: /openapi.json describes them\n";

#[test]
fn each_path_and_method_has_its_answer() {
    let proxy = Proxy::start("");
    for (method, path, status, body) in [
        ("GET", "/livez", 200, "ok\n"),
        ("GET", "/readyz", 200, "ok\n"),
        ("GET", "/readyz?verbose", 200, "[+]allowlist ok\n[+]listener ok\nok\n"),
        ("HEAD", "/readyz", 200, ""),
        ("HEAD", "/metrics", 200, ""),
        ("POST", "/metrics", 405, "only GET, HEAD\n"),
        ("DELETE", "/readyz", 405, "only GET, HEAD\n"),
        ("GET", "/", 404, PATHS),
        ("GET", "/metrics/", 404, PATHS),
    ] {
        let response = proxy.ask_admin(method, path);
        assert_eq!(
            (response.status, response.body.as_str()),
            (status, body),
            "{method} {path}"
        );
        assert_eq!(
            response.head.contains("\r\nallow: get, head"),
            status == 405,
            "{method} {path}"
        );
    }
}

#[test]
fn the_public_port_has_no_pages() {
    let proxy = Proxy::start("");
    for path in ["/metrics", "/livez", "/readyz"] {
        let mut client = proxy.client(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.expect("HTTP/1.1 405 ");
    }
}

#[test]
fn a_drain_shows_on_the_admin_port_before_any_tunnel_ends() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let proxy = Proxy::start(&format!("{list}drain: {{delay: 1h}}\n"));
    assert_eq!(proxy.scrape().value("draining"), 0.0);
    let (client, server) = proxy.tunnel("devbox:22", &target);
    proxy.stop();
    proxy.becomes(503);
    assert_eq!(proxy.scrape().value("draining"), 1.0);
    let response = proxy.ask_admin("GET", "/readyz");
    assert_eq!(
        (response.status, response.body.as_str()),
        (503, "[-]shutdown not ready\nnot ready\n")
    );
    let verbose = proxy.ask_admin("GET", "/readyz?verbose").body;
    assert_eq!(
        verbose,
        "[+]allowlist ok\n[+]listener ok\n[-]shutdown not ready\nnot ready\n"
    );
    assert_eq!(proxy.ask_admin("GET", "/livez").status, 200);
    // Still accepting.
    let second = proxy.tunnel("devbox:22", &target);
    drop((client, server, second));
    proxy.settles("connections_active", 0.0);
    proxy.stop();
    assert_eq!(proxy.drained(), DrainResult::Clean);
}

#[test]
fn slow_clients_of_the_admin_port_do_not_block_others() {
    let proxy = Proxy::start("");
    let slow: Vec<Peer> = (0..50)
        .map(|index| {
            let mut peer = Peer::connect(proxy.admin());
            peer.send(&b"GET /metrics HTTP/1.1\r\nHost: a\r\n"[..index / 2]);
            peer
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(proxy.ask_admin("GET", "/readyz").status, 200);
        assert_eq!(proxy.ask_admin("GET", "/metrics").status, 200);
    }
    drop(slow);
}

/// A probe of the kubelet that fails three times restarts the pod.
#[test]
fn connections_without_a_request_keep_no_probe_out() {
    let proxy = Proxy::start("");
    let silent: Vec<Peer> = (0..700).map(|_| Peer::connect(proxy.admin())).collect();
    for _ in 0..20 {
        assert_eq!(proxy.ask_admin("GET", "/livez").status, 200);
    }
    drop(silent);
}

/// A client that asks for hundreds of pages at once, and reads none, would hold its slot while others wait.
#[test]
fn a_connection_to_the_admin_port_has_one_page() {
    let proxy = Proxy::start("");
    let mut peer = Peer::connect(proxy.admin());
    peer.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2));
    let answer = peer.rest_as_text();
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}
