//! The claims of a verified token: whether they hold here and now, and the user that they describe.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::Value;

use super::super::options::Issuer;
use super::super::token::{SKEW, numeric_date};
use super::super::user::{AUTHENTICATED, Method, User};
use super::jwt::{MALFORMED, Object};
use crate::base::user_name::{is_name, is_reserved};

/// Checks the claims that do not depend on the user, and gives the time from which the token is refused.
///
/// # Errors
/// The reason of the refusal, for the client.
pub(super) fn check(claims: &Object, issuer: &Issuer, now: SystemTime) -> Result<SystemTime, &'static str> {
    if claims.get("iss").and_then(Value::as_str) != Some(&*issuer.issuer) {
        return Err("the token is of another issuer");
    }
    let is_own = |audience: &Value| {
        let audience = audience.as_str();
        audience.is_some_and(|audience| issuer.audiences.iter().any(|own| **own == *audience))
    };
    let audiences = claims.get("aud").ok_or("the token has no audience (aud)")?;
    let is_for_us = one_or_many(audiences).iter().any(is_own);
    if !is_for_us {
        return Err("the token is for another audience");
    }
    let expires = time(claims, "exp")?.ok_or("the token never expires (exp)")?;
    let last = expires.checked_add(SKEW).ok_or(MALFORMED)?;
    if last < now {
        return Err("the token has expired");
    }
    let latest = now.checked_add(SKEW).ok_or(MALFORMED)?;
    for name in ["nbf", "iat"] {
        if time(claims, name)?.is_some_and(|start| start > latest) {
            return Err("the token is not valid yet");
        }
    }
    Ok(last)
}

fn time(claims: &Object, name: &str) -> Result<Option<SystemTime>, &'static str> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let time = value.as_f64().and_then(numeric_date);
    time.map(Some).ok_or("the token has a time that is none")
}

/// The user whom the claims describe.
///
/// # Errors
/// The reason why they describe none, for the client.
pub(super) fn user(claims: &Object, issuer: &Issuer, expires: SystemTime) -> Result<User, &'static str> {
    let name = claims.get(&issuer.username).and_then(Value::as_str);
    let name = name.ok_or("the token has no claim with the user's name")?;
    // What Kubernetes does: an address that its owner has not confirmed may be that of another user. A token without the
    // claim is of an issuer that knows no unconfirmed ones.
    let is_verified = matches!(claims.get("email_verified"), None | Some(Value::Bool(true)));
    if &*issuer.username == "email" && !is_verified {
        return Err("the token's e-mail address is not verified");
    }
    // Such names are those of the cluster itself: `system:admin`, `system:serviceaccount:…`, `system:node:…`.
    if is_reserved(name) {
        return Err("the user's name begins with system:");
    }
    if !is_name(name, LONGEST_NAME) {
        return Err("the user's name is empty, too long or not printable");
    }
    let mut groups = groups(claims, issuer)?;
    groups.push(AUTHENTICATED.into());
    Ok(User {
        name: name.into(),
        uid: claims.get("sub").and_then(Value::as_str).map(Into::into),
        groups,
        extra: BTreeMap::new(),
        method: Method::Oidc,
        expires: Some(expires),
    })
}

/// The groups. Those that begin with `system:` are left out: `system:masters` may do everything, whatever the cluster's
/// roles say, and an issuer has no say in it. The token is not refused for them: it may not be in its owner's hand.
fn groups(claims: &Object, issuer: &Issuer) -> Result<Vec<Box<str>>, &'static str> {
    let Some(value) = issuer.groups.as_ref().and_then(|name| claims.get(name)) else {
        return Ok(Vec::new());
    };
    let mut groups: Vec<Box<str>> = Vec::new();
    for value in one_or_many(value) {
        let group = value.as_str().ok_or("the token's groups are no list of texts")?;
        if is_name(group, LONGEST_NAME) && !is_reserved(group) && !groups.iter().any(|known| **known == *group) {
            groups.push(group.into());
        }
    }
    Ok(groups)
}

/// A list's values, or the value itself.
fn one_or_many(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

/// In bytes.
const LONGEST_NAME: usize = 512;
