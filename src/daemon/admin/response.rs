//! The forms of the answers: text for the pages of the probes, JSON for the rest.

use axum::Json;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};

use crate::daemon::admin::api::ErrorBody;

/// The answer to a request that cannot be served, in JSON.
#[derive(Debug)]
pub(crate) struct HttpError {
    status: StatusCode,
    error: String,
}

impl HttpError {
    /// Creates an error whose sentence names the fault and the faulty part.
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        let error = error.into();
        Self { status, error }
    }

    /// Creates the error of an invalid request.
    pub(crate) fn bad(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// Creates the error of an unknown name.
    pub(crate) fn unknown(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.error })).into_response()
    }
}

/// The JSON of an answer.
pub(crate) type Answer<T> = Result<Json<T>, HttpError>;

/// Returns a page of text.
pub(crate) fn text(status: StatusCode, page: impl Into<String>) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], page.into()).into_response()
}

/// Copies the field Allow of a 405 into its page.
pub(crate) fn name_the_methods(response: Response) -> Response {
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allowed = response.headers().get(ALLOW).and_then(|allowed| allowed.to_str().ok());
    let allowed = allowed.unwrap_or_default().replace(',', ", ");
    let is_json = |kind: &HeaderValue| kind.as_bytes() == b"application/json";
    let mut named = if response.headers().get(CONTENT_TYPE).is_some_and(is_json) {
        HttpError::new(response.status(), format!("only {allowed}")).into_response()
    } else {
        text(response.status(), format!("only {allowed}\n"))
    };
    if let Ok(allowed) = HeaderValue::try_from(allowed) {
        named.headers_mut().insert(ALLOW, allowed);
    }
    named
}
