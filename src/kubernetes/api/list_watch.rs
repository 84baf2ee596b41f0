//! Parses lists and watches of the API server, regardless of their objects.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::{ApiError, Failure};

/// A list that is read page by page.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The number of pages that may still be read.
    pages: usize,
    token: String,
}

impl Listing {
    /// Creates a list of at most `pages` pages, with none read yet.
    pub(crate) fn new(pages: usize) -> Self {
        let token = String::new();
        Self { pages, token }
    }

    /// Returns the token of the next page (`continue`); empty for the first one.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Reads the next page: its objects, and if it is the last one, the resource version of the list.
    ///
    /// # Errors
    /// The body is not a page, there are too many pages, or the last page has no resource version.
    pub(crate) fn read<'a>(&mut self, body: &'a [u8]) -> Result<(Vec<&'a RawValue>, Option<String>), ApiError> {
        let page: Page<'_> = serde_json::from_slice(body)?;
        let metadata = page.metadata.unwrap_or_default();
        let objects = page.items.unwrap_or_default();
        self.token = metadata.next.unwrap_or_default();
        if self.token.is_empty() {
            let version = metadata.version.filter(|version| !version.is_empty());
            let missing = || ApiError::new(Failure::Malformed, "a list without a resource version");
            return version.ok_or_else(missing).map(|version| (objects, Some(version)));
        }
        self.pages = self.pages.saturating_sub(1);
        if self.pages == 0 {
            return Err(ApiError::new(Failure::Malformed, "a list without an end"));
        }
        Ok((objects, None))
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
    pub(crate) fn read(line: &'a [u8]) -> Result<Option<Self>, ApiError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let Line { r#type, object } = serde_json::from_slice(line)?;
        let change = match r#type {
            "ERROR" => return Err(error_event(object)),
            "ADDED" | "MODIFIED" | "DELETED" => Some((object, r#type == "DELETED")),
            // "BOOKMARK", and types that are not known yet.
            _ => None,
        };
        let VersionedObject { metadata } = serde_json::from_str(object.get()).unwrap_or_default();
        let version = metadata.and_then(|metadata| metadata.version);
        Ok(Some(Self { change, version }))
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
struct Page<'a> {
    /// Its resource version, and where the next page begins.
    metadata: Option<Metadata>,
    /// Its objects.
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// The metadata of a list or of an object, as far as it is needed here.
#[derive(Debug, Default, Deserialize)]
struct Metadata {
    /// The resource version.
    #[serde(rename = "resourceVersion")]
    version: Option<String>,
    /// The token of the next page; empty or absent on the last one.
    #[serde(rename = "continue")]
    next: Option<String>,
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

/// An object, for its resource version.
#[derive(Debug, Default, Deserialize)]
struct VersionedObject {
    /// Its metadata.
    metadata: Option<Metadata>,
}

/// Returns the failure from the Status object of an ERROR event: the status code of the response itself was a success.
fn error_event(object: &RawValue) -> ApiError {
    #[derive(Default, Deserialize)]
    struct Status {
        code: Option<u16>,
        message: Option<String>,
    }
    let Status { code, message } = serde_json::from_str(object.get()).unwrap_or_default();
    let failure = code.and_then(Failure::of_status).unwrap_or(Failure::Server);
    ApiError::new(failure, message.unwrap_or_else(|| "an error event".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_with_a_page_that_names_no_other_and_is_bounded() {
        let mut listing = Listing::new(2);
        let (objects, version) = listing.read(br#"{"metadata":{"continue":"b"},"items":[1,2]}"#).unwrap();
        assert_eq!((objects.len(), version, listing.token()), (2, None, "b"));
        let last = br#"{"metadata":{"resourceVersion":"7","continue":""},"items":[3]}"#;
        let (objects, version) = listing.read(last).unwrap();
        assert_eq!((objects.len(), version.as_deref()), (1, Some("7")));
        for (body, reason) in [
            (&br#"{"metadata":{"continue":"b"}}"#[..], "a list without an end"),
            (
                br#"{"metadata":{"resourceVersion":""}}"#,
                "a list without a resource version",
            ),
            (b"{}", "a list without a resource version"),
        ] {
            assert_eq!(Listing::new(1).read(body).unwrap_err().reason, reason);
        }
        assert!(Listing::new(1).read(b"[").is_err());
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
            let WatchEvent { change, version } = WatchEvent::read(line.as_bytes()).unwrap().unwrap();
            assert_eq!(change.map(|(_, is_deleted)| is_deleted), expected, "{kind}");
            assert_eq!(version.as_deref(), Some("8"), "{kind}");
        }
        assert!(WatchEvent::read(b" \r").unwrap().is_none());
        let error = br#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#;
        let error = WatchEvent::read(error).unwrap_err();
        assert_eq!((error.failure, &*error.reason), (Failure::Expired, "too old"));
    }
}
