//! The section `access`, and the lists of users of static targets: their faults, warnings and notes.

use super::*;
use crate::policy::access::{Mode, Permission, SecretName, TicketOptions};

mod warnings;

/// Access control in [`FULL`].
pub(super) fn everything() -> crate::policy::access::Options {
    use crate::policy::access::{Cleartext, Kubernetes, Mode, NamedObject, OnExpiry, Permission};
    crate::policy::access::Options {
        mode: Mode::Enforce,
        cleartext: Cleartext::Allow,
        hide_names: true,
        on_expiry: OnExpiry::Close,
        kubernetes: Some(Kubernetes {
            enabled: true,
            kubeconfig: None,
            audiences: vec!["ssh".into(), "".into()],
            certificates: false,
            permission: Permission {
                verb: "use".into(),
                group: "ssh.example.com".into(),
                resource: "hosts".into(),
                subresource: "login".into(),
                name: NamedObject::Owner,
            },
            recheck: Duration::from_secs(10),
            watch_rbac: false,
            stale: Duration::ZERO,
        }),
        oidc: issuers(),
        users: Some(crate::policy::access::UserFileOptions {
            file: "/etc/switchboard/users".into(),
            username_prefix: Some("file:".into()),
        }),
        ssh_authorities: Some(crate::policy::access::UserFileOptions {
            file: "/etc/switchboard/authorities".into(),
            username_prefix: Some("ssh:".into()),
        }),
        ssh_keys: Some(crate::policy::access::KeySecretOptions {
            enabled: true,
            secret: SecretName {
                namespace: None,
                name: "keys".into(),
            },
            username_prefix: Some("key:".into()),
        }),
        tickets: Some(TicketOptions {
            enabled: true,
            ttl: Duration::from_hours(4),
            secret: SecretName {
                namespace: Some("ssh".into()),
                name: "tickets".into(),
            },
        }),
    }
}

fn issuers() -> Vec<crate::policy::access::Issuer> {
    use crate::policy::access::{Issuer, Jwks};
    vec![
        Issuer {
            issuer: "https://id.example.com".into(),
            audiences: vec!["ssh".into()],
            username: "email".into(),
            username_prefix: Some("oidc:".into()),
            groups: Some("roles".into()),
            jwks: Jwks::Url("https://id.example.com/keys".parse().unwrap()),
            ca: Some("/etc/switchboard/id.pem".into()),
            no_env_proxy: true,
        },
        Issuer {
            issuer: "other".into(),
            audiences: vec!["a".into(), "b".into()],
            username: "sub".into(),
            username_prefix: None,
            groups: None,
            jwks: Jwks::File("/etc/switchboard/keys.json".into()),
            ca: None,
            no_env_proxy: false,
        },
    ]
}

/// Returns all findings of a text, one a line.
fn said(text: &str, purpose: Purpose) -> Vec<String> {
    let report = match LoadedConfig::from_reader("f", text.as_bytes(), &Overrides::default(), purpose) {
        Ok(loaded) => loaded.report,
        Err(report) => report,
    };
    report.iter().map(ToString::to_string).collect()
}

fn served(text: &str) -> Vec<String> {
    said(text, Purpose::Serve)
}

/// Returns a port at a loopback address, a target that alice may reach, and `more`.
fn with_alice(more: &str) -> String {
    format!(
        "{more}\nlisten: 127.0.0.1:1\nadmin: 127.0.0.1:2\n\
         allowlist: {{static: [{{name: a:1, addresses: [1.1.1.1:1], allowed_users: [alice]}}]}}\n"
    )
}

/// Keys of the section, and the first finding.
const FAULTS: &[(&str, &str)] = &[
    (
        "mode: closed",
        "1:16: error: access.mode: expected `open`, `report` or `enforce` (found `closed`)",
    ),
    (
        "cleartext: warn",
        "1:21: error: access.cleartext: expected `refuse`, `loopback` or `allow` (found `warn`)",
    ),
    (
        "hide_names: 'true'",
        "1:22: error: access.hide_names: expected `true` or `false` without quotes (found the text \"true\")",
    ),
    (
        "on_expiry: end",
        "1:21: error: access.on_expiry: expected `keep` or `close` (found `end`)",
    ),
    (
        "kubernetes: {audiences: []}",
        "1:23: error: access.kubernetes.audiences: at least one audience is needed; `\"\"` is the API server's own",
    ),
    (
        "kubernetes: {audiences: [~]}",
        "1:35: error: access.kubernetes.audiences[0]: expected a single value (found nothing)",
    ),
    (
        "kubernetes: {recheck: 9s}",
        "1:32: error: access.kubernetes.recheck: must be at least 10s: answers count for that long (found `9s`)",
    ),
    (
        "kubernetes: {recheck: 25h}",
        "1:32: error: access.kubernetes.recheck: must be at most 1d: a user keeps a lost right for that long \
             (found `25h`)",
    ),
    (
        "kubernetes: {stale: 25h}",
        "1:30: error: access.kubernetes.stale: must be at most 1d: a user keeps a lost right for that long \
             (found `25h`)",
    ),
    (
        "kubernetes: {permission: shh}",
        "1:35: error: access.kubernetes.permission: expected `ssh`, `port-forward`, or a map with `verb`, `group`, \
             `resource`, `subresource` and `name` (found `shh`); did you mean `ssh`?",
    ),
    (
        "kubernetes: {permission: [ssh]}",
        "1:23: error: access.kubernetes.permission: expected a single value or a map (found a list)",
    ),
    (
        "kubernetes: {permission: {verb: create, resource: services/ssh}}",
        "1:60: error: access.kubernetes.permission.resource: expected one part: what follows the `/` is the \
             `subresource` (found `services/ssh`)",
    ),
    (
        "kubernetes: {permission: {verb: \"*\", resource: services}}",
        "1:42: error: access.kubernetes.permission.verb: a review is about one thing: `*` is for the rule of a Role \
             (found `*`)",
    ),
    (
        "kubernetes: {permission: {verb: \"\", resource: services}}",
        "1:42: error: access.kubernetes.permission.verb: expected lower case letters, digits, `-` and `.`, such as `services` (found ``)",
    ),
    (
        "kubernetes: {permission: {verb: get, resource: Services}}",
        "1:57: error: access.kubernetes.permission.resource: expected lower case letters, digits, `-` and `.`, such as `services` (found `Services`)",
    ),
    (
        "kubernetes: {permission: {verb: connect, resource: workspaces}}",
        "1:61: error: access.kubernetes.permission.resource: `workspaces` is no resource of the core group: its API group \
             is missing, as `group`",
    ),
    (
        "kubernetes: {permission: {verb: connect, resource: workspaces.kubeflow.org}}",
        "1:61: error: access.kubernetes.permission.resource: the resource has no dot: what follows it is the `group`",
    ),
    (
        "kubernetes: {permission: {verb: connect, group: kubeflow.org, resource: workspaces, name: pod}}",
        "1:100: error: access.kubernetes.permission.name: `pod` is for the resource `pods`: nothing else has its name",
    ),
    (
        "kubernetes: {permission: {verb: create, resource: services, name: owner}}",
        "1:76: error: access.kubernetes.permission.name: `owner` is the object that runs the pods, and not one of the services",
    ),
    (
        "kubernetes: {permission: {verb: create, resource: pods, name: Pod}}",
        "1:72: error: access.kubernetes.permission.name: expected `service`, `pod` or `owner` (found `Pod`); did you mean `pod`?",
    ),
    (
        "tickets: {ttl: 9m}",
        "1:25: error: access.tickets.ttl: must be at least 10m (found `9m`)",
    ),
    (
        "tickets: {ttl: 25h}",
        "1:25: error: access.tickets.ttl: must be at most 1d (found `25h`)",
    ),
    (
        "tickets: {secret: a/b/c}",
        "1:28: error: access.tickets.secret: expected the name of a Secret, or NAMESPACE/NAME, in lower case letters, digits, \
             `-` and `.` (found `a/b/c`)",
    ),
    (
        "mode: enforce, tickets: {enabled: false, ttl: 1h}",
        "1:16: error: access.mode: no user can be proved: it needs `kubernetes`, `oidc`, `users`, `tickets`, `ssh_keys` or `ssh_authorities`",
    ),
    ("users: {}", "1:10: error: access.users: `file` is missing"),
    (
        "mode: enforce",
        "1:16: error: access.mode: no user can be proved: it needs `kubernetes`, `oidc`, `users`, `tickets`, `ssh_keys` or `ssh_authorities`",
    ),
    (
        "mode: report, kubernetes: {enabled: false}, oidc: []",
        "1:16: error: access.mode: no user can be proved: it needs `kubernetes`, `oidc`, `users`, `tickets`, `ssh_keys` or `ssh_authorities`",
    ),
];

#[test]
fn each_fault_of_the_section_is_reported_with_its_place() {
    for (text, expected) in FAULTS {
        let text = with_alice(&format!("access: {{{text}}}"));
        assert_eq!(served(&text)[0], *expected);
        assert!(Config::parse(&text).is_err());
    }
}

fn issuer(keys: &str) -> Vec<String> {
    served(&with_alice(&format!("access: {{mode: enforce, oidc: [{{{keys}}}]}}")))
}

#[test]
fn keys_of_an_issuer_come_from_a_file_or_by_tls() {
    let jwks = |url: &str| issuer(&format!("issuer: i, audiences: [a], jwks: \"{url}\"")).concat();
    for url in [
        "http://127.0.0.1:80/keys",
        "http://localhost/",
        "http://[::1]/keys",
        "https://[fd00::1]:8443/keys",
    ] {
        assert_eq!(jwks(url), "", "{url}");
    }
    for url in [
        "http://id.example.com/keys",
        "http://10.0.0.1/",
        "http://localhost.example.com/",
    ] {
        assert!(jwks(url).contains("the keys would cross the network in clear"), "{url}");
    }
    for url in [
        "ftp://a/b",
        "https://",
        "https://u:p@a/b",
        "https:///b",
        "https://a b/",
        "file:///a",
    ] {
        assert!(
            jwks(url).contains("expected the path of a file, or a URL such as "),
            "{url}"
        );
    }
    for url in ["https://a:/b", "https://a:0/b", "https://a:65536/b", "http://[::1]:0/b"] {
        assert!(jwks(url).contains("expected a port from 1 to 65535"), "{url}");
    }
    assert!(jwks("").contains("expected the path of a file, or an `https://` URL"));
    let beside = issuer("issuer: i, audiences: [a], jwks: \"http://[::1]/keys\", ca: /id.pem").concat();
    assert!(
        beside.ends_with("error: access.oidc[0].ca: has no effect with a `jwks` at `http://`"),
        "{beside}"
    );
}

#[test]
fn each_fault_of_an_issuer_is_reported() {
    let sound = "issuer: i, audiences: [a], jwks: https://id.example.com/keys";
    assert_eq!(issuer(sound), Vec::<String>::new());
    let reasons = |keys: &str| {
        let lines = issuer(keys);
        lines
            .iter()
            .map(|line| line.split_once("oidc[0]").unwrap().1.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        reasons("groups: \"\""),
        [
            ": `issuer` is missing",
            ": `audiences` is missing",
            ": `jwks` is missing",
            ".groups: expected a text (found ``)"
        ]
    );
    assert_eq!(
        reasons("issuer: i, audiences: [], jwks: https://a/b"),
        [".audiences: at least one audience is needed: a token for another service proves no user here"]
    );
    assert_eq!(
        reasons("issuer: \"\", audiences: [\"\"], username: \"\", jwks: https://a/b"),
        [
            ".issuer: expected a text (found ``)",
            ".audiences[0]: expected a text (found ``)",
            ".username: expected a text (found ``)"
        ]
    );
    let of_a_file = issuer("issuer: i, audiences: [a], jwks: /no/keys, ca: /no/ca").concat();
    assert!(
        of_a_file.ends_with("error: access.oidc[0].ca: has no effect with a `jwks` that is a file"),
        "{of_a_file}"
    );
    let twice = with_alice(&format!(
        "access:\n  mode: enforce\n  oidc:\n    - {{{sound}}}\n    - {{{sound}}}\n"
    ));
    assert_eq!(
        served(&twice),
        ["5:16: error: access.oidc[1].issuer: the same issuer is on line 4 too: add its audiences there"]
    );
}

#[test]
fn a_file_that_is_missing_is_a_fault_for_check_and_a_warning_for_serve() {
    let text = with_alice(
        "access:\n  mode: enforce\n  users: {file: /no/users}\n  kubernetes: {enabled: true, kubeconfig: /no/config}\n  \
         oidc:\n    - {issuer: i, audiences: [a], jwks: /no/keys}\n    \
         - {issuer: j, audiences: [a], jwks: https://a/keys, ca: /no/ca}\n",
    );
    for (purpose, severity) in [(Purpose::Serve, "warning"), (Purpose::Check, "error")] {
        // A process that serves tells of the users at each reading of their file.
        let told = usize::from(purpose == Purpose::Serve);
        let places = &["3:17", "4:43", "6:41", "7:61"][told..];
        let keys = &["users.file", "kubernetes.kubeconfig", "oidc[0].jwks", "oidc[1].ca"][told..];
        let mut lines = said(&text, purpose);
        lines.retain(|line| !line.contains("one space"));
        assert_eq!(lines.len(), keys.len(), "{lines:?}");
        for ((line, place), key) in lines.iter().zip(places).zip(keys) {
            let start = format!("{place}: {severity}: access.{key}: ");
            assert!(
                line.starts_with(&start) && line.to_lowercase().contains("no such file"),
                "{line}"
            );
        }
    }
}

#[test]
fn a_kubeconfig_is_used_by_all_that_reads_a_cluster_or_is_a_fault() {
    let tickets = "mode: enforce, tickets: {enabled: true}";
    for (access, allowlist, followed, unused) in [
        (
            "kubernetes: {kubeconfig: /a}",
            "",
            Some("/a"),
            &["1:35: access.kubernetes"][..],
        ),
        ("", "kubeconfig: /b", None, &["2:38: allowlist.kubernetes"]),
        (tickets, "kubeconfig: /b", Some("/b"), &[]),
        (tickets, "enabled: true, kubeconfig: /b", Some("/b"), &[]),
        (
            "mode: enforce, tickets: {enabled: true}, kubernetes: {kubeconfig: /a}",
            "enabled: true, kubeconfig: /b",
            Some("/a"),
            &[],
        ),
        (
            "mode: enforce, kubernetes: {enabled: true, kubeconfig: /a}",
            "enabled: false, kubeconfig: /b",
            Some("/a"),
            &["2:54: allowlist.kubernetes"],
        ),
    ] {
        let text = format!(
            "access: {{{access}}}\nallowlist: {{kubernetes: {{{allowlist}}}, \
             static: [{{name: a:1, addresses: [1.1.1.1:1], allowed_users: [alice]}}]}}\n"
        );
        let found = said(&text, Purpose::Check);
        let found = found.iter().filter(|line| line.contains("nothing that is enabled"));
        let expected = unused
            .iter()
            .map(|place| place.replace(": ", ": error: ") + ".kubeconfig: nothing that is enabled reads this cluster");
        assert_eq!(
            found.cloned().collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{text}"
        );
        let served = LoadedConfig::from_reader("f", text.as_bytes(), &Overrides::default(), Purpose::Serve);
        assert_eq!(
            served.unwrap().config.access_kubeconfig,
            followed.map(Into::into),
            "{text}"
        );
    }
}

#[test]
fn the_files_of_users_and_keys_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(folder.path().join("users"), "alice:secret\n\n:x\n").unwrap();
    std::fs::write(folder.path().join("keys"), "{}").unwrap();
    std::fs::write(folder.path().join("ca"), "none").unwrap();
    let text = with_alice(&format!(
        "access:\n  mode: enforce\n  users: {{file: {}}}\n  oidc:\n    - {{issuer: i, audiences: [a], jwks: {}}}\n    \
         - {{issuer: j, audiences: [a], jwks: https://a/keys, ca: {}}}\n",
        path("users"),
        path("keys"),
        path("ca"),
    ));
    let lines = said(&text, Purpose::Check);
    let user_limits = format!("3:17: error: access.users.file: {}: line ", path("users"));
    assert_eq!(
        lines.iter().filter(|line| line.starts_with(&user_limits)).count(),
        2,
        "{lines:?}"
    );
    assert!(lines[2].starts_with("5:41: error: access.oidc[0].jwks: "), "{lines:?}");
    assert!(lines[3].starts_with("6:61: error: access.oidc[1].ca: "), "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(
        !lines.concat().contains("secret"),
        "a hash is no text for a terminal: {lines:?}"
    );
}

#[test]
fn a_hash_that_is_guessed_fast_is_warned_of_with_its_file_and_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "#\nalice:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu\n",
    )
    .unwrap();
    let path = file.path().display();
    let text = with_alice(&format!("access:\n  mode: enforce\n  users: {{file: {path}}}\n"));
    let start = format!("3:17: warning: access.users.file: {path}: line 2: bcrypt with a cost below 10 ");
    let lines = said(&text, Purpose::Check);
    assert!(lines.iter().any(|line| line.starts_with(&start)), "{lines:?}");
}

#[test]
fn a_permission_is_a_word_or_a_map() {
    let permission = |text: &str| {
        let text = with_alice(&format!(
            "access: {{kubernetes: {{enabled: true, permission: {text}}}}}"
        ));
        Config::parse(&text).unwrap().access.kubernetes.unwrap().permission
    };
    assert_eq!(permission("ssh"), Permission::default());
    assert_eq!(permission("~"), Permission::default());
    assert_eq!(permission("port-forward"), Permission::port_forward());
    assert_eq!(
        permission("{verb: create, group: \"\", resource: services, subresource: ssh}"),
        Permission::default()
    );
    assert_eq!(
        permission("{verb: create, resource: pods, subresource: portforward}"),
        Permission::port_forward(),
        "no pod has the name of its Service"
    );
}

#[test]
fn lists_of_users_are_checked() {
    let target = |lists: &str| {
        let text = format!("allowlist: {{static: [{{name: a:1, addresses: [1.1.1.1:1], {lists}}}]}}");
        Config::parse(&text).map_err(|report| report.to_string())
    };
    for (lists, reason) in [
        ("allowed_users: []", "allowed_users: at least one name is needed"),
        ("allowed_groups: []", "allowed_groups: at least one name is needed"),
        (
            "allowed_users: alice",
            "allowed_users: expected a list (found a single value)",
        ),
        (
            "allowed_users: [\"\"]",
            "allowed_users[0]: expected the name of a user or group (found ``)",
        ),
        (
            "allowed_users: [system:anonymous]",
            "allowed_users[0]: a request without credentials reaches no target: expected the name of a user or group \
             (found `system:anonymous`)",
        ),
    ] {
        let report = target(lists).unwrap_err();
        assert!(
            report.ends_with(&format!("error: allowlist.static[0].{reason}")),
            "{report}"
        );
    }
    let lists = target("allowed_groups: [ops]").unwrap().targets[0]
        .user_lists()
        .unwrap();
    assert_eq!((lists.users.len(), &*lists.groups[0]), (0, "ops"));
    assert_eq!(target("ssh_only: true").unwrap().targets[0].user_lists(), None);
}

#[test]
fn a_section_without_keys_asks_nobody() {
    for text in [
        "access: {}",
        "access: ~",
        "access: {mode: open}",
        "access: {kubernetes: {enabled: false}, oidc: []}",
    ] {
        assert_eq!(Config::parse(text), Ok(Config::default()), "{text}");
    }
    assert_eq!(Config::default().access.mode, Mode::Open);
}
