//! Decodes the objects of the cluster into the model. Decoding is lenient: null, absent and empty are the same, an
//! invalid item of a list is left out, and an invalid object is reported without an effect on others.

mod pod;
mod raw;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::de::DeserializeOwned;

pub(crate) use self::pod::WARM_POOL;
use self::pod::pod;
use self::raw::{LenientItem, MAX_NODE, RawMetadata, RawPort, SSH, owner, valid};
use super::annotations::{self, AnnotationError, ParsedAnnotations, PortSelector};
use super::model::{Endpoint, Key, Kind, Object, Service, ServicePort, Slice, SlicePort, State};
use crate::base::values::{is_label, is_object_name, shown};
use crate::kubernetes::api::list_watch::Metadata;

/// The result of [`decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodedObject {
    /// A valid object.
    Object(Key, Object),
    /// An object without an effect: an EndpointSlice without a Service, or a pod that is no target.
    Irrelevant(Key),
    /// An object that cannot be decoded, with its key if that is valid.
    Malformed(Option<Key>),
}

/// Decodes one object from JSON. `prefix` is that of annotation names, `selector` that of Services.
pub(crate) fn decode(kind: Kind, json: &str, prefix: &str, selector: &str) -> DecodedObject {
    let metadata = Metadata::read(json).ok();
    let uid = metadata.as_ref().and_then(|metadata| metadata.uid.clone());
    let Some(key) = metadata.and_then(|metadata| key(kind, metadata)) else {
        return DecodedObject::Malformed(None);
    };
    let object = match kind {
        Kind::Service => parse(json).map(|raw| Some(Object::Service(Box::new(service(raw, prefix))))),
        Kind::Slice => parse(json).map(|raw| slice(raw, selector).map(|slice| Object::Slice(Box::new(slice)))),
        // A longer name, or one with a dot, is no part of a name that clients can request.
        Kind::Pod if !key.pod_name().is_some_and(is_label) => Some(None),
        Kind::Pod => {
            parse(json).map(|raw| pod(raw, uid.unwrap_or_default(), prefix).map(|pod| Object::Pod(Box::new(pod))))
        }
        Kind::Namespace => Some(Some(Object::Namespace)),
    };
    match object {
        Some(Some(object)) => DecodedObject::Object(key, object),
        Some(None) => DecodedObject::Irrelevant(key),
        None => DecodedObject::Malformed(Some(key)),
    }
}

/// Returns the replacement of an object that is too long to be decoded: a Service without a port, which its tenant is
/// notified of; no EndpointSlice and no pod; a Namespace, as only its existence matters. `None` if it has no valid name.
pub(crate) fn too_long(kind: Kind, metadata: Metadata) -> Option<(Key, Option<Object>)> {
    let key = key(kind, metadata)?;
    let object = match kind {
        Kind::Service => Some(Object::Service(Box::new(Service {
            faults: vec![AnnotationError::without_port(TOO_LONG.to_owned())],
            ..Service::default()
        }))),
        Kind::Slice | Kind::Pod => None,
        Kind::Namespace => Some(Object::Namespace),
    };
    Some((key, object))
}

fn parse<T: DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}

fn key(kind: Kind, name: Metadata) -> Option<Key> {
    let key = Key {
        namespace: match kind {
            Kind::Service | Kind::Slice | Kind::Pod => name.namespace?,
            Kind::Namespace => Box::default(),
        },
        name: name.name?,
    };
    // Names are part of answers, log lines and metric labels. The API server accepts no other characters. With a dot in
    // the name of a Service or namespace, two Services could claim one `svc.ns`.
    let is_valid = match kind {
        Kind::Service => is_label(&key.name) && is_label(&key.namespace),
        Kind::Slice | Kind::Pod => is_object_name(&key.name) && is_label(&key.namespace),
        Kind::Namespace => is_label(&key.name),
    };
    match kind {
        Kind::Pod if is_valid => Some(Key::of_pod(&key.namespace, &key.name)),
        Kind::Service | Kind::Slice | Kind::Pod | Kind::Namespace => is_valid.then_some(key),
    }
}

#[derive(serde::Deserialize)]
struct RawService {
    metadata: Option<RawMetadata>,
    spec: Option<ServiceSpec>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceSpec {
    r#type: Option<String>,
    ports: Option<Vec<LenientItem<RawPort>>>,
    publish_not_ready_addresses: Option<bool>,
}

fn service(raw: RawService, prefix: &str) -> Service {
    let spec = raw.spec.unwrap_or_default();
    let RawMetadata {
        labels, annotations, ..
    } = raw.metadata.unwrap_or_default();
    let annotations = annotations.unwrap_or_default();
    let ParsedAnnotations {
        mut annotations,
        port,
        mut faults,
    } = annotations::parse(&annotations, prefix);
    if annotations.name.take().is_some() {
        let reason = "no effect: only a pod without a Service has a further name";
        faults.push(AnnotationError::new("name", reason.to_owned()));
    }
    let external = spec.r#type.as_deref() == Some("ExternalName");
    let ports: Vec<_> = valid(spec.ports).collect();
    Service {
        external,
        publishes_not_ready: spec.publish_not_ready_addresses.unwrap_or_default(),
        port: if external {
            None
        } else {
            choose(ports, port.as_ref(), &mut faults)
        },
        annotations,
        owner: owner(&mut labels.unwrap_or_default(), prefix),
        faults,
    }
}

/// Returns the port for SSH: the annotation's; else the only TCP port; else the first with `appProtocol: ssh`, then
/// with the name `ssh` or `tcp-ssh`, then with the number 22. `None` without such a port.
fn choose(
    ports: Vec<RawPort>,
    selector: Option<&PortSelector>,
    faults: &mut Vec<AnnotationError>,
) -> Option<ServicePort> {
    if ports.is_empty() && selector.is_none() {
        // A headless Service, the only kind that may have no ports: its pods are dialled at port 22.
        return Some(ServicePort {
            number: SSH,
            name: Box::default(),
            is_implied: true,
        });
    }
    let ports = ports.into_iter().filter_map(|raw| {
        let number = raw.tcp_number()?;
        let plain = ServicePort {
            number,
            name: raw.name.unwrap_or_default(),
            is_implied: false,
        };
        Some((plain, raw.app_protocol))
    });
    let ports: Vec<_> = ports.collect();
    let find = |wanted: &dyn Fn(&ServicePort) -> bool| ports.iter().find(|(port, _)| wanted(port));
    let named = selector.and_then(|asked| {
        let found = find(&|port| match asked {
            PortSelector::Number(number) => port.number == *number,
            PortSelector::Name(name) => port.name == *name,
        });
        if found.is_none() {
            let asked = match asked {
                PortSelector::Number(number) => number.to_string(),
                PortSelector::Name(name) => shown(name),
            };
            let reason = format!("expected {} (found `{asked}`)", described(&ports));
            faults.push(AnnotationError::new("port", reason));
        }
        found
    });
    let chosen = named
        .or_else(|| ports.first().filter(|_| ports.len() == 1))
        .or_else(|| ports.iter().find(|(_, protocol)| protocol.as_deref() == Some("ssh")))
        .or_else(|| find(&|port| matches!(&*port.name, "ssh" | "tcp-ssh")))
        .or_else(|| find(&|port| port.number == SSH));
    if chosen.is_none() {
        let reason = format!(
            "expected a port called `ssh`, or the annotation `port` with {}",
            described(&ports)
        );
        faults.push(AnnotationError::without_port(reason));
    }
    chosen.map(|(port, _)| port.clone())
}

/// Returns the first ports of a Service for an error.
fn described(ports: &[(ServicePort, Option<String>)]) -> String {
    let named = ports.iter().take(MAX_DESCRIBED).map(|(port, _)| match &*port.name {
        "" => port.number.to_string(),
        name => format!("{} ({})", port.number, shown(name)),
    });
    let more = if ports.len() > MAX_DESCRIBED { ", …" } else { "" };
    let named = named.collect::<Vec<_>>().join(", ") + more;
    match ports.is_empty() {
        true => "a TCP port of the Service, which has none".to_owned(),
        false => format!("one of the TCP ports of the Service: {named}"),
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSlice {
    metadata: Option<RawMetadata>,
    address_type: Option<String>,
    endpoints: Option<Vec<LenientItem<RawEndpoint>>>,
    ports: Option<Vec<LenientItem<RawPort>>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEndpoint {
    addresses: Option<Vec<Option<String>>>,
    conditions: Option<Conditions>,
    node_name: Option<Box<str>>,
    hostname: Option<Box<str>>,
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

/// Decodes an EndpointSlice; `None` for one without a Service.
fn slice(raw: RawSlice, selector: &str) -> Option<Slice> {
    let mut labels = raw.metadata?.labels?;
    // A label may have other characters, with which it could name a pod's target.
    let service = labels.remove(SERVICE_NAME)?.filter(|name| is_label(name))?;
    let other_label = other_label(&labels, selector);
    let (mut ports, mut unusable_ports) = (Vec::new(), Vec::new());
    for raw in valid(raw.ports) {
        let number = raw.tcp_number();
        let name = raw.name.unwrap_or_default();
        // A port without a number means all ports, which a Service never has.
        match number {
            Some(number) => ports.push(SlicePort { name, number }),
            None => unusable_ports.push(name),
        }
    }
    // Not FQDN: its names would have to be resolved, and could point anywhere.
    let is_of_type = |address: IpAddr| match raw.address_type.as_deref() {
        Some("IPv4") => address.is_ipv4(),
        Some("IPv6") => address.is_ipv6(),
        Some(_) | None => false,
    };
    let endpoints = valid(raw.endpoints).map(|raw| endpoint(raw).filter(|known| is_of_type(known.address)));
    let endpoints: Vec<Option<Endpoint>> = endpoints.collect();
    Some(Slice {
        service: service.into(),
        ports: ports.into(),
        unusable_ports: unusable_ports.into(),
        has_unusable_address: endpoints.iter().any(Option::is_none),
        endpoints: endpoints.into_iter().flatten().collect(),
        other_label,
    })
}

/// Returns a label that was perhaps meant for the selector: its name is that of the selector's first label, in upper or lower
/// case or with another prefix, and the selector does not have it with this value. Empty if there is none.
fn other_label(labels: &BTreeMap<String, Option<String>>, selector: &str) -> Box<str> {
    let is_of_key = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    let name = |key: &str| key.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let keys = selector.split(|character| !is_of_key(character));
    let wanted = keys.map(name).find(|key| !key.is_empty()).unwrap_or_default();
    let named = labels.iter().filter(|(key, _)| name(key) == wanted);
    let mut texts = named.map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or_default()));
    let other = texts.find(|text| !selector.split([',', ' ', '(', ')']).any(|part| part == text));
    other.map(|text| shown(&text).into()).unwrap_or_default()
}

fn endpoint(raw: RawEndpoint) -> Option<Endpoint> {
    let address: IpAddr = raw.addresses.as_ref()?.iter().flatten().next()?.parse().ok()?;
    let Conditions {
        ready,
        serving,
        terminating,
    } = raw.conditions.unwrap_or_default();
    let state = match (ready, serving, terminating) {
        // Null means unknown, which the API says to treat as ready.
        (None | Some(true), _, _) => State::Ready,
        (Some(false), Some(true), Some(true)) => State::Terminating,
        (Some(false), _, _) => State::NotReady,
    };
    // A node's name is a DNS subdomain: a longer string is invalid.
    let node = raw.node_name.filter(|name| name.len() <= MAX_NODE);
    Some(Endpoint {
        address,
        state,
        node: node.unwrap_or_default(),
        hostname: raw.hostname.filter(|name| is_label(name)).unwrap_or_default(),
    })
}

const TOO_LONG: &str = "the Service is larger than 4 MiB, and not read";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The most ports in an error.
const MAX_DESCRIBED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::annotations::Annotations;
    use crate::kubernetes::objects::model::Pod;
    use serde_json::{Value, json};

    fn decoded(kind: Kind, json: &Value) -> DecodedObject {
        decode(
            kind,
            &json.to_string(),
            "switchboard.dev/",
            "switchboard.dev/expose=true",
        )
    }

    fn service_of(spec: &Value, annotations: &Value) -> Service {
        let json = json!({"metadata": {"name": "a", "namespace": "n", "annotations": annotations}, "spec": spec});
        match decoded(Kind::Service, &json) {
            DecodedObject::Object(_, Object::Service(service)) => *service,
            other @ (DecodedObject::Object(..) | DecodedObject::Irrelevant(_) | DecodedObject::Malformed(_)) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn a_label_names_the_owner_of_a_service() {
        for (label, expected) in [
            (json!("box"), Some("box")),
            (json!("a/b"), None),
            (json!(""), None),
            (json!(null), None),
        ] {
            let labels = json!({"switchboard.dev/owner": label, "other/owner": "x"});
            let json = json!({"metadata": {"name": "a", "namespace": "n", "labels": labels}, "spec": {}});
            let DecodedObject::Object(_, Object::Service(service)) = decoded(Kind::Service, &json) else {
                panic!("{json}");
            };
            assert_eq!(service.owner.as_deref(), expected, "{label}");
            let text = serde_json::to_string(&service).unwrap();
            assert_eq!(serde_json::from_str::<Service>(&text).unwrap(), *service);
        }
    }

    #[test]
    fn the_port_is_chosen_by_the_first_rule_that_fits() {
        let asked = |port: &str| json!({"switchboard.dev/port": port});
        let two = json!([{"port": 80, "name": "http"}, {"port": 2222, "name": "x"}]);
        let table = [
            (json!([{"port": 2222, "targetPort": 22}]), json!(null), Some(2222)),
            (two.clone(), asked("2222"), Some(2222)),
            (two.clone(), asked("x"), Some(2222)),
            (two.clone(), asked("80"), Some(80)),
            (two.clone(), json!(null), None),
            (two, asked("y"), None),
            (
                json!([{"port": 1, "name": "ssh"}, {"port": 2, "appProtocol": "ssh"}]),
                json!({}),
                Some(2),
            ),
            (
                json!([{"port": 80, "name": "http"}, {"port": 2, "name": "tcp-ssh"}]),
                json!({}),
                Some(2),
            ),
            (
                json!([{"port": 80, "name": "http"}, {"port": 22, "name": "x"}]),
                json!({}),
                Some(22),
            ),
            (json!([{"port": 22, "protocol": "UDP"}]), json!({}), None),
            (
                json!([{"port": 22, "protocol": "UDP"}, {"port": 23, "protocol": "TCP"}, null]),
                json!({}),
                Some(23),
            ),
            (json!([{"port": 0}, {"port": -1}, {"port": 70000}, {}]), json!({}), None),
            (json!(null), json!({}), Some(22)),
            (json!([]), asked("http"), None),
        ];
        for (ports, annotations, expected) in table {
            let service = service_of(&json!({"ports": ports}), &annotations);
            assert_eq!(service.port.map(|port| port.number), expected, "{ports} {annotations}");
            assert_eq!(service.faults.is_empty(), expected.is_some(), "{ports}");
        }
        // With a wrong annotation the next rule applies.
        let wrong = service_of(&json!({"ports": [{"port": 22}]}), &asked("23"));
        assert_eq!((wrong.port.map(|port| port.number), wrong.faults.len()), (Some(22), 1));
    }

    #[test]
    fn an_object_that_is_too_long_is_a_service_without_a_port_no_slice_or_a_namespace() {
        let metadata = || Metadata::read(r#"{"metadata": {"name": "a", "namespace": "n"}}"#).unwrap();
        let (key, service) = too_long(Kind::Service, metadata()).unwrap();
        let Some(Object::Service(service)) = service else {
            panic!()
        };
        assert_eq!(
            (key.to_string(), service.port, service.faults.len()),
            ("n/a".to_owned(), None, 1)
        );
        assert!(service.faults[0].is_without_port);
        assert_eq!(too_long(Kind::Slice, metadata()).unwrap().1, None);
        assert_eq!(
            too_long(Kind::Namespace, metadata()).unwrap().1,
            Some(Object::Namespace)
        );
        assert!(too_long(Kind::Service, Metadata::default()).is_none());
    }

    #[test]
    fn a_label_that_resembles_the_selected_one_is_kept() {
        let label = |selector: &str, key: &str, value: &str| {
            let labels = [(key.to_owned(), Some(value.to_owned())), ("app".to_owned(), None)].into();
            other_label(&labels, selector).to_string()
        };
        for (selector, key, value, kept) in [
            ("switchboard.dev/expose=true", "switchboard.dev/expose", "yes", true),
            ("switchboard.dev/expose=true", "switchboard.dev/expose", "True", true),
            ("switchboard.dev/expose=true", "switchboard.io/expose", "true", true),
            ("switchboard.dev/expose=true", "expose", "true", true),
            ("switchboard.dev/expose=true", "switchboard.dev/Expose", "true", true),
            ("switchboard.dev/expose=true", "switchboard.dev/expose", "true", false),
            ("switchboard.dev/expose=true", "switchboard.dev/exposed", "true", false),
            ("!hidden, tier in (ssh, dev)", "Hidden", "x", true),
            ("tier in (ssh, dev)", "tier", "web", true),
        ] {
            let expected = if kept { format!("{key}={value}") } else { String::new() };
            assert_eq!(label(selector, key, value), expected, "{selector}");
        }
    }

    #[test]
    fn an_error_of_a_port_says_what_was_found_and_what_is_expected() {
        let ports = json!({"ports": [{"port": 80, "name": "http"}, {"port": 81}, {"port": 53, "protocol": "UDP"}]});
        let found = |annotations: &Value| -> Vec<String> {
            let faults = service_of(&ports, annotations).faults;
            faults.into_iter().map(|fault| fault.reason.into()).collect()
        };
        let expected = "one of the TCP ports of the Service: 80 (http), 81";
        let without = format!("expected a port called `ssh`, or the annotation `port` with {expected}");
        assert_eq!(found(&json!({})), [&*without]);
        let named = format!("expected {expected} (found `ssh2`)");
        assert_eq!(found(&json!({"switchboard.dev/port": "ssh2"})), [named, without]);
    }

    #[test]
    fn a_service_is_decoded_whatever_is_null() {
        let minimal = service_of(&json!(null), &json!(null));
        assert_eq!(minimal.annotations, Annotations::default());
        let json = json!({
            "metadata": {
                "name": "svc-a", "namespace": "team-a",
                "annotations": {"switchboard.dev/upload": "1MiB/s", "other": null},
            },
            "spec": {
                "type": "ClusterIP", "publishNotReadyAddresses": true,
                "ports": [{"name": null, "port": 22, "targetPort": "ssh", "protocol": null, "appProtocol": null}],
            },
            "status": {"loadBalancer": {}},
        });
        let DecodedObject::Object(key, Object::Service(service)) = decoded(Kind::Service, &json) else {
            panic!()
        };
        assert_eq!(key.to_string(), "team-a/svc-a");
        assert!(service.publishes_not_ready && !service.external);
        assert_eq!(service.annotations.upload, Some("1MiB/s".parse().unwrap()));
        let port = service.port.unwrap();
        assert_eq!((port.number, &*port.name, port.is_implied), (22, "", false));
    }

    #[test]
    fn an_external_name_service_has_no_port() {
        let external = service_of(
            &json!({"type": "ExternalName", "externalName": "metadata.internal"}),
            &json!({}),
        );
        assert!(external.external && external.port.is_none() && external.faults.is_empty());
    }

    fn slice_of(json: &Value) -> Slice {
        let mut json = json.clone();
        json["metadata"] = json!({"name": "s", "namespace": "n", "labels": {"kubernetes.io/service-name": "a"}});
        if json["addressType"].is_null() {
            json["addressType"] = json!("IPv4");
        }
        match decoded(Kind::Slice, &json) {
            DecodedObject::Object(_, Object::Slice(slice)) => *slice,
            other @ (DecodedObject::Object(..) | DecodedObject::Irrelevant(_) | DecodedObject::Malformed(_)) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn the_conditions_of_an_endpoint_give_its_state() {
        let condition = |ready: Value, serving: Value, terminating: Value| {
            let json = json!({"endpoints": [{
                "addresses": ["10.0.0.1", "10.0.0.2"],
                "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            }]});
            slice_of(&json).endpoints[0].state
        };
        let (yes, no, nil) = (json!(true), json!(false), json!(null));
        assert_eq!(condition(json!(null), json!(null), json!(null)), State::Ready);
        assert_eq!(condition(yes.clone(), nil.clone(), nil), State::Ready);
        assert_eq!(condition(no.clone(), yes.clone(), yes.clone()), State::Terminating);
        assert_eq!(condition(no.clone(), no.clone(), yes.clone()), State::NotReady);
        assert_eq!(condition(no.clone(), yes, no), State::NotReady);
        assert_eq!(
            slice_of(&json!({"endpoints": [{"addresses": ["10.0.0.1"]}]})).endpoints[0].state,
            State::Ready
        );
    }

    #[test]
    fn invalid_items_of_a_slice_are_left_out() {
        let slice = slice_of(&json!({
            "addressType": "IPv4",
            "endpoints": [
                null, {}, {"addresses": null}, {"addresses": []}, {"addresses": ["host.example.com"]},
                {"addresses": ["010.0.0.1"]}, {"addresses": ["10.0.0.1"], "conditions": null}, {"addresses": ["fd00::1"]},
                {"addresses": ["10.0.0.2"], "conditions": ["ready"]}, "x", [["10.0.0.3"]],
            ],
            "ports": [
                null, {"port": 0}, {"port": -1}, {"port": 70000}, {"port": 53, "protocol": "UDP"},
                {"name": "ssh", "port": 22, "protocol": "TCP"}, {"name": null, "port": null}, {"port": "22"}, ["x", 22],
            ],
        }));
        assert_eq!(slice.endpoints.len(), 1);
        let ports: Vec<_> = slice.ports.iter().map(|port| (&*port.name, port.number)).collect();
        assert_eq!(ports, [("ssh", 22)]);
        assert!(slice.has_unusable_address);
        assert_eq!(*slice.unusable_ports, vec![Box::<str>::default(); 5]);
        let empty = slice_of(&json!({"endpoints": null, "ports": null}));
        assert_eq!((empty.ports.len(), empty.has_unusable_address), (0, false));
        for other in ["FQDN", "IPv6", "IPv5", ""] {
            let other = slice_of(&json!({"addressType": other, "endpoints": [{"addresses": ["10.0.0.1"]}]}));
            assert!(other.endpoints.is_empty() && other.has_unusable_address);
        }
    }

    fn pod_of(json: &Value) -> Option<Pod> {
        match decoded(Kind::Pod, json) {
            DecodedObject::Object(key, Object::Pod(pod)) => {
                assert_eq!(key.to_string(), "n/a._pod");
                Some(*pod)
            }
            DecodedObject::Irrelevant(_) => None,
            other @ (DecodedObject::Object(..) | DecodedObject::Malformed(_)) => panic!("{other:?}"),
        }
    }

    fn running() -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u-1", "labels": {"switchboard.dev/expose": "true"}},
            "spec": {"nodeName": "worker", "containers": [{"name": "main", "image": "sshd"}]},
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "x"}, {}],
                "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
            },
        })
    }

    fn changed(pointer: &str, value: Value) -> Value {
        let mut pod = running();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        pod
    }

    #[test]
    fn a_pod_is_its_addresses_at_its_port_while_it_is_ready() {
        let pod = pod_of(&running()).unwrap();
        let known: Vec<_> = pod
            .slice
            .endpoints
            .iter()
            .map(|own| (own.address.to_string(), own.state, &*own.node))
            .collect();
        let at = |address: &str, state| (address.to_owned(), state, "worker");
        assert_eq!(known, [at("10.0.0.1", State::Ready), at("fd00::1", State::Ready)]);
        assert_eq!(
            (&*pod.uid, pod.slice.ports[0].number, pod.service.faults.len()),
            ("u-1", 22, 0)
        );
        for (pointer, value, state) in [
            (
                "/status/conditions",
                json!([{"type": "Ready", "status": "False"}]),
                State::NotReady,
            ),
            ("/status/conditions", json!(null), State::NotReady),
            (
                "/metadata/deletionTimestamp",
                json!("2026-11-28T10:00:00Z"),
                State::Terminating,
            ),
        ] {
            let pod = pod_of(&changed(pointer, value)).unwrap();
            assert_eq!(pod.slice.endpoints[0].state, state, "{pointer}");
        }
        let waiting = pod_of(&changed("/status", json!({"phase": "Pending"}))).unwrap();
        assert!(waiting.slice.endpoints.is_empty());
    }

    #[test]
    fn the_port_of_a_pod_is_that_of_its_annotation_or_the_one_named_ssh_or_22() {
        let ports = json!([{"ports": [
            {"containerPort": 53, "name": "ssh", "protocol": "UDP"}, {"containerPort": 2222, "name": "ssh"},
            {"containerPort": 80, "name": "web"}, {"containerPort": 0, "name": "bad"}, "x", {"containerPort": 90},
        ]}]);
        for (containers, annotation, expected, faults) in [
            (&ports, json!(null), 2222, 0),
            (&ports, json!("80"), 80, 0),
            (&ports, json!("8022"), 8022, 0),
            (&ports, json!("web"), 80, 0),
            (&ports, json!("bad"), 2222, 1),
            (&json!(null), json!(null), 22, 0),
            (&json!(null), json!("ssh"), 22, 1),
        ] {
            let mut json = changed("/spec/containers", containers.clone());
            json["metadata"]["annotations"] = json!({});
            if !annotation.is_null() {
                json["metadata"]["annotations"]["switchboard.dev/port"] = annotation.clone();
            }
            let pod = pod_of(&json).unwrap();
            assert_eq!(pod.service.port.as_ref().unwrap().number, expected, "{annotation}");
            assert_eq!(
                (pod.slice.ports[0].number, pod.service.faults.len()),
                (expected, faults),
                "{annotation}"
            );
        }
    }

    #[test]
    fn the_port_of_a_pod_may_be_that_of_a_sidecar() {
        for (policy, expected) in [(json!("Always"), 2222), (json!("OnFailure"), 22), (json!(null), 22)] {
            let ports = json!([{"containerPort": 2222, "name": "ssh"}]);
            let containers = json!([{"restartPolicy": policy, "ports": ports}]);
            let pod = pod_of(&changed("/spec/initContainers", containers)).unwrap();
            assert_eq!(pod.slice.ports[0].number, expected, "{policy}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_or_is_of_a_warm_pool_or_in_the_network_of_its_node_is_no_target() {
        for (pointer, value) in [
            ("/status/phase", json!("Succeeded")),
            ("/status/phase", json!("Failed")),
            ("/spec/hostNetwork", json!(true)),
            ("/metadata/labels", json!({"agents.x-k8s.io/warm-pool-sandbox": "3f2a"})),
        ] {
            assert_eq!(pod_of(&changed(pointer, value)), None, "{pointer}");
        }
        let named = |name: &str| decoded(Kind::Pod, &changed("/metadata/name", json!(name)));
        for name in ["A", ""] {
            assert_eq!(named(name), DecodedObject::Malformed(None));
        }
        for name in ["a.b", &*"a".repeat(64)] {
            let key = Key::new("n", &format!("{name}._pod"));
            assert_eq!(
                named(name),
                DecodedObject::Irrelevant(key),
                "a legal name, which no client can request"
            );
        }
    }

    #[test]
    fn what_starts_or_serves_a_service_has_no_effect_on_a_pod() {
        let annotations = json!({"switchboard.dev/wake": "deployment/a", "switchboard.dev/dials-in": "true"});
        let pod = pod_of(&changed("/metadata/annotations", annotations)).unwrap();
        let keys: Vec<_> = pod.service.faults.iter().map(|fault| &*fault.key).collect();
        assert_eq!(keys, ["wake", "dials-in"]);
        assert_eq!(
            (pod.service.annotations.wake, pod.service.annotations.dials_in),
            (None, None)
        );
    }

    #[test]
    fn no_slice_belongs_to_a_pod_without_a_service() {
        let labels = json!({"kubernetes.io/service-name": "a._pod"});
        let json = json!({"metadata": {"name": "x", "namespace": "n", "labels": labels}, "addressType": "IPv4"});
        assert!(matches!(decoded(Kind::Slice, &json), DecodedObject::Irrelevant(_)));
    }

    #[test]
    fn a_malformed_object_differs_from_an_irrelevant_one() {
        let named = |name: &str| json!({"metadata": {"name": name, "namespace": "n"}});
        for name in ["", "A", "a b", "a\r\nb", "a/b", "\u{e9}"] {
            assert_eq!(
                decoded(Kind::Service, &named(name)),
                DecodedObject::Malformed(None),
                "{name}"
            );
        }
        assert_eq!(decoded(Kind::Service, &json!("x")), DecodedObject::Malformed(None));
        assert_eq!(decoded(Kind::Service, &json!({})), DecodedObject::Malformed(None));
        assert!(matches!(
            decoded(Kind::Slice, &named("a")),
            DecodedObject::Irrelevant(_)
        ));
        let json = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}});
        for (name, namespace) in [("a.b", "n"), ("a", "n.m")] {
            assert_eq!(
                decoded(Kind::Service, &json(name, namespace)),
                DecodedObject::Malformed(None)
            );
        }
        assert_eq!(decoded(Kind::Slice, &json("a", "n.m")), DecodedObject::Malformed(None));
        assert_eq!(
            decoded(Kind::Namespace, &json("n.m", "")),
            DecodedObject::Malformed(None)
        );
        assert!(matches!(
            decoded(Kind::Slice, &json("a.b", "n")),
            DecodedObject::Irrelevant(_)
        ));
        let mut wrong = named("a");
        wrong["spec"] = json!({"ports": "all"});
        assert!(matches!(
            decoded(Kind::Service, &wrong),
            DecodedObject::Malformed(Some(_))
        ));
        let namespace = decoded(Kind::Namespace, &json!({"metadata": {"name": "team-a"}}));
        assert!(matches!(namespace, DecodedObject::Object(_, Object::Namespace)));
    }
}
