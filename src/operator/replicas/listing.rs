//! The lists of all replicas as one.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::answer::Answer;
use super::replica::Replica;
use super::request::{Ask, ReplicaError};
use crate::daemon::admin::api::{Client, Clients, Query, Sort, Target, Targets, Tunnel, Tunnels};
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

    /// The bytes that it takes in memory, its texts among them.
    fn bytes(&self) -> usize;
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

    fn bytes(&self) -> usize {
        let texts = [
            &self.tunnel_id,
            &self.since,
            &self.last_active,
            &self.client_software,
            &self.user_name,
            &self.http_version,
            &self.tls_version,
            &self.server_address,
            &self.target_namespace,
            &self.target_service,
            &self.upstream_node,
            &self.upstream_software,
            &self.download.rate,
            &self.upload.rate,
        ];
        size_of::<Self>() + texts.map(String::capacity).iter().sum::<usize>()
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

    fn bytes(&self) -> usize {
        let addresses = self.addresses.capacity() * size_of::<SocketAddr>();
        let nodes = self.nodes.capacity() * size_of::<String>();
        let texts = [&self.namespace, &self.service].into_iter().chain(&self.nodes);
        let texts = texts.chain(&self.last_activity).map(String::capacity);
        size_of::<Self>() + addresses + nodes + texts.sum::<usize>()
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

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.user.capacity()
    }
}

/// The items of one replica, part by part, and how many there are.
pub(super) async fn all<T: Item>(replica: &Replica, query: &Query) -> Result<(Vec<T>, usize), ReplicaError> {
    // Each part has a deadline of its own.
    let longest = replica.deadline().saturating_mul(LONGEST_LIST);
    within(longest, parts(query, |ask| async move { replica.ask(&ask).await })).await
}

/// A list, or that it has no end in that time.
async fn within<T>(longest: Duration, list: impl Future<Output = Result<T, ReplicaError>>) -> Result<T, ReplicaError> {
    let late = |_| {
        let longest = humantime::format_duration(longest);
        Err(ReplicaError::LimitExceeded(format!(
            "its list has no end within {longest}"
        )))
    };
    timeout(longest, list).await.unwrap_or_else(late)
}

/// The items, part by part, by what asks for one part.
async fn parts<T, F>(query: &Query, ask: impl Fn(Ask) -> F) -> Result<(Vec<T>, usize), ReplicaError>
where
    T: Item,
    F: Future<Output = Result<T::Part, ReplicaError>>,
{
    let wanted = query.limit.unwrap_or(MOST_ITEMS).min(MOST_ITEMS);
    let mut items: Vec<T> = Vec::new();
    let mut bytes = 0_usize;
    let mut cursor: Option<String> = None;
    loop {
        let limit = (wanted - items.len()).clamp(1, LARGEST_PART);
        let part = Query {
            limit: Some(limit),
            cursor: cursor.clone(),
            ..if T::IS_FILTERED {
                query.clone()
            } else {
                Query::default()
            }
        };
        let path = path_of(T::PATH, &part);
        let (mut part, total, next) = T::read(ask(Ask::get(path)).await?);
        // A part that is not the last has as many items as were asked for: parts of one item would be asked for without end.
        let is_last = part.len() < limit || next.is_none() || next == cursor;
        part.truncate(limit);
        bytes = bytes.saturating_add(part.iter().map(T::bytes).sum());
        if bytes > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            let said = format!("its list is too long: more than {most} MiB in memory");
            return Err(ReplicaError::LimitExceeded(said));
        }
        items.extend(part);
        if is_last || items.len() >= wanted {
            return Ok((items, total));
        }
        cursor = next;
    }
}

/// Returns the path with the query.
pub(super) fn path_of(path: &str, query: &Query) -> String {
    let Query {
        target,
        client,
        user,
        node,
        sort,
        limit,
        cursor,
    } = query;
    let fields = [
        ("target", target.clone()),
        ("client", client.map(|client| client.to_string())),
        ("user", user.clone()),
        ("node", node.clone()),
        ("limit", limit.map(|limit| limit.to_string())),
        ("sort", sort.map(|sort| sort.label().to_owned())),
        ("cursor", cursor.clone()),
    ];
    let fields = fields
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded(&value?))));
    let fields: Vec<_> = fields.collect();
    format!("{path}?{}", fields.join("&"))
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
    listed
        .items
        .sort_by_cached_key(|row| row.item.key(query.sort.unwrap_or_default()));
    listed.items.truncate(query.limit.unwrap_or(usize::MAX));
    listed
}

/// Items of one answer at most.
pub(super) const LARGEST_PART: usize = 2000;
/// Of one replica. No process has so many tunnels: each takes two descriptors.
const MOST_ITEMS: usize = 1_000_000;
/// Of the items of one replica in memory. The 100,000 tunnels that a process has by default at most take less.
const MOST_BYTES: usize = 128 << 20;
/// A whole list, in deadlines of one part. Parts take far less than their deadlines: so many are enough for the fifty of 100,000
/// tunnels.
const LONGEST_LIST: u32 = 12;

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

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

    fn tunnel(number: usize) -> Tunnel {
        let tunnel = serde_json::json!({
            "tunnel_id": format!("89ab4567-{number:x}"), "since": "2026-01-01T00:00:00.000Z",
            "last_active": "2026-01-01T00:00:00.000Z", "client.address": "192.0.2.7",
            "client.software": "OpenSSH_9.6p1 Ubuntu-3ubuntu13", "user.name": "alice@example.com", "http.version": "1",
            "tls.version": "1.3", "server.address": "devbox.team-a", "target.namespace": "team-a",
            "target.service": "devbox", "upstream.address": "10.42.1.7:22", "upstream.node": "node-7.example.com",
            "upstream.software": "OpenSSH_9.2p1 Debian-2+deb12u3", "download": {"rate": "unlimited"},
            "upload": {"rate": "unlimited"},
        });
        serde_json::from_value(tunnel).unwrap()
    }

    #[test]
    fn the_tunnels_of_a_process_at_its_default_cap_are_listed() {
        let usual = tunnel(0xffff).bytes();
        assert!(usual * 100_000 < MOST_BYTES, "{usual}");
    }

    /// How often a replica is asked that gives twice as many items as are asked for, and another cursor each time.
    async fn goes_on<T: Item + Clone>(
        item: T,
        part: impl Fn(Vec<T>, Option<String>) -> T::Part,
    ) -> (usize, ReplicaError) {
        let asked = std::cell::Cell::new(0);
        let ask = |_| {
            asked.set(asked.get() + 1);
            ready(Ok(part(
                vec![item.clone(); 2 * LARGEST_PART],
                Some(asked.get().to_string()),
            )))
        };
        let listed = parts::<T, _>(&Query::default(), ask).await;
        let error = listed.map(|(items, _)| items.len()).unwrap_err();
        (asked.get(), error)
    }

    #[tokio::test]
    async fn a_list_without_an_end_is_given_up_when_its_items_take_too_much_memory() {
        let too_long = ReplicaError::LimitExceeded("its list is too long: more than 128 MiB in memory".to_owned());
        let expected = |bytes: usize| (MOST_BYTES / (LARGEST_PART * bytes) + 1, too_long.clone());
        let large = Tunnel {
            user_name: "x".repeat(10_000),
            ..tunnel(0)
        };
        let bytes = large.bytes();
        let total = 1;
        let of_tunnels = |tunnels, next| Tunnels { tunnels, total, next };
        assert_eq!(goes_on(large, of_tunnels).await, expected(bytes));
        // Few bytes in JSON, and many in memory.
        let broad = Target {
            namespace: String::new(),
            service: String::new(),
            endpoints_ready: 0,
            endpoints: 0,
            addresses: Vec::new(),
            nodes: vec![String::new(); 1000],
            is_cordoned: false,
            tunnels: 0,
            last_activity: None,
        };
        let of_targets = |targets, next| Targets { targets, total, next };
        assert_eq!(goes_on(broad.clone(), of_targets).await, expected(broad.bytes()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_without_an_end_is_given_up_in_time() {
        let ask = |_| async {
            sleep(Duration::from_secs(4)).await;
            Ok(Clients {
                clients: vec![client(1); LARGEST_PART],
                total: 1,
                next: Some(format!("{:?}", Instant::now())),
            })
        };
        let query = Query::default();
        let listed = within(Duration::from_mins(1), parts::<Client, _>(&query, ask)).await;
        let error = listed.map(|(items, _)| items.len()).unwrap_err();
        assert_eq!(error.to_string(), "its list has no end within 1m");
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
            "/tunnels?target=static%2Fa%3A22&client=2001%3Adb8%3A%3A1&user=a%26b%3Dc%20%C3%BC&node=n&limit=7&sort=idle&cursor=a-_1"
        );
    }

    #[test]
    fn sums_of_made_up_numbers_stay_at_the_largest() {
        let answer = |replica: &str| Answer {
            replica: replica.into(),
            result: Ok((vec![client(usize::MAX)], usize::MAX)),
        };
        let listed = merge(vec![answer("a"), answer("b")], &Query::default());
        assert_eq!((listed.items.len(), listed.total), (2, usize::MAX));
        assert_eq!(crate::operator::replicas::by_client(&listed), [client(usize::MAX)]);
    }
}
