//! The settings of the allowlist: the names of Services, and the fate of their clients.

use std::sync::Arc;
use std::time::Duration;

/// The names of Services, and what happens to a client whose Service has no endpoint or is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The suffixes of a Service's names.
    pub suffixes: Arc<Suffixes>,
    /// True if the tunnels of a Service go on when it leaves the allowlist.
    pub keeps_removed: bool,
    /// The longest wait of a client for an endpoint of a Service that has none.
    pub wait_for_ready: Duration,
    /// The time that a woken target has to start; `None` wakes no target.
    pub wake: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            suffixes: Arc::default(),
            keeps_removed: false,
            wait_for_ready: Duration::from_secs(10),
            wake: None,
        }
    }
}

/// The suffixes of a Service's names after `svc.ns`: `.svc`, `.svc.<cluster domain>` and the public suffixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suffixes(Vec<Box<str>>);

impl Suffixes {
    /// Creates the suffixes of a cluster with that domain. Case, dots at the end, and a dot before a public
    /// suffix do not matter.
    pub fn new<'a>(cluster_domain: &str, public: impl IntoIterator<Item = &'a str>) -> Self {
        let spelled = |name: &str| format!(".{}", name.trim_matches('.').to_ascii_lowercase()).into();
        let cluster = [spelled("svc"), spelled(&format!("svc.{cluster_domain}"))];
        let mut suffixes: Vec<Box<str>> = cluster.into_iter().chain(public.into_iter().map(spelled)).collect();
        suffixes.retain(|suffix| suffix.len() > 1);
        // The longest first: of two that match, the longer one is meant.
        suffixes.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        suffixes.dedup();
        Self(suffixes)
    }

    /// Returns the host without its suffix: the shortest name of a Service, `svc.ns`. Any other host is returned as is.
    pub fn strip<'a>(&self, host: &'a str) -> &'a str {
        self.0
            .iter()
            .filter_map(|suffix| host.strip_suffix(&**suffix))
            .find(|rest| rest.contains('.'))
            .unwrap_or(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_stripped_to_the_shortest() {
        let suffixes = Suffixes::new("Cluster.Local.", ["ssh.example.com", ".example.com", ""]);
        for (host, name) in [
            ("svc-a.team-a", "svc-a.team-a"),
            ("svc-a.team-a.svc", "svc-a.team-a"),
            ("svc-a.team-a.svc.cluster.local", "svc-a.team-a"),
            ("svc-a.team-a.ssh.example.com", "svc-a.team-a"),
            ("svc-a.team-a.example.com", "svc-a.team-a"),
            // A Service in the namespace `ssh`, and one in the namespace `svc`.
            ("svc-a.ssh.example.com", "svc-a.ssh"),
            ("svc-a.svc", "svc-a.svc"),
            ("svc-a.svc.svc", "svc-a.svc"),
            ("svc-a.team-a.cluster.local", "svc-a.team-a.cluster.local"),
            ("svc-a", "svc-a"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(suffixes.strip(host), name, "{host}");
        }
    }
}
