//! The handshake with which a connection begins, and attacks on it.

use super::*;
use crate::protocol::resume::handshake::lines::{Announcement, Hello, IDENTIFICATION};
use crate::protocol::resume::keys::{Nonce, Nonces, PublicKey, SessionId};

/// Both sides of one connection, and what each has sent.
struct Pair {
    handshake: ClientHandshake,
    anchor: AnchorHandshake,
    sent: Vec<u8>,
}

impl Pair {
    fn new(handshake: ClientHandshake, key: &AgreementKey) -> Self {
        Self {
            handshake,
            anchor: AnchorHandshake::new(key).unwrap(),
            sent: Vec::new(),
        }
    }

    /// Lets both talk, `piece` bytes at a time, until the anchor has found something.
    fn talk(&mut self, key: &AgreementKey, piece: usize) -> Result<anchor_handshake::AnchorHandshakeStep, EndReason> {
        for _ in 0..1000 {
            for bytes in self.anchor.take_output().chunks(piece) {
                assert!(matches!(
                    self.handshake.receive(bytes),
                    Ok(client_handshake::HandshakeStep::NeedMore)
                ));
            }
            let output = self.handshake.take_output();
            self.sent.extend(&output);
            for bytes in output.chunks(piece) {
                match self.anchor.receive(bytes, key)? {
                    anchor_handshake::AnchorHandshakeStep::NeedMore => {}
                    step @ (anchor_handshake::AnchorHandshakeStep::Plain(_)
                    | anchor_handshake::AnchorHandshakeStep::New(_)
                    | anchor_handshake::AnchorHandshakeStep::Resume(_)) => {
                        return Ok(step);
                    }
                }
            }
        }
        panic!("they talk past each other");
    }

    /// Lets the client read the rest, and an answer after it.
    fn answer(&mut self, frame: Option<Frame>) -> Result<client_handshake::HandshakeStep, HandshakeError> {
        let mut bytes = self.anchor.take_output();
        bytes.extend(encoded(&Vec::from_iter(frame)));
        self.handshake.receive(&bytes)
    }
}

fn secrets_of(step: client_handshake::HandshakeStep) -> client_handshake::HandshakeResult {
    match step {
        client_handshake::HandshakeStep::Attached(attached) => attached,
        step @ (client_handshake::HandshakeStep::NeedMore | client_handshake::HandshakeStep::Plain(_)) => {
            panic!("{step:?}")
        }
    }
}

/// Returns a session that was begun, as both sides have it.
pub(super) fn begun(key: &AgreementKey, registry: &mut Registry<()>) -> client_handshake::ResumptionSecrets {
    let mut pair = Pair::new(ClientHandshake::begin(), key);
    let Ok(anchor_handshake::AnchorHandshakeStep::New(new)) = pair.talk(key, 1000) else {
        panic!("no session");
    };
    let id = registry.open(new.keys.clone(), ()).unwrap();
    let claim = ResumeClaim {
        nonces: new.nonces,
        id,
        received: 0,
    };
    let frame = anchor_handshake::attached(&new.keys, &claim);
    secrets_of(pair.answer(Some(frame)).unwrap()).secrets
}

#[test]
fn a_session_begins_and_is_resumed_in_whatever_pieces() {
    let key = AgreementKey::generate().unwrap();
    let mut registry = Registry::new(9).unwrap();
    for piece in [1, 2, 7, 1000] {
        let mut pair = Pair::new(ClientHandshake::begin(), &key);
        let Ok(anchor_handshake::AnchorHandshakeStep::New(new)) = pair.talk(&key, piece) else {
            panic!("no session");
        };
        assert!(pair.handshake.is_proved());
        let id = registry.open(new.keys.clone(), ()).unwrap();
        let claim = ResumeClaim {
            nonces: new.nonces,
            id,
            received: 0,
        };
        let frame = anchor_handshake::attached(&new.keys, &claim);
        let secrets = secrets_of(pair.answer(Some(frame)).unwrap()).secrets;

        let mut pair = Pair::new(ClientHandshake::resume(secrets, 77).unwrap(), &key);
        let Ok(anchor_handshake::AnchorHandshakeStep::Resume(resume)) = pair.talk(&key, piece) else {
            panic!("no claim");
        };
        assert_eq!(resume.claim.received, 77);
        let (keys, ()) = registry.prove(&resume.claim, &resume.proof).unwrap();
        let claim = ResumeClaim {
            received: 5,
            ..resume.claim
        };
        let frame = anchor_handshake::attached(keys, &claim);
        let mut bytes = pair.anchor.take_output();
        frame.encode(&mut bytes);
        bytes.extend(b"behind");
        let attached = secrets_of(pair.handshake.receive(&bytes).unwrap());
        assert_eq!((attached.received, attached.rest.as_slice()), (5, b"behind".as_slice()));
    }
    assert_eq!(registry.len(), 4);
}

#[test]
fn a_hello_for_a_resume_goes_out_first_and_everything_else_behind_the_announcement() {
    let key = AgreementKey::generate().unwrap();
    let mut registry = Registry::new(9).unwrap();
    let secrets = begun(&key, &mut registry);
    let mut handshake = ClientHandshake::resume(secrets, 0).unwrap();
    assert!(
        handshake
            .take_output()
            .starts_with(b"SSH-2.0-switchboard_resume_1 resume ")
    );
    assert!(!handshake.is_proved() && handshake.take_output().is_empty());
    let mut handshake = ClientHandshake::begin();
    assert!(handshake.take_output().is_empty());
    let announcement = Announcement {
        key: key.public(),
        nonce: Nonce([1; 16]),
    };
    handshake.receive(announcement.line().as_bytes()).unwrap();
    assert!(handshake.is_proved());
    assert!(
        handshake
            .take_output()
            .starts_with(b"SSH-2.0-switchboard_resume_1 new ")
    );
}

#[test]
fn a_plain_target_and_a_plain_client_are_left_alone() {
    for target in [
        "SSH-2.0-OpenSSH_9.9\r\nbinary",
        "banner\r\nSSH-2.0-x\r\n",
        &"x".repeat(9000),
    ] {
        let mut handshake = ClientHandshake::begin();
        let step = handshake.receive(target.as_bytes()).unwrap();
        assert!(matches!(step, client_handshake::HandshakeStep::Plain(bytes) if bytes == target.as_bytes()));
        assert!(handshake.take_output().is_empty());
    }
    let mut handshake = ClientHandshake::begin();
    assert!(matches!(
        handshake.receive(b"SSH-"),
        Ok(client_handshake::HandshakeStep::NeedMore)
    ));
    assert_eq!(handshake.into_plain_bytes(), b"SSH-");

    let key = AgreementKey::generate().unwrap();
    let mut welcome = AnchorHandshake::new(&key).unwrap();
    assert!(matches!(
        welcome.receive(b"SSH-2.0-", &key),
        Ok(anchor_handshake::AnchorHandshakeStep::NeedMore)
    ));
    let step = welcome.receive(b"OpenSSH_9.9\r\n\0\0", &key).unwrap();
    assert!(
        matches!(step, anchor_handshake::AnchorHandshakeStep::Plain(bytes) if bytes == b"SSH-2.0-OpenSSH_9.9\r\n\0\0")
    );
}

/// As behind a middlebox that holds the announcement back until the target has sent an identification.
#[test]
fn a_client_that_was_sent_the_target_first_bytes_begins_a_session_all_the_same() {
    for raw in ["SSH-2.0-OpenSSH_9.9\r\n", "SSH-2.0-cut", ""] {
        let key = AgreementKey::generate().unwrap();
        let mut welcome = AnchorHandshake::new(&key).unwrap();
        let mut handshake = ClientHandshake::begin();
        let announcement = welcome.take_output();
        welcome.sent_raw(raw.as_bytes());
        assert!(matches!(
            handshake.receive(&announcement),
            Ok(client_handshake::HandshakeStep::NeedMore)
        ));
        assert!(matches!(
            handshake.receive(raw.as_bytes()),
            Ok(client_handshake::HandshakeStep::NeedMore)
        ));
        let step = welcome.receive(&handshake.take_output(), &key).unwrap();
        let anchor_handshake::AnchorHandshakeStep::New(new) = step else {
            panic!("{step:?}")
        };
        let claim = ResumeClaim {
            nonces: new.nonces,
            id: SessionId([3; 16]),
            received: 0,
        };
        let mut bytes = welcome.take_output();
        anchor_handshake::attached(&new.keys, &claim).encode(&mut bytes);
        assert!(
            matches!(
                handshake.receive(&bytes),
                Ok(client_handshake::HandshakeStep::Attached(_))
            ),
            "{raw:?}"
        );
    }
}

#[test]
fn an_unknown_session_and_a_stolen_id_get_the_same_answer() {
    let key = AgreementKey::generate().unwrap();
    let mut registry = Registry::new(9).unwrap();
    let (own, other) = (begun(&key, &mut registry), begun(&key, &mut registry));
    let stolen = client_handshake::ResumptionSecrets { id: own.id, ..other };
    let unknown = client_handshake::ResumptionSecrets {
        id: SessionId([9; 16]),
        ..own
    };
    for secrets in [stolen, unknown] {
        let mut pair = Pair::new(ClientHandshake::resume(secrets, 0).unwrap(), &key);
        let Ok(anchor_handshake::AnchorHandshakeStep::Resume(resume)) = pair.talk(&key, 1000) else {
            panic!("no claim");
        };
        assert_eq!(
            registry.prove(&resume.claim, &resume.proof).unwrap_err(),
            EndReason::NoSuchSession
        );
        let ended = pair.answer(Some(Frame::End(EndReason::NoSuchSession))).unwrap_err();
        assert_eq!(ended, HandshakeError::Ended(EndReason::NoSuchSession));
    }
    assert_eq!(registry.len(), 2);
}

#[test]
fn a_replayed_handshake_proves_nothing() {
    let key = AgreementKey::generate().unwrap();
    let mut registry = Registry::new(9).unwrap();
    let mut pair = Pair::new(ClientHandshake::begin(), &key);
    assert!(matches!(
        pair.talk(&key, 1000),
        Ok(anchor_handshake::AnchorHandshakeStep::New(_))
    ));
    let replayed = AnchorHandshake::new(&key)
        .unwrap()
        .receive(&pair.sent, &key)
        .unwrap_err();
    assert_eq!(replayed, EndReason::Malformed);

    let mut pair = Pair::new(ClientHandshake::resume(begun(&key, &mut registry), 0).unwrap(), &key);
    let Ok(anchor_handshake::AnchorHandshakeStep::Resume(resume)) = pair.talk(&key, 1000) else {
        panic!("no claim");
    };
    assert!(registry.prove(&resume.claim, &resume.proof).is_ok());
    let step = AnchorHandshake::new(&key).unwrap().receive(&pair.sent, &key).unwrap();
    let anchor_handshake::AnchorHandshakeStep::Resume(replayed) = step else {
        panic!("{step:?}")
    };
    assert_eq!(replayed.proof, resume.proof);
    assert_eq!(
        registry.prove(&replayed.claim, &replayed.proof).unwrap_err(),
        EndReason::NoSuchSession
    );
}

#[test]
fn an_anchor_that_does_not_prove_the_session_does_not_get_it() {
    let key = AgreementKey::generate().unwrap();
    let mut registry = Registry::new(9).unwrap();
    let secrets = begun(&key, &mut registry);
    let nonce = Nonce([1; 16]);
    let announcement = |key: PublicKey| Announcement { key, nonce }.line();
    let answer = |received, mac| {
        let mut bytes = IDENTIFICATION.as_bytes().to_vec();
        Frame::Attached {
            id: secrets.id,
            received,
            mac,
        }
        .encode(&mut bytes);
        bytes
    };

    let mut handshake = ClientHandshake::resume(secrets.clone(), 0).unwrap();
    handshake.receive(announcement(key.public()).as_bytes()).unwrap();
    assert_eq!(
        handshake.receive(&answer(0, Mac([0; 32]))).unwrap_err(),
        HandshakeError::Unproved
    );

    // A right proof, with another offset: the bytes in between would be missing.
    let mut handshake = ClientHandshake::resume(secrets.clone(), 0).unwrap();
    let hello = String::from_utf8(handshake.take_output()).unwrap();
    let client = Nonce::parse(hello.trim_end().rsplit(' ').next().unwrap()).unwrap();
    handshake.receive(announcement(key.public()).as_bytes()).unwrap();
    let nonces = Nonces { anchor: nonce, client };
    let claim = ResumeClaim {
        nonces,
        id: secrets.id,
        received: 7,
    };
    let mac = secrets.keys.prove_anchor(&claim);
    assert_eq!(
        handshake.receive(&answer(8, mac)).unwrap_err(),
        HandshakeError::Unproved
    );

    let mut handshake = ClientHandshake::resume(secrets.clone(), 0).unwrap();
    let other = announcement(AgreementKey::generate().unwrap().public());
    assert_eq!(
        handshake.receive(other.as_bytes()).unwrap_err(),
        HandshakeError::OtherAnchor
    );
    let mut handshake = ClientHandshake::resume(secrets.clone(), 0).unwrap();
    assert_eq!(
        handshake.receive(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap_err(),
        HandshakeError::NoAnchor
    );
    for phrase in ["x".repeat(9000), "x\n".repeat(9000)] {
        let mut handshake = ClientHandshake::resume(secrets.clone(), 0).unwrap();
        assert_eq!(handshake.receive(phrase.as_bytes()).unwrap_err(), HandshakeError::Fault);
        let mut handshake = ClientHandshake::resume(secrets.clone(), 0).unwrap();
        handshake.receive(announcement(key.public()).as_bytes()).unwrap();
        assert_eq!(handshake.receive(phrase.as_bytes()).unwrap_err(), HandshakeError::Fault);
    }
}

#[test]
fn a_new_session_begins_at_its_first_byte_and_has_an_id() {
    let key = AgreementKey::generate().unwrap();
    let answers = [
        (SessionId([1; 16]), 0, true),
        (SessionId([1; 16]), 1, false),
        (SessionId::NONE, 0, false),
    ];
    for (id, received, is_right) in answers {
        let mut pair = Pair::new(ClientHandshake::begin(), &key);
        let Ok(anchor_handshake::AnchorHandshakeStep::New(new)) = pair.talk(&key, 1000) else {
            panic!("no session");
        };
        let claim = ResumeClaim {
            nonces: new.nonces,
            id,
            received,
        };
        let answer = pair.answer(Some(anchor_handshake::attached(&new.keys, &claim)));
        assert_eq!(answer.is_ok(), is_right, "{id}, {received}");
    }
}

#[test]
fn a_client_that_breaks_the_handshake_gets_a_reason_and_nothing_else() {
    let key = AgreementKey::generate().unwrap();
    let hello = Hello::New {
        key: key.public(),
        nonce: Nonce([1; 16]),
    }
    .line();
    let weak = Hello::New {
        key: PublicKey([0; 32]),
        nonce: Nonce([1; 16]),
    }
    .line();
    let proof = encoded(&[Frame::Proof {
        received: 0,
        mac: Mac([0; 32]),
    }]);
    let mut data = Vec::new();
    encode_data(&mut data, 0, (b"x", b""));
    let unknown: Vec<u8> = [&[99, 0, 4, 0], [0; 1024].as_slice()].concat();
    let cases = [
        (vec![hello.as_bytes(), &proof], EndReason::Malformed),
        (vec![weak.as_bytes(), &proof], EndReason::Malformed),
        (vec![hello.as_bytes(), &data], EndReason::Malformed),
        (vec![hello.as_bytes(), b"GET / HTTP/1.1\r\n\r\n"], EndReason::Malformed),
        (
            [vec![hello.as_bytes()], vec![&unknown; 9]].concat(),
            EndReason::Malformed,
        ),
        (vec![b"SSH-2.0-switchboard_resume_2 new\r\n"], EndReason::Version),
    ];
    for (sent, end) in cases {
        let mut welcome = AnchorHandshake::new(&key).unwrap();
        welcome.take_output();
        let result = sent.iter().try_for_each(|bytes| welcome.receive(bytes, &key).map(drop));
        assert_eq!(result.unwrap_err(), end, "{}", String::from_utf8_lossy(sent[0]));
        let mut expected = IDENTIFICATION.as_bytes().to_vec();
        Frame::End(end).encode(&mut expected);
        assert_eq!(welcome.take_output(), expected);
    }
}

#[test]
fn a_registry_takes_no_more_than_it_may() {
    let key = AgreementKey::generate().unwrap();
    let mut registry = Registry::new(1).unwrap();
    let secrets = begun(&key, &mut registry);
    assert_eq!(registry.open(secrets.keys.clone(), ()), Err(EndReason::TooManySessions));
    assert!(registry.iter().any(|(id, ())| id == secrets.id));
    assert_eq!((registry.remove(secrets.id), registry.is_empty()), (Some(()), true));
    assert!(registry.open(secrets.keys, ()).is_ok());
    assert_eq!(registry.iter().count(), 1);
}
