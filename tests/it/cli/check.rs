//! `check`: its findings, their forms, and that `serve` agrees.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::authority::Authority;
use crate::harness::process::{Process, Settings, ended, switchboard};
use crate::harness::{allow, missing};

#[test]
fn check_says_ok_or_every_fault_with_its_place() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("some.yaml");
    let path = path.to_str().unwrap();
    let missing = directory.path().join("missing.yaml");
    let missing = missing.to_str().unwrap();
    fs::write(path, "listen: 127.0.0.1:8080\n").unwrap();
    assert_eq!(
        ended(switchboard(&["check", "--config", path])),
        (0, format!("{path}: ok"), no_target(path))
    );
    let mut by_environment = switchboard(&["check"]);
    by_environment.env("SWITCHBOARD_CONFIG", path);
    assert_eq!(ended(by_environment).0, 0);

    fs::write(
        path,
        "listen: [nowhere]\nadmin: 127.0.0.1:1\ntimeout: {}\nallowlist:\n  static:\n    - {name: devbox}\n",
    )
    .unwrap();
    let (status, stdout, stderr) = ended(switchboard(&["check", "--config", path]));
    assert_eq!((status, stdout.as_str()), (2, ""));
    let lines = [
        "1:10: error: listen[0]: expected IP:port",
        "3:1: error: timeout: unknown key; did you mean `timeouts`? Known here: tls, listen, admin, admin_scrape, access, anchors, allowlist, limits, \
         ssh_only, timeouts, drain",
        "6:14: error: allowlist.static[0].name: expected the host:port",
    ];
    assert_eq!(stderr.lines().count(), lines.len(), "{stderr}");
    for (line, start) in stderr.lines().zip(lines) {
        assert!(line.starts_with(&format!("{path}:{start}")), "{start:?} in {stderr}");
    }

    let (status, stdout, stderr) = ended(switchboard(&["check", "--config", missing]));
    assert_eq!((status, stdout.as_str()), (2, ""));
    assert!(stderr.contains(missing) && stderr.contains("No such file"), "{stderr}");
}

/// Returns the warning about a file with neither a target nor a cluster.
fn no_target(file: &str) -> String {
    format!(
        "{file}:1:1: warning: allowlist: there is no target, so every request is refused with 403: add one to \
         `allowlist.static`, or set `allowlist.kubernetes.enabled`"
    )
}

#[test]
fn check_reads_a_file_without_a_flag_or_standard_input() {
    let settings = Settings::new("");
    let elsewhere = |arguments: &[&str]| {
        let mut command = switchboard(arguments);
        command.env("SWITCHBOARD_CONFIG", missing());
        command
    };
    for arguments in [
        vec!["check", settings.path()],
        vec!["check", "--config", settings.path()],
    ] {
        let said = (0, format!("{}: ok", settings.path()), no_target(settings.path()));
        assert_eq!(ended(elsewhere(&arguments)), said);
    }
    assert_eq!(ended(switchboard(&["check", "--config", "a", "b"])).0, 2);
    let piped = |text: &[u8]| {
        let mut child = switchboard(&["check", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It does not read on behind the largest file, so that the pipe may break.
        child.stdin.take().unwrap().write_all(text).ok();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let ok = (Some(0), "<stdin>: ok\n".to_owned(), no_target("<stdin>") + "\n");
    assert_eq!(piped(b"{}\n"), ok);
    let faulty = "<stdin>:1:8: error: admin: expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `here`)\n";
    assert_eq!(piped(b"admin: here\n"), (Some(2), String::new(), faulty.to_owned()));
    let large = "<stdin>:1:1: error: larger than 1 MiB\n";
    assert_eq!(piped(&vec![b'#'; 8 << 20]), (Some(2), String::new(), large.to_owned()));
}

#[test]
fn check_prints_its_findings_as_json() {
    let json = |file: &str, status: i32| -> serde_json::Value {
        let (found, stdout, stderr) = ended(switchboard(&["check", file, "--format", "json"]));
        assert_eq!((found, stderr.as_str()), (status, ""));
        serde_json::from_str(&stdout).unwrap()
    };
    let settings = Settings::new("");
    settings.write("limits:\n  tunel: {}\nadmin: here\n");
    let path = settings.path();
    let report = json(path, 2);
    assert_eq!(report["ok"], false);
    assert_eq!(report["findings"].as_array().unwrap().len(), 2);
    assert_eq!(
        report["findings"][0],
        serde_json::json!({
            "severity": "error", "file": path, "line": 2, "column": 3, "key": "limits.tunel",
            "message": "unknown key; did you mean `tunnel`? Known here: tunnel, target, client, user, process, ceiling",
        })
    );
    settings.write("{}");
    let report = json(path, 0);
    assert_eq!(
        (&report["ok"], &report["findings"][0]["severity"]),
        (&true.into(), &"warning".into())
    );
    let report = json(&missing(), 2);
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["line"], &finding["column"], &finding["key"]),
        (&().into(), &().into(), &"".into())
    );
    assert!(
        finding["message"].as_str().unwrap().contains("No such file"),
        "{finding}"
    );
}

#[test]
fn a_file_that_is_no_regular_file_is_not_waited_for() {
    let directory = TempDir::new().unwrap();
    let fifo = directory.path().join("fifo");
    let fifo = fifo.to_str().unwrap();
    assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
    let said = format!("{fifo}: error: cannot be read: it is a FIFO, not a regular file");
    for command in ["check", "serve"] {
        assert_eq!(
            ended(switchboard(&[command, "--config", fifo])),
            (2, String::new(), said.clone())
        );
    }
}

/// Files that are accepted, refused, or accepted with warnings, with MISSING for a path that is not there; the corpus of the fuzzers adds what is no sense at all.
const JUDGED: [&str; 25] = [
    "{}",
    "allowlist: {static: [{name: \"a:22\", addresses: [\"127.0.0.1:1\"]}]}",
    "allowlist: {static: [{name: \"a:22\", addresses: [\"127.0.0.1:1\"], allowed_clients: [x]}]}",
    "limits: {tunel: {}}",
    "limits: {tunnel: {download: fast}}",
    "limits: {client: {max_tunnels: \"10\"}}",
    "limits: {client: {max_tunnels: 010}}",
    "limits: {process: {max_tunnels: unlimited}}",
    "ssh_only: \"false\"",
    "ssh_only: false",
    "timeouts: {dial: 1s, connect: 2s}",
    "timeouts: {dial: 2s, connect: 1s}",
    "drain: {delay: 366d}",
    "drain: {delay: 0s}",
    "tls: {client_auth: required}",
    "tls: {certificates: [{cert: MISSING, key: MISSING}]}",
    "tls: {poll: 1s}",
    "allowlist: {kubernetes: {enabled: false, selector: \"\"}}",
    "allowlist: {kubernetes: {enabled: true, selector: \"!!\"}}",
    "allowlist: {kubernetes: {enabled: false, snapshot_file: MISSING}}",
    "listen: [\"127.0.0.1:0\", {address: \"127.0.0.1:0\", proxy_protocol: required}]",
    "listen: [\"127.0.0.1:0\", {address: \"127.0.0.1:0\", tls: required}]",
    "listen: {address: \"127.0.0.1:0\", proxy_protocol: required, trusted_proxies: [\"fd00::/8\"]}",
    "admin: [",
    "",
];

#[test]
fn files_of_a_cluster_that_are_missing_are_errors_of_check_and_warnings_of_serve() {
    let directory = TempDir::new().unwrap();
    let folder = directory.path().display();
    let settings = Settings::new("");
    for (setting, reason) in [
        (
            format!("kubeconfig: {folder}/absent"),
            "kubeconfig: the kubeconfig: cannot read ",
        ),
        (
            format!("snapshot_file: {folder}/absent/snapshot"),
            "snapshot_file: cannot be written to ",
        ),
    ] {
        settings.write(&format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nallowlist: {{kubernetes: {{enabled: true, {setting}}}}}\n"
        ));
        let (status, _, stderr) = ended(switchboard(&["check", settings.path()]));
        assert_eq!(status, 2, "{stderr}");
        let told = format!("error: allowlist.kubernetes.{reason}");
        assert!(stderr.contains(&told) && stderr.lines().count() == 1, "{stderr}");
        let mut served = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
        let warned = served.stderr.find(&format!(": allowlist.kubernetes.{reason}"));
        assert!(warned.contains(" WARN ") && !warned.contains("warning"), "{warned}");
        served.stderr.find("admin port ");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A line of `check` as `serve` logs it: its severity is the level.
fn logged(line: &str) -> String {
    let without = |line: String, severity: &str| line.replacen(severity, " ", 1);
    [" warning: ", " note: "].into_iter().fold(line.to_owned(), without)
}

#[test]
fn check_and_serve_agree_on_every_file() {
    let corpus = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/config")).unwrap();
    let corpus = corpus.map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let texts = JUDGED
        .iter()
        .map(|text| text.replace("MISSING", &missing()).into_bytes());
    let settings = Settings::new("");
    let mut accepted = 0;
    for text in texts.chain(corpus) {
        fs::write(settings.path(), &text).unwrap();
        let shown = String::from_utf8_lossy(&text);
        // Ports that the kernel chooses, unless this is about the ports.
        let mut flags = vec!["--config", settings.path(), "--admin", "127.0.0.1:0"];
        if !shown.starts_with("listen") {
            flags.extend(["--listen", "127.0.0.1:0"]);
        }
        let (status, _, findings) = ended(switchboard(&[&["check"], &flags[..]].concat()));
        let mut served = Process::spawn(switchboard(&[&["serve"], &flags[..]].concat()));
        if status == 0 {
            accepted += 1;
            for line in findings.lines() {
                served.stderr.find(&logged(line));
            }
            served.stderr.find("admin port ");
            served.signal(Signal::INT);
        } else {
            assert_eq!((served.exit_status(), status), (2, 2), "{shown}");
            assert_eq!(served.stderr.rest().join("\n"), findings, "{shown}");
        }
    }
    assert!(accepted >= 8, "{accepted}");
}

#[test]
fn tls_that_clients_can_go_round_is_warned_of() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let settings = Settings::new("");
    for (listen, auth, expected) in [
        ("required", "required", ""),
        ("optional", "optional", ""),
        (
            "off",
            "off",
            ": note: tls.certificates: they are not used: no port has ",
        ),
        (
            "optional",
            "required",
            ": warning: tls.client_auth: 127.0.0.1:0 accepts plain HTTP, where clients show no certificate: ",
        ),
    ] {
        let ca = match auth {
            "off" => String::new(),
            _ => format!(", client_ca: \"{}\"", authority.ca().display()),
        };
        settings.write(&format!(
            "listen: {{address: \"127.0.0.1:0\", tls: {listen}}}\nadmin: 127.0.0.1:0\n{}tls: {{poll: 10s, \
             certificates: [{}], client_auth: {auth}{ca}}}\n",
            allow(&[("a:22", "127.0.0.1:1".parse().unwrap())]),
            server.setting(),
        ));
        let (status, _, stderr) = ended(switchboard(&["check", settings.path()]));
        assert_eq!(status, 0, "{stderr}");
        assert!(stderr.contains(expected), "{listen} {auth}: {stderr}");
        assert_eq!(stderr.lines().count(), usize::from(!expected.is_empty()), "{stderr}");
        let mut process = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
        stderr.lines().for_each(|line| drop(process.stderr.find(&logged(line))));
        process.stderr.find("admin port ");
    }
}

#[test]
fn ports_of_a_flag_that_know_no_client_are_checked_against_the_targets_of_the_file() {
    let authority = Authority::new();
    let settings = Settings::new(&format!(
        "tls: {{certificates: [{}], client_auth: required, client_ca: \"{}\"}}\n\
         listen: {{address: \"127.0.0.1:0\", tls: required}}\n\
         allowlist: {{static: [{{name: \"a:22\", addresses: [\"127.0.0.1:1\"], allowed_clients: [x]}}]}}\n",
        authority.server("server", &[]).setting(),
        authority.ca().display()
    ));
    let path = settings.path();
    assert_eq!(
        ended(switchboard(&["check", path])),
        (0, format!("{path}: ok"), String::new())
    );
    for command in ["check", "serve"] {
        let (status, _, stderr) = ended(switchboard(&[command, "--config", path, "--listen", "127.0.0.1:0"]));
        assert_eq!(status, 2);
        let start = format!("{path}: error: --listen: no client has a certificate at these ports: ");
        assert!(stderr.starts_with(&start), "{stderr}");
    }
}

#[test]
fn the_documented_settings_are_valid() {
    let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/config/switchboard.yaml");
    assert_eq!(ended(switchboard(&["check", "--config", documented])).0, 0);
}

#[test]
fn check_prints_the_format_of_the_file_as_json_schema() {
    let mut with_a_file = switchboard(&["check", "--schema"]);
    with_a_file.env("SWITCHBOARD_CONFIG", missing());
    for command in [switchboard(&["check", "--schema"]), with_a_file] {
        let (status, stdout, stderr) = ended(command);
        assert_eq!((status, stderr.as_str()), (0, ""));
        let schema: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let download = &schema["properties"]["limits"]["properties"]["tunnel"]["properties"]["download"];
        assert_eq!(download["type"][0], "string", "{schema}");
    }
}
