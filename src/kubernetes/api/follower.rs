//! Lists and watches the objects of one kind, in the way of the [reflector](crate::kubernetes::targets::reflector): every wait has a
//! deadline, a watch that ends in time is resumed, and after a failure the objects are listed anew.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::failure::{ApiError, Failure, backoff, random};
use super::list_watch::{Listing, WatchEvent};
use super::outage::{Outage, Refusals};
use super::requests::{self, BodyReader, FOLLOWER, encoded};
use crate::base::text::excerpt;
use crate::policy::access::{Watch, Watches};
use crate::tunnel::metrics::Metrics;

/// The objects of one kind, as far as they are kept.
pub(crate) trait Collection: Send {
    /// What is kept of an object.
    type Object: Send;

    /// What is asked for, and what it means when it is not answered.
    fn subject(&self) -> &Subject;

    /// The path of the API with the beginning of its query, up to `?` or `&`.
    fn path(&self, client: &Client) -> String;

    /// Reads an object.
    ///
    /// # Errors
    /// It is none of this kind: the list or watch has failed.
    fn read(&self, json: &str) -> Result<Self::Object, serde_json::Error>;

    /// Takes a complete list.
    fn list(&mut self, objects: Vec<Self::Object>);

    /// Takes an event of a watch.
    fn apply(&mut self, object: Self::Object, is_deleted: bool);
}

/// What a follower asks for, and how it speaks of that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    /// The plural name of the API, also the field `kind` of log lines.
    pub(crate) kind: &'static str,
    /// The API group; empty for the core group.
    pub(crate) group: &'static str,
    /// The media types of a list and of a watch.
    pub(crate) accept: [&'static str; 2],
    /// Objects a page of a list.
    pub(crate) page: usize,
    /// The role that must have the right to list and watch, for the log.
    pub(crate) role: &'static str,
    /// What it means that the objects cannot be followed, for the log.
    pub(crate) effect: &'static str,
    /// True if the right to follow them may be missing for good: access is taken back without them, only later.
    pub(crate) is_optional: bool,
}

/// Where the API server is, and where failures are noted.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The kubeconfig; `None` is that of the pod or the user.
    pub kubeconfig: Option<PathBuf>,
    /// The metrics.
    pub metrics: Metrics,
    /// The watches that take access back.
    pub watches: Arc<Watches>,
}

/// Follows the objects of one kind without an end. After a panic it begins again, with a new collection, and `restarted` is
/// called.
pub(crate) async fn keep_following<C: Collection + 'static>(
    collection: impl Fn() -> C,
    origin: Origin,
    restarted: impl Fn(),
) {
    // One for all of them: a follower that panics at each list is out of step since the first one.
    let watch = origin.watches.add();
    loop {
        let collection = collection();
        let kind = collection.subject().kind;
        let follower = Follower::new(collection, origin.clone(), watch.clone());
        if let Err(error) = tokio::spawn(follower.run()).await {
            error!(
                kind,
                "a task that follows access rights or tickets has failed, it is restarted: {error}"
            );
            watch.note(false);
            restarted();
        }
        sleep(BEFORE_RESTART).await;
    }
}

/// Follows the objects of one kind.
struct Follower<C> {
    collection: C,
    origin: Origin,
    watch: Watch,
    client: Option<Client>,
    /// The resource version at which a watch resumes; `None` asks for a list.
    version: Option<String>,
    /// The time of the next list, however well the watches go.
    relist_at: Instant,
    /// Whether the next list is asked for in one page.
    lists_whole: bool,
    /// Failures since a watch of some length.
    failures: u32,
    /// Whether the log knows that the right to watch is missing.
    is_told: bool,
    outage: Outage,
    refusals: Refusals,
}

impl<C: Collection> Follower<C> {
    /// A follower that has not asked yet.
    fn new(collection: C, origin: Origin, watch: Watch) -> Self {
        Self {
            watch,
            collection,
            origin,
            client: None,
            version: None,
            relist_at: Instant::now(),
            lists_whole: false,
            failures: 0,
            is_told: false,
            outage: Outage::default(),
            refusals: Refusals::default(),
        }
    }

    /// Follows without an end.
    async fn run(mut self) {
        loop {
            if let Err(error) = self.step().await {
                self.recover(&error).await;
            }
        }
    }

    /// One list, or one watch.
    async fn step(&mut self) -> Result<(), ApiError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = requests::connect(self.origin.kubeconfig.clone(), FOLLOWER).await?;
                self.client.insert(client).clone()
            }
        };
        // The rest of the time until then is too short for a watch.
        let is_due = Instant::now() + SHORTEST_WATCH * 2 >= self.relist_at;
        match self.version.take().filter(|_| !is_due) {
            Some(version) => self.watch(&client, version).await,
            None => self.list(&client).await,
        }
    }

    async fn list(&mut self, client: &Client) -> Result<(), ApiError> {
        // Changes are seen only with the last page, and nothing bounds their number.
        self.watch.note(false);
        let mut objects = Vec::new();
        let mut listing = Listing::new(requests::MOST_LISTED / self.collection.subject().page.max(1));
        let version = loop {
            let body = self.page(client, listing.token()).await?;
            let (page, version) = listing.read(&body)?;
            for item in page {
                objects.push(self.collection.read(item.get()).map_err(malformed)?);
            }
            if let Some(version) = version {
                break version;
            }
        };
        self.lists_whole = false;
        self.relist_at = Instant::now() + RELIST.mul_f64(0.8 + 0.4 * random());
        self.version = Some(version);
        self.collection.list(objects);
        self.recovered();
        // The failures stay: a list says nothing of the watch behind it.
        Ok(())
    }

    async fn page(&mut self, client: &Client, token: &str) -> Result<Vec<u8>, ApiError> {
        let [accept, _] = self.collection.subject().accept;
        let path = match self.lists_whole {
            true => self.collection.path(client),
            false => page_path(&self.collection.path(client), self.collection.subject().page, token),
        };
        let page = async { requests::get_as(client, &path, accept).await?.read_all().await };
        page.await.inspect_err(|error| {
            // A server that forgets a list between two of its pages may still send it in one.
            self.lists_whole = error.failure == Failure::Expired;
        })
    }

    async fn watch(&mut self, client: &Client, mut version: String) -> Result<(), ApiError> {
        let started = Instant::now();
        let left = self.relist_at.saturating_duration_since(started);
        let lasts = WATCH.mul_f64(0.8 + 0.4 * random()).min(left).max(SHORTEST_WATCH);
        let [_, accept] = self.collection.subject().accept;
        let path = watch_path(&self.collection.path(client), &version, lasts);
        let mut body = requests::get_as(client, &path, accept).await?;
        self.recovered();
        self.refusals = Refusals::default();
        if std::mem::take(&mut self.is_told) {
            let kind = self.collection.subject().kind;
            info!(kind, "the right to list and watch is there again");
        }
        let ended = loop {
            match self.next(&mut body, lasts + GRACE).await {
                Ok(Some(seen)) => version = seen.unwrap_or(version),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let was_short = started.elapsed() < SHORTEST_WATCH;
        if !was_short {
            // A server that accepts watches only to drop them is not back.
            self.failures = 0;
        }
        self.version = Some(version);
        match ended {
            Ok(()) if was_short => Err(ApiError::new(Failure::Cut, "the watch ended at once")),
            ended => ended,
        }
    }

    /// Takes the next event of a watch, and returns its resource version if it has one; `None` at the end.
    async fn next(&mut self, body: &mut BodyReader, silence: Duration) -> Result<Option<Option<String>>, ApiError> {
        let Some(line) = body.read_line(silence).await? else {
            return Ok(None);
        };
        let Some(WatchEvent { change, version }) = WatchEvent::read(&line)? else {
            return Ok(Some(None));
        };
        if let Some((object, is_deleted)) = change {
            let object = self.collection.read(object.get()).map_err(malformed)?;
            self.collection.apply(object, is_deleted);
        }
        Ok(Some(version))
    }

    fn recovered(&mut self) {
        let kind = self.collection.subject().kind;
        self.watch.note(true);
        if let Some(after) = self.outage.end(Instant::now()) {
            info!(kind, ?after, "the API server answers again");
        }
    }

    /// Reports a failure, and waits before the next attempt.
    async fn recover(&mut self, error: &ApiError) {
        let now = Instant::now();
        self.origin.metrics.watch_errors.count([error.failure.label()]);
        self.refusals.failed(error.failure, now);
        let lacks_rights = self.refusals.are_lasting(now);
        // A right that is known to be missing is so after another failure, too.
        let is_missing = lacks_rights || self.is_told && error.failure == Failure::Forbidden;
        self.watch.note(is_missing && self.collection.subject().is_optional);
        // A list tells what has changed meanwhile; and a server that was restored from a backup sends no event.
        self.version = None;
        if error.failure == Failure::Expired && self.failures == 0 {
            // The connection itself works.
            self.failures = 1;
            return;
        }
        // A new client: the certificate, the token or the address may have changed, a pooled connection may be half-open.
        self.client = None;
        self.failures = self.failures.saturating_add(1);
        if lacks_rights {
            self.warn_missing_rights(error);
            sleep(ASK_AGAIN.mul_f64(0.8 + 0.4 * random())).await;
            return;
        }
        self.warn(error);
        // Added, so that proxies that were refused together do not come back together.
        sleep(error.retry_after.unwrap_or_default() + backoff(self.failures, random(), LONGEST_BACKOFF)).await;
    }

    fn warn_missing_rights(&mut self, error: &ApiError) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        let Subject {
            kind,
            group,
            role,
            effect,
            ..
        } = *self.collection.subject();
        warn!(
            kind,
            "{effect}: {role} of switchboard lacks the rule {{apiGroups: [{group:?}], resources: [{kind}], verbs: [list, \
             watch]}}: {}",
            error.reason
        );
    }

    fn warn(&mut self, error: &ApiError) {
        let ApiError { failure, reason, .. } = error;
        let is_passing = *failure == Failure::Forbidden;
        if !is_passing && let Some(since) = self.outage.failed(*failure, self.failures - 1, Instant::now()) {
            let (Subject { kind, effect, .. }, failure) = (*self.collection.subject(), failure.label());
            // The words of a server, or of a parser that quotes them, have no bound of their own.
            let reason = excerpt(reason, LONGEST_REASON);
            warn!(kind, failure, ?since, "{effect}: {reason}");
        }
    }
}

/// Characters of a reason in the log.
const LONGEST_REASON: usize = 400;

/// The path of one page of a list. `token` is empty for the first page, else the `continue` of the page before.
fn page_path(path: &str, page: usize, token: &str) -> String {
    match token {
        "" => format!("{path}limit={page}"),
        token => format!("{path}limit={page}&continue={}", encoded(token)),
    }
}

/// The path of a watch from that resource version, which the server ends after `lasts`.
fn watch_path(path: &str, version: &str, lasts: Duration) -> String {
    let (version, seconds) = (encoded(version), lasts.as_secs());
    format!("{path}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}")
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err passes it")]
fn malformed(error: serde_json::Error) -> ApiError {
    ApiError::caused(Failure::Malformed, &error)
}

/// The length of a watch. It ends by itself then, so a half-open connection is found soon after.
const WATCH: Duration = Duration::from_secs(20);
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// The longest delay of a watch's end.
const GRACE: Duration = Duration::from_secs(3);
/// The longest wait after a failure: it delays every change.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// The interval between lists, however well the watches go. A cluster may have ten thousand ServiceAccounts.
const RELIST: Duration = Duration::from_secs(900);
/// The wait before a follower that has panicked begins again.
const BEFORE_RESTART: Duration = Duration::from_secs(1);
/// The interval between lists while the right is missing.
const ASK_AGAIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_watches_have_their_paths() {
        let path = "/api/v1/things?";
        assert_eq!(page_path(path, 500, ""), "/api/v1/things?limit=500");
        assert_eq!(page_path(path, 16, "a/b"), "/api/v1/things?limit=16&continue=a%2Fb");
        assert_eq!(
            watch_path(path, "7", Duration::from_secs(20)),
            "/api/v1/things?watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=20"
        );
    }
}
