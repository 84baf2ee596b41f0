//! The frames of a WebSocket's peer, and the answers to them.

use std::task::Poll;

use switchboard::protocol::websocket::{Codec, Role};

/// The stream of bytes, its end and the answers are the same however the frames are chopped, and bounded.
pub(crate) fn check(bytes: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let (stream, end, answers) = decoded(role, bytes, bytes.len().max(1));
        assert!(stream.len() <= bytes.len() && answers.len() < 4096);
        let (chopped, chopped_end, chopped_answers) = decoded(role, bytes, 1);
        // The bytes in front of a violation are not compared: the stream is broken. A client masks its answers at random.
        if end.is_ok() {
            assert_eq!(stream, chopped);
        }
        assert_eq!((end, answers.len()), (chopped_end, chopped_answers.len()));
        if role == Role::Server {
            assert_eq!(answers, chopped_answers);
        }
    }
}

/// The stream, its close frame or the violation, and what is sent when all of it is decoded.
fn decoded(role: Role, bytes: &[u8], piece: usize) -> (Vec<u8>, Result<String, String>, Vec<u8>) {
    let (mut codec, mut stream, mut answers) = (Codec::new(role, Vec::new()), Vec::new(), Vec::new());
    let mut end = Ok(());
    for bytes in bytes.chunks(piece) {
        let mut buffer = bytes.to_vec();
        match codec.decode(&mut buffer) {
            Ok(length) => stream.extend(&buffer[..length]),
            Err(violation) => {
                end = Err(violation.to_string());
                break;
            }
        }
    }
    codec.sender.close();
    let sent = codec.sender.poll_flush(|pieces| {
        let before = answers.len();
        pieces.iter().for_each(|piece| answers.extend_from_slice(piece));
        Poll::Ready(Ok(answers.len() - before))
    });
    assert!(matches!(sent, Poll::Ready(Ok(()))));
    (
        stream,
        end.map(|()| format!("{:?}", codec.receiver.close_frame())),
        answers,
    )
}
