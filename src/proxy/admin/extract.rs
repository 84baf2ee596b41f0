//! Extracts the path, the query and the body of a request. Errors are JSON, and name the invalid part.

use std::cmp::Reverse;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::base::authority::Authority;
use crate::daemon::admin::api::{self, CloseRequest, Rates, RestrictionRequest};
use crate::daemon::admin::response::HttpError;
use crate::policy::allowlist::Target;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;

/// The query.
#[derive(Debug)]
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, HttpError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(options)) => Ok(Self(options)),
            Err(rejection) => Err(HttpError::bad(rejection.body_text())),
        }
    }
}

/// The tunnel that the path names.
#[derive(Debug)]
pub(super) struct TunnelPath(pub(super) Arc<OpenTunnel>);

impl FromRequestParts<Arc<Shared>> for TunnelPath {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, HttpError> {
        let id: String = in_path(parts, shared).await?;
        let number = id
            .split_once('-')
            .and_then(|(_, number)| u64::from_str_radix(number, 16).ok());
        let open = number.and_then(|number| shared.registry.get(number));
        open.filter(|open| open.info.id.to_string() == id)
            .map(Self)
            .ok_or_else(|| HttpError::unknown("no open tunnel of this process has that id"))
    }
}

/// The name of a target in the path, whether it is listed or not.
#[derive(Debug)]
pub(super) struct TargetName {
    /// The namespace of a Service, or `static`.
    pub(super) namespace: String,
    /// The Service, or an authority.
    pub(super) service: String,
}

impl FromRequestParts<Arc<Shared>> for TargetName {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, HttpError> {
        let (namespace, service) = in_path(parts, shared).await?;
        Ok(Self { namespace, service })
    }
}

/// The target that the path names.
#[derive(Debug)]
pub(super) struct TargetPath(pub(super) Arc<Target>);

impl FromRequestParts<Arc<Shared>> for TargetPath {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, HttpError> {
        let TargetName { namespace, service } = TargetName::from_request_parts(parts, shared).await?;
        find_target(&format!("{namespace}/{service}"), shared).map(Self)
    }
}

/// Returns the target of that name.
pub(super) fn find_target(name: &str, shared: &Shared) -> Result<Arc<Target>, HttpError> {
    let own = target_name(name, shared);
    let mut targets = shared.allowlist.all().into_iter();
    let found = targets.find(|target| target.id().is_named(&own));
    found.ok_or_else(|| HttpError::unknown(format!("no target {name} is on the allowlist")))
}

/// Returns the query with its target by its own name.
pub(super) fn with_target_name(query: &api::Query, shared: &Shared) -> api::Query {
    api::Query {
        target: query.target.as_deref().map(|name| target_name(name, shared)),
        ..query.clone()
    }
}

/// Returns the name as `namespace/service` of a target. `static/` may be before a name that clients request, or that lists show.
fn target_name(name: &str, shared: &Shared) -> String {
    let requested = name.strip_prefix("static/").and_then(|name| name.parse().ok());
    let allowlist = &shared.allowlist;
    let find = |authority: Authority| {
        allowlist
            .find_target(&authority)
            .ok()
            .or_else(|| allowlist.find_short(&authority))
    };
    let target = requested.and_then(find);
    target.map_or_else(|| name.to_owned(), |target| target.id().to_string())
}

async fn in_path<T: DeserializeOwned + Send>(parts: &mut Parts, shared: &Arc<Shared>) -> Result<T, HttpError> {
    match Path::from_request_parts(parts, shared).await {
        Ok(Path(named)) => Ok(named),
        Err(rejection) => Err(HttpError::new(rejection.status(), rejection.body_text())),
    }
}

/// The shape of a body, each field of it optional.
pub(super) trait BodyShape: DeserializeOwned + Default {
    /// The form of the object, for the error about a body that is no object.
    const FORM: &'static str;
}

impl BodyShape for CloseRequest {
    const FORM: &'static str = r#"{"reason": TEXT, "move": BOOLEAN, "for": DURATION}"#;
}

impl BodyShape for Rates {
    const FORM: &'static str = r#"{"download": RATE, "upload": RATE}"#;
}

impl BodyShape for RestrictionRequest {
    const FORM: &'static str = r#"{"kind": "limit" or "block", "target": NAME, "client": IP, "user": NAME, "for": DURATION, "download": RATE, "upload": RATE, "reason": TEXT, "keep": BOOLEAN}"#;
}

/// The JSON object of the body; an empty body is an empty object.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: BodyShape, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, state: &S) -> Result<Self, HttpError> {
        let body = Bytes::from_request(request, state).await;
        let body =
            body.map_err(|rejection| HttpError::new(rejection.status(), format!("body: {}", rejection.body_text())))?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        // serde would also read the struct from an array, even from an empty one, as each field is optional.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(HttpError::bad(format!("body: expected {}", T::FORM)));
        }
        let parsed = serde_json::from_slice(&body).map(Self);
        parsed.map_err(|error| HttpError::bad(format!("body: {error}")))
    }
}

/// Answers a method that the path does not have. `name_the_methods` adds the permitted methods to this answer.
pub(super) async fn method_not_allowed() -> Response {
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "").into_response()
}

/// The maximum size of a body in bytes.
pub(super) const MAX_BODY: usize = 16 << 10;

/// The query for a page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// The maximum number of items.
    pub(super) limit: Option<usize>,
    /// The value of `next` of the page before: a place in the order, in characters that a URL need not escape.
    pub(super) cursor: Option<String>,
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    pub(super) total: usize,
    pub(super) next: Option<String>,
}

/// The place of an item in the order of a list. Items with equal keys are in the order of their names.
pub(super) type SortKey<N> = (u64, N);

impl PageQuery {
    /// Returns the page of these items, the largest key first. `place` is called once for each item.
    ///
    /// An item whose key changes between two requests may be in both pages or in none.
    ///
    /// # Errors
    /// The cursor is invalid.
    pub(super) fn page<T, N>(&self, items: Vec<T>, place: impl Fn(&T) -> SortKey<N>) -> Result<Page<T>, String>
    where
        N: Ord + Display + FromStr,
    {
        let last = self.cursor.as_ref().map(|cursor| {
            let last = parse(cursor).ok_or_else(|| format!("cursor: {cursor:?} is not the `next` of an answer"))?;
            Ok::<_, String>(descending(last))
        });
        let last = last.transpose()?;
        let total = items.len();
        let placed = items.into_iter().map(|item| (descending(place(&item)), item));
        let mut placed: Vec<_> = placed
            .filter(|(place, _)| last.as_ref().is_none_or(|last| place > last))
            .collect();
        let limit = self.limit.unwrap_or(USUAL_LIMIT).clamp(1, MAX_LIMIT);
        let is_last = placed.len() <= limit;
        if !is_last {
            // Items after the page need no order.
            placed.select_nth_unstable_by(limit, |(one, _), (other, _)| one.cmp(other));
            placed.truncate(limit);
        }
        placed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let next = placed
            .last()
            .filter(|_| !is_last)
            .map(|((Reverse(key), name), _)| URL_SAFE_NO_PAD.encode(format!("{key}:{name}")));
        let items = placed.into_iter().map(|(_, item)| item).collect();
        Ok(Page { items, total, next })
    }
}

fn descending<N>((key, name): SortKey<N>) -> (Reverse<u64>, N) {
    (Reverse(key), name)
}

fn parse<N: FromStr>(cursor: &str) -> Option<SortKey<N>> {
    let decoded = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (key, name) = decoded.split_once(':')?;
    Some((key.parse().ok()?, name.parse().ok()?))
}

const USUAL_LIMIT: usize = 100;
/// The JSON of an answer is in memory: that of 2,000 tunnels takes 2 MB.
const MAX_LIMIT: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(item: &(u64, &str)) -> SortKey<String> {
        (item.0, item.1.to_owned())
    }

    #[test]
    fn the_parts_of_a_list_are_all_of_it_in_order() {
        let items = vec![(1, "a"), (3, "c"), (3, "b"), (u64::MAX, "d"), (0, "e")];
        let mut seen = Vec::new();
        let mut part = PageQuery {
            limit: Some(2),
            cursor: None,
        };
        loop {
            let listed = part.page(items.clone(), place).unwrap();
            assert_eq!(listed.total, 5);
            seen.extend(listed.items.iter().map(|(_, name)| *name));
            match listed.next {
                Some(next) => part.cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, ["d", "b", "c", "a", "e"]);
    }

    #[test]
    fn a_part_is_of_the_items_of_one_moment() {
        // Keys that change with each look, as bytes do.
        let looks = std::cell::Cell::new(0);
        let place = |item: &u64| {
            looks.set(looks.get() + 1);
            (looks.get(), *item)
        };
        let part = PageQuery {
            limit: Some(3),
            cursor: None,
        };
        let listed = part.page((0..10).collect(), place).unwrap();
        assert_eq!((looks.get(), listed.items), (10, vec![9, 8, 7]));
        assert_eq!(parse(&listed.next.unwrap()), Some((8_u64, 7_u64)));
    }

    #[test]
    fn a_cursor_that_is_none_is_named() {
        for cursor in ["", "x", "x:y", "-1:y"] {
            let part = PageQuery {
                limit: None,
                cursor: Some(cursor.to_owned()),
            };
            let said = part.page(vec![(1, "a")], place).unwrap_err();
            assert!(said.contains(&format!("{cursor:?}")), "{said}");
        }
    }
}
