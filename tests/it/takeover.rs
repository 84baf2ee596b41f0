//! A new process takes the port of one that drains (`reuse_port`): no connect fails, and no tunnel ends.

use std::fs::File;
use std::io::{Read, Write, copy};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Echo;
use crate::harness::{CONFIRMATION, eventually, request};
use crate::openssh::clients::NC;
use crate::openssh::login::{HOST, PATIENCE, PORT, noise, options};
use crate::openssh::process::{Process, program, quiet};
use crate::openssh::sshd::Sshd;

/// A process that shares that address, and leads to an echo and to sshd.
fn start(address: &str, echo: SocketAddr, sshd: SocketAddr) -> Server {
    Server::with(&Settings::new(&format!(
        "listen: {{address: \"{address}\", reuse_port: true}}\n\
         allowlist:\n  static:\n    - {{name: \"echo:22\", addresses: [\"{echo}\"]}}\n    \
         - {{name: \"{HOST}:{PORT}\", addresses: [\"{sshd}\"], limits: {{upload: 120MiB/s}}}}\n\
         limits: {{client: {{max_tunnels: unlimited, connects_per_second: unlimited}}}}\n\
         drain: {{delay: 500ms, timeout: 10m}}\n"
    )))
}

/// Connects fifty times a second, and each time has a byte sent back, until it is told to stop; counts those.
fn connect_repeatedly(public: SocketAddr, stop: &AtomicBool, connected: &AtomicU32) {
    while !stop.load(Ordering::Relaxed) {
        let mut client = Peer::connect(public);
        client.send(request("echo:22") + "x");
        client.expect(format!("{CONFIRMATION}x"));
        connected.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_new_process_takes_over_without_a_failed_connect_or_a_cut_tunnel() {
    takes_over(4);
}

fn a_new_process_takes_over_during_a_copy_of_1_gib() {
    takes_over(64);
}

/// Beside a copy of so many blocks.
fn takes_over(blocks: u64) {
    let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
    let sshd = Sshd::start(directory.path());
    let echo = Echo::listen();
    let mut old = start("127.0.0.1:0", echo.address(), sshd.address);
    let public = old.public();

    let mut tunnels: Vec<_> = (0..500).map(|_| old.open("echo:22")).collect();
    let copy = Copy::begin(directory.path(), &sshd, public, blocks);
    let copied =
        format!(r#"tunnel_bytes_total{{direction="upload",target_namespace="static",target_service="{HOST}:{PORT}"}}"#);
    eventually("the copy is under way", || {
        (old.scrape().value(&copied) > 32e6).then_some(())
    });

    let (stop, connected) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; 2]);
    let mut new = thread::scope(|scope| {
        // Also when a wait fails: else the loops would keep this scope for ever.
        let _stop = StopOnDrop(&stop);
        for counter in &connected {
            let stop = &stop;
            scope.spawn(move || connect_repeatedly(public, stop, counter));
        }
        let further = |connects: u32| {
            let before = connected.each_ref().map(|counter| counter.load(Ordering::Relaxed));
            eventually("both loops connect", || {
                let mut loops = before.iter().zip(&connected);
                let enough = loops.all(|(before, counter)| counter.load(Ordering::Relaxed) >= before + connects);
                enough.then_some(())
            });
        };
        further(20);
        let new = start(&public.to_string(), echo.address(), sshd.address);
        old.process.signal(Signal::TERM);
        old.process.stderr.find("waiting for tunnels to end");
        // From now on all of them are the new one's.
        let before = new.scrape().value("connections_accepted_total");
        further(50);
        assert!(new.scrape().value("connections_accepted_total") >= before + 98.0);
        new
    });
    // The loops' last tunnels through it may just be ending.
    eventually("the old process has the 500 tunnels and the copy", || {
        let progress = old.ask_admin("GET", "/drain").body;
        progress
            .starts_with(r#"{"phase":"draining","tunnels":501,"#)
            .then_some(())
    });

    for client in &mut tunnels {
        client.send("still here");
        client.expect("still here");
    }
    copy.finish();
    assert!(are_equal(
        &directory.path().join("here"),
        &directory.path().join("there")
    ));
    drop(tunnels);
    assert_eq!(old.process.exit_status(), 0);
    new.process.signal(Signal::TERM);
    assert_eq!(new.process.exit_status(), 0);
}

/// Ends the loops of connects.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A copy of `here` to `there` over SSH whose last block is held back: however slow the rest is, it is under way.
struct Copy {
    ssh: Process,
    feeding: JoinHandle<()>,
    last_block: Sender<()>,
}

impl Copy {
    fn begin(directory: &Path, sshd: &Sshd, proxy: SocketAddr, blocks: u64) -> Self {
        let mut here = write_blocks(directory, blocks);
        let mut ssh = quiet(program("ssh", "openssh-client"));
        ssh.args(options(directory, &sshd.user, &NC.command(proxy)))
            .args(["-c", "aes128-gcm@openssh.com", HOST])
            .arg(format!("cat > '{}'", directory.join("there").display()))
            .stdin(Stdio::piped());
        let mut ssh = Process::start(&mut ssh);
        let mut input = ssh.child().stdin.take().unwrap();
        let (last_block, told) = channel();
        let feeding = thread::spawn(move || {
            let mut all_but_the_last = (&mut here).take((blocks - 1) * BLOCK as u64);
            copy(&mut all_but_the_last, &mut input).unwrap();
            told.recv().unwrap();
            copy(&mut here, &mut input).unwrap();
        });
        Self {
            ssh,
            feeding,
            last_block,
        }
    }

    /// Lets it come to its end.
    fn finish(mut self) {
        assert!(!self.ssh.has_ended(), "the copy was cut");
        self.last_block.send(()).unwrap();
        self.feeding.join().unwrap();
        assert!(self.ssh.wait(PATIENCE).success());
    }
}

/// The file `here` of so many blocks, to be read from its start.
fn write_blocks(directory: &Path, blocks: u64) -> File {
    let mut file = File::create(directory.join("here")).unwrap();
    let mut block = noise(BLOCK);
    for number in 0..blocks {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block).unwrap();
    }
    File::open(directory.join("here")).unwrap()
}

fn are_equal(one: &Path, other: &Path) -> bool {
    let (mut one, mut other) = (File::open(one).unwrap(), File::open(other).unwrap());
    let length = one.metadata().unwrap().len();
    if length != other.metadata().unwrap().len() {
        return false;
    }
    let (mut this, mut that) = (vec![0; BLOCK], vec![0; BLOCK]);
    for _ in 0..length / BLOCK as u64 {
        one.read_exact(&mut this).unwrap();
        other.read_exact(&mut that).unwrap();
        if this != that {
            return false;
        }
    }
    true
}

/// The length of a block in bytes.
const BLOCK: usize = 16 << 20;

tests_in! { slow: a_new_process_takes_over_during_a_copy_of_1_gib }
