//! The settings of a process: one YAML file, overlaid by flags and environment.

mod fault;
mod kubernetes;
mod limits;
mod listen;
mod schema;
mod section;
mod tls;
mod tree;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

pub use fault::{Fault, Faults, LoadError};

use crate::allowlist::StaticTarget;
use crate::connect;
use crate::drain;
use crate::limits::Limits;
use crate::net::dial;
use crate::relay;
use crate::ssh::identification;
use crate::tunnel::Port;
use fault::Gathered;
use section::Field;

/// Every setting, checked. `config/switchboard.yaml` documents each with its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The public ports; at least one.
    pub listen: Vec<Port>,
    /// Where metrics and health are served.
    pub admin: SocketAddr,
    /// The targets that need no cluster; no two have one name.
    pub targets: Vec<StaticTarget>,
    /// Which cluster has more of them, if any.
    pub kubernetes: Option<crate::kubernetes::Options>,
    /// What bounds tunnels, each and together.
    pub limits: Limits,
    /// What is shown to clients who speak TLS, and wanted of them.
    pub tls: crate::tls::Settings,
    /// How long a TLS handshake may take.
    pub handshake: crate::tls::Options,
    /// How long a request head may take.
    pub connect: connect::Options,
    /// How long a dial may take.
    pub dial: dial::Options,
    /// How long both sides may take to say that they speak SSH.
    pub identification: identification::Options,
    /// How long a tunnel may be silent.
    pub relay: relay::Options,
    /// How a shutdown goes.
    pub drain: drain::Options,
}

/// What the file `{}` says: `0.0.0.0:8080` for clients, `0.0.0.0:9090` for the operator, and no targets.
impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)).into()],
            admin: (Ipv4Addr::UNSPECIFIED, 9090).into(),
            targets: Vec::new(),
            kubernetes: None,
            limits: Limits::default(),
            tls: crate::tls::Settings::default(),
            handshake: crate::tls::Options::default(),
            connect: connect::Options::default(),
            dial: dial::Options::default(),
            identification: identification::Options::default(),
            relay: relay::Options::default(),
            drain: drain::Options::default(),
        }
    }
}

impl Config {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Every fault of the file at once; after a syntax error, what is wrong before it and the error itself.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        Self::parse_bytes(text.as_bytes())
    }

    /// Reads a file of at most 1 MiB.
    ///
    /// # Errors
    /// When it can not be read, or has faults.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
            .map_err(|source| LoadError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
        Self::parse_bytes(&bytes).map_err(|faults| LoadError::Faulty {
            path: path.to_owned(),
            faults,
        })
    }

    /// This configuration with what the command line and the environment say in its place.
    ///
    /// A target is added, or replaces the one of the same name.
    #[must_use]
    pub fn overridden(mut self, by: Overrides) -> Self {
        if !by.listen.is_empty() {
            self.listen = by.listen.into_iter().map(Port::from).collect();
        }
        self.admin = by.admin.unwrap_or(self.admin);
        let mut places: HashMap<_, _> = self.targets.iter().map(|target| target.name.clone()).zip(0..).collect();
        for target in by.allow {
            let next = self.targets.len();
            let place = *places.entry(target.name.clone()).or_insert(next);
            match self.targets.get_mut(place) {
                Some(known) => *known = target,
                None => self.targets.push(target),
            }
        }
        self
    }

    /// The sections in which `new` differs and that a running process can not change; targets, limits and TLS it can.
    pub fn changes_needing_restart(&self, new: &Self) -> Vec<&'static str> {
        // By name, so that a new field must be sorted into one of the two.
        let Self {
            listen,
            admin,
            targets: _,
            kubernetes: _,
            limits: _,
            tls: _,
            handshake,
            connect,
            dial,
            identification,
            relay,
            drain,
        } = self;
        [
            ("listen", *listen != new.listen),
            ("admin", *admin != new.admin),
            (
                "timeouts",
                *handshake != new.handshake
                    || *connect != new.connect
                    || *dial != new.dial
                    || *identification != new.identification
                    || *relay != new.relay,
            ),
            ("drain", *drain != new.drain),
        ]
        .into_iter()
        .filter_map(|(section, changed)| changed.then_some(section))
        .collect()
    }

    /// How many of its static targets `new` has not.
    pub fn targets_lost_in(&self, new: &Self) -> usize {
        let stay: HashSet<_> = new.targets.iter().map(|target| &target.name).collect();
        self.targets
            .iter()
            .filter(|target| !stay.contains(&target.name))
            .count()
    }

    fn parse_bytes(bytes: &[u8]) -> Result<Self, Faults> {
        let faults = Gathered::default();
        let config = text(bytes, &faults)
            .and_then(|text| tree::read(text, &faults))
            .and_then(|tree| Field::root(&tree, &faults).section(schema::config));
        faults.or(config.unwrap_or_default())
    }
}

/// What flags and environment set; empty or `None` leaves the file's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// In place of every listener.
    pub listen: Vec<SocketAddr>,
    /// In place of the admin address.
    pub admin: Option<SocketAddr>,
    /// Further targets.
    pub allow: Vec<StaticTarget>,
}

fn text<'a>(bytes: &'a [u8], faults: &Gathered) -> Option<&'a str> {
    if bytes.len() as u64 > LARGEST {
        faults.push(None, "", "larger than 1 MiB");
        return None;
    }
    std::str::from_utf8(bytes)
        .map_err(|error| {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
            faults.push(u64::try_from(line).ok(), "", "not UTF-8");
        })
        .ok()
}

/// 1 MiB: 20,000 short static targets, and as large as a ConfigMap can be.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::{Rate, Size, TunnelOverrides};
    use crate::net::proxy_header;

    /// The file that documents every key.
    const DOCUMENTED: &str = include_str!("../config/switchboard.yaml");

    /// Every key, with a value that is not the default.
    const FULL: &str = r#"
listen:
  - 127.0.0.1:1080
  - {address: "[::1]:0"}
  - address: "[::1]:0"
    proxy_protocol: required
    trusted_proxies: [10.0.0.0/8, "fd00::/8"]
    reuse_port: true
admin: "127.0.0.1:1090"
allowlist:
  static:
    - name: Devbox.Local.:22
      addresses: ["127.0.0.1:2222", "[fd00::1]:22"]
      limits: &slow {download: 10MiB/s, upload: 80Mbit/s, burst: 64KiB, lifetime: 12h}
    - {name: "other:22", addresses: [10.0.0.1:22], limits: *slow}
    - name: "plain:22"
      addresses: [10.0.0.2:22]
      limits: {lifetime: unlimited}
      send_proxy_protocol: v2
      ssh_only: true
  kubernetes:
    enabled: true
    kubeconfig: /etc/switchboard/kubeconfig
    namespaces: [team-a, team-b]
    namespace_selector: "ssh in (yes, maybe)"
    selector: expose
    annotation_prefix: ssh.example.com/
    cluster_domain: Cluster.Example.
    public_suffixes: [ssh.example.com, .other.example.]
    alias_port: 2222
    allowed_cidrs: [10.0.0.0/8, "fd00::/8"]
    wait_for_ready: 0s
    on_removal: keep
    snapshot_file: /var/lib/switchboard/snapshot
limits:
  tunnel: {download: 50MiB/s, upload: unlimited, burst: 2MiB, lifetime: 2d}
  target: {max_tunnels: 20, max_dials: unlimited}
  client: {max_tunnels: 8, max_unfinished: 4, connects_per_second: 2, connects_burst: 9}
  total: {max_tunnels: unlimited, max_unfinished: 1000}
  ceiling: {download: 1GiB/s, upload: 80Mbit/s, ssh_only: true}
ssh_only: false
timeouts:
  head: 250ms
  tls_handshake: 2s
  dial_try: 1s
  dial: 1m30s
  identification: 2s
  idle: 1h30m
  half_closed: 10s
drain: {delay: 0s, timeout: 0s, spread: 0s}
"#;

    fn faults(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    fn target(name: &str, address: &str) -> StaticTarget {
        format!("{name}={address}").parse().unwrap()
    }

    #[test]
    fn the_documented_file_is_the_default() {
        assert_eq!(Config::parse(DOCUMENTED), Ok(Config::default()));
    }

    /// Asks every section for what it knows, by a key that none knows, and looks for it in the documentation.
    #[test]
    fn the_documented_file_holds_every_key() {
        let asked = "zzz: 1\nallowlist: {zzz: 1, static: [{zzz: 1, limits: {zzz: 1}}], kubernetes: {zzz: 1}}\nlisten: {zzz: 1}\ntls: {zzz: 1, certificates: [{zzz: 1}]}\n\
                     limits: {zzz: 1, tunnel: {zzz: 1}, target: {zzz: 1}, client: {zzz: 1}, total: {zzz: 1}, ceiling: {zzz: 1}}\ntimeouts: {zzz: 1}\ndrain: {zzz: 1}\n";
        let told = Config::parse(asked).unwrap_err();
        let known: BTreeSet<&str> = told
            .iter()
            .filter_map(|fault| fault.reason.strip_prefix("unknown key; known here: "))
            .flat_map(|names| names.split(", "))
            .collect();
        assert!(known.len() > 15, "{known:?}");
        for name in known {
            assert!(DOCUMENTED.contains(&format!("{name}:")), "{name}");
        }
    }

    /// The cluster of [`FULL`].
    fn cluster() -> crate::kubernetes::Options {
        crate::kubernetes::Options {
            kubeconfig: Some("/etc/switchboard/kubeconfig".into()),
            namespaces: vec!["team-a".into(), "team-b".into()],
            namespace_selector: Some("ssh in (yes, maybe)".into()),
            selector: "expose".into(),
            annotation_prefix: "ssh.example.com/".into(),
            cluster_domain: "cluster.example".into(),
            public_suffixes: vec!["ssh.example.com".into(), "other.example".into()],
            alias_port: 2222,
            allowed_cidrs: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            wait_for_ready: Duration::ZERO,
            keeps_removed: true,
            snapshot_file: Some("/var/lib/switchboard/snapshot".into()),
            knows_clients: false,
        }
    }

    /// The caps of [`FULL`].
    fn caps() -> crate::limits::Caps {
        use crate::limits::{Caps, ClientCaps, TargetCaps, TotalCaps};
        Caps {
            total: TotalCaps {
                tunnels: None,
                unfinished: NonZeroU32::new(1000),
            },
            client: ClientCaps {
                tunnels: NonZeroU32::new(8),
                unfinished: NonZeroU32::new(4),
                connects_per_second: NonZeroU32::new(2),
                connects_burst: NonZeroU32::new(9).unwrap(),
            },
            target: TargetCaps {
                tunnels: NonZeroU32::new(20),
                dials: None,
            },
        }
    }

    /// The limits of [`FULL`].
    fn limits() -> Limits {
        Limits {
            tunnel: crate::limits::TunnelLimits {
                download: Rate::per_second(50 << 20).unwrap(),
                upload: Rate::UNLIMITED,
                burst: Size::bytes(2 << 20).unwrap(),
                lifetime: Some(Duration::from_secs(2 * 24 * 3600)),
            },
            ceiling: crate::limits::Ceiling {
                download: Rate::per_second(1 << 30).unwrap(),
                upload: Rate::per_second(10_000_000).unwrap(),
                ssh_only: true,
            },
            caps: caps(),
            any_protocol: true,
            ..Limits::default()
        }
    }

    /// The targets of [`FULL`].
    fn targets() -> Vec<StaticTarget> {
        let slow = TunnelOverrides {
            download: Rate::per_second(10 << 20),
            upload: Rate::per_second(10_000_000),
            burst: Size::bytes(64 << 10),
            lifetime: Some(Some(Duration::from_secs(12 * 3600))),
            any_protocol: None,
        };
        let mut targets = vec![
            target("devbox.local:22", "127.0.0.1:2222,[fd00::1]:22"),
            target("other:22", "10.0.0.1:22"),
            target("plain:22", "10.0.0.2:22"),
        ];
        targets[0].limits = slow;
        targets[1].limits = slow;
        targets[2].limits.lifetime = Some(None);
        targets[2].limits.any_protocol = Some(false);
        targets[2].send_proxy_header = Some(proxy_header::Version::V2);
        targets
    }

    #[test]
    fn every_key_is_read() {
        let address = |text: &str| Port::from(text.parse::<SocketAddr>().unwrap());
        let mut behind_a_balancer = address("[::1]:0");
        behind_a_balancer.listener.reuse_port = true;
        behind_a_balancer.proxy_header = proxy_header::Policy::Required {
            trusted: ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).into(),
        };
        let expected = Config {
            listen: vec![address("127.0.0.1:1080"), address("[::1]:0"), behind_a_balancer],
            admin: "127.0.0.1:1090".parse().unwrap(),
            targets: targets(),
            kubernetes: Some(cluster()),
            limits: limits(),
            tls: crate::tls::Settings::default(),
            handshake: crate::tls::Options {
                handshake: Duration::from_secs(2),
            },
            connect: connect::Options {
                head: Duration::from_millis(250),
            },
            dial: dial::Options {
                dial_try: Duration::from_secs(1),
                dial: Duration::from_secs(90),
            },
            identification: identification::Options {
                identification: Duration::from_secs(2),
            },
            relay: relay::Options {
                idle: Some(Duration::from_secs(5400)),
                half_closed: Duration::from_secs(10),
            },
            drain: drain::Options {
                delay: Duration::ZERO,
                timeout: Duration::ZERO,
                spread: Duration::ZERO,
            },
        };
        assert_eq!(Config::parse(FULL), Ok(expected));
    }

    #[test]
    fn what_is_absent_or_null_has_its_default() {
        let nulls = "listen: ~\nadmin:\nallowlist: {static: null}\nlimits: {tunnel: {burst: null}}\n\
                     timeouts:\n  idle: null\ndrain:\n";
        for text in ["{}", "---\n{}\n", nulls] {
            assert_eq!(Config::parse(text), Ok(Config::default()), "{text:?}");
        }
        let scalar = Config::parse("listen: \"[::]:8081\"").unwrap();
        assert_eq!(scalar.listen[0].listener.address, "[::]:8081".parse().unwrap());
        assert_eq!(scalar.admin, Config::default().admin);
    }

    /// Texts, and what is told of each.
    fn assert_faults(table: &[(&str, &str)]) {
        for (text, expected) in table {
            assert_eq!(faults(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn a_wrong_shape_is_named() {
        assert_faults(&[
            ("- a", "line 1: expected a map (found a list)"),
            ("admin", "line 1: expected a map (found a single value)"),
            ("drain: 5s", "line 1: drain: expected a map (found a single value)"),
            ("admin: []", "line 1: admin: expected a single value (found a list)"),
            (
                "timeouts:\n  head:\n    - 1s",
                "line 2: timeouts.head: expected a single value (found a list)",
            ),
            (
                "allowlist: {static: {}}",
                "line 1: allowlist.static: expected a list (found a map)",
            ),
            (
                "allowlist:\n  static:\n    - x\n",
                "line 3: allowlist.static[0]: expected a map (found a single value)",
            ),
            ("a: [", "line 1: not YAML: unclosed bracket '['"),
        ]);
    }

    #[test]
    fn unknown_and_duplicate_keys_are_refused() {
        assert_faults(&[
            (
                "drain:\n  delay: 1s\n  dealy: 1s\n",
                "line 3: drain.dealy: unknown key; known here: delay, timeout, spread",
            ),
            (
                "tsl: {}\n",
                "line 1: tsl: unknown key; known here: tls, listen, admin, allowlist, limits, ssh_only, timeouts, drain",
            ),
            (
                "allowlist: {<<: {}}",
                "line 1: allowlist.<<: unknown key; known here: static, kubernetes",
            ),
            (
                "\n\"\\e[1m\": 1",
                "line 2: \\u{1b}[1m: unknown key; known here: tls, listen, admin, allowlist, limits, ssh_only, timeouts, drain",
            ),
            (
                "drain:\n  delay: 1s\n  delay: 1s\n",
                "line 3: drain.delay: duplicate key; it is on line 2 too",
            ),
            (
                "admin: 1.1.1.1:1\nadmin: 1.1.1.1:1\n",
                "line 2: admin: duplicate key; it is on line 1 too",
            ),
        ]);
    }

    #[test]
    fn the_settings_of_the_cluster_are_checked_even_if_they_are_off() {
        for (setting, reason) in [
            ("enabled: yes", "enabled: expected `true` or `false` (found `yes`)"),
            (
                "namespaces: [Team]",
                "namespaces[0]: expected the name of a Namespace: lower case letters, digits and `-` (found `Team`)",
            ),
            ("namespaces: team", "namespaces: expected a list (found a single value)"),
            (
                "selector: ''",
                "selector: expected a label selector such as `switchboard.dev/expose=true` (found ``)",
            ),
            (
                "annotation_prefix: switchboard.dev",
                "annotation_prefix: expected a DNS name with a slash, such as `switchboard.dev/` (found `switchboard.dev`)",
            ),
            (
                "public_suffixes: ['*.example.com']",
                "public_suffixes[0]: expected a DNS name such as `ssh.example.com` (found `*.example.com`)",
            ),
            ("alias_port: 0", "alias_port: expected a port: 1 to 65535 (found `0`)"),
            (
                "allowed_cidrs: [10.0.0.1]",
                "allowed_cidrs[0]: expected a network such as `10.0.0.0/8` or `fd00::/8` (found `10.0.0.1`)",
            ),
            ("wait_for_ready: 2h", "wait_for_ready: must be at most 1h (found `2h`)"),
            (
                "on_removal: drop",
                "on_removal: expected `close` or `keep` (found `drop`)",
            ),
        ] {
            let text = format!("allowlist: {{kubernetes: {{{setting}}}}}");
            assert_eq!(faults(&text), format!("line 1: allowlist.kubernetes.{reason}"));
        }
        let off = Config::parse("allowlist: {kubernetes: {enabled: false, alias_port: 23}}").unwrap();
        assert_eq!(off.kubernetes, None);
        let on = Config::parse("allowlist: {kubernetes: {enabled: true}}").unwrap();
        assert_eq!(on.kubernetes, Some(crate::kubernetes::Options::default()));
    }

    #[test]
    fn addresses_to_listen_on_are_checked() {
        assert_faults(&[
            ("listen: []", "line 1: listen: at least one address is needed"),
            (
                "listen:\n  -\n",
                "line 2: listen[0]: expected a single value (found nothing)",
            ),
            ("listen: {}", "line 1: listen: `address` is missing"),
            (
                "listen: {zzz: off}",
                "line 1: listen: `address` is missing\n\
                 line 1: listen.zzz: unknown key; known here: address, tls, proxy_protocol, trusted_proxies, reuse_port",
            ),
            (
                "listen: [localhost:8080]",
                "line 1: listen[0]: expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `localhost:8080`)",
            ),
            (
                "listen: 8080",
                "line 1: listen: expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `8080`)",
            ),
            (
                "listen:\n  - 1.1.1.1:1\n  - {address: 1.1.1.1:1}\n",
                "line 3: listen[1].address: 1.1.1.1:1 is on line 2 too",
            ),
            (
                "listen: 0.0.0.0:9090",
                "line 1: listen: `listen` and `admin` are both 0.0.0.0:9090",
            ),
            (
                "\nadmin: 0.0.0.0:8080",
                "line 2: admin: `listen` and `admin` are both 0.0.0.0:8080",
            ),
            (
                "\nadmin: 127.0.0.1:8080",
                "line 2: admin: 127.0.0.1:8080 cannot be had beside 0.0.0.0:8080 of `listen`",
            ),
            (
                "listen: {address: \"[::1]:1\", reuse_port: true}\nadmin: \"[::]:1\"",
                "line 2: admin: [::]:1 cannot be had beside [::1]:1 of `listen`",
            ),
            (
                "listen:\n  - 1.1.1.1:1\n  - {address: 0.0.0.0:1, reuse_port: true}\n",
                "line 3: listen[1].address: 0.0.0.0:1 cannot be had beside 1.1.1.1:1 on line 2",
            ),
        ]);
        for sound in [
            "listen: [1.1.1.1:1, 1.1.1.2:1, 0.0.0.0:2, 0.0.0.0:0, 127.0.0.1:0]\nadmin: 0.0.0.0:3",
            // On hosts where IPv6 does not stand for both.
            "listen: [0.0.0.0:1, \"[::]:1\"]",
            "listen: [{address: 0.0.0.0:1, reuse_port: true}, {address: 127.0.0.1:1, reuse_port: true}]",
        ] {
            Config::parse(sound).unwrap();
        }
    }

    #[test]
    fn a_header_is_taken_from_somebody_or_not_at_all() {
        for (settings, reason) in [
            (
                "proxy_protocol: required",
                "proxy_protocol: needs `trusted_proxies`: else anyone could claim any address",
            ),
            (
                "proxy_protocol: required, trusted_proxies: []",
                "proxy_protocol: needs `trusted_proxies`: else anyone could claim any address",
            ),
            (
                "trusted_proxies: [10.0.0.0/8]",
                "trusted_proxies: of no use without `proxy_protocol: required`",
            ),
            (
                "proxy_protocol: off, trusted_proxies: [10.0.0.0/8]",
                "trusted_proxies: of no use without `proxy_protocol: required`",
            ),
            (
                "proxy_protocol: optional, trusted_proxies: [10.0.0.0/8]",
                "proxy_protocol: must be `off` or `required`: if the header may be absent, a client can write it \
                 (found `optional`)",
            ),
            (
                "proxy_protocol: v1",
                "proxy_protocol: expected `off` or `required` (found `v1`)",
            ),
            (
                "proxy_protocol: required, trusted_proxies: [10.0.0.1]",
                "trusted_proxies[0]: expected a network such as `10.0.0.0/8` or `fd00::/8` (found `10.0.0.1`)",
            ),
            (
                "proxy_protocol: required, trusted_proxies: 10.0.0.0/8",
                "trusted_proxies: expected a list (found a single value)",
            ),
        ] {
            let text = format!("listen: {{address: 1.1.1.1:1, {settings}}}");
            assert_eq!(faults(&text), format!("line 1: listen.{reason}"));
        }
        let off = Config::parse("listen: {address: 1.1.1.1:1, proxy_protocol: off, trusted_proxies: []}").unwrap();
        assert_eq!(off.listen, ["1.1.1.1:1".parse::<SocketAddr>().unwrap().into()]);
    }

    #[test]
    fn durations_are_checked() {
        assert_faults(&[
            (
                "timeouts: {head: 10}",
                "line 1: timeouts.head: expected a duration such as `250ms`, `10s` or `1h30m` (found `10`)",
            ),
            (
                "timeouts: {head: 0s}",
                "line 1: timeouts.head: must be more than 0s (found `0s`)",
            ),
            (
                "timeouts: {head: 61m}",
                "line 1: timeouts.head: must be at most 1h (found `61m`)",
            ),
            (
                "timeouts: {half_closed: 0}",
                "line 1: timeouts.half_closed: must be more than 0s (found `0`)",
            ),
            (
                "timeouts: {half_closed: 366d}",
                "line 1: timeouts.half_closed: must be at most 365d (found `366d`)",
            ),
            (
                "timeouts: {idle: 0s}",
                "line 1: timeouts.idle: must be more than 0s, or `off` (found `0s`)",
            ),
            (
                "timeouts: {idle: unlimited}",
                "line 1: timeouts.idle: expected a duration such as `250ms`, `10s` or `1h30m`, or `off` \
                 (found `unlimited`)",
            ),
            (
                "drain: {delay: -1s}",
                "line 1: drain.delay: expected a duration such as `250ms`, `10s` or `1h30m` (found `-1s`)",
            ),
            (
                "drain: {delay: 99999999999999999999s}",
                "line 1: drain.delay: expected a duration such as `250ms`, `10s` or `1h30m` \
                 (found `99999999999999999999s`)",
            ),
            (
                "timeouts:\n  dial: 5s\n  dial_try: 6s\n",
                "line 3: timeouts.dial_try: one try (6s) may not take longer than the whole dial (5s)",
            ),
            (
                "timeouts: {dial: 2s}",
                "line 1: timeouts.dial: one try (3s) may not take longer than the whole dial (2s)",
            ),
            // Not compared with the default in place of a faulty value.
            (
                "timeouts: {dial_try: 20s, dial: 0s}",
                "line 1: timeouts.dial: must be more than 0s (found `0s`)",
            ),
        ]);
    }

    #[test]
    fn tunnel_limits_are_checked() {
        assert_faults(&[
            (
                "limits: {tunnel: {download: 50}}",
                "line 1: limits.tunnel.download: expected `unlimited` or a number with a unit such as `50MiB/s` or \
                 `80Mbit/s` (found `50`)",
            ),
            (
                "limits: {tunnel: {burst: 0B}}",
                "line 1: limits.tunnel.burst: must be at least 1 byte (found `0B`)",
            ),
            (
                "limits: {tunnel: {lifetime: off}}",
                "line 1: limits.tunnel.lifetime: expected a duration such as `250ms`, `10s` or `1h30m`, or \
                 `unlimited` (found `off`)",
            ),
            (
                "limits: {target: {max_tunnels: 0}, client: {connects_burst: unlimited}, total: {max_tunnels: 5k}}",
                "line 1: limits.target.max_tunnels: expected a whole number of at least 1, or `unlimited` (found `0`)\n\
                 line 1: limits.client.connects_burst: expected a whole number of at least 1 (found `unlimited`)\n\
                 line 1: limits.total.max_tunnels: expected a whole number of at least 1, or `unlimited` (found `5k`)",
            ),
            (
                "limits: {roof: {download: unlimited}}",
                "line 1: limits.roof: unknown key; known here: tunnel, target, client, total, ceiling",
            ),
        ]);
    }

    #[test]
    fn names_that_nobody_can_show_are_told_with_all_other_faults() {
        let named = "allowlist:\n  static:\n    - name: a:1\n      addresses: [1.1.1.1:1]\n      allowed_clients: [x]\n    \
                     - name: b:1\n      addresses: [b]\n      allowed_clients: []\n";
        let nobody = "nobody can show a certificate: it needs `tls.client_auth`, and a port with `tls`";
        assert_eq!(
            faults(named),
            format!(
                "line 5: allowlist.static[0].allowed_clients: {nobody}\n\
                 line 7: allowlist.static[1].addresses[0]: names are not resolved: give IP:port (found `b`)\n\
                 line 8: allowlist.static[1].allowed_clients: {nobody}\n\
                 line 8: allowlist.static[1].allowed_clients: at least one name is needed; without the key everybody may \
                 come"
            )
        );
        // What `tls` is to say is not known.
        let unsure = format!("tls: {{client_auth: maybe}}\n{named}");
        assert!(!faults(&unsure).contains(nobody));
    }

    #[test]
    fn each_fault_of_a_target_is_told() {
        for (target, expected) in [
            ("addresses: [1.1.1.1:1]", ": `name` is missing"),
            ("name: a:1", ": `addresses` is missing"),
            ("name: a:1, addresses: []", ".addresses: at least one address is needed"),
            (
                "name: a:1, addresses: 1.1.1.1:1",
                ".addresses: expected a list (found a single value)",
            ),
            (
                "name: a:1, addresses: [1.1.1.1:1, b:1]",
                ".addresses[1]: names are not resolved: give IP:port (found `b:1`)",
            ),
            (
                "name: a:1, addresses: [1.1.1.1:0]",
                ".addresses[0]: port 0 can not be dialled (found `1.1.1.1:0`)",
            ),
            (
                "name: a, addresses: [1.1.1.1:1]",
                ".name: expected the host:port that clients ask for: the request target has no port (found `a`)",
            ),
            (
                "name: a:1, addresses: [1.1.1.1:1], limits: {upload: 1MiB}",
                ".limits.upload: expected `unlimited` or a number with a unit such as `50MiB/s` or `80Mbit/s` \
                 (found `1MiB`)",
            ),
            (
                "name: a:1, addresses: [1.1.1.1:1], rate: 1",
                ".rate: unknown key; known here: name, addresses, limits, ssh_only, send_proxy_protocol, allowed_clients",
            ),
            (
                "name: a:1, addresses: [1.1.1.1:1], send_proxy_protocol: yes",
                ".send_proxy_protocol: expected `v1` or `v2`, or `off` (found `yes`)",
            ),
        ] {
            let text = format!("allowlist:\n  static:\n    - {{{target}}}\n");
            assert_eq!(
                faults(&text),
                format!("line 3: allowlist.static[0]{expected}"),
                "{target}"
            );
        }
        let twice = "allowlist:\n  static:\n    - {name: a:1, addresses: [1.1.1.1:1]}\n    \
                     - {name: A.:1, addresses: [1.1.1.1:1]}\n";
        assert_eq!(faults(twice), "line 4: allowlist.static[1].name: a:1 is on line 3 too");
        let on_one_line =
            "allowlist: {static: [{name: a:1, addresses: [1.1.1.1:1]}, {name: a:1, addresses: [1.1.1.1:1]}]}";
        assert_eq!(
            faults(on_one_line),
            "line 1: allowlist.static[1].name: a:1 is on line 1 too"
        );
    }

    #[test]
    fn all_faults_come_at_once_in_the_order_of_their_lines() {
        let text = "timeouts:\n  head: soon\n  hear: 5s\ndrain:\n  delay: 1s\n  delay: 2s\n\
                    limits: {tunnel: {upload: 1}}\nadmin: here\nlisten: [a, 1.1.1.1:1]\nextra: !x 1\n";
        let told = Config::parse(text).unwrap_err();
        let places: Vec<String> = told
            .iter()
            .map(|fault| format!("{} {}", fault.line.unwrap(), fault.key))
            .collect();
        assert_eq!(
            places,
            [
                "2 timeouts.head",
                "3 timeouts.hear",
                "6 drain.delay",
                "7 limits.tunnel.upload",
                "8 admin",
                "9 listen[0]",
                "10 ",
                "10 extra",
            ]
        );
    }

    #[test]
    fn a_file_is_loaded_or_refused_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("switchboard.yaml");
        let loaded = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            match Config::load(&path) {
                Ok(config) => Ok(config),
                Err(LoadError::Faulty { faults, .. }) => Err(faults.to_string()),
                Err(error @ LoadError::Unreadable { .. }) => panic!("{error}"),
            }
        };
        assert_eq!(loaded(b"{}"), Ok(Config::default()));
        assert_eq!(loaded(FULL.as_bytes()), Ok(Config::parse(FULL).unwrap()));
        assert_eq!(
            loaded(b"admin: 1.1.1.1:1\n\n# \xff"),
            Err("line 3: not UTF-8".to_owned())
        );
        let mut largest = b"admin: 0.0.0.0:9090\n#".to_vec();
        largest.resize(1 << 20, b'x');
        assert_eq!(loaded(&largest), Ok(Config::default()));
        largest.push(b'x');
        assert_eq!(loaded(&largest), Err("larger than 1 MiB".to_owned()));

        let missing = Config::load(&directory.path().join("missing")).unwrap_err();
        assert!(matches!(&missing, LoadError::Unreadable { .. }), "{missing}");
        let not_a_file = Config::load(directory.path()).unwrap_err();
        assert!(matches!(&not_a_file, LoadError::Unreadable { .. }), "{not_a_file}");
    }

    #[test]
    fn flags_stand_above_the_file() {
        let file = Config::parse(FULL).unwrap();
        assert_eq!(file.clone().overridden(Overrides::default()), file);
        let by = Overrides {
            listen: vec!["127.0.0.1:1".parse().unwrap()],
            admin: Some("127.0.0.1:2".parse().unwrap()),
            allow: vec![target("OTHER:22", "10.9.9.9:22"), target("new:22", "10.8.8.8:22")],
        };
        let config = file.overridden(by);
        assert_eq!(config.listen.len(), 1);
        assert_eq!(config.listen[0].listener.address, "127.0.0.1:1".parse().unwrap());
        assert_eq!(config.admin, "127.0.0.1:2".parse().unwrap());
        let targets: Vec<String> = config
            .targets
            .iter()
            .map(|target| format!("{}={}", target.name, target.addresses[0]))
            .collect();
        assert_eq!(
            targets,
            [
                "devbox.local:22=127.0.0.1:2222",
                "other:22=10.9.9.9:22",
                "plain:22=10.0.0.2:22",
                "new:22=10.8.8.8:22",
            ]
        );
    }

    #[test]
    fn only_targets_and_tunnel_limits_change_without_a_restart() {
        let default = Config::default();
        let full = Config::parse(FULL).unwrap();
        let all = ["listen", "admin", "timeouts", "drain"];
        assert_eq!(default.changes_needing_restart(&full), all);
        let live = Config {
            targets: full.targets.clone(),
            limits: full.limits,
            ..default.clone()
        };
        assert!(default.changes_needing_restart(&live).is_empty());
        for timeouts in [
            Config {
                connect: full.connect,
                ..default.clone()
            },
            Config {
                dial: full.dial,
                ..default.clone()
            },
            Config {
                identification: full.identification,
                ..default.clone()
            },
            Config {
                relay: full.relay,
                ..default.clone()
            },
        ] {
            assert_eq!(default.changes_needing_restart(&timeouts), ["timeouts"]);
        }
    }

    /// Pieces that a random text would hardly hit.
    fn piece() -> impl Strategy<Value = String> {
        let words =
            "- |: |, |[|]|{|}|\n|\n  |&a |*a|<<: *a|!!str |---\n|? |~|'|\"|#|%YAML 1.2\n|\t|: 0s|99999999999y|zzz: 1";
        prop_oneof![
            proptest::sample::select(words.split('|').map(str::to_owned).collect::<Vec<String>>()),
            "\\PC{0,4}",
        ]
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}", pieces in proptest::collection::vec(piece(), 0..40)) {
            for text in [text, pieces.concat()] {
                if let Err(faults) = Config::parse(&text) {
                    prop_assert!(faults.iter().next().is_some());
                }
            }
        }

        #[test]
        fn no_mutation_of_a_file_panics(
            edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0..30_usize, piece()), 1..6),
        ) {
            let mut text: Vec<char> = FULL.chars().collect();
            for (at, removed, inserted) in edits {
                let start = at.index(text.len() + 1);
                let end = (start + removed).min(text.len());
                text.splice(start..end, inserted.chars());
            }
            let text: String = text.into_iter().collect();
            let lines = text.split('\n').count() as u64;
            if let Err(faults) = Config::parse(&text) {
                for fault in &faults {
                    let line = fault.line.unwrap();
                    prop_assert!((1..=lines + 1).contains(&line), "{fault} of {lines} lines");
                    prop_assert!(!fault.reason.is_empty());
                }
                let sorted = faults.iter().map(|fault| fault.line).is_sorted();
                prop_assert!(sorted, "{faults}");
            }
        }
    }
}
