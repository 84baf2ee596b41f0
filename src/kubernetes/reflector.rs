//! Follows one kind of object: lists it, watches from there, and lists it again now and then.
//!
//! It drives the API itself and not through kube's watcher, whose backoff finds a server again after 7 to 10 s, which
//! does not notice a half-open connection, and which parses whole objects. Here every wait has a deadline: a watch asks
//! the server to end it after [`WATCH`], so one that lasts longer has lost its server. A watch that ends as it should is
//! resumed where it was. After any failure the objects are listed anew: a server that was restored from a backup says
//! nothing for ever about a revision that it has not reached.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::api::{self, Pieces, encoded};
use super::decode::{Reduced, reduce};
use super::failure::{Failure, Trouble, backoff};
use super::model::{Key, Kind, Object};

/// What is followed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Which of the sources it is.
    pub(crate) index: usize,
    /// What kind of object.
    pub(crate) kind: Kind,
    /// In this namespace, or in all.
    pub(crate) namespace: Option<Box<str>>,
    /// A label selector.
    pub(crate) selector: Option<Box<str>>,
    /// What the names of annotations begin with.
    pub(crate) prefix: Arc<str>,
    /// Where the server is named.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// What has been learned, and from which source.
#[derive(Debug)]
pub(crate) struct News {
    /// [`Source::index`].
    pub(crate) source: usize,
    /// What.
    pub(crate) what: What,
}

/// What has been learned.
#[derive(Debug)]
pub(crate) enum What {
    /// These objects are there, and no others.
    Listed(Vec<(Key, Object)>),
    /// This object is there like that.
    Put(Key, Object),
    /// This object is not there.
    Gone(Key),
    /// Nothing has changed up to now.
    Current,
    /// The server could not be asked.
    Failed(Failure),
}

/// Follows a source until nobody listens. While there is `doubt` about a list, the next one comes soon.
pub(crate) async fn follow(source: Source, doubt: Arc<AtomicBool>, news: mpsc::Sender<News>) {
    let mut follower = Follower {
        source,
        doubt,
        news,
        client: None,
        version: None,
        listed: None,
        relist_at: Instant::now(),
        whole_lists: false,
        failures: 0,
        troubled: None,
        warned: None,
    };
    while !follower.news.is_closed() {
        match follower.step().await {
            Ok(()) => {}
            Err(trouble) => follower.recover(trouble).await,
        }
    }
}

struct Follower {
    source: Source,
    doubt: Arc<AtomicBool>,
    news: mpsc::Sender<News>,
    client: Option<Client>,
    /// Where a watch resumes; `None` asks for a list.
    version: Option<String>,
    listed: Option<Instant>,
    relist_at: Instant,
    /// Whether the next list is asked for in one page.
    whole_lists: bool,
    /// In a row.
    failures: u32,
    /// Since when it fails.
    troubled: Option<Instant>,
    warned: Option<Instant>,
}

impl Follower {
    /// One list, or one watch.
    async fn step(&mut self) -> Result<(), Trouble> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = api::connect(self.source.kubeconfig.clone()).await?;
                self.client.insert(client).clone()
            }
        };
        // A watch that is too short is not worth its request.
        let is_short = Instant::now() + SHORTEST_WATCH * 2 >= self.relist_at;
        // A server that errs does so for a while: asked again at once it would only repeat itself.
        let is_fresh = self.listed.is_some_and(|listed| listed.elapsed() < RELIST_SOON);
        let is_due = is_short || (self.doubt.load(Ordering::Relaxed) && !is_fresh);
        match self.version.take().filter(|_| !is_due) {
            Some(version) => self.watch(&client, version).await,
            None => self.list(&client).await,
        }
    }

    async fn list(&mut self, client: &Client) -> Result<(), Trouble> {
        let mut objects = Vec::new();
        let mut token = String::new();
        let version = loop {
            let body = self.page(client, &token).await?;
            let page: Page<'_> =
                serde_json::from_slice(&body).map_err(|error| Trouble::caused(Failure::Malformed, &error))?;
            for item in page.items.into_iter().flatten() {
                match reduce(self.source.kind, item.get(), &self.source.prefix) {
                    Reduced::Object(key, object) => objects.push((key, object)),
                    Reduced::Nothing(_) => {}
                    Reduced::Malformed(key) => self.report_malformed(key.as_ref()).await,
                }
            }
            let metadata = page.metadata.unwrap_or_default();
            token = metadata.next.unwrap_or_default();
            if token.is_empty() {
                break metadata.version.filter(|version| !version.is_empty());
            }
        };
        let Some(version) = version else {
            return Err(Trouble::new(Failure::Malformed, "a list without a resource version"));
        };
        self.whole_lists = false;
        self.listed = Some(Instant::now());
        self.relist_at = Instant::now() + RELIST.mul_f64(0.8 + 0.4 * random());
        self.version = Some(version);
        self.tell(What::Listed(objects)).await;
        self.recovered();
        self.failures = 0;
        Ok(())
    }

    async fn page(&mut self, client: &Client, token: &str) -> Result<Vec<u8>, Trouble> {
        let path = self.source.page(token, self.whole_lists);
        let page = async { api::get(client, &path).await?.whole().await };
        page.await.inspect_err(|trouble| {
            // A server that forgets a list within its pages gives it whole.
            self.whole_lists = trouble.failure == Failure::Expired;
        })
    }

    async fn watch(&mut self, client: &Client, mut version: String) -> Result<(), Trouble> {
        let begun = Instant::now();
        let left = self.relist_at.saturating_duration_since(begun);
        let lasts = WATCH.mul_f64(0.8 + 0.4 * random()).min(left).max(SHORTEST_WATCH);
        let mut events = api::get(client, &self.source.stream(&version, lasts)).await?;
        self.recovered();
        self.tell(What::Current).await;
        let failures = std::mem::take(&mut self.failures);
        let longest_silence = lasts + GRACE;
        let ended = loop {
            match self.next(&mut events, longest_silence).await {
                Ok(Some(seen)) => version = seen.unwrap_or(version),
                Ok(None) => break Ok(()),
                Err(trouble) => break Err(trouble),
            }
        };
        let was_short = begun.elapsed() < SHORTEST_WATCH;
        if was_short {
            // A server that takes watches only to drop them is not back.
            self.failures = failures;
        }
        self.version = Some(version);
        match ended {
            Ok(()) if was_short => Err(Trouble::new(Failure::Cut, "the watch ended at once")),
            ended => ended,
        }
    }

    /// The next event's resource version, if it has one; `None` at the end.
    async fn next(
        &mut self,
        events: &mut Pieces,
        longest_silence: Duration,
    ) -> Result<Option<Option<String>>, Trouble> {
        let Some(line) = events.line(longest_silence).await? else {
            return Ok(None);
        };
        if line.trim_ascii().is_empty() {
            return Ok(Some(None));
        }
        let event: Event<'_> =
            serde_json::from_slice(&line).map_err(|error| Trouble::caused(Failure::Malformed, &error))?;
        let what = match event.r#type {
            "ERROR" => return Err(status(event.object)),
            "BOOKMARK" => What::Current,
            "ADDED" | "MODIFIED" | "DELETED" => {
                match reduce(self.source.kind, event.object.get(), &self.source.prefix) {
                    Reduced::Object(key, _) if event.r#type == "DELETED" => What::Gone(key),
                    Reduced::Object(key, object) => What::Put(key, object),
                    Reduced::Nothing(key) => What::Gone(key),
                    Reduced::Malformed(key) => {
                        self.report_malformed(key.as_ref()).await;
                        key.map_or(What::Current, What::Gone)
                    }
                }
            }
            _ => What::Current,
        };
        self.tell(what).await;
        let versioned: Versioned = serde_json::from_str(event.object.get()).unwrap_or_default();
        Ok(Some(versioned.metadata.and_then(|metadata| metadata.version)))
    }

    async fn tell(&self, what: What) {
        let source = self.source.index;
        // Nobody listens any more at the end only.
        self.news.send(News { source, what }).await.ok();
    }

    async fn report_malformed(&self, key: Option<&Key>) {
        let kind = self.source.kind.name();
        match key {
            Some(key) => warn!(kind, object = %key, "an object makes no sense and does not count"),
            None => warn!(kind, "an object without a sound name does not count"),
        }
        self.tell(What::Failed(Failure::Malformed)).await;
    }

    fn recovered(&mut self) {
        if let Some(since) = self.troubled.take()
            && self.warned.take().is_some()
        {
            let kind = self.source.kind.name();
            info!(kind, after = ?since.elapsed(), "the API server answers again");
        }
    }

    /// Tells of a failure, and waits before the next try.
    async fn recover(&mut self, trouble: Trouble) {
        self.tell(What::Failed(trouble.failure)).await;
        if trouble.failure == Failure::Expired && self.failures == 0 {
            // The list that follows is the remedy, and the connection is sound.
            self.version = None;
            self.failures += 1;
            return;
        }
        // A connection that is cut again and again must not cost a list each time: a watch tells what was missed, too.
        let is_fresh = self.listed.is_some_and(|listed| listed.elapsed() < RELIST_SOON);
        if is_fresh && self.version.is_some() && trouble.failure == Failure::Cut {
            self.relist_at = self.relist_at.min(Instant::now() + RELIST_SOON);
        } else {
            self.version = None;
        }
        // The certificate, the token or the address may have changed, and a pooled connection may be half-open.
        self.client = None;
        self.warn(&trouble);
        sleep(backoff(self.failures, random())).await;
        self.failures = self.failures.saturating_add(1);
    }

    /// At the beginning of an outage, if it is more than a hiccup, and once a minute.
    fn warn(&mut self, trouble: &Trouble) {
        let now = Instant::now();
        let since = *self.troubled.get_or_insert(now);
        let is_due = match self.warned {
            None => self.failures > 0 || !matches!(trouble.failure, Failure::Cut | Failure::Silent | Failure::Expired),
            Some(warned) => now.duration_since(warned) >= WARN_AGAIN,
        };
        if is_due {
            self.warned = Some(now);
            let (kind, failure) = (self.source.kind.name(), trouble.failure.label());
            warn!(kind, failure, since = ?since.elapsed(), "cannot follow the cluster, the allowlist stays as it is: {}", trouble.reason);
        }
    }
}

impl Source {
    fn path(&self) -> String {
        let group = match self.kind {
            Kind::Service | Kind::Namespace => "/api/v1",
            Kind::Slice => "/apis/discovery.k8s.io/v1",
        };
        let kind = self.kind.name();
        let mut path = match &self.namespace {
            Some(namespace) => format!("{group}/namespaces/{}/{kind}?", encoded(namespace)),
            None => format!("{group}/{kind}?"),
        };
        if let Some(selector) = &self.selector {
            path.push_str(&format!("labelSelector={}&", encoded(selector)));
        }
        path
    }

    fn page(&self, token: &str, whole: bool) -> String {
        let path = self.path();
        match token {
            _ if whole => path,
            "" => format!("{path}limit={PAGE}"),
            token => format!("{path}limit={PAGE}&continue={}", encoded(token)),
        }
    }

    fn stream(&self, version: &str, lasts: Duration) -> String {
        let (path, version, seconds) = (self.path(), encoded(version), lasts.as_secs());
        format!("{path}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}")
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    metadata: Option<ListMetadata>,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    #[serde(rename = "resourceVersion")]
    version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
struct Versioned {
    metadata: Option<ListMetadata>,
}

/// What an ERROR event says: the stream had begun, so its status code comes too late for HTTP.
fn status(object: &RawValue) -> Trouble {
    #[derive(Default, Deserialize)]
    struct Status {
        code: Option<u16>,
        message: Option<String>,
    }
    let Status { code, message } = serde_json::from_str(object.get()).unwrap_or_default();
    let failure = code.and_then(Failure::of_status).unwrap_or(Failure::Server);
    Trouble::new(failure, message.unwrap_or_else(|| "an error event".to_owned()))
}

/// 0 to 1: from the standard library's only source of random numbers.
fn random() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default();
    f64::from(bits) / f64::from(u32::MAX)
}

/// How long a watch asks to last. It ends by itself then, so a half-open connection is found soon after.
const WATCH: Duration = Duration::from_secs(20);
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// How much later a watch may end than it was asked to.
const GRACE: Duration = Duration::from_secs(3);
/// How often all is listed anew, whatever the watch says.
const RELIST: Duration = Duration::from_secs(300);
/// How often after a watch that was cut.
const RELIST_SOON: Duration = Duration::from_secs(10);
const WARN_AGAIN: Duration = Duration::from_secs(60);
/// Objects a page: an answer of a few hundred kilobytes.
const PAGE: usize = 500;
