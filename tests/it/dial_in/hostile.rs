//! Anchors that break every rule: the connection of each ends, with bounded memory, and no other is affected.

use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{World, expect_at};
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::Server;
use crate::harness::target::Target;
use crate::harness::{eventually, request};
use crate::http2::raw::{
    CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PADDED, PING, PREFACE, PRIORITY, RST_STREAM, Raw, SETTINGS,
    WINDOW_UPDATE, connect, field, frame,
};
use crate::http2::siblings::resident;
use crate::openssh::login::{HOST, PORT};

impl World {
    /// The answer to a registration of alice.
    fn registration(&self) -> Peer {
        let proof = STANDARD.encode("alice:correct");
        self.proxy.client(format!(
            "GET /.well-known/switchboard/anchor/{HOST}:{PORT} HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\n\
             Upgrade: switchboard-anchor\r\nProxy-Authorization: Basic {proof}\r\n\r\n"
        ))
    }

    /// An anchor of which the test writes each frame. It has registered.
    pub(super) fn hostile(&self) -> Raw {
        self.registered(|| {
            let mut peer = self.registration();
            peer.expect("HTTP/1.1 101 ");
            peer.read_past("\r\n\r\n");
            peer.expect(PREFACE);
            let mut raw = Raw::from(peer);
            // SETTINGS_MAX_CONCURRENT_STREAMS: 1,000.
            raw.send(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 3, 0xe8]));
            raw
        })
    }

    /// A hostile anchor, and the CONNECT of a client on it, which it has not answered.
    fn asked(&self) -> (Raw, Peer) {
        let mut raw = self.hostile();
        let client = self.proxy.client(request(&format!("{HOST}:{PORT}")));
        assert_eq!(raw.next().kind, HEADERS);
        (raw, client)
    }

    /// The same, with the stream open.
    fn opened(&self) -> (Raw, Peer) {
        let (mut raw, mut client) = self.asked();
        raw.send(&frame(HEADERS, END_HEADERS, 1, OK));
        client.expect("HTTP/1.1 200 ");
        (raw, client)
    }
}

struct Flood {
    name: &'static str,
    /// True if a stream is open before.
    is_open: bool,
    again: fn() -> Vec<u8>,
}

const FLOODS: [Flood; 10] = [
    Flood {
        name: "PING",
        is_open: false,
        again: || frame(PING, 0, 0, b"12345678"),
    },
    Flood {
        name: "SETTINGS",
        is_open: false,
        again: || frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
    },
    Flood {
        name: "WINDOW_UPDATE",
        is_open: false,
        again: || frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
    },
    Flood {
        name: "PRIORITY",
        is_open: false,
        again: || frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 7]),
    },
    Flood {
        name: "GOAWAY",
        is_open: false,
        again: || frame(GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
    },
    Flood {
        name: "frames of an unknown type",
        is_open: false,
        again: || frame(0xfa, 0, 0, b"x"),
    },
    Flood {
        name: "RST_STREAM of a stream that ended",
        is_open: true,
        again: || frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()),
    },
    Flood {
        name: "empty DATA",
        is_open: true,
        again: || frame(DATA, 0, 1, b""),
    },
    Flood {
        name: "DATA that is padding",
        is_open: true,
        again: || frame(DATA, PADDED, 1, &[&[200][..], &[0; 200]].concat()),
    },
    Flood {
        name: "informational answers",
        is_open: false,
        again: || frame(HEADERS, END_HEADERS, 1, &field(":status", "103")),
    },
];

#[test]
fn a_flood_of_frames_ends_the_connection_and_another_anchor_takes_over() {
    let world = World::start();
    let target = Target::listen();
    let _honest = world.anchor(target.address());
    let before = resident(&world.proxy);
    for flood in FLOODS {
        let (raw, client) = match flood.is_open {
            true => world.opened(),
            false => world.asked(),
        };
        let again = move || (flood.again)().repeat(16);
        let sent = raw.flood(again, MAX_TAKEN, true);
        println!("{}: {} KiB until it was ended", flood.name, sent / 1024);
        drop(client);
        expect_at(&world, &target);
    }
    world.proxy.settles("anchors", 1.0);
    let grown = resident(&world.proxy).saturating_sub(before);
    assert!(grown < MAX_GROWN, "{grown} KiB more");
}

#[test]
fn frames_that_no_server_may_send_end_the_connection_only() {
    let world = World::start();
    let target = Target::listen();
    let _honest = world.anchor(target.address());
    let wide = field(&"x".repeat(120), &"y".repeat(120)).repeat(400);
    for (name, frames) in [
        ("a request", frame(HEADERS, END_HEADERS, 2, &connect("elsewhere:22"))),
        (
            "a promise",
            frame(
                5,
                END_HEADERS,
                1,
                &[&[0, 0, 0, 2][..], &connect("elsewhere:22")].concat(),
            ),
        ),
        ("an answer to no request", frame(HEADERS, END_HEADERS, 99, OK)),
        ("bytes before the answer", frame(DATA, 0, 1, b"SSH-2.0-early\r\n")),
        (
            "a window without end",
            frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
        ),
        ("fields without end", {
            let first = frame(HEADERS, 0, 1, OK);
            [first, frame(CONTINUATION, 0, 1, &wide[..16_000]).repeat(8)].concat()
        }),
        ("a frame without end", frame(DATA, 0, 1, &[0; 70_000])),
        ("no frame", b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-server\r\n".repeat(4)),
    ] {
        let (mut raw, mut client) = world.asked();
        raw.send(&frames);
        raw.goaway();
        // The honest one serves it, or it is refused: it never hears what the hostile one has sent.
        let answer = client.read_once();
        let text = String::from_utf8_lossy(&answer);
        assert!(
            text.starts_with("HTTP/1.1 5") || text.starts_with("HTTP/1.1 200"),
            "{name}: {text}"
        );
        assert!(
            !text.contains("SSH-2.0-early") && !text.contains("SSH-2.0-server"),
            "{name}: {text}"
        );
        drop(client);
        world.proxy.settles("anchors", 1.0);
        println!("{name}: ended");
    }
}

#[test]
fn an_anchor_that_answers_no_dial_has_128_of_them() {
    let world = World::start_with(
        "timeouts: {connect: 1s, dial: 2s}\nlimits: {client: {max_tunnels: unlimited, connects_per_second: unlimited, max_unfinished: unlimited}, target: {max_dials: 200}}\n",
    );
    let mut raw = world.hostile();
    let name = format!("{HOST}:{PORT}");
    let clients: Vec<Peer> = (0..128).map(|_| world.proxy.client(request(&name))).collect();
    for _ in &clients {
        assert_eq!(raw.next().kind, HEADERS);
    }
    let refused = world.proxy.answer(&name);
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    for mut client in clients {
        client.expect("HTTP/1.1 504 ");
    }
    drop(raw);
}

#[test]
fn an_anchor_that_answers_no_dial_stands_back() {
    // The one that is asked last has the rest of the whole dial, however busy the machine.
    let mut world = World::start_with("timeouts: {connect: 1s, dial: 1m}\n");
    let target = Target::listen();
    let _honest = world.anchor(target.address());
    let of_honest = world.proxy.process.stderr.find("standby=0");
    let mut hostile = world.hostile();
    world.proxy.settles("anchors", 2.0);
    // One that answers is reached within the same request, and asked first from then on.
    for asks in [true, false] {
        expect_at(&world, &target);
        if asks {
            assert_eq!(hostile.next().kind, HEADERS);
            assert_eq!(hostile.next().kind, RST_STREAM);
        }
    }
    // The log names the one that is asked next.
    world.anchor(target.address()).stop();
    let line = world.proxy.process.stderr.find("an anchor that stood by");
    assert_eq!(peer(&line), peer(&of_honest), "{line}");
    assert_eq!(world.proxy.scrape().value("anchors"), 2.0);
}

#[test]
fn registrations_have_a_bound_for_each_target_and_each_user() {
    let world = World::start();
    let mut held: Vec<Raw> = (0..32).map(|_| world.hostile()).collect();
    world.proxy.settles("anchors", 32.0);
    let mut refused = world.registration();
    let answer = String::from_utf8(refused.read_once()).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503 the target has reached its limit of anchors"),
        "{answer}"
    );
    held.pop();
    world.proxy.settles("anchors", 31.0);
    held.push(world.hostile());
    drop(held);
    world.proxy.settles("anchors", 0.0);
    let world = World::start_with("limits: {user: {max_anchors: 2}}\n");
    let _held = [world.hostile(), world.hostile()];
    world.proxy.settles("anchors", 2.0);
    let answer = String::from_utf8(world.registration().read_once()).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 429 this user has reached the limit of anchors of 2"),
        "{answer}"
    );
}

#[test]
fn stalled_tunnels_of_an_anchor_leave_the_window_of_its_connection_to_the_others() {
    let world = World::start();
    let mut raw = world.hostile();
    let update = std::iter::from_fn(|| Some(raw.any())).find(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 0);
    let window = u32::from_be_bytes(update.unwrap().payload.try_into().unwrap()) + 65_535;
    // 2,000 tunnels of 256 KiB each.
    assert!(window >= 2000 * 256 * 1024, "{window}");
}

/// Two hundred uploads have filled the connection when a key is pressed: it waits for a bounded number of bytes, however
/// many they are.
#[test]
fn a_keystroke_does_not_wait_for_the_uploads_of_others() {
    const UPLOADS: u32 = 200;
    let world = World::start_with("limits: {client: {max_tunnels: unlimited, connects_per_second: unlimited}}\n");
    let mut raw = world.hostile();
    // The uploads stop for the socket, not for a window.
    let window = (1_u32 << 30).to_be_bytes();
    raw.send(&frame(SETTINGS, 0, 0, &[&[0, 4][..], &window].concat()));
    raw.send(&frame(WINDOW_UPDATE, 0, 0, &window));
    let mut clients: Vec<_> = (0..=UPLOADS)
        .map(|number| {
            let mut client = world.proxy.client(request(&format!("{HOST}:{PORT}")));
            let stream = raw.next().stream;
            assert_eq!(stream, 2 * number + 1);
            raw.send(&frame(HEADERS, END_HEADERS, stream, OK));
            client.expect("HTTP/1.1 200 ");
            client.read_past("\r\n\r\n");
            client.send("SSH-2.0-test\r\n");
            assert_eq!(raw.next().payload, b"SSH-2.0-test\r\n");
            client
        })
        .collect();
    let mut typing = clients.pop().unwrap();
    for mut client in clients {
        thread::spawn(move || while client.try_send([0; 65536]).is_ok() {});
    }
    let mut last = None;
    eventually("all uploads stall", || {
        world.proxy.turn();
        let now = Some(uploaded(&world.proxy));
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    typing.send(b"k");
    eventually("the proxy reads the key", || {
        (typing.unread_by(typing.other()) == 0).then_some(())
    });
    let mut before = 0;
    loop {
        let next = raw.next();
        if (next.kind, next.stream) == (DATA, 2 * UPLOADS + 1) {
            break;
        }
        before += next.payload.len();
    }
    assert!(before < MAX_BEFORE, "{before} bytes before the key");
}

fn uploaded(server: &Server) -> f64 {
    let counted = server.scrape().counted("tunnel_bytes_total");
    let uploads = counted.iter().filter(|(labels, _)| labels.contains("upload"));
    uploads.map(|(_, bytes)| bytes).sum()
}

/// The address of an anchor in a line of the log.
fn peer(line: &str) -> &str {
    line.split(' ').find(|field| field.starts_with("peer=")).unwrap()
}

/// `:status` 200 (RFC 7541, appendix A, index 8).
const OK: &[u8] = &[0x88];
/// The sockets' buffers take bytes whatever the proxy does.
const MAX_TAKEN: usize = 64 << 20;
/// Before a key: the sockets' buffers, whose receiver reads nothing yet, and two send buffers.
const MAX_BEFORE: usize = 2 << 20;
/// For all floods together, in KiB.
const MAX_GROWN: usize = 24 << 10;
