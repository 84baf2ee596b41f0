//! Follows the tickets of the cluster: a Secret that operators write.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kube::Client;
use serde::Deserialize;
use tracing::{info, warn};

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::follower::{Collection, Origin, Subject, keep_following};
use crate::kubernetes::api::requests::encoded;
use crate::kubernetes::api::thread::Thread;
use crate::policy::access::tickets::{TicketFault, Tickets, data_of};
use crate::policy::access::{SecretName, TicketOptions};

/// Follows tickets on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct TicketWatch {
    _thread: Thread,
}

impl TicketWatch {
    /// Starts to follow, whether the API server answers or not, and keeps `tickets` equal to what there is.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(origin: Origin, options: &TicketOptions, tickets: Arc<Tickets>) -> io::Result<Self> {
        for failure in Failure::ALL {
            origin.metrics.watch_errors.zero([failure.label()]);
        }
        let name = options.secret.clone();
        let work = async move {
            let secret = || OneSecret::new(name.clone(), Arc::clone(&tickets));
            keep_following(secret, origin, || {}).await;
        };
        Ok(Self {
            _thread: Thread::start("tickets", work)?,
        })
    }
}

/// One Secret.
struct OneSecret {
    name: SecretName,
    tickets: Arc<Tickets>,
    /// What was reported last.
    reported: Reported,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Reported {
    shape: Option<&'static str>,
    faults: Vec<TicketFault>,
}

/// What a Secret holds, or why it is none of tickets.
struct Object {
    name: Box<str>,
    data: Result<BTreeMap<String, Vec<u8>>, &'static str>,
}

impl OneSecret {
    fn new(name: SecretName, tickets: Arc<Tickets>) -> Self {
        Self {
            name,
            tickets,
            reported: Reported::default(),
        }
    }

    /// Puts the data in force, and says what is wrong with them, once.
    fn replace(&mut self, data: Result<BTreeMap<String, Vec<u8>>, &'static str>) {
        let reported = match data {
            Ok(data) => Reported {
                shape: None,
                faults: self.tickets.replace(&data),
            },
            Err(reason) => Reported {
                shape: Some(reason),
                faults: Vec::new(),
            },
        };
        if reported == self.reported {
            return;
        }
        let secret = &*self.name.name;
        if let Some(reason) = reported.shape {
            warn!(
                secret,
                "the Secret of tickets cannot be used, its tickets stay as they were: {reason}"
            );
        }
        for fault in reported.faults.iter().take(MOST_REPORTED) {
            warn!(secret, "an entry of the Secret is no ticket: {fault}");
        }
        if let Some(more) = reported
            .faults
            .len()
            .checked_sub(MOST_REPORTED)
            .filter(|more| *more > 0)
        {
            warn!(secret, more, "further entries of the Secret are no tickets");
        }
        if reported == Reported::default() {
            info!(secret, "the Secret of tickets is in order again");
        }
        self.reported = reported;
    }
}

impl Collection for OneSecret {
    type Object = Object;

    fn subject(&self) -> &Subject {
        &SUBJECT
    }

    fn path(&self, client: &Client) -> String {
        let SecretName { namespace, name } = &self.name;
        let namespace = encoded(namespace.as_deref().unwrap_or(client.default_namespace()));
        format!(
            "/api/v1/namespaces/{namespace}/secrets?fieldSelector={}&",
            encoded(&format!("metadata.name={name}"))
        )
    }

    fn read(&self, json: &str) -> Result<Object, serde_json::Error> {
        #[derive(Deserialize)]
        struct Named {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            name: Box<str>,
        }
        let named: Named = serde_json::from_str(json)?;
        Ok(Object {
            name: named.metadata.name,
            data: data_of(json.as_bytes()),
        })
    }

    fn list(&mut self, objects: Vec<Object>) {
        let mut own = objects.into_iter().filter(|object| object.name == self.name.name);
        self.replace(own.next().map_or(Ok(BTreeMap::new()), |object| object.data));
    }

    fn apply(&mut self, object: Object, is_deleted: bool) {
        if object.name == self.name.name {
            self.replace(if is_deleted { Ok(BTreeMap::new()) } else { object.data });
        }
    }
}

const SUBJECT: Subject = Subject {
    kind: "secrets",
    group: "",
    accept: ["application/json"; 2],
    page: 1,
    role: "the Role",
    effect: "tickets that are made or taken back are not seen",
    is_optional: false,
};
/// Faults in the log; a Secret may have thousands.
const MOST_REPORTED: usize = 8;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::access::tickets::{Judged, Minted, Ticket};

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

    #[test]
    fn a_secret_of_another_shape_keeps_the_tickets_and_its_deletion_takes_them_back() {
        let minted = Minted::new().unwrap();
        let tickets = Arc::new(Tickets::new(TTL));
        let name = SecretName {
            namespace: None,
            name: "own".into(),
        };
        let mut own = OneSecret::new(name, Arc::clone(&tickets));
        let is_known = || matches!(tickets.judge(minted.key, SystemTime::now()), Judged::Proved(_));
        let read = |own: &OneSecret, object: &Value| own.read(&object.to_string()).unwrap();
        let good = secret("own", &minted.key.to_string());
        own.list(vec![read(&own, &secret("other", "x")), read(&own, &good)]);
        assert!(is_known());
        let mut other = good.clone();
        other["type"] = json!("Opaque");
        let mut odd = good.clone();
        odd["data"] = json!([1]);
        for object in [&other, &odd] {
            own.apply(read(&own, object), false);
            assert!(is_known() && own.reported.shape.is_some(), "{object}");
            own.list(vec![read(&own, object)]);
            assert!(is_known(), "{object}");
        }
        // Of another name, as if the server knew no field selectors.
        own.apply(read(&own, &secret("other", "x")), true);
        assert!(is_known());
        own.apply(read(&own, &secret("own", "x")), false);
        assert!(!is_known());
        assert_eq!(own.reported.faults.len(), 1);
        own.list(vec![read(&own, &good)]);
        assert!(is_known());
        assert_eq!(own.reported, Reported::default());
        own.apply(read(&own, &good), true);
        assert!(!is_known());
    }
}
