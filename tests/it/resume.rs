//! OpenSSH through `connect`, a middle that cuts connections, the proxy, and an anchor beside sshd.

mod abandoned;
mod anchor;
mod caps;
mod clients;
mod dead_path;
mod ended;
mod faults;
mod middle;
mod owner;
pub(crate) mod rollout;
mod stops;
mod uplinks;
mod withdrawal;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::forward::{Forward, by};
use crate::harness::target::Closed;
use crate::openssh::clients::ours;
use crate::openssh::lines::Lines;
use crate::openssh::login::{HOST, PATIENCE, PORT, noise, options};
use crate::openssh::process::{Finished, Process, program, quiet, run, until};
use crate::openssh::proxy::Proxy;
use crate::openssh::sshd::Sshd;
use anchor::Anchor;
use faults::{Fault, Faults};
use middle::Middle;
use tempfile::TempDir;

/// A user's way to sshd. Everything goes when this is dropped, from the client's side to the server's.
struct Way {
    middle: Middle,
    proxy: Proxy,
    anchor: Anchor,
    sshd: Sshd,
    scheme: &'static str,
    /// The longest time of one command.
    patience: Duration,
    directory: TempDir,
}

impl Way {
    /// One over HTTP/1, whose connections fail only by the test.
    fn http() -> Self {
        Self::with("http", Faults::none(), "")
    }

    /// One whose connections fail, with more in the proxy's configuration.
    fn with(scheme: &'static str, faults: Faults, more: &str) -> Self {
        Self::around(scheme, faults, more, Sshd::start)
    }

    /// The same with that sshd.
    fn around(scheme: &'static str, faults: Faults, more: &str, start: impl FnOnce(&Path) -> Sshd) -> Self {
        let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let sshd = start(directory.path());
        let anchor = Anchor::start(sshd.address);
        let listen = "address: \"127.0.0.1:0\", websocket: {path: /ssh}";
        let proxy = Proxy::start_at(listen, directory.path(), anchor.address, more);
        Self {
            patience: 2 * PATIENCE + faults.timeout(),
            middle: Middle::start(proxy.address, faults),
            proxy,
            anchor,
            sshd,
            scheme,
            directory,
        }
    }

    /// `ssh`, `scp` or `sftp`, ready for its own arguments.
    fn command(&self, name: &str) -> Command {
        let binary = ours();
        let (scheme, proxy) = (self.scheme, self.middle.address);
        let ca = if ["https", "wss"].contains(&scheme) {
            "--ca ca.crt "
        } else {
            ""
        };
        let path = if scheme.starts_with("ws") { "/ssh" } else { "" };
        let proxy_command = format!("{binary} connect --proxy {scheme}://{proxy}{path} {ca}%h:%p");
        let mut command = quiet(program(name, "openssh-client"));
        command
            .args(options(self.directory.path(), &self.sshd.user, &proxy_command))
            .current_dir(self.directory.path());
        command
    }

    /// Runs it to its end, which must be 0.
    fn run(&self, command: &mut Command) -> Finished {
        let finished = run(command, b"", self.directory.path(), self.patience);
        assert!(finished.status.success(), "{finished}\n{}", self.log());
        finished
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        format!(
            "--- middle\n{}\n--- switchboard\n{}\n--- anchor\n{}\n--- sshd\n{}",
            self.middle.log(),
            self.proxy.log(),
            self.anchor.log(),
            self.sshd.log()
        )
    }

    /// Copies so many bytes up and down again.
    fn copies(&self, size: usize) {
        let content = noise(size);
        fs::write(self.path("here"), &content).unwrap();
        let there = format!("{HOST}:{}", self.path("there").display());
        self.run(self.command("scp").arg(self.path("here")).arg(&there));
        self.expect_file("there", &content);
        self.run(self.command("scp").arg(&there).arg(self.path("back")));
        self.expect_file("back", &content);
    }

    /// The same by sftp.
    fn transfers(&self, size: usize) {
        let content = noise(size);
        fs::write(self.path("here"), &content).unwrap();
        let [here, there, back] = ["here", "over-there", "over-here"].map(|name| self.path(name));
        let batch = self.path("batch");
        let text = format!(
            "put {0} {1}\nget {1} {2}\n",
            here.display(),
            there.display(),
            back.display()
        );
        fs::write(&batch, text).unwrap();
        self.run(self.command("sftp").arg("-b").arg(&batch).arg(HOST));
        for copy in ["over-there", "over-here"] {
            self.expect_file(copy, &content);
        }
    }

    fn expect_file(&self, name: &str, content: &[u8]) {
        let is_equal = fs::read(self.path(name)).unwrap() == content;
        assert!(is_equal, "{name} is another one\n{}", self.log());
    }

    /// A session with a shell, which has answered.
    fn shell(&self) -> Shell {
        Shell::start(self.command("ssh"))
    }
}

/// Access lines in the order of the accepts. They are written in that of the ends, and a client that has lost its tunnel may have
/// the answer to its next request before the line of that tunnel is written.
fn by_accept(lines: &[String]) -> Vec<Value> {
    let mut lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| {
        let (_, number) = line["tunnel_id"].as_str().unwrap().split_once('-').unwrap();
        u64::from_str_radix(number, 16).unwrap()
    });
    lines
}

pub(crate) struct Shell {
    process: Process,
    stdout: Lines,
    stderr: Lines,
}

impl Shell {
    /// Has this `ssh` run a shell, and waits for an answer.
    pub(crate) fn start(mut ssh: Command) -> Self {
        ssh.args(["-T", HOST, "sh"]);
        Self::of(ssh)
    }

    /// The same for a command that runs a shell.
    fn of(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::start(&mut command);
        let stdout = Lines::of(process.child().stdout.take().unwrap());
        let stderr = Lines::of(process.child().stderr.take().unwrap());
        let mut shell = Self {
            process,
            stdout,
            stderr,
        };
        shell.echo("before");
        shell
    }

    fn type_in(&mut self, text: &str) {
        let stdin = self.process.child().stdin.as_mut().unwrap();
        writeln!(stdin, "echo {text}").unwrap();
    }

    pub(crate) fn echo(&mut self, text: &str) {
        self.type_in(text);
        self.expect(text);
    }

    fn expect(&self, text: &str) {
        let seen = self
            .stdout
            .wait(PATIENCE, |lines| lines.contains(&text.to_owned()).then_some(()));
        seen.unwrap_or_else(|said| panic!("{text}: {said}\n{}", self.stderr.all().join("\n")));
    }

    pub(crate) fn log_out(mut self) {
        drop(self.process.child().stdin.take());
        assert!(self.process.wait(PATIENCE).success());
    }
}

fn copies_are_exact_while_connections_fail_in_every_way() {
    // A gibibyte over a thousand faults takes minutes: `make soak-resume`. The order of one that has failed: SEED=…
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (cuts, mebibytes) = (number("CUTS", 64), number("MIB", 12));
    let way = Way::with("http", Faults::random(cuts), "");
    way.copies(mebibytes << 20);
    way.middle.has_failed_in_every_way();
    let way = Way::with("http", Faults::random(cuts), "");
    way.transfers(mebibytes << 20);
    way.middle.has_failed_in_every_way();
}

#[test]
fn what_is_typed_in_a_terminal_over_cuts_arrives_as_it_was_typed() {
    let way = Way::http();
    let mut command = way.command("ssh");
    // -tt: a terminal over there, although there is none here.
    command
        .args(["-tt", HOST, "cat", ">", "typed"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.args([";", "mv", "typed", way.path("typed").to_str().unwrap()]);
    let mut process = Process::start(&mut command);
    let echoed = Lines::of(process.child().stdout.take().unwrap());
    let mut stdin = process.child().stdin.take().unwrap();
    let lines: Vec<String> = noise(3_000).chunks(8).map(|chunk| format!("{chunk:02x?}")).collect();
    // Nothing can be lost of a connection before the session has begun.
    writeln!(stdin, "first").unwrap();
    let is_echoed = |count: usize| move |lines: &[String]| (lines.len() >= count).then_some(());
    echoed.wait(PATIENCE, is_echoed(1)).unwrap();
    for (number, line) in lines.iter().enumerate() {
        for key in line.bytes() {
            stdin.write_all(&[key]).unwrap();
        }
        stdin.write_all(b"\n").unwrap();
        if number % 20 == 0 {
            // There is a connection again, and the line before is on it.
            echoed.wait(PATIENCE, is_echoed(number)).unwrap();
            way.middle.cut(number % 40 == 0);
        }
    }
    // The end of the input, as a user types it.
    stdin.write_all(&[4]).unwrap();
    assert!(process.wait(PATIENCE).success(), "{}", way.log());
    let expected = format!("first\n{}\n", lines.join("\n"));
    assert_eq!(fs::read_to_string(way.path("typed")).unwrap(), expected);
    let echoed = echoed.whole(PATIENCE);
    let echoed: Vec<String> = echoed.iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(echoed.join("\n") + "\n", expected);
    assert!(way.middle.cuts() >= 10, "{}", way.middle.cuts());
}

#[test]
fn copies_are_exact_by_tls_while_connections_fail_in_every_way() {
    let way = Way::with("https", Faults::random(32), "");
    way.copies(6 << 20);
    way.middle.has_failed_in_every_way();
}

#[test]
fn copies_are_exact_by_a_websocket_while_connections_fail_in_every_way() {
    let way = Way::with("wss", Faults::random(32), "");
    way.copies(6 << 20);
    way.middle.has_failed_in_every_way();
}

#[test]
fn a_shell_outlives_cuts_resets_silence_and_half_open_connections() {
    let way = Way::http();
    let mut shell = way.shell();
    for number in 0..10 {
        way.middle.cut(number % 2 == 0);
        shell.echo(&format!("behind-cut-{number}"));
    }
    for fault in [Fault::Silence, Fault::ResetOfClient, Fault::ResetOfProxy, Fault::Stop] {
        way.middle.fail_all(fault);
        shell.echo(&format!("behind-{fault:?}"));
    }
    shell.log_out();
    way.sshd.expect_connections(1);
}

/// A cut ends neither the port nor the connection of the program.
#[test]
fn a_session_by_a_port_of_this_host_outlives_cuts() {
    let way = Way::http();
    let forward = Forward::start(way.middle.address, &[&format!("{HOST}:{PORT}")]);
    let mut shell = Shell::start(by(forward.ports[0], &way.command("ssh")));
    for number in 0..10 {
        way.middle.cut(number % 2 == 0);
        shell.echo(&format!("behind-cut-{number}"));
    }
    shell.log_out();
    way.sshd.expect_connections(1);
}

#[test]
fn sessions_outlive_the_death_of_their_proxy() {
    let mut way = Way::http();
    let mut shells: Vec<Shell> = (0..5).map(|_| way.shell()).collect();
    let second = Proxy::start(way.directory.path(), way.anchor.address);
    way.middle.lead_to(second.address);
    // Its connections are reset by the kernel.
    way.proxy.kill();
    for (number, shell) in shells.iter_mut().enumerate() {
        shell.echo(&format!("at-another-{number}"));
    }
    for shell in shells {
        shell.log_out();
    }
    way.sshd.expect_connections(5);
}

#[test]
fn sessions_outlive_the_rollout_of_their_proxy() {
    let way = Way::http();
    let mut shells: Vec<Shell> = (0..8).map(|_| way.shell()).collect();
    let second = Proxy::start(way.directory.path(), way.anchor.address);
    way.middle.lead_to(second.address);
    way.proxy.terminate();
    for (number, shell) in shells.iter_mut().enumerate() {
        shell.echo(&format!("during-{number}"));
    }
    way.middle.cut(false);
    for (number, shell) in shells.iter_mut().enumerate() {
        shell.echo(&format!("behind-{number}"));
    }
    for shell in shells {
        shell.log_out();
    }
    way.sshd.expect_connections(8);
}

#[test]
fn what_is_typed_during_an_outage_arrives_and_the_user_is_told() {
    let way = Way::http();
    let mut shell = way.shell();
    let closed = Closed::bind();
    way.middle.lead_to(closed.address());
    way.middle.cut(false);
    shell.type_in("typed-meanwhile");
    let told =
        |text: &'static str| move |lines: &[String]| lines.iter().any(|line| line.starts_with(text)).then_some(());
    shell
        .stderr
        .wait(PATIENCE, told("switchboard: reconnecting to 127.0.0.1: "))
        .unwrap();
    way.middle.lead_to(way.proxy.address);
    shell.expect("typed-meanwhile");
    shell
        .stderr
        .wait(PATIENCE, told("switchboard: reconnected after "))
        .unwrap();
    shell.log_out();
}

#[test]
fn a_master_connection_and_its_forward_outlive_cuts() {
    let way = Way::http();
    let control = way.path("control");
    let master_of = format!("ControlPath={}", control.display());
    let (port, closed) = (Closed::bind(), Closed::bind());
    let socks = port.address();
    let mut command = way.command("ssh");
    command
        .args(["-M", "-N", "-o", &master_of, "-D", &socks.to_string(), HOST])
        .stderr(Stdio::piped());
    let mut master = Process::start(&mut command);
    let said = Lines::of(master.child().stderr.take().unwrap());
    crate::harness::eventually("the master listens", || control.exists().then_some(()));
    for number in 0..5 {
        way.middle.cut(number % 2 == 0);
        let text = format!("by-the-master-{number}");
        let mut slave = quiet(program("ssh", "openssh-client"));
        slave.args(["-F", "/dev/null", "-o", &master_of, HOST, "echo", &text]);
        let finished = run(&mut slave, b"", way.directory.path(), PATIENCE).succeeded();
        assert_eq!(finished.stdout.trim(), text);
        let content = noise(100_000);
        let (target, serving) = crate::openssh::socks::serve(content.clone(), 1);
        assert!(
            crate::openssh::socks::fetch(socks, target) == content,
            "another content"
        );
        serving.join().unwrap();
    }
    // Channels that are opened while there is no connection: a command, and a forward.
    way.middle.lead_to(closed.address());
    way.middle.cut(true);
    let content = noise(100_000);
    let (target, serving) = crate::openssh::socks::serve(content.clone(), 1);
    let fetching = std::thread::spawn(move || crate::openssh::socks::fetch(socks, target));
    let mut slave = quiet(program("ssh", "openssh-client"));
    slave
        .args(["-F", "/dev/null", "-o", &master_of, HOST, "echo", "in-the-gap"])
        .stdout(Stdio::piped());
    let mut slave = Process::start(&mut slave);
    let answer = Lines::of(slave.child().stdout.take().unwrap());
    said.wait(PATIENCE, |lines| {
        lines.iter().any(|line| line.contains("reconnecting to")).then_some(())
    })
    .unwrap();
    way.middle.lead_to(way.proxy.address);
    let is_answered = |lines: &[String]| (lines == ["in-the-gap"]).then_some(());
    answer.wait(PATIENCE, is_answered).unwrap();
    assert!(fetching.join().unwrap() == content, "another content");
    serving.join().unwrap();
    assert!(!master.has_ended(), "{}\n{}", said.all().join("\n"), way.log());
    // Again and again: a signal that comes between ssh's look at its flags and its poll(2) is not seen before the next event.
    until(PATIENCE, "the master ends", || {
        master.signal(Signal::TERM);
        master.has_ended().then_some(())
    });
    master.wait(PATIENCE);
    way.sshd.expect_connections(1);
}

#[test]
fn a_session_whose_anchor_was_restarted_ends_with_its_reason() {
    let mut way = Way::http();
    let mut shell = way.shell();
    let address = way.anchor.address;
    way.anchor.kill();
    way.anchor = Anchor::start_at(address, way.sshd.address);
    let told = ": the session is lost: the anchor beside the SSH server was restarted";
    shell
        .stderr
        .wait(PATIENCE, |lines| {
            lines
                .iter()
                .any(|line| line.starts_with("switchboard: ") && line.ends_with(told))
                .then_some(())
        })
        .unwrap();
    assert_eq!(shell.process.wait(PATIENCE).code(), Some(255));
}

#[test]
fn nothing_is_left_behind_ssh_that_is_killed_without_a_connection() {
    let way = Way::http();
    let shell = way.shell();
    let connect = connect_of(&shell.process);
    let closed = Closed::bind();
    way.middle.lead_to(closed.address());
    way.middle.cut(true);
    let Shell { process, .. } = shell;
    process.signal(Signal::KILL);
    let is_gone = || (!PathBuf::from(format!("/proc/{connect}/stat")).exists() || is_zombie(connect)).then_some(());
    until(Duration::from_secs(30), "connect ends", is_gone);
}

/// The process that ssh has started.
fn connect_of(ssh: &Process) -> u32 {
    let id = ssh.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

fn is_zombie(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

tests_in! { slow: copies_are_exact_while_connections_fail_in_every_way }
