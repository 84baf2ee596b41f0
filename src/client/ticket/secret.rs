//! An operator's ticket for any user: an entry of the Secret that the proxy reads.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};

use super::error::{TicketError, status_of};
use super::options::{Made, Named, Options, quoted};
use crate::client::credentials::{Api, CredentialError, Question};
use crate::protocol::ticket::{Minted, SECRET_TYPE, Ticket, data_of, expiry_of};

/// Writes the entry, and removes those that have expired. Two that write at once change different keys.
pub(super) async fn make(api: &Api, minted: Minted, named: &Named, options: &Options) -> Result<Made, TicketError> {
    let now = SystemTime::now();
    let ticket = Ticket {
        user: named.name.as_str().into(),
        groups: named.groups.iter().map(|group| group.as_str().into()).collect(),
        expires: now + options.ttl,
        target: options.target.clone(),
    };
    let value = STANDARD.encode(ticket.encode().map_err(TicketError::Refused)?);
    let key = minted.key.to_string();
    let place = Place::of(api, named);
    for _ in 0..ATTEMPTS {
        let written = match Box::pin(place.read(api)).await? {
            Some(data) => {
                let changes = changes(&data, (&key, &value), now);
                Box::pin(place.patch(api, &changes)).await?
            }
            None => Box::pin(place.create(api, (&key, &value))).await?,
        };
        if written {
            let patch = json!({"data": {key: null}});
            return Ok(Made {
                ticket: minted.ticket,
                user: named.name.clone(),
                expires: ticket.expires,
                revoke: format!(
                    "-n {} patch secret {} --type=merge -p {}",
                    quoted(&place.namespace),
                    quoted(&place.name),
                    quoted(&patch.to_string())
                ),
            });
        }
    }
    Err(TicketError::Unsettled)
}

/// A merge patch (RFC 7396): the new entry, and null for those that have expired.
fn changes(data: &BTreeMap<String, Vec<u8>>, entry: (&str, &str), now: SystemTime) -> Value {
    let expired = data
        .iter()
        .filter(|(_, value)| expiry_of(value).is_some_and(|expires| expires + KEPT < now));
    let mut data: BTreeMap<&str, Value> = expired.map(|(key, _)| (key.as_str(), Value::Null)).collect();
    data.insert(entry.0, entry.1.into());
    json!({ "data": data })
}

/// A Secret by its name.
struct Place {
    namespace: String,
    name: String,
    folder: String,
    path: String,
}

impl Place {
    fn of(api: &Api, named: &Named) -> Self {
        let namespace = named.namespace.as_deref().or(api.namespace()).unwrap_or("default");
        let folder = format!("/api/v1/namespaces/{namespace}/secrets");
        Self {
            path: format!("{folder}/{}", named.secret),
            folder,
            namespace: namespace.to_owned(),
            name: named.secret.clone(),
        }
    }

    /// Its data; `None` if there is none.
    async fn read(&self, api: &Api) -> Result<Option<BTreeMap<String, Vec<u8>>>, TicketError> {
        let question = self.question(Method::GET, &self.path, String::new());
        match Box::pin(api.ask(&question)).await {
            Ok(body) => {
                let data = data_of(&body);
                data.map(Some)
                    .map_err(|reason| TicketError::OtherSecret(self.name.clone(), reason))
            }
            Err(error) if status_of(&error) == Some(404) => Ok(None),
            Err(error) => Err(self.refused("get", error)),
        }
    }

    /// Creates it with one entry. False: it is there by now.
    async fn create(&self, api: &Api, (key, value): (&str, &str)) -> Result<bool, TicketError> {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name},
            "type": SECRET_TYPE,
            "data": {key: value},
        });
        let question = self.question(Method::POST, &self.folder, secret.to_string());
        match Box::pin(api.ask(&question)).await {
            Ok(_) => Ok(true),
            Err(error) if status_of(&error) == Some(409) => Ok(false),
            Err(error) => Err(self.refused("create", error)),
        }
    }

    /// Changes its entries. False: it was deleted.
    async fn patch(&self, api: &Api, changes: &Value) -> Result<bool, TicketError> {
        let question = Question {
            media_type: "application/merge-patch+json",
            ..self.question(Method::PATCH, &self.path, changes.to_string())
        };
        match Box::pin(api.ask(&question)).await {
            Ok(_) => Ok(true),
            Err(error) if status_of(&error) == Some(404) => Ok(false),
            Err(error) => Err(self.refused("patch", error)),
        }
    }

    #[expect(clippy::unused_self, reason = "the path is one of its own")]
    fn question<'a>(&self, method: Method, path: &'a str, body: String) -> Question<'a> {
        Question {
            method,
            path,
            media_type: "application/json",
            body,
            largest: LARGEST,
        }
    }

    fn refused(&self, verb: &'static str, error: CredentialError) -> TicketError {
        match status_of(&error) {
            Some(403) => TicketError::NoSecret {
                verb,
                secret: self.name.clone(),
                namespace: self.namespace.clone(),
                refusal: error,
            },
            _ => TicketError::Credentials(error),
        }
    }
}

/// Times that the Secret may come or go meanwhile.
const ATTEMPTS: usize = 3;
/// For which an expired entry stays: another clock may be behind, and an entry that goes before it expires is one that is
/// taken back.
const KEPT: Duration = Duration::from_mins(10);
/// Bytes of an answer: a Secret of 1 MiB in Base64, and its managed fields, which name each key.
const LARGEST: usize = 8 << 20;
