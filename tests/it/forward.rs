//! `switchboard forward`: programs without a ProxyCommand log in by a port of this host.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::eventually;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings};
use crate::harness::target::Echo;
use crate::openssh::clients::{SWITCHBOARD, ours};
use crate::openssh::login::{CLOSED, HOST, Login, PORT, noise};
use crate::openssh::process::{program, quiet};
use crate::openssh::proxy::Proxy;
use crate::resume::Shell;
use switchboard::tunnel::outcome::RefusalReason;

/// A running `switchboard forward`.
pub(crate) struct Forward {
    pub(crate) process: Process,
    /// Its ports, in the order of the names.
    pub(crate) ports: Vec<SocketAddr>,
}

impl Forward {
    /// Starts it for these names, and waits for its ports.
    pub(crate) fn start(proxy: SocketAddr, arguments: &[&str]) -> Self {
        let mut process = Process::spawn(forward(proxy, arguments));
        let names = arguments.iter().filter(|argument| !argument.starts_with('-'));
        let ports = names.map(|name| {
            let line = process.stdout.next().expect("a line for each port");
            let (address, other) = line.strip_prefix("listening on ").unwrap().split_once(" for ").unwrap();
            assert_eq!(other, name.split('=').next().unwrap());
            address.parse().unwrap()
        });
        Self {
            ports: ports.collect(),
            process,
        }
    }
}

fn forward(proxy: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = quiet(ours());
    command
        .args(["forward", "--proxy", &format!("http://{proxy}")])
        .args(arguments);
    command
}

/// Returns the exit status, and the lines of stderr.
fn ended(command: Command) -> (i32, Vec<String>) {
    let mut process = Process::spawn(command);
    let lines = process.stderr.rest();
    (process.exit_status(), lines)
}

/// Lets a command of a login go by a port instead of its ProxyCommand.
pub(crate) fn by(port: SocketAddr, command: &Command) -> Command {
    let mut direct = quiet(command.get_program());
    for setting in [
        "ProxyCommand=none".to_owned(),
        format!("HostName={}", port.ip()),
        format!("Port={}", port.port()),
        format!("HostKeyAlias=[{HOST}]:{PORT}"),
    ] {
        direct.args(["-o", &setting]);
    }
    direct
        .args(command.get_args())
        .current_dir(command.get_current_dir().unwrap());
    direct
}

fn target() -> String {
    format!("{HOST}:{PORT}")
}

#[test]
fn each_connection_is_a_login_and_copies_are_exact() {
    let login = Login::through(&SWITCHBOARD);
    let closed = format!("{CLOSED}:{PORT}");
    let forward = Forward::start(login.proxy.address, &[&target(), &closed]);
    let port = forward.ports[0];
    let content = noise(64 << 20);
    let there = format!("{HOST}:{}", login.path("there").display());
    let mut up = by(port, &login.command("scp"));
    login.run(up.arg(login.write("here", &content)).arg(&there), b"");
    let mut down = by(port, &login.command("scp"));
    login.run(down.arg(&there).arg(login.path("back")), b"");
    for name in ["there", "back"] {
        assert!(
            std::fs::read(login.path(name)).unwrap() == content,
            "{name} is another one"
        );
    }
    let mut ssh = by(port, &login.command("ssh"));
    assert_eq!(login.attempt(ssh.args([HOST, "exit 7"]), b"").status.code(), Some(7));
    assert_eq!(login.proxy.access_lines(3).len(), 3);
}

#[test]
fn plink_and_psftp_log_in() {
    let login = Login::through(&SWITCHBOARD);
    let forward = Forward::start(login.proxy.address, &[&target()]);
    let mut puttygen = quiet(program("puttygen", "putty-tools"));
    puttygen.args(["client_key", "-O", "private", "-o", "client.ppk"]);
    login.run(puttygen.current_dir(login.path(".")), b"");
    let mut fingerprint = quiet(program("ssh-keygen", "openssh-client"));
    let printed = login.run(fingerprint.args(["-l", "-f"]).arg(login.path("host_key.pub")), b"");
    let fingerprint = printed.stdout.split(' ').nth(1).unwrap().to_owned();
    let port = forward.ports[0].port().to_string();
    let putty = |name| {
        let mut command = quiet(program(name, "putty-tools"));
        command.args([
            "-batch",
            "-P",
            &port,
            "-l",
            &login.sshd.user,
            "-hostkey",
            &fingerprint,
            "-i",
            "client.ppk",
        ]);
        command.env("HOME", login.path(".")).current_dir(login.path("."));
        command
    };
    let said = login.run(putty("plink").args(["127.0.0.1", "cat"]), b"by plink\n");
    assert_eq!(said.stdout, "by plink\n", "{said}");
    let content = noise(4 << 20);
    login.write("here", &content);
    let batch = format!("put here {0}\nget {0} back\n", login.path("there").display());
    login.write("batch", batch.as_bytes());
    login.run(putty("psftp").args(["-b", "batch", "127.0.0.1"]), b"");
    assert!(
        std::fs::read(login.path("back")).unwrap() == content,
        "back is another one"
    );
}

#[test]
fn a_refusal_reaches_the_program_in_band_and_stderr_a_bounded_number_of_times() {
    let login = Login::through(&SWITCHBOARD);
    let name = format!("unknown.ns:{PORT}");
    let mut forward = Forward::start(login.proxy.address, &[&name]);
    let mut ssh = by(forward.ports[0], &login.command("ssh"));
    let refused = login.attempt(ssh.args([HOST, "true"]), b"");
    let reason = RefusalReason::NotAllowed.phrase().to_string();
    assert_eq!(refused.status.code(), Some(255), "{refused}");
    assert!(
        refused.stderr.contains(&reason.replace("the target", &name)),
        "{refused}"
    );
    let line = forward.process.stderr.next().unwrap();
    assert_eq!(line, format!("switchboard: {name}: the proxy answered 403: {reason}"));
    for _ in 0..40 {
        let mut program = Peer::connect(forward.ports[0]);
        program.send("SSH-2.0-x\r\n");
        program.expect("SSH-2.0-switchboard\r\n");
    }
    forward.process.signal(Signal::TERM);
    let lines = forward.process.stderr.rest();
    assert!(lines.len() == 19 && lines[18].contains("left out"), "{lines:?}");
    assert_eq!(forward.process.exit_status(), 0);
}

#[test]
fn a_port_that_is_taken_is_one_sentence_and_other_hosts_are_asked_for() {
    let proxy = SocketAddr::from(([127, 0, 0, 1], 9));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (status, lines) = ended(forward(proxy, &[&format!("a={port}")]));
    let expected = format!("switchboard: cannot listen on 127.0.0.1:{port}: another program listens there");
    assert_eq!((status, lines), (1, vec![expected]));
    for (arguments, expected) in [
        (&["--listen", "0.0.0.0:0", "a"][..], "--listen-anywhere"),
        (&["--listen", "127.0.0.1:40122", "a", "b"], "NAME=LOCALPORT"),
        (
            &["b", "a=x"],
            "argument 2 is not NAME[:PORT][=LOCALPORT]: LOCALPORT must be 0 to 65535",
        ),
        (
            &["a=99999"],
            "argument 1 is not NAME[:PORT][=LOCALPORT]: LOCALPORT must be 0 to 65535",
        ),
        (
            &["a", "a:22=40122", "--write=x"],
            "a:22 is given twice, and --write has one block for each name",
        ),
        (
            &["a=40122", "b=40122"],
            "port 40122 is given to a and to b: a port leads to one name",
        ),
        (
            &["--listen", "127.0.0.1:40122", "a", "b=40122"],
            "port 40122 is given to a and to b",
        ),
        (&["a b"], "not NAME[:PORT][=LOCALPORT]: "),
        (&[], "required"),
    ] {
        let (status, lines) = ended(forward(proxy, arguments));
        assert!(
            status == 2 && lines.join("\n").contains(expected),
            "{arguments:?}: {lines:?}"
        );
    }
    let mut open = Process::spawn(forward(proxy, &["--listen=0.0.0.0:0", "--listen-anywhere", "a"]));
    let warning = open.stderr.next().unwrap();
    assert!(
        warning.starts_with("switchboard: every host that reaches 0.0.0.0:"),
        "{warning}"
    );
    assert!(open.stdout.next().unwrap().starts_with("listening on 0.0.0.0:"));
}

#[test]
fn a_signal_closes_the_port_and_the_last_connection_ends_the_program() {
    let login = Login::through(&SWITCHBOARD);
    let mut forward = Forward::start(login.proxy.address, &[&target()]);
    let port = forward.ports[0];
    let mut shell = Shell::start(by(port, &login.command("ssh")));
    forward.process.signal(Signal::TERM);
    let is_closed = || TcpStream::connect(port).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    eventually("the port is closed", || is_closed().then_some(()));
    shell.echo("after the signal");
    shell.log_out();
    assert_eq!(forward.process.exit_status(), 0);
    // A connection that stays ends, too. A pipe as stdin changes nothing.
    let mut command = self::forward(login.proxy.address, &[&target()]);
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut process = Process::spawn_from(command.stdout(Stdio::piped()), reader);
    let line = process.stdout.next().unwrap();
    let port: SocketAddr = line.split(' ').nth(2).unwrap().parse().unwrap();
    let _shell = Shell::start(by(port, &login.command("ssh")));
    process.signal(Signal::INT);
    assert_eq!(process.exit_status(), 0);
}

#[test]
fn further_connections_wait_for_one_that_ends() {
    let (directory, echo) = (tempfile::tempdir().unwrap(), Echo::listen());
    let proxy = Proxy::start(directory.path(), echo.address());
    let mut forward = Forward::start(proxy.address, &["--resume=off", &target()]);
    let port = forward.ports[0];
    let connect = || {
        let mut program = Peer::connect(port);
        program.send("SSH-2.0-x\r\n");
        program
    };
    let mut open: Vec<_> = (0..100).map(|_| connect()).collect();
    open.iter_mut().for_each(|program| program.expect("SSH-2.0-x\r\n"));
    let mut waiting = connect();
    let said = forward.process.stderr.next().unwrap();
    assert_eq!(said, "switchboard: 100 connections are open: further ones wait");
    open.pop();
    waiting.expect("SSH-2.0-x\r\n");
    drop((open, waiting));
    proxy.access_lines(101);
    forward.process.signal(Signal::TERM);
    assert_eq!(
        (forward.process.exit_status(), forward.process.stderr.rest()),
        (0, Vec::new())
    );
}

#[test]
fn a_program_that_only_looks_for_open_ports_costs_no_login() {
    let settings = Settings::new(
        "listen: \"127.0.0.1:0\"\nallowlist: {static: [{name: \"a:22\", addresses: [\"127.0.0.1:1\"]}]}\n",
    );
    let server = Server::with(&settings);
    let forward = Forward::start(server.public(), &["a"]);
    let accepted = || server.scrape().value("connections_accepted_total");
    for _ in 0..5 {
        let mut client = Peer::connect(forward.ports[0]);
        client.finish();
        assert_eq!(client.rest(), b"");
    }
    assert_eq!(accepted(), 0.0);
    let mut client = Peer::connect(forward.ports[0]);
    client.send("SSH-2.0-x\r\n");
    client.read_past("SSH-");
    assert_eq!(accepted(), 1.0);
    // One that waits for the server's first byte is served, too.
    let _silent = Peer::connect(forward.ports[0]);
    eventually("it is served", || (accepted() == 2.0).then_some(()));
}

#[test]
fn the_block_of_a_port_has_the_canonical_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    let write = format!("--write={}", config.display());
    let _forward = Forward::start(
        "127.0.0.1:1".parse().unwrap(),
        &["DevBox.Team-A.", &write, "--known-hosts=none"],
    );
    let block = eventually("the block is written", || {
        let mut files = std::fs::read_dir(folder.path().join("switchboard.d")).ok()?.flatten();
        std::fs::read_to_string(files.next()?.path()).ok()
    });
    let lines = ["\nHost devbox.team-a-local\n", "\n    HostKeyAlias devbox.team-a\n"];
    assert!(lines.iter().all(|line| block.contains(line)), "{block}");
}
