//! One proxy of frpc: its names, its target, and each of its options, translated or reported.

use std::net::{IpAddr, SocketAddr};

use crate::base::authority::Authority;
use crate::base::values::{self, shown};
use crate::base::yaml::tree::Value;
use crate::operator::import::cluster_names::ClusterNames;
use crate::operator::import::diagnostics::{ImportDiagnostics, Location, Untranslatable};
use crate::operator::import::document::ValueRef;
use crate::operator::import::entry::{Entry, Service, Settings, Target, exact_name};
use crate::operator::import::options::{Format, Frp};
use crate::tunnel::limits::Rate;

/// A proxy of a file.
#[derive(Debug)]
pub(super) struct Proxy<'a> {
    pub(super) name: &'a str,
    pub(super) location: Location,
    /// Its options by their paths, such as `transport.bandwidthLimit`.
    options: Vec<(String, ValueRef<'a>)>,
}

/// The settings of a proxy.
#[derive(Debug, Default)]
struct ProxySettings<'a> {
    hosts: Vec<(String, Location)>,
    ip: Option<&'a str>,
    port: Option<u16>,
    settings: Settings,
    group: Option<String>,
}

/// The settings that the translation of every proxy needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) format: Format,
    pub(super) frp: &'a Frp,
    pub(super) names: &'a ClusterNames,
}

impl<'a> Proxy<'a> {
    pub(super) fn new(at: ValueRef<'a>) -> Self {
        let mut options = Vec::new();
        flatten(at, "", &mut options);
        Self {
            name: at.text_of("name").unwrap_or("without a name"),
            location: at.location(),
            options,
        }
    }

    /// Returns an entry for each name and requested port. `diagnostics` get the reason if there is none.
    pub(super) fn entries(&self, context: Context<'_>, diagnostics: &mut ImportDiagnostics) -> Vec<Entry> {
        let name = shown(self.name);
        let proxy = self
            .settings(context.frp, diagnostics)
            .unwrap_or_else(|Untranslatable(location, reason)| {
                diagnostics.error(location, format!("the proxy {name}: {reason}"));
                ProxySettings::default()
            });
        let ports = match context.frp.ports.as_slice() {
            [] => &[22],
            ports => ports,
        };
        let mut entries = Vec::new();
        for (host, location) in &proxy.hosts {
            for port in ports {
                if let Some(line) = proxy.anchor(host, *port) {
                    let reason = "if no connection reaches frpc's host, set `dials_in`, not `addresses`; run there";
                    diagnostics.note(*location, format!("the proxy {name}: {reason}: {line}"));
                }
                match named(host, *port, &proxy, context) {
                    Ok((name, target)) => entries.push(Entry {
                        name,
                        target,
                        settings: proxy.settings.clone(),
                        group: proxy.group.clone(),
                        location: *location,
                    }),
                    Err(reason) => diagnostics.error(*location, format!("the proxy {name}: {}: {reason}", shown(host))),
                }
            }
        }
        entries
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        let (_, at) = self.options.iter().find(|(path, _)| path == key)?;
        at.text()
    }

    fn settings(&self, frp: &Frp, diagnostics: &mut ImportDiagnostics) -> Result<ProxySettings<'a>, Untranslatable> {
        let unsuited = |reason: String| Err(Untranslatable(self.location, reason));
        match (self.text("type"), self.text("multiplexer")) {
            (Some("tcpmux"), Some("httpconnect")) => {}
            (Some("tcpmux"), _) => return unsuited("only the multiplexer httpconnect is known".to_owned()),
            (kind, _) => {
                let kind = shown(kind.unwrap_or("tcp"));
                return unsuited(format!(
                    "of the type {kind}, whose clients send no CONNECT: only tcpmux is translated"
                ));
            }
        }
        if self.text("enabled") == Some("false") {
            let reason = format!(
                "the proxy {} is not enabled, so frpc does not start it",
                shown(self.name)
            );
            diagnostics.note(self.location, reason);
            return Ok(ProxySettings::default());
        }
        let mut settings = ProxySettings::default();
        for (key, at) in &self.options {
            if key == "subdomain"
                && let Some(name) = at.text().filter(|name| !name.is_empty())
            {
                let reason = "subdomain: give the subDomainHost of frps by --subdomain-host DOMAIN";
                let domain = frp.subdomain_host.as_ref().ok_or_else(|| at.unsuited(reason))?;
                settings.hosts.push((format!("{name}.{domain}"), at.location()));
            } else {
                let read = settings.read(key, *at);
                let remark = read.map_err(|reason| at.unsuited(format!("{}: {reason}", shown(key))))?;
                let about = |reason| format!("the proxy {}: {} {reason}", shown(self.name), shown(key));
                match remark {
                    OptionOutcome::Translated => {}
                    OptionOutcome::LeftOut(reason) => diagnostics.warning(at.location(), about(reason)),
                    OptionOutcome::NotNeeded => diagnostics.note(at.location(), about("is not needed any more")),
                }
            }
        }
        if settings.hosts.is_empty() {
            return unsuited("no customDomains and no subdomain".to_owned());
        }
        Ok(settings)
    }
}

/// The outcome of the translation of an option.
enum OptionOutcome {
    Translated,
    /// The option is left out or changed, as this sentence says.
    LeftOut(&'static str),
    /// It was about the connection to frps.
    NotNeeded,
}

impl<'a> ProxySettings<'a> {
    /// Returns the command that replaces frpc for a name, on frpc's host; `None` if the target is on another host.
    fn anchor(&self, host: &str, port: u16) -> Option<String> {
        let name = exact_name(&format!("{host}:{port}")).ok()?;
        let to = self.ip.unwrap_or(LOCAL);
        let ip = if to == "localhost" { LOCAL } else { to }.parse::<IpAddr>();
        let to = SocketAddr::new(ip.ok().filter(IpAddr::is_loopback)?, self.port?);
        Some(format!(
            "switchboard anchor --dial https://PROXY --serve {name} --to {to}"
        ))
    }

    /// Translates one option. Fails if the option is invalid, or may restrict and has no counterpart.
    fn read(&mut self, key: &str, at: ValueRef<'a>) -> Result<OptionOutcome, &'static str> {
        let text = at.text().unwrap_or_default();
        match key {
            "name" | "type" | "multiplexer" | "enabled" => {}
            "customDomains" => {
                let hosts = at.items().chain(at.text().map(|_| at));
                let hosts = hosts.filter_map(|item| Some((item.text()?.to_owned(), item.location())));
                self.hosts.extend(hosts);
            }
            "localIP" => self.ip = Some(text),
            "localPort" => self.port = Some(values::port(text)?),
            _ if text.is_empty() && EMPTY_IS_ABSENT.contains(&key) => {}
            "httpUser" | "httpPassword" => {
                return Err("it asks for a password: see `access.users` and `allowed_users`, and add the name by hand");
            }
            "routeByHTTPUser" => return Err("the user decides which target a name means, but here only the name does"),
            "transport.bandwidthLimit" => {
                self.settings.rate = Some(bandwidth(text).ok_or("expected a number with KB or MB")?);
                let reason = "becomes the limit of each tunnel and direction; in frp all tunnels of a proxy share it";
                return Ok(OptionOutcome::LeftOut(reason));
            }
            "transport.proxyProtocolVersion" => {
                self.settings.proxy_header = Some(text.parse().map_err(|_| "expected v1 or v2")?);
            }
            "loadBalancer.group" => self.group = Some(text.to_owned()),
            _ if is_of_frps(key) => return Ok(OptionOutcome::NotNeeded),
            _ if key.starts_with("healthCheck.") => {
                return Ok(OptionOutcome::LeftOut(
                    "is left out: switchboard opens a connection to sshd only for a client",
                ));
            }
            _ => return Err("not translated, and it may restrict"),
        }
        Ok(OptionOutcome::Translated)
    }
}

/// Returns a name at one port, and its target.
fn named(
    host: &str,
    port: u16,
    settings: &ProxySettings<'_>,
    context: Context<'_>,
) -> Result<(Authority, Target), String> {
    let name = exact_name(&format!("{host}:{port}"))?;
    let target = match context.format {
        Format::Static => address(settings, context.frp),
        Format::Kubectl => service(&name, settings, context),
    };
    Ok((name, target?))
}

/// Returns the address of a static target.
fn address(settings: &ProxySettings<'_>, frp: &Frp) -> Result<Target, String> {
    let local = settings.ip.unwrap_or(LOCAL);
    let port = settings.port.ok_or("no localPort")?;
    let ip = match local.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => frp.host.ok_or(
            "localIP is the host of frpc itself: give its address, as the proxy reaches it, by --frpc-host IP",
        )?,
        Ok(ip) => ip,
        Err(_) if local == "localhost" => frp.host.ok_or("give the address of frpc's host by --frpc-host IP")?,
        Err(_) => {
            return Err(format!(
                "localIP {} is a name, and names are not resolved",
                shown(local)
            ));
        }
    };
    Ok(Target::Addresses(vec![SocketAddr::new(ip, port)]))
}

/// Returns the Service of a proxy: the one in localIP, or for a loopback localIP the one in the name.
fn service(name: &Authority, settings: &ProxySettings<'_>, context: Context<'_>) -> Result<Target, String> {
    let Context { frp, names, .. } = context;
    let local = settings.ip.unwrap_or(LOCAL);
    if let Some(service) = names.service(local) {
        return Ok(Target::Service(service, settings.port));
    }
    if !local.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) && local != "localhost" {
        return Err(format!("localIP {} is no Service: use --format static", shown(local)));
    }
    let suffixes = frp.public_suffixes.iter();
    let shorts = suffixes.filter_map(|suffix| name.host().strip_suffix(&**suffix)?.strip_suffix('.'));
    let service = shorts
        .filter_map(|short| short.split_once('.'))
        .find_map(|(service, namespace)| Service::new(service, namespace));
    // The file does not say the port: the Service, which will replace frpc, does not exist yet. It will have one port.
    service.map(|service| Target::Service(service, None)).ok_or_else(|| {
        "which Service is it? Give --public-suffix DOMAIN for names SERVICE.NAMESPACE.DOMAIN, or use --format static"
            .to_owned()
    })
}

/// Collects options by their paths: nested keys are joined by dots.
fn flatten<'a>(at: ValueRef<'a>, path: &str, options: &mut Vec<(String, ValueRef<'a>)>) {
    let Value::Map(entries) = at.value() else {
        if !path.is_empty() {
            options.push((path.to_owned(), at));
        }
        return;
    };
    for entry in entries {
        let path = match path {
            "" => entry.key.clone(),
            path => format!("{path}.{}", entry.key),
        };
        flatten(at.beside(&entry.value), &path, options);
    }
}

/// Parses a rate of frp, whose KB and MB are powers of 1,024 (pkg/config/types).
fn bandwidth(text: &str) -> Option<Rate> {
    let text = text.trim();
    let (number, unit) = [("MB", 1024.0 * 1024.0), ("KB", 1024.0)]
        .into_iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let bytes = number.trim().parse::<f64>().ok()? * unit;
    let is_rate = (1.0..1e15).contains(&bytes);
    is_rate.then(|| format!("{bytes:.0}B/s").parse().ok()).flatten()
}

/// Returns whether only frps, or the connection to it, uses the option.
fn is_of_frps(key: &str) -> bool {
    let of = ["metadatas.", "annotations."];
    let exactly = [
        "transport.useEncryption",
        "transport.useCompression",
        "transport.bandwidthLimitMode",
        "loadBalancer.groupKey",
    ];
    exactly.contains(&key) || of.iter().any(|prefix| key.starts_with(prefix))
}

/// The options that count as absent if their value is empty.
const EMPTY_IS_ABSENT: [&str; 8] = [
    "subdomain",
    "httpUser",
    "httpPassword",
    "routeByHTTPUser",
    "transport.bandwidthLimit",
    "transport.proxyProtocolVersion",
    "loadBalancer.group",
    "healthCheck.type",
];
/// frp's default of localIP.
const LOCAL: &str = "127.0.0.1";
