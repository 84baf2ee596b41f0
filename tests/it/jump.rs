//! The jump host: logins by `ssh -J` to a real sshd, its refusals, its credentials, and clients that mean harm.

mod certificates;
mod clients;
pub(crate) mod hostile;
mod keys;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use russh::{ChannelOpenFailure, Error};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings, switchboard};
use crate::harness::{DEADLINE, eventually};
use crate::identities::LINE;
use crate::openssh::login::noise;
use crate::openssh::process::{Finished, Process, program, quiet, run};
use crate::openssh::sshd::Sshd;

/// A jump host, an sshd that it reaches as `devbox.team-a`, and a user with both in `ssh_config`. A name that ends in
/// `closed` leads to a port where nobody listens.
struct JumpHost {
    server: Server,
    settings: Settings,
    sshd: Sshd,
    directory: TempDir,
}

/// A key of that type for a jump host, and its `.pub`.
pub(crate) fn door_key(kind: &str, directory: &Path) -> PathBuf {
    let key = directory.join("door_key");
    let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
    keygen.args(["-q", "-t", kind, "-N", "", "-f"]).arg(&key);
    run(&mut keygen, &[], directory, DEADLINE).succeeded();
    key
}

impl JumpHost {
    /// One that lets everybody in.
    fn open() -> Self {
        Self::with("ssh: jump", "")
    }

    /// One for the user alice, whose password is `correct`.
    fn guarded() -> (Self, PathBuf) {
        let users = tempfile::Builder::new().tempdir().unwrap().keep().join("users");
        fs::write(&users, LINE).unwrap();
        (Self::for_users(&users), users)
    }

    /// One for the users of that file.
    fn for_users(users: &Path) -> Self {
        let access = format!("access: {{mode: enforce, users: {{file: {}}}}}\n", users.display());
        Self::with("ssh: jump", &access)
    }

    /// One with these keys of its port, and more in its file.
    fn with(port: &str, more: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let sshd = Sshd::start(directory.path());
        door_key("ed25519", directory.path());
        let settings = Settings::new(&Self::settings(directory.path(), sshd.address, port, more));
        let server = Server::with(&settings);
        let jump_host = Self {
            server,
            settings,
            sshd,
            directory,
        };
        jump_host.configure("alice");
        jump_host
    }

    fn settings(directory: &Path, sshd: SocketAddr, port: &str, more: &str) -> String {
        let users = if more.contains("access:") {
            ", allowed_groups: [ops]"
        } else {
            ""
        };
        format!(
            "listen: {{address: \"127.0.0.1:0\", {port}, host_keys: [{}]}}\n{more}\
             ssh_only: true\ndrain: {{delay: 0s, timeout: 1s, spread: 0s}}\nallowlist:\n  static:\n    \
             - {{name: \"devbox.team-a:22\", addresses: [\"{sshd}\"]{users}}}\n    \
             - {{name: \"closed.team-a:22\", addresses: [\"127.0.0.1:1\"]{users}}}\n",
            directory.join("door_key").display(),
        )
    }

    /// Writes `ssh_config`, with that user name at the jump host.
    fn configure(&self, user: &str) {
        let (path, port) = (self.directory.path().display(), self.server.public().port());
        let [door, host] = ["door_key.pub", "host_key.pub"].map(|file| fs::read_to_string(self.path(file)).unwrap());
        let known = format!("[127.0.0.1]:{port} {door}devbox.team-a,closed.team-a,nobody.team-a {host}");
        fs::write(self.path("known_hosts"), known).unwrap();
        let text = format!(
            "Host jump\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\nHost *.team-a\n  User {}\n  ProxyJump jump\n  \
             IdentityFile {path}/client_key\n  BatchMode yes\nHost *\n  IdentitiesOnly yes\n  IdentityAgent none\n  \
             UserKnownHostsFile {path}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  \
             NumberOfPasswordPrompts 1\n",
            self.sshd.user,
        );
        fs::write(self.path("ssh_config"), text).unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// `ssh`, `scp` or `sftp`, ready for its own arguments.
    fn command(&self, name: &str) -> Command {
        let mut command = quiet(program(name, "openssh-client"));
        command.arg("-F").arg(self.path("ssh_config"));
        command
    }

    /// The same for a user whose agent types that password.
    fn command_with(&self, name: &str, password: &str) -> Command {
        let askpass = self.path("askpass");
        fs::write(&askpass, format!("#!/bin/sh\necho '{password}'\n")).unwrap();
        fs::set_permissions(&askpass, fs::Permissions::from_mode(0o700)).unwrap();
        let mut command = self.command(name);
        command.env("SSH_ASKPASS", askpass).env("SSH_ASKPASS_REQUIRE", "force");
        command
    }

    fn run(&self, command: &mut Command) -> Finished {
        run(command, &[], self.directory.path(), DEADLINE)
    }

    /// The next access line of a tunnel or a refusal.
    fn access_line(&mut self) -> Value {
        serde_json::from_str(&self.server.process.stdout.next().unwrap()).unwrap()
    }
}

#[test]
fn a_login_needs_nothing_but_an_ssh_client() {
    let mut jump_host = JumpHost::open();
    let finished = jump_host
        .run(jump_host.command("ssh").args(["devbox.team-a", "echo in"]))
        .succeeded();
    assert_eq!((&*finished.stdout, &*finished.stderr), ("in\n", ""));
    let line = jump_host.access_line();
    for (field, expected) in [
        ("event", "close"),
        ("door", "ssh"),
        ("http.version", ""),
        ("server.address", "devbox.team-a"),
        ("reason", "eof"),
    ] {
        assert_eq!(line[field], expected, "{field}: {line}");
    }
    assert!(
        line["client.software"].as_str().unwrap().starts_with("OpenSSH_"),
        "{line}"
    );
    assert!(line["bytes_received"].as_u64().unwrap() > 1000, "{line}");
}

#[test]
fn copies_of_64_mib_are_exact() {
    let jump_host = JumpHost::open();
    let content = noise(64 << 20);
    fs::write(jump_host.path("here"), &content).unwrap();
    let there = jump_host.path("there");
    let remote = |path: &PathBuf| format!("devbox.team-a:{}", path.display());
    jump_host
        .run(jump_host.command("scp").arg(jump_host.path("here")).arg(remote(&there)))
        .succeeded();
    assert!(fs::read(&there).unwrap() == content);
    let back = jump_host.path("back");
    jump_host
        .run(jump_host.command("scp").arg(remote(&there)).arg(&back))
        .succeeded();
    assert!(fs::read(&back).unwrap() == content);
}

#[test]
fn ssh_prints_why_a_target_is_refused() {
    let mut jump_host = JumpHost::open();
    for (name, expected, reason) in [
        ("nobody", "nobody.team-a:22 is not on the allowlist", "not_allowed"),
        ("closed", "closed.team-a:22 refused the connection", "target_refused"),
    ] {
        let refused = jump_host.run(jump_host.command("ssh").args([&format!("{name}.team-a"), "true"]));
        assert_eq!(refused.status.code(), Some(255));
        assert!(refused.stderr.contains(expected), "{refused}");
        let line = jump_host.access_line();
        assert_eq!(
            (&line["reason"], &line["answered"]),
            (&reason.into(), &"ssh".into()),
            "{line}"
        );
    }
}

#[test]
fn nothing_but_tunnels_is_served() {
    let jump_host = JumpHost::open();
    for arguments in [&["jump"][..], &["-tt", "jump"], &["jump", "id"]] {
        let refused = jump_host.run(jump_host.command("ssh").args(arguments));
        assert_eq!(refused.status.code(), Some(1), "{refused}");
        let said = refused.stdout.clone() + &refused.stderr;
        assert!(
            said.contains("this is a jump host, and runs nothing: ssh -J HOST NAME"),
            "{refused}"
        );
    }
    let refused = jump_host.run(jump_host.command("sftp").arg("jump"));
    assert!(refused.stderr.contains("subsystem request failed"), "{refused}");
    let forward = ["-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:127.0.0.1:1", "jump"];
    let refused = jump_host.run(jump_host.command("ssh").args(forward));
    assert!(refused.stderr.contains("remote port forwarding failed"), "{refused}");
    let socket = jump_host.path("socket");
    let forward = format!("{}:/run/other", socket.display());
    let piped = Stdio::piped();
    let mut ssh = Process::start(
        jump_host
            .command("ssh")
            .args(["-N", "-L", &forward, "jump"])
            .stderr(piped),
    );
    let mut forwarded = eventually("ssh listens", || UnixStream::connect(&socket).ok());
    assert_eq!(forwarded.read_to_end(&mut Vec::new()).unwrap(), 0);
    let mut said = BufReader::new(ssh.child().stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("administratively prohibited"), "{line}");
}

#[test]
fn a_user_who_would_be_refused_is_reported() {
    let users = tempfile::NamedTempFile::new().unwrap();
    fs::write(users.path(), LINE).unwrap();
    let access = format!(
        "access: {{mode: report, users: {{file: {}}}}}\n",
        users.path().display()
    );
    let mut jump_host = JumpHost::with("ssh: jump", &access);
    jump_host
        .run(jump_host.command("ssh").args(["devbox.team-a", "true"]))
        .succeeded();
    let line = jump_host.access_line();
    let reason = line["authorization.reason"].as_str().unwrap();
    assert!(reason.starts_with("would be refused: "), "{line}");
}

/// A login that needed none does not outlive the rule.
#[test]
fn a_connection_without_a_login_gets_no_tunnel_once_logins_are_needed() {
    let jump_host = JumpHost::open();
    let users = jump_host.path("users");
    fs::write(&users, LINE).unwrap();
    Runtime::new().unwrap().block_on(async {
        let client = hostile::logged_in(jump_host.server.public()).await;
        let open = || client.channel_open_direct_tcpip("devbox.team-a", 22, "127.0.0.1", 1);
        open().await.unwrap().close().await.unwrap();
        let access = format!("access: {{mode: enforce, users: {{file: {}}}}}\n", users.display());
        let address = jump_host.sshd.address;
        let text = JumpHost::settings(jump_host.directory.path(), address, "ssh: jump", &access);
        jump_host.settings.change(&text);
        jump_host.server.process.signal(Signal::HUP);
        // A tunnel that is opened before the rule comes ends by it.
        let refused = loop {
            match open().await {
                Ok(channel) => channel.close().await.unwrap(),
                Err(error) => break error,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(
            matches!(
                refused,
                Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited)
            ),
            "{refused:?}"
        );
    });
}

#[test]
fn ssh_is_served_beside_tls() {
    let authority = Authority::new();
    let certificate = authority.server("server", &[]).setting();
    let jump_host = JumpHost::with(
        "ssh: jump, tls: required",
        &format!("tls: {{certificates: [{certificate}]}}\n"),
    );
    jump_host
        .run(jump_host.command("ssh").args(["devbox.team-a", "true"]))
        .succeeded();
    let mut client = Peer::connect(jump_host.server.public());
    client.send("CONNECT devbox.team-a:22 HTTP/1.1\r\n\r\n");
    client.read_past("HTTP/1.1 400 ");
}

#[test]
fn a_proxy_header_names_the_client() {
    let port = "ssh: jump, proxy_protocol: required, trusted_proxies: [127.0.0.0/8]";
    let mut jump_host = JumpHost::with(port, "");
    let mut client = Peer::connect(jump_host.server.public());
    client.send("PROXY TCP4 192.0.2.7 192.0.2.1 4321 22\r\nSSH-2.0-x\r\nno packet of SSH at all");
    client.read_past("SSH-2.0-switchboard\r\n");
    client.ends();
    let line = jump_host.access_line();
    assert_eq!(
        (&line["client.address"], &line["door"]),
        (&"192.0.2.7".into(), &"ssh".into()),
        "{line}"
    );
}

#[test]
fn a_password_opens_the_door_by_either_method() {
    let (mut jump_host, _) = JumpHost::guarded();
    for (user, method) in [("alice", "password"), ("alice%box", "keyboard-interactive")] {
        jump_host.configure(user);
        let preferred = format!("PreferredAuthentications=none,publickey,{method}");
        let mut ssh = jump_host.command_with("ssh", "correct");
        // ssh passes no options to its jump host, so they are in the file.
        let text = fs::read_to_string(jump_host.path("ssh_config")).unwrap();
        let text = text.replace(
            "Host jump\n",
            &format!("Host jump\n  {}\n", preferred.replacen('=', " ", 1)),
        );
        fs::write(jump_host.path("ssh_config"), text).unwrap();
        let finished = jump_host.run(ssh.args(["devbox.team-a", "echo in"])).succeeded();
        assert_eq!(finished.stdout, "in\n");
        let line = jump_host.access_line();
        assert_eq!(
            (&line["user.name"], &line["auth.method"]),
            (&"alice".into(), &"password".into()),
            "{line}"
        );
    }
}

#[test]
fn a_wrong_password_opens_nothing() {
    let (mut jump_host, _) = JumpHost::guarded();
    for (user, password) in [("alice", "wrong"), ("bob", "correct"), ("alice", "")] {
        jump_host.configure(user);
        let refused = jump_host.run(jump_host.command_with("ssh", password).args(["devbox.team-a", "true"]));
        assert_eq!(refused.status.code(), Some(255), "{refused}");
        assert!(
            refused
                .stderr
                .contains("Permission denied (password,keyboard-interactive)"),
            "{refused}"
        );
        let line = jump_host.access_line();
        assert_eq!(
            (&line["reason"], &line["door"]),
            (&"credentials_refused".into(), &"ssh".into()),
            "{line}"
        );
    }
}

#[test]
fn a_user_who_is_removed_loses_the_tunnel_and_learns_why() {
    let (jump_host, users) = JumpHost::guarded();
    let mut ssh = jump_host.command_with("ssh", "correct");
    let mut session = Process::start(
        ssh.args(["devbox.team-a", "echo in; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let _stdin = session.child().stdin.take();
    let mut said = BufReader::new(session.child().stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    fs::write(&users, LINE.replace("alice", "bob")).unwrap();
    jump_host.server.process.signal(Signal::HUP);
    assert_eq!(session.wait(DEADLINE).code(), Some(255));
    let mut why = String::new();
    session.child().stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert!(why.contains("the user may no longer ssh to devbox.team-a:22"), "{why}");
}

#[test]
fn a_connection_carries_one_tunnel_at_a_time() {
    let jump_host = JumpHost::open();
    let socket = jump_host.path("master");
    let master = |command: &mut Command| {
        command.args(["-o", &format!("ControlPath={}", socket.display())]);
    };
    let mut command = jump_host.command("ssh");
    master(&mut command);
    // The master has its first tunnel as its standard input.
    command.args(["-M", "-W", "devbox.team-a:22", "jump"]);
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut first = Process::start(piped);
    let stdin = first.child().stdin.take();
    let mut stdout = first.child().stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    let mut second = jump_host.command("ssh");
    master(&mut second);
    let refused = jump_host.run(second.args(["-W", "devbox.team-a:22", "jump"]));
    assert!(refused.stderr.contains("refused by peer"), "{refused}");
    drop((stdin, stdout));
    let mut why = first.child().stderr.take().unwrap();
    first.wait(DEADLINE);
    let mut said = String::new();
    why.read_to_string(&mut said).unwrap();
    assert!(
        said.contains("this connection carries a tunnel already: open another one"),
        "{said}"
    );
}

#[test]
fn a_drain_says_so() {
    let jump_host = JumpHost::open();
    let mut session = Process::start(
        jump_host
            .command("ssh")
            .args(["devbox.team-a", "echo in; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let _stdin = session.child().stdin.take();
    let mut stdout = session.child().stdout.take().unwrap();
    stdout.read_exact(&mut [0; 3]).unwrap();
    jump_host.server.process.signal(Signal::TERM);
    assert_eq!(session.wait(DEADLINE).code(), Some(255));
    let mut why = String::new();
    session.child().stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert!(why.contains("the proxy is shutting down"), "{why}");
}

/// Some clients wait for the server's identification.
#[test]
fn a_port_for_ssh_only_speaks_first_and_takes_no_http() {
    let jump_host = JumpHost::with("ssh: only", "");
    let mut client = Peer::connect(jump_host.server.public());
    client.expect("SSH-2.0-switchboard\r\n");
    client.send("CONNECT devbox.team-a:22 HTTP/1.1\r\n\r\n");
    let mut said = Vec::new();
    while let Ok(more) = client.try_read_once()
        && !more.is_empty()
    {
        said.extend(more);
    }
    assert!(!said.windows(5).any(|bytes| bytes == b"HTTP/"), "{said:?}");
    jump_host
        .run(jump_host.command("ssh").args(["devbox.team-a", "true"]))
        .succeeded();
}

#[test]
fn http_is_served_beside_ssh() {
    let jump_host = JumpHost::open();
    let mut client = Peer::connect(jump_host.server.public());
    client.send("CONNECT devbox.team-a:22 HTTP/1.1\r\nHost: devbox.team-a:22\r\n\r\nSSH-2.0-x\r\n");
    client.read_past("HTTP/1.1 200 ");
    client.read_past("SSH-2.0-OpenSSH");
}

/// The lists of algorithms in the server's KEXINIT (RFC 4253 section 7.1).
fn offered(address: SocketAddr) -> Vec<Vec<String>> {
    let mut client = Peer::connect(address);
    client.send("SSH-2.0-test\r\n");
    client.expect("SSH-2.0-switchboard\r\n");
    let mut packet = Vec::new();
    while packet.len() < 5 || packet.len() < 4 + length(&packet) {
        packet.extend(client.read_once());
    }
    let mut lists = &packet[22..];
    let mut offered = Vec::new();
    for _ in 0..10 {
        let end = 4 + length(lists);
        let names = String::from_utf8(lists[4..end].to_vec()).unwrap();
        offered.push(names.split(',').map(str::to_owned).collect());
        lists = &lists[end..];
    }
    offered
}

fn length(bytes: &[u8]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes[..4].try_into().unwrap())).unwrap()
}

#[test]
fn what_is_offered_is_strong() {
    let jump_host = JumpHost::open();
    let ciphers = [
        "chacha20-poly1305@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-gcm@openssh.com",
    ];
    let macs = ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"];
    let exchanges = [
        "mlkem768x25519-sha256",
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ext-info-s",
        "kex-strict-s-v00@openssh.com",
    ];
    let expected = [
        &exchanges[..],
        &["ssh-ed25519"],
        &ciphers,
        &ciphers,
        &macs,
        &macs,
        &["none"],
        &["none"],
        &[""],
        &[""],
    ];
    assert_eq!(offered(jump_host.server.public()), expected);
}

#[test]
fn keys_that_cannot_be_read_are_errors_of_the_file() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("text"), "hello\n").unwrap();
    for (port, expected) in [
        (
            format!("ssh: jump, host_keys: [{}]", path("missing")),
            "missing: there is no such file".to_owned(),
        ),
        (
            format!("ssh: jump, host_keys: [{}]", path("text")),
            "text: is no private key without a passphrase".to_owned(),
        ),
        ("ssh: jump".to_owned(), "listen.ssh: needs `host_keys`".to_owned()),
        (
            format!("ssh: only, tls: optional, host_keys: [{}]", path("text")),
            "listen.ssh: a port for SSH only has no `tls`".to_owned(),
        ),
        (
            format!("host_keys: [{}]", path("text")),
            "listen.host_keys: has no effect without `ssh`".to_owned(),
        ),
        ("ssh: maybe".to_owned(), "listen.ssh: ".to_owned()),
    ] {
        let settings = Settings::new(&format!("listen: {{address: \"127.0.0.1:0\", {port}}}\n"));
        let output = switchboard(&["check", settings.path()]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_certificate_that_all_clients_need_is_not_evaded() {
    let authority = Authority::new();
    let directory = TempDir::new().unwrap();
    let (key, users) = (door_key("ed25519", directory.path()), directory.path().join("users"));
    fs::write(&users, LINE).unwrap();
    for access in [
        String::new(),
        format!("access: {{mode: enforce, users: {{file: {}}}}}\n", users.display()),
    ] {
        let settings = Settings::new(&format!(
            "listen: {{address: \"127.0.0.1:0\", tls: required, ssh: jump, host_keys: [{}]}}\ntls: {{certificates: [{}], \
             client_auth: required, client_ca: \"{}\"}}\n{access}",
            key.display(),
            authority.server("server", &[]).setting(),
            authority.ca().display(),
        ));
        let output = switchboard(&["check", settings.path()]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("listen.ssh: clients without a certificate would be served"),
            "{said}"
        );
    }
}

#[test]
fn ssh_is_refused_where_it_is_off() {
    let server = Server::with(&Settings::new("listen: {address: \"127.0.0.1:0\", ssh: off}\n"));
    let mut client = Peer::connect_from(Ipv4Addr::LOCALHOST, server.public());
    client.send("SSH-2.0-OpenSSH_9.2\r\n");
    assert!(client.rest_as_text().contains("set a ProxyCommand"));
}
