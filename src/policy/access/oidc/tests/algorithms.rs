//! Algorithms of signatures, and the keys that fit.

use super::*;

#[tokio::test]
async fn each_algorithm_is_verified_by_a_key_that_fits() {
    let (p256, p384, edwards) = (Signer::p256(), Signer::p384(), Signer::ed25519());
    let rsa = Signer::rsa();
    let keys = [p256.jwk("p256"), p384.jwk("p384"), edwards.jwk("ed"), rsa.jwk("rsa")];
    let bench = Bench::new(issuer(), &keys).await;
    let good = claims(&json!({}));
    for (algorithm, id, signer) in [
        ("RS256", "rsa", rsa),
        ("RS384", "rsa", rsa),
        ("RS512", "rsa", rsa),
        ("PS256", "rsa", rsa),
        ("PS384", "rsa", rsa),
        ("PS512", "rsa", rsa),
        ("ES256", "p256", &p256),
        ("ES384", "p384", &p384),
        ("EdDSA", "ed", &edwards),
        ("Ed25519", "ed", &edwards),
    ] {
        let header = json!({"alg": algorithm, "kid": id, "typ": "JWT"});
        let token = signer.token(&header, &good);
        let user = bench.judge(&token).await.unwrap();
        assert_eq!(
            *user,
            User {
                name: "alice@example.com".into(),
                uid: Some("4711".into()),
                groups: vec!["ops".into(), "dev".into(), AUTHENTICATED.into()],
                extra: std::collections::BTreeMap::new(),
                method: Method::Oidc,
                // With what clocks may differ.
                expires: Some(UNIX_EPOCH + Duration::from_secs(NOW + 660)),
            }
        );
        // One bit of the payload, or of the signature.
        let (message, signature) = token.expose().rsplit_once('.').unwrap();
        let other = claims(&json!({"email": "mallory@example.com"})).to_string();
        let forged = format!("{}.{}.{signature}", message.split('.').next().unwrap(), encoded(other));
        assert_eq!(
            bench.refusal(&forged.as_str().into()).await,
            "the token's signature is wrong"
        );
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            bytes[at] ^= 1;
            let forged = format!("{message}.{}", encoded(&bytes));
            assert_eq!(
                bench.refusal(&forged.as_str().into()).await,
                "the token's signature is wrong"
            );
            bytes[at] ^= 1;
        }
        for short in [format!("{message}."), format!("{message}.AAAA")] {
            assert_eq!(
                bench.refusal(&short.as_str().into()).await,
                "the token's signature is wrong"
            );
        }
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn an_algorithm_that_is_none_or_not_that_of_the_key_is_refused() {
    let (p256, p384) = (Signer::p256(), Signer::p384());
    let rsa = Signer::rsa();
    let mut only_pss = rsa.jwk("pss");
    only_pss["alg"] = json!("PS256");
    let keys = [rsa.jwk("rsa"), only_pss, p256.jwk("p256"), p384.jwk("p384")];
    let bench = Bench::new(issuer(), &keys).await;
    let good = claims(&json!({}));
    let unfit = "the token's algorithm is not that of its key";
    for (header, expected) in [
        (json!({"alg": "RS256", "kid": "pss"}), unfit),
        (json!({"alg": "ES256", "kid": "rsa"}), unfit),
        (json!({"alg": "RS256", "kid": "p256"}), unfit),
        (
            json!({"alg": "none", "kid": "rsa"}),
            "the token's algorithm is not accepted",
        ),
        (
            json!({"alg": "None", "kid": "rsa"}),
            "the token's algorithm is not accepted",
        ),
        (
            json!({"alg": "HS256", "kid": "rsa"}),
            "the token's algorithm is not accepted",
        ),
        (
            json!({"alg": "rs256", "kid": "rsa"}),
            "the token's algorithm is not accepted",
        ),
        (
            json!({"alg": "ES512", "kid": "p256"}),
            "the token's algorithm is not accepted",
        ),
        (json!({"alg": ["RS256"], "kid": "rsa"}), "the token is malformed"),
        (json!({"kid": "rsa"}), "the token is malformed"),
    ] {
        assert_eq!(bench.refusal(&rsa.token(&header, &good)).await, expected, "{header}");
    }
    let header = json!({"alg": "ES256", "kid": "p256"});
    assert_eq!(
        bench.refusal(&p384.token(&header, &good)).await,
        "the token's signature is wrong"
    );
    let header = json!({"alg": "ES384", "kid": "p256"});
    assert_eq!(bench.refusal(&p384.token(&header, &good)).await, unfit);
    // Without a signature, and with one by HMAC whose key is the public key.
    let header = json!({"alg": "none"}).to_string();
    let unsigned = format!("{}.{}.", encoded(header), encoded(good.to_string()));
    assert_eq!(
        bench.refusal(&unsigned.as_str().into()).await,
        "the token's algorithm is not accepted"
    );
    for public in [
        rsa.jwk("rsa").to_string(),
        rsa.jwk("rsa")["n"].as_str().unwrap().to_owned(),
    ] {
        let message = format!(
            "{}.{}",
            encoded(r#"{"alg":"HS256","kid":"rsa"}"#),
            encoded(good.to_string())
        );
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, public.as_bytes());
        let signed = format!("{message}.{}", encoded(aws_lc_rs::hmac::sign(&key, message.as_bytes())));
        assert_eq!(
            bench.refusal(&signed.as_str().into()).await,
            "the token's algorithm is not accepted"
        );
    }
}
