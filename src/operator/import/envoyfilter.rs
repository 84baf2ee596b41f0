//! Reads EnvoyFilters of Istio: the virtual hosts whose routes terminate a CONNECT, and their clusters.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use self::route::{Context, Route};
use super::cluster_names::ClusterNames;
use super::diagnostics::{ImportDiagnostics, ImportResult};
use super::document::ValueRef;
use super::entry::{Entry, Service, Target, by_name};
use super::input::Input;
use super::options::{Format, Options};
use super::{kubectl, static_list};
use crate::base::values;
use crate::base::values::shown;

mod cluster;
mod route;

/// Translates the EnvoyFilters of all files together: a route may use the cluster of another file. Services among the
/// documents provide the addresses of static targets.
pub fn envoyfilter(inputs: &[Input], options: &Options) -> ImportResult {
    let mut diagnostics = ImportDiagnostics::new(inputs.iter().map(|input| input.name.as_str()));
    let names = ClusterNames::new(&options.cluster_domain, options.alias_port);
    let mut found = ParsedInput::default();
    for (file, input) in inputs.iter().enumerate() {
        for document in &input.yaml(file, &mut diagnostics) {
            found.read(ValueRef::new(file, document), &names, &mut diagnostics);
        }
    }
    let entries = found.entries(&names, &mut diagnostics);
    if entries.is_empty() {
        diagnostics.nothing_found("nothing to translate: no EnvoyFilter here has a route that ends a CONNECT");
    }
    let text = match options.format {
        Format::Kubectl => kubectl::lines(entries, &names, &mut diagnostics),
        Format::Static => static_list::section(entries, |entry| found.addresses(entry), &mut diagnostics),
    };
    diagnostics.finish(text)
}

/// The contents of the documents.
#[derive(Debug, Default)]
struct ParsedInput {
    routes: Vec<Route>,
    /// The targets of clusters by name, or why one is not translated.
    clusters: HashMap<String, Result<Target, String>>,
    services: HashMap<Service, Ports>,
}

impl ParsedInput {
    fn read(&mut self, document: ValueRef<'_>, names: &ClusterNames, diagnostics: &mut ImportDiagnostics) {
        if !document.has_no_duplicates(diagnostics) {
            return;
        }
        match document.text_of("kind").is_some_and(|kind| kind.ends_with("List")) {
            true => document
                .items_of("items")
                .for_each(|object| self.read_object(object, names, diagnostics)),
            false => self.read_object(document, names, diagnostics),
        }
    }

    fn read_object(&mut self, object: ValueRef<'_>, names: &ClusterNames, diagnostics: &mut ImportDiagnostics) {
        match object.text_of("kind") {
            Some("EnvoyFilter") => {
                for patch in object
                    .path(&["spec", "config_patches"])
                    .into_iter()
                    .flat_map(ValueRef::items)
                {
                    self.read_patch(patch, names, diagnostics);
                }
            }
            Some("Service") => self.services.extend(read(object)),
            Some(kind) => diagnostics.warning(object.location(), format!("kind {}: not read", shown(kind))),
            // An empty document, as after a `---` at the end.
            None if object.text().is_none() && object.pairs().next().is_none() => {}
            None => diagnostics.error(
                object.location(),
                "no Kubernetes object: it has no `kind` (`switchboard import frpc` reads files of frpc)",
            ),
        }
    }

    fn read_patch(&mut self, patch: ValueRef<'_>, names: &ClusterNames, diagnostics: &mut ImportDiagnostics) {
        let apply_to = patch.text_of("apply_to").unwrap_or("nothing");
        let location = patch.get("apply_to").unwrap_or(patch).location();
        if let Some(operation) = patch.path(&["patch", "operation"])
            && operation.text() == Some("REMOVE")
        {
            diagnostics.error(
                operation.location(),
                "REMOVE: the patch takes something away, which is not translated",
            );
            return;
        }
        if let Some(context) = patch.path(&["match", "context"])
            && !matches!(context.text(), Some("GATEWAY" | "ANY"))
        {
            diagnostics.error(context.location(), "not for a gateway: the patch is not translated");
            return;
        }
        let Some(value) = patch.path(&["patch", "value"]) else {
            diagnostics.error(location, format!("the {} patch has no value", shown(apply_to)));
            return;
        };
        let mut context = Context {
            routes: &mut self.routes,
            diagnostics,
        };
        match apply_to {
            "NETWORK_FILTER" => context.connection_manager(value),
            "ROUTE_CONFIGURATION" => context.route_configuration(value),
            "VIRTUAL_HOST" => context.virtual_host(value),
            "CLUSTER" => {
                let (name, target) = cluster::read(value, names);
                self.clusters.insert(name, target);
            }
            other => diagnostics.error(
                location,
                format!(
                    "a patch of {}: it stays with the gateway, and so does what it restricts",
                    shown(other)
                ),
            ),
        }
    }

    /// Returns the routes with their targets, each name once.
    fn entries(&self, names: &ClusterNames, diagnostics: &mut ImportDiagnostics) -> Vec<Entry> {
        let mut entries = Vec::new();
        for route in &self.routes {
            match self.target(&route.cluster, names) {
                Ok(target) => entries.push(Entry {
                    name: route.name.clone(),
                    target,
                    settings: route.settings.clone(),
                    group: None,
                    location: route.location,
                }),
                Err(reason) => diagnostics.error(route.location, format!("{}: {reason}", route.name)),
            }
        }
        by_name(entries, diagnostics)
    }

    /// Returns the target of a cluster's name: a cluster of the files, or Istio's `outbound|PORT|SUBSET|HOST`.
    fn target(&self, cluster: &str, names: &ClusterNames) -> Result<Target, String> {
        let shown_name = shown(cluster);
        if let Some(known) = self.clusters.get(cluster) {
            let known = known.clone();
            return known.map_err(|reason| format!("its cluster {shown_name} {reason}"));
        }
        let Some(parts) = cluster.strip_prefix("outbound|") else {
            return Err(format!("its cluster {shown_name} is in none of the files"));
        };
        let mut parts = parts.splitn(3, '|');
        let (port, subset, host) = (parts.next(), parts.next(), parts.next());
        if subset.is_none_or(|subset| !subset.is_empty()) {
            return Err(format!(
                "its cluster {shown_name} is a subset of a Service, which is not translated"
            ));
        }
        let port = port.and_then(|port| values::port(port).ok());
        let service = host.and_then(|host| names.service(host));
        match (service, port) {
            (Some(service), Some(port)) => Ok(Target::Service(service, Some(port))),
            _ => Err(format!(
                "its cluster {shown_name} is no Service of the cluster's domain"
            )),
        }
    }

    /// Returns the addresses of a Service, for a static target.
    fn addresses(&self, entry: &Entry) -> Result<Vec<SocketAddr>, String> {
        let Target::Service(service, Some(port)) = &entry.target else {
            return Err("routes to a Service without a port".to_owned());
        };
        let Service { namespace, name } = service;
        let Some(known) = self.services.get(service) else {
            return Err(format!(
                "the address of the Service {namespace}/{name} is in none of the files: add `kubectl get service -A -o \
                 yaml`, or use --format kubectl"
            ));
        };
        if known.addresses.is_empty() {
            return Err(format!(
                "the Service {namespace}/{name} has no cluster address: use --format kubectl"
            ));
        }
        if !known.ports.contains(port) {
            return Err(format!("the Service {namespace}/{name} has no TCP port {port}"));
        }
        let address = |address: &IpAddr| SocketAddr::new(*address, *port);
        Ok(known.addresses.iter().map(address).collect())
    }
}

/// The cluster addresses of a Service and its TCP ports.
#[derive(Debug)]
struct Ports {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// Returns the Service and its ports; `None` without a valid name, or without a spec.
fn read(object: ValueRef<'_>) -> Option<(Service, Ports)> {
    let metadata = object.get("metadata")?;
    let service = Service::new(
        metadata.text_of("name")?,
        metadata.text_of("namespace").unwrap_or("default"),
    )?;
    let spec = object.get("spec")?;
    // An ExternalName has none, and a headless Service has the address `None`.
    let all = spec.items_of("clusterIPs").chain(spec.get("clusterIP"));
    let mut addresses: Vec<IpAddr> = all.filter_map(|address| address.text()?.parse().ok()).collect();
    addresses.dedup();
    addresses.sort_unstable();
    addresses.dedup();
    let is_tcp = |port: &ValueRef<'_>| port.text_of("protocol").is_none_or(|protocol| protocol == "TCP");
    let ports = spec.items_of("ports").filter(is_tcp);
    let ports = ports
        .filter_map(|port| values::port(port.text_of("port")?).ok())
        .collect();
    Some((service, Ports { addresses, ports }))
}

#[cfg(test)]
mod tests;
