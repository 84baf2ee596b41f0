//! Lists and watches the objects of one kind, in the way of the [reflector](crate::kubernetes::reflector): every wait has a
//! deadline, a watch that ends in time is resumed, and after a failure the objects are listed anew.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::Outputs;
use super::kind::Kind;
use super::known::{Known, Object};
use crate::kubernetes::api::{self, BodyReader, FOLLOWER};
use crate::kubernetes::failure::{ApiError, Failure, backoff, random};
use crate::kubernetes::outage::Outage;
use crate::kubernetes::wire::{Page, Versioned, WatchEvent, error_event};

/// Follows the objects of one kind.
pub(super) struct Follower {
    kind: Kind,
    outputs: Arc<Outputs>,
    known: Known,
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
}

impl Follower {
    pub(super) fn new(kind: Kind, outputs: Arc<Outputs>) -> Self {
        Self {
            kind,
            outputs,
            known: Known::new(kind),
            client: None,
            version: None,
            relist_at: Instant::now(),
            lists_whole: false,
            failures: 0,
            is_told: false,
            outage: Outage::default(),
        }
    }

    /// Follows without an end.
    pub(super) async fn run(mut self) {
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
                let client = api::connect(self.outputs.kubeconfig.clone(), FOLLOWER).await?;
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
        let mut objects: Vec<Object> = Vec::new();
        let mut token = String::new();
        let mut pages = 0;
        let version = loop {
            pages += 1;
            if pages > api::MOST_PAGES {
                return Err(ApiError::new(Failure::Malformed, "a list without an end"));
            }
            let body = self.page(client, &token).await?;
            let page: Page<'_> = serde_json::from_slice(&body).map_err(malformed)?;
            for item in page.items.into_iter().flatten() {
                objects.push(serde_json::from_str(item.get()).map_err(malformed)?);
            }
            let metadata = page.metadata.unwrap_or_default();
            token = metadata.next.unwrap_or_default();
            if token.is_empty() {
                break metadata.version.filter(|version| !version.is_empty());
            }
        };
        let Some(version) = version else {
            return Err(ApiError::new(Failure::Malformed, "a list without a resource version"));
        };
        self.lists_whole = false;
        self.relist_at = Instant::now() + RELIST.mul_f64(0.8 + 0.4 * random());
        self.version = Some(version);
        self.recovered();
        for change in self.known.list(objects.into_iter()) {
            (self.outputs.changed)(change);
        }
        // The failures stay: a list says nothing of the watch behind it.
        Ok(())
    }

    async fn page(&mut self, client: &Client, token: &str) -> Result<Vec<u8>, ApiError> {
        let path = match self.lists_whole {
            true => self.kind.list_path(),
            false => self.kind.page_path(token),
        };
        let page = async { api::get_as(client, &path, METADATA_LIST).await?.read_all().await };
        page.await.inspect_err(|error| {
            // A server that forgets a list between two of its pages may still send it in one.
            self.lists_whole = error.failure == Failure::Expired;
        })
    }

    async fn watch(&mut self, client: &Client, mut version: String) -> Result<(), ApiError> {
        let started = Instant::now();
        let left = self.relist_at.saturating_duration_since(started);
        let lasts = WATCH.mul_f64(0.8 + 0.4 * random()).min(left).max(SHORTEST_WATCH);
        let mut body = api::get_as(client, &self.kind.watch_path(&version, lasts), METADATA).await?;
        self.recovered();
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
        if line.trim_ascii().is_empty() {
            return Ok(Some(None));
        }
        let WatchEvent { r#type, object } = serde_json::from_slice(&line).map_err(malformed)?;
        match r#type {
            "ERROR" => return Err(error_event(object)),
            "ADDED" | "MODIFIED" | "DELETED" => {
                let changed = serde_json::from_str(object.get()).map_err(malformed)?;
                if let Some(change) = self.known.apply(changed, r#type == "DELETED") {
                    (self.outputs.changed)(change);
                }
            }
            // "BOOKMARK", and types that are not known yet.
            _ => {}
        }
        let versioned: Versioned = serde_json::from_str(object.get()).unwrap_or_default();
        Ok(Some(versioned.metadata.and_then(|metadata| metadata.version)))
    }

    fn recovered(&mut self) {
        let kind = self.kind.plural();
        if std::mem::take(&mut self.is_told) {
            info!(kind, "changed access rights are seen at once again");
        }
        if let Some(after) = self.outage.end(Instant::now()) {
            info!(kind, ?after, "the API server answers again");
        }
    }

    /// Reports a failure, and waits before the next attempt.
    async fn recover(&mut self, error: &ApiError) {
        self.outputs.metrics.watch_failed(error.failure.label());
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
        // A server that starts refuses for a moment.
        let lacks_rights = error.failure == Failure::Forbidden && self.failures > PASSING;
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
        let (kind, group, reason) = (self.kind.plural(), self.kind.group(), &error.reason);
        warn!(
            kind,
            "changed access rights are seen only at `access.kubernetes.recheck`: the ClusterRole of switchboard lacks the rule \
             {{apiGroups: [{group:?}], resources: [{kind}], verbs: [list, watch]}}: {reason}"
        );
    }

    fn warn(&mut self, error: &ApiError) {
        let ApiError { failure, reason, .. } = error;
        let is_passing = *failure == Failure::Forbidden;
        if !is_passing && let Some(since) = self.outage.failed(*failure, self.failures - 1, Instant::now()) {
            let (kind, failure) = (self.kind.plural(), failure.label());
            warn!(
                kind,
                failure,
                ?since,
                "cannot follow access rights, changes are seen only at `access.kubernetes.recheck`: {reason}"
            );
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err passes it")]
fn malformed(error: serde_json::Error) -> ApiError {
    ApiError::caused(Failure::Malformed, &error)
}

/// Without the rules and subjects. A server that does not know this answers with the whole objects.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// The length of a watch. It ends by itself then, so a half-open connection is found soon after.
const WATCH: Duration = Duration::from_secs(20);
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// The longest delay of a watch's end.
const GRACE: Duration = Duration::from_secs(3);
/// The longest wait after a failure: it delays every change.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// The interval between lists, however well the watches go. A cluster may have ten thousand ServiceAccounts.
const RELIST: Duration = Duration::from_secs(900);
/// Refusals in a row that may pass: about two seconds.
const PASSING: u32 = 4;
/// The interval between lists while the right is missing.
const ASK_AGAIN: Duration = Duration::from_secs(30);
