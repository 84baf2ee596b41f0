//! Requests to the API server, with a deadline for every wait, and responses that are read as they arrive.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use hyper::http::request::Builder;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::info;

use super::connection::{self, CredentialsError};
use super::failure::{ApiError, Failure};
use super::json_stream::{ObjectReader, ObjectText, Outline};
use crate::uplink::api_server::ApiServer;
use crate::uplink::api_server::ClusterLogin;

/// Builds a client from the current files: certificates, tokens and addresses may have changed since the last one. A plugin
/// has that time.
///
/// # Errors
/// [`Failure::Credentials`].
pub(crate) async fn connect(login: ClusterLogin, agent: &'static str, waited: Duration) -> Result<Client, ApiError> {
    let runtime = Handle::current();
    let late = |_| {
        ApiError::new(
            Failure::Credentials,
            "no credentials in time: earlier attempts to get them still hang",
        )
    };
    let permit = timeout(RESPONSE_TIMEOUT, ATTEMPTS.acquire()).await.map_err(late)?;
    // Blocking: it reads files, which may hang.
    let client = spawn_blocking(move || {
        let _permit = permit;
        let server = runtime.block_on(ApiServer::find(&login, waited));
        let server = server.map_err(|reason| ApiError::new(Failure::Credentials, reason))?;
        Ok(connection::client(server, agent))
    });
    match timeout(waited, client).await {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => Err(ApiError::caused(Failure::Credentials, &error)),
        Err(_) => Err(ApiError::new(Failure::Credentials, "no credentials in time")),
    }
}

/// Permits for attempts to get credentials. A thread in which a program or a read hangs cannot be ended: unbounded,
/// such threads would use up the runtime's threads for blocking work.
static ATTEMPTS: Semaphore = Semaphore::const_new(8);

/// Logs which cluster a section of the configuration reads, once its kubeconfig has been read.
pub(crate) async fn report_cluster(section: &'static str, kubeconfig: Option<PathBuf>) {
    let login = ClusterLogin {
        kubeconfig,
        context: None,
    };
    let reading = spawn_blocking(move || match login.check() {
        Ok(Some((from, server))) => info!(server, from, "`{section}` reads this API server"),
        // The first request logs the reason.
        Ok(None) | Err(_) => info!("`{section}` reads no API server: its kubeconfig cannot be used"),
    });
    // An error is a panic, which has been printed.
    reading.await.ok();
}

/// Sends a GET request, and returns the body of a successful response as soon as its head has arrived.
///
/// # Errors
/// The request cannot be sent, or the response is late or not a success.
pub(crate) async fn get(client: &Client, path: &str) -> Result<BodyReader, ApiError> {
    send(client, Request::get(path), Body::empty()).await
}

/// Posts a JSON object. Returns and fails like [`get`].
pub(crate) async fn post(client: &Client, path: &str, object: Bytes) -> Result<BodyReader, ApiError> {
    send(client, Request::post(path).header(CONTENT_TYPE, JSON), object.into()).await
}

/// Sends a request. Returns and fails like [`get`].
pub(crate) async fn send(client: &Client, request: Builder, body: Body) -> Result<BodyReader, ApiError> {
    let request = request.header(ACCEPT, JSON).body(body);
    let request = request.map_err(|error| ApiError::caused(Failure::Malformed, &error))?;
    let response = match timeout(RESPONSE_TIMEOUT, client.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(ApiError::caused(failure_of(&error), &error)),
        Err(_) => return Err(ApiError::new(Failure::Timeout, "no answer in time")),
    };
    match Failure::from_status(response.status().as_u16()) {
        None => Ok(BodyReader {
            body: response.into_body(),
            rest: Bytes::new(),
        }),
        Some(failure) => Err(refusal(failure, response).await),
    }
}

async fn refusal(failure: Failure, response: Response<Body>) -> ApiError {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).cloned();
    let mut body = response.into_body();
    let first = timeout(PAGE_TIMEOUT, body.frame()).await;
    let first = first.ok().flatten().and_then(Result::ok);
    let data = first.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
    ApiError::answered(failure, status, &data).with_retry_after(retry_after.as_ref())
}

/// Returns the failure of a request without a response.
pub(crate) fn failure_of(error: &kube::Error) -> Failure {
    if matches!(error, kube::Error::Service(cause) if cause.is::<CredentialsError>()) {
        Failure::Credentials
    } else {
        Failure::Connect
    }
}

/// A reader of a response's body as it arrives.
#[derive(Debug)]
pub(crate) struct BodyReader {
    body: Body,
    /// The unread part of the last frame.
    rest: Bytes,
}

impl BodyReader {
    /// Reads the whole body of at most `max` bytes.
    ///
    /// # Errors
    /// Nothing arrived for 5 s, the body was cut, or it is larger.
    pub(crate) async fn read_to(mut self, max: usize) -> Result<Vec<u8>, ApiError> {
        let mut whole = Vec::new();
        while self.read_more(PAGE_TIMEOUT, Failure::Timeout).await? {
            whole.extend_from_slice(&self.rest);
            if whole.len() > max {
                let reason = format!("an answer of more than {} KiB", max >> 10);
                return Err(ApiError::new(Failure::Malformed, reason));
            }
        }
        Ok(whole)
    }

    /// Reads a body that is one object.
    ///
    /// # Errors
    /// Nothing arrived for 5 s, or the body was cut.
    pub(crate) async fn read_object(mut self) -> Result<ObjectText, ApiError> {
        let mut object = ObjectReader::default();
        while self.read_more(PAGE_TIMEOUT, Failure::Timeout).await? {
            object.take(&self.rest, b"");
        }
        object.finish()
    }

    /// Reads the next object of a list; `None` at the end of the body. The rest of the body goes to `page`, with a 0 for
    /// each object.
    ///
    /// # Errors
    /// Nothing arrived for 5 s, or the body was cut.
    pub(crate) async fn read_item(&mut self, page: &mut Outline) -> Result<Option<ObjectText>, ApiError> {
        let mut item = ObjectReader::default();
        loop {
            if self.rest.is_empty() && !self.read_more(PAGE_TIMEOUT, Failure::Timeout).await? {
                return Ok(None);
            }
            if page.is_in_items() {
                drop(self.rest.split_to(item.take(&self.rest, b",]")));
                if self.rest.is_empty() {
                    continue;
                }
                if !item.is_blank() {
                    page.take(b"0");
                }
            }
            drop(self.rest.split_to(page.take(&self.rest)));
            if !item.is_blank() {
                return item.finish().map(Some);
            }
        }
    }

    /// Reads the next line, an event of a watch; `None` at the end of the body.
    ///
    /// # Errors
    /// Nothing arrived for `longest_silence`, or the body was cut or ends within a line.
    pub(crate) async fn read_line(&mut self, longest_silence: Duration) -> Result<Option<ObjectText>, ApiError> {
        let mut line = ObjectReader::default();
        loop {
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let piece = self.rest.split_to(end.map_or(self.rest.len(), |end| end + 1));
            line.take(&piece, b"");
            if end.is_some() {
                return line.finish().map(Some);
            }
            if !self.read_more(longest_silence, Failure::Silent).await? {
                return match line.is_blank() {
                    true => Ok(None),
                    false => Err(ApiError::new(Failure::Cut, "the stream ended within an event")),
                };
            }
        }
    }

    /// Reads a frame. Returns `false` at the end of the body.
    async fn read_more(&mut self, max: Duration, silent: Failure) -> Result<bool, ApiError> {
        match timeout(max, self.body.frame()).await {
            Err(_) => Err(ApiError::new(silent, format!("no data for {max:?}"))),
            Ok(None) => Ok(false),
            Ok(Some(Err(error))) => Err(ApiError::caused(Failure::Cut, &error)),
            Ok(Some(Ok(frame))) => {
                self.rest = frame.into_data().unwrap_or_default();
                Ok(true)
            }
        }
    }
}

/// Returns a value of a query, with all but the unreserved characters percent-encoded (RFC 3986 section 2).
pub(crate) fn encoded(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

/// The `User-Agent` of watches and writes, as audit logs show it.
pub(crate) const FOLLOWER: &str = concat!("switchboard/", env!("CARGO_PKG_VERSION"));
/// The media type of an object.
pub(crate) const JSON: &str = "application/json";
/// From the request to the head of the response: lists of large clusters take seconds. Also for getting credentials.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Between two frames of a body.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most objects of one list: a server could claim forever that there are more.
pub(crate) const MAX_LISTED: usize = 1_000_000;
/// All but the unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(text: &str) -> BodyReader {
        BodyReader {
            body: Body::from(text.as_bytes().to_vec()),
            rest: Bytes::new(),
        }
    }

    #[test]
    fn all_but_unreserved_characters_are_encoded() {
        assert_eq!(encoded("aZ09-._~"), "aZ09-._~");
        assert_eq!(encoded("a=b,c&d e/%\u{fc}"), "a%3Db%2Cc%26d%20e%2F%25%C3%BC");
    }

    #[tokio::test]
    async fn the_lines_of_one_part_are_returned_without_moving_the_rest() {
        let mut body = reader("one\n\n\nfour\n");
        let mut ends = Vec::new();
        for expected in ["one\n", "\n", "\n", "four\n"] {
            let line = body.read_line(PAGE_TIMEOUT).await.unwrap().unwrap();
            assert_eq!(line.json, expected);
            ends.push(body.rest.as_ptr().wrapping_add(body.rest.len()));
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        assert!(body.read_line(PAGE_TIMEOUT).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_body_that_ends_within_a_line_is_cut() {
        let mut body = reader("one\ntw");
        assert_eq!(body.read_line(PAGE_TIMEOUT).await.unwrap().unwrap().json, "one\n");
        let error = body.read_line(PAGE_TIMEOUT).await.unwrap_err();
        assert_eq!(error.failure, Failure::Cut);
    }

    #[tokio::test]
    async fn a_page_is_its_objects_and_the_rest() {
        for (items, count) in [
            ("[]", 0),
            ("[ ]", 0),
            ("null", 0),
            (r#"[{"items":[1]} , {"a":"],"}, 7]"#, 3),
        ] {
            let json = format!(r#"{{"items" : {items},"metadata":{{"continue":"c"}},"items2":[1]}}"#);
            let (mut body, mut page, mut read) = (reader(&json), Outline::default(), Vec::new());
            while let Some(item) = body.read_item(&mut page).await.unwrap() {
                read.push(serde_json::from_str::<serde_json::Value>(&item.json).unwrap());
            }
            let page: serde_json::Value = serde_json::from_slice(&page.text).unwrap();
            assert_eq!(
                (read.len(), &page["metadata"]["continue"]),
                (count, &"c".into()),
                "{items}"
            );
            assert_eq!(page["items"].as_array().map_or(0, Vec::len), count, "{items}");
        }
    }
}
