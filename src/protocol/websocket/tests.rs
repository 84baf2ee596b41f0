use std::io;
use std::task::Poll;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use frames::frame;

mod frames;

/// Decodes in pieces of that length.
fn decode(codec: &mut Codec, bytes: &[u8], piece: usize) -> io::Result<Vec<u8>> {
    let mut payload = Vec::new();
    for bytes in bytes.chunks(piece) {
        let mut buffer = bytes.to_vec();
        let decoded = codec.decode(&mut buffer)?;
        payload.extend(&buffer[..decoded]);
    }
    Ok(payload)
}

/// All that it sends now.
fn sent(codec: &mut Codec) -> Vec<u8> {
    let mut all = Vec::new();
    let write = |pieces: &[io::IoSlice<'_>]| {
        let bytes: Vec<_> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        all.extend(&bytes);
        Poll::Ready(Ok(bytes.len()))
    };
    assert!(matches!(codec.sender.poll_flush(write), Poll::Ready(Ok(()))));
    all
}

#[test]
fn each_violation_ends_the_connection_with_its_status() {
    for (bytes, code) in [
        (vec![0x82, 0x01, b'x'], 1002),
        (frame(0xc2, b"x"), 1002),
        (frame(0xa2, b"x"), 1002),
        (frame(0x92, b"x"), 1002),
        (frame(0x83, b"x"), 1002),
        (frame(0x8b, b"x"), 1002),
        (frame(0x09, b"x"), 1002),
        (frame(0x89, &[0; 126]), 1002),
        (frame(0x88, b"x"), 1002),
        (frame(0x88, &1005_u16.to_be_bytes()), 1002),
        (frame(0x88, &999_u16.to_be_bytes()), 1002),
        (frame(0x88, &[3, 0xe8, 0xff]), 1007),
        (frame(0x80, b"x"), 1002),
        ([frame(0x02, b"x"), frame(0x82, b"y")].concat(), 1002),
        (vec![0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], 1002),
        (vec![0x82, 0xfe, 0, 125, 1, 2, 3, 4], 1002),
        (vec![0x89, 0xfe, 0, 0, 1, 2, 3, 4], 1002),
        (vec![0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4], 1002),
        (frame(0x81, b"text"), 1003),
        (frame(0x01, b"text"), 1003),
    ] {
        for piece in [1, bytes.len()] {
            let mut codec = Codec::new(Role::Server, Vec::new());
            decode(&mut codec, &bytes, piece).unwrap_err();
            codec.sender.close();
            let close = sent(&mut codec);
            assert_eq!(
                (close[0], &close[2..4]),
                (0x88, &u16::to_be_bytes(code)[..]),
                "{bytes:?}"
            );
        }
    }
    let mut client = Codec::new(Role::Client, Vec::new());
    assert!(
        client.decode(&mut frame(0x82, b"x")).is_err(),
        "a masked frame of a server"
    );
}

#[test]
fn pings_are_answered_in_order_between_fragments_and_of_very_many_the_last() {
    let mut codec = Codec::new(Role::Server, Vec::new());
    let bytes = [
        frame(0x02, b"a"),
        frame(0x89, b"one"),
        frame(0x89, b"two"),
        frame(0x8a, b"unasked"),
        frame(0x00, b""),
        frame(0x80, b"b"),
    ];
    assert_eq!(decode(&mut codec, &bytes.concat(), 1000).unwrap(), b"ab");
    assert_eq!(sent(&mut codec), b"\x8a\x03one\x8a\x03two");
    let many: Vec<u8> = (0..200).flat_map(|number| frame(0x89, &[number])).collect();
    assert_eq!(decode(&mut codec, &many, 5000).unwrap(), b"");
    let pongs: Vec<u8> = (0..15).chain([199]).flat_map(|number| [0x8a, 1, number]).collect();
    assert_eq!(sent(&mut codec), pongs);
    // Within a frame that has begun, the pong waits for its end.
    let mut room = 2 + 3;
    let mut wire = Vec::new();
    let mut write = |pieces: &[io::IoSlice<'_>]| {
        let bytes: Vec<_> = pieces
            .iter()
            .flat_map(|piece| piece.iter().copied())
            .take(room)
            .collect();
        room -= bytes.len();
        wire.extend(&bytes);
        if bytes.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(bytes.len()))
        }
    };
    assert!(matches!(
        codec.sender.poll_write(b"hello", &mut write),
        Poll::Ready(Ok(3))
    ));
    assert_eq!(decode(&mut codec, &frame(0x89, b"now"), 1000).unwrap(), b"");
    assert!(sent(&mut codec).is_empty());
    let mut rest = Vec::new();
    let write = |pieces: &[io::IoSlice<'_>]| {
        rest.extend(pieces.iter().flat_map(|piece| piece.iter().copied()));
        Poll::Ready(Ok(2))
    };
    assert!(matches!(codec.sender.poll_write(b"lo", write), Poll::Ready(Ok(2))));
    assert_eq!([wire, rest, sent(&mut codec)].concat(), b"\x82\x05hello\x8a\x03now");
    // A write that waits is not overtaken: over HTTP/2 it would lose its place.
    let mut codec = Codec::new(Role::Server, Vec::new());
    assert!(codec.sender.poll_write(b"x", |_| Poll::Pending).is_pending());
    assert!(sent(&mut codec).is_empty());
}

#[test]
fn pings_and_empty_frames_are_paid_for_by_time_and_by_frames_with_payload() {
    let (ping, empty) = (frame(0x89, b""), frame(0x82, b""));
    let closed = |frames: &[u8], age| {
        let mut codec = Codec::new(Role::Server, Vec::new());
        decode(&mut codec, frames, 64 << 10).unwrap();
        let is_ended = codec.check_budget(Duration::from_secs(age)).is_err();
        codec.sender.close();
        let close = sent(&mut codec)
            .windows(4)
            .any(|bytes| bytes[0] == 0x88 && bytes[2..] == 1008_u16.to_be_bytes());
        assert_eq!(is_ended, close);
        is_ended
    };
    for frame in [&ping, &empty, &frame(0x8a, b"?")] {
        assert!(!closed(&frame.repeat(1000), 0) && closed(&frame.repeat(1001), 0));
        assert!(!closed(&frame.repeat(1020), 1) && closed(&frame.repeat(1021), 1));
    }
    // The target has taken nothing for three days, and a ping has come each 25 s.
    let age = 3 * 24 * 3600;
    assert!(!closed(&ping.repeat(age / 25), age as u64));
    // Some clients end each message by an empty frame.
    let message = [frame(0x02, b"x"), frame(0x80, b"")].concat();
    assert!(!closed(&message.repeat(5000), 0));
    assert!(closed(&[message.repeat(5000), ping.repeat(1001)].concat(), 0));
}

#[test]
fn a_close_has_the_reason_as_far_as_it_fits_and_nothing_follows() {
    let mut codec = Codec::new(Role::Server, Vec::new());
    codec.sender.set_close_frame(CloseFrame::new(1008, &"ä".repeat(100)));
    decode(&mut codec, &frame(0x89, b"?"), 100).unwrap();
    codec.sender.close();
    let close = sent(&mut codec);
    let close = close.strip_prefix(b"\x8a\x01?").unwrap();
    assert_eq!((close.len(), &close[..4]), (2 + 2 + 122, &[0x88, 124, 3, 0xf0][..]));
    codec.sender.ping();
    assert!(sent(&mut codec).is_empty());
    let write = |_: &[io::IoSlice<'_>]| Poll::Ready(Ok(1));
    assert!(matches!(codec.sender.poll_write(b"x", write), Poll::Ready(Err(_))));
    // What follows the peer's is ignored, even a violation.
    let bytes = [frame(0x88, &1000_u16.to_be_bytes()), vec![0xff; 30]].concat();
    assert_eq!(decode(&mut codec, &bytes, 7).unwrap(), b"");
    assert!(codec.receiver.close_frame().is_some_and(CloseFrame::is_normal));
}

#[test]
fn bytes_that_came_with_the_handshake_are_first_however_little_is_read() {
    let mut codec = Codec::new(Role::Server, [frame(0x82, b"early"), frame(0x82, b"er")].concat());
    let (mut all, mut payload) = (Vec::new(), [0; 4]);
    while let Some(decoded) = codec.decode_unread(&mut payload) {
        all.extend(&payload[..decoded.unwrap()]);
    }
    assert_eq!((&*all, codec.has_unread()), (&b"earlyer"[..], false));
}

/// 16 MiB are declared, and none of them is kept.
#[test]
fn a_huge_frame_passes_while_it_arrives() {
    let mut codec = Codec::new(Role::Server, Vec::new());
    let mut huge = frame(0x82, &vec![7; 16 << 20]);
    let mut total = 0;
    for piece in huge.chunks_mut(64 << 10) {
        let decoded = codec.decode(piece).unwrap();
        assert!(piece[..decoded].iter().all(|byte| *byte == 7));
        total += decoded;
    }
    assert_eq!(total, 16 << 20);
}

proptest! {
    #[test]
    fn a_stream_is_the_same_at_the_other_end_however_it_is_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..70_000),
        write in 1_usize..70_000,
        room in 1_usize..3000,
        read in 1_usize..3000,
        is_client in any::<bool>(),
    ) {
        let (role, other) = if is_client { (Role::Client, Role::Server) } else { (Role::Server, Role::Client) };
        let (mut from, mut to) = (Codec::new(role, Vec::new()), Codec::new(other, Vec::new()));
        let mut wire = Vec::new();
        for mut bytes in bytes.chunks(write) {
            from.sender.ping();
            while !bytes.is_empty() {
                let write = |pieces: &[io::IoSlice<'_>]| {
                    let taken: Vec<_> = pieces.iter().flat_map(|piece| piece.iter().copied()).take(room).collect();
                    wire.extend(&taken);
                    Poll::Ready(Ok(taken.len()))
                };
                let Poll::Ready(Ok(taken)) = from.sender.poll_write(bytes, write) else { panic!("it has room") };
                bytes = &bytes[taken..];
            }
        }
        from.sender.close();
        wire.extend(sent(&mut from));
        prop_assert_eq!(decode(&mut to, &wire, read).unwrap(), bytes);
        prop_assert!(to.receiver.close_frame().is_some_and(CloseFrame::is_normal));
    }

    #[test]
    fn any_bytes_are_decoded_the_same_however_they_are_cut(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let decoded = |piece| {
            let mut codec = Codec::new(Role::Server, Vec::new());
            (decode(&mut codec, &bytes, piece).is_err(), codec.receiver.close_frame().cloned())
        };
        prop_assert_eq!(decoded(1), decoded(200));
    }
}
