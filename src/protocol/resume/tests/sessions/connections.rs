//! The connection that carries a session: displacement, leaving, and the watch on the path.

use super::*;

#[test]
fn a_newer_connection_displaces_the_older_one() {
    let mut side = Side::new();
    let older = side.attachment;
    side.sends();
    side.receive_data(0, b"one");
    side.attach(0).unwrap();
    let mut late = Vec::new();
    encode_data(&mut late, 3, (b"late", b""));
    side.session.receive(older, &late, side.now);
    assert_eq!(
        (side.session.received(), side.session.readable()),
        (3, b"one".as_slice())
    );
    assert_eq!(side.session.link_state(older, side.now), AttachmentState::Detached);
    side.session.detach(older);
    assert_eq!(side.link_state(), AttachmentState::Alive);
    let mut out = Vec::new();
    side.session.transmit(older, &mut out, 1000, side.now);
    assert!(out.is_empty());
    side.receive_data(3, b"two");
    assert_eq!(side.session.received(), 6);
}

#[test]
fn a_side_that_goes_is_believed() {
    let mut side = Side::new();
    assert_eq!(side.link_state(), AttachmentState::Alive);
    side.receive(&[Frame::Going(DetachReason::Displaced)]);
    assert_eq!(side.link_state(), AttachmentState::Going(DetachReason::Displaced));
}

#[test]
fn a_ping_is_answered_and_a_thousand_with_one_pong() {
    let mut side = Side::new();
    side.sends();
    let pings: Vec<_> = (0..1000).map(Frame::Ping).collect();
    side.receive(&pings);
    assert_eq!(side.sends(), ["Pong(999)"]);
    assert!(side.sends().is_empty());
}

#[test]
fn a_path_that_does_not_answer_is_dead_and_one_that_is_quiet_is_asked() {
    let mut side = Side::new();
    side.sends();
    side.later(9_999);
    assert!(side.sends().is_empty());
    assert_eq!(side.session.deadline(), Some(side.now + Duration::from_millis(1)));
    side.later(1);
    assert_eq!(side.sends(), ["Ping(1)"]);
    side.later(3_999);
    assert_eq!((side.link_state(), side.sends().len()), (AttachmentState::Alive, 0));
    side.later(1);
    assert_eq!(side.link_state(), AttachmentState::Dead);
    side.receive(&[Frame::Pong(1)]);
    assert_eq!(side.link_state(), AttachmentState::Alive);
    // The answer to another question is a sign of life, and no answer.
    side.later(10_000);
    assert_eq!(side.sends(), ["Ping(2)"]);
    side.receive(&[Frame::Pong(1)]);
    side.later(4_000);
    assert_eq!(side.link_state(), AttachmentState::Dead);
}

#[test]
fn unacknowledged_bytes_are_a_question_too() {
    let mut side = Side::new();
    side.sends();
    side.later(1000);
    side.session.write(b"key");
    assert_eq!(side.sends(), ["Data(0+3)"]);
    side.later(2000);
    assert_eq!(side.sends(), ["Ping(1)"]);
    side.later(1999);
    assert_eq!(side.link_state(), AttachmentState::Alive);
    side.later(1);
    assert_eq!(side.link_state(), AttachmentState::Dead);
}

/// As with Ctrl-S in a terminal: the bytes stay unacknowledged for minutes, and the path is well.
#[test]
fn a_stalled_program_on_the_other_side_is_not_a_dead_path() {
    let mut side = Side::new();
    side.session.write(b"output");
    side.sends();
    for number in 1..100 {
        side.later(2000);
        assert_eq!(side.sends(), [format!("Ping({number})")]);
        side.later(100);
        side.receive(&[Frame::Pong(number)]);
        assert_eq!(side.link_state(), AttachmentState::Alive);
    }
}

#[test]
fn a_session_whose_anchor_never_answered_begins_anew() {
    let mut side = Side::new();
    side.session.write(b"SSH-2.0-x\r\n");
    assert_eq!(side.sends(), [FIRST_ACK, "Data(0+11)"]);
    side.session.restart().unwrap();
    assert_eq!(side.link_state(), AttachmentState::Detached);
    side.attach(0).unwrap();
    assert_eq!(side.sends(), [FIRST_ACK, "Data(0+11)"]);
    assert!(!side.session.is_confirmed());
    side.receive(&[Frame::Ack { offset: 1, window: 0 }]);
    assert!(side.session.is_confirmed());
    assert_eq!(side.session.restart(), Err(ProtocolError::Claim));
    let mut side = Side::new();
    side.receive_data(0, b"a");
    assert_eq!(side.session.restart(), Err(ProtocolError::Claim));
}
