//! Anchors that dial in: OpenSSH through the proxy and an anchor that no connection reaches, and anchors of one name.

mod arguments;
mod hostile;
mod replicas;
mod scripted;
mod shared;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::eventually;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, anchor};
use crate::harness::target::{Closed, Target};
use crate::identities::LINE;
use crate::openssh::clients::ours;
use crate::openssh::login::{HOST, PATIENCE, PORT, noise, options};
use crate::openssh::process::{program, quiet, run};
use crate::openssh::sshd::Sshd;

/// An anchor that listens nowhere.
#[derive(Debug)]
pub(crate) struct DialledIn {
    pub(crate) process: Process,
    pub(crate) admin: SocketAddr,
}

impl DialledIn {
    /// One that serves the name at the proxy of that URL, beside that SSH server.
    fn start(url: &str, name: &str, to: SocketAddr) -> Self {
        Self::start_with(url, name, to, &[])
    }

    /// Starts an anchor with further arguments.
    pub(crate) fn start_with(url: &str, name: &str, to: SocketAddr, more: &[&str]) -> Self {
        let to = to.to_string();
        let arguments = [
            "anchor",
            "--dial",
            url,
            "--serve",
            name,
            "--to",
            &to,
            "--admin",
            "127.0.0.1:0",
        ];
        let mut process = Process::spawn(anchor(&[&arguments, more].concat()));
        let line = process.stderr.find("admin port ");
        let admin = line.rsplit(' ').next().unwrap().parse().unwrap();
        Self { process, admin }
    }

    /// Waits until it is connected to so many replicas.
    fn reaches(&self, replicas: f64) {
        self.settles("anchor_replicas", replicas);
    }

    fn stop(mut self) {
        self.process.signal(Signal::TERM);
        assert_eq!(self.process.exit_status(), 0);
    }
}

impl Ports for DialledIn {
    fn public(&self) -> SocketAddr {
        panic!("it does not listen")
    }

    fn admin(&self) -> SocketAddr {
        self.admin
    }
}

/// A proxy whose target is served by anchors of alice.
struct World {
    proxy: Server,
    settings: Settings,
    _port: Closed,
    directory: TempDir,
}

impl World {
    fn start() -> Self {
        Self::start_with("")
    }

    /// Starts the proxy with further settings.
    fn start_with(more: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let users = directory.path().join("users");
        fs::write(&users, LINE.to_owned() + &LINE.replace("alice", "bob")).unwrap();
        let port = Closed::bind();
        let settings = Settings::new(&format!(
            "listen: {}\naccess: {{users: {{file: {}}}}}\nallowlist:\n  static:\n    - {{name: \"{HOST}:{PORT}\", \
             dials_in: {{users: [alice]}}}}\ndrain: {{delay: 0s, timeout: 30s, spread: 0s, resumable_spread: 0s}}\n{more}",
            port.address(),
            users.display()
        ));
        Self {
            proxy: Server::with(&settings),
            settings,
            _port: port,
            directory,
        }
    }

    /// The URL for that user.
    fn url(&self, user: &str) -> String {
        format!("http://{user}:correct@{}", self.proxy.public())
    }

    /// Starts an anchor of alice, which has registered when this returns.
    fn anchor(&self, to: SocketAddr) -> DialledIn {
        let anchor = self.registered(|| DialledIn::start(&self.url("alice"), &format!("{HOST}:{PORT}"), to));
        anchor.reaches(1.0);
        anchor
    }

    /// Waits until what this makes has registered.
    fn registered<T>(&self, make: impl FnOnce() -> T) -> T {
        let count = || {
            let page = self.proxy.scrape();
            page.value("anchor_registrations_total{result=\"registered\"}")
        };
        let before = count();
        let made = make();
        eventually("it registers", || (count() > before).then_some(()));
        made
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// `ssh` or `scp`, ready for its own arguments.
    fn command(&self, name: &str, sshd: &Sshd, more: &str) -> Command {
        let (binary, proxy) = (ours(), self.proxy.public());
        let way = format!("{binary} connect {more} --proxy http://{proxy} %h:%p");
        let mut command = quiet(program(name, "openssh-client"));
        command
            .args(options(self.path(), &sshd.user, &way))
            .current_dir(self.path());
        command
    }

    fn run(&self, command: &mut Command) -> String {
        let finished = run(command, b"", self.path(), PATIENCE);
        assert!(finished.status.success(), "{finished}");
        finished.stdout
    }
}

/// Opens a tunnel of a client that is no `connect`, and finds it at that target.
fn expect_at(world: &World, target: &Target) {
    let mut client = world.proxy.open(&format!("{HOST}:{PORT}"));
    client.send("SSH-2.0-plain\r\n");
    let mut server = target.accept();
    server.expect("SSH-2.0-plain\r\n");
    server.send("SSH-2.0-target\r\n");
    client.read_past("SSH-2.0-target\r\n");
}

#[test]
fn ssh_and_scp_reach_a_server_that_no_connection_reaches_with_a_session_and_without() {
    let world = World::start();
    let sshd = Sshd::start(world.path());
    let anchor = world.anchor(sshd.address);
    for (more, handshakes) in [("", "new"), ("--resume off", "plain")] {
        let said = world.run(world.command("ssh", &sshd, more).args([HOST, "echo", "here"]));
        assert_eq!(said, "here\n");
        let content = noise(4 << 20);
        let [here, there, back] = ["here", "there", "back"].map(|name| world.path().join(name));
        fs::write(&here, &content).unwrap();
        let remote = format!("{HOST}:{}", there.display());
        world.run(world.command("scp", &sshd, more).arg(&here).arg(&remote));
        world.run(world.command("scp", &sshd, more).arg(&remote).arg(&back));
        assert!(fs::read(&there).unwrap() == content && fs::read(&back).unwrap() == content);
        let series = format!("anchor_handshakes_total{{result=\"{handshakes}\"}}");
        assert_eq!(anchor.scrape().value(&series), 3.0, "{series}");
    }
    anchor.stop();
}

#[test]
fn a_session_goes_on_when_the_proxy_is_killed_and_comes_back() {
    let mut world = World::start();
    let sshd = Sshd::start(world.path());
    let anchor = world.anchor(sshd.address);
    let mark = world.path().join("mark");
    let script = format!(
        "touch {0}; while [ -e {0} ]; do sleep 0.05; done; seq 100000",
        mark.display()
    );
    let mut ssh = world.command("ssh", &sshd, "");
    ssh.args([HOST, &script]);
    let directory = world.path().to_owned();
    let running = std::thread::spawn(move || run(&mut ssh, b"", &directory, PATIENCE));
    eventually("the session runs", || mark.exists().then_some(()));
    world.proxy.process.signal(Signal::KILL);
    anchor.settles("anchor_replicas", 0.0);
    world.proxy = Server::with(&world.settings);
    anchor.reaches(1.0);
    fs::remove_file(&mark).unwrap();
    let finished = running.join().unwrap();
    assert!(finished.status.success(), "{finished}");
    let whole: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(finished.stdout == whole, "{} bytes", finished.stdout.len());
    assert_eq!(
        anchor.scrape().value("anchor_handshakes_total{result=\"resumed\"}"),
        1.0
    );
}

#[test]
fn of_two_anchors_the_newest_serves_and_the_other_one_takes_over() {
    let world = World::start();
    let (first, second) = (Target::listen(), Target::listen());
    let one = world.anchor(first.address());
    expect_at(&world, &first);
    let two = world.anchor(second.address());
    expect_at(&world, &second);
    one.process.signal(Signal::STOP);
    expect_at(&world, &second);
    one.process.signal(Signal::CONT);
    two.stop();
    expect_at(&world, &first);
    // Without a word, as when its machine fails.
    let three = world.anchor(second.address());
    expect_at(&world, &second);
    drop(three);
    expect_at(&world, &first);
    drop(one);
    let answer = world.proxy.answer(&format!("{HOST}:{PORT}"));
    assert!(answer.starts_with("HTTP/1.1 503 no anchor"), "{answer}");
}

#[test]
fn a_dial_too_many_is_never_the_active_anchor() {
    let world = World::start_with("anchors: {replicas: 2}\n");
    let target = Target::listen();
    let _anchor = world.anchor(target.address());
    let registrations = |result| {
        let series = format!("anchor_registrations_total{{result=\"{result}\"}}");
        world.proxy.scrape().value(&series)
    };
    eventually("three of them", || (registrations("surplus") >= 3.0).then_some(()));
    assert_eq!(registrations("registered"), 1.0);
    expect_at(&world, &target);
}

#[test]
fn an_anchor_is_ready_while_it_has_a_replica_and_says_how_many() {
    let mut world = World::start();
    let target = Target::listen();
    let anchor = world.anchor(target.address());
    anchor.becomes(200);
    world.proxy.process.signal(Signal::KILL);
    anchor.becomes(503);
    let page = anchor.ask_admin("GET", "/readyz").body;
    assert!(page.contains("connected to 0 of 1 replicas"), "{page}");
    world.proxy = Server::with(&world.settings);
    anchor.becomes(200);
    let page = anchor.ask_admin("GET", "/readyz").body;
    assert!(page.contains("connected to 1 of 1 replicas"), "{page}");
}

#[test]
fn a_user_without_the_right_is_refused_once_in_the_log() {
    let world = World::start();
    let target = Target::listen();
    let name = format!("{HOST}:{PORT}");
    let mut refused = DialledIn::start(&world.url("bob"), &name, target.address());
    refused.process.stderr.find("the proxy answered 403");
    refused.settles("anchor_dials_total{result=\"refused\"}", 2.0);
    refused.process.signal(Signal::TERM);
    let rest = refused.process.stderr.rest().join("\n");
    assert!(!rest.contains("403"), "{rest}");
}

#[test]
fn tunnels_that_end_at_once_do_not_end_the_connection_of_their_anchor() {
    let world = World::start_with("limits: {client: {connects_per_second: unlimited}}\n");
    let target = Target::listen();
    let anchor = world.anchor(target.address());
    let name = format!("{HOST}:{PORT}");
    let mut client = world.proxy.open(&name);
    client.send("SSH-2.0-stays\r\n");
    let mut server = target.accept();
    server.expect("SSH-2.0-stays\r\n");
    for _ in 0..6000 {
        world.proxy.open(&name).reset();
    }
    server.send("SSH-2.0-target\r\n");
    client.read_past("SSH-2.0-target\r\n");
    assert_eq!(anchor.scrape().value("anchor_dials_total{result=\"registered\"}"), 1.0);
}

fn an_anchor_that_stands_still_is_passed_over_then_given_up_and_comes_back() {
    let world = World::start_with("timeouts: {connect: 1s, dial: 10s}\n");
    let (first, second) = (Target::listen(), Target::listen());
    let _one = world.anchor(first.address());
    let two = world.anchor(second.address());
    expect_at(&world, &second);
    two.process.signal(Signal::STOP);
    // Within the same request.
    expect_at(&world, &first);
    world.proxy.settles("anchors", 1.0);
    expect_at(&world, &first);
    two.process.signal(Signal::CONT);
    world.proxy.settles("anchors", 2.0);
    expect_at(&world, &second);
}

tests_in!(slow: an_anchor_that_stands_still_is_passed_over_then_given_up_and_comes_back);
