//! Parses lists and watches of the API server, regardless of their objects.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::failure::{ApiError, Failure};
use crate::base::follow::fingerprint;

/// A list that is read page by page.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The number of pages that may still be read.
    pages: usize,
    token: String,
    /// Hashes of the tokens so far.
    seen: HashSet<u64>,
}

impl Listing {
    /// Creates a list of at most `pages` pages, with none read yet.
    pub(crate) fn new(pages: usize) -> Self {
        Self {
            pages,
            token: String::new(),
            seen: HashSet::new(),
        }
    }

    /// Returns the token of the next page (`continue`); empty for the first one.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Takes the next page without its objects. Returns the resource version of the list if it is the last one.
    ///
    /// # Errors
    /// It is not a page, a token is repeated, there are too many pages, or the last page has no resource version.
    pub(crate) fn turn(&mut self, page: &[u8]) -> Result<Option<String>, ApiError> {
        let page: Page = serde_json::from_slice(page)?;
        let metadata = page.metadata.unwrap_or_default();
        self.token = metadata.next.unwrap_or_default();
        if self.token.is_empty() {
            let version = metadata.version.filter(|version| !version.is_empty());
            let missing = || ApiError::new(Failure::Malformed, "a list without a resource version");
            return version.ok_or_else(missing).map(Some);
        }
        if !self.seen.insert(fingerprint(&self.token)) {
            let repeated = "a list without an end: the API server repeats a `continue` token";
            return Err(ApiError::new(Failure::Malformed, repeated));
        }
        self.pages = self.pages.saturating_sub(1);
        if self.pages == 0 {
            return Err(ApiError::new(Failure::Malformed, "a list without an end"));
        }
        Ok(None)
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) struct WatchEvent<'a> {
    /// The object that was added, changed or deleted, and `true` if it was deleted. `None` for a bookmark or an unknown
    /// type.
    pub(crate) change: Option<(&'a RawValue, bool)>,
    /// The resource version; `None` if the object has none.
    pub(crate) version: Option<String>,
}

impl<'a> WatchEvent<'a> {
    /// Reads a line of a watch. `None` for an empty one.
    ///
    /// # Errors
    /// The line is no event, or it is an ERROR event.
    pub(crate) fn read(line: &'a str) -> Result<Option<Self>, ApiError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let Line { r#type, object } = serde_json::from_str(line)?;
        let change = match r#type {
            "ERROR" => return Err(error_event(object)),
            "ADDED" | "MODIFIED" | "DELETED" => Some((object, r#type == "DELETED")),
            // "BOOKMARK", and types that are not known yet.
            _ => None,
        };
        let version = Metadata::read(object.get()).unwrap_or_default().version;
        Ok(Some(Self { change, version }))
    }
}

/// A page of a list.
#[derive(Debug, Default, Deserialize)]
struct Page {
    /// Its resource version, and where the next page begins.
    metadata: Option<Metadata>,
    /// A placeholder for each object.
    #[serde(default, rename = "items")]
    _items: Option<Vec<IgnoredAny>>,
}

/// The metadata of a list or of an object, as far as it is needed here.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Metadata {
    /// The namespace of an object in one.
    pub(crate) namespace: Option<Box<str>>,
    /// The name of an object.
    pub(crate) name: Option<Box<str>>,
    /// The UID of an object.
    pub(crate) uid: Option<Box<str>>,
    /// The resource version.
    #[serde(rename = "resourceVersion")]
    pub(crate) version: Option<String>,
    /// The token of the next page; empty or absent on the last one.
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl Metadata {
    /// Reads the metadata of an object, or of a list.
    pub(crate) fn read(object: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Option<Metadata>,
        }
        serde_json::from_str(object).map(|Object { metadata }| metadata.unwrap_or_default())
    }
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    r#type: &'a str,
    /// The object.
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Returns the failure from the Status object of an ERROR event: the status code of the response itself was a success.
fn error_event(object: &RawValue) -> ApiError {
    #[derive(Default, Deserialize)]
    struct Status {
        code: Option<u16>,
        message: Option<String>,
    }
    let Status { code, message } = serde_json::from_str(object.get()).unwrap_or_default();
    let failure = code.and_then(Failure::from_status).unwrap_or(Failure::Server);
    ApiError::new(failure, message.unwrap_or_else(|| "an error event".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_with_a_page_that_names_no_other_and_is_bounded() {
        let mut listing = Listing::new(2);
        let first = br#"{"metadata":{"continue":"b"},"items":[0,0]}"#;
        assert_eq!(
            (listing.turn(first).unwrap(), listing.token.clone()),
            (None, "b".to_owned())
        );
        let last = br#"{"metadata":{"resourceVersion":"7","continue":""},"items":[0]}"#;
        assert_eq!(listing.turn(last).unwrap().as_deref(), Some("7"));
        for (body, reason) in [
            (&br#"{"metadata":{"continue":"b"}}"#[..], "a list without an end"),
            (
                br#"{"metadata":{"resourceVersion":""}}"#,
                "a list without a resource version",
            ),
            (b"{}", "a list without a resource version"),
        ] {
            assert_eq!(Listing::new(1).turn(body).unwrap_err().reason, reason);
        }
        for tokens in [&["b", "b"][..], &["a", "b", "c", "a"]] {
            let mut listing = Listing::new(2_000);
            let results: Vec<_> = tokens
                .iter()
                .map(|token| listing.turn(format!(r#"{{"metadata":{{"continue":"{token}"}}}}"#).as_bytes()))
                .collect();
            let (last, others) = results.split_last().unwrap();
            assert!(others.iter().all(Result::is_ok), "{tokens:?}");
            let reason = "a list without an end: the API server repeats a `continue` token";
            assert_eq!(last.as_ref().unwrap_err().reason, reason, "{tokens:?}");
        }
        for broken in [
            &b"["[..],
            b"{",
            br#"{"metadata":{"resourceVersion":"7"},"items":[0,,0]}"#,
        ] {
            assert!(Listing::new(1).turn(broken).is_err());
        }
    }

    #[test]
    fn a_line_of_a_watch_is_a_change_a_bookmark_or_an_error() {
        let object = r#"{"metadata":{"resourceVersion":"8"}}"#;
        for (kind, expected) in [
            ("ADDED", Some(false)),
            ("MODIFIED", Some(false)),
            ("DELETED", Some(true)),
            ("BOOKMARK", None),
        ] {
            let line = format!(r#"{{"type":"{kind}","object":{object}}}"#);
            let WatchEvent { change, version } = WatchEvent::read(&line).unwrap().unwrap();
            assert_eq!(change.map(|(_, is_deleted)| is_deleted), expected, "{kind}");
            assert_eq!(version.as_deref(), Some("8"), "{kind}");
        }
        assert!(WatchEvent::read(" \r").unwrap().is_none());
        let error = r#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#;
        let error = WatchEvent::read(error).unwrap_err();
        assert_eq!((error.failure, &*error.reason), (Failure::Expired, "too old"));
    }
}
