//! The bytes of a connection after the handshake of `resume`.

use std::time::Instant;

use switchboard::protocol::resume::frame::{Decoder, Piece, encode_data};
use switchboard::protocol::resume::session::Session;
use switchboard::protocol::resume::{INITIAL_WINDOW, Options};

/// Frames are the same however they are chopped, and can be written again; a session that receives them keeps its
/// bounds, and comes to the same state.
pub(crate) fn check(bytes: &[u8]) {
    let (whole, is_whole_right) = decoded(bytes, bytes.len());
    let (single, is_single_right) = decoded(bytes, 1);
    assert_eq!((&whole, is_whole_right), (&single, is_single_right));
    let (again, is_right) = decoded(&whole, whole.len());
    assert!(is_right && again == whole);

    assert_eq!(received(bytes, bytes.len()), received(bytes, 1));
}

/// The frames as they would be written, each run of a stream's bytes as single ones, and whether there was no fault.
fn decoded(bytes: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut decoder = Decoder::default();
    let mut written = Vec::new();
    for mut input in bytes.chunks(piece.max(1)) {
        loop {
            match decoder.next(&mut input) {
                Ok(Some(Piece::Data { offset, bytes })) => {
                    for (at, byte) in bytes.iter().enumerate() {
                        encode_data(&mut written, offset + at as u64, (&[*byte], &[]));
                    }
                }
                Ok(Some(Piece::Frame(frame))) => frame.encode(&mut written),
                Ok(None) => break,
                Err(_) => return (written, false),
            }
        }
    }
    (written, true)
}

fn received(bytes: &[u8], piece: usize) -> String {
    let now = Instant::now();
    let window = 4096;
    let mut session = Session::new(Options {
        window,
        ..Options::default()
    });
    let attachment = session.attach(0, now);
    session.write(&[0; 1000]);
    session.transmit(attachment, &mut Vec::new(), 600, now);
    for piece in bytes.chunks(piece.max(1)) {
        session.receive(attachment, piece, now);
        assert!(session.memory() <= 2 * (INITIAL_WINDOW + window) as usize);
    }
    let mut out = Vec::new();
    session.transmit(attachment, &mut out, 8192, now);
    assert!(out.len() <= 8192 + 64);
    assert!(session.violation().is_none() || out == [9, 0, 0, 1, 9], "{out:?}");
    match session.violation() {
        // The bytes of a frame in front of its fault may have been taken: the session is over, and they are dropped.
        Some(violation) => format!("{violation:?}"),
        None => format!("{:?}", (session.received(), session.ended(), session.readable())),
    }
}
