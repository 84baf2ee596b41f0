//! Services and slices in every shape, and what becomes of them: with a real API server or the fake one.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::cluster::{self, Ground};
use super::objects::{annotated, endpoint, service, slice, with};

/// The outcome of a CONNECT.
#[derive(Clone, Debug)]
enum Outcome {
    /// A tunnel to one of these.
    Pods(&'static [&'static str]),
    /// That status, and a phrase that contains this.
    Status(u16, &'static str),
    /// Any refusal.
    Refused,
}

use Outcome::{Pods, Refused, Status};

/// A Service `name`, its slices, what follows its name in a CONNECT, and what that comes to.
struct Shape {
    objects: Vec<Value>,
    name: &'static str,
    port: u16,
    outcome: Outcome,
}

/// A shape made of a Service and one slice with one ready pod.
fn shape(
    name: &'static str,
    port: u16,
    outcome: Outcome,
    service: impl Fn(Value) -> Value,
    slice: impl Fn(Value) -> Value,
) -> Shape {
    Shape {
        objects: vec![
            slice(super::objects::slice(NAMESPACE, name, &["10.9.1.1"])),
            service(super::objects::service(NAMESPACE, name)),
        ],
        name,
        port,
        outcome,
    }
}

fn same(object: Value) -> Value {
    object
}

fn ports(ports: Value) -> impl Fn(Value) -> Value {
    move |object| match object["kind"].as_str() {
        Some("Service") => with(object, "/spec/ports", ports.clone()),
        _ => with(object, "/ports", ports.clone()),
    }
}

fn endpoints(endpoints: &[(&str, &str)]) -> impl Fn(Value) -> Value {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(address, condition)| endpoint(address, condition))
        .collect();
    move |object| with(object, "/endpoints", json!(endpoints))
}

/// A Service with two ports, and a slice that knows both.
fn two(name: &'static str, port: u16, outcome: Outcome, (second, annotation): (&Value, &'static str)) -> Shape {
    let of_service = ports(json!([port_of("http", 80), second]));
    let of_slice = ports(json!([
        port_of("http", 8080),
        port_of(second["name"].as_str().unwrap(), 2222)
    ]));
    let annotate = move |object| match annotation {
        "" => object,
        port => annotated(object, &[("port", port)]),
    };
    shape(
        name,
        port,
        outcome,
        move |object| annotate(of_service(object)),
        of_slice,
    )
}

fn port_of(name: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "protocol": "TCP"})
}

fn shapes_of_two_ports() -> Vec<Shape> {
    let shell = port_of("shell", 2022);
    let with_protocol = with(shell.clone(), "/appProtocol", json!("ssh"));
    let there = || Pods(&["10.9.1.1:2222"]);
    vec![
        two("two-by-name", 2022, there(), (&shell, "shell")),
        two("two-by-name-alias", 22, there(), (&shell, "shell")),
        two("two-by-name-other", 80, Status(403, ""), (&shell, "shell")),
        two("two-by-number", 2022, there(), (&shell, "2022")),
        two("two-by-protocol", 2022, there(), (&with_protocol, "")),
        two("two-named-ssh", 2022, there(), (&port_of("ssh", 2022), "")),
        two("two-named-tcp-ssh", 2022, there(), (&port_of("tcp-ssh", 2022), "")),
        two("two-with-22", 22, there(), (&port_of("shell", 22), "")),
        two("two-of-neither", 80, Refused, (&port_of("https", 443), "")),
        two("two-asks-for-none", 2022, Refused, (&shell, "missing")),
    ]
}

fn shapes_of_one_port() -> Vec<Shape> {
    let named = json!([with(port_of("ssh", 22), "/targetPort", json!("sshd"))]);
    let far = json!([with(port_of("ssh", 2022), "/targetPort", json!(8022))]);
    let unnamed = json!([{"port": 22, "protocol": "TCP"}]);
    let udp = json!([with(port_of("ssh", 22), "/protocol", json!("UDP"))]);
    let resolved = |name, number| ports(json!([port_of(name, number)]));
    vec![
        shape(
            "only-port",
            2022,
            Pods(&["10.9.1.1:8022"]),
            ports(far),
            resolved("ssh", 8022),
        ),
        shape(
            "named-target",
            22,
            Pods(&["10.9.1.1:2222"]),
            ports(named),
            resolved("ssh", 2222),
        ),
        shape(
            "unnamed-port",
            22,
            Pods(&["10.9.1.1:2222"]),
            ports(unnamed),
            resolved("", 2222),
        ),
        shape("udp-only", 22, Refused, ports(udp.clone()), ports(udp)),
        shape("another-port", 23, Status(403, ""), same, same),
    ]
}

fn shapes_of_endpoints() -> Vec<Shape> {
    let of = |name, outcome, list: &[(&str, &str)]| shape(name, 22, outcome, same, endpoints(list));
    let first = || Pods(&["10.9.1.1:22"]);
    vec![
        of("ready", first(), &[("10.9.1.1", "ready")]),
        of("unknown", first(), &[("10.9.1.1", "unknown")]),
        of("none", Status(503, "no ready endpoint"), &[]),
        of("unready", Status(503, "0 of 1 ready"), &[("10.9.1.1", "unready")]),
        of("gone", Status(503, "no ready endpoint"), &[("10.9.1.1", "gone")]),
        of(
            "only-terminating",
            first(),
            &[("10.9.1.1", "serving"), ("10.9.1.2", "gone")],
        ),
        of(
            "rather-ready",
            first(),
            &[("10.9.1.2", "serving"), ("10.9.1.1", "ready"), ("10.9.1.3", "unready")],
        ),
        of(
            "two",
            Pods(&["10.9.1.1:22", "10.9.1.2:22"]),
            &[("10.9.1.1", "ready"), ("10.9.1.2", "ready")],
        ),
    ]
}

fn shapes_of_services() -> Vec<Shape> {
    let label = |value: Value| move |object| with(object, "/metadata/labels", value.clone());
    let headless = |object| with(object, "/spec/clusterIP", json!("None"));
    let external = |object| {
        let spec = json!({"type": "ExternalName", "externalName": "internal.example", "ports": [{"port": 22}]});
        with(object, "/spec", spec)
    };
    let mut shapes = vec![
        shape("plain", 22, Pods(&["10.9.1.1:22"]), same, same),
        shape("headless", 22, Pods(&["10.9.1.1:22"]), headless, same),
        shape("external", 22, Refused, external, same),
        shape("unlabelled", 22, Status(403, ""), label(json!({})), same),
        shape(
            "label-false",
            22,
            Status(403, ""),
            label(json!({"switchboard.dev/expose": "false"})),
            same,
        ),
    ];
    let mut sliceless = shape("no-slice", 22, Status(503, "no ready endpoint"), same, same);
    sliceless.objects.remove(0);
    let mut sole = shape("no-service", 22, Status(403, ""), same, same);
    sole.objects.remove(1);
    let mut six = shape("six", 22, Pods(&["[fd09::5]:22"]), same, same);
    six.objects[0] = slice(NAMESPACE, "six", &["fd09::5"]);
    // A pod of each slice; the port number may differ between them.
    let mut several = shape(
        "several",
        22,
        Pods(&["10.9.1.1:22", "10.9.1.2:2222", "[fd09::6]:22"]),
        same,
        same,
    );
    let second = slice(NAMESPACE, "several", &["10.9.1.2"]);
    let second = with(second, "/metadata/name", json!("several-2"));
    several.objects.push(with(second, "/ports/0/port", json!(2222)));
    several.objects.push(with(
        slice(NAMESPACE, "several", &["fd09::6"]),
        "/metadata/name",
        json!("several-3"),
    ));
    // Nothing listens at the port of the first.
    let mut next = shape(
        "next",
        22,
        Pods(&["10.9.1.2:22"]),
        same,
        ports(json!([{"name": "ssh", "port": 9, "protocol": "TCP"}])),
    );
    next.objects.push(with(
        slice(NAMESPACE, "next", &["10.9.1.2"]),
        "/metadata/name",
        json!("next-2"),
    ));
    shapes.extend([sliceless, sole, six, several, next]);
    shapes
}

/// Puts all of them there, and asks for each several times.
async fn play(ground: &Ground, shapes: Vec<Shape>) {
    for object in shapes.iter().flat_map(|shape| &shape.objects) {
        ground
            .apply(&with(object.clone(), "/metadata/namespace", json!(ground.here)))
            .await;
    }
    ground.apply(&slice(&ground.here, "the-last", &["10.9.1.9"])).await;
    ground.apply(&service(&ground.here, "the-last")).await;
    ground
        .proxy
        .reaches(&format!("the-last.{}:22", ground.here), "10.9.1.9:22")
        .await;
    let mut faults = Vec::new();
    for Shape {
        name, port, outcome, ..
    } in shapes
    {
        let authority = format!("{name}.{}:{port}", ground.here);
        let mut reached = HashSet::new();
        for _ in 0..6 {
            let answer = ground.proxy.connect(&authority).await;
            let is_right = match (&answer, &outcome) {
                (Ok(tunnel), Pods(pods)) => {
                    reached.insert(tunnel.pod.to_string());
                    pods.iter().any(|pod| *pod == tunnel.pod.to_string())
                }
                (Err(refused), Status(status, phrase)) => refused.status == *status && refused.phrase.contains(phrase),
                (Err(refused), Refused) => [403, 503].contains(&refused.status),
                _ => false,
            };
            if !is_right {
                faults.push(format!("{authority}: expected {outcome:?}, and it is {answer:?}"));
            }
        }
        if let Pods(pods) = outcome
            && reached.len() != pods.len()
        {
            faults.push(format!("{authority}: only {reached:?} of {pods:?}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_exposed_port_is_chosen_as_documented() {
    cluster::run(&[], async |ground| {
        let shapes = shapes_of_two_ports().into_iter().chain(shapes_of_one_port());
        play(ground, shapes.collect()).await;
    });
}

#[test]
fn endpoints_are_dialled_by_their_readiness() {
    cluster::run(&[], async |ground| play(ground, shapes_of_endpoints()).await);
}

#[test]
fn services_of_every_type_lead_to_their_endpoints() {
    cluster::run(&[], async |ground| play(ground, shapes_of_services()).await);
}

/// A placeholder for the namespace of the test.
const NAMESPACE: &str = "here";
