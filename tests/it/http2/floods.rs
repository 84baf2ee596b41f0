//! Clients that ask for work and move nothing: their connection ends, with bounded memory, and no other is affected.

use super::peer::code;
use super::raw::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, PADDED, PING, PRIORITY, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE,
    connect, field, frame,
};
use super::siblings::resident;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Echo;
use crate::harness::{CONFIRMATION, allow, eventually};

struct Flood {
    name: &'static str,
    /// The first bytes.
    begin: fn() -> Vec<u8>,
    /// The repeated frames, with a stream that was not used yet.
    again: fn(u32) -> Vec<u8>,
}

fn nothing() -> Vec<u8> {
    Vec::new()
}

fn one_tunnel() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &connect("box:22"))
}

const FLOODS: [Flood; 14] = [
    Flood {
        name: "rapid reset (CVE-2023-44487)",
        begin: nothing,
        again: |stream| {
            let mut both = frame(HEADERS, END_HEADERS, stream, &connect("box:22"));
            both.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            both
        },
    },
    Flood {
        name: "streams that are errors (CVE-2025-8671)",
        begin: nothing,
        again: |stream| {
            let mut both = frame(HEADERS, END_HEADERS, stream, &connect("box:22"));
            both.extend(frame(WINDOW_UPDATE, 0, stream, &[0; 4]));
            both
        },
    },
    Flood {
        name: "streams over the limit",
        begin: nothing,
        again: |stream| frame(HEADERS, END_HEADERS, stream, &connect("box:22")),
    },
    Flood {
        name: "refused requests",
        begin: nothing,
        again: |stream| frame(HEADERS, END_HEADERS, stream, &connect("unknown:22")),
    },
    Flood {
        name: "CONTINUATION (CVE-2024-27316)",
        begin: || frame(HEADERS, 0, 1, &field("x", "y")),
        again: |_| frame(CONTINUATION, 0, 1, &field("x", "y")),
    },
    Flood {
        name: "empty CONTINUATION",
        begin: || frame(HEADERS, 0, 1, b""),
        again: |_| frame(CONTINUATION, 0, 1, b""),
    },
    Flood {
        name: "empty DATA (CVE-2019-9518)",
        begin: one_tunnel,
        again: |_| frame(DATA, 0, 1, b""),
    },
    Flood {
        name: "DATA that is padding",
        begin: one_tunnel,
        again: |_| frame(DATA, PADDED, 1, &[&[200][..], &[0; 200]].concat()),
    },
    Flood {
        name: "PING (CVE-2019-9512)",
        begin: nothing,
        again: |_| frame(PING, 0, 0, b"12345678"),
    },
    Flood {
        name: "SETTINGS (CVE-2019-9515)",
        begin: nothing,
        again: |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]),
    },
    Flood {
        name: "empty SETTINGS",
        begin: nothing,
        again: |_| frame(SETTINGS, 0, 0, b""),
    },
    Flood {
        name: "PRIORITY (CVE-2019-9513)",
        begin: one_tunnel,
        again: |_| frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 7]),
    },
    Flood {
        name: "WINDOW_UPDATE",
        begin: one_tunnel,
        again: |_| frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes()),
    },
    Flood {
        name: "frames of no known kind",
        begin: nothing,
        again: |_| frame(0xbb, 0, 0, &[0; 64]),
    },
];

#[test]
fn every_flood_ends_its_connection_and_memory_is_bounded() {
    let target = Echo::listen();
    let settings = Settings::new(&(allow(&[("box:22", target.address())]) + OPEN));
    let server = Server::with(&settings);
    let mut bystander = server.client(crate::harness::request("box:22"));
    bystander.expect(CONFIRMATION);
    let before = resident(&server);
    for flood in &FLOODS {
        for reads in [true, false] {
            let mut raw = Raw::connect(server.public());
            raw.send(&(flood.begin)());
            let mut stream = 1_u32;
            let burst = || {
                let mut burst = Vec::new();
                while burst.len() < 16 * 1024 {
                    stream += 2;
                    burst.extend((flood.again)(stream));
                }
                burst
            };
            let sent = raw.flood(burst, MAX_TAKEN, reads);
            println!("{}: {} KiB until it was ended", flood.name, sent / 1024);
            bystander.send("still here");
            bystander.expect("still here");
        }
        let grown = resident(&server).saturating_sub(before);
        assert!(grown < MAX_GROWN, "{}: {grown} KiB more", flood.name);
    }
    server.settles("connections_active", 1.0);
    server.settles(
        "tunnels_active{target_namespace=\"static\",target_service=\"box:22\"}",
        1.0,
    );
}

#[test]
fn a_flood_gets_enhance_your_calm_and_is_counted() {
    let target = Echo::listen();
    let server = Server::with(&Settings::new(&(allow(&[("box:22", target.address())]) + OPEN)));
    let mut raw = Raw::connect(server.public());
    raw.send(&frame(PING, 0, 0, b"12345678").repeat(600));
    assert_eq!(raw.goaway().map(u64::from), Some(code::ENHANCE_YOUR_CALM));
    server.settles("connect_requests_total{code=\"400\",reason=\"flood\"}", 1.0);
}

/// A client that carries the tunnels of many users may have to cancel many at once: that is no flood.
#[test]
fn ninety_cancelled_requests_at_once_are_no_flood() {
    let target = Echo::listen();
    let server = Server::with(&Settings::new(&(allow(&[("box:22", target.address())]) + OPEN)));
    let mut raw = Raw::connect(server.public());
    raw.send(&one_tunnel());
    assert_eq!(raw.next().kind, HEADERS);
    let mut given_up = Vec::new();
    for stream in (3..).step_by(2).take(90) {
        given_up.extend(frame(HEADERS, END_HEADERS, stream, &connect("box:22")));
        given_up.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    raw.send(&given_up);
    raw.send(&frame(DATA, 0, 1, b"still here"));
    let echo = raw.next();
    assert_eq!((echo.kind, &echo.payload[..]), (DATA, &b"still here"[..]));
    server.settles(
        "connect_requests_total{code=\"499\",reason=\"client_disconnected\"}",
        90.0,
    );
}

/// The frames of a stream that is reset may be under way for long: they are ignored (RFC 9113 section 5.1), however many
/// they are. h2 would forget 110 of these streams at once. Nor does it take more than 100 empty frames.
#[test]
fn late_frames_of_refused_streams_do_not_end_the_connection() {
    let target = Echo::listen();
    let server = Server::with(&Settings::new(&(allow(&[("box:22", target.address())]) + OPEN)));
    let mut raw = Raw::connect(server.public());
    raw.send(&one_tunnel());
    assert_eq!(raw.next().kind, HEADERS);
    let streams: Vec<u32> = (3..).step_by(2).take(160).collect();
    for batch in streams.chunks(80) {
        for stream in batch {
            raw.send(&frame(HEADERS, END_HEADERS, *stream, &connect("unknown:22")));
        }
        for _ in batch {
            while raw.next().kind != RST_STREAM {}
        }
    }
    for stream in streams {
        raw.send(&frame(DATA, 0, stream, b"late").repeat(100));
    }
    raw.send(&frame(DATA, 0, 1, b"").repeat(110));
    raw.send(&frame(DATA, 0, 1, b"still here"));
    let echo = raw.next();
    assert_eq!((echo.kind, &echo.payload[..]), (DATA, &b"still here"[..]));
}

/// Frames of a stream that the proxy never knew are answered with a reset each, but not for long.
#[test]
fn frames_of_ever_other_streams_are_a_flood() {
    let server = Server::with(&Settings::new(OPEN));
    let mut raw = Raw::connect(server.public());
    raw.send(&frame(HEADERS, END_HEADERS, 1_000_001, &connect("unknown:22")));
    assert_eq!(raw.next().kind, HEADERS);
    let mut stream = 1_u32;
    let burst = || {
        stream += 2;
        frame(DATA, 0, stream, b"x")
    };
    raw.flood(burst, MAX_TAKEN, true);
}

/// Small messages that wait for the rate of their own tunnel are no flood.
#[test]
fn small_frames_that_wait_for_a_limit_do_not_end_the_connection() {
    let [slow, fast] = [Echo::listen(), Echo::listen()];
    let targets = format!(
        "allowlist:\n  static:\n    - {{name: \"slow:22\", addresses: [\"{}\"], limits: {{upload: 1KiB/s, burst: 1KiB}}}}\n    \
         - {{name: \"box:22\", addresses: [\"{}\"]}}\n",
        slow.address(),
        fast.address()
    );
    let server = Server::with(&Settings::new(&targets));
    let mut raw = Raw::connect(server.public());
    raw.send(&one_tunnel());
    assert_eq!(raw.next().kind, HEADERS);
    raw.send(&frame(HEADERS, END_HEADERS, 3, &connect("slow:22")));
    assert_eq!(raw.next().kind, HEADERS);
    raw.send(&frame(DATA, 0, 3, b"k").repeat(30_000));
    raw.send(&frame(DATA, 0, 1, b"still here"));
    let echo = std::iter::from_fn(|| Some(raw.next()))
        .find(|frame| frame.stream == 1)
        .unwrap();
    assert_eq!((echo.kind, &echo.payload[..]), (DATA, &b"still here"[..]));
}

/// 16 KiB of fields decompress to far more: each of them names an entry of the table that is 4 KB long.
#[test]
fn fields_that_decompress_to_megabytes_are_refused_without_them() {
    let target = Echo::listen();
    let server = Server::with(&Settings::new(&(allow(&[("box:22", target.address())]) + OPEN)));
    let before = resident(&server);
    let mut block = connect("box:22");
    // A literal with indexing, 3,900 bytes long (RFC 7541 section 6.2.1), and then nothing but its index.
    block.extend([0x40, 1, b'x', 0x7f]);
    let mut length = 3900 - 127;
    while length >= 128 {
        block.push(0x80 | u8::try_from(length % 128).unwrap());
        length /= 128;
    }
    block.push(u8::try_from(length).unwrap());
    block.extend([b'y'; 3900]);
    block.extend([0x80 | 62; 8000]);
    let mut raw = Raw::connect(server.public());
    raw.send(&frame(HEADERS, END_HEADERS, 1, &block));
    raw.send(&frame(PING, 0, 0, b"12345678"));
    eventually("it is refused or ended", || {
        (server.scrape().value("connections_active") >= 0.0).then_some(())
    });
    drop(raw);
    server.settles("connections_active", 0.0);
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < MAX_GROWN, "{grown} KiB more");
}

/// The caps of one client would end some of the floods before their frames do.
const OPEN: &str = "limits: {client: {max_tunnels: unlimited, connects_per_second: unlimited}}\n";
/// The sockets' buffers take bytes whatever the proxy does.
const MAX_TAKEN: usize = 64 * 1024 * 1024;
/// For all floods together, in KiB.
const MAX_GROWN: usize = 24 * 1024;
