//! Watches the tickets of the cluster: a Secret that operators write.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use crate::kubernetes::api::list_watch::Metadata;
use crate::kubernetes::api::requests::encoded;
use crate::kubernetes::api::thread::BackgroundRuntime;
use crate::kubernetes::api::watcher::{Event, Objects, Scope, WatchContext, WatchSpec, keep_following};
use crate::kubernetes::metrics::ClusterMetrics;
use crate::policy::access::tickets::{Tickets, data_of};
use crate::policy::access::{SecretName, TicketOptions};

/// Starts a thread that keeps `tickets` equal to the Secret of tickets. The API server need not answer yet.
///
/// # Errors
/// The thread or its runtime cannot be started.
pub fn watch_tickets(
    context: WatchContext,
    options: &TicketOptions,
    tickets: Arc<Tickets>,
) -> io::Result<BackgroundRuntime> {
    let name = options.secret.clone();
    BackgroundRuntime::start("tickets", async move {
        let metrics = context.metrics.clone();
        let secret = || SecretReader::new(&name, Arc::clone(&tickets), metrics.clone());
        keep_following(subject(&name), secret, context, || {}).await;
    })
}

/// The consumer of the watch: it applies one Secret to `tickets`.
struct SecretReader {
    name: Box<str>,
    tickets: Arc<Tickets>,
    metrics: ClusterMetrics,
    /// The errors of the last data.
    reported: Vec<String>,
}

/// The entries of a Secret, or why it is not a Secret of tickets.
type Data = Result<BTreeMap<String, Vec<u8>>, &'static str>;

impl SecretReader {
    fn new(name: &SecretName, tickets: Arc<Tickets>, metrics: ClusterMetrics) -> Self {
        Self {
            name: name.name.clone(),
            tickets,
            metrics,
            reported: Vec::new(),
        }
    }

    /// Applies the data, and logs its errors if they have changed.
    fn replace(&mut self, data: Data) {
        let faults: Vec<_> = match data {
            Ok(data) => {
                let faults = self.tickets.replace(&data).into_iter();
                faults
                    .map(|fault| format!("an entry of the Secret is not a ticket: {fault}"))
                    .collect()
            }
            Err(reason) => vec![format!(
                "the Secret of tickets cannot be used, its tickets stay as they were: {reason}"
            )],
        };
        if faults == self.reported {
            return;
        }
        let secret = &*self.name;
        for fault in faults.iter().take(MAX_REPORTED) {
            warn!(secret, "{fault}");
        }
        if faults.len() > MAX_REPORTED {
            let more = faults.len() - MAX_REPORTED;
            warn!(secret, more, "further entries of the Secret are not tickets");
        }
        if faults.is_empty() {
            info!(secret, "the Secret of tickets is in order again");
        }
        self.reported = faults;
    }
}

impl Objects for SecretReader {
    type Object = Data;

    fn read(&self, json: &str) -> Result<Option<Data>, serde_json::Error> {
        let name = Metadata::read(json)?.name;
        // In case the server ignores field selectors.
        Ok(name
            .is_none_or(|name| name == self.name)
            .then(|| data_of(json.as_bytes())))
    }

    fn replacement(&self, metadata: Metadata) -> Option<Data> {
        (metadata.name.as_ref() == Some(&self.name)).then_some(Err("it is too long"))
    }

    async fn take(&mut self, event: Event<Data>) {
        match event {
            Event::Listed(mut own) => self.replace(own.pop().unwrap_or(Ok(BTreeMap::new()))),
            Event::Applied(data) => self.replace(data),
            Event::Deleted(_) => self.replace(Ok(BTreeMap::new())),
            Event::Failed(failure) => self.metrics.watch_errors.count([failure.label()]),
            Event::UpToDate | Event::Refused => {}
        }
    }
}

/// Returns the spec of the watch.
fn subject(SecretName { namespace, name }: &SecretName) -> WatchSpec {
    WatchSpec {
        kind: "secrets",
        group: "",
        scope: namespace.clone().map_or(Scope::Own, Scope::Namespace),
        selector: format!("fieldSelector={}&", encoded(&format!("metadata.name={name}"))),
        effect: "new and revoked tickets are not seen",
        is_optional: false,
        relist: RELIST,
    }
}

/// The interval between lists.
const RELIST: Duration = Duration::from_secs(900);
/// Errors that are logged; a Secret may have thousands.
const MAX_REPORTED: usize = 8;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::access::tickets::{NewTicket, Ticket, TicketLookup};
    use crate::tunnel::exposition::registry;

    const TTL: Duration = Duration::from_hours(1);

    fn secret(name: &str, key: &str) -> Value {
        let ticket = Ticket {
            user: "alice".into(),
            groups: Vec::new(),
            expires: SystemTime::now() + TTL / 2,
            target: None,
        };
        let value = STANDARD.encode(ticket.encode().unwrap());
        json!({"metadata": {"name": name}, "type": "switchboard.dev/tickets", "data": {key: value}})
    }

    #[tokio::test]
    async fn a_secret_of_another_shape_keeps_the_tickets_and_its_deletion_takes_them_back() {
        let minted = NewTicket::new().unwrap();
        let tickets = Arc::new(Tickets::new(TTL));
        let name = SecretName {
            namespace: None,
            name: "own".into(),
        };
        let mut own = SecretReader::new(
            &name,
            Arc::clone(&tickets),
            ClusterMetrics::new(&registry().unwrap()).unwrap(),
        );
        let is_known = || matches!(tickets.lookup(minted.key, SystemTime::now()), TicketLookup::Proved(_));
        let read = |reader: &SecretReader, object: &Value| reader.read(&object.to_string()).unwrap();
        let listed = |reader: &SecretReader, object: &Value| Event::Listed(read(reader, object).into_iter().collect());
        let good = secret("own", &minted.key.to_string());
        assert!(
            read(&own, &secret("other", "x")).is_none(),
            "as if the server knew no field selectors"
        );
        own.take(listed(&own, &good)).await;
        assert!(is_known());
        let mut other = good.clone();
        other["type"] = json!("Opaque");
        let mut odd = good.clone();
        odd["data"] = json!([1]);
        for object in [&other, &odd] {
            own.take(Event::Applied(read(&own, object).unwrap())).await;
            assert!(is_known() && own.reported.len() == 1, "{object}");
            own.take(listed(&own, object)).await;
            assert!(is_known(), "{object}");
        }
        own.take(Event::Applied(read(&own, &secret("own", "x")).unwrap())).await;
        assert!(!is_known());
        assert!(
            own.reported[0].starts_with("an entry of the Secret is not a ticket: x: "),
            "{:?}",
            own.reported
        );
        own.take(listed(&own, &good)).await;
        assert!(is_known());
        assert!(own.reported.is_empty());
        own.take(Event::Deleted(read(&own, &good).unwrap())).await;
        assert!(!is_known());
    }
}
