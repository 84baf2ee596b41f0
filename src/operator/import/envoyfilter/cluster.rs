//! Reads a cluster that an EnvoyFilter adds: its addresses or its Service.

use std::net::{IpAddr, SocketAddr};

use crate::base::values::{self, shown};
use crate::operator::import::cluster_names::ClusterNames;
use crate::operator::import::document::ValueRef;
use crate::operator::import::entry::Target;

/// Returns the cluster's name, and its target or why that is not translated.
pub(super) fn read(value: ValueRef<'_>, names: &ClusterNames) -> (String, Result<Target, String>) {
    let name = value.text_of("name").unwrap_or_default().to_owned();
    let target = match value.unknown(&HARMLESS) {
        Some(pair) => Err(format!("has the option {}, which is not translated", shown(&pair.key))),
        None => read_endpoints(value, names),
    };
    (name, target)
}

fn read_endpoints(value: ValueRef<'_>, names: &ClusterNames) -> Result<Target, String> {
    if !matches!(
        value.text_of("type"),
        None | Some("STATIC" | "STRICT_DNS" | "LOGICAL_DNS")
    ) {
        return Err(
            "has its endpoints from elsewhere: only STATIC, STRICT_DNS and LOGICAL_DNS are translated".to_owned(),
        );
    }
    let endpoints = value
        .path(&["load_assignment", "endpoints"])
        .into_iter()
        .flat_map(ValueRef::items);
    let mut addresses = Vec::new();
    let mut services = Vec::new();
    for endpoint in endpoints.flat_map(|locality| locality.items_of("lb_endpoints")) {
        let socket = endpoint.path(&["endpoint", "address", "socket_address"]);
        let host = socket.and_then(|socket| socket.text_of("address"));
        let port = socket.and_then(|socket| values::port(socket.text_of("port_value")?).ok());
        let (Some(host), Some(port)) = (host, port) else {
            return Err("has an endpoint that is not a host and port".to_owned());
        };
        match (host.parse::<IpAddr>(), names.service(host)) {
            (Ok(address), _) => addresses.push(SocketAddr::new(address, port)),
            (Err(_), Some(service)) => services.push((service, port)),
            (Err(_), None) => {
                return Err(format!(
                    "routes to {}: not an address, and not a Service of the cluster",
                    shown(host)
                ));
            }
        }
    }
    match (addresses.is_empty(), services.pop()) {
        (true, Some((service, port))) if services.is_empty() => Ok(Target::Service(service, Some(port))),
        (false, None) => Ok(Target::Addresses(addresses)),
        (true, None) => Err("has no endpoint".to_owned()),
        _ => Err("routes to several Services, or to addresses and a Service".to_owned()),
    }
}

/// The options that are read here, or do not affect access: load balancing, DNS and timeouts. TLS to the endpoint is
/// not among them.
const HARMLESS: [&str; 14] = [
    "name",
    "alt_stat_name",
    "type",
    "connect_timeout",
    "lb_policy",
    "load_assignment",
    "circuit_breakers",
    "dns_lookup_family",
    "dns_refresh_rate",
    "respect_dns_ttl",
    "health_checks",
    "outlier_detection",
    "upstream_connection_options",
    "per_connection_buffer_limit_bytes",
];
