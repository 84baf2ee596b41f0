//! The claims of a verified token: whether they hold here and now, and the user that they describe.

use std::time::SystemTime;

use serde_json::Value;

use super::super::options::Issuer;
use super::super::user::{Method, User};
use crate::base::values::{is_name, is_reserved};
use crate::protocol::jwt::{Jwt, MALFORMED, OTHER_AUDIENCE, Object, SKEW, is_early};

/// Checks the claims that do not depend on the user. Returns the time from which the token is refused.
///
/// # Errors
/// The reason of the refusal, for the client.
pub(super) fn check(jwt: &Jwt, issuer: &Issuer, now: SystemTime) -> Result<SystemTime, &'static str> {
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

/// Returns the user whom the claims describe.
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

/// In bytes.
const MAX_NAME: usize = 512;
