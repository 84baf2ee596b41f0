//! Objects of a hostile tenant, or of a controller with a defect: never followed, and no obstacle for others.

use std::fs;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::api::Cut;
use super::lab;
use super::objects::{service, slice, with};
use super::proxy::{ADMIN_PORT, eventually};
use super::stage::Stage;

/// Addresses of the proxy's own host, of metadata services, or of nothing.
const DANGEROUS: [&str; 36] = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.1.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "10.8.0.2",
    "::1",
    "::",
    "fe80::1",
    "ff02::1",
    "ff0e::1",
    "fd08::2",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.8.0.2",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "::ffff:255.255.255.255",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:a9fe:a9:fe00::",
    "2001::c0a8:101:0:ffff:5601:5601",
    "fd09::5efe:127.0.0.1",
    "fd09::200:5efe:169.254.169.254",
    "fec0::1",
    "2002:a9fe:a9fe::1",
];

/// Services that lead only there: to the admin port, which listens on every address of the proxy's host, or to a port
/// where the pods listen.
async fn put_dangerous(stage: &Stage) {
    for (index, address) in DANGEROUS.into_iter().enumerate() {
        for port in [ADMIN_PORT, 22] {
            let name = format!("bad-{index}-{port}");
            let slice = slice("team-a", &name, &[address]);
            stage.api.put(with(slice, "/ports/0/port", json!(port)));
            stage.api.put(service("team-a", &name));
        }
        // Beside a good one it takes nothing away from it.
        let mixed = slice("team-a", &format!("mixed-{index}"), &["10.9.1.1"]);
        let bad = with(
            slice("team-a", &format!("mixed-{index}"), &[address]),
            "/metadata/name",
            json!(format!("m-{index}")),
        );
        stage.api.put(mixed);
        stage.api.put(bad);
        stage.api.put(service("team-a", &format!("mixed-{index}")));
    }
    stage.serve("last", "10.9.1.9").await;
}

async fn assert_refused(stage: &Stage) {
    let mut faults = Vec::new();
    for (index, address) in DANGEROUS.into_iter().enumerate() {
        for port in [ADMIN_PORT, 22] {
            match stage.proxy.connect(&format!("bad-{index}-{port}.team-a:22")).await {
                Err(refused) if refused.status == 503 => {}
                other => faults.push(format!("{address} port {port}: {other:?}")),
            }
        }
        for _ in 0..3 {
            match stage.proxy.connect(&format!("mixed-{index}.team-a:22")).await {
                Ok(tunnel) if tunnel.pod == "10.9.1.1:22".parse().unwrap() => {}
                other => faults.push(format!("{address} beside a good one: {other:?}")),
            }
        }
        if stage.pods.was_reached(address.parse().unwrap()) {
            faults.push(format!("{address} was reached"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn no_dangerous_address_is_dialled() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        put_dangerous(&stage).await;
        assert_refused(&stage).await;
    });
}

#[test]
fn allowing_everything_allows_no_dangerous_address() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("allowed_cidrs", json!(["0.0.0.0/0", "::/0"]))]).await;
        put_dangerous(&stage).await;
        assert_refused(&stage).await;
    });
}

#[test]
fn only_allowed_networks_are_dialled() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("allowed_cidrs", json!(["10.9.1.0/24", "fd09::/120"]))]).await;
        stage.serve("inside", "10.9.1.1").await;
        stage.put("outside", "10.9.2.1");
        stage.api.put(slice("team-a", "inside-6", &["fd09::5"]));
        stage.api.put(service("team-a", "inside-6"));
        stage.proxy.reaches("inside-6.team-a:22", "[fd09::5]:22").await;
        stage.proxy.refuses("outside.team-a:22", 503).await;
        // Another network, whose interface id spells 10.9.1.1.
        stage.api.put(slice("team-a", "spelled", &["fd09::1:0:5efe:a09:101"]));
        stage.api.put(service("team-a", "spelled"));
        stage.proxy.refuses("spelled.team-a:22", 503).await;
        for outside in ["10.9.2.1", "fd09::1:0:5efe:a09:101"] {
            let outside: IpAddr = outside.parse().unwrap();
            assert!(!stage.pods.was_reached(outside));
        }
    });
}

/// A fault of a slice: its path, and the value there.
fn malformed_slices() -> Vec<(&'static str, Value)> {
    vec![
        ("/endpoints", Value::Null),
        ("/endpoints", json!([])),
        ("/endpoints", json!("none")),
        ("/endpoints", json!({"a": 1})),
        ("/endpoints/0", Value::Null),
        ("/endpoints/0", json!([])),
        ("/endpoints/0/addresses", Value::Null),
        ("/endpoints/0/addresses", json!([])),
        ("/endpoints/0/addresses", json!([7, null])),
        ("/endpoints/0/addresses", json!(["not an address"])),
        ("/endpoints/0/addresses", json!(["10.9.1.1:22"])),
        ("/endpoints/0/addresses", json!(["010.009.001.001"])),
        ("/endpoints/0/conditions", json!({"ready": "no"})),
        ("/ports", Value::Null),
        ("/ports", json!([])),
        ("/ports", json!("22")),
        ("/ports/0", Value::Null),
        ("/ports/0/port", json!(0)),
        ("/ports/0/port", json!(-1)),
        ("/ports/0/port", json!(65536)),
        ("/ports/0/port", json!(70000)),
        ("/ports/0/port", json!(22.5)),
        ("/ports/0/port", json!("22")),
        ("/ports/0/port", json!(1e300)),
        ("/ports/0/protocol", json!("UDP")),
        ("/addressType", json!("FQDN")),
        ("/metadata/labels", Value::Null),
        ("/metadata/labels", json!("kubernetes.io/service-name")),
    ]
}

/// A fault of a Service.
fn malformed_services() -> Vec<(&'static str, Value)> {
    vec![
        ("/spec", Value::Null),
        ("/spec", json!("ClusterIP")),
        ("/spec/ports", Value::Null),
        ("/spec/ports", json!([])),
        ("/spec/ports", json!("22")),
        ("/spec/ports/0/port", json!(-1)),
        ("/spec/ports/0/port", json!(0)),
        ("/spec/ports/0/port", json!("ssh")),
        ("/spec/ports/0/protocol", json!("SCTP")),
        ("/spec/type", json!("ExternalName")),
    ]
}

fn put_malformed(stage: &Stage) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for (index, (pointer, value)) in malformed_slices().into_iter().enumerate() {
        let name = format!("slice-{index}");
        names.push((name.clone(), format!("{pointer}: {value}")));
        stage
            .api
            .put(with(slice("team-a", &name, &["10.9.1.1"]), pointer, value.clone()));
        stage.api.put(service("team-a", &name));
        // And as a second slice of a good Service.
        let beside = with(
            slice("team-a", "svc-a", &["10.9.1.9"]),
            "/metadata/name",
            json!(format!("beside-{index}")),
        );
        stage.api.put(with(beside, pointer, value));
    }
    for (index, (pointer, value)) in malformed_services().into_iter().enumerate() {
        let name = format!("service-{index}");
        names.push((name.clone(), format!("{pointer}: {value}")));
        stage.api.put(slice("team-a", &name, &["10.9.1.1"]));
        stage.api.put(with(service("team-a", &name), pointer, value));
    }
    names
}

async fn assert_harmless(stage: &Stage, names: &[(String, String)]) {
    let mut faults = Vec::new();
    for (name, what) in names {
        match stage.proxy.connect(&format!("{name}.team-a:22")).await {
            Err(refused) if refused.status == 403 || refused.status == 503 => {}
            other => faults.push(format!("{what}: {other:?}")),
        }
    }
    for _ in 0..10 {
        match stage.proxy.connect("svc-a.team-a:22").await {
            Ok(tunnel) if tunnel.pod == "10.9.1.1:22".parse().unwrap() => {}
            other => faults.push(format!("the good one beside them: {other:?}")),
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_malformed_object_affects_no_other() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        // As events, and then in a list.
        let names = put_malformed(&stage);
        stage.serve("last", "10.9.1.8").await;
        assert_harmless(&stage, &names).await;
        stage.api.cut(Cut::Expired);
        stage.recovered("a list with malformed objects", "after").await;
        assert_harmless(&stage, &names).await;
        tunnel.echo().await.unwrap();
    });
}

#[test]
fn an_address_that_the_host_gets_later_is_no_longer_dialled() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let address = |verb| {
            let command = ["address", verb, "10.9.1.1/32", "dev", "lo"];
            let status = stage.lab.beside_proxy("ip").args(command).status();
            assert!(status.unwrap().success(), "ip address {verb}");
        };
        address("add");
        stage.proxy.refuses("svc-a.team-a:22", 503).await;
        address("delete");
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
    });
}

#[test]
fn a_slice_that_cannot_work_is_logged_and_counted() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        let table = [
            ("fqdn", "/addressType", json!("FQDN"), "unusable"),
            ("zero", "/ports/0/port", json!(0), "unusable"),
            ("large", "/ports/0/port", json!(65536), "unusable"),
            ("udp", "/ports/0/protocol", json!("UDP"), "unusable"),
            (
                "text",
                "/endpoints/0/addresses",
                json!(["host.example.com"]),
                "unusable",
            ),
            (
                "metadata",
                "/endpoints/0/addresses",
                json!(["169.254.169.254"]),
                "forbidden",
            ),
        ];
        for (name, pointer, value, _) in &table {
            stage
                .api
                .put(with(slice("team-a", name, &["10.9.1.1"]), pointer, value.clone()));
            stage.api.put(service("team-a", name));
        }
        stage.serve("last", "10.9.1.9").await;
        for (name, _, _, reason) in table {
            let label = format!("reason=\"{reason}\"");
            let expected = if reason == "unusable" { 5.0 } else { 1.0 };
            // The proxy counts and logs what it ignores after the allowlist has changed.
            eventually(&format!("{name} is counted"), async || {
                stage.proxy.metric("switchboard_endpoint_errors_total", &label).await == Some(expected)
            })
            .await;
            let names_it = |line: &str| line.contains("WARN") && line.contains(&format!("service=team-a/{name}"));
            eventually(&format!("{name} is in the log"), async || {
                stage.proxy.messages().lines().any(names_it)
            })
            .await;
        }
    });
}

/// The most memory that the proxy has had so far, in KiB.
fn peak(stage: &Stage) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", stage.proxy.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn annotations_of_a_tenant_keep_nobody_out_and_take_no_memory() {
    lab::run(async |lab| {
        let mut stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let before = peak(&stage);
        let text = "<\u{1}".repeat(60 << 10);
        for number in 0..35 {
            let name = format!("large-{number}");
            let annotations = json!({"a": text, "b": text, "c": text});
            stage
                .api
                .put(with(service("mallory", &name), "/metadata/annotations", annotations));
        }
        stage.serve("after-events", "10.9.1.2").await;
        let by_events = peak(&stage) - before;
        stage.restart_proxy().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        let by_list = peak(&stage).saturating_sub(before);
        eprintln!("figure: 43 MiB of annotations: {by_events} KiB more by events, {by_list} KiB by a list");
        assert!(
            by_events < MOST_GROWTH && by_list < MOST_GROWTH,
            "{by_events} {by_list}"
        );
        assert_eq!(stage.errors("malformed").await, 0.0);
    });
}

#[test]
fn an_object_that_is_too_large_is_left_out_alone_and_its_tenant_is_told() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("events", true.into())]).await;
        for (name, pod) in [("huge", "10.9.1.1"), ("sliced", "10.9.1.2"), ("svc-a", "10.9.1.3")] {
            stage.serve(name, pod).await;
        }
        let text = "x".repeat(5 << 20);
        for object in [service("team-a", "huge"), slice("team-a", "sliced", &["10.9.1.2"])] {
            stage.api.put(with(object, "/metadata/annotations", json!({"a": text})));
        }
        stage.proxy.refuses("huge.team-a:22", 403).await;
        stage.proxy.refuses("sliced.team-a:22", 503).await;
        stage.serve("as-event", "10.9.1.4").await;
        assert_eq!(stage.errors("malformed").await, 2.0, "the watches go on");
        let is_told = async || {
            let events = stage.api.objects("events", "team-a");
            events.iter().any(|event| {
                event["message"] == "No port reaches sshd: the Service is larger than 4 MiB, and not read"
                    && event["involvedObject"]["name"] == "huge"
            })
        };
        eventually("an Event", is_told).await;
        let names_it = |name: &str| {
            let messages = stage.proxy.messages();
            let mut lines = messages.lines();
            lines.any(|line| line.contains("ignoring an object of more than 4 MiB") && line.contains(name))
        };
        eventually("both are in the log", async || names_it("huge") && names_it("sliced-1")).await;
        stage.api.cut(Cut::Expired);
        stage.serve("in-a-list", "10.9.1.5").await;
        stage.proxy.refuses("huge.team-a:22", 403).await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.3:22").await;
        // Small again, they are back.
        stage.serve("huge", "10.9.1.1").await;
        stage.serve("sliced", "10.9.1.2").await;
    });
}

/// In KiB.
const MOST_GROWTH: u64 = 24 << 10;
