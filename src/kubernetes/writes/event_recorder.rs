//! Writes Events about Services for their tenants, with a rate limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::debug;

use crate::base::fnv::fnv1a;
use crate::base::text::excerpt;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::ApiError;
use crate::kubernetes::api::list_watch::Metadata;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::model::Key;
use crate::tunnel::limits::event_rate::EventWindow;

/// An Event about a Service or a pod, for its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceEvent {
    service: Key,
    is_warning: bool,
    /// One word in CamelCase, as in Kubernetes.
    reason: &'static str,
    message: String,
}

impl ServiceEvent {
    /// Creates an Event that asks for no action.
    pub(crate) fn normal(service: Key, reason: &'static str, message: &str) -> Self {
        Self {
            service,
            is_warning: false,
            reason,
            message: excerpt(message, MAX_MESSAGE),
        }
    }

    /// Creates an Event that asks the tenant for a change.
    pub(crate) fn warning(service: Key, reason: &'static str, message: &str) -> Self {
        Self {
            is_warning: true,
            ..Self::normal(service, reason, message)
        }
    }

    /// Returns its sentence if it asks for a change.
    pub(crate) fn into_warning(self) -> Option<String> {
        self.is_warning.then_some(self.message)
    }
}

/// A queue of Events that never waits for the API server.
#[derive(Clone, Debug)]
pub(crate) struct EventRecorder {
    events: mpsc::Sender<ServiceEvent>,
    metrics: ClusterMetrics,
}

impl EventRecorder {
    /// Returns a recorder, and a future that writes its Events and never completes.
    pub(crate) fn start(api: Arc<ApiClient>, metrics: ClusterMetrics) -> (Self, impl Future<Output = ()>) {
        let (events, queue) = mpsc::channel(QUEUED);
        let recorder = Self {
            events,
            metrics: metrics.clone(),
        };
        (recorder, write(queue, api, metrics))
    }

    /// Queues an Event, or drops it if the queue is full.
    pub(crate) fn note(&self, event: ServiceEvent) {
        if self.events.try_send(event).is_err() {
            self.metrics.service_events.count(["dropped"]);
        }
    }
}

async fn write(mut events: mpsc::Receiver<ServiceEvent>, api: Arc<ApiClient>, metrics: ClusterMetrics) {
    let mut limits = EventLimits::default();
    while let Some(event) = events.recv().await {
        if !limits.admit(&event.service) {
            metrics.service_events.count(["dropped"]);
            continue;
        }
        match write_one(&event, &api).await {
            Ok(()) => metrics.service_events.count(["written"]),
            // The Service is gone, and its Events with it.
            Err(error) if error.status == Some(StatusCode::NOT_FOUND) => metrics.service_events.count(["dropped"]),
            Err(error) => {
                metrics.service_events.count(["failed"]);
                let (service, reason) = (&event.service, excerpt(&error.reason, MAX_MESSAGE));
                debug!(%service, "an Event cannot be written: {reason}");
            }
        }
    }
    std::future::pending().await
}

async fn write_one(event: &ServiceEvent, api: &ApiClient) -> Result<(), ApiError> {
    let Key { namespace, .. } = &event.service;
    let [_, plural, name] = object_of(&event.service);
    // kubectl describe shows the Events of a uid.
    let service = format!("/api/v1/namespaces/{namespace}/{plural}/{name}");
    let service = Metadata::read(&api.get(&service).await?.json)?;
    let uid = service.uid.unwrap_or_default();
    let object = event_object(event, &uid, SystemTime::now());
    let path = format!("/api/v1/namespaces/{namespace}/events");
    match api.post(&path, &object).await {
        // Another replica or an earlier call wrote the same Event: the name has a hash of the contents.
        Err(error) if error.status == Some(StatusCode::CONFLICT) => {
            let known = object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let again = json!({"lastTimestamp": object.get("lastTimestamp")});
            api.patch(&format!("{path}/{known}"), &again).await.map(drop)
        }
        written => written.map(drop),
    }
}

/// Returns the kind of the object, its plural, and its name.
fn object_of(key: &Key) -> [&str; 3] {
    match key.pod_name() {
        Some(pod) => ["Pod", "pods", pod],
        None => ["Service", "services", &key.name],
    }
}

fn event_object(event: &ServiceEvent, uid: &str, now: SystemTime) -> Value {
    let [kind, _, name] = object_of(&event.service);
    let ServiceEvent {
        service: Key { namespace, .. },
        is_warning,
        reason,
        message,
    } = event;
    let hash = fnv1a([uid, reason, message].join("\0").as_bytes());
    let now = humantime::format_rfc3339_seconds(now).to_string();
    let beginning: String = name.chars().take(MAX_NAME).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": format!("{beginning}.{hash:016x}"), "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "namespace": namespace, "name": name, "uid": uid},
        "type": if *is_warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": message,
        "source": {"component": "switchboard"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

/// The counts of Events, of all Services and of each, in the current periods.
#[derive(Debug, Default)]
struct EventLimits {
    all: EventWindow,
    of: HashMap<Key, EventWindow>,
}

impl EventLimits {
    fn admit(&mut self, service: &Key) -> bool {
        let (max, period) = OF_A_SERVICE;
        if self.of.len() >= MAX_SERVICES {
            self.of.retain(|_, window| !window.is_over(period));
        }
        if self.of.len() >= MAX_SERVICES && !self.of.contains_key(service) {
            return false;
        }
        let is_allowed = self.of.entry(service.clone()).or_default().admit(max, period);
        let (max, period) = OF_ALL;
        is_allowed && self.all.admit(max, period)
    }
}

/// Events that may wait to be written.
const QUEUED: usize = 256;
/// Events per period. Tenants cause them, and etcd keeps each for an hour.
const OF_A_SERVICE: (u32, Duration) = (10, Duration::from_secs(600));
const OF_ALL: (u32, Duration) = (120, Duration::from_secs(60));
const MAX_SERVICES: usize = 4096;
/// Characters. The API server takes 1,024 bytes.
const MAX_MESSAGE: usize = 250;
/// Characters of a Service's name in an Event's name, which may have 253.
const MAX_NAME: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> Key {
        Key {
            namespace: "team-a".into(),
            name: name.into(),
        }
    }

    #[test]
    fn an_event_is_named_after_what_it_says_about_which_service() {
        let event = |message: &str| ServiceEvent::warning(service("devbox"), "NotExposed", message);
        let name = |event: &ServiceEvent, uid: &str| {
            event_object(event, uid, SystemTime::now())
                .pointer("/metadata/name")
                .cloned()
        };
        let one = name(&event("a"), "1");
        assert_eq!(one, name(&event("a"), "1"));
        assert_ne!(one, name(&event("b"), "1"));
        assert_ne!(one, name(&event("a"), "2"));
        let long = ServiceEvent::normal(service(&"x".repeat(253)), "Exposed", &"\u{1b}[31m".repeat(1000));
        let written = event_object(&long, "1", SystemTime::now());
        assert!(written["metadata"]["name"].as_str().unwrap().len() <= 253);
        let message = written["message"].as_str().unwrap();
        assert!(message.len() <= 1024 && !message.contains('\u{1b}'), "{message:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_has_ten_events_in_ten_minutes_and_all_have_120_a_minute() {
        let mut limits = EventLimits::default();
        let mut admitted = |name: &str, count: usize| (0..count).filter(|_| limits.admit(&service(name))).count();
        assert_eq!(admitted("a", 100), 10);
        let others: usize = (0..50).map(|name| admitted(&name.to_string(), 10)).sum();
        assert_eq!(others, 110);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((admitted("a", 1), admitted("new", 1)), (0, 1));
        tokio::time::advance(Duration::from_secs(540)).await;
        assert_eq!(admitted("a", 1), 1);
    }
}
