//! The reason that an operator gives for a change: one line that can be read, in a log and on a terminal.

use std::str::FromStr;

use crate::base::text::is_unprintable;

/// A reason, without white space at its ends.
///
/// It has a character that can be seen. Characters without a picture are part of some scripts and of emoji, and logs have
/// them escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(String);

/// Why a text is no reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReasonError {
    /// Nothing of it can be seen.
    #[error("a reason is needed that can be read: it goes into the access log")]
    Invisible,
    /// A terminal would obey it, or show its words in another order.
    #[error("a reason has neither control characters nor those that turn the direction of writing: U+{0:04X}")]
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

/// Controls of terminals and of bidirectional text (Unicode TR 9 section 2), and separators of lines.
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
