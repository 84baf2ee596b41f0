//! Decodes a pod that is a target by itself.

use std::net::IpAddr;

use super::raw::{LenientItem, MAX_NODE, RawMetadata, RawPort, SSH, owner, valid};
use crate::kubernetes::objects::annotations::{self, AnnotationError, ParsedAnnotations, PortSelector};
use crate::kubernetes::objects::model::{Endpoint, Pod, Service, ServicePort, Slice, SlicePort, State};

/// A pod as the API server sends it.
#[derive(serde::Deserialize)]
pub(super) struct RawPod {
    metadata: Option<RawMetadata>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    host_network: Option<bool>,
    node_name: Option<Box<str>>,
    containers: Option<Vec<LenientItem<RawContainer>>>,
    init_containers: Option<Vec<LenientItem<RawContainer>>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainer {
    restart_policy: Option<String>,
    ports: Option<Vec<LenientItem<RawPort>>>,
}

#[derive(Default, serde::Deserialize)]
struct PodStatus {
    phase: Option<String>,
    conditions: Option<Vec<LenientItem<RawCondition>>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<LenientItem<PodIp>>>,
}

#[derive(serde::Deserialize)]
struct RawCondition {
    r#type: String,
    status: String,
}

#[derive(serde::Deserialize)]
struct PodIp {
    ip: IpAddr,
}

/// Decodes a pod; `None` for one that is no target: in the network of its node, of a warm pool, or ended.
pub(super) fn pod(raw: RawPod, uid: Box<str>, prefix: &str) -> Option<Pod> {
    let RawMetadata {
        labels,
        annotations,
        deletion_timestamp,
    } = raw.metadata.unwrap_or_default();
    let (spec, status) = (raw.spec.unwrap_or_default(), raw.status.unwrap_or_default());
    let mut labels = labels.unwrap_or_default();
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if spec.host_network == Some(true) || has_ended || labels.contains_key(WARM_POOL) {
        return None;
    }
    let ParsedAnnotations {
        mut annotations,
        port,
        mut faults,
    } = annotations::parse(&annotations.unwrap_or_default(), prefix);
    // It exists while it runs, and is dialled.
    let without_effect = [
        ("wake", annotations.wake.take().is_some()),
        ("dials-in", annotations.dials_in.take().is_some()),
    ];
    let without_effect = without_effect.into_iter().filter(|(_, is_given)| *is_given);
    faults.extend(without_effect.map(|(key, _)| AnnotationError::new(key, "no effect: this is a pod".to_owned())));
    let number = ssh_port([spec.containers, spec.init_containers], port, &mut faults);
    let is_terminating = deletion_timestamp.is_some();
    let state = state(status.conditions, is_terminating);
    let node = spec.node_name.filter(|name| name.len() <= MAX_NODE).unwrap_or_default();
    let endpoints = valid(status.pod_ips).map(|PodIp { ip: address }| Endpoint {
        address,
        state,
        node: node.clone(),
        hostname: Box::default(),
    });
    let name = Box::<str>::default();
    Some(Pod {
        uid,
        is_terminating,
        slice: Slice {
            ports: [SlicePort {
                name: name.clone(),
                number,
            }]
            .into(),
            endpoints: endpoints.collect(),
            ..Slice::default()
        },
        service: Service {
            port: Some(ServicePort {
                number,
                name,
                is_implied: false,
            }),
            annotations,
            owner: owner(&mut labels, prefix),
            faults,
            ..Service::default()
        },
    })
}

/// Returns the state that a slice would have for the pod.
fn state(conditions: Option<Vec<LenientItem<RawCondition>>>, is_terminating: bool) -> State {
    let is_ready = valid(conditions).any(|condition| condition.r#type == "Ready" && condition.status == "True");
    match (is_ready, is_terminating) {
        (true, false) => State::Ready,
        (true, true) => State::Terminating,
        (false, _) => State::NotReady,
    }
}

/// Returns the port of the annotation; else that of a container, or of a sidecar, with the name `ssh`; else 22.
fn ssh_port(
    [containers, init_containers]: [Option<Vec<LenientItem<RawContainer>>>; 2],
    port: Option<PortSelector>,
    faults: &mut Vec<AnnotationError>,
) -> u16 {
    // An init container that is always restarted is a sidecar.
    let sidecars = valid(init_containers).filter(|own| own.restart_policy.as_deref() == Some("Always"));
    let containers = valid(containers).chain(sidecars);
    let ports = containers.flat_map(|container| valid(container.ports));
    let ports: Vec<_> = ports.filter_map(|raw| Some((raw.tcp_number()?, raw.name?))).collect();
    let named = |wanted: &str| {
        ports
            .iter()
            .find(|(_, name)| **name == *wanted)
            .map(|(number, _)| *number)
    };
    let asked = port.and_then(|asked| match asked {
        PortSelector::Number(number) => Some(number),
        PortSelector::Name(name) => named(&name).or_else(|| {
            faults.push(AnnotationError::new(
                "port",
                "no container has a TCP port of that name".to_owned(),
            ));
            None
        }),
    });
    asked.or_else(|| named("ssh")).unwrap_or(SSH)
}

/// The label of the pods of a warm pool of agent-sandbox, which nobody has claimed.
pub(crate) const WARM_POOL: &str = "agents.x-k8s.io/warm-pool-sandbox";
