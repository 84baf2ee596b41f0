//! Publishes the events of tunnels. They are built only while someone subscribes. A slow subscriber loses events and is
//! told how many.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::open_tunnel::OpenTunnel;
use super::past::{MAX_NAME, beginning};
use crate::base::authority::Authority;
use crate::policy::allowlist::TargetId;
use crate::proxy::record::{Id, RequestInfo};
use crate::tunnel::outcome::{Close, Outcome};

/// An event of a tunnel, a request or a target.
#[derive(Clone, Debug)]
pub enum Event {
    /// A tunnel has opened.
    Opened(Arc<OpenTunnel>),
    /// A tunnel has closed.
    Closed(Arc<OpenTunnel>, Close),
    /// A connection or request was refused.
    Refused(Arc<RefusedRequest>),
    /// An operator's change: the tunnel's id or the target's name, and the change.
    Changed(Arc<str>, Change),
}

/// An action of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A tunnel has new rates.
    Limited,
    /// A tunnel has to close.
    Closing,
    /// A target takes no more tunnels.
    Cordoned,
    /// A target takes tunnels again.
    Uncordoned,
}

/// A connection or request that did not become a tunnel.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    /// Its id.
    pub id: Id,
    /// The client.
    pub client: IpAddr,
    /// The beginning of the user's name; empty if there is none.
    pub user: Box<str>,
    /// The user whom the request claims to be, if its password was not accepted.
    pub claimed: Option<Box<str>>,
    /// The requested authority; `None` if it was not read.
    pub authority: Option<Authority>,
    /// The allowlist's target for it.
    pub target: Option<TargetId>,
    /// The beginning of the reason why the user may not reach the target; empty if there is none.
    pub why: Box<str>,
    /// Its refusal.
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
    /// Publishes an event to the subscribers.
    pub fn publish(&self, event: impl FnOnce() -> Event) {
        if self.watchers.load(Ordering::Relaxed) > 0 {
            // An error: the last subscriber has just left.
            self.sender.send(event()).ok();
        }
    }

    /// Returns the events from now on; `None` if there are enough watchers.
    pub fn watch(self: &Arc<Self>) -> Option<Subscription> {
        let events = Arc::clone(self);
        let watchers = events.watchers.fetch_add(1, Ordering::Relaxed);
        let receiver = events.sender.subscribe();
        let watch = Subscription { events, receiver };
        (watchers < MAX_WATCHERS).then_some(watch)
    }
}

impl RefusedRequest {
    /// Creates the refusal from the request info.
    pub(crate) fn new(info: &RequestInfo, outcome: Outcome) -> Self {
        Self {
            id: info.id,
            client: info.client.ip(),
            user: beginning(info.user_name(), MAX_NAME),
            claimed: info.claimed.clone(),
            authority: info.authority.clone(),
            target: info.target.as_ref().map(|target| target.id().clone()),
            why: beginning(info.authorization.as_deref().unwrap_or_default(), MAX_WHY),
            outcome,
        }
    }
}

/// The events of a subscriber, for as long as it subscribes.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    receiver: broadcast::Receiver<Event>,
}

impl Subscription {
    /// Returns the next event, or the number of those that were missed; `None` after the last.
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

/// The maximum number of unread events of a subscriber; older ones are dropped.
const MAX_BACKLOG: usize = 1024;
const MAX_WATCHERS: usize = 16;
/// Characters of the reason for a denial.
const MAX_WHY: usize = 200;

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
