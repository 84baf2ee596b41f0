//! Scales sleeping targets up: one wake request for all clients of a target, served by the Kubernetes side.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::target::{Target, TargetId};
use super::workload::Workload;
use crate::tunnel::limits::event_rate::EventWindow;
use crate::tunnel::limits::owners::network;

/// A request to wake a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeRequest {
    /// The target.
    pub target: TargetId,
    /// The workload to be started.
    pub workload: Workload,
}

/// The answer to a request for a target without an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeResult {
    /// No request was sent: nothing can be started, one is pending or failed in the last 10 s, or the queue is full.
    NotRequested,
    /// A request was sent.
    Requested,
    /// No request was sent: the client's network has woken 10 targets within a minute, or 4096 others have woken some.
    RateLimited,
}

/// The wake requests of targets.
#[derive(Debug, Default)]
pub struct WakeRequests {
    listener: ArcSwapOption<mpsc::Sender<WakeRequest>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    flights: HashMap<TargetId, PendingWake>,
    /// The wakes of each client in its minute.
    clients: HashMap<IpAddr, EventWindow>,
}

#[derive(Clone, Copy, Debug)]
struct PendingWake {
    /// When the target may be woken again.
    until: Instant,
    has_failed: bool,
}

impl WakeRequests {
    /// Returns the wake requests from now on. An earlier receiver gets no more.
    pub fn subscribe(&self) -> mpsc::Receiver<WakeRequest> {
        let (sender, requests) = mpsc::channel(QUEUED);
        self.listener.store(Some(std::sync::Arc::new(sender)));
        requests
    }

    /// Wakes a target without an endpoint, if its Service says how. It has `timeout` to start.
    pub(super) fn request(&self, target: &Target, client: IpAddr, timeout: Duration) -> WakeResult {
        let Some(workload) = target.rules().workloads.wake.clone() else {
            return WakeResult::NotRequested;
        };
        let Some(listener) = self.listener.load_full() else {
            return WakeResult::NotRequested;
        };
        let now = Instant::now();
        let mut state = self.state.lock();
        state.forget(now);
        if state.flights.get(target.id()).is_some_and(|flight| flight.until > now) {
            return WakeResult::NotRequested;
        }
        // The queue is full: a later request tries again.
        let Ok(place) = listener.try_reserve() else {
            return WakeResult::NotRequested;
        };
        if !state.admits(network(client.to_canonical())) {
            return WakeResult::RateLimited;
        }
        let wake = WakeRequest {
            target: target.id().clone(),
            workload,
        };
        place.send(wake);
        let until = now + timeout;
        let flight = PendingWake {
            until,
            has_failed: false,
        };
        state.flights.insert(target.id().clone(), flight);
        WakeResult::Requested
    }

    /// Returns how long a woken target still has to start; `None` if it was not woken, has failed or is late.
    pub(super) fn time_left(&self, target: &TargetId) -> Option<Duration> {
        let state = self.state.lock();
        let flight = state.flights.get(target).filter(|flight| !flight.has_failed)?;
        flight.until.checked_duration_since(Instant::now())
    }

    /// Notes that the target has an endpoint. Once it has none again, the next request may wake it.
    pub(super) fn started(&self, target: &TargetId) {
        self.state.lock().flights.remove(target);
    }

    /// Notes that the target cannot be started. It is woken again after 10 s at the earliest.
    pub fn failed(&self, target: &TargetId) {
        if let Some(flight) = self.state.lock().flights.get_mut(target) {
            *flight = PendingWake {
                until: Instant::now() + AFTER_FAILURE,
                has_failed: true,
            };
        }
    }
}

impl State {
    /// Counts a wake of the client, and returns whether it is allowed.
    fn admits(&mut self, client: IpAddr) -> bool {
        let has_room = self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client);
        has_room && self.clients.entry(client).or_default().admit(MAX_PER_CLIENT, MINUTE)
    }

    /// Drops the expired entries of each map that is full.
    fn forget(&mut self, now: Instant) {
        if self.flights.len() >= MAX_CLIENTS {
            self.flights.retain(|_, flight| flight.until > now);
        }
        if self.clients.len() >= MAX_CLIENTS {
            self.clients.retain(|_, wakes| !wakes.is_over(MINUTE));
        }
    }
}

/// Wake requests that have not been received.
const QUEUED: usize = 64;
const MINUTE: Duration = Duration::from_secs(60);
/// Targets a minute.
const MAX_PER_CLIENT: u32 = 10;
/// Clients that have woken a target within a minute.
const MAX_CLIENTS: usize = 4096;
const AFTER_FAILURE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::policy::allowlist::{Endpoints, TargetRules};

    fn target(name: &str, wake: Option<&str>) -> Target {
        let id = TargetId {
            namespace: "team-a".into(),
            service: name.into(),
        };
        let mut rules = TargetRules::default();
        rules.workloads.wake = wake.map(|wake| wake.parse().unwrap());
        Target::new(id, Endpoints::default(), Arc::new(rules))
    }

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_requests_are_one_wake_until_it_had_its_time_or_the_target_has_started() {
        let (wakes, sleeper) = (WakeRequests::default(), target("devbox", Some("statefulset/devbox")));
        let timeout = Duration::from_secs(90);
        assert_eq!(
            wakes.request(&sleeper, client(1), timeout),
            WakeResult::NotRequested,
            "nothing follows a cluster"
        );
        let mut requests = wakes.subscribe();
        assert_eq!(
            wakes.request(&target("other", None), client(1), timeout),
            WakeResult::NotRequested
        );
        for number in 0..1000_u16 {
            let expected = if number == 0 {
                WakeResult::Requested
            } else {
                WakeResult::NotRequested
            };
            assert_eq!(
                wakes.request(&sleeper, client(u8::try_from(number % 250).unwrap()), timeout),
                expected
            );
        }
        let wake = requests.try_recv().unwrap();
        assert_eq!(
            (wake.target.to_string(), wake.workload.to_string()),
            ("team-a/devbox".into(), "statefulset/devbox".into())
        );
        assert!(requests.try_recv().is_err());
        assert_eq!(wakes.time_left(sleeper.id()), Some(timeout));
        tokio::time::advance(timeout).await;
        assert_eq!(wakes.request(&sleeper, client(1), timeout), WakeResult::Requested);
        wakes.started(sleeper.id());
        assert_eq!(wakes.request(&sleeper, client(1), timeout), WakeResult::Requested);
        wakes.failed(sleeper.id());
        assert_eq!(wakes.time_left(sleeper.id()), None);
        assert_eq!(wakes.request(&sleeper, client(1), timeout), WakeResult::NotRequested);
        tokio::time::advance(AFTER_FAILURE).await;
        assert_eq!(wakes.request(&sleeper, client(1), timeout), WakeResult::Requested);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_wakes_ten_targets_a_minute() {
        let wakes = WakeRequests::default();
        let _requests = wakes.subscribe();
        let ask = |name: usize, last| {
            let sleeper = target(&name.to_string(), Some("deployment/x"));
            wakes.request(&sleeper, client(last), MINUTE)
        };
        for name in 0..10 {
            assert_eq!(ask(name, 1), WakeResult::Requested);
        }
        assert_eq!(
            (ask(10, 1), ask(10, 2)),
            (WakeResult::RateLimited, WakeResult::Requested)
        );
        tokio::time::advance(MINUTE).await;
        assert_eq!(ask(11, 1), WakeResult::Requested);
    }
}
