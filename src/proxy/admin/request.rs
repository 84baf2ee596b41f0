//! What a request says in its path, its query and its body. What is wrong with it is told in JSON, and by name.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use serde::de::DeserializeOwned;

use crate::daemon::admin::answer::Unserved;
use crate::daemon::admin::api::{Closing, Rates};
use crate::policy::allowlist::Target;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;

/// The query.
#[derive(Debug)]
pub(super) struct Options<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Options<T> {
    type Rejection = Unserved;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Unserved> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(options)) => Ok(Self(options)),
            Err(rejection) => Err(Unserved::bad(rejection.body_text())),
        }
    }
}

/// The tunnel that the path names.
#[derive(Debug)]
pub(super) struct Named(pub(super) Arc<OpenTunnel>);

impl FromRequestParts<Arc<Shared>> for Named {
    type Rejection = Unserved;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Unserved> {
        let id: String = in_path(parts, shared).await?;
        let number = id
            .split_once('-')
            .and_then(|(_, number)| u64::from_str_radix(number, 16).ok());
        let open = number.and_then(|number| shared.registry.get(number));
        open.filter(|open| open.facts.id.to_string() == id)
            .map(Self)
            .ok_or_else(|| Unserved::unknown("no open tunnel of this process has that id"))
    }
}

/// The target that the path names, as namespace and Service.
#[derive(Debug)]
pub(super) struct Listed(pub(super) Arc<Target>);

impl FromRequestParts<Arc<Shared>> for Listed {
    type Rejection = Unserved;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Unserved> {
        let (namespace, service): (String, String) = in_path(parts, shared).await?;
        let is_it = |target: &Arc<Target>| *target.id().namespace == *namespace && *target.id().service == *service;
        let target = shared.allowlist.all().into_iter().find(is_it);
        target
            .map(Self)
            .ok_or_else(|| Unserved::unknown(format!("no target {namespace}/{service} is on the allowlist")))
    }
}

async fn in_path<T: DeserializeOwned + Send>(parts: &mut Parts, shared: &Arc<Shared>) -> Result<T, Unserved> {
    match Path::from_request_parts(parts, shared).await {
        Ok(Path(named)) => Ok(named),
        Err(rejection) => Err(Unserved::new(rejection.status(), rejection.body_text())),
    }
}

/// What a body says, each field of it optional.
pub(super) trait Content: DeserializeOwned + Default {
    /// Its form, for a body that has another one.
    const FORM: &'static str;
}

impl Content for Closing {
    const FORM: &'static str = r#"{"reason": TEXT}"#;
}

impl Content for Rates {
    const FORM: &'static str = r#"{"download": RATE, "upload": RATE}"#;
}

/// The JSON object of the body; an empty body is an empty object.
#[derive(Debug)]
pub(super) struct Told<T>(pub(super) T);

impl<T: Content, S: Send + Sync> FromRequest<S> for Told<T> {
    type Rejection = Unserved;

    async fn from_request(request: Request, state: &S) -> Result<Self, Unserved> {
        let body = Bytes::from_request(request, state).await;
        let body =
            body.map_err(|rejection| Unserved::new(rejection.status(), format!("body: {}", rejection.body_text())))?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        // serde reads a struct from an array as well, where an optional field may be missing.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(Unserved::bad(format!("body: expected {}", T::FORM)));
        }
        let parsed = serde_json::from_slice(&body).map(Self);
        parsed.map_err(|error| Unserved::bad(format!("body: {error}")))
    }
}

/// The answer to a method that a path does not have. The methods that it has are added last of all.
pub(super) async fn other_method() -> Response {
    Unserved::new(StatusCode::METHOD_NOT_ALLOWED, "").into_response()
}

/// Bytes of a body.
pub(super) const LONGEST_BODY: usize = 16 << 10;
