//! Reads the virtual hosts of a gateway: the names that a CONNECT may ask for, and the cluster of its route.
//!
//! A route with an option that is not known here is not printed: the option may restrict access.

use crate::base::authority::Authority;
use crate::base::values::{self, shown};
use crate::operator::import::diagnostics::{ImportDiagnostics, Location, Untranslatable};
use crate::operator::import::document::{Pair, ValueRef};
use crate::operator::import::entry::{Settings, exact_name};
use crate::tunnel::proxy_header::Version;

/// A name and its cluster.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: Authority,
    pub(super) cluster: String,
    pub(super) settings: Settings,
    pub(super) location: Location,
}

/// The collected routes and diagnostics.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) routes: &'a mut Vec<Route>,
    pub(super) diagnostics: &'a mut ImportDiagnostics,
}

impl Context<'_> {
    /// Reads a patch of the connection manager: its routes, if any. Its CONNECT upgrade needs no translation.
    pub(super) fn connection_manager(&mut self, value: ValueRef<'_>) {
        let typed = value.get("typed_config").unwrap_or(value);
        if let Some(routes) = typed.get("route_config") {
            self.route_configuration(routes);
        }
        self.warn_of_the_rest(typed, &OF_THE_GATEWAY);
    }

    /// Reads a route configuration: its virtual hosts.
    pub(super) fn route_configuration(&mut self, value: ValueRef<'_>) {
        for host in value.items_of("virtual_hosts") {
            self.virtual_host(host);
        }
        self.warn_of_the_rest(value, &["name", "virtual_hosts"]);
    }

    fn warn_of_the_rest(&mut self, value: ValueRef<'_>, known: &[&str]) {
        for pair in value.pairs().filter(|pair| !known.contains(&&*pair.key)) {
            let key = shown(&pair.key);
            let reason = format!("{key} stays with the gateway, and so does what it restricts");
            self.diagnostics.warning(pair.location, reason);
        }
    }

    /// Reads a virtual host: its first route, for each of its domains.
    pub(super) fn virtual_host(&mut self, host: ValueRef<'_>) {
        let name = shown(host.text_of("name").unwrap_or("without a name"));
        if let Some(pair) = host.unknown(&["name", "domains", "routes"]) {
            let reason = format!(
                "the virtual host {name} has the option {}: not printed",
                shown(&pair.key)
            );
            self.diagnostics.error(pair.location, reason);
            return;
        }
        let mut taken = None;
        for route in host.items_of("routes") {
            match read_route(route) {
                _ if taken.is_some() => {
                    let reason = format!("a further route of the virtual host {name}: only the first one counts");
                    self.diagnostics.error(route.location(), reason);
                }
                Ok(read) => taken = Some(read),
                // A later route would allow what this one restricts.
                Err(Untranslatable(location, reason)) => {
                    self.diagnostics
                        .error(location, format!("the virtual host {name}: {reason}: not printed"));
                    return;
                }
            }
        }
        let Some((cluster, settings)) = taken else {
            self.diagnostics
                .error(host.location(), format!("the virtual host {name} has no route"));
            return;
        };
        for domain in host.items_of("domains") {
            let text = domain.text().unwrap_or_default();
            match exact_name(text) {
                Ok(name) => self.routes.push(Route {
                    name,
                    cluster: cluster.to_owned(),
                    settings: settings.clone(),
                    location: domain.location(),
                }),
                Err(reason) => {
                    let reason = format!("the domain {}: {reason}", shown(text));
                    self.diagnostics.error(domain.location(), reason);
                }
            }
        }
    }
}

/// Returns the cluster and settings of a route that terminates a CONNECT.
fn read_route<'a>(item: ValueRef<'a>) -> Result<(&'a str, Settings), Untranslatable> {
    has_only(item, &["name", "match", "route", "decorator"])?;
    let matched = item.get("match").unwrap_or(item);
    if matched.get("connect_matcher").is_none() {
        return Err(matched.unsuited("its route is not for CONNECT alone"));
    }
    has_only(matched, &["connect_matcher"])?;
    let route = item.get("route").unwrap_or(item);
    let mut settings = Settings::default();
    for pair in route.pairs() {
        let known = match pair.key.as_str() {
            "cluster" | "retry_policy" | "upgrade_configs" | "match" => true,
            // Envoy's timeout is for a whole response, and a tunnel's does not end.
            "timeout" => pair.value.text() == Some("0s"),
            "idle_timeout" => {
                let idle = pair.value.text().and_then(|text| values::duration(text).ok());
                settings.idle = idle;
                idle.is_some()
            }
            _ => false,
        };
        if !known {
            return Err(refused(&pair));
        }
    }
    settings.proxy_header = upgrade(route)?;
    let cluster = route.text_of("cluster");
    let cluster = cluster.ok_or_else(|| route.unsuited("its route has no cluster"))?;
    Ok((cluster, settings))
}

/// Returns the PROXY header of a route for CONNECT; `None` if it sends none.
fn upgrade(route: ValueRef<'_>) -> Result<Option<Version>, Untranslatable> {
    let is_connect = |at: &ValueRef<'_>| {
        at.text_of("upgrade_type")
            .is_some_and(|kind| kind.eq_ignore_ascii_case("CONNECT"))
    };
    let connect = route.items_of("upgrade_configs").find(is_connect);
    let connect = connect.ok_or_else(|| route.unsuited("its route has no upgrade of the type CONNECT"))?;
    if connect.text_of("enabled") == Some("false") {
        return Err(connect.unsuited("its route is switched off"));
    }
    let passed_on = "its route passes the CONNECT on to another proxy instead of ending it";
    let config = connect.get("connect_config");
    let config = config.ok_or_else(|| connect.unsuited(passed_on))?;
    has_only(config, &["proxy_protocol_config"])?;
    let Some(header) = config.get("proxy_protocol_config") else {
        return Ok(None);
    };
    match (header.unknown(&["version"]), header.text_of("version").unwrap_or("V1")) {
        (None, "V1") => Ok(Some(Version::V1)),
        (None, "V2") => Ok(Some(Version::V2)),
        _ => Err(header.unsuited("its route has a PROXY header with more than the version V1 or V2")),
    }
}

/// Refuses a map with a key that is not among these.
fn has_only(at: ValueRef<'_>, known: &[&str]) -> Result<(), Untranslatable> {
    at.unknown(known).map_or(Ok(()), |pair| Err(refused(&pair)))
}

fn refused(pair: &Pair<'_>) -> Untranslatable {
    Untranslatable(pair.location, format!("its route has the option {}", shown(&pair.key)))
}

/// The options of a connection manager that are read, or concern only its own port and protocols.
const OF_THE_GATEWAY: [&str; 10] = [
    "route_config",
    "@type",
    "stat_prefix",
    "codec_type",
    "http_protocol_options",
    "http2_protocol_options",
    "stream_idle_timeout",
    "request_timeout",
    "generate_request_id",
    "upgrade_configs",
];
