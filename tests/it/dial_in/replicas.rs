//! Three replicas behind a balancer, and anchors that connect to each of them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use tempfile::TempDir;

use super::DialledIn;
use crate::harness::haproxy::HaProxy;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Closed;
use crate::identities::LINE;
use crate::openssh::clients::ours;
use crate::openssh::login::{HOST, PATIENCE, noise, options};
use crate::openssh::process::{Process, program, quiet, run, until};
use crate::openssh::sshd::Sshd;
use crate::resume::Shell;

/// Replicas with a port each behind HAProxy, of which one more than they are is free: a new one starts before an old one ends.
struct Fleet {
    slots: Vec<(Closed, Settings)>,
    replicas: Vec<Option<Server>>,
    balancer: HaProxy,
    sshd: Sshd,
    directory: TempDir,
}

impl Fleet {
    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let users = directory.path().join("users");
        fs::write(&users, LINE).unwrap();
        let targets: Vec<String> = (0..ANCHORS)
            .map(|number| format!("    - {{name: \"{}\", dials_in: {{users: [alice]}}}}\n", name(number)))
            .collect();
        let slot = |_| {
            let port = Closed::bind();
            let settings = Settings::new(&format!(
                "listen: {}\nanchors: {{replicas: {REPLICAS}}}\naccess: {{users: {{file: {}}}}}\n\
                 limits: {{client: {{max_tunnels: unlimited, connects_per_second: unlimited}}, tunnel: {{upload: 2MiB/s}}}}\n\
                 drain: {{delay: 500ms, timeout: 60s, spread: 0s, resumable_spread: 1s}}\nallowlist:\n  static:\n{}",
                port.address(),
                users.display(),
                targets.concat()
            ));
            (port, settings)
        };
        let slots: Vec<_> = (0..=REPLICAS).map(slot).collect();
        let servers = slots.iter().enumerate().map(|(number, (port, _))| {
            format!(
                "server s{number} {} check inter 100ms fall 1 rise 1\n  ",
                port.address()
            )
        });
        let servers: String = servers.collect();
        let balancer = HaProxy::relay(&format!("option redispatch\n  retries 5\n  {servers}"));
        let replicas = slots
            .iter()
            .take(REPLICAS)
            .map(|(_, settings)| Some(Server::with(settings)));
        let mut replicas: Vec<_> = replicas.collect();
        replicas.push(None);
        let sshd = Sshd::start(directory.path());
        Self {
            slots,
            replicas,
            balancer,
            sshd,
            directory,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn anchors(&self) -> Vec<DialledIn> {
        let url = format!("http://alice:correct@{}", self.balancer.address());
        let start = |number| DialledIn::start(&url, &name(number), self.sshd.address);
        (0..ANCHORS).map(start).collect()
    }

    /// `ssh` or `scp` to the server of an anchor, by any replica.
    fn command(&self, program_name: &str, number: usize) -> Command {
        let proxy = format!("http://{}", self.balancer.address());
        let way = format!("{} connect --proxy {proxy} {}", ours(), name(number));
        let mut command = quiet(program(program_name, "openssh-client"));
        command
            .args(options(self.path(), &self.sshd.user, &way))
            .current_dir(self.path());
        command
    }

    /// Starts a replica in the free slot, and ends that one.
    fn replace(&mut self, old: usize) {
        let free = self.replicas.iter().position(Option::is_none).unwrap();
        self.replicas[free] = Some(Server::with(&self.slots[free].1));
        let mut old = self.replicas[old].take().unwrap();
        old.process.signal(Signal::TERM);
        // 3 would say that tunnels were cut.
        assert_eq!(old.process.exit_status(), 0);
    }
}

/// The name of an anchor.
fn name(number: usize) -> String {
    format!("gpu{number}.lab:22")
}

fn reach_all(anchors: &[DialledIn], what: &str) {
    let started = Instant::now();
    anchors.iter().for_each(|anchor| anchor.reaches(3.0));
    eprintln!(
        "figure: {what}: all anchors have all replicas after {:?}",
        started.elapsed()
    );
}

fn anchors_have_every_replica_and_sessions_outlive_a_rollout_and_a_kill() {
    let mut fleet = Fleet::start();
    let anchors = fleet.anchors();
    reach_all(&anchors, "the start");
    for replica in fleet.replicas.iter().flatten() {
        for number in 0..ANCHORS {
            replica.open(&name(number)).read_past("switchboard-resume-1");
        }
    }
    let mut shells: Vec<Shell> = (0..ANCHORS)
        .map(|number| Shell::start(fleet.command("ssh", number)))
        .collect();
    let [here, there] = ["here", "there"].map(|name| fleet.path().join(name));
    let content = noise(48 << 20);
    fs::write(&here, &content).unwrap();
    let mut copy = fleet.command("scp", 0);
    let mut copy = Process::start(copy.arg(&here).arg(format!("{HOST}:{}", there.display())));
    until(PATIENCE, "the copy has begun", || {
        fs::metadata(&there).is_ok_and(|there| there.len() > 0).then_some(())
    });
    for old in 0..REPLICAS {
        fleet.replace(old);
        for (number, shell) in shells.iter_mut().enumerate() {
            shell.echo(&format!("after-{old}-{number}"));
        }
    }
    reach_all(&anchors, "a rollout");
    assert!(copy.wait(PATIENCE).success());
    assert!(fs::read(&there).unwrap() == content, "the copy is another one");
    // As a machine that fails.
    let killed = fleet.replicas.iter().position(Option::is_some).unwrap();
    drop(fleet.replicas[killed].take());
    for number in 0..LOGINS {
        let started = Instant::now();
        let finished = run(
            fleet.command("ssh", number).args([HOST, "echo", "here"]),
            b"",
            fleet.path(),
            PATIENCE,
        );
        assert!(finished.status.success(), "{finished}");
        eprintln!("figure: a login after the kill: {:?}", started.elapsed());
    }
    for (number, shell) in shells.iter_mut().enumerate() {
        shell.echo(&format!("after-the-kill-{number}"));
    }
    fleet.replicas[killed] = Some(Server::with(&fleet.slots[killed].1));
    reach_all(&anchors, "the successor of a killed replica");
    shells.into_iter().for_each(Shell::log_out);
    anchors.into_iter().for_each(DialledIn::stop);
}

const REPLICAS: usize = 3;
const ANCHORS: usize = 50;
/// While a replica is away.
const LOGINS: usize = 10;

tests_in!(slow: anchors_have_every_replica_and_sessions_outlive_a_rollout_and_a_kill);
