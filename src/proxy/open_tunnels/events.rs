//! Publishes the events of tunnels. None is made without a subscriber, and a slow one misses events
//! and learns how many.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::open_tunnel::OpenTunnel;
use super::request_info::RequestInfo;
use crate::tunnel::outcome::{Close, Outcome};

/// An event of a tunnel, a request or a target.
#[derive(Clone, Debug)]
pub enum Event {
    /// A tunnel has begun.
    Opened(Arc<OpenTunnel>),
    /// A tunnel has ended.
    Closed(Arc<OpenTunnel>, Close),
    /// A connection or request has become none.
    Refused(Arc<RefusedRequest>),
    /// An operator has changed something: its name, and what it is now.
    Changed(Arc<str>, Change),
}

/// An action of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A tunnel has other rates.
    Limited,
    /// A tunnel is told to end.
    Closing,
    /// A target takes no new tunnels.
    Cordoned,
    /// A target takes tunnels again.
    Uncordoned,
}

/// A connection or request that has become no tunnel.
#[derive(Debug)]
pub struct RefusedRequest {
    /// Its id.
    pub id: String,
    /// The client.
    pub client: IpAddr,
    /// The user; empty without one.
    pub user: String,
    /// The `host:port` that it asked for; empty if it was not read.
    pub authority: String,
    /// How it was refused.
    pub outcome: Outcome,
}

/// The events of a process.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<Event>,
    watchers: AtomicUsize,
}

impl Default for Events {
    fn default() -> Self {
        let (sender, _) = broadcast::channel(MAX_BACKLOG);
        Self {
            sender,
            watchers: AtomicUsize::new(0),
        }
    }
}

impl Events {
    /// Tells an event to those that watch.
    pub fn publish(&self, event: impl FnOnce() -> Event) {
        if self.watchers.load(Ordering::Relaxed) > 0 {
            // An error: the last one has just left.
            self.sender.send(event()).ok();
        }
    }

    /// The events from now on. `None`: there are enough watchers.
    pub fn watch(self: &Arc<Self>) -> Option<Subscription> {
        let events = Arc::clone(self);
        let watchers = events.watchers.fetch_add(1, Ordering::Relaxed);
        let receiver = events.sender.subscribe();
        let watch = Subscription { events, receiver };
        (watchers < MAX_WATCHERS).then_some(watch)
    }
}

impl RefusedRequest {
    /// The refusal of what is known as that.
    pub(crate) fn new(facts: &RequestInfo, outcome: Outcome) -> Self {
        Self {
            id: facts.id.to_string(),
            client: facts.client.ip(),
            user: facts.user_name().to_owned(),
            authority: facts.authority.as_ref().map(ToString::to_string).unwrap_or_default(),
            outcome,
        }
    }
}

/// The events of a watcher, for as long as it watches.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    receiver: broadcast::Receiver<Event>,
}

impl Subscription {
    /// The next event. The error is the number of those that were missed; `None` that there are no more.
    pub async fn next(&mut self) -> Option<Result<Event, u64>> {
        match self.receiver.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.events.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Events that a watcher has not read; older ones are dropped.
const MAX_BACKLOG: usize = 1024;
const MAX_WATCHERS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: usize) -> Event {
        Event::Changed(number.to_string().into(), Change::Limited)
    }

    #[tokio::test]
    async fn a_slow_watcher_learns_how_many_events_it_has_missed() {
        let events = Arc::new(Events::default());
        events.publish(|| unreachable!("nothing watches"));
        let mut watch = events.watch().unwrap();
        for number in 0..MAX_BACKLOG + 3 {
            events.publish(|| change(number));
        }
        assert!(matches!(watch.next().await, Some(Err(3))));
        assert!(matches!(watch.next().await, Some(Ok(Event::Changed(name, _))) if *name == *"3"));
        drop(watch);
        events.publish(|| unreachable!("nothing watches any more"));
    }

    #[tokio::test]
    async fn watchers_are_bounded_and_a_place_is_given_back() {
        let events = Arc::new(Events::default());
        let mut watches: Vec<_> = (0..MAX_WATCHERS).map(|_| events.watch().unwrap()).collect();
        assert!(events.watch().is_none());
        watches.pop();
        assert!(events.watch().is_some());
    }
}
