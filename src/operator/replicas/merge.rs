//! Merges the lists of all replicas.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::replica::Replica;
use super::request::{AdminRequest, ReplicaError};
use crate::daemon::admin::api::{Client, EndedTunnel, PastRefusal, Query, Restriction, Sort, Target, Tunnel};

/// Items of all replicas, and the status of each replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergedList<T> {
    /// In the order of the query, up to its limit.
    pub items: Vec<FromReplica<T>>,
    /// The number of matches on the replicas that have answered.
    pub total: usize,
    /// Of a list of the past: the time from which on none is missing (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_since: Option<String>,
    /// All replicas.
    pub replicas: Vec<ReplicaStatus>,
}

/// An item of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FromReplica<T> {
    /// The name of the replica.
    pub replica: String,
    /// The item.
    #[serde(flatten)]
    pub item: T,
}

/// The status of a replica: answered, or why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its name.
    pub replica: String,
    /// Why it has not answered; `None` if it has.
    pub error: Option<String>,
}

impl<T> MergedList<T> {
    /// Returns whether all replicas have answered.
    pub fn is_complete(&self) -> bool {
        self.replicas.iter().all(ReplicaStatus::answers)
    }
}

impl FromReplica<Tunnel> {
    /// Returns `namespace/service` of its target.
    pub fn target(&self) -> String {
        format!("{}/{}", self.item.target_namespace, self.item.target_service)
    }
}

impl ReplicaStatus {
    /// Returns whether the replica has answered.
    pub fn answers(&self) -> bool {
        self.error.is_none()
    }
}

impl Replica {
    /// Returns the replica's items that a query matches, up to the query's limit.
    pub(crate) async fn list<T: Item>(&self, query: &Query) -> Result<Vec<T>, ReplicaError> {
        Ok(Box::pin(all(self, query)).await?.items)
    }
}

/// An item of a list of the API.
pub trait Item: DeserializeOwned {
    /// The path of the list.
    const PATH: &'static str;

    /// Returns the item's sort key: the value to sort by, largest first, then the item's name.
    fn sort_key(&self, sort: Sort) -> (Reverse<u64>, String);
}

impl Item for Tunnel {
    const PATH: &'static str = "/tunnels";

    fn sort_key(&self, sort: Sort) -> (Reverse<u64>, String) {
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
    const PATH: &'static str = "/targets";

    fn sort_key(&self, _: Sort) -> (Reverse<u64>, String) {
        (Reverse(0), format!("{} {}", self.namespace, self.service))
    }
}

impl Item for Client {
    const PATH: &'static str = "/clients";

    fn sort_key(&self, _: Sort) -> (Reverse<u64>, String) {
        (Reverse(self.tunnels as u64), format!("{} {}", self.address, self.user))
    }
}

impl Item for EndedTunnel {
    const PATH: &'static str = "/ended";

    fn sort_key(&self, _: Sort) -> (Reverse<u64>, String) {
        (Reverse(u64::MAX - self.ago_ms), self.tunnel_id.clone())
    }
}

impl Item for PastRefusal {
    const PATH: &'static str = "/refusals?detail";

    fn sort_key(&self, _: Sort) -> (Reverse<u64>, String) {
        (Reverse(u64::MAX - self.ago_ms), self.request.tunnel_id.clone())
    }
}

impl Item for Restriction {
    const PATH: &'static str = "/restrictions";

    fn sort_key(&self, _: Sort) -> (Reverse<u64>, String) {
        (
            Reverse(0),
            format!("{} {:?} {}", self.user_name, self.client_address, self.target),
        )
    }
}

/// A page of a list, or a whole one.
#[derive(Debug, Deserialize)]
pub(super) struct Part<T> {
    #[serde(
        alias = "tunnels",
        alias = "targets",
        alias = "clients",
        alias = "ended",
        alias = "refusals",
        alias = "restrictions"
    )]
    items: Vec<T>,
    /// The number of items of the whole list.
    total: usize,
    /// Of a list of the past: the time from which on none is missing.
    complete_since: Option<String>,
    /// The cursor of the next page; `None` in the last one.
    next: Option<String>,
}

/// Returns the list of one replica, read page by page.
pub(super) async fn all<T: Item>(replica: &Replica, query: &Query) -> Result<Part<T>, ReplicaError> {
    // Each page has a deadline of its own, too.
    let timeout = replica.deadline().saturating_mul(MAX_LIST);
    all_within(timeout, query, |ask| async move { replica.ask_sized(&ask).await }).await
}

/// Like [`all`], with a function that returns one page and the page's size in bytes.
async fn all_within<T, F>(
    max: Duration,
    query: &Query,
    ask: impl Fn(AdminRequest) -> F,
) -> Result<Part<T>, ReplicaError>
where
    T: Item,
    F: Future<Output = Result<(Part<T>, usize), ReplicaError>>,
{
    let late = |_| {
        let max = humantime::format_duration(max);
        Err(ReplicaError::LimitExceeded(format!("its list has no end within {max}")))
    };
    let parts = async {
        let wanted = query.limit.unwrap_or(usize::MAX);
        let mut items: Vec<T> = Vec::new();
        let mut bytes = 0;
        let (mut cursor, mut seen) = (None, HashSet::new());
        loop {
            let limit = (wanted - items.len()).clamp(1, MAX_PAGE_ITEMS);
            let query = Query {
                limit: Some(limit),
                cursor: cursor.clone(),
                ..query.clone()
            };
            let (mut part, length) = ask(AdminRequest::get(path_of(T::PATH, &query))).await?;
            // Items with little JSON, such as empty strings, take more in memory.
            bytes += length.max(size_of_val(&*part.items));
            if bytes > MAX_BYTES {
                let max = MAX_BYTES >> 20;
                let said = format!("its list is too long: more than {max} MiB");
                return Err(ReplicaError::LimitExceeded(said));
            }
            let is_empty = part.items.is_empty();
            items.append(&mut part.items);
            if part.next.is_none() || items.len() >= wanted {
                return Ok(Part { items, ..part });
            }
            if is_empty || !seen.insert(part.next.clone()) {
                return Err(ReplicaError::Unexpected("its list does not advance".to_owned()));
            }
            cursor = part.next;
        }
    };
    timeout(max, parts).await.unwrap_or_else(late)
}

/// Returns the path with the query.
pub(super) fn path_of(path: &str, query: &Query) -> String {
    // Never an error: all fields are strings or numbers.
    let query = serde_urlencoded::to_string(query).unwrap_or_default();
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}{query}")
}

/// Merges the answers of all replicas.
pub(super) fn merge<T: Item>(
    answers: impl IntoIterator<Item = (String, Result<Part<T>, ReplicaError>)>,
    query: &Query,
) -> MergedList<T> {
    let mut list = MergedList {
        items: Vec::new(),
        total: 0,
        complete_since: None,
        replicas: Vec::new(),
    };
    for (replica, answer) in answers {
        let error = answer.as_ref().err().map(ToString::to_string);
        if let Ok(part) = answer {
            let own = part.items.into_iter().map(|item| FromReplica {
                replica: replica.clone(),
                item,
            });
            list.items.extend(own);
            list.total = list.total.saturating_add(part.total);
            // RFC 3339 sorts as text, and `None` is the least.
            list.complete_since = list.complete_since.max(part.complete_since);
        }
        list.replicas.push(ReplicaStatus { replica, error });
    }
    list.items
        .sort_by_cached_key(|row| row.item.sort_key(query.sort.unwrap_or_default()));
    list.items.truncate(query.limit.unwrap_or(usize::MAX));
    list
}

/// The most items of a page.
pub(super) const MAX_PAGE_ITEMS: usize = 2000;
/// The most bytes of one replica's list, in JSON or in memory. The 100,000 tunnels that a process may have by default take
/// less.
const MAX_BYTES: usize = 128 << 20;
/// The time for a whole list, in deadlines of one page. A page takes far less, so this is enough for the fifty pages of 100,000
/// tunnels.
const MAX_LIST: u32 = 12;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;
    use crate::daemon::admin::api::tests::tunnel;

    fn client(tunnels: usize) -> Client {
        Client {
            address: [192, 0, 2, 1].into(),
            user: String::new(),
            tunnels,
            bytes_sent: u64::MAX,
            bytes_received: u64::MAX,
            sent_per_second: 0,
            received_per_second: 0,
            idle_ms: 0,
        }
    }

    #[test]
    fn the_tunnels_of_a_process_at_its_default_cap_are_listed() {
        let usual = serde_json::to_string(&tunnel("89ab4567-ffff")).unwrap().len();
        assert!(usual.max(size_of::<Tunnel>()) * 100_000 < MAX_BYTES, "{usual}");
    }

    /// Returns the number of requests to a replica that answers after a second, and the error. The number of the answer gives its
    /// items and the cursor.
    async fn goes_on(bytes: usize, part: impl Fn(usize) -> (usize, String)) -> (usize, String) {
        let asked = Cell::new(0);
        let ask = |_| {
            asked.set(asked.get() + 1);
            assert!(asked.get() < 1_000, "asked for ever");
            let (items, next) = part(asked.get());
            async move {
                sleep(Duration::from_secs(1)).await;
                let part = Part {
                    items: vec![client(1); items],
                    total: 0,
                    complete_since: None,
                    next: Some(next),
                };
                Ok((part, bytes))
            }
        };
        let list = all_within::<Client, _>(Duration::from_mins(1), &Query::default(), ask).await;
        (asked.get(), list.unwrap_err().to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_without_an_end_is_given_up() {
        let (asked, error) = goes_on(100, |number| (1, number.to_string())).await;
        assert!((59..=61).contains(&asked), "{asked}");
        assert_eq!(error, "its list has no end within 1m");
        let (asked, error) = goes_on(30 << 20, |number| (1, number.to_string())).await;
        assert_eq!((asked, &*error), (5, "its list is too long: more than 128 MiB"));
    }

    #[tokio::test(start_paused = true)]
    async fn items_of_a_list_are_bounded_by_the_memory_that_they_take_however_short_they_are() {
        let items = (30 << 20) / size_of::<Client>();
        let (asked, error) = goes_on(100, |number| (items, number.to_string())).await;
        assert_eq!((asked, &*error), (5, "its list is too long: more than 128 MiB"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_brings_nothing_is_not_asked_for_again() {
        let stuck = "does not answer as switchboard does: its list does not advance".to_owned();
        assert_eq!(goes_on(100, |number| (0, number.to_string())).await, (1, stuck.clone()));
        assert_eq!(goes_on(100, |_| (1, "x".to_owned())).await, (2, stuck.clone()));
        let alternating = |number: usize| (1, (number % 2).to_string());
        assert_eq!(goes_on(100, alternating).await, (3, stuck));
    }

    #[tokio::test]
    async fn a_replica_whose_list_does_not_advance_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let replica = Replica::at(listener.local_addr().unwrap(), Duration::from_mins(2));
        let serving = tokio::spawn(async move {
            // A second request would be refused.
            let (mut stream, _) = listener.accept().await.unwrap();
            drop(listener);
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let body = r#"{"items":[],"total":0,"next":"x"}"#;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let answer = all::<Client>(&replica, &Query::default()).await;
        let list = merge(vec![("one".to_owned(), answer)], &Query::default());
        assert_eq!(list.replicas[0].replica, "one");
        let error = list.replicas[0].error.as_deref().unwrap();
        assert!(error.ends_with("its list does not advance"), "{error}");
        serving.await.unwrap();
    }

    #[test]
    fn values_of_a_query_are_encoded() {
        let query = Query {
            target: Some("static/a:22".into()),
            client: Some("2001:db8::1".parse().unwrap()),
            user: Some("a&b=c ü".into()),
            node: Some("n".into()),
            limit: Some(7),
            sort: Some(Sort::Idle),
            cursor: Some("a-_1".into()),
        };
        assert_eq!(
            path_of("/tunnels", &query),
            "/tunnels?target=static%2Fa%3A22&client=2001%3Adb8%3A%3A1&user=a%26b%3Dc+%C3%BC&node=n&sort=idle&limit=7&cursor=a-_1"
        );
    }

    #[test]
    fn sums_of_made_up_numbers_stay_at_the_largest() {
        let part = || Part {
            items: vec![client(usize::MAX)],
            total: usize::MAX,
            complete_since: None,
            next: None,
        };
        let answer = |replica: &str| (replica.to_owned(), Ok(part()));
        let list = merge(vec![answer("a"), answer("b")], &Query::default());
        assert_eq!((list.items.len(), list.total), (2, usize::MAX));
        assert_eq!(crate::operator::replicas::by_client(&list), [client(usize::MAX)]);
    }
}
