//! The users of OIDC issuers: tokens whose signature is verified here, by the keys that their issuer publishes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::endpoint::Endpoint;
use self::jwt::SignedJwt;
use self::key_set::{KeySet, Signature};
use self::keys::{Keys, Source};
use super::options::{Issuer, Jwks};
use super::reviewer::{Unavailable, Verdict};
use crate::base::secret::Secret;
use crate::protocol::jwt::Jwt;

mod claims;
mod endpoint;
mod jwt;
mod key_set;
mod keys;

/// The configured issuers, with their keys.
#[derive(Debug)]
pub struct Issuers(Vec<Verifier>);

impl Issuers {
    /// Takes the settings, and follows the keys of each issuer in the background until it is dropped: a file every 10 s, a
    /// URL every 10 minutes, 30 s after a failure, and 5 s after one without any keys. For that it must be called within a
    /// runtime of tokio; elsewhere the settings are checked, and [`Self::verify`] has no keys.
    ///
    /// # Errors
    /// All faults of the settings. A file that cannot be used is none, and neither is a server: until it can be used, there
    /// is no verdict about the issuer's tokens.
    pub fn new(issuers: &[Issuer]) -> Result<Self, Vec<IssuerFault>> {
        let mut verifiers = Vec::new();
        let mut faults = Vec::new();
        for (index, issuer) in issuers.iter().enumerate() {
            let is_first = |other: &Issuer| other.issuer != issuer.issuer;
            let source = match issuers.iter().take(index).all(is_first) {
                true => judge(issuer),
                false => Err(("issuer", "it is there twice".into())),
            };
            match source {
                Ok(source) => verifiers.push((issuer.clone(), source)),
                Err((key, reason)) => faults.push(IssuerFault { index, key, reason }),
            }
        }
        match faults.is_empty() {
            true => Ok(Self(verifiers.into_iter().map(Verifier::new).collect())),
            false => Err(faults),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a token names one of these issuers.
    pub fn judges(&self, token: &Secret) -> bool {
        Jwt::of(token.expose()).is_some_and(|jwt| self.verifier(&jwt).is_some())
    }

    /// Judges a token of a client, whose address bounds how many of its tokens wait for keys. `None`: the token's `iss` is
    /// that of no configured issuer, or it is no JWT.
    pub async fn verify(&self, token: &Secret, client: IpAddr) -> Option<Result<Verdict, Unavailable>> {
        let jwt = Jwt::of(token.expose())?;
        Some(self.verifier(&jwt)?.judge(&jwt, SystemTime::now(), client).await)
    }

    fn verifier(&self, jwt: &Jwt<'_>) -> Option<&Verifier> {
        let issuer = jwt.claims.text("iss")?;
        self.0.iter().find(|verifier| *verifier.issuer.issuer == *issuer)
    }

    /// The time since the keys of each issuer were last confirmed by their source; `None` without keys.
    pub fn ages(&self) -> impl Iterator<Item = (&str, Option<Duration>)> {
        self.0.iter().map(|Verifier { issuer, keys }| {
            let confirmed = keys.current().confirmed;
            (&*issuer.issuer, confirmed.map(|at| at.elapsed()))
        })
    }
}

/// A fault of an issuer's settings. Prints as `access.oidc[0].jwks: it is no URL`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("access.oidc[{index}].{key}: {reason}")]
pub struct IssuerFault {
    /// Its position in the list, from 0.
    pub index: usize,
    /// The key.
    pub key: &'static str,
    /// The reason.
    pub reason: Box<str>,
}

/// Finds the faults of an issuer's settings, each with its key.
fn judge(issuer: &Issuer) -> Result<Source, (&'static str, Box<str>)> {
    for (key, is_empty) in [
        ("issuer", issuer.issuer.is_empty()),
        ("audiences", issuer.audiences.iter().all(|audience| audience.is_empty())),
        ("username", issuer.username.is_empty()),
    ] {
        if is_empty {
            return Err((key, "it is empty".into()));
        }
    }
    match &issuer.jwks {
        Jwks::Url(url) => {
            let endpoint = Endpoint::parse(url, issuer.ca.clone()).map_err(|reason| ("jwks", reason.into()))?;
            Ok(Source::Endpoint(endpoint))
        }
        Jwks::File(path) => Ok(Source::File(path.clone())),
    }
}

/// Counts the keys of a set that can verify tokens.
///
/// # Errors
/// The reason why the set cannot be used.
pub fn check_keys(bytes: &[u8]) -> Result<usize, Box<str>> {
    KeySet::parse(bytes).map(|keys| keys.len())
}

/// Reads the authorities of a URL's server.
///
/// # Errors
/// The path, and the reason why they cannot be used.
pub fn check_authorities(path: &Path) -> Result<(), Box<str>> {
    endpoint::roots_of(path).map(drop)
}

/// One issuer, with its keys.
#[derive(Debug)]
struct Verifier {
    issuer: Issuer,
    keys: Keys,
}

impl Verifier {
    fn new((issuer, source): (Issuer, Source)) -> Self {
        let pace = source.pace();
        let keys = Keys::follow(&issuer.issuer, source, pace);
        Self { issuer, keys }
    }

    async fn judge(&self, jwt: &Jwt<'_>, now: SystemTime, client: IpAddr) -> Result<Verdict, Unavailable> {
        let refused = |reason: &str| Ok(Verdict::Refused(reason.into()));
        // What costs nothing comes first: a token that is refused anyway shall not have the keys renewed.
        let read = SignedJwt::of(jwt).and_then(|signed| {
            let expires = claims::check(jwt, &self.issuer, now)?;
            Ok((signed, claims::user(&jwt.claims, &self.issuer, expires)?))
        });
        let (signed, user) = match read {
            Ok(read) => read,
            Err(reason) => return refused(reason),
        };
        match self.has_signed(&signed, client).await? {
            Ok(()) => Ok(Verdict::Proved(Arc::new(user))),
            Err(reason) => refused(reason),
        }
    }

    /// Whether the signature is one of the issuer's, or the reason why it is not.
    async fn has_signed(&self, jwt: &SignedJwt<'_>, client: IpAddr) -> Result<Result<(), &'static str>, Unavailable> {
        let mut state = self.keys.current();
        let is_open = |keys: &Arc<KeySet>| matches!(keys.judge(jwt), Signature::Open(_));
        if state.keys.as_ref().is_none_or(is_open) {
            state = self.keys.renewed(state, client).await?;
        }
        match state.keys.as_ref().map(|keys| keys.judge(jwt)) {
            Some(Signature::Right) => Ok(Ok(())),
            Some(Signature::Wrong(reason)) => Ok(Err(reason)),
            Some(Signature::Open(reason)) if state.failure.is_none() => Ok(Err(reason)),
            // The key may be a new one, which could not be had.
            Some(Signature::Open(_)) | None => Err(state.unavailable()),
        }
    }
}

#[cfg(test)]
mod tests;
