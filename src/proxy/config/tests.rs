//! Every key of the configuration, and its overrides.

mod access;
mod faults;
mod flags;
mod format;
mod properties;
mod warnings;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::policy::allowlist::AnchorUsers;
use crate::proxy::http;
use crate::tunnel::limits::{
    Ceiling, ClientCaps, Rate, Size, TargetCaps, TotalCaps, TunnelLimits, TunnelOverrides, UsableAnnotations, UserCaps,
};
use crate::tunnel::proxy_header;

/// The documentation of every key.
const DOCUMENTED: &str = include_str!("../../../config/switchboard.yaml");

/// Every key, with a value that is not the default.
const FULL: &str = r#"
listen:
  - 127.0.0.1:1080
  - {address: "[::1]:0"}
  - address: "[::1]:0"
    proxy_protocol: required
    trusted_proxies: [10.0.0.0/8, "fd00::/8"]
    reuse_port: true
    refusals: auto
    websocket: {path: /a/ssh/, trusted_tls: true}
admin: "127.0.0.1:1090"
admin_scrape: [10.0.0.0/8]
access:
  mode: enforce
  cleartext: allow
  hide_names: true
  on_expiry: close
  kubernetes:
    enabled: true
    kubeconfig: /etc/switchboard/kubeconfig
    audiences: [ssh, ""]
    certificates: false
    permission: {verb: use, group: ssh.example.com, resource: hosts, subresource: login, name: owner}
    recheck: 10s
    watch_rbac: false
    stale: 0s
  oidc:
    - issuer: https://id.example.com
      audiences: [ssh]
      username: email
      username_prefix: "oidc:"
      groups: roles
      jwks: https://id.example.com/keys
      ca: /etc/switchboard/id.pem
      no_env_proxy: true
    - {issuer: other, audiences: [a, b], jwks: /etc/switchboard/keys.json}
  users: {file: /etc/switchboard/users, username_prefix: "file:"}
  ssh_authorities: {file: /etc/switchboard/authorities, username_prefix: "ssh:"}
  ssh_keys: {enabled: true, secret: keys, username_prefix: "key:"}
  tickets: {enabled: true, ttl: 4h, secret: ssh/tickets}
anchors: {replicas: auto, service: ingress}
allowlist:
  host_keys: [config, annotation]
  listing: users
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
      allowed_users: [alice@example.com]
      allowed_groups: ["cn=ops,dc=example"]
    - {name: "gpu1.lab:22", dials_in: {users: [gpu1], groups: [machines]}}
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
    pods: {enabled: true, selector: ssh=pod, namespaces: [team-c]}
    wake: true
    workload_kinds:
      - {name: box, resource: boxes.v1.example.com/scale, patch: '{"spec": {"replicas": 1}}', activity: example.com/used}
      - {name: other, resource: others.v1.example.com}
    wake_timeout: 2m
    report_activity: true
    events: true
    snapshot_file: /var/lib/switchboard/snapshot
limits:
  tunnel: {download: 50MiB/s, upload: unlimited, burst: 2MiB, lifetime: 2d}
  target: {max_tunnels: 20, max_dials: unlimited}
  client: {max_tunnels: 8, max_unfinished: 4, connects_per_second: 2, connects_burst: 9}
  user: {max_tunnels: 3, max_anchors: 2, download: 1MiB/s}
  process: {max_tunnels: unlimited, max_unfinished: 1000}
  ceiling: {download: 1GiB/s, upload: 80Mbit/s, ssh_only: true}
ssh_only: false
timeouts:
  request_header: 250ms
  tls_handshake: 2s
  connect: 1s
  dial: 1m30s
  ssh_identification: 2s
  idle: 1h30m
  half_closed: 10s
drain: {delay: 0s, timeout: 0s, spread: 0s, resumable_spread: 20s}
"#;

fn target(name: &str, address: &str) -> StaticTarget {
    format!("{name}={address}").parse().unwrap()
}

#[test]
fn the_documented_file_is_the_default() {
    assert_eq!(Config::parse(DOCUMENTED), Ok(Config::default()));
}

/// Gets the keys of every section from the faults of an unknown one, and looks for each in the documentation.
#[test]
fn the_documented_file_holds_every_key() {
    let asked = "zzz: 1\nanchors: {zzz: 1}\naccess: {zzz: 1, kubernetes: {zzz: 1, permission: {zzz: 1}}, oidc: [{zzz: 1}], users: {zzz: 1}, tickets: {zzz: 1}}\nallowlist: {zzz: 1, static: [{zzz: 1, dials_in: {zzz: 1}, limits: {zzz: 1}}], kubernetes: {zzz: 1}}\nlisten: {zzz: 1, websocket: {zzz: 1}}\ntls: {zzz: 1, certificates: [{zzz: 1}]}\n\
                 limits: {zzz: 1, tunnel: {zzz: 1}, target: {zzz: 1}, client: {zzz: 1}, user: {zzz: 1}, process: {zzz: 1}, ceiling: {zzz: 1}}\ntimeouts: {zzz: 1}\ndrain: {zzz: 1}\n";
    let faults = Config::parse(asked).unwrap_err();
    let known: BTreeSet<&str> = faults
        .iter()
        .filter_map(|fault| fault.message.strip_prefix("unknown key; known here: "))
        .flat_map(|names| names.split(", "))
        .collect();
    assert!(known.len() > 15, "{known:?}");
    for name in known {
        assert!(DOCUMENTED.contains(&format!("{name}:")), "{name}");
    }
}

/// Returns the cluster of [`FULL`].
fn cluster() -> kubernetes::Options {
    kubernetes::Options {
        enabled: true,
        kubeconfig: Some("/etc/switchboard/kubeconfig".into()),
        namespaces: vec!["team-a".into(), "team-b".into()],
        namespace_selector: Some("ssh in (yes, maybe)".into()),
        selector: "expose".into(),
        pods: kubernetes::PodOptions {
            enabled: true,
            selector: Some("ssh=pod".into()),
            namespaces: vec!["team-c".into()],
        },
        annotation_prefix: "ssh.example.com/".into(),
        cluster_domain: "cluster.example".into(),
        public_suffixes: vec!["ssh.example.com".into(), "other.example".into()],
        alias_port: 2222,
        allowed_cidrs: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        wait_for_ready: Duration::ZERO,
        keeps_removed: true,
        wakes: true,
        workload_kinds: vec![
            kubernetes::WorkloadKind {
                name: "box".into(),
                resource: "boxes.v1.example.com/scale".parse().unwrap(),
                patch: Some(serde_json::json!({"spec": {"replicas": 1}})),
                activity: Some("example.com/used".into()),
            },
            kubernetes::WorkloadKind {
                name: "other".into(),
                resource: "others.v1.example.com".parse().unwrap(),
                patch: None,
                activity: None,
            },
        ],
        wake_timeout: Duration::from_secs(120),
        reports_activity: true,
        writes_events: true,
        snapshot_file: Some("/var/lib/switchboard/snapshot".into()),
    }
}

/// Returns the limits of [`FULL`].
fn limits() -> Limits {
    let mbit = Rate::per_second(10_000_000).unwrap();
    Limits {
        tunnel: TunnelLimits {
            download: Rate::per_second(50 << 20).unwrap(),
            upload: Rate::UNLIMITED,
            burst: Size::bytes(2 << 20).unwrap(),
            lifetime: Some(Duration::from_secs(2 * 24 * 3600)),
        },
        target: TargetCaps {
            tunnels: NonZeroU32::new(20),
            dials: None,
            ..TargetCaps::default()
        },
        client: ClientCaps {
            tunnels: NonZeroU32::new(8),
            unfinished: NonZeroU32::new(4),
            connects_per_second: NonZeroU32::new(2),
            connects_burst: NonZeroU32::new(9).unwrap(),
            ..ClientCaps::default()
        },
        user: UserCaps {
            tunnels: NonZeroU32::new(3),
            anchors: NonZeroU32::new(2),
            download: Rate::per_second(1 << 20).unwrap(),
            ..UserCaps::default()
        },
        process: TotalCaps {
            tunnels: None,
            unfinished: NonZeroU32::new(1000),
            ..TotalCaps::default()
        },
        ceiling: Ceiling {
            download: Rate::per_second(1 << 30).unwrap(),
            upload: mbit,
            ssh_only: true,
        },
        ssh_only: false,
        annotations: UsableAnnotations {
            allowed_clients: false,
            allowed_users: true,
            dials_in: true,
            host_keys: true,
        },
        ..Limits::default()
    }
}

/// Returns the targets of [`FULL`].
fn targets() -> Vec<StaticTarget> {
    let slow = TunnelOverrides {
        download: Rate::per_second(10 << 20),
        upload: Rate::per_second(10_000_000),
        burst: Size::bytes(64 << 10),
        lifetime: Some(Some(Duration::from_secs(12 * 3600))),
    };
    let mut targets = vec![
        target("devbox.local:22", "127.0.0.1:2222,[fd00::1]:22"),
        target("other:22", "10.0.0.1:22"),
        target("plain:22", "10.0.0.2:22"),
        target("gpu1.lab:22", "10.0.0.3:22"),
    ];
    targets[3].addresses = Vec::new();
    targets[3].dials_in = Some(AnchorUsers {
        users: Some(["gpu1"].map(Into::into).into()),
        groups: Some(["machines"].map(Into::into).into()),
    });
    targets[0].limits = slow;
    targets[1].limits = slow;
    targets[2].limits.lifetime = Some(None);
    targets[2].ssh_only = Some(true);
    targets[2].send_proxy_header = Some(proxy_header::Version::V2);
    targets[2].allowed_users = Some(["alice@example.com"].map(Into::into).into());
    targets[2].allowed_groups = Some(["cn=ops,dc=example"].map(Into::into).into());
    targets
}

#[test]
fn every_key_is_read() {
    let address = |text: &str| Port::from(text.parse::<SocketAddr>().unwrap());
    let mut behind_a_balancer = address("[::1]:0");
    behind_a_balancer.listener.reuse_port = true;
    behind_a_balancer.refusals = http::RefusalMode::Auto;
    let trusted: Box<[_]> = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).into();
    behind_a_balancer.websocket = Some(Arc::new(http::WebSocketOptions {
        path: "/a/ssh".into(),
        trusted_tls: true,
        trusted_proxies: trusted.clone(),
    }));
    behind_a_balancer.proxy_header = proxy_header::Policy::Required { trusted };
    let expected = Config {
        listen: vec![address("127.0.0.1:1080"), address("[::1]:0"), behind_a_balancer],
        admin: "127.0.0.1:1090".parse().unwrap(),
        admin_scrape: Some(["10.0.0.0/8".parse().unwrap()].into()),
        access: access::everything(),
        anchors: Some(anchors::Options {
            replicas: None,
            service: "ingress".into(),
        }),
        access_kubeconfig: Some("/etc/switchboard/kubeconfig".into()),
        anchor_keys: false,
        lists_names: true,
        targets: targets(),
        cluster: Some(cluster()),
        limits: limits(),
        tls: tls::Settings::default(),
        timeouts: Timeouts {
            request_header: Duration::from_millis(250),
            tls_handshake: Duration::from_secs(2),
            connect: Duration::from_secs(1),
            dial: Duration::from_secs(90),
            ssh_identification: Duration::from_secs(2),
            idle: Some(Duration::from_secs(5400)),
            half_closed: Duration::from_secs(10),
        },
        drain: drain::Options {
            delay: Duration::ZERO,
            timeout: Duration::ZERO,
            spread: Duration::ZERO,
            resumable_spread: Duration::from_secs(20),
        },
    };
    assert_eq!(Config::parse(FULL), Ok(expected));
}

#[test]
fn an_absent_or_null_value_has_its_default() {
    let nulls = "listen: ~\nadmin:\nallowlist: {static: null}\nlimits: {tunnel: {burst: null}}\n\
                 timeouts:\n  idle: null\ndrain:\n";
    for text in ["{}", "---\n{}\n", nulls] {
        assert_eq!(Config::parse(text), Ok(Config::default()), "{text:?}");
    }
    let scalar = Config::parse("listen: \"[::]:8081\"").unwrap();
    assert_eq!(scalar.listen[0].listener.address, "[::]:8081".parse().unwrap());
    assert_eq!(scalar.admin, Config::default().admin);
}

#[test]
fn a_file_is_loaded_as_a_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switchboard.yaml");
    let loaded = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let loaded = LoadedConfig::from_file(Some(&path), &Overrides::default(), Purpose::Serve);
        let reason = |report: Report| report.to_string().replace(path.to_str().unwrap(), "FILE");
        loaded.map(|loaded| loaded.config).map_err(reason)
    };
    assert_eq!(loaded(b"{}"), Ok(Config::default()));
    assert_eq!(loaded(FULL.as_bytes()), Ok(Config::parse(FULL).unwrap()));
    assert_eq!(
        loaded(b"admin: 1.1.1.1:1\n\n# \xff"),
        Err("FILE:3:3: error: not UTF-8".to_owned())
    );
    let mut max = b"admin: '[::]:9090'\n#".to_vec();
    max.resize(1 << 20, b'x');
    assert_eq!(loaded(&max), Ok(Config::default()));
    max.push(b'x');
    assert_eq!(loaded(&max), Err("FILE:1:1: error: larger than 1 MiB".to_owned()));

    let unreadable = |path: &std::path::Path| {
        let report = LoadedConfig::from_file(Some(path), &Overrides::default(), Purpose::Serve).unwrap_err();
        assert_eq!(report.iter().next().unwrap().position, None);
        report.to_string()
    };
    let missing = unreadable(&directory.path().join("missing"));
    assert!(
        missing.contains("missing: error: cannot be read: No such file"),
        "{missing}"
    );
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for not_a_file in [directory.path(), &socket] {
        let said = unreadable(not_a_file);
        assert!(said.contains(": error: cannot be read: "), "{said}");
        assert!(said.ends_with("not a regular file"), "{said}");
    }
}

#[test]
fn access_targets_and_tunnel_limits_change_without_a_restart() {
    let default = Config::default();
    let full = Config::parse(FULL).unwrap();
    let all = ["listen", "admin", "admin_scrape", "anchors", "timeouts", "drain"];
    assert_eq!(default.changes_needing_restart(&full), all);
    let live = Config {
        access: full.access.clone(),
        access_kubeconfig: full.access_kubeconfig.clone(),
        targets: full.targets.clone(),
        cluster: full.cluster.clone(),
        limits: full.limits,
        ..default.clone()
    };
    assert!(default.changes_needing_restart(&live).is_empty());
    let timeouts = Config {
        timeouts: full.timeouts,
        ..default.clone()
    };
    assert_eq!(default.changes_needing_restart(&timeouts), ["timeouts"]);
}
