//! `/targets`: lists the allowlist with its open tunnels, and cordons targets; `/activity`: reports whether a target is
//! in use, for cullers of idle targets.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use serde::Deserialize;

use super::extract::{Page, PageQuery, QueryParams, TargetName, TargetPath};
use super::view;
use crate::base::authority::Authority;
use crate::daemon::admin::api::{self, Activity, TargetDiagnosis};
use crate::daemon::admin::caller::Caller;
use crate::daemon::admin::response::{Answer, HttpError};
use crate::policy::allowlist::{NoRemarks, Target, TargetId};
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::{Change, Event};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;

/// Lists the allowlist.
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    QueryParams(part): QueryParams<PageQuery>,
) -> Answer<api::Targets> {
    let mut tunnels: HashMap<*const Target, usize> = HashMap::new();
    for open in shared.registry.all() {
        if let Some(target) = &open.info.target {
            *tunnels.entry(Arc::as_ptr(target)).or_default() += 1;
        }
    }
    let name = |target: &Arc<Target>| (0, target.id().to_string());
    let Page { items, total, next } = part.page(shared.allowlist.all(), name).map_err(HttpError::bad)?;
    let row = |target: &Arc<Target>| {
        let tunnels = tunnels.get(&Arc::as_ptr(target)).copied();
        view::target(target, tunnels.unwrap_or_default(), &shared)
    };
    let targets = items.iter().map(row).collect();
    Ok(Json(api::Targets { targets, total, next }))
}

/// Returns a target.
pub(super) async fn one(State(shared): State<Arc<Shared>>, TargetPath(target): TargetPath) -> Json<api::Target> {
    Json(view(&target, &shared))
}

/// Returns why a name is on the allowlist or not, and what keeps tunnels from its target.
pub(super) async fn diagnose(
    State(shared): State<Arc<Shared>>,
    TargetName { namespace, service }: TargetName,
) -> Json<TargetDiagnosis> {
    let name = format!("{namespace}/{service}");
    // A name as clients request it is that of a Service, too.
    let requested: Option<Authority> = service.parse().ok().filter(|_| namespace == "static");
    let found = match &requested {
        Some(authority) => shared.allowlist.find_target(authority).ok(),
        None => shared
            .allowlist
            .all()
            .into_iter()
            .find(|target| target.id().is_named(&name)),
    };
    if let Some(target) = found {
        return Json(TargetDiagnosis {
            target: target.id().to_string(),
            is_listed: true,
            evidence: obstacles(&target, &shared),
        });
    }
    let id = match &requested {
        Some(authority) => shared.allowlist.service_named(authority.host()),
        None => Some(TargetId {
            namespace: namespace.into(),
            service: service.into(),
        }),
    };
    let evidence = match (&id, requested) {
        (None, _) => vec!["it is no static target, and no name of a Service: that is SERVICE.NAMESPACE".to_owned()],
        (Some(id), Some(authority)) if let Some(ports) = shared.allowlist.ports(id) => {
            let (port, mut ports) = (authority.port(), Vec::from(ports));
            ports.dedup();
            let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
            vec![format!(
                "{id} is on the allowlist at port {}, not at {port}",
                ports.join(" and ")
            )]
        }
        (Some(id), _) => absence(id, &shared),
    };
    Json(TargetDiagnosis {
        target: id.map_or(name, |id| id.to_string()),
        is_listed: false,
        evidence,
    })
}

/// Returns why a Service, or a pod of one, is not on the allowlist.
fn absence(id: &TargetId, shared: &Shared) -> Vec<String> {
    let of_cluster = match shared.allowlist.remarks(id) {
        Ok(remarks) if remarks.is_empty() => vec![match id.service.contains('.') {
            true => "its Service is on the allowlist, and has no pod of this hostname".to_owned(),
            false => "it is about to be listed: ask again".to_owned(),
        }],
        Ok(remarks) => remarks,
        Err(NoRemarks::Busy) => vec!["the watches of the cluster are busy: ask again".to_owned()],
        Err(NoRemarks::NoCluster) => {
            vec!["it is no static target, and this proxy watches no cluster (`allowlist.kubernetes`)".to_owned()]
        }
    };
    let requested = format!("{}:22", id.short_name()).parse();
    let is_awaited = requested.is_ok_and(|requested| shared.allowlist.awaits(&requested));
    let incomplete = is_awaited
        .then(|| "this replica has no complete list of the namespace yet: see its /readyz?verbose".to_owned());
    let unconfirmed = shared
        .allowlist
        .unconfirmed_since()
        .map(|since| unanswered(view::rfc3339(since)));
    incomplete.into_iter().chain(unconfirmed).chain(of_cluster).collect()
}

fn unanswered(since: impl Display) -> String {
    format!("the API server does not answer: last confirmed at {since}")
}

/// Returns what keeps new tunnels from a target, and what does not apply as written.
fn obstacles(target: &Target, shared: &Shared) -> Vec<String> {
    let view = view::target(target, 0, shared);
    let rules = target.rules();
    let stop = rules.stopped.filter(|stop| !stop.is_over(SystemTime::now()));
    let dial = view.last_dial.filter(|dial| !dial.error.is_empty());
    let found = [
        target
            .id()
            .is_static()
            .then(|| "it is a static target of this proxy's configuration".to_owned()),
        rules
            .is_awaited
            .then(|| "the API server has not listed it since a reload: see /readyz?verbose".to_owned()),
        view.is_cordoned.then(|| {
            format!(
                "an operator has cordoned it: switchboard targets uncordon {}",
                target.id()
            )
        }),
        stop.map(|stop| format!("it was stopped {stop}")),
        rules
            .limits
            .is_closed
            .then(|| "its annotation `max-tunnels` lets no new tunnel begin".to_owned()),
        (rules.dials_in.is_some() && view.anchors.is_empty())
            .then(|| "none of its anchors is connected here".to_owned()),
        dial.map(|dial| {
            format!(
                "the last dial failed at {}: {} ({})",
                dial.at, dial.sentence, dial.error
            )
        }),
        view.unconfirmed_since.map(unanswered),
    ];
    let mut found: Vec<_> = found.into_iter().flatten().chain(view.remarks).collect();
    if found.is_empty() {
        found.push("it takes new tunnels, as far as caps, permissions and restrictions allow".to_owned());
    }
    found
}

/// Lets no new tunnel to a target begin.
pub(super) async fn cordon(State(shared): State<Arc<Shared>>, TargetPath(target): TargetPath) -> Json<api::Target> {
    set_cordoned(&target, true, &shared);
    changed(&target, Change::Cordoned, &shared)
}

/// Lets tunnels to a target begin again.
pub(super) async fn uncordon(State(shared): State<Arc<Shared>>, TargetPath(target): TargetPath) -> Json<api::Target> {
    set_cordoned(&target, false, &shared);
    changed(&target, Change::Uncordoned, &shared)
}

/// Cordons the target, and with a Service its pods.
fn set_cordoned(target: &Target, is_cordoned: bool, shared: &Shared) {
    for other in shared.allowlist.all() {
        if target.id().covers(other.id()) {
            other.set_cordoned(is_cordoned);
        }
    }
}

fn changed(target: &Arc<Target>, change: Change, shared: &Shared) -> Json<api::Target> {
    let name = || Event::Changed(target.id().to_string().into(), change);
    shared.registry.events.publish(name);
    Json(view(target, shared))
}

fn view(target: &Arc<Target>, shared: &Shared) -> api::Target {
    let tunnels = shared.registry.all();
    let open = tunnels.iter().filter(|open| is_of(open, target)).count();
    view::target(target, open, shared)
}

fn is_of(open: &OpenTunnel, target: &Arc<Target>) -> bool {
    open.info.target.as_ref().is_some_and(|own| Arc::ptr_eq(own, target))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActivityQuery {
    /// `namespace/service`.
    target: String,
}

/// Returns whether a target is in use, for cullers of idle targets.
pub(super) async fn activity(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    QueryParams(ActivityQuery { target: target_name }): QueryParams<ActivityQuery>,
    fields: HeaderMap,
) -> Answer<Activity> {
    let mut targets = shared.allowlist.all();
    let target = targets
        .iter()
        .find(|target| target.id().is_named(&target_name))
        .cloned();
    // An unknown name does not count as idle, because a culler that misspells a name would stop a used target.
    let target = target.ok_or_else(|| HttpError::unknown(format!("no target {target_name} is on the allowlist")))?;
    let mut open = shared.registry.all();
    // A Service is in use if one of its pods is.
    let is_covered = |other: &Arc<Target>| target.id().covers(other.id());
    open.retain(|open| open.info.target.as_ref().is_some_and(is_covered));
    targets.retain(is_covered);
    let last_activity = targets.iter().filter_map(|target| target.last_activity()).max();
    let mut why: Vec<_> = open.iter().map(|open| view::reason(open)).collect();
    why.sort_by(|one, other| other.last_active.cmp(&one.last_active));
    Ok(Json(Activity {
        has_activity: why.iter().any(|used| used.is_active),
        last_activity: last_activity.map(view::rfc3339),
        why: caller.require_local_caller(&fields).is_ok().then_some(why),
    }))
}
