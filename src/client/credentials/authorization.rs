//! The credentials that the proxy is shown: a bearer token, or a user and a password, and a certificate.

use std::path::Path;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::base::file;
use crate::base::secret::Secret;
use crate::client::dial::tls::KeyPair;

/// A bearer token that can be sent as it is (RFC 6750 section 2.1).
#[derive(Clone, Debug)]
pub(crate) struct Token(Secret);

impl Token {
    /// The token in the text of a file or of a program. White space around it is no part of it.
    ///
    /// # Errors
    /// It is none. The error does not quote it.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let text = text.trim_ascii();
        let is_sendable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        ensure!(!text.is_empty(), "it is empty");
        ensure!(text.len() <= LONGEST_TOKEN, "it has more than 12 KiB");
        ensure!(!text.contains('\n'), "it has more than one line");
        ensure!(
            text.bytes().all(is_sendable),
            "it has a character that a bearer token cannot have (RFC 6750 section 2.1)"
        );
        Ok(Self(text.to_owned().into()))
    }

    /// The token itself.
    pub(crate) fn expose(&self) -> &str {
        self.0.expose()
    }
}

/// The content of `Proxy-Authorization`.
#[derive(Clone, Debug)]
pub(crate) enum Authorization {
    /// A bearer token (RFC 6750).
    Bearer(Token),
    /// User and password, encoded (RFC 7617).
    Basic(Secret),
}

impl Authorization {
    /// The content for this user and password. `None` if they cannot be sent: a colon in the user, or a control character.
    pub(crate) fn basic(user: &str, password: &Secret) -> Option<Self> {
        let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
        let is_sendable = !user.contains(':') && !pair.chars().any(char::is_control);
        is_sendable.then(|| Self::Basic(STANDARD.encode(pair.as_bytes()).into()))
    }

    /// The value of the field.
    pub(crate) fn field(&self) -> Secret {
        match self {
            Self::Bearer(token) => format!("Bearer {}", token.expose()).into(),
            Self::Basic(pair) => format!("Basic {}", pair.expose()).into(),
        }
    }
}

/// Whether the proxy is sent the same. Both are the user's own: the time that it takes tells nothing to others.
impl PartialEq for Authorization {
    fn eq(&self, other: &Self) -> bool {
        self.field().expose() == other.field().expose()
    }
}

impl Eq for Authorization {}

/// The credentials that the proxy is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::client) struct Credentials {
    /// For `Proxy-Authorization`.
    pub(in crate::client) authorization: Option<Authorization>,
    /// For a proxy that asks for a certificate.
    pub(in crate::client) certificate: Option<KeyPair>,
}

/// A token, and no certificate.
impl From<Token> for Credentials {
    fn from(token: Token) -> Self {
        Self {
            authorization: Some(Authorization::Bearer(token)),
            certificate: None,
        }
    }
}

impl Credentials {
    /// Those of the token in a file.
    pub(super) fn of_file(path: &Path) -> anyhow::Result<Self> {
        let bytes = file::read(path, LARGEST_FILE).map(Zeroizing::new);
        let bytes = bytes.with_context(|| format!("cannot read the token in {}", path.display()))?;
        Self::bearer(&path.display().to_string(), &String::from_utf8_lossy(&bytes))
    }

    /// Those of a token, which is named by its origin if it cannot be sent.
    pub(super) fn bearer(origin: &str, text: &str) -> anyhow::Result<Self> {
        let token = Token::parse(text).with_context(|| format!("the token in {origin} cannot be sent"))?;
        Ok(token.into())
    }
}

/// A token has at most 12 KiB.
const LARGEST_FILE: u64 = 1 << 20;
/// The length that switchboard and the API server take.
const LONGEST_TOKEN: usize = 12 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_of_sendable_characters() {
        assert_eq!(
            Token::parse(" a.b-c_d~e+f/g==\r\n").unwrap().expose(),
            "a.b-c_d~e+f/g=="
        );
        assert!(Token::parse(&"x".repeat(LONGEST_TOKEN)).is_ok());
        for (text, fault) in [
            ("", "empty"),
            (" \n", "empty"),
            (&"x".repeat(LONGEST_TOKEN + 1), "12 KiB"),
            ("a\nb", "one line"),
            ("a b", "a character"),
            ("a\rX: y", "a character"),
            ("a\0b", "a character"),
            ("{\"token\":1}", "a character"),
            ("tokén", "a character"),
        ] {
            let error = Token::parse(text).unwrap_err().to_string();
            assert!(error.contains(fault), "{text:?}: {error}");
        }
    }

    #[test]
    fn user_and_password_are_encoded_or_refused() {
        let basic = |user, password: &str| Authorization::basic(user, &password.to_owned().into());
        let field = basic("Aladdin", "open sesame").unwrap().field();
        assert_eq!(field.expose(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(basic("a:b", "c").is_none() && basic("a", "b\n").is_none());
    }

    #[test]
    fn no_printout_shows_a_secret() {
        let token = Token::parse("s3cret").unwrap();
        let password = Secret::from("s3cret".to_owned());
        let basic = Authorization::basic("bob", &password).unwrap();
        let printed = format!("{token:?} {password:?} {basic:#?} {:?}", basic.field());
        assert!(!printed.contains("s3cret") && !printed.contains("Ym9iO"), "{printed}");
    }
}
