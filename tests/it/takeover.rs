//! A new process takes the port of one that drains (`reuse_port`): nobody notices, not even who connects meanwhile.

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Echo;
use crate::harness::{CONFIRMATION, request};
use crate::openssh::login::{HOST, PORT, noise, options};
use crate::openssh::process::{Process, program, quiet};
use crate::openssh::sshd::Sshd;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

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

/// Connects fifty times a second, and each time has a byte sent back, until it is told to stop. How often that was.
fn connect_on_and_on(public: SocketAddr, stop: &AtomicBool) -> u32 {
    let start = Instant::now();
    let mut came = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut client = Peer::connect(public);
        client.send(request("echo:22") + "x");
        client.expect(format!("{CONFIRMATION}x"));
        came += 1;
        let next = start + came * Duration::from_millis(20);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    came
}

#[test]
fn a_new_process_takes_over_and_nobody_notices() {
    // Both ends of 500 tunnels are in this process.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
    let sshd = Sshd::start(directory.path());
    let echo = Echo::listen();
    let mut old = start("127.0.0.1:0", echo.address(), sshd.address);
    let public = old.public();

    let mut tunnels: Vec<_> = (0..500).map(|_| old.open("echo:22")).collect();
    let mut copy = copy_1_gib(directory.path(), &sshd, public);
    let copied =
        format!(r#"tunnel_bytes_total{{direction="upload",target_namespace="static",target_service="{HOST}:{PORT}"}}"#);
    crate::harness::eventually("the copy is under way", || {
        (old.scrape().value(&copied) > 64e6).then_some(())
    });

    let stop = AtomicBool::new(false);
    let (came, mut new) = thread::scope(|scope| {
        let loops = [(); 2].map(|()| scope.spawn(|| connect_on_and_on(public, &stop)));
        let new = start(&public.to_string(), echo.address(), sshd.address);
        old.process.signal(Signal::TERM);
        old.process.stderr.find("waiting for tunnels to end");
        // From now on all of them are the new one's.
        let before = new.scrape().value("connections_accepted_total");
        crate::harness::eventually("the new process has the port", || {
            (new.scrape().value("connections_accepted_total") > before + 50.0).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        (loops.map(|clients| clients.join().unwrap()), new)
    });
    assert!(came.iter().all(|came| *came > 100), "{came:?}");
    let progress = old.ask_admin("GET", "/drain").body;
    assert!(
        progress.starts_with(r#"{"phase":"stopped","tunnels":501,"#),
        "{progress}"
    );

    for client in &mut tunnels {
        client.send("still here");
        client.expect("still here");
    }
    assert!(!copy.has_ended(), "the copy was too short to tell");
    assert!(copy.wait(Duration::from_secs(120)).success());
    assert!(are_equal(
        &directory.path().join("here"),
        &directory.path().join("there")
    ));
    drop(tunnels);
    assert_eq!(old.process.exit_status(), 0);
    new.process.signal(Signal::TERM);
    assert_eq!(new.process.exit_status(), 0);
}

/// Begins to copy `here` to `there`.
fn copy_1_gib(directory: &Path, sshd: &Sshd, proxy: SocketAddr) -> Process {
    let mut file = File::create(directory.join("here")).unwrap();
    let mut block = noise(16 << 20);
    for number in 0..64_u64 {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block).unwrap();
    }
    let mut scp = quiet(program("scp", "openssh-client"));
    scp.args(options(
        directory,
        &sshd.user,
        &crate::openssh::clients::NC.command(proxy),
    ))
    .args(["-c", "aes128-gcm@openssh.com"])
    .arg(directory.join("here"))
    .arg(format!("{HOST}:{}", directory.join("there").display()));
    Process::start(&mut scp)
}

fn are_equal(one: &Path, other: &Path) -> bool {
    let (mut one, mut other) = (File::open(one).unwrap(), File::open(other).unwrap());
    if one.metadata().unwrap().len() != other.metadata().unwrap().len() {
        return false;
    }
    let (mut this, mut that) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..1024 {
        one.read_exact(&mut this).unwrap();
        other.read_exact(&mut that).unwrap();
        if this != that {
            return false;
        }
    }
    true
}
