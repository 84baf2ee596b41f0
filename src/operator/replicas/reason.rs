//! The reason that an operator gives for a change: one readable line, for logs and terminals.

use std::str::FromStr;

use crate::base::text::is_unprintable;

/// A reason, without white space at its ends.
///
/// It has a visible character. Invisible ones are allowed besides, as some scripts and emoji need them; logs escape them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(String);

/// Why a string is not a valid reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReasonError {
    /// It has no visible character.
    #[error("a reason with visible characters is needed: it goes into the access log")]
    Invisible,
    /// It has this character, which controls lines, the terminal or the direction of text.
    #[error("a reason must not have characters that control lines, terminals or the direction of text: U+{0:04X}")]
    Control(u32),
}

impl FromStr for Reason {
    type Err = ReasonError;

    fn from_str(text: &str) -> Result<Self, ReasonError> {
        let text = text.trim();
        if let Some(control) = text.chars().find(|&character| is_control(character)) {
            return Err(ReasonError::Control(control.into()));
        }
        if text
            .chars()
            .all(|character| character.is_whitespace() || is_unprintable(character))
        {
            return Err(ReasonError::Invisible);
        }
        Ok(Self(text.to_owned()))
    }
}

impl From<Reason> for String {
    fn from(Reason(text): Reason) -> Self {
        text
    }
}

/// Returns whether a character controls terminals or bidirectional text (Unicode TR 9 section 2), or separates lines.
fn is_control(character: char) -> bool {
    let is_direction =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || is_direction || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_something_to_see_and_nothing_that_a_terminal_obeys() {
        let parse = |text: &str| text.parse::<Reason>().map(String::from);
        for text in [
            "",
            " ",
            "\u{a0}\u{3000}",
            "\u{200b}",
            "\u{2800}",
            "\u{3164}\u{feff}",
            "\u{e0061}",
            "\u{fe0f}",
        ] {
            assert_eq!(parse(text), Err(ReasonError::Invisible), "{text:?}");
        }
        for control in "\0\u{1b}\u{7f}\u{9b}\u{61c}\u{200f}\u{202e}\u{2028}\u{2066}".chars() {
            let text = format!("it{control}loops");
            assert_eq!(parse(&text), Err(ReasonError::Control(control.into())), "{text:?}");
        }
        let text = "it loops: \u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645} \u{2764}\u{fe0f} \u{65e5}";
        assert_eq!(parse(&format!(" {text}\n")), Ok(text.to_owned()));
        let said = ReasonError::Control('\u{202e}'.into()).to_string();
        assert!(said.ends_with(": U+202E"), "{said}");
    }
}
