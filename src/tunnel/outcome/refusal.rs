//! A refusal with the phrase that one client gets.

use std::time::Duration;

use super::RefusalReason;
use crate::base::text::ascii;
use crate::protocol::phrase::Phrase;

/// A refusal with the phrase that one client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: RefusalReason,
    phrase: Box<str>,
    /// The phrase without the Service's name: a sentence in band has the requested name instead.
    without_target: Box<Phrase>,
    details: Option<Box<str>>,
    starting: Option<Duration>,
}

impl Refusal {
    /// Creates a refusal with that phrase.
    pub fn new(reason: RefusalReason, phrase: Phrase) -> Self {
        Self::of_target(reason, &phrase.to_string(), phrase)
    }

    /// Creates a refusal with a phrase of its own. Characters that a reason phrase may not hold become `?`.
    pub fn with_phrase(reason: RefusalReason, phrase: &str) -> Self {
        Self::new(reason, phrase.to_owned().into())
    }

    /// Creates a refusal whose phrase, `named`, has the name of the target's Service. `unnamed` is the same phrase
    /// [without the name](Self::without_target).
    pub fn of_target(reason: RefusalReason, named: &str, unnamed: Phrase) -> Self {
        Self {
            reason,
            phrase: ascii(named.chars().take(MAX_CHARS)),
            without_target: Box::new(unnamed),
            details: None,
            starting: None,
        }
    }

    /// Returns the refusal with the time that the target has left to start.
    #[must_use]
    pub fn starting(self, left: Duration) -> Self {
        Self {
            starting: Some(left),
            ..self
        }
    }

    /// Returns the refusal, with details for a program or an operator, such as the missing permission.
    #[must_use]
    pub fn with_details(self, details: &str) -> Self {
        Self {
            details: Some(ascii(details.chars().take(MAX_CHARS))),
            ..self
        }
    }

    /// Returns the seconds that the target has left to start; `None` if it is not starting.
    pub fn seconds_to_start(&self) -> Option<u64> {
        self.starting.map(|left| left.as_secs())
    }

    /// Returns the reason phrase: one ASCII line.
    pub fn phrase(&self) -> &str {
        &self.phrase
    }

    /// Returns the phrase without the Service's name: a sentence in band has the requested name instead.
    pub fn without_target(&self) -> &Phrase {
        &self.without_target
    }

    /// Returns the details beyond the phrase, one ASCII line; `None` if there are none.
    pub fn details(&self) -> Option<&str> {
        self.details.as_deref()
    }
}

/// A refusal with the phrase of its row.
impl From<RefusalReason> for Refusal {
    fn from(refusal: RefusalReason) -> Self {
        Self::new(refusal, refusal.phrase())
    }
}

/// The most characters of a phrase, and of details: a status line must fit the buffers of all clients (1,024 bytes in
/// nc) and a line or two of a terminal.
const MAX_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_has_the_phrase_of_its_refusal_or_a_harmless_one_of_its_own() {
        let plain = Refusal::from(RefusalReason::NoEndpoint);
        assert_eq!(plain.phrase(), RefusalReason::NoEndpoint.phrase().to_string());
        let own = Refusal::with_phrase(RefusalReason::NoEndpoint, "none for a/b\r\nX: y\u{e9}");
        assert_eq!(own.phrase(), "none for a/b??X: y?");
        assert_eq!(own.details(), None);
        let has_none = Phrase::of_target("", " has none");
        let of_target = Refusal::of_target(RefusalReason::NoEndpoint, "none for a/b", has_none.clone());
        assert_eq!(
            (of_target.phrase(), of_target.without_target()),
            ("none for a/b", &has_none)
        );
        assert_eq!(own.with_details("b\nc").details(), Some("b?c"));
        let full = Refusal::new(RefusalReason::TargetFull, RefusalReason::TargetFull.phrase().limited(8));
        let expected = "the target has reached its tunnel limit of 8, try again later";
        assert_eq!((full.reason, full.phrase()), (RefusalReason::TargetFull, expected));
        let long = Refusal::with_phrase(RefusalReason::NoEndpoint, &"x".repeat(10_000));
        assert_eq!(long.phrase().len(), MAX_CHARS);
    }
}
