//! A peer that has proved its session and then sends what it likes.

use proptest::prelude::*;

use super::*;
use crate::protocol::resume::frame::ProtocolError;

fn side() -> (Session, session::AttachmentId, Instant) {
    let now = Instant::now();
    let mut session = Session::new(Options {
        window: 32 * 1024,
        ..Options::default()
    });
    let attachment = session.attach(0, now);
    session.write(&[1; 30_000]);
    session.transmit(attachment, &mut Vec::new(), 100_000, now);
    (session, attachment, now)
}

#[test]
fn each_lie_ends_the_session_with_a_reason() {
    let data = |offset: u64, length: usize| {
        let mut bytes = Vec::new();
        encode_data(&mut bytes, offset, (&vec![0; length], b""));
        bytes
    };
    let fin = |offset| encoded(&[Frame::Fin { offset }]);
    let ack = |offset| encoded(&[Frame::Ack { offset, window: 1 }]);
    let cases = [
        (data(1, 5), ProtocolError::Offset),
        (data(u64::MAX - 5, 5), ProtocolError::Offset),
        ([data(0, 5), data(0, 5)].concat(), ProtocolError::Offset),
        ([data(0, 5), data(4, 5)].concat(), ProtocolError::Offset),
        (data(0, 32_769), ProtocolError::Window),
        ([data(0, 20_000), data(20_000, 20_000)].concat(), ProtocolError::Window),
        (fin(1), ProtocolError::Offset),
        ([fin(0), fin(0)].concat(), ProtocolError::Offset),
        ([fin(0), fin(1)].concat(), ProtocolError::Offset),
        ([fin(0), data(1, 5)].concat(), ProtocolError::Offset),
        (ack(16_385), ProtocolError::Acknowledgement),
        (ack(u64::MAX), ProtocolError::Acknowledgement),
        ([ack(10), ack(9)].concat(), ProtocolError::Acknowledgement),
        (vec![3, 0xff, 0xff, 0xff], ProtocolError::Length),
        (vec![200, 0, 4, 1], ProtocolError::Length),
        (
            encoded(&[Frame::Proof {
                received: 0,
                mac: Mac([0; 32]),
            }]),
            ProtocolError::Order,
        ),
        (encoded(&[Frame::End(EndReason::Completed)]), ProtocolError::NotDone),
    ];
    for (bytes, violation) in cases {
        let (mut session, attachment, now) = side();
        session.receive(attachment, &bytes, now);
        assert_eq!(session.violation(), Some(violation));
        let mut out = Vec::new();
        session.transmit(attachment, &mut out, 1000, now);
        assert_eq!(frames(&out), ["End(Malformed)"]);
        session.receive(attachment, &encoded(&[Frame::Ping(1)]), now);
        let length = out.len();
        session.transmit(attachment, &mut out, 1000, now);
        assert_eq!((out.len(), session.is_over(), session.memory()), (length, true, 0));
    }
}

#[test]
fn frames_that_only_cost_work_end_the_session() {
    let ack = encoded(&[Frame::Ack { offset: 0, window: 1 }]);
    for frame in [
        encoded(&[Frame::Ping(1)]),
        encoded(&[Frame::Pong(1)]),
        ack,
        vec![77, 0, 0, 0],
    ] {
        let (mut session, attachment, mut now) = side();
        // Bytes that are sent earn the credit for their acknowledgements.
        let ended = (1..100).find(|_| {
            session.receive(attachment, &frame.repeat(100), now);
            now += Duration::from_millis(5);
            session.violation().is_some()
        });
        assert_eq!(
            (ended, session.violation()),
            (Some(21), Some(ProtocolError::Flood)),
            "{frame:?}"
        );
    }
}

#[test]
fn an_acknowledgement_for_each_keystroke_floods_nobody() {
    let (mut session, attachment, now) = side();
    let mut acknowledged = 0;
    for _ in 0..100_000 {
        session.write(&[7; 36]);
        session.transmit(attachment, &mut Vec::new(), 100_000, now);
        acknowledged += 36;
        let ack = Frame::Ack {
            offset: acknowledged,
            window: 30_000,
        };
        session.receive(attachment, &encoded(&[ack]), now);
        assert_eq!(session.violation(), None);
    }
}

#[test]
fn what_a_later_version_adds_is_skipped() {
    let (mut session, attachment, now) = side();
    let mut bytes = vec![77, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0];
    bytes.extend(encoded(&[Frame::Going(DetachReason::Other(9))]));
    session.receive(attachment, &bytes, now);
    assert_eq!(session.violation(), None);
    assert_eq!(
        session.link_state(attachment, now),
        AttachmentState::Going(DetachReason::Other(9))
    );
    let (mut session, attachment, now) = side();
    session.receive(attachment, &encoded(&[Frame::End(EndReason::Unknown(99))]), now);
    assert_eq!(session.ended(), Some(EndReason::Unknown(99)));
}

/// Frames as a liar would choose them: near what is right.
fn lie() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..4_u64, 16_000..17_000_u64, Just(u64::MAX), any::<u64>()];
    let kinds = (0..13_u8, offset, 0..3000_usize, any::<u32>());
    kinds.prop_map(|(kind, offset, length, window)| match kind {
        0..=3 => {
            let mut bytes = Vec::new();
            encode_data(&mut bytes, offset, (&vec![0; length.max(1)], b""));
            bytes
        }
        4 => encoded(&[Frame::Fin { offset }]),
        5..=6 => encoded(&[Frame::Ack { offset, window }]),
        7 => encoded(&[Frame::Ping(offset)]),
        8 => encoded(&[Frame::Pong(offset)]),
        9 => encoded(&[Frame::Going(DetachReason::Other(0))]),
        10 => encoded(&[Frame::End(EndReason::Reset)]),
        11 => encoded(&[Frame::Keeps { window }]),
        _ => vec![kind; length % 40],
    })
}

proptest! {
    #[test]
    fn no_frames_panic_or_take_more_memory_than_the_windows(
        lies in proptest::collection::vec(lie(), 0..60),
        reattached in 0..60_usize,
        received in 0..20_000_u64,
    ) {
        let (mut session, mut attachment, mut now) = side();
        let mut said = 0;
        for (index, lie) in lies.iter().enumerate() {
            if index == reattached {
                attachment = session.attach(received, now);
            }
            session.receive(attachment, lie, now);
            session.consume(index * 7, now);
            session.consume_fin(now);
            now += Duration::from_millis(40);
            let mut out = Vec::new();
            session.transmit(attachment, &mut out, 70_000, now);
            prop_assert!(out.len() <= 70_100);
            if session.violation().is_some() {
                said += out.len();
                prop_assert!(said <= 200, "it goes on after a fault");
            }
            prop_assert!(session.memory() <= 2 * 33 * 1024, "{}", session.memory());
        }
    }
}
