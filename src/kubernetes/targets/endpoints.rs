//! Chooses the addresses of a Service from its EndpointSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::address_filter::{AddressClass, AddressFilter};
use crate::kubernetes::objects::model::{Service, ServicePort, Slice, SlicePort, State};
use crate::policy::allowlist::Endpoints;

/// The addresses at which a Service can be dialled, and those that the filter refuses.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct Selection {
    /// The ready endpoints; if there are none, the terminating ones that still serve.
    pub(in crate::kubernetes) endpoints: Endpoints,
    /// The endpoints that must not be dialled, and why.
    pub(in crate::kubernetes) refused: Vec<(SocketAddr, AddressClass)>,
    /// The names of the slices in which an address, or the Service's port for SSH, cannot be dialled.
    pub(in crate::kubernetes) unusable: Vec<Box<str>>,
}

/// Selects the endpoints of a Service at its port for SSH.
pub(in crate::kubernetes) fn select(
    service: &Service,
    port: &ServicePort,
    slices: &[(Box<str>, Slice)],
    filter: &AddressFilter,
) -> Selection {
    let (mut refused, mut unusable) = (Vec::new(), Vec::new());
    let mut nodes = BTreeMap::new();
    let [mut all, mut ready, mut terminating] = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for (name, slice) in slices {
        let number = port_of(slice, port);
        // Errors of other ports do not matter.
        if slice.has_unusable_address || (number.is_none() && slice.unusable_ports.contains(&port.name)) {
            unusable.push(name.clone());
        }
        let Some(number) = number else { continue };
        for endpoint in &slice.endpoints {
            let address = SocketAddr::new(endpoint.address, number);
            if let Err(class) = filter.check(endpoint.address) {
                refused.push((address, class));
                continue;
            }
            all.insert(address);
            nodes.insert(address, endpoint.node.clone());
            match endpoint.state {
                State::Ready => ready.insert(address),
                State::Terminating | State::NotReady if service.publishes_not_ready => ready.insert(address),
                State::Terminating => terminating.insert(address),
                State::NotReady => false,
            };
        }
    }
    let (ready_pods, total_pods) = (pods(&ready), pods(&all));
    let chosen = if ready.is_empty() { terminating } else { ready };
    let endpoints = Endpoints {
        nodes: nodes_of(&chosen, &mut nodes),
        addresses: chosen.into_iter().collect(),
        ready: ready_pods,
        total: total_pods,
        proxy_header: service.annotations.send_proxy_header,
    };
    Selection {
        endpoints,
        refused,
        unusable,
    }
}

/// Returns the slices of each pod that has a name below its Service's, with the endpoints of that pod alone. It returns the
/// first [`MAX_PODS`] names.
pub(in crate::kubernetes) fn of_pods(
    port: &ServicePort,
    slices: &[(Box<str>, Slice)],
) -> BTreeMap<Box<str>, Vec<(Box<str>, Slice)>> {
    let mut pods = BTreeMap::<_, Vec<_>>::new();
    for (name, slice) in slices {
        // Of the ports only the one for SSH: a tenant's slice may have 20,000, and each pod gets a copy.
        let number = port_of(slice, port).filter(|_| !port.is_implied);
        let ports: Vec<_> = number
            .map(|number| SlicePort {
                name: port.name.clone(),
                number,
            })
            .into_iter()
            .collect();
        for endpoint in slice.endpoints.iter().filter(|endpoint| !endpoint.hostname.is_empty()) {
            if pods.len() >= MAX_PODS && !pods.contains_key(&endpoint.hostname) {
                continue;
            }
            let own = Slice {
                service: slice.service.clone(),
                ports: ports.clone().into(),
                endpoints: [endpoint.clone()].into(),
                ..Slice::default()
            };
            pods.entry(endpoint.hostname.clone())
                .or_default()
                .push((name.clone(), own));
        }
    }
    pods
}

/// Returns the nodes of these addresses, in their order; empty if none is known.
fn nodes_of(chosen: &BTreeSet<SocketAddr>, nodes: &mut BTreeMap<SocketAddr, Box<str>>) -> Box<[Box<str>]> {
    let named = chosen.iter().map(|address| nodes.remove(address).unwrap_or_default());
    let named: Vec<_> = named.collect();
    if named.iter().all(|name| name.is_empty()) {
        return Box::default();
    }
    named.into()
}

/// Returns the number of pods with these addresses. A pod of a dual-stack Service has one address of each family.
fn pods(addresses: &BTreeSet<SocketAddr>) -> u32 {
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    u32::try_from(v4.max(addresses.len() - v4)).unwrap_or(u32::MAX)
}

/// Returns the port of a slice's pods for a port of the Service, if any.
pub(super) fn port_of(slice: &Slice, port: &ServicePort) -> Option<u16> {
    if port.is_implied {
        return slice.ports.is_empty().then_some(port.number);
    }
    let named = slice.ports.iter().find(|known| known.name == port.name)?;
    Some(named.number)
}

/// The pods of a Service that are targets of their own: a tenant may list any number.
const MAX_PODS: usize = 1024;
