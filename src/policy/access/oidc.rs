//! The users of OIDC issuers: tokens whose signature is verified here, by the keys that their issuer publishes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use self::endpoint::Endpoint;
use self::key_set::{KeySet, Signature};
use self::keys::{Keys, Source};
use self::token::SignedJwt;
use super::options::{Issuer, Jwks};
use super::reviewer::{ReviewError, Verdict};
use crate::base::text::chain;
use crate::protocol::jwt::Jwt;
use crate::uplink::dial::tls::{Peer, verifier_of};

mod endpoint;
mod key_set;
mod keys;
mod token;

/// The configured issuers, with their keys.
#[derive(Debug)]
pub struct Issuers(Vec<Arc<Verifier>>);

impl Issuers {
    /// Starts to refresh the keys of each issuer in the background, until this is dropped. A file is read every 10 s, a
    /// URL every 10 minutes, or 30 s after a failure. Without any keys, the next read follows a failure after 5 s.
    /// Outside a tokio runtime there are no keys. Without keys, there is no verdict about the issuer's tokens.
    pub fn new(issuers: &[Issuer]) -> Self {
        Self(issuers.iter().map(|issuer| Arc::new(Verifier::new(issuer))).collect())
    }

    /// Returns the issuer that a token names in its claim `iss`; `None` if it is not configured.
    pub(super) fn verifier(&self, jwt: &Jwt) -> Option<&Arc<Verifier>> {
        let issuer = jwt.claims.text("iss")?;
        self.0.iter().find(|verifier| *verifier.issuer.issuer == *issuer)
    }
}

/// Counts the keys of a set that can verify tokens.
///
/// # Errors
/// The reason why the set cannot be used.
pub fn check_keys(bytes: &[u8]) -> Result<usize, Box<str>> {
    KeySet::parse(bytes).map(|keys| keys.len())
}

/// Checks the file of CA certificates for the server of a URL.
///
/// # Errors
/// The path, and the reason why the certificates cannot be used.
pub fn check_authorities(path: &Path) -> Result<(), Box<str>> {
    let checked = verifier_of(path, Peer::ISSUER);
    checked.map(drop).map_err(|error| chain(error.as_ref()).into())
}

/// One issuer, with its keys.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) issuer: Issuer,
    keys: Keys,
}

impl Verifier {
    fn new(issuer: &Issuer) -> Self {
        let source = match &issuer.jwks {
            Jwks::Url(url) => Source::Endpoint(Endpoint::new(url, issuer)),
            Jwks::File(path) => Source::File(path.clone()),
        };
        let pace = source.pace();
        Self {
            issuer: issuer.clone(),
            keys: Keys::follow(&issuer.issuer, source, pace),
        }
    }

    /// Verifies a token. Of each client network, a limited number of tokens wait for keys.
    pub(super) async fn verify(&self, jwt: &Jwt, now: SystemTime, client: IpAddr) -> Result<Verdict, ReviewError> {
        let refused = |reason: &str| Ok(Verdict::Rejected(reason.into()));
        // The checks that cost nothing come first: a token that is refused anyway must not refresh the keys.
        let read = SignedJwt::from_jwt(jwt).and_then(|signed| {
            let expires = token::check_claims(jwt, &self.issuer, now)?;
            Ok((signed, token::user(&jwt.claims, &self.issuer, expires)?))
        });
        let (signed, user) = match read {
            Ok(read) => read,
            Err(reason) => return refused(reason),
        };
        match self.has_signed(&signed, client).await? {
            Ok(()) => Ok(Verdict::Authenticated(Arc::new(user))),
            Err(reason) => refused(reason),
        }
    }

    /// Checks the signature. The inner error is the reason why it is not the issuer's.
    async fn has_signed(&self, jwt: &SignedJwt<'_>, client: IpAddr) -> Result<Result<(), &'static str>, ReviewError> {
        let mut state = self.keys.current();
        let is_open = |keys: &Arc<KeySet>| matches!(keys.check(jwt), Signature::Open(_));
        if state.keys.as_ref().is_none_or(is_open) {
            state = self.keys.renewed(state, client).await?;
        }
        match state.keys.as_ref().map(|keys| keys.check(jwt)) {
            Some(Signature::Right) => Ok(Ok(())),
            Some(Signature::Wrong(reason)) => Ok(Err(reason)),
            Some(Signature::Open(reason)) if state.failure.is_none() => Ok(Err(reason)),
            // The key may be a new one that could not be fetched.
            Some(Signature::Open(_)) | None => Err(state.unavailable()),
        }
    }
}

#[cfg(test)]
mod tests;
