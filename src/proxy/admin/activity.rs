//! `/activity`: whether a target is in use, for what stops idle ones. Only this host learns by whom.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde::Deserialize;

use super::request::Options;
use super::view;
use crate::daemon::admin::answer::{Answer, Unserved};
use crate::daemon::admin::api::Activity;
use crate::daemon::admin::caller::Caller;
use crate::policy::allowlist::Target;
use crate::proxy::connection::Shared;

/// The route, which every peer may read.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new().route("/activity", get(activity))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// `namespace/service`.
    target: String,
}

async fn activity(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Options(Asked { target: name }): Options<Asked>,
    fields: HeaderMap,
) -> Answer<Activity> {
    let is_it = |target: &Arc<Target>| target.id().is_named(&name);
    let target = shared.allowlist.all().into_iter().find(is_it);
    // Not an idle target: a culler that asks for a name with an error in it would stop a used one.
    let target = target.ok_or_else(|| Unserved::unknown(format!("no target {name} is on the allowlist")))?;
    let mut open = shared.registry.all();
    open.retain(|open| open.facts.target.as_ref().is_some_and(|own| Arc::ptr_eq(own, &target)));
    let mut why: Vec<_> = open.iter().map(|open| view::reason(open)).collect();
    why.sort_by(|one, other| other.last_active.cmp(&one.last_active));
    Ok(Json(Activity {
        has_activity: why.iter().any(|used| used.is_active),
        last_activity: target.last_activity().map(view::rfc3339),
        why: caller.may_act(&fields).is_ok().then_some(why),
    }))
}
