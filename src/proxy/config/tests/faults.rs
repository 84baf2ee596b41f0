//! The faults of a configuration, section by section.

use super::*;

mod listen;
mod targets;

/// Returns the faults, each with its line. The columns have tests of their own.
fn faults(text: &str) -> String {
    let report = Config::parse(text).unwrap_err();
    let lines: Vec<_> = report
        .iter()
        .map(|fault| {
            assert_eq!(fault.severity, Severity::Error);
            let (line, key, message) = (fault.position.unwrap().line, &fault.key, &fault.message);
            match key.as_str() {
                "" => format!("line {line}: {message}"),
                _ => format!("line {line}: {key}: {message}"),
            }
        })
        .collect();
    lines.join("\n")
}

/// A table of texts and their faults.
fn assert_faults(table: &[(&str, &str)]) {
    for (text, expected) in table {
        assert_eq!(faults(text), *expected, "{text:?}");
    }
}

#[test]
fn a_value_of_the_wrong_kind_is_a_fault() {
    assert_faults(&[
        ("- a", "line 1: expected a map (found a list)"),
        ("admin", "line 1: expected a map (found a single value)"),
        ("drain: 5s", "line 1: drain: expected a map (found a single value)"),
        (
            "admin_scrape: none",
            "line 1: admin_scrape: expected `all`, `loopback` or a list of networks (found `none`)",
        ),
        (
            "admin_scrape: [10.0.0.1]",
            "line 1: admin_scrape[0]: expected a network such as `10.0.0.0/8` or `fd00::/8` (found `10.0.0.1`)",
        ),
        ("admin: []", "line 1: admin: expected a single value (found a list)"),
        (
            "timeouts:\n  request_header:\n    - 1s",
            "line 2: timeouts.request_header: expected a single value (found a list)",
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
fn unknown_and_duplicate_keys_are_faults() {
    assert_faults(&[
        (
            "drain:\n  delay: 1s\n  dealy: 1s\n",
            "line 3: drain.dealy: unknown key; did you mean `delay`? Known here: delay, timeout, spread, resumable_spread",
        ),
        (
            "tsl: {}\n",
            "line 1: tsl: unknown key; did you mean `tls`? Known here: tls, listen, admin, admin_scrape, access, anchors, allowlist, limits, ssh_only, \
             timeouts, drain",
        ),
        (
            "allowlist: {<<: {}}",
            "line 1: allowlist.<<: unknown key; known here: report_only, host_keys, listing, static, kubernetes",
        ),
        (
            "\n\"\\e[1m\": 1",
            "line 2: \\u{1b}[1m: unknown key; known here: tls, listen, admin, admin_scrape, access, anchors, allowlist, limits, ssh_only, timeouts, drain",
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
fn durations_are_checked() {
    assert_faults(&[
        (
            "timeouts: {request_header: 10}",
            "line 1: timeouts.request_header: expected a duration such as `250ms`, `10s` or `1h30m` (found `10`); did you mean `10s`?",
        ),
        (
            "timeouts: {request_header: 0s}",
            "line 1: timeouts.request_header: must be more than 0s (found `0s`)",
        ),
        (
            "timeouts: {request_header: 61m}",
            "line 1: timeouts.request_header: must be at most 1h (found `61m`)",
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
             (found `unlimited`); did you mean `off`?",
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
            "timeouts:\n  dial: 5s\n  connect: 6s\n",
            "line 3: timeouts.connect: one try (6s) may not take longer than the whole dial (5s)",
        ),
        (
            "timeouts: {dial: 2s}",
            "line 1: timeouts.dial: one try (3s) may not take longer than the whole dial (2s)",
        ),
        // A fault has the default, which is not compared with the other value.
        (
            "timeouts: {connect: 20s, dial: 0s}",
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
             `unlimited` (found `off`); did you mean `unlimited`?",
        ),
        (
            "limits: {target: {max_tunnels: 0}, client: {connects_burst: unlimited}, process: {max_tunnels: 5k}}",
            "line 1: limits.target.max_tunnels: expected a whole number of at least 1, or `unlimited` (found `0`)\n\
             line 1: limits.client.connects_burst: expected a whole number of at least 1 (found `unlimited`)\n\
             line 1: limits.process.max_tunnels: expected a whole number of at least 1, or `unlimited` (found `5k`)",
        ),
        (
            "limits: {roof: {download: unlimited}}",
            "line 1: limits.roof: unknown key; known here: tunnel, target, client, user, process, ceiling",
        ),
    ]);
}

#[test]
fn all_faults_are_reported_at_once_in_the_order_of_their_lines() {
    let text = "timeouts:\n  request_header: soon\n  hear: 5s\ndrain:\n  delay: 1s\n  delay: 2s\n\
                limits: {tunnel: {upload: 1}}\nadmin: here\nlisten: [a, 1.1.1.1:1]\nextra: !x 1\n";
    let faults = Config::parse(text).unwrap_err();
    let places: Vec<String> = faults
        .iter()
        .map(|fault| format!("{} {}", fault.position.unwrap(), fault.key))
        .collect();
    assert_eq!(
        places,
        [
            "2:19 timeouts.request_header",
            "3:3 timeouts.hear",
            "6:3 drain.delay",
            "7:27 limits.tunnel.upload",
            "8:8 admin",
            "9:10 listen[0]",
            "10:1 extra",
            "10:11 ",
        ]
    );
}

#[test]
fn a_fault_of_a_value_points_at_the_value_and_one_of_a_key_at_the_key() {
    for (text, position, key) in [
        ("admin: here", "1:8", "admin"),
        ("admin:\n  here", "2:3", "admin"),
        ("timeouts:\n  request_header: {}", "2:3", "timeouts.request_header"),
        ("timeouts: {hea: 1s}", "1:12", "timeouts.hea"),
        ("drain:\n  delay: 1s\n  delay: 1s", "3:3", "drain.delay"),
        ("listen: [a]", "1:10", "listen[0]"),
        ("listen:\n  - {tls: off}", "2:5", "listen[0]"),
        ("tls: {client_auth: required}", "1:1", "tls"),
        ("a: [", "1:4", ""),
        ("- a", "1:1", ""),
        ("é: 1", "1:1", "é"),
        ("admin: 'é'", "1:8", "admin"),
    ] {
        let report = Config::parse(text).unwrap_err();
        let fault = report.iter().next().unwrap();
        let found = (fault.position.unwrap().to_string(), fault.key.as_str());
        assert_eq!(found, (position.to_owned(), key), "{text:?}");
    }
}

#[test]
fn a_scalar_that_is_another_value_to_other_readers_of_yaml_is_a_fault() {
    let quoted_truth = |text: &str| format!("expected `true` or `false` without quotes (found the text \"{text}\")");
    let quoted_number = |text: &str| format!("expected a number without quotes (found the text \"{text}\")");
    let octal = |text: &str| {
        format!("expected a number without leading zeros: they make it octal in YAML 1.1 (found `{text}`)")
    };
    for (setting, reason) in [
        ("ssh_only: \"false\"", quoted_truth("false")),
        ("ssh_only: 'true'", quoted_truth("true")),
        (
            "ssh_only: 'yes'",
            "expected `true` or `false` (found `yes`); did you mean `true`?".to_owned(),
        ),
        ("limits.client.max_tunnels: \"10\"", quoted_number("10")),
        ("limits.client.connects_burst: '10'", quoted_number("10")),
        ("limits.client.max_tunnels: 010", octal("010")),
        ("limits.client.connects_burst: 007", octal("007")),
        ("allowlist.kubernetes.alias_port: 022", octal("022")),
        ("allowlist.kubernetes.alias_port: \"22\"", quoted_number("22")),
    ] {
        let (path, value) = setting.split_once(": ").unwrap();
        let keys: Vec<_> = path.split('.').collect();
        let text = format!("{{{}: {value}{}", keys.join(": {"), "}".repeat(keys.len()));
        assert_eq!(faults(&text), format!("line 1: {path}: {reason}"));
    }
    // A word is a text with quotes and without.
    for sound in [
        "limits: {client: {max_tunnels: \"unlimited\"}, tunnel: {download: '10MiB/s'}}",
        "listen: {address: \"0.0.0.0:8080\", tls: 'off'}",
        "drain: {delay: '0s'}",
    ] {
        Config::parse(sound).unwrap();
    }
}

#[test]
fn a_missing_file_hides_no_other_fault_and_is_hidden_by_none() {
    let missing = tempfile::tempdir().unwrap().path().join("missing");
    let missing = missing.display();
    let text = format!(
        "listen: {{address: 0.0.0.0:8080, tls: optional}}\n\
                tls:\n  certificates:\n    - {{cert: {missing}.crt, key: {missing}.key}}\n    - {{cert: {missing}.crt}}\n  \
                client_auth: maybe\n  client_ca: {missing}.ca\n  poll: 0s\n\
                allowlist:\n  static:\n    - {{name: a:1, addresses: [b]}}\ndrain: {{delay: soon}}\n"
    );
    let said = faults(&text);
    let starts = [
        &format!("line 4: tls.certificates[0].cert: {missing}.crt: "),
        &format!("line 4: tls.certificates[0].key: {missing}.key: "),
        "line 5: tls.certificates[1]: `key` is missing",
        "line 6: tls.client_auth: expected ",
        &format!("line 7: tls.client_ca: {missing}.ca: "),
        "line 8: tls.poll: must be more than 0s",
        "line 11: allowlist.static[0].addresses[0]: ",
        "line 12: drain.delay: expected ",
    ];
    assert_eq!(said.lines().count(), starts.len(), "{said}");
    for (line, start) in said.lines().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    // A missing certificate does not decide whether clients have certificates.
    let no_client = faults(&format!(
        "listen: {{address: 0.0.0.0:8080, tls: optional}}\n\
         tls: {{certificates: [{{cert: {missing}, key: {missing}}}]}}\n\
         allowlist: {{static: [{{name: a:1, addresses: [1.1.1.1:1], allowed_clients: [x]}}]}}",
    ));
    assert!(no_client.contains("line 3: allowlist.static[0].allowed_clients: no client has a certificate"));
}

#[test]
fn of_a_file_of_many_faults_the_first_ones_are_told() {
    let item = "    - {nam: a, addresses: []}\n";
    let said = faults(&format!("allowlist:\n  static:\n{}", item.repeat(1_000)));
    assert_eq!(said.lines().count(), 1_001);
    assert!(said.ends_with("too many errors: the others are not reported"), "{said}");
    assert!(said.contains("allowlist.static[0].nam: unknown key; did you mean `name`?"));
}

#[test]
fn a_key_that_restricts_may_not_be_left_without_a_value() {
    let reason = "it restricts, and without a value it does not: give it one, or remove the key";
    for (text, key) in [
        ("admin_scrape:", "admin_scrape"),
        ("tls: {client_auth: ~}", "tls.client_auth"),
        ("tls: {crl: null}", "tls.crl"),
        ("access: {mode: }", "access.mode"),
        ("access: {cleartext: }", "access.cleartext"),
        ("access: {hide_names: }", "access.hide_names"),
        ("access: {on_expiry: }", "access.on_expiry"),
        (
            "allowlist: {kubernetes: {namespaces: }}",
            "allowlist.kubernetes.namespaces",
        ),
        (
            "allowlist: {kubernetes: {namespace_selector: }}",
            "allowlist.kubernetes.namespace_selector",
        ),
        (
            "allowlist: {kubernetes: {allowed_cidrs: }}",
            "allowlist.kubernetes.allowed_cidrs",
        ),
        ("limits: {ceiling: {download: }}", "limits.ceiling.download"),
        ("limits: {ceiling: {upload: }}", "limits.ceiling.upload"),
        ("limits: {ceiling: {ssh_only: }}", "limits.ceiling.ssh_only"),
        ("listen: {address: \"1.1.1.1:1\", tls: }", "listen.tls"),
        (
            "listen: [{address: \"1.1.1.1:1\", proxy_protocol: }]",
            "listen[0].proxy_protocol",
        ),
        (
            "listen: [1.1.1.1:1, {address: \"1.1.1.1:2\", trusted_proxies: }]",
            "listen[1].trusted_proxies",
        ),
    ] {
        assert_eq!(faults(text), format!("line 1: {key}: {reason}"), "{text}");
    }
    for key in ["allowed_clients", "allowed_users", "allowed_groups"] {
        let text = format!("allowlist:\n  static:\n    - name: a:1\n      addresses: [1.1.1.1:1]\n      {key}:\n");
        assert_eq!(faults(&text), format!("line 5: allowlist.static[0].{key}: {reason}"));
    }
}

#[test]
fn a_network_of_mapped_addresses_is_a_fault_in_every_list() {
    let reason = "expected an IPv4 network in its own form, `10.0.0.0/8` (found `::ffff:10.0.0.0/104`)";
    for (text, key) in [
        ("admin_scrape: [\"::ffff:10.0.0.0/104\"]", "admin_scrape[0]"),
        (
            "allowlist: {kubernetes: {allowed_cidrs: [10.0.0.0/8, \"::ffff:10.0.0.0/104\"]}}",
            "allowlist.kubernetes.allowed_cidrs[1]",
        ),
        (
            "listen: {address: \"1.1.1.1:1\", proxy_protocol: required, trusted_proxies: [\"::ffff:10.0.0.0/104\"]}",
            "listen.trusted_proxies[0]",
        ),
    ] {
        assert_eq!(faults(text), format!("line 1: {key}: {reason}"), "{text}");
    }
    let other = Config::parse("admin_scrape: [\"::/0\", \"::ffff:0:0/95\", \"::fffe:0:0/96\", \"64:ff9b::/96\"]");
    assert!(other.is_ok(), "they have other addresses, too: {other:?}");
}
