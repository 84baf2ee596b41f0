//! A resume at a cap in which its own tunnel before still counts: that one is on a path that has fallen silent.

use std::{fs, thread};

use super::faults::{Fault, Faults};
use super::{Way, by_accept, noise};
use crate::openssh::login::{HOST, PATIENCE};
use crate::openssh::process::until;

/// The activity of a session while its path falls silent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    Idle,
    /// It sends as much as fits into all buffers on the way.
    Up,
    /// It is sent as much.
    Down,
}

/// A session whose path falls silent, under a cap of one tunnel.
fn resumes_under(cap: &str, status: u16, busy: Busy) {
    let limits = format!("limits: {{{cap}: {{max_tunnels: 1}}}}\ntimeouts: {{half_closed: 365d}}\n");
    let faults = if busy == Busy::Idle {
        Faults::none()
    } else {
        Faults::one(Fault::Silence)
    };
    let way = Way::with("http", faults, &limits);
    let content = noise(32 << 20);
    fs::write(way.path("here"), &content).unwrap();
    let there = format!("{HOST}:{}", way.path("here").display());
    match busy {
        Busy::Idle => {
            let mut shell = way.shell();
            way.middle.fail_all(Fault::Silence);
            shell.echo("behind-silence");
            shell.log_out();
        }
        Busy::Up => {
            let copy = format!("{HOST}:{}", way.path("copy").display());
            way.run(way.command("scp").arg(way.path("here")).arg(copy));
        }
        Busy::Down => {
            way.run(way.command("scp").arg(there).arg(way.path("copy")));
        }
    }
    if busy != Busy::Idle {
        way.middle.has_failed_in_every_way();
        way.expect_file("copy", &content);
    }
    way.sshd.expect_connections(1);
    let lines = until(PATIENCE, "the lines of both tunnels", || {
        let lines = by_accept(&way.proxy.access_lines(2));
        let tunnels = lines.iter().filter(|line| line["tunnel.resumable"] == true);
        (tunnels.count() == 2).then_some(lines)
    });
    // Each attempt between both tunnels was refused by the cap, and there was none behind them.
    let [first, refused @ .., second] = &lines[..] else {
        panic!("{}", way.log());
    };
    for refused in refused {
        assert_eq!(refused["status"], status, "{refused}");
    }
    assert_eq!(second["tunnel.resumable"], true, "{}", way.log());
    // The anchor has given the path up by a reset, which bytes that wait on it do not delay, and the proxy its tunnel with that.
    let end = ["closed_by", "reason"].map(|field| first[field].as_str().unwrap());
    assert_eq!(end, ["target", "reset"], "{}", way.log());
}

#[test]
fn a_session_outlives_silence_at_a_cap_of_one_tunnel() {
    thread::scope(|scope| {
        scope.spawn(|| resumes_under("target", 503, Busy::Idle));
        scope.spawn(|| resumes_under("client", 429, Busy::Idle));
        scope.spawn(|| resumes_under("target", 503, Busy::Up));
        scope.spawn(|| resumes_under("target", 503, Busy::Down));
    });
}
