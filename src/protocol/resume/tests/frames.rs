//! The codec.

use proptest::prelude::*;

use super::*;
use crate::protocol::resume::frame::{MAX_DATA, MAX_UNKNOWN, ProtocolError};
use crate::protocol::resume::keys::SessionId;

fn frame() -> impl Strategy<Value = Frame> {
    let mac = any::<[u8; 32]>().prop_map(Mac);
    prop_oneof![
        (any::<u64>(), mac.clone()).prop_map(|(received, mac)| Frame::Proof { received, mac }),
        (any::<[u8; 16]>(), any::<u64>(), mac).prop_map(|(id, received, mac)| Frame::Attached {
            id: SessionId(id),
            received,
            mac,
        }),
        any::<u64>().prop_map(|offset| Frame::Fin { offset }),
        (any::<u64>(), any::<u32>()).prop_map(|(offset, window)| Frame::Ack { offset, window }),
        any::<u64>().prop_map(Frame::Ping),
        any::<u64>().prop_map(Frame::Pong),
        any::<u8>().prop_map(|code| Frame::Going(DetachReason::from(code))),
        any::<u8>().prop_map(|code| Frame::End(EndReason::from(code))),
        any::<u32>().prop_map(|window| Frame::Keeps { window }),
    ]
}

#[derive(Clone, Debug)]
enum Sent {
    Frame(Frame),
    Data(u64, Vec<u8>),
    Unknown(u8, Vec<u8>),
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        frame().prop_map(Sent::Frame),
        (0..u64::MAX / 2, proptest::collection::vec(any::<u8>(), 1..300)).prop_map(|(at, bytes)| Sent::Data(at, bytes)),
        (11..=255_u8, proptest::collection::vec(any::<u8>(), 0..MAX_UNKNOWN))
            .prop_map(|(kind, bytes)| Sent::Unknown(kind, bytes)),
    ]
}

fn raw(kind: u8, length: usize) -> Vec<u8> {
    let mut bytes = u32::try_from(length).unwrap().to_be_bytes().to_vec();
    bytes[0] = kind;
    bytes
}

proptest! {
    #[test]
    fn frames_are_found_as_they_were_sent_in_whatever_pieces(
        all in proptest::collection::vec(sent(), 0..20),
        cuts in proptest::collection::vec(1..200_usize, 1..50),
    ) {
        let mut bytes = Vec::new();
        for one in &all {
            match one {
                Sent::Frame(frame) => frame.encode(&mut bytes),
                Sent::Data(at, data) => {
                    let (left, right) = data.split_at(data.len() / 3);
                    encode_data(&mut bytes, *at, (left, right));
                }
                Sent::Unknown(kind, payload) => {
                    bytes.extend(raw(*kind, payload.len()));
                    bytes.extend(payload);
                }
            }
        }
        let mut decoder = Decoder::default();
        let mut found: Vec<Sent> = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            let (mut piece, behind) = rest.split_at((*cut).min(rest.len()));
            while let Some(piece) = decoder.next(&mut piece).unwrap() {
                match (piece, found.last_mut()) {
                    (Piece::Data { offset, bytes }, Some(Sent::Data(at, data))) if *at + data.len() as u64 == offset => {
                        data.extend(bytes);
                    }
                    (Piece::Data { offset, bytes }, _) => found.push(Sent::Data(offset, bytes.to_vec())),
                    (Piece::Frame(frame), _) => found.push(Sent::Frame(frame)),
                }
            }
            prop_assert!(piece.is_empty());
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(is_between_frames(&mut decoder));
        let expected: Vec<_> = all.iter().filter(|one| !matches!(one, Sent::Unknown(..))).collect();
        prop_assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn no_bytes_panic_and_what_is_held_is_bounded(bytes in proptest::collection::vec(0..12_u8, 0..2000)) {
        let mut decoder = Decoder::default();
        let mut rest = bytes.as_slice();
        while let Ok(Some(_)) = decoder.next(&mut rest) {}
    }
}

#[test]
fn a_length_that_a_type_cannot_have_is_a_violation_at_once() {
    let lengths = [(1, 40), (2, 56), (4, 8), (5, 12), (6, 8), (7, 8), (8, 1), (9, 1)];
    for (kind, length) in lengths {
        for wrong in [0, length - 1, length + 1, 57, 0xff_ffff] {
            if wrong == length {
                continue;
            }
            let mut bytes = raw(kind, wrong);
            bytes.extend([0; 80]);
            let found = Decoder::default().next(&mut bytes.as_slice());
            assert_eq!(found, Err(ProtocolError::Length), "{kind}, {wrong}");
        }
        let mut bytes = raw(kind, length);
        bytes.extend(vec![0; length]);
        assert!(
            matches!(Decoder::default().next(&mut bytes.as_slice()), Ok(Some(_))),
            "{kind}"
        );
    }
    for (kind, length) in [
        (3, 0),
        (3, 8),
        (3, 9 + MAX_DATA),
        (0, MAX_UNKNOWN + 1),
        (200, 0xff_ffff),
    ] {
        let bytes = raw(kind, length);
        let found = Decoder::default().next(&mut bytes.as_slice());
        assert_eq!(found, Err(ProtocolError::Length), "{kind}, {length}");
    }
    for (kind, length) in [(3, 9), (3, 8 + MAX_DATA), (0, MAX_UNKNOWN), (200, 0)] {
        let bytes = raw(kind, length);
        assert_eq!(
            Decoder::default().next(&mut bytes.as_slice()),
            Ok(None),
            "{kind}, {length}"
        );
    }
}

#[test]
fn bytes_beyond_the_last_offset_are_a_violation() {
    let mut bytes = Vec::new();
    encode_data(&mut bytes, u64::MAX - 1, (b"ab", b""));
    assert_eq!(
        Decoder::default().next(&mut bytes.as_slice()),
        Err(ProtocolError::Offset)
    );
}

#[test]
fn a_frame_is_in_the_document_as_it_is_sent() {
    let frame = Frame::Ack {
        offset: 5,
        window: 65_536,
    };
    assert_eq!(encoded(&[frame]), [5, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 0, 0]);
    assert_eq!(encoded(&[Frame::End(EndReason::Version)]), [9, 0, 0, 1, 11]);
    assert_eq!(encoded(&[Frame::Going(DetachReason::Displaced)]), [8, 0, 0, 1, 1]);
    assert_eq!(encoded(&[Frame::Keeps { window: 65_536 }]), [10, 0, 0, 4, 0, 1, 0, 0]);
    for code in 0..=255 {
        assert_eq!(encoded(&[Frame::End(EndReason::from(code))])[4], code);
        assert_eq!(encoded(&[Frame::Going(DetachReason::from(code))])[4], code);
    }
}
