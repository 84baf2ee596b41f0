//! One watch: the changes of a scope as they are written, bookmarks in between, and the ways in which it ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};

use super::Shared;
use super::answer::{Piece, status};
use super::faults::Cut;
use super::request::{Place, Query};
use super::store::Scope;

/// The position of a watch.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    place: Place,
    scope: Scope,
    revision: u64,
    has_bookmarks: bool,
    until: Instant,
    pieces: mpsc::Sender<Piece>,
}

/// The reason for the end of a watch.
struct Over;

impl Watch {
    /// Begins a watch, and gives what it will tell.
    pub(crate) fn start(shared: Arc<Shared>, place: Place, scope: Scope, query: &Query) -> mpsc::Receiver<Piece> {
        let (pieces, receiver) = mpsc::channel(4);
        let from = query.number("resourceVersion").filter(|&revision| revision > 0);
        let current = shared.store().revision();
        let watch = Self {
            place,
            scope,
            revision: from.unwrap_or(current),
            has_bookmarks: query.is_on("allowWatchBookmarks"),
            until: Instant::now() + Duration::from_secs(query.number("timeoutSeconds").unwrap_or(1800)),
            pieces,
            shared,
        };
        let has_state = from.is_none() || query.is_on("sendInitialEvents");
        let is_marked = query.is_on("sendInitialEvents");
        tokio::spawn(async move { watch.run(has_state, is_marked).await });
        receiver
    }

    async fn run(mut self, has_state: bool, is_marked: bool) -> Option<Over> {
        let mut revisions = self.shared.revision.subscribe();
        let mut cuts = self.shared.cut.subscribe();
        let mut bookmarks = interval(BOOKMARK);
        if has_state && let Err(over) = self.tell_state(is_marked).await {
            return Some(over);
        }
        let gone = self.pieces.clone();
        loop {
            if let Err(over) = self.tell_changes().await {
                return Some(over);
            }
            tokio::select! {
                changed = revisions.changed() => changed.ok()?,
                changed = cuts.changed() => {
                    changed.ok()?;
                    let cut = *cuts.borrow_and_update();
                    self.end(cut?).await;
                    return None;
                }
                _ = bookmarks.tick() => if self.has_bookmarks && self.bookmark(json!({})).await.is_err() { return None },
                () = sleep_until(self.until) => {
                    self.shared.watches_over.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                () = gone.closed() => return None,
            }
        }
    }

    /// A watch that does not say where it begins is told what there is.
    async fn tell_state(&mut self, is_marked: bool) -> Result<(), Over> {
        let (objects, revision) = {
            let store = self.shared.store();
            (store.list(&self.scope), store.revision())
        };
        for object in objects {
            self.tell(&json!({"type": "ADDED", "object": object})).await?;
        }
        self.revision = revision;
        if is_marked {
            self.bookmark(json!({"k8s.io/initial-events-end": "true"})).await?;
        }
        Ok(())
    }

    async fn tell_changes(&mut self) -> Result<(), Over> {
        let events: Option<Vec<Value>> = {
            let store = self.shared.store();
            let changes = store.changes_after(self.revision);
            let events = changes.map(|changes| changes.filter_map(|change| self.scope.event(change)).collect());
            // A revision that is still to come stays: a server that lost its state is silent until it is there again.
            self.revision = self.revision.max(store.revision());
            events
        };
        let Some(events) = events else {
            self.end(Cut::Expired).await;
            return Err(Over);
        };
        for event in events {
            self.tell(&event).await?;
        }
        Ok(())
    }

    async fn bookmark(&self, annotations: Value) -> Result<(), Over> {
        if self.revision > self.shared.store().revision() {
            return Ok(());
        }
        let metadata = json!({"resourceVersion": self.revision.to_string(), "annotations": annotations});
        let object = json!({"kind": self.place.kind, "apiVersion": self.place.version, "metadata": metadata});
        self.tell(&json!({"type": "BOOKMARK", "object": object})).await
    }

    async fn tell(&self, event: &Value) -> Result<(), Over> {
        self.send(Ok(Bytes::from(format!("{event}\n")))).await
    }

    async fn send(&self, piece: Piece) -> Result<(), Over> {
        self.shared.thawed().await;
        self.pieces.send(piece).await.map_err(|_| Over)
    }

    async fn end(&self, cut: Cut) {
        let last = match cut {
            Cut::End => return,
            Cut::Expired => {
                let message = "too old resource version";
                format!("{}\n", json!({"type": "ERROR", "object": status(410, message)}))
            }
            Cut::Garbage => "<html>upstream connect error</html>\n".to_owned(),
            Cut::MidLine => r#"{"type":"MODIFIED","object":{"kind":""#.to_owned(),
        };
        let sent = self.send(Ok(Bytes::from(last))).await;
        if sent.is_ok() && matches!(cut, Cut::MidLine) {
            // The client may be gone by now.
            self.send(Err(io::ErrorKind::ConnectionReset.into())).await.ok();
        }
    }
}

/// Every minute in a real API server, which no test would live to see.
const BOOKMARK: Duration = Duration::from_secs(1);
