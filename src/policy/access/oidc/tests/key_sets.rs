//! Key sets and the settings of issuers.

use super::*;

#[tokio::test]
async fn a_changed_file_of_keys_counts_at_the_first_token_with_a_new_key_and_a_bad_one_never() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let bench = Bench::new(issuer(), &[old.jwk("old")]).await;
    let good = claims(&json!({}));
    let by_old = old.token(&json!({"alg": "ES256", "kid": "old"}), &good);
    let by_new = new.token(&json!({"alg": "ES256", "kid": "new"}), &good);
    assert_eq!(
        bench.refusal(&by_new).await,
        "the token's key is not one of its issuer's"
    );
    for bad in [
        "",
        "{",
        "[]",
        r#"{"keys":[]}"#,
        r#"{"keys":[{"kty":"oct","k":"AAAA","kid":"new"}]}"#,
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAA","kid":"new"}]}"#,
    ] {
        std::fs::write(bench.file.path(), bad).unwrap();
        let unknown = bench.refusal(&by_new).await;
        assert!(
            unknown.starts_with("unavailable: the issuer's keys cannot be had: it "),
            "{unknown}"
        );
        assert!(bench.judge(&by_old).await.is_ok());
    }
    std::fs::remove_file(bench.file.path()).unwrap();
    let unknown = bench.refusal(&by_new).await;
    assert_eq!(
        unknown,
        "unavailable: the issuer's keys cannot be had: there is no such file"
    );
    assert!(bench.judge(&by_old).await.is_ok());
    std::fs::write(bench.file.path(), json!({"keys": [new.jwk("new")]}).to_string()).unwrap();
    assert!(bench.judge(&by_new).await.is_ok());
    assert_eq!(
        bench.refusal(&by_old).await,
        "the token's key is not one of its issuer's"
    );
    // The only key, without an id in the token: its change looks like a wrong signature.
    let nameless = old.token(&json!({"alg": "ES256"}), &good);
    assert_eq!(bench.refusal(&nameless).await, "the token's signature is wrong");
    std::fs::write(bench.file.path(), json!({"keys": [old.jwk("old")]}).to_string()).unwrap();
    assert!(bench.judge(&nameless).await.is_ok());
}

#[test]
fn a_key_that_cannot_verify_is_left_out_and_named() {
    let rsa = Signer::rsa().jwk("1");
    let p256 = Signer::p256().jwk("1");
    let with = |key: &Value, name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        key
    };
    for (key, expected) in [
        (json!(7), "is no JSON Web Key"),
        (json!({}), "is no JSON Web Key"),
        (
            json!({"kty": "oct", "k": "AAAA"}),
            "has a kty other than RSA, EC and OKP",
        ),
        (with(&rsa, "use", json!("enc")), "is not for signatures (use)"),
        (
            with(&rsa, "key_ops", json!(["encrypt"])),
            "is not to verify signatures (key_ops)",
        ),
        (
            with(&rsa, "alg", json!("HS256")),
            "has an alg that is not supported or does not fit it",
        ),
        (
            with(&rsa, "alg", json!("ES256")),
            "has an alg that is not supported or does not fit it",
        ),
        (
            with(&p256, "crv", json!("secp256k1")),
            "has a curve other than P-256, P-384 and Ed25519",
        ),
        (
            with(&p256, "alg", json!("ES384")),
            "has an alg that is not supported or does not fit it",
        ),
        (
            json!({"kty": "OKP", "crv": "X25519", "x": "AAAA"}),
            "has a curve other than P-256, P-384 and Ed25519",
        ),
    ] {
        let set = json!({"keys": [key]}).to_string();
        let expected = format!("it has no key that can be used: key 1 {expected}");
        assert_eq!(KeySet::parse(set.as_bytes()).unwrap_err(), expected.into(), "{key}");
        let beside = json!({"keys": [key, p256]}).to_string();
        assert_eq!(KeySet::parse(beside.as_bytes()).unwrap().len(), 1);
    }
    let many = json!({"keys": vec![p256; 101]}).to_string();
    assert_eq!(
        KeySet::parse(many.as_bytes()).unwrap_err(),
        "it has more than 100 keys".into()
    );
}

#[test]
fn a_key_of_wrong_or_weak_numbers_is_left_out() {
    let (rsa, p256) = (Signer::rsa().jwk("1"), Signer::p256().jwk("1"));
    let with = |key: &Value, name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        key
    };
    let edwards = |x: &str| json!({"kty": "OKP", "crv": "Ed25519", "x": x});
    for key in [
        with(&rsa, "n", json!("*")),
        with(&rsa, "n", json!(encoded([0xff; 128]))),
        with(&rsa, "n", json!(encoded([0x7f; 256]))),
        with(&rsa, "n", json!(encoded([0xff; 1025]))),
        with(&rsa, "e", json!(null)),
        with(&rsa, "e", json!("AQ")),
        with(&rsa, "e", json!("Ag")),
        with(&rsa, "e", json!("AAAA")),
        with(&rsa, "e", json!("AQAAAAE")),
        with(&p256, "y", json!(null)),
        with(&p256, "x", json!("AAAA")),
        with(&p256, "crv", json!("P-384")),
        edwards("*"),
        edwards("AAAA"),
        // Of small order.
        edwards("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        edwards("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIA"),
        edwards("AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        edwards("AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIA"),
        edwards("JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_IU"),
        edwards("xxdqcD1N2E-6PAt2DRBnDyogU_osOczGTsf9d5KsA3o"),
        edwards("7P_______________________________________38"),
        edwards("7f________________________________________8"),
        edwards("7v_______________________________________38"),
    ] {
        let set = json!({"keys": [key]}).to_string();
        let expected =
            "it has no key that can be used: key 1 has numbers that are not valid, of a wrong length or weak";
        assert_eq!(KeySet::parse(set.as_bytes()).unwrap_err(), expected.into(), "{key}");
    }
}

#[tokio::test]
async fn a_token_without_an_id_is_verified_by_the_only_key_that_is_strong() {
    let rsa = Signer::rsa();
    let with = |modulus: &[u8]| {
        let mut key = rsa.jwk("1");
        key["n"] = json!(encoded(modulus));
        key
    };
    let jwk = rsa.jwk("1");
    let modulus = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
    // A zero before the modulus does not matter.
    let padded = [vec![0], modulus].concat();
    let bench = Bench::new(issuer(), &[with(&[0xff; 128]), with(&padded)]).await;
    let token = rsa.token(&json!({"alg": "RS256"}), &claims(&json!({})));
    assert!(bench.judge(&token).await.is_ok());
}

/// The length is right: it is left to the verification, which fails.
#[tokio::test]
async fn a_token_by_a_point_that_is_not_on_its_curve_is_refused() {
    let signer = Signer::p256();
    let mut key = signer.jwk("1");
    key["x"] = json!(encoded([1; 32]));
    let bench = Bench::new(issuer(), &[key]).await;
    let token = signer.token(&json!({"alg": "ES256", "kid": "1"}), &claims(&json!({})));
    assert_eq!(bench.refusal(&token).await, "the token's signature is wrong");
}
