//! One session at single events: windows, acknowledgements, ends, displacement, and the watch on the path.

use super::*;
use crate::protocol::resume::frame::ProtocolError;
use crate::protocol::resume::session::AttachmentId;

mod connections;

/// A session on a connection, at a time that the test moves.
struct Side {
    session: Session,
    attachment: AttachmentId,
    now: Instant,
}

impl Side {
    fn new() -> Self {
        let now = Instant::now();
        let mut session = Session::new(Options {
            window: WINDOW,
            ..Options::default()
        });
        let attachment = session.attach(0, now);
        Self {
            session,
            attachment,
            now,
        }
    }

    fn later(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    fn receive(&mut self, frames: &[Frame]) {
        self.session.receive(self.attachment, &encoded(frames), self.now);
    }

    fn receive_data(&mut self, offset: u64, bytes: &[u8]) {
        let mut frame = Vec::new();
        encode_data(&mut frame, offset, (bytes, b""));
        self.session.receive(self.attachment, &frame, self.now);
    }

    fn pass(&mut self, bytes: usize) {
        self.session.consume(bytes, self.now);
    }

    /// Returns the frames that it sends now.
    fn sends(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        self.session.transmit(self.attachment, &mut out, 1_000_000, self.now);
        frames(&out)
    }

    fn attach(&mut self, received: u64) -> Result<(), ProtocolError> {
        self.attachment = self.session.attach(received, self.now);
        self.session.violation().map_or(Ok(()), Err)
    }

    fn link_state(&self) -> AttachmentState {
        self.session.link_state(self.attachment, self.now)
    }
}

const WINDOW: u32 = 32 * 1024;
const FIRST_ACK: &str = "Ack { offset: 0, window: 32768 }";
const KEEPS: &str = "Keeps { window: 32768 }";

#[test]
fn a_connection_begins_with_the_window() {
    let mut side = Side::new();
    assert_eq!(side.sends(), [FIRST_ACK]);
    assert!(side.sends().is_empty());
    side.attach(0).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK]);
}

#[test]
fn no_more_is_sent_than_was_asked_for_and_no_more_is_kept_than_the_window() {
    let mut side = Side::new();
    assert_eq!(side.session.write(&[1; 100_000]), 32_768);
    assert_eq!((side.session.free(), side.session.write(b"x")), (0, 0));
    assert_eq!(side.sends(), [FIRST_ACK, "Data(0+16384)", KEEPS]);
    side.receive(&[Frame::Ack {
        offset: 10,
        window: 20_000,
    }]);
    assert_eq!(side.session.free(), 10);
    assert_eq!(side.sends(), ["Data(16384+3626)"]);
    // A window is not taken back.
    side.receive(&[Frame::Ack { offset: 20, window: 0 }]);
    assert!(side.sends().is_empty());
    side.receive(&[Frame::Ack {
        offset: 20,
        window: u32::MAX,
    }]);
    assert_eq!(side.sends(), ["Data(20010+12758)"]);
    assert!(side.session.memory() <= 32_768);
    side.receive(&[Frame::Ack {
        offset: 32_768,
        window: 0,
    }]);
    assert_eq!((side.session.memory(), side.session.violation()), (0, None));
}

#[test]
fn what_was_not_acknowledged_is_sent_again_and_nothing_else() {
    let mut side = Side::new();
    side.session.write(&[1; 3000]);
    side.sends();
    side.receive(&[Frame::Ack {
        offset: 1000,
        window: 9000,
    }]);
    side.session.detach(side.attachment);
    side.session.write(&[1; 500]);
    assert!(side.sends().is_empty());
    side.attach(1200).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK, "Data(1200+2300)"]);
}

#[test]
fn a_claim_of_bytes_that_are_not_kept_or_were_not_sent_loses_the_session_loudly() {
    for received in [999, 3001, u64::MAX] {
        let mut side = Side::new();
        side.session.write(&[1; 3000]);
        side.sends();
        side.receive(&[Frame::Ack {
            offset: 1000,
            window: 9000,
        }]);
        side.session.write(&[1; 500]);
        assert_eq!(side.attach(received), Err(ProtocolError::Claim));
        side.attachment = side.session.attachment().unwrap();
        assert_eq!(side.sends(), ["End(OutOfSync)"]);
        assert!(side.session.is_over() && side.sends().is_empty());
        assert_eq!(side.session.violation(), Some(ProtocolError::Claim));
    }
}

#[test]
fn an_acknowledgement_is_of_what_was_passed_on_and_waits_a_little() {
    let mut side = Side::new();
    side.sends();
    side.receive_data(0, &[7; 12_000]);
    side.later(1000);
    assert!(side.sends().is_empty());
    side.pass(100);
    assert!(side.sends().is_empty());
    side.later(99);
    assert!(side.sends().is_empty());
    assert_eq!(side.session.deadline(), Some(side.now + Duration::from_millis(1)));
    side.later(1);
    assert_eq!(side.sends(), ["Ack { offset: 100, window: 32768 }"]);
    // With bytes that go the same way at once, and at a quarter of the window.
    side.pass(100);
    side.session.write(b"key");
    assert_eq!(side.sends(), ["Ack { offset: 200, window: 32768 }", "Data(0+3)"]);
    side.pass(8192);
    assert_eq!(side.sends(), ["Ack { offset: 8392, window: 32768 }"]);
}

#[test]
fn a_sender_that_keeps_less_than_a_quarter_of_the_window_waits_no_longer_than_10_ms() {
    let mut side = Side::new();
    side.sends();
    side.receive_data(0, &[7; 12_000]);
    side.pass(4096);
    side.later(9);
    assert!(side.sends().is_empty());
    side.later(1);
    assert_eq!(side.sends(), ["Ack { offset: 4096, window: 32768 }"]);
    // Less of it waits as before.
    side.pass(4095);
    side.later(10);
    assert!(side.sends().is_empty());
}

#[test]
fn a_sender_that_says_what_it_keeps_has_an_acknowledgement_behind_half_of_that() {
    let mut side = Side::new();
    side.sends();
    side.receive(&[Frame::Keeps { window: 8192 }]);
    side.receive_data(0, &[7; 16_000]);
    side.pass(4095);
    assert!(side.sends().is_empty());
    side.pass(1);
    assert_eq!(side.sends(), ["Ack { offset: 4096, window: 32768 }"]);
    // Half of that within 2 ms.
    side.pass(2048);
    side.later(1);
    assert!(side.sends().is_empty());
    side.later(1);
    assert_eq!(side.sends(), ["Ack { offset: 6144, window: 32768 }"]);
    // It keeps less from now on than what was passed on since.
    side.pass(2047);
    assert!(side.sends().is_empty());
    side.receive(&[Frame::Keeps { window: 0 }]);
    assert!(side.sends().is_empty());
    side.pass(1);
    assert_eq!(side.sends(), ["Ack { offset: 8192, window: 32768 }"]);
    // More than is asked for here does not count.
    side.receive(&[Frame::Keeps { window: u32::MAX }]);
    side.receive_data(16_000, &[7; 20_000]);
    side.pass(7808);
    side.pass(8575);
    assert!(side.sends().is_empty());
    side.pass(1);
    assert_eq!(side.sends(), ["Ack { offset: 24576, window: 32768 }"]);
    // The next connection may be to one that does not say it.
    side.attach(0).unwrap();
    side.sends();
    side.pass(8192);
    assert_eq!(side.sends(), ["Ack { offset: 32768, window: 32768 }"]);
}

#[test]
fn what_is_kept_is_said_once_a_connection_while_much_is_unacknowledged_and_when_it_changes() {
    let mut side = Side::new();
    side.sends();
    side.session.write(&[1; 4095]);
    assert_eq!(side.sends(), ["Data(0+4095)"]);
    side.session.write(b"x");
    assert_eq!(side.sends(), ["Data(4095+1)", KEEPS]);
    side.session.write(b"x");
    assert_eq!(side.sends(), ["Data(4096+1)"]);
    side.session.set_window(8192, side.now);
    assert_eq!(side.sends(), ["Keeps { window: 8192 }"]);
    side.attach(0).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK, "Data(0+4097)", "Keeps { window: 8192 }"]);
    side.session.abort(EndReason::ProgramExited);
    assert_eq!(side.sends(), ["End(ProgramExited)"]);
}

#[test]
fn an_end_of_stream_takes_an_offset_and_leaves_the_other_direction_open() {
    let mut side = Side::new();
    side.session.write(b"abc");
    side.session.finish();
    assert_eq!(side.session.free(), 0);
    assert_eq!(side.sends(), [FIRST_ACK, "Data(0+3)", "Fin { offset: 3 }"]);
    side.receive(&[Frame::Ack { offset: 3, window: 9 }]);
    side.attach(3).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK, "Fin { offset: 3 }"]);
    side.receive(&[Frame::Ack { offset: 4, window: 9 }]);
    side.attach(4).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK]);

    side.receive_data(0, b"xy");
    side.receive(&[Frame::Fin { offset: 2 }]);
    assert!(!side.session.is_at_fin());
    side.pass(2);
    assert!(side.session.is_at_fin() && !side.session.is_complete());
    side.session.consume_fin(side.now);
    assert!(!side.session.is_at_fin() && side.session.is_complete());
    assert_eq!(side.sends(), ["Ack { offset: 3, window: 32768 }"]);
    assert_eq!(side.session.received(), 3);
}

#[test]
fn an_end_comes_behind_what_was_written_before_and_is_answered() {
    let mut side = Side::new();
    side.session.write(&[1; 20_000]);
    side.session.end(EndReason::Reset);
    assert_eq!((side.session.free(), side.session.write(b"x")), (0, 0));
    assert_eq!(side.sends(), [FIRST_ACK, "Data(0+16384)", KEEPS]);
    side.receive(&[Frame::Ack {
        offset: 0,
        window: 20_000,
    }]);
    assert_eq!(side.sends(), ["Data(16384+3616)", "End(Reset)"]);
    // Both were lost.
    side.attach(16_384).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK, "Data(16384+3616)", KEEPS, "End(Reset)"]);
    assert!(!side.session.is_over());
    side.receive(&[Frame::End(EndReason::Reset)]);
    assert!(side.session.is_over() && side.sends().is_empty());

    let mut other = Side::new();
    other.session.write(b"unsent");
    other.receive_data(0, b"tail");
    other.receive(&[Frame::End(EndReason::Reset)]);
    assert_eq!(other.session.ended(), Some(EndReason::Reset));
    assert_eq!(
        (other.sends(), other.session.readable()),
        (vec!["End(Reset)".to_owned()], b"tail".as_slice())
    );
    assert!(other.session.is_over());
    other.pass(4);
    assert_eq!(other.session.free(), 0);
    assert!(other.session.memory() <= 1024);
}

#[test]
fn an_abort_drops_what_was_written() {
    let mut side = Side::new();
    side.session.write(&[1; 20_000]);
    side.receive_data(0, b"unread");
    side.session.abort(EndReason::Stopping);
    assert_eq!(side.sends(), ["End(Stopping)"]);
    assert_eq!((side.session.memory(), side.session.readable()), (0, b"".as_slice()));
    // Bytes that are under way in the meantime are not an error.
    side.receive_data(6, b"more");
    side.receive(&[Frame::Ack { offset: 0, window: 9 }, Frame::End(EndReason::Stopping)]);
    assert_eq!((side.session.violation(), side.session.is_over()), (None, true));
}

#[test]
fn done_is_believed_only_when_it_is_true() {
    let complete = |side: &mut Side| {
        side.session.finish();
        side.sends();
        side.receive_data(0, b"a");
        side.receive(&[Frame::Fin { offset: 1 }]);
        side.pass(1);
        side.session.consume_fin(side.now);
        side.receive(&[Frame::Ack { offset: 1, window: 9 }]);
        assert!(side.session.is_complete());
    };
    let mut side = Side::new();
    complete(&mut side);
    side.receive(&[Frame::End(EndReason::Completed)]);
    assert_eq!(
        (side.session.ended(), side.session.violation()),
        (Some(EndReason::Completed), None)
    );
    assert!(side.session.is_complete());

    type Prepare = fn(&mut Side);
    let prepare: [Prepare; 4] = [
        |_| {},
        |side| side.receive_data(0, b"a"),
        |side| {
            side.receive(&[Frame::Fin { offset: 0 }]);
            side.session.consume_fin(side.now);
        },
        |side| {
            side.receive(&[Frame::Fin { offset: 0 }]);
            side.session.consume_fin(side.now);
            side.session.write(b"not acknowledged");
            side.session.finish();
            side.sends();
        },
    ];
    for prepare in prepare {
        let mut side = Side::new();
        prepare(&mut side);
        side.receive(&[Frame::End(EndReason::Completed)]);
        assert_eq!(
            (side.session.ended(), side.session.violation()),
            (None, Some(ProtocolError::NotDone))
        );
        assert_eq!(side.sends(), ["End(Malformed)"]);
        assert!(side.session.is_over());
    }
}

#[test]
fn windows_follow_the_memory() {
    let mut side = Side::new();
    side.sends();
    side.session.set_window(8 * 1024, side.now);
    assert_eq!(side.session.free(), 8 * 1024);
    // Bytes that were asked for before may still arrive.
    side.receive_data(0, &[1; 32_768]);
    assert_eq!(side.session.violation(), None);
    side.pass(32_768);
    assert_eq!(side.sends(), ["Ack { offset: 32768, window: 8192 }"]);
    side.session.set_window(64 * 1024, side.now);
    assert_eq!(side.sends(), ["Ack { offset: 32768, window: 65536 }"]);
    side.session.set_window(u32::MAX, side.now);
    assert_eq!(side.sends(), [format!("Ack {{ offset: 32768, window: {MAX_WINDOW} }}")]);
    side.session.set_window(0, side.now);
    assert_eq!(side.session.free(), 4096);
}
