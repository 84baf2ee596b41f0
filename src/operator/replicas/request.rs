//! A request to a replica, the reason that an operator gives for it, and its errors.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use crate::base::text::{chain, excerpt, is_unprintable};
use crate::daemon::admin::api::ErrorBody;
use crate::net::exchange;

/// Why a request to a replica has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// There is no connection to it.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// Nothing listens at its address: it has ended, or has not started.
    #[error("cannot be reached: {0}")]
    Closed(String),
    /// It did not answer in time. A change may have been made all the same.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// The answer is not one of the admin API.
    #[error("does not answer as switchboard does: {0}")]
    Unexpected(String),
    /// Its list exceeds a limit, which the message names.
    #[error("{0}")]
    LimitExceeded(String),
    /// It answered with an error.
    #[error("{error}")]
    Refused {
        /// The status of the answer.
        status: u16,
        /// The message of the answer.
        error: String,
    },
}

/// A request.
#[derive(Clone, Debug)]
pub struct AdminRequest {
    pub(super) method: &'static str,
    /// With its query.
    pub(super) path: String,
    pub(super) body: Bytes,
    /// The most bytes that an answer may have.
    pub(super) largest_answer: usize,
}

impl AdminRequest {
    /// Creates a GET request for a path with its query.
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: "GET",
            path: path.into(),
            body: Bytes::new(),
            largest_answer: MAX_BODY,
        }
    }

    /// Creates a POST request without a body.
    pub fn post(path: impl Into<String>) -> Self {
        Self {
            method: "POST",
            ..Self::get(path)
        }
    }

    /// Limits the answer to an acknowledgement with a few numbers.
    #[must_use]
    pub fn acknowledged(self) -> Self {
        Self {
            largest_answer: MAX_ACKNOWLEDGEMENT,
            ..self
        }
    }

    /// Creates a request with a body of JSON.
    pub fn with_body(method: &'static str, path: impl Into<String>, body: &impl Serialize) -> Self {
        // Never an error: the bodies of the API have no keys other than strings.
        let body = serde_json::to_vec(body).unwrap_or_default().into();
        Self {
            method,
            body,
            ..Self::get(path)
        }
    }

    /// Sends it, and returns the head of the answer. Its body can be read while the second value lives.
    pub(super) async fn send<S>(
        &self,
        stream: S,
        host: &str,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>), ReplicaError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let request = exchange::request(&self.path, host, "application/json, text/event-stream").method(self.method);
        let request = match self.body.is_empty() {
            true => request,
            false => request.header(CONTENT_TYPE, "application/json"),
        };
        let begun = exchange::send_request(stream, request, self.body.clone()).await;
        begun.map_err(|reason| ReplicaError::Unexpected(body_excerpt(&reason)))
    }
}

/// Reads the body of an answer, of at most `max` bytes.
pub(super) async fn body(frames: Incoming, max: usize) -> Result<Bytes, ReplicaError> {
    let body = exchange::read_body(frames, max).await;
    body.map_err(|reason| ReplicaError::Unexpected(body_excerpt(&reason)))
}

/// Returns the error of an unsuccessful answer: JSON of the API, or text of probes and other servers.
pub(super) fn refusal(status: u16, body: &[u8]) -> ReplicaError {
    match serde_json::from_slice(body) {
        Ok(ErrorBody { error }) => ReplicaError::Refused {
            status,
            error: body_excerpt(&error),
        },
        Err(_) => {
            let text = String::from_utf8_lossy(body.get(..MAX_SHOWN * 4).unwrap_or(body));
            let line = text.lines().next().unwrap_or_default();
            ReplicaError::Unexpected(format!("status {status}: {}", body_excerpt(line)))
        }
    }
}

/// Returns an error of a connection, with its causes.
pub(super) fn unexpected(error: &(dyn std::error::Error + 'static)) -> ReplicaError {
    ReplicaError::Unexpected(body_excerpt(&chain(error)))
}

/// Returns the beginning of a foreign text, for an error.
pub(super) fn body_excerpt(text: &str) -> String {
    excerpt(text.trim(), MAX_SHOWN)
}

/// The reason for a change: one readable line, for logs and terminals, without white space at its ends.
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

/// In bytes. A tunnel takes about 900 in JSON, and a page has at most [`MAX_PAGE_ITEMS`](super::merge::MAX_PAGE_ITEMS).
const MAX_BODY: usize = 32 << 20;
/// In bytes: far more than a process reports about its drain.
const MAX_ACKNOWLEDGEMENT: usize = 1 << 20;
/// Characters of a foreign text in an error.
const MAX_SHOWN: usize = 300;

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
