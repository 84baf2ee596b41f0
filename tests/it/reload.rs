//! SIGHUP: targets come and go, limits change under tunnels that run, and a file with faults changes nothing.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::authority::{Authority, Issued};
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::proxy::Proxy;
use crate::harness::target::{Blackhole, Target};
use crate::harness::{allow, eventually, refused, request};
use crate::tls::client::{config, connect};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use switchboard::tunnel::outcome::RefusalReason;

fn reload(server: &mut Server) {
    server.process.signal(Signal::HUP);
    server.process.stderr.find("configuration reloaded");
}

/// A file that another process opens only when this is dropped, like one on a mount that hangs: a write lease (fcntl(2)),
/// which the kernel revokes after 45 s (`/proc/sys/fs/lease-break-time`).
struct Lease {
    holder: Process,
    since: Instant,
}

impl Lease {
    fn take(path: &str) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", LEASE, path]);
        let mut holder = Process::spawn(command);
        holder.stdout.find("taken");
        Self {
            holder,
            since: Instant::now(),
        }
    }

    /// Waits until another process waits for the file.
    fn expect_open(&mut self) {
        self.holder.stdout.find("opened");
    }

    /// Returns nothing if the file may have been opened since. A test that was too slow to know is tried again.
    fn held(self) -> Option<()> {
        (self.since.elapsed() < Duration::from_secs(40)).then_some(())
    }
}

const LEASE: &str = "
import fcntl, os, signal, sys
# Waited for, not handled: a handler would print in the middle of another line.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open(sys.argv[1], os.O_RDWR)
while True:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except BlockingIOError:
        pass # Another process has just opened it.
print('taken', flush=True)
while True:
    signal.sigwait([signal.SIGIO])
    print('opened', flush=True)
";

fn not_allowed() -> String {
    refused(RefusalReason::NotAllowed)
}

#[test]
fn targets_come_and_go_and_only_those_that_go_lose_their_tunnels() {
    let (stays, goes, comes) = (Target::listen(), Target::listen(), Target::listen());
    let settings = Settings::new(&allow(&[("stays:22", stays.address()), ("goes:22", goes.address())]));
    let mut server = Server::with(&settings);
    let (mut client, mut service) = server.tunnel("stays:22", &stays);
    let (mut lost, mut lost_service) = server.tunnel("goes:22", &goes);
    assert_eq!(server.answer("comes:22"), not_allowed());
    settings.change(&allow(&[("stays:22", stays.address()), ("comes:22", comes.address())]));
    reload(&mut server);
    lost.expect_reset();
    lost_service.expect_reset();
    assert_eq!(server.answer("goes:22"), not_allowed());
    server.tunnel("comes:22", &comes);
    client.send("up");
    service.expect("up");
    server.settles(r#"tunnels_closed_total{by="proxy",reason="target_removed"}"#, 1.0);
    server.settles("allowlist_targets", 2.0);
    // One that has left may come back.
    settings.change(&allow(&[("stays:22", stays.address()), ("goes:22", goes.address())]));
    reload(&mut server);
    server.tunnel("goes:22", &goes);
    service.send("down");
    client.expect("down");
}

#[test]
fn a_target_removed_during_its_dial_is_not_reached() {
    let blackhole = Blackhole::open();
    let patient = "timeouts: {dial: 1h, connect: 1h}\n";
    let settings = Settings::new(&(allow(&[("goes:22", blackhole.address())]) + patient));
    let mut server = Server::with(&settings);
    let mut client = server.client(request("goes:22"));
    blackhole.expect_dials(1);
    settings.change(&(allow(&[]) + patient));
    reload(&mut server);
    assert_eq!(client.rest_as_text(), not_allowed());
    blackhole.expect_dials(0);
}

#[test]
fn a_changed_address_applies_to_the_next_tunnel() {
    let (old, new) = (Target::listen(), Target::listen());
    let settings = Settings::new(&allow(&[("devbox:22", old.address())]));
    let mut server = Server::with(&settings);
    let (mut client, mut service) = server.tunnel("devbox:22", &old);
    settings.change(&allow(&[("devbox:22", new.address())]));
    reload(&mut server);
    server.tunnel("devbox:22", &new);
    client.send("up");
    service.expect("up");
    old.expect_no_connection();
}

#[test]
fn a_changed_rate_reaches_a_tunnel_that_runs() {
    const BYTES: usize = 4 << 20;
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let limited = format!("{list}limits: {{tunnel: {{download: 1KiB/s, upload: 1KiB/s, burst: 1KiB}}}}\n");
    let settings = Settings::new(&limited);
    let mut server = Server::with(&settings);
    let (client, service) = server.tunnel("devbox:22", &target);
    let pour = |mut from: crate::harness::peer::Peer| {
        std::thread::spawn(move || {
            from.send(vec![b'x'; BYTES]);
            from.finish();
        })
    };
    let pouring = [pour(client.again()), pour(service.again())];
    // It would take an hour: both directions wait for their limit.
    for direction in ["upload", "download"] {
        let series = format!(r#"throttled_seconds_total{{direction="{direction}"}}"#);
        eventually("throttled", || (server.scrape().value(&series) > 0.0).then_some(()));
    }
    settings.change(&list);
    reload(&mut server);
    for mut end in [client, service] {
        assert_eq!(end.rest().len(), BYTES);
    }
    for poured in pouring {
        poured.join().unwrap();
    }
    // And back again, for the next one.
    settings.change(&limited);
    reload(&mut server);
    let throttled = |server: &Server| {
        server
            .scrape()
            .value(r#"throttled_seconds_total{direction="download"}"#)
    };
    let before = throttled(&server);
    let (_client, mut service) = server.tunnel("devbox:22", &target);
    service.send(vec![b'x'; 100_000]);
    eventually("throttled again", || (throttled(&server) > before).then_some(()));
}

#[test]
fn a_faulty_file_changes_nothing_and_every_fault_is_logged() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let settings = Settings::new(&list);
    let mut server = Server::with(&settings);
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    settings.write(
        "allowlist:\n  static: []\n  dynamic: []\ntimeouts: {request_header: soon}\nlimits: {tunnel: {burst: 0B}}\n",
    );
    server.process.signal(Signal::HUP);
    server.process.stderr.find("the settings stay as they were");
    for fault in [
        "3:3: allowlist.dynamic: unknown key; known here: report_only, host_keys, listing, static",
        "4:28: timeouts.request_header: expected a duration",
        "5:26: limits.tunnel.burst: ",
    ] {
        let line = format!("ERROR switchboard::proxy::serve::reload: {}:{fault}", settings.path());
        server.process.stderr.find(&line);
    }
    server.settles("config_last_reload_successful", 0.0);
    server.settles("config_reload_failures_total", 1.0);
    client.send("up");
    service.expect("up");
    server.tunnel("devbox:22", &target);

    fs::remove_file(settings.path()).unwrap();
    server.process.signal(Signal::HUP);
    server.process.stderr.find("cannot be read: No such file");
    server.settles("config_reload_failures_total", 2.0);
    server.tunnel("devbox:22", &target);

    settings.change(&list);
    reload(&mut server);
    server.settles("config_last_reload_successful", 1.0);
    server.settles("config_reload_failures_total", 2.0);
    service.send("down");
    client.expect("down");
}

#[test]
fn a_half_written_file_removes_no_target() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let settings = Settings::new(&list);
    let mut server = Server::with(&settings);
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    for half_written in ["", "\n", "# The targets of the site.\n\n", "---\n"] {
        settings.write(half_written);
        server.process.signal(Signal::HUP);
        server.process.stderr.find("the settings stay as they were");
        server
            .process
            .stderr
            .find("empty, like a file that is still being written");
    }
    server.settles("config_reload_failures_total", 4.0);
    client.send("up");
    service.expect("up");
    server.tunnel("devbox:22", &target);
    // An empty list has to be explicit.
    settings.change("allowlist: {static: []}\n");
    server.process.signal(Signal::HUP);
    let reloaded = server.process.stderr.find("configuration reloaded");
    assert!(reloaded.contains("targets=0 removed=1"), "{reloaded}");
    client.expect_reset();
}

#[test]
fn flags_hold_across_reloads_and_a_needed_restart_is_logged() {
    let (flag, file) = (Target::listen(), Target::listen());
    let settings = Settings::new(&allow(&[("flag:22", file.address()), ("file:22", file.address())]));
    let allowed = format!("flag:22={}", flag.address());
    let mut server = Server::start(switchboard(&[
        "serve",
        "--config",
        settings.path(),
        "--allow",
        &allowed,
    ]));
    server.tunnel("flag:22", &flag);
    settings.change("timeouts: {request_header: 1s}\ndrain: {delay: 0s}\n");
    server.process.signal(Signal::HUP);
    server
        .process
        .stderr
        .find("changed, but needs a restart: timeouts, drain");
    server.process.stderr.find("configuration reloaded");
    server.tunnel("flag:22", &flag);
    assert_eq!(server.answer("file:22"), not_allowed());
}

#[test]
fn a_signal_to_stop_is_heard_while_a_reload_waits_for_its_file() {
    let target = Target::listen();
    let settings = Settings::new(&(allow(&[("devbox:22", target.address())]) + "drain: {delay: 0s}\n"));
    eventually("a stop while the file is held", || {
        let mut server = Server::with(&settings);
        let mut lease = Lease::take(settings.path());
        server.process.signal(Signal::HUP);
        lease.expect_open();
        server.tunnel("devbox:22", &target);
        server.settles("connections_active", 0.0);
        server.process.signal(Signal::TERM);
        assert_eq!(server.process.exit_status(), 0);
        lease.held()
    });
}

#[test]
fn a_signal_to_stop_is_heard_while_the_start_waits_for_its_file() {
    for signal in [Signal::TERM, Signal::INT] {
        let settings = Settings::new("");
        eventually("a stop while the file is held", || {
            let mut lease = Lease::take(settings.path());
            let mut process = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
            lease.expect_open();
            process.signal(signal);
            assert_eq!(process.exit_status(), 0);
            lease.held()
        });
    }
}

#[test]
fn reloads_that_are_asked_for_during_another_one_are_one_after_it() {
    let (old, new) = (Target::listen(), Target::listen());
    let settings = Settings::new(&(allow(&[("old:22", old.address())]) + "drain: {delay: 0s}\n"));
    let mut server = Server::with(&settings);
    let mut lease = Lease::take(settings.path());
    server.process.signal(Signal::HUP);
    server.process.stderr.find("a reload is asked for");
    lease.expect_open();
    settings.replace(&(allow(&[("new:22", new.address())]) + "drain: {delay: 0s}\n"));
    for _ in 0..3 {
        server.process.signal(Signal::HUP);
        // The process is told of each: a pending signal absorbs the next ones.
        server.process.stderr.find("a reload is asked for");
    }
    drop(lease);
    server.process.stderr.find("configuration reloaded");
    server.process.stderr.find("configuration reloaded");
    server.tunnel("new:22", &new);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    let rest = server.process.stderr.rest();
    assert!(!rest.iter().any(|line| line.contains("reloaded")), "{rest:#?}");
}

#[test]
fn a_file_that_is_not_read_in_time_changes_nothing_and_the_next_reload_does_not_wait_for_it() {
    let (old, new) = (Target::listen(), Target::listen());
    let settings = Settings::new(&allow(&[("old:22", old.address())]));
    let mut server = Server::with(&settings);
    let lease = Lease::take(settings.path());
    server.process.signal(Signal::HUP);
    server.process.stderr.find("not read within 10s");
    server.settles("config_reload_failures_total", 1.0);
    server.settles("config_last_reload_successful", 0.0);
    settings.replace(&allow(&[("new:22", new.address())]));
    reload(&mut server);
    server.settles("config_last_reload_successful", 1.0);
    server.tunnel("new:22", &new);
    // The contents that the first one reads at last are out of date.
    drop(lease);
    server.tunnel("new:22", &new);
    assert_eq!(server.answer("old:22"), not_allowed());
}

/// A poll that waits for its file holds nothing that a reload needs.
#[test]
fn a_reload_brings_other_certificates_while_a_poll_waits_for_the_ones_before() {
    let authority = Authority::new();
    let [old, new] = ["old", "new"].map(|name| authority.server(name, &[]));
    let with = |issued: &Issued| {
        let certificate = issued.setting();
        format!(
            "listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{certificate}], poll: 100ms}}\n"
        )
    };
    eventually("a reload while the file is held", || {
        let settings = Settings::new(&with(&old));
        let mut server = Server::with(&settings);
        let mut lease = Lease::take(old.cert.to_str().unwrap());
        lease.expect_open();
        settings.change(&with(&new));
        reload(&mut server);
        let client = connect(server.public(), &config(&authority, None), "127.0.0.1").unwrap();
        assert_eq!(client.conn.peer_certificates().unwrap()[0], new.load().0);
        lease.held()
    });
}

/// They were judged with the configuration, and their mount hangs before they are read to be served.
#[test]
fn certificates_that_are_not_read_in_time_hold_up_no_other_reload() {
    let authority = Authority::new();
    let [old, held, new] = ["old", "held", "new"].map(|name| authority.server(name, &[]));
    let with = |issued: &Issued| {
        let certificate = issued.setting();
        format!(
            "listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{certificate}], poll: 1h}}\n"
        )
    };
    let path = held.cert.to_str().unwrap().to_owned();
    eventually("a reload while the file is held", || {
        let (lease, is_next) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let (taken, takes, path) = (Arc::clone(&lease), Arc::clone(&is_next), path.clone());
        let proxy = Proxy::start_and(&with(&old), move || {
            if takes.swap(false, Ordering::SeqCst) {
                *taken.lock().unwrap() = Some(Lease::take(&path));
            }
        });
        is_next.store(true, Ordering::SeqCst);
        proxy.reload(&with(&held));
        proxy.settles("tls_reload_failures_total", 1.0);
        proxy.reload(&with(&new));
        let serves = |issued: &Issued| {
            let client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
            (client.conn.peer_certificates().unwrap()[0] == issued.load().0).then_some(())
        };
        eventually("the next certificate serves", || serves(&new));
        let lease = lease.lock().unwrap().take();
        lease.unwrap().held()
    });
}

#[test]
fn a_shortage_of_descriptors_is_no_failed_reload_of_the_certificates() {
    let authority = Authority::new();
    let all = ["first", "second"].map(|name| authority.server(name, &[]));
    let mounted = authority.mount(&all[0]);
    let certificate = mounted.setting();
    let settings = Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{certificate}], poll: 100ms}}\n"
    ));
    let mut server = Server::with(&settings);
    let process = Some(Pid::from_raw(server.process.id().cast_signed()).unwrap());
    let none = Rlimit {
        current: Some(3),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let limit = prlimit(process, Resource::Nofile, none).unwrap();
    authority.swap(&all[1]);
    server.process.stderr.find("Too many open files");
    prlimit(process, Resource::Nofile, limit).unwrap();
    server.process.stderr.find("certificates loaded");
    assert_eq!(server.scrape().value("tls_reload_failures_total"), 0.0);
    let client = connect(server.public(), &config(&authority, None), "127.0.0.1").unwrap();
    assert_eq!(client.conn.peer_certificates().unwrap()[0], all[1].load().0);
}
