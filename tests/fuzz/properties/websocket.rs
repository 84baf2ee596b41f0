//! The frames of a WebSocket's client.

use switchboard::protocol::websocket::{Receiver, Role};

/// The stream of bytes and its end are the same however the frames are chopped, and no longer than they are.
pub(crate) fn check(bytes: &[u8]) {
    let whole = decoded(bytes, bytes.len().max(1));
    assert_eq!(whole, decoded(bytes, 1));
    assert!(whole.0.len() <= bytes.len());
}

/// The stream, and its end: `None` if there is none yet, or an error for a violation.
fn decoded(bytes: &[u8], piece: usize) -> (Vec<u8>, String) {
    let (mut receiver, mut stream) = (Receiver::new(Role::Server), Vec::new());
    for bytes in bytes.chunks(piece) {
        let mut buffer = vec![0; bytes.len()];
        match receiver.decode(bytes, &mut buffer) {
            Ok(length) => stream.extend(&buffer[..length]),
            // The bytes in front of a violation are not compared: the stream is broken.
            Err(violation) => return (Vec::new(), violation.to_string()),
        }
    }
    (stream, format!("{:?}", receiver.end()))
}
