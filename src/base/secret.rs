//! A credential's text, which is never printed, and is overwritten in memory on drop.

use std::fmt;

use serde::{Deserialize, Deserializer};
use zeroize::{Zeroize, Zeroizing};

/// The text of a token or a password.
#[derive(Clone)]
pub struct Secret(Zeroizing<Box<str>>);

impl Secret {
    /// Returns the text itself. It belongs into no message, no log and no metric.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns a foreign text with `…` instead of each word that contains a part of the secret.
    pub(crate) fn redacted(&self, text: &str) -> String {
        text.split_inclusive(|character: char| !is_of_token(character))
            .map(|word| {
                let end = word.trim_end_matches(|character: char| !is_of_token(character)).len();
                let (word, separator) = word.split_at(end);
                match quotes(word.as_bytes(), self.expose().as_bytes()) {
                    true => format!("…{separator}"),
                    false => format!("{word}{separator}"),
                }
            })
            .collect()
    }
}

fn is_of_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._~+/=".contains(character)
}

/// Returns whether the word has [`MIN_PART`] consecutive bytes of the token, or all of a shorter token.
fn quotes(word: &[u8], token: &[u8]) -> bool {
    let length = MIN_PART.min(token.len()).max(1);
    word.windows(length)
        .any(|part| token.windows(length).any(|other| other == part))
}

/// The shortest part that counts, in bytes: in Base64, six bytes of the payload or of the signature.
const MIN_PART: usize = 8;

/// Overwrites bytes that held a secret.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.zeroize();
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.into()))
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        // Copied and overwritten, because shrinking the `String` could leave a copy in freed memory.
        let text = Zeroizing::new(text);
        Self::from(text.as_str())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// Omits the text.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn no_part_of_a_token_is_left_and_other_words_are() {
        let token = Secret::from("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl");
        for (text, expected) in [
            ("502: bad gateway", "502: bad gateway"),
            ("spec.token: \"eyJhbGciOiJSUzI1NiJ9.eyJz\"...", "spec.token: \"…\"..."),
            ("near aWIiOi, cut", "near aWIiOi, cut"),
            ("near zdWIiOiJ and zdWIiOi", "near … and zdWIiOi"),
            ("alice of team-a may not", "alice of team-a may not"),
            ("\"c2lnbmF0dXJl\"", "\"…\""),
            ("", ""),
        ] {
            assert_eq!(token.redacted(text), expected);
        }
        assert_eq!(Secret::from("abc").redacted("token abc is wrong"), "token … is wrong");
    }
}
