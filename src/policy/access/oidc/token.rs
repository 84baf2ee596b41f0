//! A token of an issuer: a JWT whose signature can be verified, whether its claims hold here and now, and the user that they
//! describe.

use std::time::SystemTime;

use jsonwebtoken::Algorithm;
use serde_json::Value;

use super::super::options::Issuer;
use super::super::user::{Method, User};
use crate::base::values::{is_name, is_reserved};
use crate::protocol::jwt::{Jwt, MALFORMED, OTHER_AUDIENCE, Object, SKEW, is_early};

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

/// Checks the claims that do not depend on the user. Returns the time from which the token is refused.
///
/// # Errors
/// The reason of the refusal, for the client.
pub(super) fn check_claims(jwt: &Jwt, issuer: &Issuer, now: SystemTime) -> Result<SystemTime, &'static str> {
    let claims = &jwt.claims;
    if claims.text("iss") != Some(&*issuer.issuer) {
        return Err("the token is of another issuer");
    }
    claims.list("aud").ok_or("the token has no audience (aud)")?;
    if !jwt.is_for(&issuer.audiences) {
        return Err(OTHER_AUDIENCE);
    }
    let expires = claims.time("exp")?.ok_or("the token never expires (exp)")?;
    claims.time("nbf")?;
    if let Some(reason) = jwt.refused_by_time(now) {
        return Err(reason);
    }
    if claims.time("iat")?.is_some_and(|issued| is_early(issued, now)) {
        return Err("the token is not valid yet");
    }
    expires.checked_add(SKEW).ok_or(MALFORMED)
}

/// Returns the user that the claims describe.
///
/// # Errors
/// The reason why they describe none, for the client.
pub(super) fn user(claims: &Object, issuer: &Issuer, expires: SystemTime) -> Result<User, &'static str> {
    let name = claims.text(&issuer.username);
    let name = name.ok_or("the token has no claim with the user's name")?;
    // As in Kubernetes, an unconfirmed address is refused, since it may be that of another user. An issuer that omits
    // the claim is taken to have no unconfirmed addresses; null counts as unconfirmed.
    let verified = claims.get("email_verified").and_then(Value::as_bool);
    let is_verified = !claims.has("email_verified") || verified == Some(true);
    if &*issuer.username == "email" && !is_verified {
        return Err("the token's e-mail address is not verified");
    }
    let prefixed = format!("{}{name}", issuer.username_prefix.as_deref().unwrap_or_default());
    // These names are the cluster's own: `system:admin`, `system:serviceaccount:…`, `system:node:…`. With a prefix, an
    // issuer may be another cluster, since the prefixed names no longer begin with `system:`.
    if is_reserved(&prefixed) {
        return Err("the user's name begins with system:");
    }
    if !is_name(name, MAX_NAME) {
        return Err("the user's name is empty, too long or not printable");
    }
    Ok(User {
        uid: claims.text("sub").map(Into::into),
        ..User::claimed(Method::Oidc, &prefixed, groups(claims, issuer)?, Some(expires))
    })
}

/// Returns the groups, without invalid names and those that begin with `system:`: `system:masters` may do everything,
/// whatever the cluster's roles say. The token is not refused, since its owner may be unable to change the groups.
fn groups(claims: &Object, issuer: &Issuer) -> Result<Vec<Box<str>>, &'static str> {
    let values = issuer.groups.as_ref().and_then(|name| claims.list(name));
    let mut groups: Vec<Box<str>> = Vec::new();
    for value in values.unwrap_or_default() {
        let group = value.as_str().ok_or("the token's groups are not a list of strings")?;
        if is_name(group, MAX_NAME) && !is_reserved(group) && !groups.iter().any(|known| **known == *group) {
            groups.push(group.into());
        }
    }
    Ok(groups)
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
/// The longest name of a user or group, in bytes.
const MAX_NAME: usize = 512;
