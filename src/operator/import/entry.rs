//! One imported name and its target.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::diagnostics::{ImportDiagnostics, Location};
use crate::base::authority::{Authority, AuthorityError};
use crate::base::values::is_label;
use crate::tunnel::limits::Rate;
use crate::tunnel::proxy_header::Version;

/// A name that clients request, and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Authority,
    pub(super) target: Target,
    pub(super) settings: Settings,
    /// The group whose members share the name, in frp.
    pub(super) group: Option<String>,
    pub(super) location: Location,
}

/// The target of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A Service, and its port; `None` if the file does not say it.
    Service(Service, Option<u16>),
    /// Addresses; at least one.
    Addresses(Vec<SocketAddr>),
}

/// The identity of a Service: both parts are DNS labels (RFC 1123), which neither a shell nor kubectl takes for
/// anything but names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Service {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
}

/// The settings of a target; `None` for the proxy's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// The idle timeout; zero for no timeout.
    pub(super) idle: Option<Duration>,
    pub(super) proxy_header: Option<Version>,
    /// The rate of each tunnel and direction.
    pub(super) rate: Option<Rate>,
}

impl Service {
    /// Creates it from a name and namespace; `None` if one of them is not a DNS label.
    pub(super) fn new(name: &str, namespace: &str) -> Option<Self> {
        (is_label(name) && is_label(namespace)).then(|| Self {
            namespace: namespace.into(),
            name: name.into(),
        })
    }
}

/// Parses the exact name of a target, with its port.
pub(super) fn exact_name(text: &str) -> Result<Authority, String> {
    match text.contains('*') {
        true => Err("a pattern, and names match exactly: give the names".to_owned()),
        false => text.parse().map_err(|error: AuthorityError| error.to_string()),
    }
}

/// Returns each name once, in the order of the files. Members of a group become one entry; a different entry of a known name
/// is an error.
pub(super) fn by_name(entries: Vec<Entry>, diagnostics: &mut ImportDiagnostics) -> Vec<Entry> {
    let mut kept: Vec<Entry> = Vec::new();
    let mut known: HashMap<Authority, usize> = HashMap::new();
    for entry in entries {
        let Some(first) = known.get(&entry.name).and_then(|index| kept.get_mut(*index)) else {
            known.insert(entry.name.clone(), kept.len());
            kept.push(entry);
            continue;
        };
        let is_same = first.target == entry.target && first.settings == entry.settings;
        match (&mut first.target, &entry.target) {
            _ if is_same => {}
            (Target::Addresses(addresses), Target::Addresses(more))
                if first.group.is_some() && first.group == entry.group && first.settings == entry.settings =>
            {
                addresses.extend(more);
                addresses.sort_unstable();
                addresses.dedup();
            }
            _ => {
                let (name, first) = (&entry.name, diagnostics.shown(first.location));
                diagnostics.error(
                    entry.location,
                    format!(
                        "{name} is already printed from {first}, with another target or other settings: this one is left out"
                    ),
                );
            }
        }
    }
    kept
}
