//! Lists and watches as the API server writes them, whatever their objects.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::{ApiError, Failure};

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct Page<'a> {
    /// Its resource version, and where the next page begins.
    pub(crate) metadata: Option<ListMetadata>,
    /// Its objects.
    #[serde(borrow)]
    pub(crate) items: Option<Vec<&'a RawValue>>,
}

/// The metadata of a list or an object, as far as lists and watches need it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ListMetadata {
    /// The resource version.
    #[serde(rename = "resourceVersion")]
    pub(crate) version: Option<String>,
    /// The token of the next page; empty or absent on the last one.
    #[serde(rename = "continue")]
    pub(crate) next: Option<String>,
}

/// An event of a watch.
#[derive(Debug, Deserialize)]
pub(crate) struct WatchEvent<'a> {
    /// What has become of the object: `ADDED`, `MODIFIED`, `DELETED`; or `BOOKMARK` or `ERROR`.
    pub(crate) r#type: &'a str,
    /// The object.
    #[serde(borrow)]
    pub(crate) object: &'a RawValue,
}

/// An object, of which the resource version matters.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Versioned {
    /// Its metadata.
    pub(crate) metadata: Option<ListMetadata>,
}

/// The Status object of an ERROR event. The answer's own status code was sent before, as a success.
pub(crate) fn error_event(object: &RawValue) -> ApiError {
    #[derive(Default, Deserialize)]
    struct Status {
        code: Option<u16>,
        message: Option<String>,
    }
    let Status { code, message } = serde_json::from_str(object.get()).unwrap_or_default();
    let failure = code.and_then(Failure::of_status).unwrap_or(Failure::Server);
    ApiError::new(failure, message.unwrap_or_else(|| "an error event".to_owned()))
}
