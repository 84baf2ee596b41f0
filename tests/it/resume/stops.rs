//! Processes that stop, or are killed: `connect`, the proxy and the anchor.

use std::net::Ipv6Addr;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::anchor::Anchor;
use super::{Shell, Way, connect_of};
use crate::harness::target::Closed;
use crate::openssh::clients::ours;
use crate::openssh::lines::Lines;
use crate::openssh::login::{HOST, PATIENCE, PORT, options};
use crate::openssh::process::{Process, program, quiet};
use crate::openssh::proxy::Proxy;
use crate::openssh::sshd::Sshd;

#[test]
fn a_client_that_was_stopped_goes_on() {
    // As long as a lid is closed for a moment: STOPPED=30 cargo test --test it resume::stops
    let seconds = std::env::var("STOPPED").map_or(2, |text| text.parse().expect("a number"));
    let way = Way::http();
    let mut shell = way.shell();
    let connect = Pid::from_raw(i32::try_from(connect_of(&shell.process)).unwrap()).unwrap();
    for round in 0..2 {
        kill_process(connect, Signal::STOP).unwrap();
        shell.type_in(&format!("while-stopped-{round}"));
        thread::sleep(Duration::from_secs(seconds));
        // In the second round its connection is gone, too.
        if round == 1 {
            way.middle.cut(true);
            way.proxy.access_lines(1);
        }
        kill_process(connect, Signal::CONT).unwrap();
        shell.expect(&format!("while-stopped-{round}"));
        shell.echo(&format!("behind-{round}"));
    }
    shell.log_out();
}

#[test]
fn over_ipv6_a_session_outlives_the_death_of_its_proxy() {
    let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
    let path = directory.path();
    let sshd = Sshd::start(path);
    let anchor = Anchor::start_at("[::1]:0".parse().unwrap(), sshd.address);
    let port = Closed::on(Ipv6Addr::LOCALHOST);
    let address = port.address();
    let listen = format!("address: \"{address}\", reuse_port: true");
    let mut first = Proxy::start_at(&listen, path, anchor.address, "");
    let binary = ours();
    let proxy_command = format!("{binary} connect --proxy http://{address} %h:%p");
    let mut command = quiet(program("ssh", "openssh-client"));
    command.args(options(path, &sshd.user, &proxy_command));
    let mut shell = Shell::start(command);
    let _second = Proxy::start_at(&listen, path, anchor.address, "");
    first.kill();
    shell.echo("at-another");
    shell.log_out();
}

#[test]
fn the_death_of_the_anchor_is_one_sentence_and_exit_status_1() {
    let mut way = Way::http();
    let proxy = format!("http://{}", way.middle.address);
    let mut command = quiet(ours());
    command
        .args(["connect", "--proxy", &proxy, &format!("{HOST}:{PORT}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut connect = Process::start(&mut command);
    let stdout = Lines::of(connect.child().stdout.take().unwrap());
    let stderr = Lines::of(connect.child().stderr.take().unwrap());
    stdout
        .wait(PATIENCE, |lines| (!lines.is_empty()).then_some(()))
        .expect("the identification of sshd");
    let address = way.anchor.address;
    way.anchor.kill();
    // Where the port is closed, the session may only be out of reach.
    let is_told = |lines: &[String]| (!lines.is_empty()).then_some(());
    stderr.wait(PATIENCE, is_told).unwrap();
    assert!(!connect.has_ended());
    way.anchor = Anchor::start_at(address, way.sshd.address);
    assert_eq!(connect.wait(PATIENCE).code(), Some(1));
    let said = stderr.whole(PATIENCE);
    assert!(
        said[0].starts_with("switchboard: reconnecting to 127.0.0.1: "),
        "{said:?}"
    );
    let lost = "switchboard: svc-a.ns.svc.cluster.local:80: the session is lost: the anchor beside the SSH server was restarted";
    assert_eq!(said[1..], [lost], "{said:?}");
}
