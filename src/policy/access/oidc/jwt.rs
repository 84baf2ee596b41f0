//! A JWT whose signature can be verified, by what its header says.

use jsonwebtoken::Algorithm;
use serde_json::Value;

use crate::protocol::jwt::{Jwt, MALFORMED};

/// A JWT whose signature can be verified.
pub(super) struct SignedJwt<'a> {
    /// The signed text: header and payload, as they arrived.
    pub(super) message: &'a str,
    /// The signature, in Base64.
    pub(super) signature: &'a str,
    /// The algorithm of the signature.
    pub(super) algorithm: Algorithm,
    /// The id of the key, if the header names one.
    pub(super) key_id: Option<&'a str>,
}

impl<'a> SignedJwt<'a> {
    /// Reads the header. Keys and addresses of keys in it (`jwk`, `jku`, `x5c`, `x5u`) are ignored.
    ///
    /// # Errors
    /// The error, for the client.
    pub(super) fn from_jwt(jwt: &'a Jwt) -> Result<Self, &'static str> {
        // No extension is known, and `crit` names one that the verifier must know (RFC 7515 section 4.1.11).
        if jwt.header.has("crit") {
            return Err("the token has extensions that are not known");
        }
        let name = jwt.header.text("alg").ok_or(MALFORMED)?;
        let algorithm = algorithm(name).ok_or("the token's algorithm is not accepted")?;
        // A token of another kind, such as a logout token, may have the same issuer, audience and key (RFC 8725 section
        // 3.11).
        let is_right = |kind: &str| TYPES.iter().any(|right| kind.eq_ignore_ascii_case(right));
        match jwt.header.get("typ") {
            None => {}
            Some(Value::String(kind)) if is_right(kind) => {}
            Some(_) => return Err("the token is of another type"),
        }
        let key_id = match jwt.header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str()),
            Some(_) => return Err(MALFORMED),
        };
        Ok(Self {
            message: jwt.message(),
            signature: jwt.signature(),
            algorithm,
            key_id,
        })
    }
}

/// Returns the algorithm of that name, if it verifies with a public key (RFC 7518 section 3.1, RFC 8037, RFC 9864).
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    let name = if name == "Ed25519" { "EdDSA" } else { name };
    let algorithm: Algorithm = name.parse().ok()?;
    let is_elliptic = matches!(algorithm, Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA);
    (is_elliptic || RSA.contains(&algorithm)).then_some(algorithm)
}

/// The algorithms of an RSA key that names none.
pub(super) const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
/// The types of a token for access (RFC 7519 section 5.1, RFC 9068 section 2.1), in lower case.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/at+jwt", "jose"];
