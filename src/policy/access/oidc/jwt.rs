//! A JWT in its three parts (RFC 7519), read strictly: a name that is there twice, or a part that is no object, is a fault.

use std::collections::BTreeMap;
use std::fmt;

use jsonwebtoken::Algorithm;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::super::token::decoded;

/// A JWT whose signature can be verified.
pub(super) struct Jwt<'a> {
    /// What is signed: header and payload, as they arrived.
    pub(super) message: &'a str,
    /// The signature, in Base64.
    pub(super) signature: &'a str,
    /// The algorithm of the signature, as the header says.
    pub(super) algorithm: Algorithm,
    /// The id of the key, if the header names one.
    pub(super) key_id: Option<Box<str>>,
    /// The claims, which are not to be trusted before the signature is.
    pub(super) claims: Object,
}

impl<'a> Jwt<'a> {
    /// Reads a token. Keys and addresses of keys in its header (`jwk`, `jku`, `x5c`, `x5u`) are not looked at.
    ///
    /// # Errors
    /// The fault, for the client.
    pub(super) fn parse(token: &'a str) -> Result<Self, &'static str> {
        let (message, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, payload) = message.split_once('.').ok_or(MALFORMED)?;
        let object = |part: &str| -> Option<Object> { serde_json::from_slice(&decoded(part)?).ok() };
        let Object(header) = object(header).ok_or(MALFORMED)?;
        let claims = object(payload).ok_or(MALFORMED)?;
        // An extension that must be understood, and is not (RFC 7515 section 4.1.11).
        if header.contains_key("crit") {
            return Err("the token has extensions that are not known");
        }
        let name = header.get("alg").and_then(Value::as_str).ok_or(MALFORMED)?;
        let algorithm = algorithm(name).ok_or("the token's algorithm is not accepted")?;
        // A token of another kind, such as a logout token, may have the same issuer, audience and key (RFC 8725 section 3.11).
        let is_right = |kind: &str| TYPES.iter().any(|right| kind.eq_ignore_ascii_case(right));
        match header.get("typ") {
            None => {}
            Some(Value::String(kind)) if is_right(kind) => {}
            Some(_) => return Err("the token is of another type"),
        }
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str().into()),
            Some(_) => return Err(MALFORMED),
        };
        Ok(Self {
            message,
            signature,
            algorithm,
            key_id,
            claims,
        })
    }
}

/// The algorithm of that name, if it is one that verifies with a public key (RFC 7518 section 3.1, RFC 8037, RFC 9864).
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    Some(match name {
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "PS256" => Algorithm::PS256,
        "PS384" => Algorithm::PS384,
        "PS512" => Algorithm::PS512,
        "ES256" => Algorithm::ES256,
        "ES384" => Algorithm::ES384,
        "EdDSA" | "Ed25519" => Algorithm::EdDSA,
        _ => return None,
    })
}

/// A JSON object whose names differ: of two claims of one name, another reader might have taken the other one (RFC 7519
/// section 4).
pub(super) struct Object(BTreeMap<Box<str>, Value>);

impl Object {
    /// The value of that name. Null is no value.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut values = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    if values.insert(name, value).is_some() {
                        return Err(A::Error::custom("a name is there twice"));
                    }
                }
                Ok(Object(values))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// The fault of what is no JWT.
pub(super) const MALFORMED: &str = "the token is malformed";
/// The types of a token for access (RFC 7519 section 5.1, RFC 9068 section 2.1), in lower case.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/at+jwt", "jose"];
