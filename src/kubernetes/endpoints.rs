//! Chooses where a Service can be dialled from what its EndpointSlices say.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::guards::{Class, Guards};
use super::model::{ServiceFacts, ServicePort, SliceFacts, State};
use crate::allowlist::Endpoints;

/// Where a Service can be dialled: at what is ready, else at what still serves, else nowhere yet.
pub(super) fn dialable(
    facts: &ServiceFacts,
    port: &ServicePort,
    slices: &[(Box<str>, Box<SliceFacts>)],
    guards: &Guards,
    refused: &mut Vec<(SocketAddr, Class)>,
) -> Endpoints {
    let mut ready = BTreeSet::new();
    let mut leaving = BTreeSet::new();
    // Of a dual-stack Service each pod is there twice, once in each family.
    let (mut total, mut total_ready) = ([BTreeSet::new(), BTreeSet::new()], [0_u32; 2]);
    for (_, slice) in slices {
        let Some(number) = port_of(slice, port) else { continue };
        for endpoint in &slice.endpoints {
            let address = SocketAddr::new(endpoint.address, number);
            if let Err(class) = guards.check(endpoint.address) {
                refused.push((address, class));
                continue;
            }
            let [v4, v6] = &mut total;
            let family = if address.is_ipv4() { v4 } else { v6 };
            family.insert(address);
            match endpoint.state {
                State::Ready => ready.insert(address),
                State::Leaving | State::NotReady if facts.publishes_not_ready => ready.insert(address),
                State::Leaving => leaving.insert(address),
                State::NotReady => false,
            };
        }
    }
    let [v4, v6] = &mut total_ready;
    for address in &ready {
        *(if address.is_ipv4() { &mut *v4 } else { &mut *v6 }) += 1;
    }
    let total = total.iter().map(BTreeSet::len).max().unwrap_or_default();
    let chosen = if ready.is_empty() { leaving } else { ready };
    Endpoints {
        addresses: chosen.into_iter().collect(),
        ready: total_ready.into_iter().max().unwrap_or_default(),
        total: u32::try_from(total).unwrap_or(u32::MAX),
        proxy_header: facts.annotations.send_proxy_header,
    }
}

/// The port of the pods that a slice names for a port of the Service.
fn port_of(slice: &SliceFacts, port: &ServicePort) -> Option<u16> {
    if port.is_implied {
        return slice.ports.is_empty().then_some(port.number);
    }
    let named = slice.ports.iter().find(|known| known.name == port.name)?;
    Some(named.number)
}
