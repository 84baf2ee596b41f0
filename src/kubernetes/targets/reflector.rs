//! Lists and watches the objects of one source, and sends what it learns to the reconciler.
//!
//! It drives the API itself and not through kube's watcher, which takes 7 to 10 s to find a server that is back, does not
//! notice a half-open connection, and parses whole objects. Here every wait has a deadline. A watch asks the server to end
//! it after [`WATCH`]; one that lasts longer has lost its server. A watch that ends in time is resumed at the last resource
//! version. After a failure the objects are listed anew: a server that was restored from a backup would send no event
//! about a resource version that it has not reached yet.

use std::time::Duration;

use kube::Client;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::source::{Event, Feed, PAGE, SourceEvent};
use crate::kubernetes::api::failure::{ApiError, Failure, backoff, random};
use crate::kubernetes::api::list_watch::{Listing, WatchEvent};
use crate::kubernetes::api::outage::Outage;
use crate::kubernetes::api::requests::{self, BodyReader, FOLLOWER};
use crate::kubernetes::objects::decode::{Decoded, decode};
use crate::kubernetes::objects::model::Key;

/// Follows a source until the reconciler is gone.
pub(crate) async fn run(feed: Feed, events: mpsc::Sender<SourceEvent>) {
    let mut reflector = Reflector {
        feed,
        events,
        client: None,
        version: None,
        listed: None,
        relist_at: Instant::now(),
        lists_whole: false,
        failures: 0,
        expired: 0,
        outage: Outage::default(),
    };
    while !reflector.events.is_closed() {
        match reflector.step().await {
            Ok(()) => {}
            Err(error) => reflector.recover(error).await,
        }
    }
}

struct Reflector {
    feed: Feed,
    events: mpsc::Sender<SourceEvent>,
    client: Option<Client>,
    /// The resource version at which a watch resumes; `None` asks for a list.
    version: Option<String>,
    /// The end of the last complete list.
    listed: Option<Instant>,
    /// The time of the next list, however well the watches go.
    relist_at: Instant,
    /// Whether the next list is asked for in one page.
    lists_whole: bool,
    /// Failures since a watch of some length.
    failures: u32,
    /// Versions that were too old, since a watch of some length.
    expired: u32,
    outage: Outage,
}

impl Reflector {
    /// One list, or one watch.
    async fn step(&mut self) -> Result<(), ApiError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = requests::connect(self.feed.source.kubeconfig.clone(), FOLLOWER).await?;
                self.client.insert(client).clone()
            }
        };
        // The rest of the time until then is too short for a watch.
        let is_due = Instant::now() + SHORTEST_WATCH * 2 >= self.relist_at;
        // A list in doubt is not repeated at once: a server with an error would only send the same again.
        let is_wanted = self.feed.wants_list() && !self.is_fresh();
        match self.version.take().filter(|_| !is_due && !is_wanted) {
            Some(version) => self.watch(&client, version).await,
            None => self.list(&client).await,
        }
    }

    async fn list(&mut self, client: &Client) -> Result<(), ApiError> {
        let mut objects = Vec::new();
        let mut listing = Listing::new(requests::MOST_LISTED / PAGE);
        let version = loop {
            let body = self.page(client, listing.token()).await?;
            let (page, version) = listing.read(&body)?;
            for item in page {
                match decode(self.feed.source.kind, item.get(), &self.feed.source.prefix) {
                    Decoded::Object(key, object) => objects.push((key, object)),
                    Decoded::Irrelevant(_) => {}
                    Decoded::Malformed(key) => self.report_malformed(key.as_ref()).await,
                }
            }
            if let Some(version) = version {
                break version;
            }
        };
        self.lists_whole = false;
        self.listed = Some(Instant::now());
        self.relist_at = Instant::now() + RELIST.mul_f64(0.8 + 0.4 * random());
        self.version = Some(version);
        self.send(Event::Listed(objects)).await;
        self.recovered();
        // The failures stay: a list says nothing of the watch behind it.
        Ok(())
    }

    async fn page(&mut self, client: &Client, token: &str) -> Result<Vec<u8>, ApiError> {
        let path = match self.lists_whole {
            true => self.feed.source.list_path(),
            false => self.feed.source.page_path(token),
        };
        let page = async { requests::get(client, &path).await?.read_all().await };
        page.await.inspect_err(|error| {
            // A server that forgets a list between two of its pages may still send it in one.
            self.lists_whole = error.failure == Failure::Expired;
        })
    }

    async fn watch(&mut self, client: &Client, mut version: String) -> Result<(), ApiError> {
        let started = Instant::now();
        let left = self.relist_at.saturating_duration_since(started);
        let lasts = WATCH.mul_f64(0.8 + 0.4 * random()).min(left).max(SHORTEST_WATCH);
        let mut body = requests::get(client, &self.feed.source.watch_path(&version, lasts)).await?;
        self.recovered();
        self.send(Event::Current).await;
        let failures = std::mem::take(&mut self.failures);
        let longest_silence = lasts + GRACE;
        let ended = loop {
            match self.next(&mut body, longest_silence).await {
                Ok(Next::Event(seen)) => version = seen.unwrap_or(version),
                Ok(Next::End) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let was_short = started.elapsed() < SHORTEST_WATCH;
        if was_short {
            // A server that accepts watches only to drop them is not back.
            self.failures = failures;
        } else {
            self.expired = 0;
        }
        self.version = Some(version);
        match ended {
            Ok(()) if was_short => Err(ApiError::new(Failure::Cut, "the watch ended at once")),
            ended => ended,
        }
    }

    /// Takes the next event of a watch.
    async fn next(&mut self, body: &mut BodyReader, longest_silence: Duration) -> Result<Next, ApiError> {
        let Some(line) = body.read_line(longest_silence).await? else {
            return Ok(Next::End);
        };
        let Some(WatchEvent { change, version }) = WatchEvent::read(&line)? else {
            return Ok(Next::Event(None));
        };
        let event = match change {
            Some((object, is_deleted)) => self.event_of(object, is_deleted).await,
            None => Event::Current,
        };
        self.send(event).await;
        Ok(Next::Event(version))
    }

    async fn event_of(&self, object: &RawValue, is_deleted: bool) -> Event {
        match decode(self.feed.source.kind, object.get(), &self.feed.source.prefix) {
            Decoded::Object(key, _) if is_deleted => Event::Deleted(key),
            Decoded::Object(key, object) => Event::Applied(key, object),
            Decoded::Irrelevant(key) => Event::Deleted(key),
            Decoded::Malformed(key) => {
                self.report_malformed(key.as_ref()).await;
                key.map_or(Event::Current, Event::Deleted)
            }
        }
    }

    async fn send(&self, event: Event) {
        let source = self.feed.source.index;
        // An error means that the reconciler is gone, and `run` returns.
        self.events.send(SourceEvent { source, event }).await.ok();
    }

    async fn report_malformed(&self, key: Option<&Key>) {
        let kind = self.feed.source.kind.name();
        match key {
            Some(key) => warn!(kind, object = %key, "ignoring an object that cannot be decoded"),
            None => warn!(kind, "ignoring an object without a valid name"),
        }
        self.send(Event::Failed(Failure::Malformed)).await;
    }

    /// Whether the last list is so new that a further one would hardly differ.
    fn is_fresh(&self) -> bool {
        self.listed.is_some_and(|listed| listed.elapsed() < RELIST_SOON)
    }

    fn recovered(&mut self) {
        if let Some(after) = self.outage.end(Instant::now()) {
            let kind = self.feed.source.kind.name();
            info!(kind, ?after, "the API server answers again");
        }
    }

    /// Reports a failure, and waits before the next attempt.
    async fn recover(&mut self, error: ApiError) {
        self.send(Event::Failed(error.failure)).await;
        if error.failure == Failure::Expired {
            // The next list is the remedy, once without a wait: the connection itself works. A server that has forgotten
            // each list by the time of its watch would be asked for lists without a pause.
            self.version = None;
            if self.expired > 0 {
                self.warn(&error);
                sleep(backoff(self.expired, random(), RELIST_SOON)).await;
            }
            self.expired = self.expired.saturating_add(1);
            return;
        }
        // A watch that is cut soon after a list is resumed, and sends the events that it missed: a connection that is
        // cut again and again costs one list in a while and not one each time.
        if self.is_fresh() && self.version.is_some() && error.failure == Failure::Cut {
            self.relist_at = self.relist_at.min(Instant::now() + RELIST_SOON);
        } else {
            self.version = None;
        }
        // A new client: the certificate, the token or the address may have changed, a pooled connection may be half-open.
        self.client = None;
        if self.feed.is_given_up() && error.failure == Failure::Forbidden {
            // Most likely the namespace is deleted, and stays so: the log knows, and to ask is all but in vain.
            self.feed.pause(ASK_AGAIN.mul_f64(0.8 + 0.4 * random())).await;
            return;
        }
        self.warn(&error);
        // Added, so that proxies that were refused together do not come back together.
        sleep(error.retry_after.unwrap_or_default() + backoff(self.failures, random(), LONGEST_BACKOFF)).await;
        self.failures = self.failures.saturating_add(1);
    }

    fn warn(&mut self, error: &ApiError) {
        let ApiError { failure, reason, .. } = error;
        if let Some(since) = self.outage.failed(*failure, self.failures, Instant::now()) {
            let (kind, failure) = (self.feed.source.kind.name(), failure.label());
            warn!(
                kind,
                failure,
                ?since,
                "cannot follow the cluster, the allowlist stays as it is: {reason}"
            );
        }
    }
}

/// The next event of a watch.
enum Next {
    /// An event, with its resource version if it has one.
    Event(Option<String>),
    /// The end of the watch.
    End,
}

/// The length of a watch. It ends by itself then, so a half-open connection is found soon after.
const WATCH: Duration = Duration::from_secs(20);
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// The longest wait after a failure: it delays the discovery of a server that is back, and three requests a second are no
/// load.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// The longest delay of a watch's end.
const GRACE: Duration = Duration::from_secs(3);
/// The interval between lists, however well the watches go.
const RELIST: Duration = Duration::from_secs(300);
/// The interval between lists of a namespace that counts as empty because the API server forbids to read it.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// The shortest interval between lists after a watch that was cut, or while a list is in doubt.
const RELIST_SOON: Duration = Duration::from_secs(10);
