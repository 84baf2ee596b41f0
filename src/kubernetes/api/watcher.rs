//! Lists and watches the objects of one kind, and sends its consumer the events.
//!
//! It does not use kube's watcher, which takes 7 to 10 s to find a server that is back, and parses whole objects. Half-open
//! connections are no reason: since kube 4.2 its watcher, too, ends a watch that the server should have ended 5 s before.
//! Here every wait has a deadline. A watch asks the server to end it after [`WATCH`]; one that is silent for longer has lost
//! its server. A watch that ends in time is resumed at the last resource version. After most failures the objects are
//! listed again: a server that was restored from a backup would send no event about a resource version that it has not
//! reached yet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::api_client::ApiClient;
use super::failure::{ApiError, Failure};
use super::json_stream::{MAX_OBJECT, Outline};
use super::list_watch::{Listing, Metadata, WatchEvent};
use super::outage::{ForbiddenStreak, Outage};
use super::requests::{self, BodyReader, FOLLOWER, MAX_LISTED, encoded};
use crate::base::random::{Backoff, jittered, random_part};
use crate::base::text::excerpt;
use crate::daemon::vital::supervise;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::policy::access::{Watch, Watches};

/// The consumer of the objects of one kind.
pub(crate) trait Objects: Send {
    /// The part of an object that is kept.
    type Object: Send;

    /// Reads an object; `None` for one that is left out.
    ///
    /// # Errors
    /// It is not of this kind: the list or watch has failed.
    fn read(&self, json: &str) -> Result<Option<Self::Object>, serde_json::Error>;

    /// Returns the replacement of an object that is too long to be read; `None` if it is left out.
    fn replacement(&self, _metadata: Metadata) -> Option<Self::Object> {
        None
    }

    /// Takes an event.
    fn take(&mut self, event: Event<Self::Object>) -> impl Future<Output = ()> + Send;

    /// Returns whether the next list is wanted soon, because the last one is in doubt.
    fn wants_list(&self) -> bool {
        false
    }
}

/// An event of a list or watch.
#[derive(Debug)]
pub(crate) enum Event<T> {
    /// A complete list: there are these objects and no others.
    Listed(Vec<T>),
    /// An object was created or changed.
    Applied(T),
    /// An object was deleted.
    Deleted(T),
    /// The consumer has all changes up to now.
    UpToDate,
    /// A list or a watch has failed.
    Failed(Failure),
    /// The API server has answered only 403 for so long that the permission to list and watch is missing.
    Refused,
}

/// The objects that are watched, and what the log says about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchSpec {
    /// The plural name of the API, also the field `kind` of log lines.
    pub(crate) kind: &'static str,
    /// The API group; empty for the core group.
    pub(crate) group: &'static str,
    /// The namespace of the objects.
    pub(crate) scope: Scope,
    /// The selector as a part of a query, with its final `&`; empty for all objects.
    pub(crate) selector: String,
    /// The effect of a failure, for the log.
    pub(crate) effect: &'static str,
    /// True if the permission to watch the objects may be missing permanently: access is then revoked later.
    pub(crate) is_optional: bool,
    /// The interval between lists, even if no watch fails.
    pub(crate) relist: Duration,
}

/// The namespaces of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All namespaces, or none for objects outside namespaces.
    Cluster,
    /// That of the kubeconfig's context, or of the pod.
    Own,
    /// The namespace of this name.
    Namespace(Box<str>),
}

/// Where the API server is, and where failures are recorded.
#[derive(Clone, Debug)]
pub struct WatchContext {
    /// The kubeconfig; `None` for that of KUBECONFIG or the user, or, without one, for the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The metrics.
    pub metrics: ClusterMetrics,
    /// The watches that revoke access.
    pub watches: Arc<Watches>,
}

/// Watches access rights, tickets or replicas, and never returns. After a panic it calls `restarted`, and starts again
/// with a new consumer.
pub(crate) async fn keep_following<O: Objects + 'static>(
    spec: WatchSpec,
    objects: impl Fn() -> O,
    context: WatchContext,
    restarted: impl Fn(),
) {
    for failure in Failure::ALL {
        context.metrics.watch_errors.zero([failure.label()]);
    }
    // One for all restarts: a watcher that panics at each list is out of step since the first panic.
    let watch = context.watches.add();
    let start = || {
        let (spec, kubeconfig) = (spec.clone(), context.kubeconfig.clone());
        tokio::spawn(follow(spec, objects(), kubeconfig, watch.clone()))
    };
    let failed = || {
        watch.note(false);
        restarted();
    };
    supervise("a task that follows access rights, tickets or replicas", start, failed).await;
}

/// Watches objects, and notes in `watch` whether their consumer is in step with the cluster. Never returns.
pub(crate) async fn follow<O: Objects>(spec: WatchSpec, objects: O, kubeconfig: Option<PathBuf>, watch: Watch) {
    let mut follower = Watcher {
        spec,
        objects,
        api: ApiClient::new(kubeconfig, FOLLOWER),
        watch,
        version: None,
        listed: None,
        relist_at: Instant::now(),
        lists_whole: false,
        failures: 0,
        expired: 0,
        is_logged: false,
        outage: Outage::default(),
        streak: ForbiddenStreak::default(),
    };
    loop {
        if let Err(error) = follower.step().await {
            follower.recover(&error).await;
        }
    }
}

struct Watcher<O> {
    spec: WatchSpec,
    objects: O,
    api: ApiClient,
    watch: Watch,
    /// The resource version at which a watch resumes; `None` if a list is needed.
    version: Option<String>,
    /// The end of the last complete list; `None` before the first.
    listed: Option<Instant>,
    /// The time of the next list, even if no watch fails.
    relist_at: Instant,
    /// True if the next list is requested in one page.
    lists_whole: bool,
    /// Failures since a watch of at least [`MIN_WATCH_DURATION`], without 410s and lasting 403s.
    failures: u32,
    /// 410s since such a watch.
    expired: u32,
    /// True if it is logged that the permission to list and watch is missing.
    is_logged: bool,
    outage: Outage,
    streak: ForbiddenStreak,
}

impl<O: Objects> Watcher<O> {
    /// Does one list, or one watch.
    async fn step(&mut self) -> Result<(), ApiError> {
        let client = self.api.client(&self.api.attempt()).await?;
        // A list may be early, if the time left is too short for a watch.
        let is_due = Instant::now() + MIN_WATCH_DURATION * 2 >= self.relist_at;
        // A list in doubt is not repeated at once: a faulty server would send the same again.
        let is_wanted = self.objects.wants_list() && !self.is_fresh();
        match self.version.take().filter(|_| !is_due && !is_wanted) {
            Some(version) => self.watch(&client, version).await,
            None => self.list(&client).await,
        }
    }

    async fn list(&mut self, client: &Client) -> Result<(), ApiError> {
        // Changes are seen only after the last page, which may be the 2,000th.
        self.watch.note(false);
        let path = self.spec.path(client.default_namespace());
        let mut objects = Vec::new();
        let mut listing = Listing::new(MAX_LISTED / PAGE);
        let version = loop {
            let path = match self.lists_whole {
                true => path.clone(),
                false => page_path(&path, listing.token()),
            };
            let page = self.page(client, &path, &mut objects).await;
            let version = page.and_then(|page| listing.turn(&page));
            // A server that drops a list between two pages may still send it in one page.
            let version = version.inspect_err(|error| self.lists_whole = error.failure == Failure::Expired);
            if let Some(version) = version? {
                break version;
            }
        };
        self.lists_whole = false;
        self.listed = Some(Instant::now());
        self.relist_at = Instant::now() + varied(self.spec.relist);
        self.version = Some(version);
        self.objects.take(Event::Listed(objects)).await;
        // The failures and the outage stay: a list does not show that watches work.
        self.watch.note(true);
        Ok(())
    }

    /// Adds the objects of a page. Returns the rest of the page.
    async fn page(&mut self, client: &Client, path: &str, objects: &mut Vec<O::Object>) -> Result<Vec<u8>, ApiError> {
        let mut body = requests::get(client, path).await?;
        let mut page = Outline::default();
        while let Some(item) = body.read_item(&mut page).await? {
            objects.extend(self.read(&item.json, item.is_whole).await?);
            if objects.len() > MAX_LISTED {
                return Err(ApiError::new(Failure::Malformed, "a list without an end"));
            }
        }
        Ok(page.text)
    }

    /// Reads an object, or the outline of one that is too long.
    async fn read(&mut self, json: &str, is_whole: bool) -> Result<Option<O::Object>, ApiError> {
        if is_whole {
            return Ok(self.objects.read(json)?);
        }
        let metadata = Metadata::read(json)?;
        let (kind, namespace) = (self.spec.kind, metadata.namespace.as_deref());
        let object = excerpt(metadata.name.as_deref().unwrap_or_default(), MAX_REASON);
        warn!(
            kind,
            namespace,
            object,
            "ignoring an object of more than {} MiB",
            MAX_OBJECT >> 20
        );
        self.objects.take(Event::Failed(Failure::Malformed)).await;
        Ok(self.objects.replacement(metadata))
    }

    async fn watch(&mut self, client: &Client, mut version: String) -> Result<(), ApiError> {
        let started = Instant::now();
        let left = self.relist_at.saturating_duration_since(started);
        let lasts = varied(WATCH).min(left).max(MIN_WATCH_DURATION);
        let path = self.spec.path(client.default_namespace());
        let mut body = requests::get(client, &watch_path(&path, &version, lasts)).await?;
        self.recovered();
        self.streak = ForbiddenStreak::default();
        if std::mem::take(&mut self.is_logged) {
            info!(kind = self.spec.kind, "the right to list and watch is there again");
        }
        self.objects.take(Event::UpToDate).await;
        let ended = self.take_events(&mut body, lasts + GRACE, &mut version).await;
        self.version = Some(version);
        if started.elapsed() >= MIN_WATCH_DURATION {
            (self.failures, self.expired) = (0, 0);
        } else if ended.is_ok() {
            // A server that accepts watches only to drop them is not back.
            return Err(ApiError::new(Failure::Cut, "the watch ended at once"));
        }
        ended
    }

    /// Takes the events of a watch until it ends, and keeps `version` up to date.
    async fn take_events(
        &mut self,
        body: &mut BodyReader,
        longest_silence: Duration,
        version: &mut String,
    ) -> Result<(), ApiError> {
        while let Some(line) = body.read_line(longest_silence).await? {
            let Some(WatchEvent {
                change,
                version: new_version,
            }) = WatchEvent::read(&line.json)?
            else {
                continue;
            };
            let event = match change {
                Some((object, is_deleted)) => match (self.read(object.get(), line.is_whole).await?, is_deleted) {
                    (Some(object), true) => Event::Deleted(object),
                    (Some(object), false) => Event::Applied(object),
                    (None, _) => Event::UpToDate,
                },
                None => Event::UpToDate,
            };
            self.objects.take(event).await;
            if let Some(new_version) = new_version {
                *version = new_version;
            }
        }
        Ok(())
    }

    /// Returns whether the last list is newer than [`RELIST_SOON`].
    fn is_fresh(&self) -> bool {
        self.listed.is_some_and(|listed| listed.elapsed() < RELIST_SOON)
    }

    fn recovered(&mut self) {
        self.watch.note(true);
        if let Some(after) = self.outage.end(Instant::now()) {
            info!(kind = self.spec.kind, ?after, "the API server answers again");
        }
    }

    /// Reports a failure, and waits before the next attempt.
    async fn recover(&mut self, error: &ApiError) {
        let now = Instant::now();
        let failure = error.failure;
        self.streak.failed(failure, now);
        let lacks_rights = self.streak.are_lasting(now);
        // Once the missing permission is logged, a single 403 after another failure is enough.
        let is_missing = lacks_rights || self.is_logged && failure == Failure::Forbidden;
        self.watch.note(is_missing && self.spec.is_optional);
        self.objects.take(Event::Failed(failure)).await;
        if failure == Failure::Expired {
            // A new list is the remedy. Only the first one is requested without a wait, since the connection works: a
            // server that expires each list before its watch must not get lists without a pause.
            self.version = None;
            if self.expired > 0 {
                self.warn(error);
                sleep(jittered(EXPIRED_BACKOFF.after(self.expired))).await;
            }
            self.expired = self.expired.saturating_add(1);
            return;
        }
        // If a watch is cut soon after a list, the next watch resumes there and sends the missed events: repeated cuts
        // cost one list every 10 s, not one list each.
        if self.is_fresh() && self.version.is_some() && failure == Failure::Cut {
            self.relist_at = self.relist_at.min(now + RELIST_SOON);
        } else {
            self.version = None;
        }
        // The certificate, the token or the address may have changed, a pooled connection may be half-open.
        self.api.renew();
        if lacks_rights {
            self.objects.take(Event::Refused).await;
            self.warn_missing_rights(error);
            sleep(varied(ASK_AGAIN)).await;
            return;
        }
        self.warn(error);
        sleep(error.retry_after.unwrap_or_default() + jittered(BACKOFF.after(self.failures))).await;
        self.failures = self.failures.saturating_add(1);
    }

    fn warn_missing_rights(&mut self, error: &ApiError) {
        if std::mem::replace(&mut self.is_logged, true) {
            return;
        }
        let WatchSpec {
            kind, group, effect, ..
        } = self.spec;
        let role = match self.spec.scope {
            Scope::Cluster => "the ClusterRole",
            Scope::Own | Scope::Namespace(_) => "the Role",
        };
        warn!(
            kind,
            "{effect}: {role} of switchboard lacks the rule {{apiGroups: [{group:?}], resources: [{kind}], verbs: [list, \
             watch]}}: {}",
            excerpt(&error.reason, MAX_REASON)
        );
    }

    /// Warns of a failure if a warning is due, but of no 403, which may pass.
    fn warn(&mut self, error: &ApiError) {
        let ApiError { failure, reason, .. } = error;
        if *failure != Failure::Forbidden
            && let Some(since) = self
                .outage
                .failed(*failure, self.failures.max(self.expired), Instant::now())
        {
            let (WatchSpec { kind, effect, .. }, failure) = (&self.spec, failure.label());
            // The text of a server, or of a parser that quotes it, may be of any length.
            let reason = excerpt(reason, MAX_REASON);
            warn!(kind, failure, ?since, "{effect}: {reason}");
        }
    }
}

impl WatchSpec {
    /// Returns the path of the API with the beginning of its query, ending in `?` or `&`.
    fn path(&self, own_namespace: &str) -> String {
        let Self {
            kind,
            group,
            scope,
            selector,
            ..
        } = self;
        let version = match *group {
            "" => "/api/v1".to_owned(),
            group => format!("/apis/{group}/v1"),
        };
        let namespace = match scope {
            Scope::Cluster => return format!("{version}/{kind}?{selector}"),
            Scope::Own => own_namespace,
            Scope::Namespace(name) => name,
        };
        format!("{version}/namespaces/{}/{kind}?{selector}", encoded(namespace))
    }
}

/// Returns the path of one page of a list. `token` is the `continue` of the page before; empty for the first page.
fn page_path(path: &str, token: &str) -> String {
    match token {
        "" => format!("{path}limit={PAGE}"),
        token => format!("{path}limit={PAGE}&continue={}", encoded(token)),
    }
}

/// Returns the path of a watch from `version` on, which the server ends after `lasts`.
fn watch_path(path: &str, version: &str, lasts: Duration) -> String {
    let (version, seconds) = (encoded(version), lasts.as_secs());
    format!("{path}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}")
}

/// Returns a duration that is up to a fifth shorter or longer, so that proxies do not stay in step.
fn varied(duration: Duration) -> Duration {
    random_part(duration, 0.8, 0.4)
}

/// Objects per page: an answer of a few hundred kilobytes, or of 120 MiB if tenants write as many annotations as they may.
/// It is read as it arrives.
const PAGE: usize = 500;
/// The mean length of a watch. The server ends it then, so a half-open connection is found soon after.
const WATCH: Duration = Duration::from_secs(20);
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);
/// The longest delay of a watch's end.
const GRACE: Duration = Duration::from_secs(3);
/// The waits after a failure. Longer ones would delay the discovery of a server that is back, and two requests a second are
/// a small load.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(1),
};
/// The waits after a 410. The longest is shorter than the time for which a watch that revokes access may be out of step.
const EXPIRED_BACKOFF: Backoff = Backoff {
    max: Duration::from_secs(4),
    ..BACKOFF
};
/// The shortest interval between lists after a watch that was cut, or while a list is in doubt.
const RELIST_SOON: Duration = Duration::from_secs(10);
/// The interval between lists while the permission is missing.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// Characters of a reason in the log.
const MAX_REASON: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(group: &'static str, scope: Scope, selector: &str) -> String {
        let spec = WatchSpec {
            kind: "things",
            group,
            scope,
            selector: selector.to_owned(),
            effect: "",
            is_optional: false,
            relist: Duration::ZERO,
        };
        spec.path("own")
    }

    #[test]
    fn objects_have_the_path_of_their_group_and_namespaces() {
        assert_eq!(path("", Scope::Cluster, ""), "/api/v1/things?");
        assert_eq!(path("g.io", Scope::Cluster, ""), "/apis/g.io/v1/things?");
        assert_eq!(path("", Scope::Own, "a=b&"), "/api/v1/namespaces/own/things?a=b&");
        let named = Scope::Namespace("team-a".into());
        assert_eq!(path("", named, ""), "/api/v1/namespaces/team-a/things?");
    }

    #[test]
    fn pages_and_watches_have_their_paths() {
        let path = "/api/v1/things?";
        assert_eq!(page_path(path, ""), "/api/v1/things?limit=500");
        assert_eq!(page_path(path, "a/b"), "/api/v1/things?limit=500&continue=a%2Fb");
        assert_eq!(
            watch_path(path, "7", Duration::from_secs(20)),
            "/api/v1/things?watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=20"
        );
    }
}
