//! Tests of OIDC tokens: signatures and claims here, servers of key sets in `server`.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::keys::Pace;
use super::*;
use crate::access::user::{AUTHENTICATED, Method, User};

mod server;

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A private key of a test, of one kind each.
enum Signer {
    Rsa(RsaKeyPair),
    Elliptic(EcdsaKeyPair, &'static str),
    Edwards(Ed25519KeyPair),
}

impl Signer {
    fn p256() -> Self {
        Self::Elliptic(
            EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            "P-256",
        )
    }

    fn p384() -> Self {
        Self::Elliptic(
            EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap(),
            "P-384",
        )
    }

    fn ed25519() -> Self {
        Self::Edwards(Ed25519KeyPair::generate().unwrap())
    }

    /// The same for all tests: to make one takes long.
    fn rsa() -> &'static Self {
        static KEY: OnceLock<Signer> = OnceLock::new();
        KEY.get_or_init(|| Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()))
    }

    /// The public key.
    fn jwk(&self, id: &str) -> Value {
        match self {
            Self::Rsa(pair) => {
                // SEQUENCE { INTEGER of 257 bytes, INTEGER 65537 }
                let der = pair.public_key().as_ref();
                assert_eq!((der.len(), &der[265..]), (270, [2, 3, 1, 0, 1].as_slice()));
                json!({"kty": "RSA", "kid": id, "n": encoded(&der[9..265]), "e": "AQAB"})
            }
            Self::Elliptic(pair, curve) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
                json!({"kty": "EC", "kid": id, "crv": curve, "x": encoded(x), "y": encoded(y)})
            }
            Self::Edwards(pair) => {
                json!({"kty": "OKP", "kid": id, "crv": "Ed25519", "x": encoded(pair.public_key())})
            }
        }
    }

    /// The signature by an algorithm of this name; RSA has several.
    fn sign(&self, algorithm: &str, message: &str) -> Vec<u8> {
        let random = SystemRandom::new();
        let message = message.as_bytes();
        match self {
            Self::Elliptic(pair, _) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Edwards(pair) => pair.sign(message).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let encoding: &'static dyn RsaEncoding = match algorithm {
                    "RS384" => &signature::RSA_PKCS1_SHA384,
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    "PS384" => &signature::RSA_PSS_SHA384,
                    "PS512" => &signature::RSA_PSS_SHA512,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut signed = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut signed).unwrap();
                signed
            }
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> Secret {
        self.raw_token(&header.to_string(), &claims.to_string())
    }

    fn raw_token(&self, header: &str, claims: &str) -> Secret {
        let message = format!("{}.{}", encoded(header), encoded(claims));
        let parsed: Option<Value> = serde_json::from_str(header).ok();
        let algorithm = parsed
            .as_ref()
            .and_then(|header| header["alg"].as_str())
            .unwrap_or_default();
        let signature = encoded(self.sign(algorithm, &message));
        format!("{message}.{signature}").as_str().into()
    }
}

fn issuer() -> Issuer {
    Issuer {
        issuer: "https://issuer.example".into(),
        audiences: vec!["switchboard".into(), "other".into()],
        username: "email".into(),
        groups: Some("groups".into()),
        jwks: Jwks::File("/nonexistent".into()),
        ca: None,
    }
}

const NOW: u64 = 1_800_000_000;

/// Good claims, but for these changes; null takes one away.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://issuer.example", "aud": "switchboard", "exp": NOW + 600, "nbf": NOW, "iat": NOW,
        "sub": "4711", "email": "alice@example.com", "groups": ["ops", "dev"],
    });
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
    }
    claims
}

/// A verifier whose keys are in a file, and are read once and at a wish.
struct Bench {
    verifier: Verifier,
    file: tempfile::NamedTempFile,
}

impl Bench {
    async fn new(issuer: Issuer, keys: &[Value]) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json!({ "keys": keys }).to_string()).unwrap();
        let pace = Pace {
            good: Duration::from_hours(1),
            bad: Duration::from_hours(1),
            least: Duration::ZERO,
        };
        let keys = Keys::follow("test", Source::File(file.path().to_owned()), pace);
        keys.renewed(keys.current()).await.unwrap();
        let verifier = Verifier { issuer, keys };
        Self { verifier, file }
    }

    async fn judge(&self, token: &Secret) -> Result<Arc<User>, String> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        match self.verifier.judge(token.expose(), now).await {
            Ok(Verdict::Proved(user)) => Ok(user),
            Ok(Verdict::Refused(reason)) => {
                assert!(reason.is_ascii() && !token.expose().contains(&*reason));
                Err(reason.into())
            }
            Err(unavailable) => Err(format!("unavailable: {unavailable}")),
        }
    }

    async fn refusal(&self, token: &Secret) -> String {
        self.judge(token).await.unwrap_err()
    }
}

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

#[tokio::test]
async fn the_key_is_that_of_the_id_or_the_only_one_that_fits() {
    let (one, two, edwards) = (Signer::p256(), Signer::p256(), Signer::ed25519());
    let bench = Bench::new(issuer(), &[one.jwk("1"), two.jwk("2"), edwards.jwk("3")]).await;
    let good = claims(&json!({}));
    for (header, signer, expected) in [
        (json!({"alg": "ES256", "kid": "1"}), &one, None),
        (
            json!({"alg": "ES256", "kid": "2"}),
            &one,
            Some("the token's signature is wrong"),
        ),
        (
            json!({"alg": "ES256", "kid": "9"}),
            &one,
            Some("the token's key is none of its issuer's"),
        ),
        (
            json!({"alg": "ES256", "kid": ""}),
            &one,
            Some("the token's key is none of its issuer's"),
        ),
        (
            json!({"alg": "ES256"}),
            &one,
            Some("the token does not name its key (kid)"),
        ),
        (json!({"alg": "ES256", "kid": 1}), &one, Some("the token is malformed")),
        (json!({"alg": "EdDSA"}), &edwards, None),
        (
            json!({"alg": "ES384"}),
            &one,
            Some("the token's algorithm is not that of its key"),
        ),
    ] {
        let judged = bench.judge(&signer.token(&header, &good)).await;
        assert_eq!(judged.err().as_deref(), expected, "{header}");
    }
    // Keys that a token brings along are not looked at.
    let own = Signer::p256();
    for (name, value) in [
        ("jwk", own.jwk("1")),
        ("jku", json!("https://127.0.0.1:1/jwks")),
        ("x5u", json!("https://127.0.0.1:1/cert")),
        ("x5c", json!(["MIIB"])),
    ] {
        let mut header = json!({"alg": "ES256", "kid": "1"});
        header[name] = value;
        assert_eq!(
            bench.refusal(&own.token(&header, &good)).await,
            "the token's signature is wrong"
        );
        assert!(bench.judge(&one.token(&header, &good)).await.is_ok());
    }
}

#[tokio::test]
async fn a_header_with_what_is_not_understood_is_refused() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let good = claims(&json!({})).to_string();
    for (header, expected) in [
        (
            r#"{"alg":"ES256","kid":"1","crit":["exp"],"exp":1}"#,
            "the token has extensions that are not known",
        ),
        (
            r#"{"alg":"ES256","kid":"1","crit":["b64"],"b64":false}"#,
            "the token has extensions that are not known",
        ),
        (
            r#"{"alg":"ES256","kid":"1","crit":[]}"#,
            "the token has extensions that are not known",
        ),
        (
            r#"{"alg":"ES256","kid":"1","typ":"logout+jwt"}"#,
            "the token is of another type",
        ),
        (r#"{"alg":"ES256","kid":"1","typ":7}"#, "the token is of another type"),
        (r#"{"alg":"none","alg":"ES256","kid":"1"}"#, "the token is malformed"),
        (r#"{"alg":"ES256","kid":"0","kid":"1"}"#, "the token is malformed"),
        (r#"{"alg":"ES256","kid":"1"} x"#, "the token is malformed"),
    ] {
        assert_eq!(
            bench.refusal(&signer.raw_token(header, &good)).await,
            expected,
            "{header}"
        );
    }
    for kind in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
        let header = json!({"alg": "ES256", "kid": "1", "typ": kind}).to_string();
        assert!(bench.judge(&signer.raw_token(&header, &good)).await.is_ok(), "{kind}");
    }
}

#[tokio::test]
async fn a_token_holds_for_its_time_and_audience_only() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let header = json!({"alg": "ES256", "kid": "1"});
    let (expired, early) = (Some("the token has expired"), Some("the token is not valid yet"));
    let foreign = Some("the token is for another audience");
    let no_time = Some("the token has a time that is none");
    for (changes, expected) in [
        (json!({"exp": NOW - 60}), None),
        (json!({"exp": NOW - 61}), expired),
        (json!({"exp": -1e300}), expired),
        (json!({"exp": 1e300}), no_time),
        (json!({"exp": "1900000000"}), no_time),
        (json!({"exp": null}), Some("the token never expires (exp)")),
        (json!({"nbf": NOW + 60, "iat": NOW + 60}), None),
        (json!({"nbf": NOW + 61}), early),
        (json!({"iat": NOW + 61}), early),
        (json!({"nbf": null, "iat": null}), None),
        (json!({"nbf": "x"}), no_time),
        (json!({"nbf": -5.5}), None),
        (json!({"aud": ["x", "other"]}), None),
        (json!({"aud": ["x"]}), foreign),
        (json!({"aud": []}), foreign),
        (json!({"aud": ""}), foreign),
        (json!({"aud": {"switchboard": 1}}), foreign),
        (json!({"aud": null}), Some("the token has no audience (aud)")),
        (
            json!({"iss": "https://issuer.example/"}),
            Some("the token is of another issuer"),
        ),
    ] {
        let judged = bench.judge(&signer.token(&header, &claims(&changes))).await;
        assert_eq!(judged.err().as_deref(), expected, "{changes}");
    }
}

#[tokio::test]
async fn the_user_is_who_the_claims_say_but_never_one_of_the_cluster() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let header = json!({"alg": "ES256", "kid": "1"});
    let unverified = "the token's e-mail address is not verified";
    let reserved = "the user's name begins with system:";
    let no_name = "the user's name is empty, too long or not printable";
    for (changes, expected) in [
        (json!({"email_verified": true}), None),
        (json!({"email_verified": false}), Some(unverified)),
        (json!({"email_verified": "false"}), Some(unverified)),
        (json!({"email_verified": "true"}), Some(unverified)),
        (
            json!({"email": null}),
            Some("the token has no claim with the user's name"),
        ),
        (json!({"email": 7}), Some("the token has no claim with the user's name")),
        (json!({"email": ""}), Some(no_name)),
        (json!({"email": " alice"}), Some(no_name)),
        (json!({"email": "a\nb"}), Some(no_name)),
        (json!({"email": "a\u{202e}b"}), Some(no_name)),
        (json!({"email": "a".repeat(513)}), Some(no_name)),
        (json!({"email": "system:admin"}), Some(reserved)),
        (json!({"email": "System:admin"}), Some(reserved)),
        (json!({"email": " system:admin"}), Some(reserved)),
        (json!({"email": "system:serviceaccount:kube-system:x"}), Some(reserved)),
        (
            json!({"groups": [["ops"]]}),
            Some("the token's groups are no list of texts"),
        ),
        (
            json!({"groups": {"ops": true}}),
            Some("the token's groups are no list of texts"),
        ),
    ] {
        let judged = bench.judge(&signer.token(&header, &claims(&changes))).await;
        assert_eq!(judged.err().as_deref(), expected, "{changes}");
    }
    for (groups, expected) in [
        (json!("ops"), vec!["ops"]),
        (json!(null), vec![]),
        (json!(["ops", "ops", "", "a\u{0}b", "dev"]), vec!["ops", "dev"]),
        (
            json!([
                "system:masters",
                "system:authenticated",
                "SYSTEM:masters",
                " system:masters"
            ]),
            vec![],
        ),
        (json!("system:masters"), vec![]),
    ] {
        let user = bench
            .judge(&signer.token(&header, &claims(&json!({ "groups": groups }))))
            .await;
        let mut expected: Vec<Box<str>> = expected.into_iter().map(Into::into).collect();
        expected.push(AUTHENTICATED.into());
        assert_eq!(user.unwrap().groups, expected, "{groups}");
    }
}

#[tokio::test]
async fn without_a_claim_for_groups_there_are_none_and_other_names_need_no_verified_address() {
    let signer = Signer::p256();
    let plain = Issuer {
        username: "sub".into(),
        groups: None,
        ..issuer()
    };
    let bench = Bench::new(plain, &[signer.jwk("1")]).await;
    let changed = claims(&json!({"email_verified": false, "groups": ["ops"]}));
    let user = bench
        .judge(&signer.token(&json!({"alg": "ES256", "kid": "1"}), &changed))
        .await
        .unwrap();
    assert_eq!(
        (&*user.name, user.groups.as_slice()),
        ("4711", [AUTHENTICATED.into()].as_slice())
    );
}

#[tokio::test]
async fn claims_that_two_readers_could_read_differently_are_refused() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let good = claims(&json!({})).to_string();
    let inside = good.strip_prefix('{').unwrap();
    let deep = format!("{}1{}", "[".repeat(4000), "]".repeat(4000));
    for bad in [
        format!(r#"{{"email":"mallory@example.com",{inside}"#),
        format!(r#"{{"\u0065mail":"mallory@example.com",{inside}"#),
        format!(r#"{{"exp":1,{inside}"#),
        format!(r#"{{"x":{deep},{inside}"#),
        format!(r#"{{"x":1e400,{inside}"#),
        format!("{good}{good}"),
        format!("[{good}]"),
    ] {
        let token = signer.raw_token(r#"{"alg":"ES256","kid":"1"}"#, &bad);
        assert_eq!(bench.refusal(&token).await, "the token is malformed", "{:.80}", bad);
    }
}

#[tokio::test]
async fn a_changed_file_of_keys_counts_at_the_first_token_with_a_new_key_and_a_bad_one_never() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let bench = Bench::new(issuer(), &[old.jwk("old")]).await;
    let good = claims(&json!({}));
    let by_old = old.token(&json!({"alg": "ES256", "kid": "old"}), &good);
    let by_new = new.token(&json!({"alg": "ES256", "kid": "new"}), &good);
    assert_eq!(bench.refusal(&by_new).await, "the token's key is none of its issuer's");
    for bad in [
        "",
        "{",
        "[]",
        r#"{"keys":[]}"#,
        r#"{"keys":[{"kty":"oct","k":"AAAA","kid":"new"}]}"#,
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
    assert_eq!(bench.refusal(&by_old).await, "the token's key is none of its issuer's");
    // The only key, without an id in the token: its change looks like a wrong signature.
    let nameless = old.token(&json!({"alg": "ES256"}), &good);
    assert_eq!(bench.refusal(&nameless).await, "the token's signature is wrong");
    std::fs::write(bench.file.path(), json!({"keys": [old.jwk("old")]}).to_string()).unwrap();
    assert!(bench.judge(&nameless).await.is_ok());
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_key_that_cannot_verify_is_left_out_and_named() {
    let rsa = Signer::rsa().jwk("1");
    let p256 = Signer::p256().jwk("1");
    let with = |key: &Value, name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        key
    };
    let short = encoded([0xff; 128]);
    let almost = encoded([0x7f; 256]);
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
            with(&rsa, "n", json!(short)),
            "is an RSA key of less than 2,048 or more than 8,192 bits",
        ),
        (
            with(&rsa, "n", json!(almost)),
            "is an RSA key of less than 2,048 or more than 8,192 bits",
        ),
        (
            with(&rsa, "n", json!(encoded([0xff; 1025]))),
            "is an RSA key of less than 2,048 or more than 8,192 bits",
        ),
        (with(&rsa, "n", json!("*")), "has no valid n and e"),
        (
            with(&rsa, "e", json!("AQ")),
            "is an RSA key of an exponent that is not accepted",
        ),
        (
            with(&rsa, "e", json!("AAAA")),
            "is an RSA key of an exponent that is not accepted",
        ),
        (
            with(&rsa, "e", json!("Ag")),
            "is an RSA key of an exponent that is not accepted",
        ),
        (with(&p256, "crv", json!("P-384")), "has an x or y of a wrong length"),
        (
            with(&p256, "crv", json!("secp256k1")),
            "has a curve other than P-256, P-384 and Ed25519",
        ),
        (
            with(&p256, "alg", json!("ES384")),
            "has an alg that is not supported or does not fit it",
        ),
        (with(&p256, "y", json!(null)), "has no x and y"),
        (
            json!({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}),
            "has an x of a wrong length",
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

#[tokio::test]
async fn every_fault_of_the_settings_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("junk"), "{}").unwrap();
    std::fs::write(path("good"), json!({"keys": [Signer::p256().jwk("1")]}).to_string()).unwrap();
    let url = |url: &str| Jwks::Url(url.into());
    let with = |name: &str, jwks: Jwks, ca: Option<&str>| Issuer {
        issuer: name.into(),
        jwks,
        ca: ca.map(path),
        ..issuer()
    };
    let faults = Issuers::new(&[
        with("0", url("https://issuer.example/keys"), None),
        with("0", url("https://issuer.example/keys"), None),
        with("", url("https://issuer.example/keys"), None),
        with("3", url("ftp://issuer.example"), None),
        with("4", url("http://issuer.example/keys"), None),
        with("5", url("https://user:password@issuer.example/"), None),
        with("6", url("not a url"), None),
        Issuer {
            audiences: vec!["".into()],
            ..with("10", Jwks::File(path("good")), None)
        },
        Issuer {
            username: "".into(),
            ..with("11", Jwks::File(path("good")), None)
        },
    ]);
    let folder = folder.path().display().to_string();
    let printed = faults
        .unwrap_err()
        .iter()
        .map(|fault| fault.to_string().replace(&folder, ""))
        .collect::<Vec<_>>();
    assert_eq!(
        printed,
        [
            "access.oidc[1].issuer: it is there twice",
            "access.oidc[2].issuer: it is empty",
            "access.oidc[3].jwks: it begins with neither https:// nor a path",
            "access.oidc[4].jwks: http:// is for loopback addresses only: another machine could send other keys",
            "access.oidc[5].jwks: it has a user name, which is not sent",
            "access.oidc[6].jwks: it is no URL",
            "access.oidc[7].audiences: it is empty",
            "access.oidc[8].username: it is empty",
        ]
    );
}

#[tokio::test]
async fn a_token_is_judged_by_the_issuer_that_it_names_and_by_no_other() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let signer = Signer::p256();
    std::fs::write(file.path(), json!({"keys": [signer.jwk("1")]}).to_string()).unwrap();
    let issuers = Issuers::new(&[Issuer {
        jwks: Jwks::File(file.path().to_owned()),
        ..issuer()
    }])
    .unwrap();
    let header = json!({"alg": "ES256", "kid": "1"});
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let good = claims(&json!({"exp": now + 600, "nbf": now, "iat": now}));
    let Some(Ok(Verdict::Proved(user))) = issuers.verify(&signer.token(&header, &good)).await else {
        panic!("refused");
    };
    assert_eq!(&*user.name, "alice@example.com");
    let mut ages = issuers.ages();
    assert!(matches!(ages.next(), Some(("https://issuer.example", Some(_)))));
    for other in [
        json!({"iss": "https://other.example"}),
        json!({"iss": null}),
        json!({"iss": 7}),
    ] {
        assert!(
            issuers.verify(&signer.token(&header, &claims(&other))).await.is_none(),
            "{other}"
        );
    }
    assert!(issuers.verify(&"opaque".into()).await.is_none());
}

proptest::proptest! {
    #[test]
    fn any_parts_are_a_token_or_none(header in "\\PC{0,80}|\\{\"alg\":\"ES256\",\\PC{0,40}\\}", claims in "\\PC{0,80}|\\{\"\\PC{0,20}\":\\PC{0,20}\\}", rest in "[a-zA-Z0-9._-]{0,40}") {
        for token in [format!("{}.{}.{rest}", encoded(&header), encoded(&claims)), rest] {
            if let Ok(jwt) = Jwt::parse(&token) {
                let now = UNIX_EPOCH + Duration::from_secs(NOW);
                claims::check(&jwt.claims, &issuer(), now).ok();
                claims::user(&jwt.claims, &issuer(), now).ok();
            }
        }
    }

    #[test]
    fn any_bytes_are_a_key_set_or_have_a_fault(text in "\\PC{0,80}|\\{\"keys\":\\[\\{\"kty\":\"(RSA|EC|OKP)\",\"(n|x|crv)\":\\PC{0,20}\\}\\]\\}") {
        KeySet::parse(text.as_bytes()).ok();
    }
}
