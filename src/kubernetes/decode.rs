//! Reads the cluster's objects and keeps what matters of each. It is lenient: null, absent and empty are the same, and
//! an object that makes no sense is reported without harm to its neighbours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::UNIX_EPOCH;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::value::RawValue;

use super::annotations::{self, AnnotationFault, Parsed, PortSelector};
use super::model::{Endpoint, Key, Kind, Object, ServiceFacts, ServicePort, SliceFacts, SlicePort, State};

/// What an object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reduced {
    /// It counts.
    Object(Key, Object),
    /// It is there, and does not count.
    Nothing(Key),
    /// It is there, and makes no sense.
    Malformed(Option<Key>),
}

/// Reduces one object of that kind, given as JSON.
pub(crate) fn reduce(kind: Kind, json: &str, prefix: &str) -> Reduced {
    let Ok(Named { metadata }) = serde_json::from_str(json) else {
        return Reduced::Malformed(None);
    };
    let Some(key) = metadata.and_then(|metadata| key(kind, metadata)) else {
        return Reduced::Malformed(None);
    };
    let object = match kind {
        Kind::Service => parse(json).map(|raw| Some(Object::Service(Box::new(service(raw, prefix))))),
        Kind::Slice => parse(json).map(|raw| slice(raw).map(|facts| Object::Slice(Box::new(facts)))),
        Kind::Namespace => Some(Some(Object::Namespace)),
    };
    match object {
        Some(Some(object)) => Reduced::Object(key, object),
        Some(None) => Reduced::Nothing(key),
        None => Reduced::Malformed(Some(key)),
    }
}

fn parse<T: DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}

/// An item of a list that may be anything: one that makes no sense is no reason to do without the others.
struct Lenient<T>(Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let item = <&RawValue>::deserialize(deserializer)?;
        // Serde would take the items of a list for the fields of a struct.
        let is_map = item.get().starts_with('{');
        Ok(Self(parse(item.get()).filter(|_| is_map)))
    }
}

fn sound<T>(items: Option<Vec<Lenient<T>>>) -> impl Iterator<Item = T> {
    items.unwrap_or_default().into_iter().filter_map(|Lenient(item)| item)
}

#[derive(serde::Deserialize)]
struct Named {
    metadata: Option<Name>,
}

#[derive(serde::Deserialize)]
struct Name {
    name: Option<Box<str>>,
    namespace: Option<Box<str>>,
}

fn key(kind: Kind, name: Name) -> Option<Key> {
    let key = Key {
        namespace: match kind {
            Kind::Service | Kind::Slice => name.namespace?,
            Kind::Namespace => Box::default(),
        },
        name: name.name?,
    };
    // Names go into answers, log lines and metric labels. The API server lets no others pass.
    let is_name = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        (1..=253).contains(&text.len()) && text.bytes().all(plain)
    };
    let sound = is_name(&key.name) && (kind == Kind::Namespace || is_name(&key.namespace));
    sound.then_some(key)
}

#[derive(serde::Deserialize)]
struct RawService {
    metadata: Option<Metadata>,
    spec: Option<ServiceSpec>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    creation_timestamp: Option<String>,
    labels: Option<BTreeMap<String, Option<String>>>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceSpec {
    r#type: Option<String>,
    ports: Option<Vec<Lenient<RawServicePort>>>,
    publish_not_ready_addresses: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawServicePort {
    name: Option<Box<str>>,
    port: Option<i64>,
    protocol: Option<String>,
    app_protocol: Option<String>,
}

fn service(raw: RawService, prefix: &str) -> ServiceFacts {
    let spec = raw.spec.unwrap_or_default();
    let (created, annotations) = raw.metadata.map_or((u64::MAX, BTreeMap::new()), |metadata| {
        (created(&metadata), metadata.annotations.unwrap_or_default())
    });
    let Parsed {
        annotations,
        port,
        mut faults,
    } = annotations::parse(&annotations, prefix);
    let external = spec.r#type.as_deref() == Some("ExternalName");
    let ports: Vec<_> = sound(spec.ports).collect();
    ServiceFacts {
        created,
        external,
        publishes_not_ready: spec.publish_not_ready_addresses.unwrap_or_default(),
        port: if external {
            None
        } else {
            choose(ports, port.as_ref(), &mut faults)
        },
        annotations,
        faults,
    }
}

fn created(metadata: &Metadata) -> u64 {
    metadata
        .creation_timestamp
        .as_deref()
        .and_then(|text| humantime::parse_rfc3339(text).ok())
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(u64::MAX, |since| since.as_secs())
}

/// The port for SSH: the annotation's, else the only one, else the one that says so, else 22.
fn choose(
    ports: Vec<RawServicePort>,
    asked: Option<&PortSelector>,
    faults: &mut Vec<AnnotationFault>,
) -> Option<ServicePort> {
    if ports.is_empty() && asked.is_none() {
        // Only a headless Service has none, and its pods are dialled as they are.
        return Some(ServicePort {
            number: SSH,
            name: Box::default(),
            is_implied: true,
        });
    }
    let ports: Vec<_> = ports.into_iter().filter_map(tcp_port).collect();
    let find = |wanted: &dyn Fn(&TcpPort) -> bool| ports.iter().find(|port| wanted(port));
    let named = asked.and_then(|asked| {
        let found = find(&|port| match asked {
            PortSelector::Number(number) => port.plain.number == *number,
            PortSelector::Name(name) => port.plain.name == *name,
        });
        if found.is_none() {
            faults.push(AnnotationFault {
                key: "port".into(),
                reason: "the Service has no such TCP port".into(),
            });
        }
        found
    });
    let chosen = named
        .or_else(|| ports.first().filter(|_| ports.len() == 1))
        .or_else(|| find(&|port| port.speaks_ssh))
        .or_else(|| find(&|port| matches!(&*port.plain.name, "ssh" | "tcp-ssh")))
        .or_else(|| find(&|port| port.plain.number == SSH));
    if chosen.is_none() {
        faults.push(AnnotationFault {
            key: "port".into(),
            reason: format!("needed: none of the {} TCP ports of the Service says SSH", ports.len()).into(),
        });
    }
    chosen.map(|port| port.plain.clone())
}

struct TcpPort {
    plain: ServicePort,
    speaks_ssh: bool,
}

fn tcp_port(raw: RawServicePort) -> Option<TcpPort> {
    if !is_tcp(raw.protocol.as_deref()) {
        return None;
    }
    let number = port_number(raw.port?)?;
    Some(TcpPort {
        plain: ServicePort {
            number,
            name: raw.name.unwrap_or_default(),
            is_implied: false,
        },
        speaks_ssh: raw.app_protocol.as_deref() == Some("ssh"),
    })
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol.is_empty() || protocol == "TCP")
}

fn port_number(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number > 0)
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSlice {
    metadata: Option<Metadata>,
    address_type: Option<String>,
    endpoints: Option<Vec<Lenient<RawEndpoint>>>,
    ports: Option<Vec<Lenient<RawSlicePort>>>,
}

#[derive(serde::Deserialize)]
struct RawEndpoint {
    addresses: Option<Vec<Option<String>>>,
    conditions: Option<Conditions>,
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(serde::Deserialize)]
struct RawSlicePort {
    name: Option<Box<str>>,
    port: Option<i64>,
    protocol: Option<String>,
}

/// `None` for a slice of no Service.
fn slice(raw: RawSlice) -> Option<SliceFacts> {
    let mut labels = raw.metadata?.labels?;
    let service = labels.remove(SERVICE_NAME)??;
    // Of FQDN the names would have to be resolved, and lead anywhere.
    let is_v6 = match raw.address_type.as_deref() {
        Some("IPv4") => false,
        Some("IPv6") => true,
        Some(_) | None => {
            return Some(SliceFacts {
                service: service.into(),
                ..SliceFacts::default()
            });
        }
    };
    Some(SliceFacts {
        service: service.into(),
        ports: sound(raw.ports).filter_map(slice_port).collect(),
        endpoints: sound(raw.endpoints)
            .filter_map(|raw| endpoint(&raw))
            .filter(|endpoint| endpoint.address.is_ipv6() == is_v6)
            .collect(),
    })
}

fn slice_port(raw: RawSlicePort) -> Option<SlicePort> {
    if !is_tcp(raw.protocol.as_deref()) {
        return None;
    }
    Some(SlicePort {
        name: raw.name.unwrap_or_default(),
        // Of a Service's slices every port has a number.
        number: port_number(raw.port?)?,
    })
}

fn endpoint(raw: &RawEndpoint) -> Option<Endpoint> {
    let address: IpAddr = raw.addresses.as_ref()?.iter().flatten().next()?.parse().ok()?;
    let Conditions {
        ready,
        serving,
        terminating,
    } = raw.conditions.unwrap_or_default();
    let state = match (ready, serving, terminating) {
        // Nil means unknown, which counts as ready.
        (None | Some(true), _, _) => State::Ready,
        (Some(false), Some(true), Some(true)) => State::Leaving,
        (Some(false), _, _) => State::NotReady,
    };
    Some(Endpoint { address, state })
}

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SSH: u16 = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::annotations::Annotations;
    use serde_json::{Value, json};

    fn reduced(kind: Kind, json: &Value) -> Reduced {
        reduce(kind, &json.to_string(), "switchboard.dev/")
    }

    fn facts(spec: &Value, annotations: &Value) -> ServiceFacts {
        let json = json!({"metadata": {"name": "a", "namespace": "n", "annotations": annotations}, "spec": spec});
        match reduced(Kind::Service, &json) {
            Reduced::Object(_, Object::Service(facts)) => *facts,
            other @ (Reduced::Object(..) | Reduced::Nothing(_) | Reduced::Malformed(_)) => panic!("{other:?}"),
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
            let facts = facts(&json!({"ports": ports}), &annotations);
            assert_eq!(facts.port.map(|port| port.number), expected, "{ports} {annotations}");
            assert_eq!(facts.faults.is_empty(), expected.is_some(), "{ports}");
        }
        // The wrong port is a fault, and the next rule applies.
        let wrong = facts(&json!({"ports": [{"port": 22}]}), &asked("23"));
        assert_eq!((wrong.port.map(|port| port.number), wrong.faults.len()), (Some(22), 1));
    }

    #[test]
    fn a_service_is_read_with_all_that_may_be_null() {
        let minimal = facts(&json!(null), &json!(null));
        assert_eq!(minimal.created, u64::MAX);
        assert_eq!(minimal.annotations, Annotations::default());
        let json = json!({
            "metadata": {
                "name": "svc-a", "namespace": "team-a", "creationTimestamp": "1970-01-01T00:01:00Z",
                "annotations": {"switchboard.dev/upload": "1MiB/s", "other": null},
            },
            "spec": {
                "type": "ClusterIP", "publishNotReadyAddresses": true,
                "ports": [{"name": null, "port": 22, "targetPort": "ssh", "protocol": null, "appProtocol": null}],
            },
            "status": {"loadBalancer": {}},
        });
        let Reduced::Object(key, Object::Service(facts)) = reduced(Kind::Service, &json) else {
            panic!()
        };
        assert_eq!(key.to_string(), "team-a/svc-a");
        assert_eq!(facts.created, 60);
        assert!(facts.publishes_not_ready && !facts.external);
        assert_eq!(facts.annotations.upload, Some("1MiB/s".parse().unwrap()));
        let port = facts.port.unwrap();
        assert_eq!((port.number, &*port.name, port.is_implied), (22, "", false));
    }

    #[test]
    fn an_external_name_leads_nowhere() {
        let external = facts(
            &json!({"type": "ExternalName", "externalName": "metadata.internal"}),
            &json!({}),
        );
        assert!(external.external && external.port.is_none() && external.faults.is_empty());
    }

    fn slice_of(json: &Value) -> SliceFacts {
        let mut json = json.clone();
        json["metadata"] = json!({"name": "s", "namespace": "n", "labels": {"kubernetes.io/service-name": "a"}});
        if json["addressType"].is_null() {
            json["addressType"] = json!("IPv4");
        }
        match reduced(Kind::Slice, &json) {
            Reduced::Object(_, Object::Slice(facts)) => *facts,
            other @ (Reduced::Object(..) | Reduced::Nothing(_) | Reduced::Malformed(_)) => panic!("{other:?}"),
        }
    }

    #[test]
    fn endpoints_have_the_state_that_their_conditions_mean() {
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
        assert_eq!(condition(no.clone(), yes.clone(), yes.clone()), State::Leaving);
        assert_eq!(condition(no.clone(), no.clone(), yes.clone()), State::NotReady);
        assert_eq!(condition(no.clone(), yes, no), State::NotReady);
        assert_eq!(
            slice_of(&json!({"endpoints": [{"addresses": ["10.0.0.1"]}]})).endpoints[0].state,
            State::Ready
        );
    }

    #[test]
    fn what_makes_no_sense_in_a_slice_is_left_out() {
        let facts = slice_of(&json!({
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
        assert_eq!(facts.endpoints.len(), 1);
        let ports: Vec<_> = facts.ports.iter().map(|port| (&*port.name, port.number)).collect();
        assert_eq!(ports, [("ssh", 22)]);
        assert!(slice_of(&json!({"endpoints": null, "ports": null})).ports.is_empty());
        for other in ["FQDN", "IPv6", "IPv5", ""] {
            let other = slice_of(&json!({"addressType": other, "endpoints": [{"addresses": ["10.0.0.1"]}]}));
            assert!(other.endpoints.is_empty());
        }
    }

    #[test]
    fn an_object_without_sense_is_told_from_one_that_does_not_count() {
        let named = |name: &str| json!({"metadata": {"name": name, "namespace": "n"}});
        for name in ["", "A", "a b", "a\r\nb", "a/b", "\u{e9}"] {
            assert_eq!(reduced(Kind::Service, &named(name)), Reduced::Malformed(None), "{name}");
        }
        assert_eq!(reduced(Kind::Service, &json!("x")), Reduced::Malformed(None));
        assert_eq!(reduced(Kind::Service, &json!({})), Reduced::Malformed(None));
        assert!(matches!(reduced(Kind::Slice, &named("a")), Reduced::Nothing(_)));
        let mut wrong = named("a");
        wrong["spec"] = json!({"ports": "all"});
        assert!(matches!(reduced(Kind::Service, &wrong), Reduced::Malformed(Some(_))));
        let namespace = reduced(Kind::Namespace, &json!({"metadata": {"name": "team-a"}}));
        assert!(matches!(namespace, Reduced::Object(_, Object::Namespace)));
    }
}
