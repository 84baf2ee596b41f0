//! Tests of OIDC tokens: signatures and claims here, servers of key sets in `server`.

use std::net::Ipv4Addr;
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

use super::keys::RefreshSchedule;
use super::*;
use crate::base::secret::Secret;
use crate::policy::access::user::{AUTHENTICATED, Method, User};

mod algorithms;
mod headers_and_claims;
mod key_sets;
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

    /// Returns the public key.
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
        username_prefix: None,
        groups: Some("groups".into()),
        jwks: Jwks::File(tempfile::tempdir().unwrap().path().join("missing")),
        ca: None,
        no_env_proxy: false,
    }
}

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
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
        let pace = RefreshSchedule {
            good: Duration::from_hours(1),
            bad: Duration::from_hours(1),
            least: Duration::ZERO,
        };
        let keys = Keys::follow("test", Source::File(file.path().to_owned()), pace);
        keys.renewed(keys.current(), CLIENT).await.unwrap();
        let verifier = Verifier { issuer, keys };
        Self { verifier, file }
    }

    async fn judge(&self, token: &Secret) -> Result<Arc<User>, String> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let jwt = match Jwt::read(token.expose()) {
            Ok(jwt) => jwt.unwrap(),
            Err(reason) => return Err(reason.into()),
        };
        match self.verifier.verify(&jwt, now, CLIENT).await {
            Ok(Verdict::Authenticated(user)) => Ok(user),
            Ok(Verdict::Rejected(reason)) => {
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
            Some("the token's key is not one of its issuer's"),
        ),
        (
            json!({"alg": "ES256", "kid": ""}),
            &one,
            Some("the token's key is not one of its issuer's"),
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
async fn a_token_is_judged_by_the_issuer_that_it_names_and_by_no_other() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let signer = Signer::p256();
    std::fs::write(file.path(), json!({"keys": [signer.jwk("1")]}).to_string()).unwrap();
    let issuers = Issuers::new(&[Issuer {
        jwks: Jwks::File(file.path().to_owned()),
        ..issuer()
    }]);
    let header = json!({"alg": "ES256", "kid": "1"});
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let good = claims(&json!({"exp": now + 600, "nbf": now, "iat": now}));
    let token = signer.token(&header, &good);
    let jwt = Jwt::read(token.expose()).unwrap().unwrap();
    let judged = issuers.verifier(&jwt).unwrap().verify(&jwt, SystemTime::now(), CLIENT);
    let Ok(Verdict::Authenticated(user)) = judged.await else {
        panic!("refused");
    };
    assert_eq!(&*user.name, "alice@example.com");
    for other in [
        json!({"iss": "https://other.example"}),
        json!({"iss": null}),
        json!({"iss": 7}),
    ] {
        let token = signer.token(&header, &claims(&other));
        let jwt = Jwt::read(token.expose()).unwrap().unwrap();
        assert!(issuers.verifier(&jwt).is_none(), "{other}");
    }
}

proptest::proptest! {
    #[test]
    fn any_parts_are_a_token_or_none(header in "\\PC{0,80}|\\{\"alg\":\"ES256\",\\PC{0,40}\\}", claims in "\\PC{0,80}|\\{\"\\PC{0,20}\":\\PC{0,20}\\}", rest in "[a-zA-Z0-9._-]{0,40}") {
        for token in [format!("{}.{}.{rest}", encoded(&header), encoded(&claims)), rest] {
            if let Some(jwt) = Jwt::read(&token).ok().flatten() {
                let now = UNIX_EPOCH + Duration::from_secs(NOW);
                SignedJwt::from_jwt(&jwt).ok();
                token::check_claims(&jwt, &issuer(), now).ok();
                token::user(&jwt.claims, &issuer(), now).ok();
            }
        }
    }

    #[test]
    fn any_bytes_are_a_key_set_or_have_a_fault(text in "\\PC{0,80}|\\{\"keys\":\\[\\{\"kty\":\"(RSA|EC|OKP)\",\"(n|x|crv)\":\\PC{0,20}\\}\\]\\}") {
        KeySet::parse(text.as_bytes()).ok();
    }
}
