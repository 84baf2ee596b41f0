//! The faults of the section `tls`, and of the files that it names.

use std::fs;
use std::path::Path;

use switchboard::proxy::config::{Config, Diagnostic, Report};

use crate::harness::authority::Authority;

/// The faults of a configuration that names this certificate and key, and further settings of the section `tls`.
fn faults(cert: &Path, key: &Path, more: &str) -> String {
    let (cert, key) = (cert.display(), key.display());
    let text = format!(
        "listen: {{address: \"127.0.0.1:0\", tls: optional}}\n\
         tls:\n  certificates:\n    - cert: \"{cert}\"\n      key: \"{key}\"\n{more}"
    );
    Config::parse(&text).map_or_else(|report| by_line(&report), |_| String::new())
}

/// The findings, each with its line.
fn by_line(report: &Report) -> String {
    let line = |finding: &Diagnostic| {
        let line = finding.position.unwrap().line;
        format!("line {line}: {}: {}", finding.key, finding.message)
    };
    report.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_faulty_certificate_or_key_is_found_with_the_configuration() {
    let authority = Authority::new();
    let [good, other] = ["good", "other"].map(|name| authority.server(name, &[]));
    let [empty, binary, gone] = ["empty", "binary", "gone"].map(|name| authority.path(name));
    fs::write(&empty, "").unwrap();
    fs::write(&binary, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
    let at_cert = |path: &Path, why: &str| format!("line 4: tls.certificates[0].cert: {}: {why}", path.display());
    let at_key = |path: &Path, why: &str| format!("line 5: tls.certificates[0].key: {}: {why}", path.display());
    let mismatch = format!("it is not the key of the certificate in {}", good.cert.display());
    let both =
        at_cert(&empty, "there is no certificate in it") + "\n" + &at_key(&empty, "there is no private key in it");
    for (cert, key, expected) in [
        (&good.cert, &good.key, String::new()),
        (&good.cert, &other.key, at_key(&other.key, &mismatch)),
        (
            &good.cert,
            &good.cert,
            at_key(&good.cert, "there is no private key in it"),
        ),
        (
            &good.key,
            &good.key,
            at_cert(&good.key, "there is no certificate in it"),
        ),
        (&empty, &empty, both),
        (&gone, &good.key, at_cert(&gone, "there is no such file")),
    ] {
        assert_eq!(faults(cert, key, ""), expected);
    }
    let said = faults(&binary, &good.key, "");
    assert!(said.starts_with(&at_cert(&binary, "line 1: it is not PEM: ")), "{said}");
}

#[test]
fn settings_that_contradict_each_other_are_found_too() {
    let authority = Authority::new();
    let good = authority.server("good", &[]);
    let empty = authority.path("empty");
    fs::write(&empty, "").unwrap();
    let empty = empty.display();
    for (more, expected) in [
        (
            "  client_auth: maybe\n",
            "line 6: tls.client_auth: expected `off`, `optional` or `required` (found `maybe`)",
        ),
        (
            "  client_auth: required\n",
            "line 2: tls: `client_auth` needs `client_ca`: the authorities that issue client certificates",
        ),
        (
            "  client_ca: x\n",
            "line 6: tls.client_ca: has no effect without `client_auth`",
        ),
        ("  crl: x\n", "line 6: tls.crl: has no effect without `client_auth`"),
        ("  poll: 0s\n", "line 6: tls.poll: must be more than 0s (found `0s`)"),
        (
            &format!("  client_auth: optional\n  client_ca: \"{empty}\"\n  crl: \"{empty}\"\n"),
            &format!(
                "line 7: tls.client_ca: {empty}: there is no certificate in it\n\
                 line 8: tls.crl: {empty}: there is no revocation list in it"
            ),
        ),
    ] {
        assert_eq!(faults(&good.cert, &good.key, more), expected);
    }
    let names = |listen: &str, auth: &str| {
        let text = format!(
            "listen: {{address: \"127.0.0.1:0\", tls: {listen}}}\n\
             tls: {{certificates: [{}], client_auth: {auth}}}\n\
             allowlist:\n  static:\n    - {{name: \"a:1\", addresses: [\"127.0.0.1:1\"], allowed_clients: [x]}}\n",
            good.setting(),
        );
        Config::parse(&text).map(drop).map_err(|report| by_line(&report))
    };
    let ca = authority.ca();
    for (listen, auth, met) in [
        ("optional", "optional", true),
        ("required", "required", true),
        ("optional", "off", false),
        ("off", "optional", false),
    ] {
        let issued_by = match auth {
            "off" => auth.to_owned(),
            _ => format!("{auth}, client_ca: \"{}\"", ca.display()),
        };
        let fault = "line 5: allowlist.static[0].allowed_clients: no client has a certificate: `allowed_clients` needs \
                     `tls.client_auth` and a port with `tls`";
        let expected = if met { Ok(()) } else { Err(fault.to_owned()) };
        assert_eq!(names(listen, &issued_by), expected, "{listen}, {auth}");
    }
    let bare = Config::parse("listen: {address: \"127.0.0.1:0\", tls: required}\n").unwrap_err();
    assert_eq!(by_line(&bare), "line 1: listen.tls: needs `tls.certificates`");
}
