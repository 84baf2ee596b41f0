//! Prints labels and annotations of Services as shell commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::cluster_names::ClusterNames;
use super::diagnostics::{ImportDiagnostics, Location};
use super::entry::{Entry, Service, Settings, Target};

/// The port and settings of a Service, and their location.
#[derive(Clone, Debug)]
struct Plan {
    port: Option<u16>,
    settings: Settings,
    location: Location,
}

/// Returns the commands for all entries whose targets are Services. Annotations come before the label, so that no Service is
/// exposed without its settings.
pub(super) fn lines(entries: Vec<Entry>, names: &ClusterNames, diagnostics: &mut ImportDiagnostics) -> String {
    let mut suffixes = BTreeSet::new();
    let mut plans: BTreeMap<Service, Plan> = BTreeMap::new();
    for entry in entries {
        let Target::Service(service, port) = entry.target else {
            let reason = "points to addresses, which have no label: use --format static";
            diagnostics.error(entry.location, format!("{} {reason}", entry.name));
            continue;
        };
        match names.suffix(&service, port, &entry.name) {
            Ok(suffix) => suffixes.extend(suffix),
            Err(reason) => {
                diagnostics.error(entry.location, format!("{}: {reason}", entry.name));
                continue;
            }
        }
        let plan = Plan {
            port,
            settings: entry.settings,
            location: entry.location,
        };
        let first = plans.entry(service).or_insert_with(|| plan.clone());
        if first.port != port || first.settings != plan.settings {
            let location = diagnostics.shown(first.location);
            let reason = format!(
                "{}: its Service has another port or other settings at {location}",
                entry.name
            );
            diagnostics.error(entry.location, reason);
        }
    }
    let mut text = String::new();
    if !suffixes.is_empty() {
        let suffixes: Vec<_> = suffixes.into_iter().collect();
        writeln!(
            text,
            "# The names need this setting of the proxy:\n#   allowlist.kubernetes.public_suffixes: {suffixes:?}"
        )
        .ok();
    }
    for (service, plan) in &plans {
        push(&mut text, service, plan);
    }
    text
}

fn push(text: &mut String, service: &Service, plan: &Plan) {
    let Service { namespace, name } = service;
    let [namespace, name] = [namespace, name].map(|word| quoted(word));
    let annotations: Vec<String> = annotations(plan)
        .map(|(key, value)| format!(" switchboard.dev/{key}={}", quoted(&value)))
        .collect();
    // Writing to a String does not fail.
    if !annotations.is_empty() {
        let annotations = annotations.concat();
        writeln!(text, "kubectl -n {namespace} annotate service {name}{annotations}").ok();
    }
    writeln!(
        text,
        "kubectl -n {namespace} label service {name} switchboard.dev/expose=true"
    )
    .ok();
}

fn annotations(plan: &Plan) -> impl Iterator<Item = (&'static str, String)> {
    let Settings {
        idle,
        proxy_header,
        rate,
    } = &plan.settings;
    let idle = idle.map(|idle| match idle.as_millis() {
        0 => "off".to_owned(),
        millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
        millis => format!("{millis}ms"),
    });
    let rate = rate.map(|rate| rate.to_string().replace(' ', ""));
    [
        ("port", plan.port.map(|port| port.to_string())),
        ("idle-timeout", idle),
        ("send-proxy-protocol", proxy_header.map(|version| version.to_string())),
        ("download", rate.clone()),
        ("upload", rate),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

/// Returns a word, quoted for a shell unless each character is harmless. Today every word is harmless, since all are
/// printed from parsed values.
fn quoted(word: &str) -> String {
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/' | b':');
    match !word.is_empty() && word.bytes().all(is_harmless) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_word_of_a_shell() {
        for (word, printed) in [
            ("svc-a", "svc-a"),
            ("10MiB/s", "10MiB/s"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(id);'\n`", "'$(id);'\\''\n`'"),
        ] {
            assert_eq!(quoted(word), printed);
        }
    }
}
