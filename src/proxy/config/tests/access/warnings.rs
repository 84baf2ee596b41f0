//! Warnings and notes about users.

use super::*;

#[test]
fn settings_about_users_without_effect_are_warned_of() {
    let users = "users: {file: /dev/null}";
    let named = "allowlist.static: `allowed_users` and `allowed_groups` of a:1 have no effect: `access.mode` is `open`";
    let is_open = "`open`: every client reaches every target, and the other keys of `access` have no effect; set `report` \
                   or `enforce`";
    assert_eq!(served(&with_alice("")), [format!("4:13: warning: {named}")]);
    let said_of = |access: &str| {
        let lines = served(&with_alice(&format!("access: {{{access}}}")));
        lines
            .into_iter()
            .filter(|line| !line.contains("/dev/null") && !line.contains("not a regular file"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        said_of("kubernetes: {enabled: true}")[0],
        format!("1:1: warning: access.mode: {is_open}")
    );
    assert_eq!(
        said_of("mode: open, kubernetes: {enabled: true}")[0],
        format!("1:16: warning: access.mode: {is_open}")
    );
    assert!(said_of(&format!("mode: enforce, {users}")).is_empty());
    // The users of anchors are proved in every mode.
    let anchors = format!("{users}}}\nanchors: {{replicas: 1}}\nlimits: {{user: {{max_anchors: 2}}");
    let said = said_of(&anchors);
    assert!(
        !said
            .iter()
            .any(|line| line.contains("no effect: users") || line.contains(is_open)),
        "{said:?}"
    );
    let limits = served(&with_alice("limits: {user: {max_tunnels: 2}}"));
    assert_eq!(
        limits[0],
        "1:10: note: limits.user: no effect: users have limits of their own with `access.mode: enforce`"
    );
}

#[test]
fn limits_of_clients_without_effect_are_told_of() {
    let told = "note: limits.client: rates and `max_tunnels`: no effect with `access.mode: enforce`, where `limits.user` \
                applies";
    for (mode, limits, is_told) in [
        ("enforce", "max_tunnels: 2", true),
        ("enforce", "download: 1MiB/s", true),
        ("enforce", "upload: 1MiB/s", true),
        (
            "enforce",
            "max_unfinished: 2, connects_per_second: 3, connects_burst: 4",
            false,
        ),
        ("report", "max_tunnels: 2", false),
        ("open", "max_tunnels: 2", false),
    ] {
        let access = format!("access: {{mode: {mode}, users: {{file: /dev/null}}}}\nlimits: {{client: {{{limits}}}}}");
        let said = served(&with_alice(&access));
        assert_eq!(
            said.iter().any(|line| line.ends_with(told)),
            is_told,
            "{mode} {limits}: {said:?}"
        );
    }
}

#[test]
fn targets_that_no_user_reaches_are_warned_of() {
    let file = |names: &[&str], more: &str| {
        let targets: Vec<_> = names
            .iter()
            .map(|name| format!("{{name: {name}, addresses: [1.1.1.1:1]}}"))
            .collect();
        format!(
            "listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nallowlist: {{static: [{}]{more}}}\n\
             access: {{mode: report, oidc: [{{issuer: i, audiences: [a], jwks: https://a/b}}]}}",
            targets.join(", ")
        )
    };
    let no_user = |names: &str| {
        format!(
            "3:13: warning: allowlist.static: no user may reach {names}: the API server knows no static target, so each \
             needs `allowed_users` or `allowed_groups`"
        )
    };
    assert_eq!(served(&file(&["a:1"], "")), [no_user("a:1")]);
    assert_eq!(
        served(&file(&["a:1", "b:1", "c:1", "d:1", "e:1"], "")),
        [no_user("a:1, b:1, c:1 and 2 more")]
    );
    assert_eq!(
        served(&file(&[], ", kubernetes: {enabled: true}")),
        [
            "4:1: warning: access.kubernetes: not enabled, so no API server is asked: users reach only the Services whose \
          annotations allowed-users or allowed-groups name them"
        ]
    );
    // A target of a flag names no users.
    let overrides = Overrides {
        allow: vec![target("flag:1", "1.1.1.1:1")],
        ..Overrides::default()
    };
    let text = with_alice("access: {mode: report, oidc: [{issuer: i, audiences: [a], jwks: https://a/b}]}");
    let loaded = LoadedConfig::from_reader("f", text.as_bytes(), &overrides, Purpose::Serve).unwrap();
    assert!(
        loaded.report.to_string().contains("no user may reach flag:1"),
        "{}",
        loaded.report
    );
}

#[test]
fn sources_without_a_prefix_that_share_their_names_are_warned_of() {
    let said = |sources: &str| {
        let lines = served(&with_alice(&format!("access: {{mode: enforce, {sources}}}")));
        lines
            .into_iter()
            .filter(|line| line.contains("one space"))
            .collect::<Vec<_>>()
    };
    let oidc = |more: &str| format!("oidc: [{{issuer: i, audiences: [a], jwks: https://a/b{more}}}]");
    let (kubernetes, users) = ("kubernetes: {enabled: true}", "users: {file: /dev/null}");
    let shared = |sources: &str| {
        format!(
            "1:1: warning: access: {sources} prove names of one space: `alice` of each is one user with the rights of all; \
             set `username_prefix`, or set it to \"\" where that is meant"
        )
    };
    for (sources, expected) in [
        (format!("{kubernetes}, {}", oidc("")), Some("kubernetes and oidc[0]")),
        (
            format!("{kubernetes}, {}, {users}", oidc("")),
            Some("kubernetes, oidc[0] and users"),
        ),
        (format!("{}, {users}", oidc(", username_prefix: \"oidc:\"")), None),
        (format!("{}, {users}", oidc(", username_prefix: \"\"")), None),
        (format!("{kubernetes}, tickets: {{enabled: true}}"), None),
    ] {
        assert_eq!(
            said(&sources),
            expected.map(shared).into_iter().collect::<Vec<_>>(),
            "{sources}"
        );
    }
    for bad in ["system:", "System:x", " x", "a\tb"] {
        let faults = served(&with_alice(&format!(
            "access: {{mode: enforce, {}}}",
            oidc(&format!(", username_prefix: {bad:?}"))
        )))
        .concat();
        assert!(
            faults.contains("expected the beginning of a name, such as `oidc:`"),
            "{bad}: {faults}"
        );
    }
}

/// Built by hand: a file with `tls` needs certificates.
#[test]
fn ports_without_tls_are_told_of() {
    let said = |mode: &str, cleartext: &str, ports: &str| {
        let text = with_alice(&format!(
            "access: {{mode: {mode}, cleartext: {cleartext}, oidc: [{{issuer: i, audiences: [a], jwks: https://a/b}}]}}"
        ));
        served(&text.replace("listen: 127.0.0.1:1", &format!("listen: [{ports}]"))).concat()
    };
    let refused = "1:36: warning: access.cleartext: every request from another host is refused: credentials need TLS, and \
                   no port has it; set `tls` of a port, or `cleartext: allow` behind a load balancer that terminates TLS";
    assert_eq!(said("enforce", "loopback", "127.0.0.1:1, 0.0.0.0:3"), refused);
    assert_eq!(
        said("enforce", "refuse", "127.0.0.1:1, 0.0.0.0:3"),
        refused.replace(" from another host", "")
    );
    assert_eq!(
        said("enforce", "refuse", "127.0.0.1:1"),
        refused.replace(" from another host", "")
    );
    assert_eq!(
        said("report", "loopback", "0.0.0.0:3"),
        refused
            .replace("1:36", "1:35")
            .replace("is refused", "would be refused")
    );
    assert_eq!(said("enforce", "loopback", "127.0.0.1:1, \"[::1]:3\""), "");
    assert_eq!(
        said("enforce", "allow", "127.0.0.1:1, 0.0.0.0:3"),
        "1:36: note: access.cleartext: 0.0.0.0:3 accepts credentials in clear: that is safe only behind a load balancer \
         that terminates TLS"
    );
    assert_eq!(said("enforce", "allow", "127.0.0.1:1"), "");
}

#[test]
fn certificates_without_client_certificates_are_a_note_where_the_file_asks_for_them() {
    let said_of = |keys: &str| {
        served(&with_alice(&format!(
            "access: {{mode: enforce, kubernetes: {{enabled: true{keys}}}}}"
        )))
    };
    assert_eq!(
        said_of(", certificates: true"),
        [
            "1:67: note: access.kubernetes.certificates: has no effect: no client has a certificate without \
          `tls.client_auth` and a port with `tls`"
        ]
    );
    for quiet in ["", ", certificates: false", ", certificates: ~"] {
        assert!(said_of(quiet).is_empty());
    }
}
