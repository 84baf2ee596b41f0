//! Keeps the parts of a token out of messages.

use crate::secret::Secret;

/// The text with `…` in place of each word that has a part of the token.
pub(super) fn redacted(text: &str, token: &Secret) -> String {
    text.split_inclusive(|character: char| !is_of_token(character))
        .map(|word| {
            let end = word.trim_end_matches(|character: char| !is_of_token(character)).len();
            let (word, separator) = word.split_at(end);
            match quotes(word.as_bytes(), token.expose().as_bytes()) {
                true => format!("…{separator}"),
                false => format!("{word}{separator}"),
            }
        })
        .collect()
}

fn is_of_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._~+/=".contains(character)
}

/// Whether any part of the token that is long enough to say something of it is in the word. A shorter token is one part.
fn quotes(word: &[u8], token: &[u8]) -> bool {
    let length = SHORTEST_PART.min(token.len()).max(1);
    word.windows(length)
        .any(|part| token.windows(length).any(|other| other == part))
}

/// Of Base64: six bytes of what is signed, or of the signature.
const SHORTEST_PART: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(redacted(text, &token), expected);
        }
        assert_eq!(redacted("token abc is wrong", &Secret::from("abc")), "token … is wrong");
    }
}
