//! A sentence for users, in parts: the target and a limit have their places in it.

use std::borrow::Cow;
use std::fmt::{self, Display};

use crate::base::text::ascii;

/// A sentence for users, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phrase {
    before: Cow<'static, str>,
    subject: Subject,
    after: Cow<'static, str>,
    advice: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    None,
    /// The words `the target`, or the name that the client requested.
    Target,
    /// The target, by its own name.
    Named(Box<str>),
}

/// Creates a sentence without the target's name.
impl<T: Into<Cow<'static, str>>> From<T> for Phrase {
    fn from(text: T) -> Self {
        Self {
            before: text.into(),
            subject: Subject::None,
            after: "".into(),
            advice: "",
        }
    }
}

impl Phrase {
    /// Creates a sentence about the target, which is named between the two texts.
    pub fn of_target(before: impl Into<Cow<'static, str>>, after: impl Into<Cow<'static, str>>) -> Self {
        Self {
            subject: Subject::Target,
            after: after.into(),
            ..Self::from(before)
        }
    }

    /// Creates a sentence that ends with the name of a target.
    pub fn naming(before: impl Into<Cow<'static, str>>, name: &str) -> Self {
        Self {
            subject: Subject::Named(name.into()),
            ..Self::from(before)
        }
    }

    /// Adds advice for the user. It stays at the end, whatever else is added.
    #[must_use]
    pub fn advising(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    /// Adds the value of the limit that is reached.
    #[must_use]
    pub fn limited(self, max: u32) -> Self {
        self.followed_by(&format!(" of {max}"))
    }

    /// Adds a text before the advice.
    #[must_use]
    pub(crate) fn followed_by(self, more: &str) -> Self {
        Self {
            after: format!("{}{more}", self.after).into(),
            ..self
        }
    }

    /// Puts a text before the sentence.
    #[must_use]
    pub(crate) fn preceded_by(self, text: &str) -> Self {
        Self {
            before: format!("{text}{}", self.before).into(),
            ..self
        }
    }

    /// Returns whether `the target` may be replaced by its name.
    pub(crate) fn is_of_target(&self) -> bool {
        self.subject == Subject::Target
    }

    /// Returns the sentence of a disconnect or a notice: one line of printable ASCII of at most `max` bytes.
    ///
    /// The requested `host:port` replaces `the target`, or comes first: with a `Host` alias the user does not see what
    /// `%h:%p` has become. The id of the access line, if any, comes last.
    pub(crate) fn sentence(&self, name: &str, id: Option<&dyn Display>, max: usize) -> String {
        let id = id.map(|id| format!(" (id {id})")).unwrap_or_default();
        let name = shortened(name, MAX_NAME);
        let told = match &self.subject {
            _ if name.is_empty() => self.to_string(),
            Subject::Target => self.about(&name),
            Subject::Named(own) if **own == *name => self.to_string(),
            Subject::Named(_) | Subject::None => format!("{name}: {self}"),
        };
        let told = shortened(&told, max.saturating_sub(id.len()));
        ascii(told.chars().chain(id.chars())).into_string()
    }

    fn about(&self, subject: &str) -> String {
        format!("{}{subject}{}{}", self.before, self.after, self.advice)
    }
}

impl Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about(match &self.subject {
            Subject::None => "",
            Subject::Target => "the target",
            Subject::Named(name) => name,
        }))
    }
}

/// Returns the text, with `...` instead of its end if it has more than `max` characters.
fn shortened(text: &str, max: usize) -> String {
    const CUT: &str = "...";
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let kept = text.chars().take(max.saturating_sub(CUT.len()));
    kept.chain(CUT.chars()).collect()
}

/// The maximum number of characters of a name, which may have 253: the phrase has to fit, too.
const MAX_NAME: usize = 90;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ssh_disconnect::MAX_BYTES;
    use proptest::prelude::*;

    #[test]
    fn a_sentence_names_what_was_asked_for_and_ends_in_the_id() {
        for (name, phrase, expected) in [
            (
                "svc-a.team-a:22",
                Phrase::of_target("", " has no ready endpoint"),
                "svc-a.team-a:22 has no ready endpoint (id 4711)",
            ),
            (
                "a:22",
                Phrase::of_target("too many connections to ", " are in progress").advising(", try again"),
                "too many connections to a:22 are in progress, try again (id 4711)",
            ),
            (
                "a:22",
                Phrase::of_target("", " has reached its tunnel limit")
                    .limited(8)
                    .advising(", try again later"),
                "a:22 has reached its tunnel limit of 8, try again later (id 4711)",
            ),
            (
                "a:22",
                "the proxy is shutting down, try again".into(),
                "a:22: the proxy is shutting down, try again (id 4711)",
            ),
            (
                "a:22",
                Phrase::naming("alice may not ssh to ", "a:22"),
                "alice may not ssh to a:22 (id 4711)",
            ),
            (
                "svc-a.team-a:22",
                Phrase::naming("alice may not ssh to ", "svc-a.team-a"),
                "svc-a.team-a:22: alice may not ssh to svc-a.team-a (id 4711)",
            ),
            (
                "",
                Phrase::of_target("", " cannot be reached"),
                "the target cannot be reached (id 4711)",
            ),
            ("\u{1b}[31m", "x".into(), "?[31m: x (id 4711)"),
        ] {
            assert_eq!(phrase.sentence(name, Some(&4711), MAX_BYTES), expected);
        }
        let closed = Phrase::of_target("", " is closed");
        assert_eq!(closed.sentence("a:22", None, MAX_BYTES), "a:22 is closed");
    }

    proptest! {
        #[test]
        fn no_sentence_is_long_or_has_more_than_one_line(name in ".{0,300}", phrase in ".{0,300}", id in "[0-9a-f-]{1,25}") {
            for phrase in [Phrase::from(phrase.clone()), Phrase::of_target(phrase, "")] {
                let sentence = phrase.sentence(&name, Some(&id), MAX_BYTES);
                prop_assert!(sentence.len() < 200, "{}", sentence.len());
                prop_assert!(sentence.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
                let end = format!("(id {id})");
                prop_assert!(sentence.ends_with(&end));
            }
        }
    }
}
