//! Chooses the addresses of a Service from its EndpointSlices.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::guards::{AddressClass, Guards};
use super::model::{Service, ServicePort, Slice, State};
use crate::allowlist::Endpoints;

/// The addresses at which a Service can be dialled, and those that the guards refuse.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// The ready endpoints; if there are none, the terminating ones that still serve.
    pub(super) endpoints: Endpoints,
    /// The endpoints that must not be dialled, and why.
    pub(super) refused: Vec<(SocketAddr, AddressClass)>,
}

/// Selects the endpoints of a Service at that port of it.
pub(super) fn select(
    service: &Service,
    port: &ServicePort,
    slices: &[(Box<str>, Box<Slice>)],
    guards: &Guards,
) -> Selection {
    let mut refused = Vec::new();
    let [mut all, mut ready, mut terminating] = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for (_, slice) in slices {
        let Some(number) = port_of(slice, port) else { continue };
        for endpoint in &slice.endpoints {
            let address = SocketAddr::new(endpoint.address, number);
            if let Err(class) = guards.check(endpoint.address) {
                refused.push((address, class));
                continue;
            }
            all.insert(address);
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
        addresses: chosen.into_iter().collect(),
        ready: ready_pods,
        total: total_pods,
        proxy_header: service.annotations.send_proxy_header,
    };
    Selection { endpoints, refused }
}

/// The number of pods with these addresses. A pod of a dual-stack Service has one address of each family.
fn pods(addresses: &BTreeSet<SocketAddr>) -> u32 {
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    u32::try_from(v4.max(addresses.len() - v4)).unwrap_or(u32::MAX)
}

/// The port of a slice's pods for a port of the Service.
fn port_of(slice: &Slice, port: &ServicePort) -> Option<u16> {
    if port.is_implied {
        return slice.ports.is_empty().then_some(port.number);
    }
    let named = slice.ports.iter().find(|known| known.name == port.name)?;
    Some(named.number)
}
