//! Watches the Secrets that operators write: that of tickets, and that of public keys.

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
use crate::policy::access::SecretName;
use crate::policy::access::files::passwords::key_secret::KeySecret;
use crate::policy::access::tickets::{SECRET_TYPE, Tickets, data_of};

/// A table that a Secret fills.
pub trait SecretTable: Send + Sync + 'static {
    /// Its entries, for messages.
    const ENTRIES: &str;
    /// The type of the Secret.
    const TYPE: &str;
    /// The effect of a watch that fails.
    const EFFECT: &str;

    /// Replaces the entries. Returns the errors of invalid ones, which are left out.
    fn fill(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<String>;
}

impl SecretTable for Tickets {
    const ENTRIES: &str = "tickets";
    const TYPE: &str = SECRET_TYPE;
    const EFFECT: &str = "new and revoked tickets are not seen";

    fn fill(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        self.replace(data).iter().map(ToString::to_string).collect()
    }
}

impl SecretTable for KeySecret {
    const ENTRIES: &str = "keys";
    const TYPE: &str = "switchboard.dev/ssh-keys";
    const EFFECT: &str = "new and revoked public keys are not seen";

    fn fill(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        self.replace(data)
    }
}

/// Starts a thread that keeps `table` equal to the Secret. The API server need not answer yet.
///
/// # Errors
/// The thread or its runtime cannot be started.
pub fn watch_secret<T: SecretTable>(
    context: WatchContext,
    name: SecretName,
    table: Arc<T>,
) -> io::Result<BackgroundRuntime> {
    BackgroundRuntime::start(T::ENTRIES, async move {
        let metrics = context.metrics.clone();
        let secret = || SecretReader::new(&name, Arc::clone(&table), metrics.clone());
        keep_following(subject(&name, T::EFFECT), secret, context, || {}).await;
    })
}

/// The consumer of the watch: it applies one Secret to `table`.
struct SecretReader<T> {
    name: Box<str>,
    table: Arc<T>,
    metrics: ClusterMetrics,
    /// The errors of the last data.
    reported: Vec<String>,
}

/// The entries of a Secret, or why it has none for the table.
type Data = Result<BTreeMap<String, Vec<u8>>, String>;

impl<T: SecretTable> SecretReader<T> {
    fn new(name: &SecretName, table: Arc<T>, metrics: ClusterMetrics) -> Self {
        Self {
            name: name.name.clone(),
            table,
            metrics,
            reported: Vec::new(),
        }
    }

    /// Applies the data, and logs its errors if they have changed.
    fn replace(&mut self, data: Data) {
        let entries = T::ENTRIES;
        let faults: Vec<_> = match data {
            Ok(data) => {
                let faults = self.table.fill(&data).into_iter();
                faults
                    .map(|fault| format!("an entry of the Secret of {entries} is invalid: {fault}"))
                    .collect()
            }
            Err(reason) => vec![format!(
                "the Secret of {entries} cannot be used, its {entries} stay as they were: {reason}"
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
            warn!(secret, more, "further entries of the Secret of {entries} are invalid");
        }
        if faults.is_empty() {
            info!(secret, "the Secret of {entries} is in order again");
        }
        self.reported = faults;
    }
}

impl<T: SecretTable> Objects for SecretReader<T> {
    type Object = Data;

    fn read(&self, json: &str) -> Result<Option<Data>, serde_json::Error> {
        let name = Metadata::read(json)?.name;
        // In case the server ignores field selectors.
        Ok(name
            .is_none_or(|name| name == self.name)
            .then(|| data_of(json.as_bytes(), T::TYPE)))
    }

    fn replacement(&self, metadata: Metadata) -> Option<Data> {
        (metadata.name.as_ref() == Some(&self.name)).then(|| Err("it is too long".to_owned()))
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
fn subject(SecretName { namespace, name }: &SecretName, effect: &'static str) -> WatchSpec {
    WatchSpec {
        kind: "secrets",
        group: "",
        scope: namespace.clone().map_or(Scope::Own, Scope::Namespace),
        selector: format!("fieldSelector={}&", encoded(&format!("metadata.name={name}"))),
        effect,
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
        let read = |reader: &SecretReader<Tickets>, object: &Value| reader.read(&object.to_string()).unwrap();
        let listed =
            |reader: &SecretReader<Tickets>, object: &Value| Event::Listed(read(reader, object).into_iter().collect());
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
            own.reported[0].starts_with("an entry of the Secret of tickets is invalid: x: "),
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
