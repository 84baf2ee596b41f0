//! A JSON Web Key Set (RFC 7517): the public keys of an issuer, each with the algorithms that it is for.

use std::fmt;

use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::super::token::decoded;
use super::jwt::{Jwt, algorithm};

/// The keys of a set that can verify a signature; at least one.
pub(super) struct KeySet(Vec<Key>);

/// A public key.
pub(super) struct Key {
    id: Option<Box<str>>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// What a set has for a token.
pub(super) enum Found<'a> {
    /// One of these keys has signed it, or none has.
    Keys(Vec<&'a Key>),
    /// No key of the set has the id.
    Unknown,
    /// The key of that id is for other algorithms.
    Unfit,
    /// The token names no key, and the set has several for its algorithm.
    Ambiguous,
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
        if keys.len() > MOST {
            return Err(format!("it has more than {MOST} keys").into());
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

    /// The keys that may have signed a token: those of its key id; without one, the only key for its algorithm.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Found<'_> {
        let has_id = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        let named: Vec<&Key> = self.0.iter().filter(has_id).collect();
        let is_unknown = named.is_empty();
        let fit = named.into_iter().filter(|key| key.algorithms.contains(&algorithm));
        let fit: Vec<&Key> = fit.take(MOST_TRIED).collect();
        match (id, fit.len()) {
            _ if is_unknown => Found::Unknown,
            (_, 0) => Found::Unfit,
            (None, 2..) => Found::Ambiguous,
            (Some(_), _) | (None, _) => Found::Keys(fit),
        }
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.len()).finish()
    }
}

/// The members of a JSON Web Key that matter here. A private key has more.
#[derive(Deserialize)]
struct Members {
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
    /// Whether the token's signature is one by this key.
    pub(super) fn has_signed(&self, jwt: &Jwt<'_>) -> bool {
        let message = jwt.message.as_bytes();
        self.algorithms.contains(&jwt.algorithm)
            && jsonwebtoken::crypto::verify(jwt.signature, message, &self.key, jwt.algorithm).unwrap_or(false)
    }

    fn from_json(value: Value) -> Result<Self, &'static str> {
        let members: Members = serde_json::from_value(value).map_err(|_| "is no JSON Web Key")?;
        if members.usage.as_ref().is_some_and(|usage| usage != "sig") {
            return Err("is not for signatures (use)");
        }
        let verifies = |operations: &Vec<String>| operations.iter().any(|operation| operation == "verify");
        if members.key_ops.as_ref().is_some_and(|operations| !verifies(operations)) {
            return Err("is not to verify signatures (key_ops)");
        }
        let (possible, key) = match (&*members.kty, members.crv.as_deref()) {
            ("RSA", _) => (&RSA[..], members.rsa()?),
            ("EC", Some("P-256")) => (&[Algorithm::ES256][..], members.elliptic(32)?),
            ("EC", Some("P-384")) => (&[Algorithm::ES384][..], members.elliptic(48)?),
            ("OKP", Some("Ed25519")) => (&[Algorithm::EdDSA][..], members.edwards()?),
            ("EC" | "OKP", _) => return Err("has a curve other than P-256, P-384 and Ed25519"),
            _ => return Err("has a kty other than RSA, EC and OKP"),
        };
        let mut algorithms = possible.to_vec();
        if let Some(name) = &members.alg {
            let only = algorithm(name);
            algorithms.retain(|possible| Some(*possible) == only);
        }
        if algorithms.is_empty() {
            return Err("has an alg that is not supported or does not fit it");
        }
        Ok(Self {
            id: members.kid,
            algorithms,
            key,
        })
    }
}

impl Members {
    fn rsa(&self) -> Result<DecodingKey, &'static str> {
        let component = |text: &Option<String>| text.as_deref().and_then(decoded).ok_or("has no valid n and e");
        let (modulus, exponent) = (component(&self.n)?, component(&self.e)?);
        let (modulus, exponent) = (trimmed(&modulus), trimmed(&exponent));
        let is_short = modulus.len() == 256 && modulus.first().is_some_and(|first| *first < 0x80);
        if !(256..=1024).contains(&modulus.len()) || is_short {
            return Err("is an RSA key of less than 2,048 or more than 8,192 bits");
        }
        // An even exponent, or 1, is none of RSA; long ones cost time. All keys in use have 3 or 65537.
        let is_good = exponent.len() <= 4 && exponent != [1] && exponent.last().is_some_and(|last| last % 2 == 1);
        if !is_good {
            return Err("is an RSA key of an exponent that is not accepted");
        }
        Ok(DecodingKey::from_rsa_raw_components(modulus, exponent))
    }

    fn elliptic(&self, length: usize) -> Result<DecodingKey, &'static str> {
        let (Some(x), Some(y)) = (&self.x, &self.y) else {
            return Err("has no x and y");
        };
        let is_whole = |text: &String| decoded(text).is_some_and(|bytes| bytes.len() == length);
        if !is_whole(x) || !is_whole(y) {
            return Err("has an x or y of a wrong length");
        }
        DecodingKey::from_ec_components(x, y).map_err(|_| "has no valid x and y")
    }

    fn edwards(&self) -> Result<DecodingKey, &'static str> {
        let x = self.x.as_deref().and_then(decoded).filter(|x| x.len() == 32);
        let x = x.ok_or("has an x of a wrong length")?;
        // The last bit is the sign of the point's other coordinate (RFC 8032 section 5.1.2).
        let (last, first) = x.split_last().unwrap_or((&0, &[]));
        let is_small = |y: &[u8; 32]| y.split_last() == Some((&(last & 0x7f), first));
        if SMALL_ORDER.iter().any(is_small) {
            return Err("is an Ed25519 key of small order");
        }
        Ok(DecodingKey::from_ed_der(&x))
    }
}

/// A number without the zeros at its beginning.
fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// The algorithms of an RSA key that names none.
const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
/// The points of edwards25519 whose order divides 8, by their y as RFC 8032 section 5.1.2 encodes it, and the two of them
/// that have a second encoding above the prime: any attacker can sign by such a key. They are those that libsodium's
/// `ge25519_has_small_order` refuses; the multiples of a point by the order of the group (RFC 8032 section 5.1) are the same.
const SMALL_ORDER: [[u8; 32]; 7] = [
    number(0, 0, 0),
    number(1, 0, 0),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf,
        0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20,
        0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
    // The prime 2^255 - 19 has 0xed as its lowest byte: less one, itself, and one more.
    number(0xec, 0xff, 0x7f),
    number(0xed, 0xff, 0x7f),
    number(0xee, 0xff, 0x7f),
];

/// A number by its lowest byte, those between, and the highest one.
const fn number(lowest: u8, others: u8, highest: u8) -> [u8; 32] {
    let o = others;
    [
        lowest, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, highest,
    ]
}

/// The keys of the largest set. Issuers publish two or three.
const MOST: usize = 100;
/// The keys of one id that are tried: only a set that breaks RFC 7517 section 4.5 has more than one for an algorithm.
const MOST_TRIED: usize = 4;
