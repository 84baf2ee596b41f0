//! Faults of `allowlist`: the settings of a cluster, and static targets.

use super::*;

#[test]
fn the_settings_of_a_cluster_are_checked_even_if_it_is_disabled() {
    for (setting, reason) in [
        (
            "enabled: yes",
            "enabled: expected `true` or `false` (found `yes`); did you mean `true`?",
        ),
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
            r#"selector: "\0a""#,
            r"selector: expected a label selector such as `switchboard.dev/expose=true` (found `\0a`)",
        ),
        (
            "namespace_selector: '!!'",
            "namespace_selector: expected a label selector such as `switchboard.dev/expose=true` (found `!!`)",
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
    assert_eq!(off.cluster, None);
    let on = Config::parse("allowlist: {kubernetes: {enabled: true}}").unwrap();
    let default = kubernetes::Options {
        enabled: true,
        ..kubernetes::Options::default()
    };
    assert_eq!(on.cluster, Some(default));
}

#[test]
fn allowed_clients_without_client_certificates_are_a_fault_beside_all_others() {
    let named = "allowlist:\n  static:\n    - name: a:1\n      addresses: [1.1.1.1:1]\n      allowed_clients: [x]\n    \
                 - name: b:1\n      addresses: [b]\n      allowed_clients: []\n";
    let no_client = "no client has a certificate: `allowed_clients` needs `tls.client_auth` and a port with `tls`";
    assert_eq!(
        faults(named),
        format!(
            "line 5: allowlist.static[0].allowed_clients: {no_client}\n\
             line 7: allowlist.static[1].addresses[0]: names are not resolved: give IP:port (found `b`)\n\
             line 8: allowlist.static[1].allowed_clients: at least one name is needed; without the key every \
             client is allowed\n\
             line 8: allowlist.static[1].allowed_clients: {no_client}"
        )
    );
    // With a fault in `tls` it is not known whether clients have certificates.
    let unsure = format!("tls: {{client_auth: maybe}}\n{named}");
    assert!(!faults(&unsure).contains(no_client));
}

#[test]
fn a_target_is_dialled_or_dials_in() {
    for (target, expected) in [
        (
            "name: a:1, dials_in: {users: [x]}, addresses: [1.1.1.1:1]",
            ".addresses: a target that dials in has no address: remove this, or `dials_in`",
        ),
        (
            "name: a:1, dials_in: {users: [x]}, send_proxy_protocol: v1",
            ".send_proxy_protocol: has no effect on a target that dials in",
        ),
        (
            "name: a:1, dials_in: {users: []}",
            ".dials_in.users: at least one name is needed",
        ),
        (
            "name: a:1, dials_in: {}",
            ".dials_in: `users` or `groups` is needed: who may serve the target",
        ),
    ] {
        let text = format!("allowlist:\n  static:\n    - {{{target}}}\naccess: {{users: {{file: /dev/null}}}}\n");
        assert_eq!(
            faults(&text),
            format!("line 3: allowlist.static[0]{expected}"),
            "{target}"
        );
    }
    let unproved = "allowlist: {static: [{name: a:1, dials_in: {users: [x]}}]}\n";
    assert_eq!(
        faults(unproved),
        "line 1: access: no anchor can prove its user: it needs `kubernetes`, `oidc`, `users` or `tickets`"
    );
}

#[test]
fn each_fault_of_a_static_target_is_reported() {
    for (target, expected) in [
        ("addresses: [1.1.1.1:1]", ": `name` is missing"),
        (
            "name: a:1",
            ": `addresses` is missing, or `dials_in` for a target that dials in",
        ),
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
            ".addresses[0]: port 0 cannot be dialled (found `1.1.1.1:0`)",
        ),
        (
            "name: a, addresses: [1.1.1.1:1]",
            ".name: expected the host:port that clients ask for: the request target has no port (found `a`)",
        ),
        (
            "name: a:1, addresses: [1.1.1.1:1], limits: {upload: 1MiB}",
            ".limits.upload: expected `unlimited` or a number with a unit such as `50MiB/s` or `80Mbit/s` \
             (found `1MiB`); did you mean `1MiB/s`?",
        ),
        (
            "name: a:1, addresses: [1.1.1.1:1], rate: 1",
            ".rate: unknown key; known here: name, addresses, dials_in, limits, ssh_only, send_proxy_protocol, allowed_clients, \
             allowed_users, allowed_groups, host_keys",
        ),
        (
            "name: a:1, addresses: [1.1.1.1:1], send_proxy_protocol: yes",
            ".send_proxy_protocol: expected `v1` or `v2`, or `off` (found `yes`)",
        ),
    ] {
        let text = format!("allowlist:\n  static:\n    - {{{target}}}\naccess: {{users: {{file: /dev/null}}}}\n");
        assert_eq!(
            faults(&text),
            format!("line 3: allowlist.static[0]{expected}"),
            "{target}"
        );
    }
    let twice = "allowlist:\n  static:\n    - {name: a:1, addresses: [1.1.1.1:1]}\n    \
                 - {name: A.:1, addresses: [1.1.1.1:1]}\n";
    assert_eq!(faults(twice), "line 4: allowlist.static[1].name: a:1 is on line 3 too");
    let on_one_line = "allowlist: {static: [{name: a:1, addresses: [1.1.1.1:1]}, {name: a:1, addresses: [1.1.1.1:1]}]}";
    assert_eq!(
        faults(on_one_line),
        "line 1: allowlist.static[1].name: a:1 is on line 1 too"
    );
}
