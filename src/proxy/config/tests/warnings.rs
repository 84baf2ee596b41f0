//! Warnings and notes: what is said of a configuration that is accepted.

use super::*;

/// Returns all findings of a text, under these flags.
fn said(text: &str, overrides: &Overrides) -> String {
    match LoadedConfig::from_reader("f", text.as_bytes(), overrides, Purpose::Serve) {
        Ok(loaded) => loaded.report.to_string(),
        Err(report) => format!("refused: {report}"),
    }
}

fn flags(listen: &[&str], allow: &[&str]) -> Overrides {
    Overrides {
        listen: listen.iter().map(|text| text.parse().unwrap()).collect(),
        admin: None,
        allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
    }
}

/// Returns a configuration with a target, and `more`.
fn with_a_target(more: &str) -> String {
    format!("{more}\nallowlist: {{static: [{{name: a:1, addresses: [1.1.1.1:1]}}]}}\n")
}

const NO_TARGET: &str = "there is no target, so every request is refused with 403: add one to `allowlist.static`, or \
                         set `allowlist.kubernetes.enabled`";

#[test]
fn a_configuration_without_a_target_is_warned_of() {
    for (text, position) in [
        ("{}", "1:1: warning: allowlist"),
        ("admin: 127.0.0.1:1\n", "1:1: warning: allowlist"),
        ("drain: {}\nallowlist: {static: []}\n", "2:1: warning: allowlist"),
        ("\nallowlist: {kubernetes: {enabled: false}}", "2:1: warning: allowlist"),
    ] {
        assert_eq!(
            said(text, &Overrides::default()),
            format!("f:{position}: {NO_TARGET}"),
            "{text}"
        );
    }
    assert_eq!(said(&with_a_target(""), &Overrides::default()), "");
    assert_eq!(
        said("allowlist: {kubernetes: {enabled: true}}", &Overrides::default()),
        ""
    );
    assert_eq!(said("{}", &flags(&[], &["a:1=1.1.1.1:1"])), "");
    let without_a_file = LoadedConfig::from_file(None, &Overrides::default(), Purpose::Serve).unwrap();
    assert_eq!(
        without_a_file.report.to_string(),
        format!("warning: allowlist: {NO_TARGET}")
    );
}

#[test]
fn ports_that_trust_no_possible_neighbour_are_warned_of() {
    let listen = |address: &str, trusted: &str| {
        let port =
            format!("listen: {{address: \"{address}\", proxy_protocol: required, trusted_proxies: [{trusted}]}}");
        said(&with_a_target(&port), &Overrides::default())
    };
    for (address, trusted, is_warned_of) in [
        ("0.0.0.0:1", "\"fd00::/8\"", true),
        ("0.0.0.0:1", "\"fd00::/8\", 10.0.0.0/8", false),
        ("[fd00::1]:1", "10.0.0.0/8", true),
        ("[::]:1", "10.0.0.0/8", false),
        ("[::]:1", "\"fd00::/8\"", false),
    ] {
        let said = listen(address, trusted);
        let warned = said.starts_with("f:1:1: warning: listen: no client gets in: ");
        assert_eq!(warned, is_warned_of, "{address} {trusted}: {said}");
        assert!(warned || said.is_empty(), "{said}");
    }
    // Another port lets clients in.
    let two = "listen: [{address: 0.0.0.0:1, proxy_protocol: required, trusted_proxies: [\"fd00::/8\"]}, 0.0.0.0:2]";
    assert_eq!(said(&with_a_target(two), &Overrides::default()), "");
}

#[test]
fn flags_are_checked_beside_the_file() {
    let file = with_a_target("listen: 127.0.0.1:1\nadmin: 127.0.0.1:2");
    let admin = |address: &str| Overrides {
        admin: Some(address.parse().unwrap()),
        ..Overrides::default()
    };
    for (overrides, fault) in [
        (
            flags(&["127.0.0.1:1", "127.0.0.1:1"], &[]),
            "--listen: 127.0.0.1:1 is there twice",
        ),
        (
            flags(&["0.0.0.0:1", "127.0.0.1:1"], &[]),
            "--listen: 127.0.0.1:1 is taken by 0.0.0.0:1",
        ),
        (
            flags(&["127.0.0.1:1", "[::]:1"], &[]),
            "--listen: [::]:1 (`[::]` takes IPv4, too) is taken by 127.0.0.1:1",
        ),
        (
            flags(&["0.0.0.0:2"], &[]),
            "--listen: 127.0.0.1:2 is taken by 0.0.0.0:2 of `listen`",
        ),
        (
            admin("0.0.0.0:1"),
            "--admin: 0.0.0.0:1 is taken by 127.0.0.1:1 of `listen`",
        ),
    ] {
        assert_eq!(said(&file, &overrides), format!("refused: f: error: {fault}"));
    }
    assert_eq!(said(&file, &flags(&["0.0.0.0:1", "[::]:1"], &[])), "");
    assert_eq!(said(&file, &admin("127.0.0.1:3")), "");
}

/// Built by hand: a file with `tls` needs certificates.
#[test]
fn ports_of_flags_have_no_tls_so_that_no_client_has_a_certificate() {
    let mut file = file::ConfigFile::default();
    file.listen[0].tls = tls::Mode::Required;
    file.tls.client_auth = tls::ClientAuth::Required;
    let knows_clients = |overrides| {
        file.clone()
            .into_config(&overrides, None)
            .limits
            .annotations
            .allowed_clients
    };
    assert!(knows_clients(Overrides::default()));
    assert!(!knows_clients(flags(&["127.0.0.1:1"], &[])));
}

#[test]
fn a_faulty_configuration_has_no_warnings_of_the_whole() {
    let said = said("drain: {delay: soon}", &Overrides::default());
    assert!(said.starts_with("refused: f:1:16: error: drain.delay: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_file_of_the_cluster_that_is_missing_is_a_fault_for_check_and_a_warning_for_serve() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent");
    let said = |enabled, purpose| {
        let text = format!(
            "allowlist:\n  kubernetes:\n    enabled: {enabled}\n    kubeconfig: {0}\n    snapshot_file: {0}/snapshot\n  \
             static: [{{name: a:1, addresses: [1.1.1.1:1]}}]\n",
            absent.display()
        );
        match LoadedConfig::from_reader("f", text.as_bytes(), &Overrides::default(), purpose) {
            Ok(loaded) => (true, loaded.report.to_string()),
            Err(report) => (false, report.to_string()),
        }
    };
    for (purpose, is_accepted, severity) in [(Purpose::Serve, true, "warning"), (Purpose::Check, false, "error")] {
        let (accepted, lines) = said(true, purpose);
        assert_eq!(accepted, is_accepted);
        let lines: Vec<_> = lines.lines().collect();
        let of_kubeconfig =
            format!("f:4:17: {severity}: allowlist.kubernetes.kubeconfig: the kubeconfig: cannot read ");
        let of_snapshot = format!("f:5:20: {severity}: allowlist.kubernetes.snapshot_file: cannot be written to ");
        assert!(lines.len() == 2 && lines[0].starts_with(&of_kubeconfig), "{lines:?}");
        assert!(lines[1].starts_with(&of_snapshot), "{lines:?}");
        // Of a cluster that is not followed nothing is read.
        let unused =
            format!("f:4:17: {severity}: allowlist.kubernetes.kubeconfig: nothing that is enabled reads this cluster");
        assert_eq!(said(false, purpose), (is_accepted, unused));
    }
}

#[test]
fn settings_of_pods_and_kinds_that_mean_nothing_are_warned_of() {
    for (text, expected) in [
        (
            "pods: {namespaces: [a]}",
            "allowlist.kubernetes.pods: no effect without `enabled: true`",
        ),
        ("pods: {enabled: false, namespaces: [a]}", ""),
        (
            "workload_kinds: [{name: a, resource: a.v1.b, activity: c}]",
            "workload_kinds: no effect without `wake` or `report_activity`",
        ),
        (
            "report_activity: true, workload_kinds: [{name: a, resource: a.v1.b, activity: c}, {name: b, resource: b.v1.b}]",
            "workload_kinds[1]: no effect: it has neither `patch` nor `activity`",
        ),
        (
            "wake: true, workload_kinds: []",
            "wake: no effect: no kind of `workload_kinds` has a `patch`",
        ),
        (
            "pods: {enabled: true}, public_suffixes: [pod, a.pod]",
            "public_suffixes[0]: no Service has such a name: with `pods` they are names of pods",
        ),
    ] {
        let text = format!("allowlist: {{kubernetes: {{enabled: true, {text}}}}}");
        let said = said(&text, &Overrides::default());
        let warnings: Vec<_> = said
            .lines()
            .filter(|line| line.contains("no effect") || line.contains("no Service"))
            .collect();
        assert_eq!(warnings.len(), usize::from(!expected.is_empty()), "{text}: {said}");
        assert!(warnings.iter().all(|line| line.ends_with(expected)), "{text}: {said}");
    }
}

#[test]
fn values_that_another_key_makes_meaningless_are_warned_of() {
    let service = "warning: anchors.service: no effect: `replicas` is a number; `auto` reads this Service";
    let ceiling = "warning: limits.ceiling.ssh_only: no effect: `ssh_only` is false, so no Service needs the annotation \
                   that this forbids";
    let unused = |key: &str| format!("warning: {key}: no effect without `enabled: true`");
    for (text, expected) in [
        ("anchors: {replicas: 2, service: x}", service),
        ("anchors: {service: x}", service),
        ("anchors: {replicas: auto, service: x}", ""),
        ("anchors: {replicas: 2}", ""),
        ("ssh_only: false\nlimits: {ceiling: {ssh_only: true}}", ceiling),
        ("limits: {ceiling: {ssh_only: true}}", ""),
        ("ssh_only: false", ""),
        (
            "access: {kubernetes: {permission: port-forward}}",
            &unused("access.kubernetes"),
        ),
        ("access: {kubernetes: {enabled: false, permission: port-forward}}", ""),
        ("access: {tickets: {ttl: 4h}}", &unused("access.tickets")),
        ("access: {tickets: {enabled: false}}", ""),
    ] {
        // Anchors need users, whose file is missing.
        let users = match text.starts_with("anchors") {
            true => "access: {users: {file: /missing}}\n",
            false => "",
        };
        let said = said(&with_a_target(&format!("{users}{text}")), &Overrides::default());
        let said: Vec<_> = said.lines().filter(|line| !line.contains("/missing")).collect();
        assert_eq!(said.len(), usize::from(!expected.is_empty()), "{text}: {said:?}");
        assert!(said.iter().all(|line| line.ends_with(expected)), "{text}: {said:?}");
    }
    let listed = "allowlist: {static: [{name: a:1, addresses: [1.1.1.1:1]}], listing: users}";
    let listed = said(listed, &Overrides::default());
    assert!(
        listed.contains("allowlist.listing: no effect: with `access.mode: open`"),
        "{listed}"
    );
    let of_services = "allowlist: {static: [{name: a:1, addresses: [1.1.1.1:1]}], kubernetes: {namespaces: [a]}}";
    let said = said(of_services, &Overrides::default());
    assert!(said.ends_with(&unused("allowlist.kubernetes")), "{said}");
}
