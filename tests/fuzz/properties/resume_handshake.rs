//! The first bytes of a connection of `resume`, to either side.

use std::sync::OnceLock;

use switchboard::protocol::resume::handshake::anchor_handshake::{self, AnchorHandshake};
use switchboard::protocol::resume::handshake::client_handshake::{self, ClientHandshake};
use switchboard::protocol::resume::handshake::lines::{FirstBytes, classify};
use switchboard::protocol::resume::keys::AgreementKey;

static KEY: OnceLock<AgreementKey> = OnceLock::new();

/// Both sides come to the same end however the bytes are chopped. What is not this protocol's is passed on as it came, and a
/// peer without keys gets no further than to a refusal.
pub(crate) fn check(bytes: &[u8]) {
    assert_eq!(to_client(bytes, bytes.len()), to_client(bytes, 1));
    assert_eq!(to_anchor(bytes, bytes.len()), to_anchor(bytes, 1));
    for cut in 0..bytes.len().min(300) {
        let decision = classify(&bytes[..cut]);
        if decision != FirstBytes::NeedMore {
            assert_eq!(classify(bytes), decision, "the first {cut} bytes");
            break;
        }
    }
}

fn to_client(bytes: &[u8], piece: usize) -> String {
    let mut opening = ClientHandshake::begin();
    for (index, piece) in bytes.chunks(piece.max(1)).enumerate() {
        match opening.receive(piece) {
            Ok(client_handshake::HandshakeStep::NeedMore) => {}
            Ok(client_handshake::HandshakeStep::Plain(held)) => {
                assert!(bytes.starts_with(&held) && !opening.is_proved());
                assert!(opening.take_output().is_empty(), "a target was sent something");
                return "plain".to_owned();
            }
            Ok(client_handshake::HandshakeStep::Attached(_)) => panic!("a proof without keys, in piece {index}"),
            Err(failure) => return format!("{failure:?}"),
        }
    }
    format!("undecided, {}", opening.is_proved())
}

fn to_anchor(bytes: &[u8], piece: usize) -> String {
    let key = KEY.get_or_init(|| AgreementKey::generate().expect("random bytes"));
    let mut welcome = AnchorHandshake::new(key).expect("random bytes");
    let announcement = welcome.take_output();
    assert!(announcement.len() <= 255 && !announcement.starts_with(b"SSH-"));
    let mut decision = "undecided".to_owned();
    for piece in bytes.chunks(piece.max(1)) {
        decision = match welcome.receive(piece, key) {
            Ok(anchor_handshake::AnchorHandshakeStep::NeedMore) => continue,
            Ok(anchor_handshake::AnchorHandshakeStep::Plain(held)) => {
                assert!(bytes.starts_with(&held) && welcome.take_output().is_empty());
                "plain".to_owned()
            }
            Ok(anchor_handshake::AnchorHandshakeStep::New(_)) => panic!("a proof without keys"),
            Ok(anchor_handshake::AnchorHandshakeStep::Resume(resume)) => {
                format!("{:?}, {:?}", resume.claim.id, resume.proof)
            }
            Err(end) => format!("{end:?}"),
        };
        break;
    }
    assert!(welcome.take_output().len() <= 64, "an answer is short");
    decision
}
