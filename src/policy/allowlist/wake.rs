//! Wakes targets that sleep: asks once, for all requests of a target, for a replica of its workload. What follows the cluster
//! answers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::target::{Target, TargetId};
use super::workload::Workload;
use crate::tunnel::limits::owners::network;

/// A request to wake a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The target.
    pub target: TargetId,
    /// What is to be started.
    pub workload: Workload,
}

/// The answer to a request for a target without an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Nothing was asked: there is nothing to start, it was asked before or has failed lately, or the queue is full.
    No,
    /// It is asked to start.
    Asked,
    /// The client has had its share of the minute.
    Limited,
}

/// The targets that are asked to start.
#[derive(Debug, Default)]
pub struct Wakes {
    listener: ArcSwapOption<mpsc::Sender<Wake>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    flights: HashMap<TargetId, Flight>,
    /// The wakes of clients within a minute.
    clients: HashMap<IpAddr, (Instant, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    /// When it counts no longer.
    until: Instant,
    has_failed: bool,
}

impl Wakes {
    /// The requests to wake a target, from now on.
    pub fn listen(&self) -> mpsc::Receiver<Wake> {
        let (sender, requests) = mpsc::channel(QUEUED);
        self.listener.store(Some(std::sync::Arc::new(sender)));
        requests
    }

    /// Wakes a target without an endpoint, if its Service says how. It has `longest` to start.
    pub(super) fn ask(&self, target: &Target, client: IpAddr, longest: Duration) -> Woken {
        let Some(workload) = target.terms().workloads.wake.clone() else {
            return Woken::No;
        };
        let Some(listener) = self.listener.load_full() else {
            return Woken::No;
        };
        let now = Instant::now();
        let mut state = self.state.lock();
        state.forget(now);
        if state.flights.get(target.id()).is_some_and(|flight| flight.until > now) {
            return Woken::No;
        }
        // A full queue: a later request asks again.
        let Ok(place) = listener.try_reserve() else {
            return Woken::No;
        };
        if !state.admits(network(client.to_canonical()), now) {
            return Woken::Limited;
        }
        let wake = Wake {
            target: target.id().clone(),
            workload,
        };
        place.send(wake);
        let until = now + longest;
        let flight = Flight {
            until,
            has_failed: false,
        };
        state.flights.insert(target.id().clone(), flight);
        Woken::Asked
    }

    /// How long a target that was asked to start still has; `None` if it was not.
    pub(super) fn left(&self, target: &TargetId) -> Option<Duration> {
        let state = self.state.lock();
        let flight = state.flights.get(target).filter(|flight| !flight.has_failed)?;
        flight.until.checked_duration_since(Instant::now())
    }

    /// The target has an endpoint: the next request without one may wake it again.
    pub(super) fn has_started(&self, target: &TargetId) {
        self.state.lock().flights.remove(target);
    }

    /// The target cannot be started. It is asked again a while later at the earliest.
    pub fn failed(&self, target: &TargetId) {
        if let Some(flight) = self.state.lock().flights.get_mut(target) {
            *flight = Flight {
                until: Instant::now() + AFTER_FAILURE,
                has_failed: true,
            };
        }
    }
}

impl State {
    /// Whether the client may wake one more target.
    fn admits(&mut self, client: IpAddr, now: Instant) -> bool {
        if self.clients.len() >= MOST_CLIENTS && !self.clients.contains_key(&client) {
            return false;
        }
        let (since, count) = self.clients.entry(client).or_insert((now, 0));
        if now.duration_since(*since) >= MINUTE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= MOST_OF_A_CLIENT
    }

    /// Drops what counts no longer, once there is much of it.
    fn forget(&mut self, now: Instant) {
        if self.flights.len() >= MOST_CLIENTS {
            self.flights.retain(|_, flight| flight.until > now);
        }
        if self.clients.len() >= MOST_CLIENTS {
            self.clients.retain(|_, (since, _)| now.duration_since(*since) < MINUTE);
        }
    }
}

/// Requests that the API server has not answered.
const QUEUED: usize = 64;
const MINUTE: Duration = Duration::from_secs(60);
/// Targets a minute.
const MOST_OF_A_CLIENT: u32 = 10;
/// Clients that have woken a target within a minute.
const MOST_CLIENTS: usize = 4096;
const AFTER_FAILURE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::policy::allowlist::{Endpoints, Terms};

    fn target(name: &str, wake: Option<&str>) -> Target {
        let id = TargetId {
            namespace: "team-a".into(),
            service: name.into(),
        };
        let mut terms = Terms::default();
        terms.workloads.wake = wake.map(|wake| wake.parse().unwrap());
        Target::new(id, Endpoints::default(), Arc::new(terms))
    }

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_requests_are_one_wake_until_it_had_its_time_or_the_target_has_started() {
        let (wakes, sleeper) = (Wakes::default(), target("devbox", Some("statefulset/devbox")));
        let longest = Duration::from_secs(90);
        assert_eq!(
            wakes.ask(&sleeper, client(1), longest),
            Woken::No,
            "nothing follows a cluster"
        );
        let mut requests = wakes.listen();
        assert_eq!(wakes.ask(&target("other", None), client(1), longest), Woken::No);
        for number in 0..1000_u16 {
            let expected = if number == 0 { Woken::Asked } else { Woken::No };
            assert_eq!(
                wakes.ask(&sleeper, client(u8::try_from(number % 250).unwrap()), longest),
                expected
            );
        }
        let wake = requests.try_recv().unwrap();
        assert_eq!(
            (wake.target.to_string(), wake.workload.to_string()),
            ("team-a/devbox".into(), "statefulset/devbox".into())
        );
        assert!(requests.try_recv().is_err());
        assert_eq!(wakes.left(sleeper.id()), Some(longest));
        tokio::time::advance(longest).await;
        assert_eq!(wakes.ask(&sleeper, client(1), longest), Woken::Asked);
        wakes.has_started(sleeper.id());
        assert_eq!(wakes.ask(&sleeper, client(1), longest), Woken::Asked);
        wakes.failed(sleeper.id());
        assert_eq!(wakes.left(sleeper.id()), None);
        assert_eq!(wakes.ask(&sleeper, client(1), longest), Woken::No);
        tokio::time::advance(AFTER_FAILURE).await;
        assert_eq!(wakes.ask(&sleeper, client(1), longest), Woken::Asked);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_wakes_ten_targets_a_minute() {
        let wakes = Wakes::default();
        let _requests = wakes.listen();
        let ask = |name: usize, last| {
            let sleeper = target(&name.to_string(), Some("deployment/x"));
            wakes.ask(&sleeper, client(last), MINUTE)
        };
        for name in 0..10 {
            assert_eq!(ask(name, 1), Woken::Asked);
        }
        assert_eq!((ask(10, 1), ask(10, 2)), (Woken::Limited, Woken::Asked));
        tokio::time::advance(MINUTE).await;
        assert_eq!(ask(11, 1), Woken::Asked);
    }
}
