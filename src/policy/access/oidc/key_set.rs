//! A JSON Web Key Set (RFC 7517): the public keys of an issuer, each with the algorithms that it is for.

use std::fmt;

use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::token::{RSA, SignedJwt, algorithm};
use crate::protocol::jwt::decoded;

/// The keys of a set that can verify a signature; at least one.
pub(super) struct KeySet(Vec<Key>);

/// A public key.
struct Key {
    id: Option<Box<str>>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// The result of checking a token's signature.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signature {
    /// A key of the set has made the signature.
    Right,
    /// No key has made the signature, for this reason.
    Wrong(&'static str),
    /// The same, but a newer set may have the key.
    Open(&'static str),
}

impl KeySet {
    /// Parses a set. Keys of unknown kinds, for encryption or too weak are left out (RFC 7517 section 5).
    ///
    /// # Errors
    /// The reason why the set cannot be used, such as that no key is left.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Box<str>> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let Set { keys } = serde_json::from_slice(bytes).map_err(|_| "it is no JSON Web Key Set")?;
        if keys.len() > MAX_KEYS {
            return Err(format!("it has more than {MAX_KEYS} keys").into());
        }
        let mut usable = Vec::new();
        let mut left_out = Vec::new();
        for (number, value) in (1..).zip(keys) {
            match Key::from_json(value) {
                Ok(key) => usable.push(key),
                Err(reason) => left_out.push(format!("key {number} {reason}")),
            }
        }
        match (usable.is_empty(), left_out.first()) {
            (false, _) => Ok(Self(usable)),
            (true, Some(first)) => Err(format!("it has no key that can be used: {first}").into()),
            (true, None) => Err("it has no keys".into()),
        }
    }

    /// Checks a token's signature by the keys of its key id; without a key id, by the only key for its algorithm.
    pub(super) fn check(&self, jwt: &SignedJwt<'_>) -> Signature {
        let id = jwt.key_id;
        let has_id = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        let named: Vec<&Key> = self.0.iter().filter(has_id).collect();
        if named.is_empty() {
            return Signature::Open("the token's key is not one of its issuer's");
        }
        let fit = named.into_iter().filter(|key| key.algorithms.contains(&jwt.algorithm));
        let fit: Vec<&Key> = fit.take(MAX_KEYS_TRIED).collect();
        let reason = match (id, fit.len()) {
            (_, 0) => "the token's algorithm is not that of its key",
            (None, 2..) => return Signature::Wrong("the token does not name its key (kid)"),
            _ if fit.iter().any(|key| key.has_signed(jwt)) => return Signature::Right,
            (Some(_) | None, _) => "the token's signature is wrong",
        };
        // Without an id, each change of the only key looks like a wrong signature.
        match id {
            Some(_) => Signature::Wrong(reason),
            None => Signature::Open(reason),
        }
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.len()).finish()
    }
}

/// The members of a JSON Web Key that matter here. Others, such as those of a private key, are ignored.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<Box<str>>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Key {
    /// Returns whether this key has made the token's signature. The algorithm must be one of the key's.
    fn has_signed(&self, jwt: &SignedJwt<'_>) -> bool {
        let message = jwt.message.as_bytes();
        jsonwebtoken::crypto::verify(jwt.signature, message, &self.key, jwt.algorithm).unwrap_or(false)
    }

    fn from_json(value: Value) -> Result<Self, &'static str> {
        let jwk: Jwk = serde_json::from_value(value).map_err(|_| "is no JSON Web Key")?;
        if jwk.usage.as_ref().is_some_and(|usage| usage != "sig") {
            return Err("is not for signatures (use)");
        }
        let verifies = |operations: &Vec<String>| operations.iter().any(|operation| operation == "verify");
        if jwk.key_ops.as_ref().is_some_and(|operations| !verifies(operations)) {
            return Err("is not to verify signatures (key_ops)");
        }
        let (possible, key) = match (&*jwk.kty, jwk.crv.as_deref()) {
            ("RSA", _) => (&RSA[..], jwk.rsa()),
            ("EC", Some("P-256")) => (&[Algorithm::ES256][..], jwk.elliptic(32)),
            ("EC", Some("P-384")) => (&[Algorithm::ES384][..], jwk.elliptic(48)),
            ("OKP", Some("Ed25519")) => (&[Algorithm::EdDSA][..], jwk.edwards()),
            ("EC" | "OKP", _) => return Err("has a curve other than P-256, P-384 and Ed25519"),
            _ => return Err("has a kty other than RSA, EC and OKP"),
        };
        let key = key.ok_or("has numbers that are not valid, of a wrong length or weak")?;
        let mut algorithms = possible.to_vec();
        if let Some(name) = &jwk.alg {
            let only = algorithm(name);
            algorithms.retain(|possible| Some(*possible) == only);
        }
        if algorithms.is_empty() {
            return Err("has an alg that is not supported or does not fit it");
        }
        Ok(Self {
            id: jwk.kid,
            algorithms,
            key,
        })
    }
}

/// Refuses malformed and weak keys, because neither may replace the usable keys of an earlier set.
impl Jwk {
    fn rsa(&self) -> Option<DecodingKey> {
        let number = |text: &Option<String>| {
            // Some libraries put a zero before the number (RFC 7518 section 6.3.1.1).
            let bytes = decoded(text.as_deref()?)?.into_iter().skip_while(|byte| *byte == 0);
            Some(bytes.collect::<Vec<u8>>())
        };
        let (modulus, exponent) = (number(&self.n)?, number(&self.e)?);
        // From 2,048 to 8,192 bits; the first byte is not zero.
        let is_short = modulus.len() == 256 && *modulus.first()? < 0x80;
        let is_strong = (256..=1024).contains(&modulus.len()) && !is_short;
        // For RSA, 1 and even exponents are invalid; long ones cost time. All keys in use have 3 or 65537.
        let is_good = exponent.len() <= 4 && exponent != [1] && exponent.last()? % 2 == 1;
        (is_strong && is_good).then(|| DecodingKey::from_rsa_raw_components(&modulus, &exponent))
    }

    /// Returns the key of a curve; `None` unless its numbers have this length in bytes.
    fn elliptic(&self, length: usize) -> Option<DecodingKey> {
        let (x, y) = (self.x.as_deref()?, self.y.as_deref()?);
        let is_whole = |text: &str| decoded(text).is_some_and(|bytes| bytes.len() == length);
        let key = DecodingKey::from_ec_components(x, y).ok();
        key.filter(|_| is_whole(x) && is_whole(y))
    }

    fn edwards(&self) -> Option<DecodingKey> {
        let x: [u8; 32] = decoded(self.x.as_deref()?)?.try_into().ok()?;
        // The last bit is the sign of the point's other coordinate (RFC 8032 section 5.1.2).
        let mut y = x;
        y[31] &= 0x7f;
        let is_small = SMALL_ORDER
            .iter()
            .any(|small| decoded(small).is_some_and(|small| small == y));
        (!is_small).then(|| DecodingKey::from_ed_der(&x))
    }
}

/// The y coordinates of the edwards25519 points whose order divides 8, in Base64: any signature can be made to fit such a key. Two
/// points have a second encoding, above the prime. libsodium's `ge25519_has_small_order` refuses the same.
const SMALL_ORDER: [&str; 7] = [
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_AU",
    "xxdqcD1N2E-6PAt2DRBnDyogU_osOczGTsf9d5KsA3o",
    "7P_______________________________________38",
    "7f_______________________________________38",
    "7v_______________________________________38",
];
/// The largest set, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The keys of the largest set. Issuers publish two or three.
const MAX_KEYS: usize = 100;
/// The keys of one id that are tried: only a set that breaks RFC 7517 section 4.5 has more than one for an algorithm.
const MAX_KEYS_TRIED: usize = 4;
