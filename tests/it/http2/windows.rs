//! Uploads by a client that counts its windows itself (RFC 9113 sections 5.2 and 6.9), and how they may never end up:
//! without a window, though all that they sent has been taken.

use std::collections::BTreeMap;

use super::raw::{DATA, END_HEADERS, HEADERS, PING, Raw, SETTINGS, WINDOW_UPDATE, connect, frame};
use crate::harness::allow;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;

/// The moment at which it applies the proxy's SETTINGS and acknowledges them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Acknowledges {
    AtOnce,
    Never,
    /// Behind so many further bytes.
    After(usize),
}

struct Uploader {
    raw: Raw,
    acknowledges: Acknowledges,
    /// SETTINGS_INITIAL_WINDOW_SIZE of each SETTINGS that it has not applied.
    unapplied: Vec<Option<i64>>,
    initial: i64,
    connection: i64,
    streams: BTreeMap<u32, i64>,
}

impl Uploader {
    fn connect(proxy: &Proxy, acknowledges: Acknowledges) -> Self {
        Self {
            raw: Raw::connect(proxy.public()),
            acknowledges,
            unapplied: Vec::new(),
            initial: WINDOW,
            connection: WINDOW,
            streams: BTreeMap::new(),
        }
    }

    #[track_caller]
    fn open(&mut self, stream: u32, target: &Target) -> Peer {
        self.streams.insert(stream, self.initial);
        self.raw.send(&frame(HEADERS, END_HEADERS, stream, &connect("box:22")));
        while self.receive() != (HEADERS, stream) {}
        target.accept()
    }

    /// Sends so many bytes, waiting for its windows, which the other end reads.
    #[track_caller]
    fn upload(&mut self, stream: u32, mut bytes: usize, to: &mut Peer) {
        while bytes > 0 {
            let window = self.connection.min(self.streams[&stream]);
            let now = bytes.min(MAX_FRAME).min(usize::try_from(window).unwrap_or(0));
            if now == 0 {
                self.receive();
                continue;
            }
            self.raw.send(&frame(DATA, 0, stream, &vec![7; now]));
            to.expect(vec![7; now]);
            bytes -= now;
            let now_too = i64::try_from(now).unwrap();
            self.connection -= now_too;
            *self.streams.get_mut(&stream).unwrap() -= now_too;
            if let Acknowledges::After(left) = &mut self.acknowledges {
                *left = left.saturating_sub(now);
                self.apply();
            }
        }
    }

    /// Takes everything that the proxy has sent by now.
    #[track_caller]
    fn catch_up(&mut self) {
        self.raw.send(&frame(PING, 0, 0, b"12345678"));
        while self.receive().0 != PING {}
    }

    #[track_caller]
    fn receive(&mut self) -> (u8, u32) {
        let next = self.raw.any();
        let number = |bytes: &[u8]| i64::from(u32::from_be_bytes(bytes.try_into().unwrap()));
        match (next.kind, next.stream) {
            (SETTINGS, _) if next.flags == 0 => {
                let window = next.payload.chunks(6).find(|setting| setting[..2] == [0, 4]);
                self.unapplied.push(window.map(|setting| number(&setting[2..])));
                self.apply();
            }
            (WINDOW_UPDATE, 0) => self.connection += number(&next.payload),
            (WINDOW_UPDATE, stream) => *self.streams.get_mut(&stream).unwrap() += number(&next.payload),
            _ => {}
        }
        (next.kind, next.stream)
    }

    fn apply(&mut self) {
        if !matches!(self.acknowledges, Acknowledges::AtOnce | Acknowledges::After(0)) {
            return;
        }
        for window in std::mem::take(&mut self.unapplied) {
            let window = window.unwrap_or(self.initial);
            let change = window - std::mem::replace(&mut self.initial, window);
            self.streams.values_mut().for_each(|stream| *stream += change);
            self.raw.send(&frame(SETTINGS, 1, 0, b""));
        }
    }
}

fn start(target: &Target) -> Proxy {
    Proxy::start(&allow(&[("box:22", target.address())]))
}

/// Windows that shrink when others come left some without one for ever: h2 tells a window's owner of what it may send
/// again when that is half of it, and did not look again when SETTINGS took the half that was left.
#[test]
fn an_upload_goes_on_wherever_it_paused_when_others_came() {
    let target = Target::listen();
    let proxy = start(&target);
    for pause in (0..=1024).step_by(48) {
        let mut client = Uploader::connect(&proxy, Acknowledges::AtOnce);
        let mut first = client.open(1, &target);
        client.upload(1, 128 * 1024, &mut first);
        client.catch_up();
        client.upload(1, pause * 1024, &mut first);
        let others: Vec<Peer> = (3..40).step_by(2).map(|stream| client.open(stream, &target)).collect();
        client.catch_up();
        client.upload(1, 1024 * 1024, &mut first);
        drop(others);
    }
}

#[test]
fn a_client_that_acknowledges_settings_late_or_never_can_still_upload() {
    let target = Target::listen();
    let proxy = start(&target);
    for acknowledges in [
        Acknowledges::Never,
        Acknowledges::After(1),
        Acknowledges::After(65_535),
        Acknowledges::After(1024 * 1024),
    ] {
        let mut client = Uploader::connect(&proxy, acknowledges);
        let mut tunnels: Vec<_> = (1..10)
            .step_by(2)
            .map(|stream| (stream, client.open(stream, &target)))
            .collect();
        for _ in 0..4 {
            for (stream, target) in &mut tunnels {
                client.upload(*stream, 300_000, target);
            }
        }
        assert_eq!(client.unapplied.is_empty(), acknowledges != Acknowledges::Never);
    }
}

/// Of a stream and of a connection, by default (section 6.9.2).
const WINDOW: i64 = 65_535;
const MAX_FRAME: usize = 16 * 1024;
