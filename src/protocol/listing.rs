//! The list of the names that a user may reach: a GET of [`PATH`] at the proxy, answered by a [`Listing`] as JSON.
//!
//! The request authenticates as a CONNECT does. It may ask for names with a text: `GET /.well-known/switchboard/targets?team-a`.

use serde::{Deserialize, Serialize};

/// The path of the request. A query is the [`NameFilter`].
pub const PATH: &str = "/.well-known/switchboard/targets";

/// A text that names contain: of the bytes of names, in lower case. Empty for all names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameFilter(Box<str>);

impl NameFilter {
    /// Parses a text; `None` if no name can contain it.
    pub fn parse(text: &str) -> Option<Self> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let is_filter = text.len() <= MAX_FILTER_BYTES && text.bytes().all(is_of_name);
        is_filter.then(|| Self(text.to_ascii_lowercase().into()))
    }

    /// Parses the target of a GET; `None` if it asks for no listing.
    pub fn of_path(target: &str) -> Option<Self> {
        let rest = target.strip_prefix(PATH)?;
        Self::parse(match rest {
            "" => rest,
            query => query.strip_prefix('?')?,
        })
    }

    /// Returns the target of the GET.
    pub fn to_path(&self) -> String {
        let mark = if self.is_empty() { "" } else { "?" };
        format!("{PATH}{mark}{}", self.0)
    }

    /// Returns whether all names contain the text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the text is a part of one of the names.
    pub fn is_part_of_any(&self, names: &[String]) -> bool {
        names.iter().any(|name| name.contains(&*self.0))
    }
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The targets, at most [`MAX_TARGETS`], in the order of their names.
    pub targets: Vec<ListedTarget>,
    /// A sentence that says why it is incomplete; `None` if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// A target that the user may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedTarget {
    /// Its names, the longest first.
    pub names: Vec<String>,
    /// The port at which clients request it: 22 if it has that one.
    pub port: u16,
    /// Its state in one word: `ready`, `asleep`, `cordoned`, `stopped` or `unready`.
    pub state: String,
}

/// The phrase of the 405 where there are no users.
pub const NO_USERS: &str = "names are listed to users, and access.mode is open here: there are none";
/// The most targets of a listing.
pub const MAX_TARGETS: usize = 500;
/// The longest name (RFC 1035 section 2.3.4).
const MAX_FILTER_BYTES: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_part_of_a_name_and_its_path_is_read_back() {
        for text in ["", "team-a", "x.a.pod", "fd00::1"] {
            let filter = NameFilter::parse(text).unwrap();
            assert_eq!(NameFilter::of_path(&filter.to_path()), Some(filter));
        }
        let names = ["y.b", "x.team-a"].map(str::to_owned);
        assert!(NameFilter::parse("Team-A").unwrap().is_part_of_any(&names));
        assert!(!NameFilter::parse("c").unwrap().is_part_of_any(&names));
        for target in [
            "/",
            "/.well-known/switchboard/targets/",
            "/.well-known/switchboard/targetsx",
        ] {
            assert_eq!(NameFilter::of_path(target), None, "{target}");
        }
        for text in ["a b", "a/b", "a%20", "a*", "[fd00::1]", "\r\n", "é", &"a".repeat(256)] {
            assert_eq!(NameFilter::parse(text), None, "{text:?}");
        }
    }
}
