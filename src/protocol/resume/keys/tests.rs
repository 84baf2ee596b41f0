//! The agreement and the proofs, and the test vector of `docs/resume.md`.

use super::*;

fn own(byte: u8) -> AgreementKey {
    AgreementKey::new(PrivateKey::from_private_key(&X25519, &[byte; 32]).unwrap()).unwrap()
}

fn nonces() -> Nonces {
    Nonces {
        anchor: Nonce([0xaa; 16]),
        client: Nonce([0xcc; 16]),
    }
}

fn claim() -> ResumeClaim {
    ResumeClaim {
        nonces: nonces(),
        id: SessionId([0x1d; 16]),
        received: 0x0102_0304_0506_0708,
    }
}

#[test]
fn both_sides_agree_and_prove_different_things() {
    let (client, anchor) = (own(1), own(2));
    let here = client.agree_as_client(anchor.public(), nonces()).unwrap();
    let there = anchor.agree_as_anchor(client.public(), nonces()).unwrap();
    assert!(there.is_client(&claim(), &here.prove_client(&claim())));
    assert!(here.is_anchor(&claim(), &there.prove_anchor(&claim())));
    // A proof sent back to its sender proves nothing.
    assert!(!here.is_anchor(&claim(), &here.prove_client(&claim())));
    assert!(!there.is_client(&claim(), &there.prove_anchor(&claim())));
    assert_ne!(here.client, here.anchor);
    assert_eq!(format!("{here:?}"), "Keys");
}

#[test]
fn a_proof_is_of_one_claim_and_of_one_session() {
    let (client, anchor) = (own(1), own(2));
    let keys = client.agree_as_client(anchor.public(), nonces()).unwrap();
    let proof = keys.prove_client(&claim());
    let mut others = [claim(); 4];
    others[0].nonces.anchor.0[15] ^= 1;
    others[1].nonces.client.0[0] ^= 0x80;
    others[2].id = SessionId::NONE;
    others[3].received += 1;
    for other in others {
        assert!(!keys.is_client(&other, &proof), "{other:?}");
    }
    let mut fresh = nonces();
    fresh.anchor.0[0] ^= 1;
    let other = client.agree_as_client(anchor.public(), fresh).unwrap();
    assert!(!other.is_client(&claim(), &proof));
    let other = own(3).agree_as_client(anchor.public(), nonces()).unwrap();
    assert!(!other.is_client(&claim(), &proof));
    assert!(!Keys::dummy().unwrap().is_client(&claim(), &proof));
}

#[test]
fn a_public_key_that_leads_to_a_known_secret_is_refused() {
    // The points of small order: RFC 7748 section 6.1, and its errata on the list of them.
    let mut minus_one = [0xff; 32];
    minus_one[0] = 0xec;
    minus_one[31] = 0x7f;
    let mut one = [0; 32];
    one[0] = 1;
    for point in [[0; 32], one, minus_one] {
        assert!(own(1).agree_as_anchor(PublicKey(point), nonces()).is_err(), "{point:?}");
    }
}

#[test]
fn a_token_has_one_spelling() {
    let nonce = Nonce([0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
    let text = nonce.to_string();
    assert_eq!(text, "a00102030405060708090a0b0c0d0eff");
    assert_eq!(Nonce::parse(&text), Some(nonce));
    for wrong in [
        &text[1..],
        &text.to_uppercase(),
        &format!("{text}00"),
        "",
        &text.replace("a0", "+0"),
    ] {
        assert_eq!(Nonce::parse(wrong), None, "{wrong}");
    }
    assert_ne!(Nonce::random().unwrap(), Nonce::random().unwrap());
}

#[test]
fn the_test_vector_of_the_document_is_right() {
    let (client, anchor) = (own(1), own(2));
    let keys = client.agree_as_client(anchor.public(), nonces()).unwrap();
    let lines = [
        ("client's public key", client.public().to_string()),
        ("anchor's public key", anchor.public().to_string()),
        ("client key", PublicKey(keys.client).to_string()),
        ("anchor key", PublicKey(keys.anchor).to_string()),
        ("client's proof", keys.prove_client(&claim()).to_string()),
        ("anchor's proof", keys.prove_anchor(&claim()).to_string()),
    ];
    let document = include_str!("../../../../docs/resume.md");
    let rows = lines.map(|(name, value)| format!("| {name} | `{value}` |"));
    let missing: Vec<_> = rows.iter().filter(|row| !document.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
