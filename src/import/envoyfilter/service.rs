//! Reads a Service: where a static target is.

use std::net::IpAddr;

use crate::import::document::At;
use crate::import::entry::Service;
use crate::values;

/// The cluster addresses of a Service and its TCP ports.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<u16>,
}

/// The Service and its ports; `None` without a name that may be one.
pub(super) fn read(object: At<'_>) -> Option<(Service, Ports)> {
    let metadata = object.get("metadata")?;
    let service = Service::new(
        metadata.text_of("name")?,
        metadata.text_of("namespace").unwrap_or("default"),
    )?;
    let spec = object.get("spec")?;
    // An ExternalName has none, and `None` is the address of a headless Service.
    let all = spec.items_of("clusterIPs").chain(spec.get("clusterIP"));
    let mut addresses: Vec<IpAddr> = all.filter_map(|address| address.text()?.parse().ok()).collect();
    addresses.dedup();
    addresses.sort_unstable();
    addresses.dedup();
    let is_tcp = |port: &At<'_>| port.text_of("protocol").is_none_or(|protocol| protocol == "TCP");
    let ports = spec.items_of("ports").filter(is_tcp);
    let ports = ports
        .filter_map(|port| values::port(port.text_of("port")?).ok())
        .collect();
    Some((service, Ports { addresses, ports }))
}
