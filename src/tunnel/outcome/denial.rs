//! A refusal with the phrase that one client gets.

use std::time::Duration;

use super::Refusal;
use crate::base::text::ascii;

/// A refusal with the phrase that one client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The refusal.
    pub refusal: Refusal,
    phrase: Option<Box<str>>,
    /// The phrase without the name of the target, where that is another one.
    unnamed: Option<Box<str>>,
    details: Option<Box<str>>,
    starting: Option<Duration>,
}

impl Denial {
    /// A refusal with a phrase of its own. Bytes that a reason phrase may not hold become `?`.
    pub fn with_phrase(refusal: Refusal, phrase: &str) -> Self {
        Self {
            refusal,
            phrase: Some(ascii(phrase.chars().take(LONGEST))),
            unnamed: None,
            details: None,
            starting: None,
        }
    }

    /// A refusal whose phrase names the target by its Service. `unnamed` says the same of `the target`, for where the name that
    /// was asked for takes that place.
    pub fn of_target(refusal: Refusal, named: &str, unnamed: &str) -> Self {
        Self {
            unnamed: Some(ascii(unnamed.chars().take(LONGEST))),
            ..Self::with_phrase(refusal, named)
        }
    }

    /// The refusal of a tunnel beyond a limit, with its number where the phrase names one: a user can tell so whose sessions to
    /// close.
    pub fn of_limit(refusal: Refusal, most: u32) -> Self {
        let phrase = refusal.phrase().replacen("limit", &format!("limit of {most}"), 1);
        Self::with_phrase(refusal, &phrase)
    }

    /// The same, of a target that is starting and has that long for it.
    #[must_use]
    pub fn starting(self, left: Duration) -> Self {
        Self {
            starting: Some(left),
            ..self
        }
    }

    /// The same, with what a program or an operator should know beyond the phrase, such as the right that is missing.
    #[must_use]
    pub fn with_details(self, details: &str) -> Self {
        Self {
            details: Some(ascii(details.chars().take(LONGEST))),
            ..self
        }
    }

    /// The seconds that the target has left to start, which a client may wait for.
    pub fn seconds_to_start(&self) -> Option<u64> {
        self.starting.map(|left| left.as_secs())
    }

    /// The reason phrase: one ASCII line.
    pub fn phrase(&self) -> &str {
        self.phrase.as_deref().unwrap_or_else(|| self.refusal.phrase())
    }

    /// The same for a sentence that has the name that was asked for in place of `the target`: one ASCII line.
    pub fn unnamed(&self) -> &str {
        self.unnamed.as_deref().unwrap_or_else(|| self.phrase())
    }

    /// What there is to know beyond the phrase: one ASCII line.
    pub fn details(&self) -> Option<&str> {
        self.details.as_deref()
    }
}

/// A refusal with the phrase of its row.
impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            phrase: None,
            unnamed: None,
            details: None,
            starting: None,
        }
    }
}

/// Characters of a phrase, and of details: a status line must fit the buffers of all clients, of which nc's has 1,024
/// bytes, and a line or two of a terminal.
const LONGEST: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_has_the_phrase_of_its_refusal_or_a_harmless_one_of_its_own() {
        let plain = Denial::from(Refusal::NoEndpoint);
        assert_eq!(plain.phrase(), Refusal::NoEndpoint.phrase());
        let own = Denial::with_phrase(Refusal::NoEndpoint, "none for a/b\r\nX: y\u{e9}");
        assert_eq!(own.phrase(), "none for a/b??X: y?");
        assert_eq!((own.unnamed(), own.details()), (own.phrase(), None));
        let of_target = Denial::of_target(Refusal::NoEndpoint, "none for a/b", "the target has none\r");
        assert_eq!(
            (of_target.phrase(), of_target.unnamed()),
            ("none for a/b", "the target has none?")
        );
        assert_eq!(own.with_details("b\nc").details(), Some("b?c"));
        let full = Denial::of_limit(Refusal::TargetFull, 8);
        let expected = "the target has reached its tunnel limit of 8, try again later";
        assert_eq!((full.refusal, full.phrase()), (Refusal::TargetFull, expected));
        let closed = Denial::of_limit(Refusal::TargetClosed, 0);
        assert_eq!(closed.phrase(), Refusal::TargetClosed.phrase());
        let long = Denial::with_phrase(Refusal::NoEndpoint, &"x".repeat(10_000));
        assert_eq!(long.phrase().len(), LONGEST);
    }
}
