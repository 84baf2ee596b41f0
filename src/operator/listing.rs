//! The lists of all replicas as one.

use std::cmp::Reverse;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Answer;
use super::query::{LARGEST_PART, Query, Sort};
use super::replica::Replica;
use super::request::{Ask, ReplicaError};
use crate::api::{Client, Clients, Target, Targets, Tunnel, Tunnels};
use crate::kubernetes::encoded;

/// Items of all replicas, and which of those have answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed<T> {
    /// In the order of the query.
    pub items: Vec<Of<T>>,
    /// How many there are on the replicas that have answered.
    pub total: usize,
    /// All replicas.
    pub replicas: Vec<State>,
}

/// An item of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Of<T> {
    /// The name of the replica.
    pub replica: String,
    /// The item.
    #[serde(flatten)]
    pub item: T,
}

/// Whether a replica has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name.
    pub replica: String,
    /// Why it has not; `None` if it has.
    pub error: Option<String>,
}

impl<T> Listed<T> {
    /// Whether all replicas have answered.
    pub fn is_whole(&self) -> bool {
        self.replicas.iter().all(|state| state.error.is_none())
    }
}

/// What the API lists.
pub trait Item: DeserializeOwned + Send + 'static {
    /// A part of a list in JSON.
    type Part: DeserializeOwned + Send;
    /// The order of the items: by that value, then by name.
    type Key: Ord;
    /// The path of the list.
    const PATH: &'static str;
    /// Whether the path takes a filter and `sort`.
    const IS_FILTERED: bool = false;

    /// The items, how many there are in all, and the cursor of the next part.
    fn read(part: Self::Part) -> (Vec<Self>, usize, Option<String>);

    /// The item's place in the order.
    fn key(&self, sort: Sort) -> Self::Key;
}

impl Item for Tunnel {
    type Part = Tunnels;
    type Key = (Reverse<u64>, String);
    const PATH: &'static str = "/tunnels";
    const IS_FILTERED: bool = true;

    fn read(part: Tunnels) -> (Vec<Self>, usize, Option<String>) {
        (part.tunnels, part.total, part.next)
    }

    fn key(&self, sort: Sort) -> Self::Key {
        let key = match sort {
            Sort::Bytes => self.bytes_sent.saturating_add(self.bytes_received),
            Sort::Rate => self.sent_per_second.saturating_add(self.received_per_second),
            Sort::Age => self.age_ms,
            Sort::Idle => self.idle_ms,
        };
        (Reverse(key), self.tunnel_id.clone())
    }
}

impl Item for Target {
    type Part = Targets;
    type Key = (String, String);
    const PATH: &'static str = "/targets";

    fn read(part: Targets) -> (Vec<Self>, usize, Option<String>) {
        (part.targets, part.total, part.next)
    }

    fn key(&self, _: Sort) -> Self::Key {
        (self.namespace.clone(), self.service.clone())
    }
}

impl Item for Client {
    type Part = Clients;
    type Key = (Reverse<usize>, String, String);
    const PATH: &'static str = "/clients";

    fn read(part: Clients) -> (Vec<Self>, usize, Option<String>) {
        (part.clients, part.total, part.next)
    }

    fn key(&self, _: Sort) -> Self::Key {
        (Reverse(self.tunnels), self.address.to_string(), self.user.clone())
    }
}

/// The items of one replica, part by part, and how many there are.
pub(super) async fn all<T: Item>(replica: &Replica, query: &Query) -> Result<(Vec<T>, usize), ReplicaError> {
    let wanted = query.limit.unwrap_or(MOST_ITEMS).min(MOST_ITEMS);
    let mut items: Vec<T> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let limit = (wanted - items.len()).clamp(1, LARGEST_PART);
        let filter = if T::IS_FILTERED {
            query.filter.query()
        } else {
            String::new()
        };
        let joint = if filter.is_empty() { '?' } else { '&' };
        let mut path = format!("{}{filter}{joint}limit={limit}", T::PATH);
        if T::IS_FILTERED {
            path += &format!("&sort={}", query.sort.label());
        }
        if let Some(cursor) = &cursor {
            path += &format!("&cursor={}", encoded(cursor));
        }
        let (part, total, next) = T::read(replica.ask(&Ask::get(path)).await?);
        // A part that is not the last has as many items as were asked for: parts of one item would be asked for without end.
        let is_last = part.len() < limit || next.is_none() || next == cursor;
        items.extend(part);
        if is_last || items.len() >= wanted {
            items.truncate(wanted);
            return Ok((items, total));
        }
        cursor = next;
    }
}

/// The answers of all replicas as one.
pub(super) fn merge<T: Item>(answers: Vec<Answer<(Vec<T>, usize)>>, query: &Query) -> Listed<T> {
    let mut listed = Listed {
        items: Vec::new(),
        total: 0,
        replicas: Vec::new(),
    };
    for Answer { replica, result } in answers {
        let error = match result {
            Ok((items, total)) => {
                let own = items.into_iter().map(|item| Of {
                    replica: replica.to_string(),
                    item,
                });
                listed.items.extend(own);
                listed.total = listed.total.saturating_add(total);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        listed.replicas.push(State {
            replica: replica.to_string(),
            error,
        });
    }
    listed.items.sort_by_cached_key(|row| row.item.key(query.sort));
    listed.items.truncate(query.limit.unwrap_or(usize::MAX));
    listed
}

/// Of one replica. A process has two descriptors for each tunnel, and fewer than this.
const MOST_ITEMS: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn client(tunnels: usize) -> Client {
        Client {
            address: [192, 0, 2, 1].into(),
            user: String::new(),
            tunnels,
            bytes_sent: u64::MAX,
            bytes_received: u64::MAX,
            idle_ms: 0,
        }
    }

    #[tokio::test]
    async fn a_replica_that_gives_a_short_part_is_not_asked_for_another_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let replica = Replica::at(listener.local_addr().unwrap(), Duration::from_secs(60));
        let serving = tokio::spawn(async move {
            // A second request would be refused.
            let (mut stream, _) = listener.accept().await.unwrap();
            drop(listener);
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let part = Clients {
                clients: vec![client(1)],
                total: 1_000_000,
                next: Some("more".to_owned()),
            };
            let body = serde_json::to_string(&part).unwrap();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let (items, total) = all::<Client>(&replica, &Query::default()).await.unwrap();
        assert_eq!((items, total), (vec![client(1)], 1_000_000));
        serving.await.unwrap();
    }

    #[test]
    fn sums_of_made_up_numbers_stay_at_the_largest() {
        let answer = |replica: &str| Answer {
            replica: replica.into(),
            result: Ok((vec![client(usize::MAX)], usize::MAX)),
        };
        let listed = merge(vec![answer("a"), answer("b")], &Query::default());
        assert_eq!((listed.items.len(), listed.total), (2, usize::MAX));
        assert_eq!(crate::operator::by_client(&listed), [client(usize::MAX)]);
    }
}
