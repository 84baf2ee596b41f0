//! Clients that do not read what they are sent, and targets that do not: what of it is kept, and for how long.

use std::collections::BTreeMap;
use std::thread;

use rustix::process::Signal;

use super::peer::{self, code};
use super::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, connect, frame,
};
use super::siblings::resident;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::{Echo, Target};
use crate::harness::{allow, eventually};
use crate::resumable::hello;

/// A connection on which stream 1 was sent so much that no stream has a send window any more.
fn without_window(server: &Server, target: &Target) -> (Raw, Peer) {
    without_window_behind(server, target, "")
}

/// The same, behind these words of the client.
fn without_window_behind(server: &Server, target: &Target, says: &str) -> (Raw, Peer) {
    let mut raw = Raw::connect(server.public());
    raw.send(&frame(HEADERS, END_HEADERS, 1, &connect("box:22")));
    if !says.is_empty() {
        raw.send(&frame(DATA, 0, 1, says.as_bytes()));
    }
    let mut source = target.accept();
    source.expect(says);
    source.send([0; WINDOW]);
    assert_eq!(raw.next().kind, HEADERS);
    let mut came = 0;
    while came < WINDOW {
        let next = raw.next();
        assert_eq!((next.kind, next.stream), (DATA, 1));
        came += next.payload.len();
    }
    (raw, source)
}

/// Bytes that clients were sent through tunnels so far, as the proxy counts them.
fn downloaded(server: &Server) -> f64 {
    let counted = server.scrape().counted("tunnel_bytes_total");
    let downloads = counted.iter().filter(|(labels, _)| labels.contains("download"));
    downloads.map(|(_, bytes)| bytes).sum()
}

/// Waits until the sockets and the proxy are full of what their clients do not read.
#[track_caller]
pub(crate) fn downloads_stall(server: &Server) {
    let mut last = None;
    eventually("all downloads stall", || {
        server.turn();
        let now = Some(downloaded(server));
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
}

/// The text of the refusal has to wait for a window that never comes.
#[test]
fn a_refusal_without_a_send_window_is_given_up() {
    let target = Target::listen();
    let server = Server::with(&Settings::new(&allow(&[("box:22", target.address())])));
    let (mut raw, _source) = without_window(&server, &target);
    raw.send(&frame(HEADERS, END_HEADERS, 3, &connect("other:22")));
    let answer = raw.next();
    assert_eq!((answer.kind, answer.stream), (HEADERS, 3));
    let reset = raw.next();
    assert_eq!((reset.kind, reset.stream), (RST_STREAM, 3));
    assert_eq!(reset.payload, u32::try_from(code::NO_ERROR).unwrap().to_be_bytes());
}

/// Of a session that outlives the stream nothing is lost: what the client does not take is sent again on the next one.
#[test]
fn a_resumable_stream_without_a_send_window_ends_with_its_anchor() {
    let target = Target::listen();
    let settings = allow(&[("box:22", target.address())]) + "timeouts: {half_closed: 365d}\n";
    // The proxy's socket takes that and the end behind it, also while the proxy does not read from it.
    for behind in [0, 30_000] {
        let server = Server::with(&Settings::new(&settings));
        let (_raw, mut anchor) = without_window_behind(&server, &target, &hello("resume"));
        anchor.send(vec![0; behind]);
        anchor.finish();
        server.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
        server.settles(
            r#"tunnels_active{target_namespace="static",target_service="box:22"}"#,
            0.0,
        );
        anchor.ends();
    }
}

#[test]
fn a_client_may_leave_while_a_refusal_waits_for_it() {
    let target = Target::listen();
    let settings = allow(&[("box:22", target.address())]) + "drain: {delay: 0s}\n";
    let mut server = Server::with(&Settings::new(&settings));
    let (mut raw, _source) = without_window(&server, &target);
    raw.send(&frame(HEADERS, END_HEADERS, 3, &connect("other:22")));
    assert_eq!(raw.next().stream, 3);
    drop(raw);
    server.settles("connections_active", 0.0);
    server.process.signal(Signal::TERM);
    let said = server.process.stderr.rest();
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:#?}");
}

/// 99 targets that read nothing leave the last one its window, and the proxy holds no more than SECURITY.md says: of
/// each its window, and 64 KiB of what is on its way to a target that stalls.
#[test]
fn stalled_uploads_leave_the_others_their_windows_and_memory_is_bounded() {
    let (stalled, lively) = (Target::that_reads_little(), Echo::listen());
    let targets = [("stalled:22", stalled.address()), ("box:22", lively.address())];
    let server = Server::with(&Settings::new(&allow(&targets)));
    let mut peer = peer::Peer::connect(server.public());
    peer.open(1, "box:22");
    peer.tell(&format!("bulk 1 {}", 1 << 20));
    while peer.event("data", 1)["total"] != 1 << 20 {}
    let before = resident(&server);
    let mut stuck = Vec::new();
    for stream in (3..=199).step_by(2) {
        peer.open(stream, "stalled:22");
        stuck.push(stalled.accept());
        // More than a window and the sockets' buffers.
        peer.tell(&format!("bulk {stream} {}", 4 << 20));
    }
    // These bytes arrive after the uploads.
    for _ in 0..100 {
        peer.tell(&format!("bulk 1 {}", 64 << 10));
    }
    while peer.any(1)["total"].as_u64() < Some((1 << 20) + 100 * (64 << 10)) {}
    let grown = resident(&server).saturating_sub(before);
    println!("{grown} KiB for 99 uploads that stall");
    assert!(grown <= 99 * (256 + 64), "{grown} KiB for 99 uploads that stall");
}

/// Fifty targets send without end, and the client reads nothing.
#[test]
fn unread_downloads_are_bounded_for_all_streams_together() {
    let target = Target::listen();
    let server = Server::with(&Settings::new(&allow(&[("box:22", target.address())])));
    // Memory that the process takes for the first download stays.
    let _first = without_window(&server, &target);
    let mut raw = Raw::connect_with_wide_windows(server.public());
    let before = resident(&server);
    for stream in (1..100).step_by(2) {
        raw.send(&frame(HEADERS, END_HEADERS, stream, &connect("box:22")));
        let mut source = target.accept();
        thread::spawn(move || while source.try_send([0; 65536]).is_ok() {});
    }
    let mut most = 0;
    let mut last = None;
    eventually("all downloads stall", || {
        server.turn();
        most = most.max(resident(&server).saturating_sub(before));
        let now = Some(downloaded(&server));
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    println!("{most} KiB for 50 unread downloads");
    assert!(most < 4096, "{most} KiB for 50 unread downloads");
}

/// A connection of that window whose client has withdrawn the windows of so many downloads that stall. Each stream is with
/// the bytes that were sent on it, the fewest first.
fn withdrawn(streams: u32, connection_window: u32) -> (Raw, Vec<(u32, u32)>, Server) {
    let target = Target::listen();
    let server = Server::with(&Settings::new(&allow(&[("box:22", target.address())])));
    let mut raw = Raw::connect(server.public());
    let initial = |size: u32| frame(SETTINGS, 0, 0, &[&[0, 4][..], &size.to_be_bytes()].concat());
    raw.send(&initial(4 << 20));
    raw.send(&window(0, connection_window));
    let mut came = BTreeMap::new();
    for stream in (1..2 * streams).step_by(2) {
        raw.send(&frame(HEADERS, END_HEADERS, stream, &connect("box:22")));
        let mut source = target.accept();
        thread::spawn(move || while source.try_send([0; 65536]).is_ok() {});
        came.insert(stream, 0);
    }
    downloads_stall(&server);
    raw.send(&initial(0));
    raw.send(&frame(PING, 0, 0, b"12345678"));
    loop {
        let next = raw.any();
        match next.kind {
            DATA => *came.get_mut(&next.stream).unwrap() += u32::try_from(next.payload.len()).unwrap(),
            PING => break,
            _ => {}
        }
    }
    let mut by_size: Vec<_> = came.into_iter().map(|(stream, came)| (came, stream)).collect();
    by_size.sort_unstable();
    (raw, by_size, server)
}

/// A WINDOW_UPDATE of a stream, or of the connection: 0.
fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// A client takes the windows of all streams back, when two reads wait for the socket and the other streams for their
/// turn, and gives them again, last of all to those that have been sent most: they hold the turn.
#[test]
fn downloads_resume_when_a_client_restores_the_windows_that_it_withdrew() {
    let (mut raw, by_size, _server) = withdrawn(40, 8 << 20);
    for &(came, stream) in &by_size {
        raw.send(&window(stream, came + (1 << 20)));
    }
    raw.send(&window(0, by_size.iter().map(|&(came, _)| came).sum()));
    let mut left = by_size.len() << 20;
    while left > 0 {
        let next = raw.any();
        if next.kind == DATA {
            left -= next.payload.len();
            raw.send(&window(0, u32::try_from(next.payload.len()).unwrap()));
        }
    }
}

/// A client takes all windows back, and gives one to each stream alone while the others have none, and what waits for
/// those may hold all permits (RFC 9113 section 6.9.2: the windows are negative then).
#[test]
fn a_stream_with_a_window_goes_on_beside_streams_whose_windows_were_withdrawn() {
    let (mut raw, by_size, _server) = withdrawn(20, 64 << 20);
    // Those that were sent most last: what waits is theirs.
    for (came, stream) in by_size {
        raw.send(&window(stream, came + (1 << 20)));
        let mut left = 1 << 20;
        while left > 0 {
            let next = raw.any();
            if next.kind == DATA {
                assert_eq!(next.stream, stream);
                left -= next.payload.len();
            }
        }
    }
}

/// Both sides have finished, and what the target sent last stands in the proxy: its client may take its time.
///
/// The amount depends on the kernel: of so many sizes some are right.
#[test]
fn the_tail_of_a_tunnel_that_both_sides_have_finished_is_not_cut_off() {
    let target = Target::listen();
    let settings = allow(&[("box:22", target.address())]) + "timeouts: {request_header: 3s}\ndrain: {delay: 0s}\n";
    let mut server = Server::with(&Settings::new(&settings));
    let sizes = (200_000..1_500_000).step_by(100_000);
    let waiting: Vec<(Raw, usize)> = sizes
        .map(|size| {
            let mut raw = Raw::connect_with_wide_windows(server.public());
            raw.send(&frame(HEADERS, END_HEADERS, 1, &connect("box:22")));
            let mut source = target.accept();
            raw.send(&frame(DATA, END_STREAM, 1, b""));
            thread::spawn(move || {
                source.send(vec![b'.'; size]);
                source.finish();
            });
            (raw, size)
        })
        .collect();
    // Longer than a connection without a tunnel may stay: two have come and gone.
    for _ in 0..2 {
        server.client("").ends();
    }
    // And a drain does not end before they have it.
    server.process.signal(Signal::TERM);
    server.process.stderr.find("waiting for tunnels to end");
    for _ in 0..20 {
        assert!(
            server
                .ask_admin("GET", "/drain")
                .body
                .starts_with(r#"{"phase":"draining""#)
        );
    }
    for (mut raw, size) in waiting {
        let mut came = 0;
        loop {
            let next = raw.next();
            came += if next.kind == DATA { next.payload.len() } else { 0 };
            if next.kind == DATA && next.flags & END_STREAM != 0 {
                break;
            }
        }
        assert_eq!(came, size);
    }
    assert_eq!(server.process.exit_status(), 0);
}

/// The window of a stream and of a connection by default (RFC 9113 section 6.9.2).
const WINDOW: usize = 65_535;
