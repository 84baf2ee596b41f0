//! Checks requests before they are served, and adds the security headers of every response.

use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};

use crate::base::secret::Secret;
use crate::daemon::admin::response::HttpError;

/// The host names of the page, and its secret.
#[derive(Debug)]
pub(super) struct RequestCheck {
    hosts: [String; 2],
    secret: DeskSecret,
}

impl RequestCheck {
    /// Creates the check of a page.
    pub(super) fn new(address: SocketAddr, secret: DeskSecret) -> Arc<Self> {
        let hosts = [address.to_string(), format!("localhost:{}", address.port())];
        Arc::new(Self { hosts, secret })
    }

    /// Checks that the browser means this page. Another Host is a foreign name that resolves to this address (DNS
    /// rebinding); another Origin is that of a foreign page.
    fn is_meant(&self, fields: &HeaderMap) -> Result<(), &'static str> {
        let mut hosts = fields.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err("exactly one Host is needed");
        };
        if !self.hosts.iter().any(|own| own.as_bytes() == host.as_bytes()) {
            return Err("this page has another name: open the address that `switchboard desk` has printed");
        }
        let own = [b"http://", host.as_bytes()].concat();
        match fields.get_all(ORIGIN).iter().all(|origin| origin.as_bytes() == own) {
            true => Ok(()),
            false => Err("refused from a page of another origin"),
        }
    }

    fn has_secret(&self, fields: &HeaderMap) -> bool {
        let mut shown = fields.get_all(AUTHORIZATION).iter();
        let shown = match (shown.next(), shown.next()) {
            (Some(shown), None) => shown.as_bytes(),
            _ => return false,
        };
        shown.strip_prefix(b"Bearer ").is_some_and(|text| self.secret.is(text))
    }
}

/// Refuses requests that are not meant for this page, and adds security headers.
pub(super) async fn around(State(guard): State<Arc<RequestCheck>>, request: Request, next: Next) -> Response {
    let mut response = match guard.is_meant(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(reason) => refused(reason),
    };
    let fields = response.headers_mut();
    for (name, value) in FIELDS {
        fields.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Refuses requests without the secret.
pub(super) async fn with_secret(State(guard): State<Arc<RequestCheck>>, request: Request, next: Next) -> Response {
    match guard.has_secret(request.headers()) {
        true => next.run(request).await,
        false => refused("the secret of the page's address is missing or wrong"),
    }
}

fn refused(reason: &str) -> Response {
    HttpError::new(StatusCode::FORBIDDEN, reason).into_response()
}

/// The policy lets the page load its own files and send requests to its own server only, and strings never become markup.
const FIELDS: [(&str, &str); 8] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// The secret that a request must show.
#[derive(Clone, Debug)]
pub(super) struct DeskSecret(Secret);

impl DeskSecret {
    /// Creates a random secret; `None` if the system gives no random bytes.
    pub(super) fn new() -> Option<Self> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        Some(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes).into()))
    }

    /// Returns the secret as text, for the address.
    pub(super) fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Returns whether `text` is the secret, in constant time for texts of one length.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        verify_slices_are_equal(self.expose().as_bytes(), text).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        let mut fields = HeaderMap::new();
        for (name, value) in pairs {
            fields.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        fields
    }

    #[test]
    fn only_this_page_by_its_own_name_is_answered() {
        let guard = RequestCheck::new("127.0.0.1:4000".parse().unwrap(), DeskSecret::new().unwrap());
        for (shown, is_meant) in [
            (&[(HOST, "127.0.0.1:4000")][..], true),
            (&[(HOST, "localhost:4000")], true),
            (&[(HOST, "localhost:4000"), (ORIGIN, "http://localhost:4000")], true),
            (&[], false),
            (&[(HOST, "")], false),
            (&[(HOST, "127.0.0.1")], false),
            (&[(HOST, "127.0.0.1:4001")], false),
            (&[(HOST, "rebound.example.com:4000")], false),
            (&[(HOST, "x@127.0.0.1:4000")], false),
            (&[(HOST, "x:y@localhost:4000")], false),
            (&[(HOST, "localhost.:4000")], false),
            (&[(HOST, "127.0.0.1.:4000")], false),
            (&[(HOST, "[127.0.0.1]:4000")], false),
            (&[(HOST, "127.0.0.1:04000")], false),
            (&[(HOST, "127.0.0.1:69536")], false),
            (&[(HOST, "localhost:")], false),
            (&[(HOST, "127.0.0.1:4000"), (HOST, "127.0.0.1:4000")], false),
            (&[(HOST, "127.0.0.1:4000"), (ORIGIN, "null")], false),
            (&[(HOST, "127.0.0.1:4000"), (ORIGIN, "http://x@127.0.0.1:4000")], false),
            (&[(HOST, "127.0.0.1:4000"), (ORIGIN, "http://127.0.0.1:4000/")], false),
            (&[(HOST, "127.0.0.1:4000"), (ORIGIN, "http://localhost:4000")], false),
            (&[(HOST, "127.0.0.1:4000"), (ORIGIN, "https://127.0.0.1:4000")], false),
            (&[(HOST, "127.0.0.1:4000"), (ORIGIN, "http://127.0.0.1:4001")], false),
        ] {
            assert_eq!(guard.is_meant(&fields(shown)).is_ok(), is_meant, "{shown:?}");
        }
    }

    #[test]
    fn the_secret_is_shown_once_and_whole() {
        let secret = DeskSecret::new().unwrap();
        let guard = RequestCheck::new("127.0.0.1:4000".parse().unwrap(), secret.clone());
        let right = format!("Bearer {}", secret.expose());
        assert!(guard.has_secret(&fields(&[(AUTHORIZATION, &right)])));
        for wrong in [
            secret.expose(),
            "Bearer ",
            "Bearer x",
            &format!("{right}x"),
            &right[..right.len() - 1],
        ] {
            assert!(!guard.has_secret(&fields(&[(AUTHORIZATION, wrong)])), "{wrong}");
        }
        assert!(!guard.has_secret(&fields(&[(AUTHORIZATION, &right), (AUTHORIZATION, &right)])));
        assert!(!guard.has_secret(&HeaderMap::new()));
    }

    #[test]
    fn each_secret_has_128_bits_and_is_shown_by_no_debug_output() {
        let (one, other) = (DeskSecret::new().unwrap(), DeskSecret::new().unwrap());
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(one.expose()).unwrap().len(), 16);
        assert_ne!(one.expose(), other.expose());
        assert!(one.is(one.expose().as_bytes()));
        for wrong in [other.expose(), "", &one.expose()[1..], &format!("{}A", one.expose())] {
            assert!(!one.is(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{one:?}").contains(one.expose()));
    }
}
