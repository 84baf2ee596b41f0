//! The credential of a request: the value of `Proxy-Authorization`, parsed once, or that of an SSH login.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::base::secret::Secret;
use crate::protocol::host_key::HostKey;
use crate::tunnel::ssh::jump::UserCertificate;

/// The credential in `Proxy-Authorization` (RFC 9110 section 11.7.2), or that of an SSH login.
#[derive(Clone, Debug)]
pub enum Credential {
    /// A user and a password (RFC 7617). Clients without a field for tokens send a token as the password.
    Basic {
        /// The user, in UTF-8; it may be empty.
        user: Box<str>,
        /// The password, or a token.
        password: Secret,
    },
    /// A token (RFC 6750 section 2.1).
    Bearer(Secret),
    /// A user and a public key, whose signature the SSH server has verified.
    PublicKey {
        /// The user.
        user: Box<str>,
        /// The key.
        key: Arc<HostKey>,
    },
    /// A user and the certificate of a key, of which the SSH server has verified all signatures.
    SshCertificate {
        /// The user.
        user: Box<str>,
        /// The certificate.
        certificate: Arc<UserCertificate>,
    },
}

/// Why the field is no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The request has the field twice.
    #[error("Proxy-Authorization is there twice")]
    Repeated,
    /// The scheme is neither Basic nor Bearer.
    #[error("Proxy-Authorization is neither Basic nor Bearer")]
    Scheme,
    /// The credential after `Basic` is not `user:password` in Base64.
    #[error("the Basic credential is malformed")]
    Basic,
    /// There is nothing after `Bearer`, or bytes that no token has.
    #[error("the Bearer token is malformed")]
    Bearer,
}

impl Credential {
    /// Returns the user and the password of an SSH connection; `None` if one has a control character, as no password of
    /// HTTP can have (RFC 7617 section 2).
    pub fn of_ssh(user: &str, password: Secret) -> Option<Self> {
        let is_text = |text: &str| !text.contains(char::is_control);
        let user = Box::from(user);
        (is_text(&user) && is_text(password.expose())).then_some(Self::Basic { user, password })
    }

    /// Parses the value of the field. Any printable ASCII without spaces may be a token.
    ///
    /// # Errors
    /// The error, which contains no part of the value.
    pub fn parse(value: &[u8]) -> Result<Self, CredentialError> {
        let value = std::str::from_utf8(value).map_err(|_| CredentialError::Scheme)?;
        let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return basic(rest).ok_or(CredentialError::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(CredentialError::Scheme);
        }
        // A space before a token is not skipped: the API server ignores such a token, and authenticates its bearer as
        // `system:anonymous`.
        let is_token = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic());
        is_token
            .then(|| Self::Bearer(rest.into()))
            .ok_or(CredentialError::Bearer)
    }
}

fn basic(encoded: &str) -> Option<Credential> {
    let decoded = Zeroizing::new(STANDARD.decode(encoded.trim_matches(' ')).ok()?);
    let text = std::str::from_utf8(&decoded).ok()?;
    // Control characters are forbidden in both: RFC 7617 section 2.
    let (user, password) = text.split_once(':').filter(|_| !text.contains(char::is_control))?;
    Some(Credential::Basic {
        user: user.into(),
        password: password.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(value: &str) -> Result<(Option<String>, String), CredentialError> {
        Credential::parse(value.as_bytes()).map(|credential| match credential {
            Credential::Basic { user, password } => (Some(user.into()), password.expose().to_owned()),
            Credential::Bearer(token) => (None, token.expose().to_owned()),
            Credential::PublicKey { .. } | Credential::SshCertificate { .. } => panic!("no value of HTTP is a key"),
        })
    }

    #[test]
    fn basic_and_bearer_are_read_and_each_fault_is_named() {
        let user = |user: &str, password: &str| Ok((Some(user.to_owned()), password.to_owned()));
        for (value, expected) in [
            ("Basic YWxpY2U6cGFzczp3b3Jk", user("alice", "pass:word")),
            ("basic  Ong=", user("", "x")),
            ("Bearer a.b.c", Ok((None, "a.b.c".to_owned()))),
            ("BEARER x", Ok((None, "x".to_owned()))),
            ("Bearer  x", Err(CredentialError::Bearer)),
            ("Bearer x y", Err(CredentialError::Bearer)),
            ("Bearer", Err(CredentialError::Bearer)),
            ("Bearer ", Err(CredentialError::Bearer)),
            ("Basic", Err(CredentialError::Basic)),
            ("Basic YWxpY2U=", Err(CredentialError::Basic)),
            ("Basic YWxpY2U6cGFzc3dvcmQ", Err(CredentialError::Basic)),
            ("Basic YToAYg==", Err(CredentialError::Basic)),
            ("Negotiate abc", Err(CredentialError::Scheme)),
            ("", Err(CredentialError::Scheme)),
        ] {
            assert_eq!(parsed(value), expected, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_credential_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Credential::parse(&bytes).ok();
        }
    }
}
