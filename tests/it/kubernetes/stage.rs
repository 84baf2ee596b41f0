//! The start of most scenarios: a fake API server, pods, and a proxy that follows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use super::api::Api;
use super::lab::{API, Lab};
use super::objects::{service, slice, with};
use super::pods::Pods;
use super::proxy::{PATIENCE, Proxy, eventually, settings, within};

/// The scene of one scenario.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Dropped first: it is where the others are needed.
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) api: Api,
    pub(crate) pods: Pods,
    pub(crate) lab: Lab,
    pub(crate) settings: Value,
}

impl Stage {
    /// An API server that is open, and a proxy that is ready.
    pub(crate) async fn new(lab: Lab, kubernetes: &[(&str, Value)]) -> Self {
        Self::over(lab, settings(kubernetes), async |api| api.open())
            .await
            .ready()
            .await
    }

    /// Whatever `prepare` makes of the API server before the proxy starts. It is closed at first.
    pub(crate) async fn over(lab: Lab, settings: Value, prepare: impl AsyncFnOnce(&Api)) -> Self {
        let api = Api::new(lab.directory(), API);
        prepare(&api).await;
        let settings = with(
            settings,
            "/allowlist/kubernetes/kubeconfig",
            api.kubeconfig().to_str().into(),
        );
        Self {
            pods: Pods::start().await,
            proxy: Arc::new(Proxy::start(&lab, &settings).await),
            api,
            lab,
            settings,
        }
    }

    /// Waits for the first complete list.
    pub(crate) async fn ready(self) -> Self {
        eventually("the proxy is ready", async || self.proxy.is_ready().await).await;
        self
    }

    /// Gives the proxy other settings, and waits until it has read them.
    pub(crate) async fn reload(&self, settings: &Value) {
        let reloads = || self.proxy.messages().matches("configuration reloaded").count();
        let before = reloads();
        std::fs::write(self.lab.directory().join("switchboard.yaml"), settings.to_string()).unwrap();
        let id = i32::try_from(self.proxy.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::HUP).unwrap();
        eventually("it has reloaded", async || reloads() > before).await;
    }

    /// Ends the proxy and starts it again with the same settings.
    pub(crate) async fn restart_proxy(&mut self) {
        self.proxy.kill();
        self.proxy = Arc::new(Proxy::start(&self.lab, &self.settings).await);
    }

    /// The same, with that filter of its messages.
    pub(crate) async fn restart_proxy_logging(&mut self, filter: &str) {
        self.proxy.kill();
        self.proxy = Arc::new(Proxy::start_logging(&self.lab, &self.settings, filter).await);
    }

    /// A Service of `team-a` with one pod, and waits until it can be reached.
    pub(crate) async fn serve(&self, name: &str, pod: &str) {
        self.put(name, pod);
        self.proxy
            .reaches(&format!("{name}.team-a:22"), &format!("{pod}:22"))
            .await;
    }

    /// A Service of `team-a` with one pod.
    pub(crate) fn put(&self, name: &str, pod: &str) {
        self.api.put(slice("team-a", name, &[pod]));
        self.api.put(service("team-a", name));
    }

    /// Waits until a new Service can be reached, and says how long that took.
    pub(crate) async fn recovered(&self, what: &str, name: &str) {
        let started = Instant::now();
        self.put(name, "10.9.250.1");
        self.follows(what, name, started).await;
    }

    /// The same for one that is already there.
    pub(crate) async fn follows(&self, what: &str, name: &str, since: Instant) {
        let authority = format!("{name}.team-a:22");
        let is_there = async || self.proxy.connect(&authority).await.is_ok();
        let watches = self.api.watches_over();
        let took = within(PATIENCE, &format!("{what}: {authority} can be reached"), is_there).await;
        assert!(
            took < RECOVERY || self.api.watches_over() == watches,
            "{what}: found after {took:?}, perhaps by another watch"
        );
        eprintln!("figure: {what}: up to date after {:?}", since.elapsed());
    }

    /// Waits until the metric `watch_errors_total` of that kind has grown past `before`.
    pub(crate) async fn noticed(&self, kind: &str, before: f64) {
        eventually(&format!("a watch error {kind}"), async || {
            self.errors(kind).await > before
        })
        .await;
    }

    /// The number of such failures in talking to the API server.
    pub(crate) async fn errors(&self, kind: &str) -> f64 {
        let labels = format!("kind=\"{kind}\"");
        let errors = self.proxy.metric("switchboard_watch_errors_total", &labels).await;
        errors.unwrap_or_default()
    }

    /// An outage is no reason to be less ready, or to know less.
    pub(crate) async fn is_unmoved(&self, name: &str) {
        let authority = format!("{name}.team-a:22");
        for _ in 0..20 {
            let refused = self.proxy.connect(&authority).await.err();
            assert_eq!(refused, None, "{authority} is known");
        }
        assert!(self.proxy.is_ready().await, "it stays ready");
    }

    /// Asks for that name every few milliseconds, until it is stopped.
    pub(crate) fn hammer(&self, authority: &'static str) -> Hammer {
        let is_over = Arc::new(AtomicBool::new(false));
        let (proxy, over) = (Arc::clone(&self.proxy), Arc::clone(&is_over));
        let task = tokio::spawn(async move {
            let mut ticks = interval(BETWEEN_CONNECTS);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut running = JoinSet::new();
            let mut answers = Vec::new();
            while !over.load(Ordering::Relaxed) || answers.len() < FEWEST {
                ticks.tick().await;
                let proxy = Arc::clone(&proxy);
                running.spawn(async move {
                    proxy
                        .connect(authority)
                        .await
                        .map_or_else(|refused| refused.status, |_| 200)
                });
                while let Some(answer) = running.try_join_next() {
                    answers.push(answer.unwrap());
                }
            }
            answers.extend(running.join_all().await);
            answers
        });
        Hammer { is_over, task }
    }
}

/// Clients that keep asking.
#[derive(Debug)]
pub(crate) struct Hammer {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Vec<u16>>,
}

impl Hammer {
    /// Ends it, and gives the status of each answer.
    pub(crate) async fn stop(self) -> Vec<u16> {
        self.is_over.store(true, Ordering::Relaxed);
        let answers = self.task.await.unwrap();
        eprintln!("figure: {} CONNECTs asked for the name meanwhile", answers.len());

        answers
    }

    /// Ends it: every one of them got its tunnel.
    pub(crate) async fn never_refused(self) {
        let refused: Vec<_> = self.stop().await.into_iter().filter(|status| *status != 200).collect();
        assert!(refused.is_empty(), "refused with {refused:?}");
    }
}

/// A host has 28,000 ports a minute for connections to one address: so seldom, a hammer may run for as long as it
/// likes.
const BETWEEN_CONNECTS: Duration = Duration::from_millis(3);
/// So many answers, at the least, make a test.
const FEWEST: usize = 100;
/// An API server that is back is found within 2 s, of which at most one is the backoff (tested in src). A busy machine may take
/// longer, unless a watch has come to its end, after 20 s: what is only found because another begins was not recovered.
pub(super) const RECOVERY: Duration = Duration::from_secs(15);
