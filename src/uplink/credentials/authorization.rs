//! The credentials for the proxy: a bearer token, or a user and a password, and a certificate.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::base::file;
use crate::base::secret::Secret;
use crate::uplink::dial::tls::KeyPair;

/// The credentials for the proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<Secret>,
    /// The certificate for a proxy that asks for one.
    pub(crate) certificate: Option<KeyPair>,
    /// True if a program has printed them.
    pub(crate) is_of_program: bool,
    /// The context of the kubeconfig that they are of.
    pub(crate) context: Option<String>,
    /// When they expire, as the program that printed them has said.
    pub(crate) expires: Option<SystemTime>,
}

/// Compares credentials. Both are the user's own, so the comparison need not take constant time.
impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.shown() == other.shown()
    }
}

impl Credentials {
    /// Returns the credentials as those that a program has printed.
    pub(in crate::uplink) fn of_program(self) -> Self {
        Self {
            is_of_program: true,
            ..self
        }
    }

    /// Reads the token in a file.
    pub(super) fn of_file(path: &Path) -> anyhow::Result<Self> {
        let bytes = file::read(path, MAX_FILE).map(Zeroizing::new);
        let bytes = bytes.with_context(|| format!("cannot read the token in {}", path.display()))?;
        Self::of_token(&path.display().to_string(), &String::from_utf8_lossy(&bytes))
    }

    /// Parses a token. The error for an invalid token names `origin`.
    pub(super) fn of_token(origin: &str, text: &str) -> anyhow::Result<Self> {
        Self::bearer(text).with_context(|| format!("the token in {origin} cannot be sent"))
    }

    /// Parses a bearer token from a file or a program's output (RFC 6750 section 2.1), without the white space around
    /// it. Tokens of Rancher have a colon.
    ///
    /// # Errors
    /// The text is not a token that can be sent. The error does not quote it.
    pub(super) fn bearer(text: &str) -> anyhow::Result<Self> {
        let token = text.trim_ascii();
        let is_sendable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=:".contains(&byte);
        ensure!(!token.is_empty(), "it is empty");
        ensure!(token.len() <= MAX_TOKEN, "it has more than 12 KiB");
        ensure!(!token.contains('\n'), "it has more than one line");
        ensure!(
            token.bytes().all(is_sendable),
            "it has a character that a bearer token cannot have (RFC 6750 section 2.1)"
        );
        Ok(Self::of_field("Bearer ", token))
    }

    /// Encodes a user and a password (RFC 7617). `None` with a colon in the user, or a control character.
    pub(super) fn basic(user: &str, password: &str) -> Option<Self> {
        let pair = Zeroizing::new(format!("{user}:{password}"));
        let is_sendable = !user.contains(':') && !pair.chars().any(char::is_control);
        let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
        is_sendable.then(|| Self::of_field("Basic ", &encoded))
    }

    fn of_field(scheme: &str, secret: &str) -> Self {
        Self {
            authorization: Some([scheme, secret].concat().into()),
            ..Self::default()
        }
    }

    fn shown(&self) -> [Option<&str>; 3] {
        let pair = self.certificate.as_ref();
        [
            self.authorization.as_ref().map(Secret::expose),
            pair.map(|pair| pair.certificate.as_str()),
            pair.map(|pair| pair.key.expose()),
        ]
    }
}

/// The maximum size of a file. A token has at most 12 KiB.
const MAX_FILE: u64 = 1 << 20;
/// The maximum length that switchboard and the API server accept.
const MAX_TOKEN: usize = 12 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_of_sendable_characters() {
        let field = Credentials::bearer(" a.b-c_d~e+f/g==\r\n")
            .unwrap()
            .authorization
            .unwrap();
        assert_eq!(field.expose(), "Bearer a.b-c_d~e+f/g==");
        assert!(Credentials::bearer(&"x".repeat(MAX_TOKEN)).is_ok());
        for (text, fault) in [
            ("", "empty"),
            (" \n", "empty"),
            (&"x".repeat(MAX_TOKEN + 1), "12 KiB"),
            ("a\nb", "one line"),
            ("a b", "a character"),
            ("a\rX: y", "a character"),
            ("a\0b", "a character"),
            ("{\"token\":1}", "a character"),
            ("tokén", "a character"),
        ] {
            let error = Credentials::bearer(text).unwrap_err().to_string();
            assert!(error.contains(fault), "{text:?}: {error}");
        }
    }

    #[test]
    fn user_and_password_are_encoded_or_refused() {
        let basic = Credentials::basic;
        let field = basic("Aladdin", "open sesame").unwrap().authorization.unwrap();
        assert_eq!(field.expose(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(basic("a:b", "c").is_none() && basic("a", "b\n").is_none());
    }

    #[test]
    fn no_printout_shows_a_secret() {
        let token = Credentials::bearer("s3cret").unwrap();
        let password = Secret::from("s3cret".to_owned());
        let basic = Credentials::basic("bob", password.expose()).unwrap();
        let printed = format!("{token:?} {password:?} {basic:#?} {:?}", basic.authorization);
        assert!(!printed.contains("s3cret") && !printed.contains("Ym9iO"), "{printed}");
    }
}
