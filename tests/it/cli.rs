//! The command line of the real binary: what it prints, its exit status, and what goes before what.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::harness::authority::Authority;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard, switchboard_with_descriptors};
use crate::harness::target::Target;
use crate::harness::{allow, refusal};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

/// The exit status and all that was printed on stdout and stderr.
fn run(command: Command) -> (i32, String, String) {
    let mut process = Process::spawn(command);
    let status = process.exit_status();
    (
        status,
        process.stdout.rest().join("\n"),
        process.stderr.rest().join("\n"),
    )
}

#[test]
fn check_says_ok_or_every_fault_with_its_place() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("some.yaml");
    let path = path.to_str().unwrap();
    let missing = directory.path().join("missing.yaml");
    let missing = missing.to_str().unwrap();
    fs::write(path, "listen: 127.0.0.1:8080\n").unwrap();
    assert_eq!(
        run(switchboard(&["check", "--config", path])),
        (0, format!("{path}: ok"), no_target(path))
    );
    let mut by_environment = switchboard(&["check"]);
    by_environment.env("SWITCHBOARD_CONFIG", path);
    assert_eq!(run(by_environment).0, 0);

    fs::write(
        path,
        "listen: [nowhere]\nadmin: 127.0.0.1:1\ntimeout: {}\nallowlist:\n  static:\n    - {name: devbox}\n",
    )
    .unwrap();
    let (status, stdout, stderr) = run(switchboard(&["check", "--config", path]));
    assert_eq!((status, stdout.as_str()), (2, ""));
    let lines = [
        "1:10: error: listen[0]: expected IP:port",
        "3:1: error: timeout: unknown key; did you mean `timeouts`? Known here: tls, listen, admin, access, allowlist, limits, \
         ssh_only, timeouts, drain",
        "6:7: error: allowlist.static[0]: `addresses` is missing",
        "6:14: error: allowlist.static[0].name: expected the host:port",
    ];
    assert_eq!(stderr.lines().count(), lines.len(), "{stderr}");
    for (line, start) in stderr.lines().zip(lines) {
        assert!(line.starts_with(&format!("{path}:{start}")), "{start:?} in {stderr}");
    }

    let (status, stdout, stderr) = run(switchboard(&["check", "--config", missing]));
    assert_eq!((status, stdout.as_str()), (2, ""));
    assert!(stderr.contains(missing) && stderr.contains("No such file"), "{stderr}");
}

/// What is said of a file whose text is neither a target nor a cluster.
fn no_target(file: &str) -> String {
    format!(
        "{file}:1:1: warning: allowlist: there is no target, so every request is refused with 403: add one to \
         `allowlist.static`, or set `allowlist.kubernetes.enabled`"
    )
}

#[test]
fn a_stderr_that_is_full_changes_no_exit_status() {
    let settings = Settings::new("timeout: {}\n");
    for arguments in [
        ["check", "--config", settings.path()],
        ["serve", "--config", settings.path()],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = switchboard(&arguments).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn too_few_descriptors_for_a_start_are_told_in_one_line() {
    let settings = Settings::new("");
    for most in 4..24 {
        let mut process = Process::spawn(switchboard_with_descriptors(
            most,
            &["serve", "--config", settings.path()],
        ));
        let line = process.stderr.next().unwrap_or_default();
        if line.contains(" WARN ") || line.contains(" INFO ") {
            // The limit is high enough.
            continue;
        }
        assert_eq!(process.exit_status(), 1, "{most}: {line}");
        assert_eq!(process.stderr.rest(), [""; 0], "{most}: {line}");
        assert!(line.starts_with("switchboard: "), "{most}: {line}");
    }
}

#[test]
fn check_reads_a_file_without_a_flag_or_standard_input() {
    let settings = Settings::new("");
    let elsewhere = |arguments: &[&str]| {
        let mut command = switchboard(arguments);
        command.env("SWITCHBOARD_CONFIG", "/no/such/file");
        command
    };
    for arguments in [
        vec!["check", settings.path()],
        vec!["check", "--config", settings.path()],
    ] {
        let said = (0, format!("{}: ok", settings.path()), no_target(settings.path()));
        assert_eq!(run(elsewhere(&arguments)), said);
    }
    assert_eq!(run(switchboard(&["check", "--config", "a", "b"])).0, 2);
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
        let (found, stdout, stderr) = run(switchboard(&["check", file, "--format", "json"]));
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
            "message": "unknown key; did you mean `tunnel`? Known here: tunnel, target, client, user, total, ceiling",
        })
    );
    settings.write("{}");
    let report = json(path, 0);
    assert_eq!(
        (&report["ok"], &report["findings"][0]["severity"]),
        (&true.into(), &"warning".into())
    );
    let report = json("/no/such/file", 2);
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
            run(switchboard(&[command, "--config", fifo])),
            (2, String::new(), said.clone())
        );
    }
}

/// Files that are accepted, refused, or accepted with warnings; the corpus of the fuzzers adds what is no sense at all.
const JUDGED: [&str; 25] = [
    "{}",
    "allowlist: {static: [{name: \"a:22\", addresses: [\"127.0.0.1:1\"]}]}",
    "allowlist: {static: [{name: \"a:22\", addresses: [\"127.0.0.1:1\"], allowed_clients: [x]}]}",
    "limits: {tunel: {}}",
    "limits: {tunnel: {download: fast}}",
    "limits: {client: {max_tunnels: \"10\"}}",
    "limits: {client: {max_tunnels: 010}}",
    "limits: {total: {max_tunnels: unlimited}}",
    "ssh_only: \"false\"",
    "ssh_only: false",
    "timeouts: {dial: 1s, dial_try: 2s}",
    "timeouts: {dial: 2s, dial_try: 1s}",
    "drain: {delay: 366d}",
    "drain: {delay: 0s}",
    "tls: {client_auth: required}",
    "tls: {certificates: [{cert: /no/such, key: /no/such}]}",
    "tls: {poll: 1s}",
    "allowlist: {kubernetes: {enabled: false, selector: \"\"}}",
    "allowlist: {kubernetes: {enabled: true, selector: \"a in (b\"}}",
    "allowlist: {kubernetes: {enabled: false, kubeconfig: /no/such/file, snapshot_file: /no/such/folder/file}}",
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
            "kubeconfig: cannot be read: No such file",
        ),
        (
            format!("snapshot_file: {folder}/absent/snapshot"),
            "snapshot_file: cannot be written to ",
        ),
    ] {
        settings.write(&format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nallowlist: {{kubernetes: {{enabled: true, {setting}}}}}\n"
        ));
        let (status, _, stderr) = run(switchboard(&["check", settings.path()]));
        assert_eq!(status, 2, "{stderr}");
        let told = format!("error: allowlist.kubernetes.{reason}");
        assert!(stderr.contains(&told) && stderr.lines().count() == 1, "{stderr}");
        let mut served = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
        let warned = served.stderr.find(&format!("warning: allowlist.kubernetes.{reason}"));
        assert!(warned.contains(" WARN "), "{warned}");
        served.stderr.find("admin port ");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn check_and_serve_agree_on_every_file() {
    let corpus = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/config")).unwrap();
    let corpus = corpus.map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let texts = JUDGED.iter().map(|text| text.as_bytes().to_owned());
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
        let (status, _, findings) = run(switchboard(&[&["check"], &flags[..]].concat()));
        let mut served = Process::spawn(switchboard(&[&["serve"], &flags[..]].concat()));
        if status == 0 {
            accepted += 1;
            for line in findings.lines() {
                served.stderr.find(line);
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
        let (status, _, stderr) = run(switchboard(&["check", settings.path()]));
        assert_eq!(status, 0, "{stderr}");
        assert!(stderr.contains(expected), "{listen} {auth}: {stderr}");
        assert_eq!(stderr.lines().count(), usize::from(!expected.is_empty()), "{stderr}");
        let mut process = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
        stderr.lines().for_each(|line| drop(process.stderr.find(line)));
        process.stderr.find("admin port ");
    }
}

/// What a process can live without until it is there: the check before a rollout refuses it, and a restart does not.
#[test]
fn a_missing_file_of_the_cluster_is_an_error_to_check_and_a_warning_to_serve() {
    let settings = Settings::new("allowlist: {kubernetes: {enabled: true, kubeconfig: /no/such/file}}\n");
    let path = settings.path();
    let (status, _, stderr) = run(switchboard(&["check", path]));
    assert_eq!(status, 2);
    let error = stderr.lines().next().unwrap();
    assert!(error.contains(": error: allowlist.kubernetes.kubeconfig: "), "{stderr}");
    let mut served = Process::spawn(switchboard(&["serve", "--config", path]));
    let logged = served.stderr.find(&error.replace(": error: ", ": warning: "));
    assert!(logged.contains(" WARN "), "{logged}");
    served.stderr.find("admin port ");
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
        run(switchboard(&["check", path])),
        (0, format!("{path}: ok"), String::new())
    );
    for command in ["check", "serve"] {
        let (status, _, stderr) = run(switchboard(&[command, "--config", path, "--listen", "127.0.0.1:0"]));
        assert_eq!(status, 2);
        let start = format!("{path}: error: --listen: no client has a certificate at these ports: ");
        assert!(stderr.starts_with(&start), "{stderr}");
    }
}

#[test]
fn the_documented_settings_are_valid() {
    let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/config/switchboard.yaml");
    assert_eq!(run(switchboard(&["check", "--config", documented])).0, 0);
}

#[test]
fn check_prints_the_format_of_the_file_as_json_schema() {
    let mut with_a_file = switchboard(&["check", "--schema"]);
    with_a_file.env("SWITCHBOARD_CONFIG", "/no/such/file");
    for command in [switchboard(&["check", "--schema"]), with_a_file] {
        let (status, stdout, stderr) = run(command);
        assert_eq!((status, stderr.as_str()), (0, ""));
        let schema: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let download = &schema["properties"]["limits"]["properties"]["tunnel"]["properties"]["download"];
        assert_eq!(download["type"][0], "string", "{schema}");
    }
}

#[test]
fn faulty_usage_or_settings_end_with_status_2() {
    let faulty = Settings::new("unknown: 1\n");
    let selects = Settings::new("allowlist: {kubernetes: {enabled: true, selector: 'a in (b'}}\n");
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let table: [(&[&str], &str); 19] = [
        (&[], "Usage"),
        (&["dance"], "dance"),
        (&["check"], "--config"),
        (&["check", "a", "b"], "b"),
        (&["check", "--format", "xml", "a"], "--format"),
        (&["check", "--listen", "localhost", "a"], "localhost"),
        (&["serve", "--unknown"], "--unknown"),
        (&["serve", "more"], "more"),
        (&["serve", "--listen", "localhost"], "localhost"),
        (&["serve", "--admin", "127.0.0.1"], "127.0.0.1"),
        (&["serve", "--allow", "devbox:22"], "NAME:PORT=ADDR"),
        (&["serve", "--allow", "devbox:22=localhost:22"], "not resolved"),
        (&["serve", "--allow", "dev_box:x=127.0.0.1:22"], "bad name"),
        (
            &["serve", "--config", faulty.path()],
            ":3:1: error: unknown: unknown key",
        ),
        (
            &["serve", "--config", "/nonexistent"],
            "/nonexistent: error: cannot be read: No such file",
        ),
        (&["serve", "--config", selects.path()], "`,` or `)`"),
        (&["check", "--config", selects.path()], "`,` or `)`"),
        (&["serve", "--log", "a=b=c"], "--log"),
        (&["serve", "--log-format", "xml"], "--log-format"),
    ];
    for (arguments, told) in table {
        // The ports, so that one that starts against all expectations does no harm.
        let served = arguments.first() == Some(&"serve") && !arguments.iter().any(|argument| ports.contains(argument));
        let arguments = [arguments, if served { &ports[..] } else { &[] }].concat();
        let (status, stdout, stderr) = run(switchboard(&arguments));
        assert_eq!((status, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(told), "{told:?} in {stderr}");
    }
    for (name, value) in [
        ("SWITCHBOARD_LISTEN", "here"),
        ("SWITCHBOARD_ADMIN", "here"),
        ("SWITCHBOARD_ALLOW", "here"),
        ("SWITCHBOARD_CONFIG", "/nonexistent"),
        ("SWITCHBOARD_LOG", "a=b=c"),
        ("SWITCHBOARD_LOG_FORMAT", "xml"),
    ] {
        let mut command = switchboard(&["serve"]);
        command.env("SWITCHBOARD_LISTEN", "127.0.0.1:0");
        command.env("SWITCHBOARD_ADMIN", "127.0.0.1:0");
        command.env(name, value);
        assert_eq!(run(command).0, 2, "{name}");
    }
}

#[test]
fn a_port_in_use_ends_with_status_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for [listen, admin] in [[taken.as_str(), "127.0.0.1:0"], ["127.0.0.1:0", taken.as_str()]] {
        let (status, stdout, stderr) = run(switchboard(&["serve", "--listen", listen, "--admin", admin]));
        assert_eq!((status, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains(&format!("cannot listen on {taken}")), "{stderr}");
        assert!(stderr.contains("in use"), "{stderr}");
    }
}

/// It takes ten besides the first: four workers, and six of its parts.
#[test]
fn without_a_thread_for_each_of_its_parts_it_ends_with_one_line_and_status_1() {
    let is_root = geteuid().is_root();
    for limit in 1..=10 {
        // The limit is one of a user, and does not apply to root. Nothing else runs as the user of this number.
        let user: &[&str] = match is_root {
            // With the capability to read where the binary is, even in a folder of root's.
            true => &[
                "setpriv",
                "--reuid=54321",
                "--regid=54321",
                "--clear-groups",
                "--inh-caps=+dac_override",
                "--ambient-caps=+dac_override",
            ],
            false => &["env"],
        };
        let mut command = Command::new(user[0]);
        command.args(&user[1..]);
        command.args(["bash", "-c", &format!("ulimit -u {limit} && exec \"$0\" \"$@\"")]);
        command.arg(switchboard(&[]).get_program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.env("TOKIO_WORKER_THREADS", "4");
        let (status, stdout, stderr) = run(command);
        assert_eq!((status, stdout.as_str()), (1, ""), "{limit}: {stderr}");
        assert!(
            stderr.starts_with("switchboard: cannot start ") && stderr.lines().count() == 1,
            "{limit}: {stderr}"
        );
    }
}

#[test]
fn a_flag_overrides_the_environment_and_that_the_file() {
    let [by_file, by_environment, by_flag] = [Target::listen(), Target::listen(), Target::listen()];
    let lead = |target: &Target| format!("devbox:22={}", target.address());
    let settings = Settings::new(&allow(&[
        ("devbox:22", by_file.address()),
        ("file:22", by_file.address()),
    ]));
    // Each source has addresses of its own to listen on; one that is not in 127.0.0.0/8 would not be this host's.
    for (environment, flag, host, leads_to) in [
        (false, false, "127.0.0.1", &by_file),
        (true, false, "127.0.0.2", &by_environment),
        (true, true, "127.0.0.3", &by_flag),
        (false, true, "127.0.0.3", &by_flag),
    ] {
        let mut command = switchboard(&["serve"]);
        if environment {
            command.env("SWITCHBOARD_LISTEN", "127.0.0.2:0");
            command.env("SWITCHBOARD_ADMIN", "127.0.0.2:0");
            command.env("SWITCHBOARD_ALLOW", lead(&by_environment));
        }
        if flag {
            command.args([
                "--listen",
                "127.0.0.3:0",
                "--admin",
                "127.0.0.3:0",
                "--allow",
                &lead(&by_flag),
            ]);
            // The file that the environment names is not even read.
            command
                .env("SWITCHBOARD_CONFIG", "/nonexistent")
                .args(["--config", settings.path()]);
        } else {
            command.env("SWITCHBOARD_CONFIG", settings.path());
        }
        let server = Server::start(command);
        assert_eq!(server.public().ip().to_string(), host);
        assert_eq!(server.admin().ip().to_string(), host);
        server.tunnel("devbox:22", leads_to);
        // What only the file says still holds.
        server.tunnel("file:22", &by_file);
    }
}

#[test]
fn several_listeners_and_targets_come_from_flags_alone() {
    let (one, two) = (Target::listen(), Target::listen());
    let many = format!("one:22={},{}", one.address(), one.address());
    let other = format!("[fd00::2]:22={}", two.address());
    let server = Server::start(switchboard(&[
        "serve",
        "--listen=127.0.0.1:0",
        "--listen=127.0.0.2:0",
        "--admin=127.0.0.1:0",
        "--allow",
        &many,
        "--allow",
        &other,
    ]));
    server.tunnel("one:22", &one);
    server.tunnel("[fd00::2]:22", &two);
    let not_allowed = refusal(403, "the target is not on the allowlist", "http_request_denied", "");
    assert_eq!(server.answer("two:22"), not_allowed);
}

#[test]
fn one_number_may_be_had_for_each_family() {
    let target = Target::listen();
    let settings = Settings::new(&allow(&[("devbox:22", target.address())]));
    let free = TcpListener::bind("[::]:0").unwrap();
    let number = free.local_addr().unwrap().port();
    drop(free);
    let (v4, v6) = (format!("0.0.0.0:{number}"), format!("[::]:{number}"));
    for listen in [[&*v4, &*v6], [&*v6, &*v4]] {
        let mut command = switchboard(&["serve", "--config", settings.path()]);
        command.args(["--admin", "127.0.0.1:0", "--listen", listen[0], "--listen", listen[1]]);
        let mut process = Process::spawn(command);
        process.stderr.find(&format!("public port {}", listen[1]));
        for host in ["127.0.0.1", "[::1]"] {
            let mut client = std::net::TcpStream::connect(format!("{host}:{number}")).unwrap();
            client
                .write_all(b"CONNECT devbox:22 HTTP/1.1\r\nHost: devbox:22\r\n\r\n")
                .unwrap();
            let mut answer = [0; 12];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200", "{host}");
        }
    }
}

#[test]
fn the_log_filter_quietens_messages_but_not_the_access_log() {
    let target = Target::listen();
    let settings = Settings::new(&allow(&[("devbox:22", target.address())]));
    let (status, _, stderr) = run(switchboard(&["serve", "--log", "off", "--config", "/nonexistent"]));
    assert_eq!(status, 2);
    assert!(stderr.contains("cannot be read"), "{stderr}");
    let arguments = ["serve", "--log", "info,access=off", "--config", settings.path()];
    let mut server = Server::start(switchboard(&arguments));
    server.tunnel("devbox:22", &target);
    let line = server.process.stdout.next().unwrap();
    assert!(line.contains(r#""target.service":"devbox:22""#), "{line}");
}

#[test]
fn help_lists_the_commands_and_options() {
    let (status, stdout, _) = run(switchboard(&["--help"]));
    assert_eq!(status, 0);
    for told in ["serve", "check", "--help", "--version"] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    let (status, stdout, _) = run(switchboard(&["serve", "--help"]));
    assert_eq!(status, 0);
    for told in [
        "--config",
        "--listen",
        "--admin",
        "--allow",
        "--log",
        "NAME:PORT=ADDR[,ADDR…]",
        "SWITCHBOARD_CONFIG",
        "SWITCHBOARD_LISTEN",
        "SWITCHBOARD_ADMIN",
        "SWITCHBOARD_ALLOW",
        "SWITCHBOARD_LOG",
        "--log-format",
        "SWITCHBOARD_LOG_FORMAT",
        "Exit status: 0 drained, 1 runtime error, 2 usage or configuration, 3 tunnels had to be cut",
    ] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    let (status, stdout, _) = run(switchboard(&["check", "--help"]));
    assert_eq!(status, 0);
    for told in [
        "[FILE]",
        "--config",
        "--format",
        "--schema",
        "--listen",
        "SWITCHBOARD_CONFIG",
        "Exit status: 0 `serve` accepts the configuration",
    ] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    let (status, stdout, _) = run(switchboard(&["--version"]));
    assert_eq!(
        (status, stdout),
        (0, format!("switchboard {}", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn the_options_of_a_session_are_checked_before_a_connection() {
    let (status, stdout, _) = run(switchboard(&["connect", "--help"]));
    assert_eq!(status, 0);
    for told in [
        "--resume",
        "--grace",
        "--window",
        "SWITCHBOARD_RESUME",
        "[default: 24h]",
        "ServerAliveInterval",
    ] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    for (option, value, fault) in [
        ("--resume", "always", "[possible values: auto, off]"),
        ("--grace", "soon", "invalid value 'soon' for '--grace"),
        ("--window", "1KiB", "a window has 4KiB to 64MiB"),
        ("--window", "65MiB", "a window has 4KiB to 64MiB"),
        ("--window", "many", "expected a whole number with a unit"),
    ] {
        let proxy = ["--proxy", "http://127.0.0.1:1", "host:22"];
        let (status, _, stderr) = run(switchboard(&[&["connect", option, value], &proxy[..]].concat()));
        assert_eq!(status, 2, "{stderr}");
        assert!(stderr.contains(fault), "{fault:?} in {stderr}");
    }
}
