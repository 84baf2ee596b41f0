//! `import`: the files of other gateways become an allowlist, and the real ssh logs in by it.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, Settings, switchboard};
use crate::openssh::clients::SWITCHBOARD;
use crate::openssh::login::{HOST, PATIENCE, PORT, options};
use crate::openssh::process::{program, quiet, run};
use crate::openssh::sshd::Sshd;

/// Runs `import` with that on stdin: its exit status, stdout and stderr.
pub(crate) fn import(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = switchboard(&[&["import"], arguments].concat());
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The filters of a gateway, for a Service at that port.
pub(crate) fn envoyfilter(namespace: &str, port: u16) -> String {
    let text = include_str!("import/envoyfilter.yaml");
    text.replace("@PORT@", &port.to_string())
        .replace("@NAMESPACE@", namespace)
}

/// Starts a proxy with an allowlist, and logs in by the name of the harness.
fn logs_in(directory: &Path, sshd: &Sshd, allowlist: &str) {
    let server = Server::with(&Settings::new(&format!("{allowlist}ssh_only: true\n")));
    let mut ssh = quiet(program("ssh", "openssh-client"));
    let proxy_command = SWITCHBOARD.command(server.public());
    ssh.args(options(directory, &sshd.user, &proxy_command))
        .arg(HOST)
        .arg("echo in");
    let finished = run(&mut ssh, &[], directory, PATIENCE);
    assert!(finished.status.success() && finished.stdout == "in\n", "{finished}");
}

fn started() -> (TempDir, Sshd, SocketAddr) {
    let directory = TempDir::new().unwrap();
    let sshd = Sshd::start(directory.path());
    let address = sshd.address;
    (directory, sshd, address)
}

#[test]
fn ssh_logs_in_by_what_envoy_filters_become() {
    let (directory, sshd, address) = started();
    let service = format!(
        "---\nkind: Service\nmetadata: {{name: svc-a, namespace: ns}}\nspec: {{clusterIP: {}, ports: [{{port: {}}}]}}\n",
        address.ip(),
        address.port()
    );
    let text = envoyfilter("ns", address.port()) + &service;
    let (status, list, said) = import(&["envoyfilter", "--format", "static", "-"], &text);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(
        list,
        format!("allowlist:\n  static:\n    - {{name: \"{HOST}:{PORT}\", addresses: [\"{address}\"]}}\n")
    );
    logs_in(directory.path(), &sshd, &list);
}

#[test]
fn ssh_logs_in_by_what_a_file_of_frpc_becomes() {
    let (directory, sshd, address) = started();
    let toml = format!(
        "serverAddr = \"frps.internal\"\nserverPort = 7000\nauth.token = \"a-token\"\n\n[[proxies]]\nname = \"svc-a\"\n\
         type = \"tcpmux\"\nmultiplexer = \"httpconnect\"\ncustomDomains = [\"{HOST}\"]\nlocalIP = \"127.0.0.1\"\n\
         localPort = {}\n",
        address.port()
    );
    let port = PORT.to_string();
    let host = address.ip().to_string();
    let file = directory.path().join("frpc.toml");
    fs::write(&file, toml).unwrap();
    let arguments = ["frpc", "--format", "static", "--port", &port, "--frpc-host", &host];
    let (status, list, said) = import(&[&arguments[..], &[file.to_str().unwrap()]].concat(), "");
    assert_eq!(status, Some(0), "{said}");
    assert!(!said.contains("a-token"), "{said}");
    logs_in(directory.path(), &sshd, &list);
}

#[test]
fn the_exit_status_says_whether_all_was_translated() {
    let text = envoyfilter("ns", 80);
    for (arguments, input, expected) in [
        (&["envoyfilter", "-"][..], text.clone(), Some(0)),
        (&["envoyfilter", "--format", "static", "-"], text.clone(), Some(1)),
        (&["envoyfilter", "-"], text.replace("connect_config: {}", ""), Some(1)),
        (&["envoyfilter", "-"], "a: [".to_owned(), Some(2)),
        (&["envoyfilter", "/dev/zero"], String::new(), Some(2)),
        (&["envoyfilter"], String::new(), Some(2)),
        (&["frpc", "--frpc-host", "box", "-"], String::new(), Some(2)),
        (&["frpc", "-"], "[common]\n".to_owned(), Some(2)),
    ] {
        let (status, _, said) = import(arguments, &input);
        assert_eq!(status, expected, "{arguments:?}: {said}");
        assert_eq!(said.is_empty(), expected == Some(0), "{said}");
    }
    let (_, _, said) = import(&["envoyfilter", "-"], &text.replace("GATEWAY", "SIDECAR_INBOUND"));
    assert!(said.starts_with("<stdin>:15:18: error: not for a gateway"), "{said}");
}

/// The commands of a shell script, each as its words: the shell runs it with a `kubectl` that writes down what it gets.
pub(crate) fn kubectl_commands(script: &str) -> Vec<Vec<String>> {
    let directory = TempDir::new().unwrap();
    let stub = directory.path().join("kubectl");
    let log = directory.path().join("log");
    fs::write(
        &stub,
        format!("#!/bin/sh\nprintf '%s\\n' \"$@\" ';' >>'{}'\n", log.display()),
    )
    .unwrap();
    assert!(Command::new("chmod").arg("755").arg(&stub).status().unwrap().success());
    let ran = Command::new("/bin/sh")
        .args(["-euc", script])
        // Nothing else is found by its name.
        .env("PATH", directory.path())
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(
        ran.status.success() && ran.stdout.is_empty() && ran.stderr.is_empty(),
        "{ran:?}"
    );
    let written = fs::read_to_string(log).unwrap();
    let commands = written.split_terminator(";\n");
    commands
        .map(|command| command.lines().map(str::to_owned).collect())
        .collect()
}
