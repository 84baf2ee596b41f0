//! Reads the configuration of frpc, in TOML, YAML or JSON: its proxies of the type tcpmux, whose names clients request by
//! CONNECT.

use std::path::Path;

use self::proxy::{Context, Proxy};
use super::cluster_names::ClusterNames;
use super::diagnostics::{ImportDiagnostics, ImportResult, Location};
use super::document::ValueRef;
use super::entry::{Entry, by_name};
use super::input::Input;
use super::options::{Format, Frp, Options};
use super::{kubectl, static_list};
use crate::base::values::shown;
use crate::base::yaml::diagnostic::{Diagnostics, Position};
use crate::base::yaml::tree::Node;

mod proxy;
mod toml_tree;

/// Translates the tcpmux proxies of all files together.
pub fn frpc(inputs: &[Input], options: &Options, frp: &Frp) -> ImportResult {
    let mut diagnostics = ImportDiagnostics::new(inputs.iter().map(|input| input.name.as_str()));
    let names = ClusterNames::new(&options.cluster_domain, options.alias_port);
    let context = Context {
        format: options.format,
        frp,
        names: &names,
    };
    let mut entries = Vec::new();
    for (file, input) in inputs.iter().enumerate() {
        for root in &read(file, input, &mut diagnostics) {
            for proxy in proxies(ValueRef::new(file, root), &mut diagnostics) {
                entries.extend(proxy.entries(context, &mut diagnostics));
            }
        }
    }
    let entries: Vec<Entry> = by_name(entries, &mut diagnostics);
    if entries.is_empty() {
        diagnostics.nothing_found("nothing to translate: no proxy of the type tcpmux is here");
    }
    let text = match options.format {
        Format::Kubectl => kubectl::lines(entries, &names, &mut diagnostics),
        Format::Static => {
            let reason = "points to a Service, whose address the file does not say: use --format kubectl";
            static_list::section(entries, |_| Err(reason.to_owned()), &mut diagnostics)
        }
    };
    diagnostics.finish(text)
}

/// Returns the file's documents, in the format of its extension, else as TOML; none after an error.
fn read(file: usize, input: &Input, diagnostics: &mut ImportDiagnostics) -> Vec<Node> {
    let file_diagnostics = Diagnostics::default();
    let Some(text) = input.text(&file_diagnostics) else {
        diagnostics.unreadable(file, file_diagnostics);
        return Vec::new();
    };
    if let Some(position) = template(text) {
        let reason = "a Go template, which frpc fills from its environment: fill it first, the file is not read";
        diagnostics.error(Location { file, position }, reason);
        return Vec::new();
    }
    let extension = Path::new(&input.name)
        .extension()
        .and_then(|extension| extension.to_str());
    let root = match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("yaml" | "yml" | "json") => return input.yaml(file, diagnostics),
        // An object of Kubernetes on stdin, which has no extension.
        _ if text.contains("\nkind:") || text.starts_with("kind:") => return input.yaml(file, diagnostics),
        // frpc, too, detects INI by this section.
        extension if extension != Some("toml") && text.lines().any(|line| line.trim() == "[common]") => {
            file_diagnostics.fault(Position::START, "", INI);
            None
        }
        _ => toml_tree::read(text, &file_diagnostics),
    };
    diagnostics.unreadable(file, file_diagnostics);
    root.into_iter().collect()
}

/// Returns the position of the first `{{` outside comment lines.
fn template(text: &str) -> Option<Position> {
    let (line, column) = text.lines().zip(1..).find_map(|(line, number)| {
        let comment = line.trim_start().starts_with(['#', ';']);
        let at = line.find("{{").filter(|_| !comment)?;
        Some((number, line.get(..at)?.chars().count()))
    })?;
    Some(Position {
        line,
        column: u64::try_from(column).unwrap_or(u64::MAX).saturating_add(1),
    })
}

/// Returns the proxies of a file that frpc starts. `diagnostics` get the other contents.
fn proxies<'a>(root: ValueRef<'a>, diagnostics: &mut ImportDiagnostics) -> Vec<Proxy<'a>> {
    if !root.has_no_duplicates(diagnostics) {
        return Vec::new();
    }
    if let Some(kind) = root.text_of("kind") {
        let reason = format!("a Kubernetes object of the kind {}: {NO_FRPC}", shown(kind));
        diagnostics.error(root.location(), reason);
        return Vec::new();
    }
    for (key, reason) in [
        ("includes", "further files, which are not read: give them as arguments"),
        (
            "store",
            "further proxies, which frpc keeps elsewhere and which are not read",
        ),
        ("visitors", "visitors use proxies of others, and switchboard has none"),
    ] {
        if let Some(at) = root.get(key) {
            diagnostics.warning(at.location(), format!("{key}: {reason}"));
        }
    }
    let of_frps: Vec<_> = root.pairs().filter(|pair| !READ.contains(&pair.key.as_str())).collect();
    if let Some(first) = of_frps.first() {
        let keys: Vec<_> = of_frps.iter().map(|pair| shown(&pair.key)).collect();
        let keys = keys.join(", ");
        diagnostics.note(
            first.location,
            format!("of the connection to frps, which is not needed any more: {keys}"),
        );
    }
    let started: Vec<&str> = root.items_of("start").filter_map(ValueRef::text).collect();
    let starts = |proxy: &Proxy<'_>, diagnostics: &mut ImportDiagnostics| {
        let starts = started.is_empty() || started.contains(&proxy.name);
        if !starts {
            let name = shown(proxy.name);
            diagnostics.note(
                proxy.location,
                format!("the proxy {name} is not in `start`, so frpc does not start it"),
            );
        }
        starts
    };
    let all = root.items_of("proxies").map(Proxy::new);
    all.filter(|proxy| starts(proxy, diagnostics)).collect()
}

const NO_FRPC: &str =
    "for EnvoyFilters use `switchboard import envoyfilter`, of a ConfigMap give the file in its `data`";
const INI: &str =
    "the INI format, which frp has deprecated: rewrite the file as TOML, YAML or JSON, which frpc reads as well";
/// The keys of a file, in snake_case, that are read or have their own diagnostic.
const READ: [&str; 5] = ["includes", "store", "visitors", "start", "proxies"];

#[cfg(test)]
mod tests;
