//! Both sides over connections that are cut anywhere, against a reference: what was written is what is passed on.

use std::io::IoSlice;

use proptest::prelude::*;

use self::event::{Event, Role, event, role, windows};
use self::side::{Side, byte};
use super::*;

mod event;
mod side;

struct World {
    client: Side,
    anchor: Side,
    key: AgreementKey,
    registry: Registry<()>,
    secrets: client_handshake::ResumptionSecrets,
    connections: u64,
    now: Instant,
}

impl World {
    /// Creates a session that has just begun: both sides have a connection.
    fn new(windows: (u32, u32)) -> Self {
        let key = AgreementKey::generate().unwrap();
        let mut registry = Registry::new(1).unwrap();
        let secrets = handshake::begun(&key, &mut registry);
        let mut world = Self {
            client: Side::new(windows.0),
            anchor: Side::new(windows.1),
            key,
            registry,
            secrets,
            connections: 0,
            now: Instant::now(),
        };
        world.connect(usize::MAX);
        world
    }

    fn sides(&mut self, role: Role) -> (&mut Side, &mut Side) {
        match role {
            Role::Client => (&mut self.client, &mut self.anchor),
            Role::Anchor => (&mut self.anchor, &mut self.client),
        }
    }

    fn apply(&mut self, event: &Event) {
        let now = self.now;
        match *event {
            Event::Write(role, bytes) => {
                let (side, _) = self.sides(role);
                let free = side.session.free();
                // One more than is free: it is not taken.
                let bytes = bytes.min(free + 1);
                let offered: Vec<u8> = (side.written..).take(bytes).map(|at| byte(role, at)).collect();
                let taken = side.session.write(&offered);
                assert_eq!(taken, free.min(bytes));
                side.written += taken as u64;
            }
            Event::Fill(role, max) => {
                let (side, _) = self.sides(role);
                let free = side.session.free();
                let Some(spare) = side.session.spare(max) else { return };
                assert!(spare.len() <= max.min(free));
                let count = spare.len().div_ceil(2);
                spare.fill(0);
                for (at, memory) in (side.written..).zip(&mut spare[..count]) {
                    *memory = byte(role, at);
                }
                side.session.fill(count);
                assert_eq!(side.session.free(), free - count);
                side.written += count as u64;
            }
            Event::Finish(role) => {
                let (side, _) = self.sides(role);
                side.session.finish();
                side.finished = true;
            }
            Event::Pass(role, bytes) => self.pass(role, bytes),
            Event::Transmit(role, bytes) => self.transmit(role, bytes),
            Event::TransmitKept(role, bytes, max) => self.transmit_kept(role, bytes, max),
            Event::Deliver(role, bytes, at_once) => self.deliver(role, bytes, at_once),
            Event::Cut {
                tells_client,
                tells_anchor,
            } => {
                self.connections += 1;
                for (side, is_told) in [(&mut self.client, tells_client), (&mut self.anchor, tells_anchor)] {
                    side.inbound.clear();
                    side.connection = 0;
                    // Bytes that a side still writes, not knowing of the loss, are lost.
                    if is_told {
                        side.queue.clear();
                    }
                    if let Some(attachment) = side.attachment.take_if(|_| is_told) {
                        side.session.detach(attachment);
                    }
                }
            }
            Event::Resume(max) => self.connect(max),
            Event::Wait(milliseconds) => self.now += Duration::from_millis(milliseconds),
            Event::SetWindow(role, window) => {
                let (side, _) = self.sides(role);
                side.session.set_window(window, now);
                side.widest = side.widest.max(window as usize);
            }
        }
        self.check();
    }

    fn deliver(&mut self, role: Role, bytes: usize, mut at_once: usize) {
        let now = self.now;
        let (side, _) = self.sides(role);
        let Some(attachment) = side.attachment else { return };
        let bytes: Vec<u8> = side.inbound.drain(..bytes.min(side.inbound.len())).collect();
        let passed = &mut side.passed;
        let mut pass = |pieces: &[IoSlice<'_>]| {
            let before = *passed;
            for piece in pieces {
                let bytes = &piece[..piece.len().min(at_once)];
                for (offset, &found) in (*passed..).zip(bytes) {
                    assert_eq!(found, byte(role.other(), offset), "to {role:?} at {offset}");
                }
                at_once -= bytes.len();
                *passed += bytes.len() as u64;
            }
            usize::try_from(*passed - before).unwrap()
        };
        side.session.receive_and_pass((attachment, &bytes), now, &mut pass);
    }

    fn pass(&mut self, role: Role, mut max: usize) {
        let now = self.now;
        let from = role.other();
        let (side, other) = self.sides(role);
        while max > 0 && !side.session.readable().is_empty() {
            let bytes = side.session.readable();
            let bytes = &bytes[..bytes.len().min(max)];
            for (offset, &found) in (side.passed..).zip(bytes) {
                assert_eq!(found, byte(from, offset), "{from:?} at {offset}");
            }
            let count = bytes.len();
            side.session.consume(count, now);
            side.passed += count as u64;
            max -= count;
        }
        assert!(side.passed <= other.written);
        if side.session.is_at_fin() {
            assert!(
                other.finished && side.passed == other.written && !side.passed_fin,
                "an end too early"
            );
            side.session.consume_fin(now);
            side.passed_fin = true;
        }
    }

    fn transmit(&mut self, role: Role, max: usize) {
        // A frame that was begun comes first.
        self.transmit_kept(role, usize::MAX, 0);
        let now = self.now;
        let (side, other) = self.sides(role);
        let Some(attachment) = side.attachment else { return };
        let mut out = Vec::new();
        side.session.transmit(attachment, &mut out, max, now);
        assert!(out.len() <= max + 64, "control frames are few");
        // Bytes sent into a connection that the other side does not have are lost.
        if side.connection != 0 && side.connection == other.connection {
            other.inbound.extend_from_slice(&out);
        }
    }

    /// Writes so many bytes of the frames that were begun. When there are none any more, others are begun.
    fn transmit_kept(&mut self, role: Role, bytes: usize, max: usize) {
        let now = self.now;
        let (side, other) = self.sides(role);
        let Some(attachment) = side.attachment else { return };
        let session = &mut side.session;
        if side.queue.is_empty() && max > 0 {
            side.queue.clear();
            session.transmit(attachment, &mut side.queue, max, now);
        }
        let rest = side.queue.rest(|offset, count| session.kept(offset, count)).unwrap();
        let written = &rest[..bytes.min(rest.len())];
        if let Some(offset) = side.queue.advance(written.len()) {
            session.mark_sent(offset);
        }
        if side.connection != 0 && side.connection == other.connection {
            other.inbound.extend_from_slice(written);
        }
    }

    /// Opens a connection with the real handshake, which is cut after `max` bytes of both directions together. An anchor
    /// that does not know of a cut has an older connection displaced.
    fn connect(&mut self, mut max: usize) {
        if let Some(attachment) = self.client.attachment.take() {
            self.client.session.detach(attachment);
        }
        self.connections += 1;
        (self.client.connection, self.client.inbound) = (0, Vec::new());
        self.client.queue.clear();
        let mut handshake = ClientHandshake::resume(self.secrets.clone(), self.client.session.received()).unwrap();
        let mut welcome = AnchorHandshake::new(&self.key).unwrap();
        let mut down = Vec::new();
        for _ in 0..10 {
            down.extend(welcome.take_output());
            match handshake.receive(&cut(std::mem::take(&mut down), &mut max)).unwrap() {
                client_handshake::HandshakeStep::Attached(attached) => {
                    let side = &mut self.client;
                    let attachment = side.session.attach(attached.received, self.now);
                    side.session.receive(attachment, &attached.rest, self.now);
                    (side.attachment, side.connection) = (Some(attachment), self.connections);
                    return;
                }
                client_handshake::HandshakeStep::NeedMore => {}
                client_handshake::HandshakeStep::Plain(_) => panic!("no anchor"),
            }
            let up = cut(handshake.take_output(), &mut max);
            match welcome.receive(&up, &self.key).unwrap() {
                anchor_handshake::AnchorHandshakeStep::Resume(resume) => {
                    down.extend(welcome.take_output());
                    self.attach_anchor(&resume, &mut down);
                }
                anchor_handshake::AnchorHandshakeStep::NeedMore => {}
                anchor_handshake::AnchorHandshakeStep::Plain(_) | anchor_handshake::AnchorHandshakeStep::New(_) => {
                    panic!("no claim")
                }
            }
            if max == 0 {
                return;
            }
        }
        panic!("the handshake does not end");
    }

    fn attach_anchor(&mut self, resume: &anchor_handshake::ResumeRequest, down: &mut Vec<u8>) {
        let side = &mut self.anchor;
        let received = side.session.received();
        let attachment = side.session.attach(resume.claim.received, self.now);
        side.session.receive(attachment, &resume.rest, self.now);
        (side.attachment, side.connection) = (Some(attachment), self.connections);
        side.inbound.clear();
        side.queue.clear();
        let (keys, ()) = self.registry.prove(&resume.claim, &resume.proof).unwrap();
        let claim = ResumeClaim {
            received,
            ..resume.claim
        };
        anchor_handshake::attached(keys, &claim).encode(down);
    }

    fn check(&self) {
        for side in [&self.client, &self.anchor] {
            assert_eq!(side.session.violation(), None);
            // A quarter more while that comes which was asked for before the window became less.
            let max = 2 * (side.widest + side.widest / 4 + 1024);
            assert!(side.session.memory() <= max, "{} > {max}", side.session.memory());
        }
    }

    /// Lets everything move on a connection that holds, until it has come to `end`.
    fn settle(&mut self, end: impl Fn(&Self) -> bool) {
        self.apply(&Event::Resume(usize::MAX));
        for _ in 0..10_000 {
            if end(self) {
                return;
            }
            for role in [Role::Client, Role::Anchor] {
                self.apply(&Event::TransmitKept(role, usize::MAX, 100_000));
            }
            for role in [Role::Client, Role::Anchor] {
                self.apply(&Event::Deliver(role, usize::MAX, 7));
                self.apply(&Event::Pass(role, usize::MAX));
            }
            self.apply(&Event::Wait(100));
        }
        panic!("it does not come to an end");
    }
}

fn cut(mut bytes: Vec<u8>, max: &mut usize) -> Vec<u8> {
    bytes.truncate(*max);
    *max -= bytes.len();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_passed_on_once_and_in_order_whatever_happens(
        windows in windows(),
        events in proptest::collection::vec(event(), 0..200),
    ) {
        let mut world = World::new(windows);
        events.iter().for_each(|event| world.apply(event));
        world.apply(&Event::Finish(Role::Client));
        world.apply(&Event::Finish(Role::Anchor));
        world.settle(|world| world.client.session.is_complete());
        prop_assert_eq!(world.client.passed, world.anchor.written);
        prop_assert_eq!(world.anchor.passed, world.client.written);
        prop_assert!(world.client.passed_fin && world.anchor.passed_fin);
        world.client.session.end(EndReason::Completed);
        world.apply(&Event::Cut { tells_client: true, tells_anchor: false });
        world.settle(|world| world.client.session.is_over() && world.anchor.session.is_over());
        prop_assert!(world.anchor.session.is_complete());
        prop_assert_eq!(world.anchor.session.ended(), Some(EndReason::Completed));
        prop_assert!(world.anchor.session.memory() + world.client.session.memory() <= 2 * 1024);
    }

    #[test]
    fn bulk_does_not_wait_for_a_clock(
        windows in windows(),
        by in role(),
        changes in proptest::collection::vec(proptest::option::of(4096..80_000_u32), 1..20),
    ) {
        let mut world = World::new(windows);
        let other = by.other();
        for change in changes {
            let before = world.sides(other).0.passed;
            // One that becomes less may be less than what is under way.
            world.apply(&Event::Write(by, usize::MAX));
            if let Some(window) = change {
                world.apply(&Event::SetWindow(by, window));
            }
            world.apply(&Event::TransmitKept(by, usize::MAX, 100_000));
            world.apply(&Event::Deliver(other, usize::MAX, 10_000));
            world.apply(&Event::Pass(other, usize::MAX));
            world.apply(&Event::TransmitKept(other, usize::MAX, 100_000));
            world.apply(&Event::Deliver(by, usize::MAX, 0));
            prop_assert!(world.sides(other).0.passed > before, "the sender waits");
        }
    }

    #[test]
    fn a_reset_comes_behind_all_that_was_written_before_it_and_is_never_an_end_of_stream(
        windows in windows(),
        by in role(),
        before in proptest::collection::vec(event(), 0..100),
        behind in proptest::collection::vec(event(), 0..100),
    ) {
        let mut world = World::new(windows);
        let is_fin_of = |event: &Event| matches!(event, Event::Finish(role) if *role == by);
        before.iter().filter(|event| !is_fin_of(event)).for_each(|event| world.apply(event));
        world.sides(by).0.session.end(EndReason::Reset);
        behind.iter().for_each(|event| world.apply(event));
        world.settle(|world| world.client.session.is_over() && world.anchor.session.is_over());
        let (side, other) = world.sides(by);
        prop_assert_eq!(other.session.ended(), Some(EndReason::Reset));
        prop_assert_eq!(other.passed, side.written);
        prop_assert!(!other.passed_fin && !other.session.is_complete());
    }
}
