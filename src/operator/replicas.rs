//! The client of the admin API, whose server is `proxy/admin`: all replicas of a proxy asked at once, and their answers as one.
//!
//! A replica that does not answer is named with its error, and hides none of the others. Either the admin ports are given,
//! or the pods are looked up, and a port of each is forwarded by the API server: the operator's own right to
//! `pods/portforward` is the only key, and the proxies listen on nothing more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use crate::daemon::admin::api::{Closed, Closing, Rates, Target, Tunnel};
pub use crate::daemon::admin::api::{Query, Sort};
use crate::kubernetes::{PodSearch, Pods, encoded};

mod answer;
mod events;
pub(crate) mod listing;
mod reason;
mod replica;
pub(crate) mod reports;
pub(crate) mod request;

pub use self::answer::{Answer, TargetName};
pub(crate) use self::events::Events;
pub use self::listing::{Item, Listed, Of, State};
pub use self::reason::{Reason, ReasonError};
pub use self::replica::Replica;
pub use self::reports::{Changed, Ended, Id, TargetRow, by_client, by_target, changed_or_shown, closed, json};
pub use self::request::{Ask, ReplicaError};

/// Where the replicas are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// At these admin ports.
    Addresses(Vec<SocketAddr>),
    /// In the pods of a cluster.
    Cluster(PodSearch),
}

/// The replicas of a proxy.
#[derive(Debug)]
pub struct Replicas {
    source: Source,
    deadline: Duration,
    /// The way to the API server, once there is one.
    pods: Mutex<Option<Arc<Pods>>>,
}

/// Why it is not known which replicas there are.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot find the replicas: {0}")]
pub struct FindError(String);

/// Which tunnels are to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The one with this id.
    Id(String),
    /// Those that a query is for. The proxy refuses one for all.
    Query(Query),
}

impl Replicas {
    /// Replicas that have that long to answer a request.
    pub fn new(source: Source, deadline: Duration) -> Self {
        let pods = Mutex::default();
        Self { source, deadline, pods }
    }

    /// The replicas that there are now.
    ///
    /// # Errors
    /// The API server does not list the pods. Addresses are no question.
    pub async fn find(&self) -> Result<Vec<Replica>, FindError> {
        let search = match &self.source {
            Source::Addresses(addresses) => {
                let replicas = addresses.iter().map(|address| Replica::at(*address, self.deadline));
                return Ok(replicas.collect());
            }
            Source::Cluster(search) => search,
        };
        let mut known = self.pods.lock().await;
        let pods = match &*known {
            Some(pods) => Arc::clone(pods),
            None => Arc::new(
                Box::pin(Pods::connect(search))
                    .await
                    .map_err(|error| FindError(error.reason))?,
            ),
        };
        // After an error the kubeconfig is read again: another login may be in it.
        *known = None;
        let listed = Box::pin(pods.list()).await.map_err(|error| FindError(error.reason))?;
        *known = Some(Arc::clone(&pods));
        drop(known);
        let replicas = listed.into_iter().map(|pod| Replica::pod(&pods, pod, self.deadline));
        Ok(replicas.collect())
    }

    /// All of the items that a query is for, merged.
    ///
    /// # Errors
    /// See [`find`](Self::find). A replica without an answer is in [`Listed::replicas`].
    pub async fn list<T: Item>(&self, query: &Query) -> Result<Listed<T>, FindError> {
        let query = Arc::new(query.clone());
        let ask = |replica| {
            let query = Arc::clone(&query);
            async move { listing::all(&replica, &query).await }
        };
        let answers = self.each(ask).await?;
        Ok(listing::merge(answers, &query))
    }

    /// What each replica shows of the tunnel with that id, at this path below it, such as `/diagnosis`; nothing where the
    /// tunnel is not open.
    ///
    /// # Errors
    /// As above.
    pub async fn show(&self, id: &str, path: &str) -> Result<Vec<Answer<Option<Value>>>, FindError> {
        self.ask_each(Ask::get(format!("/tunnels/{}{path}", encoded(id)))).await
    }

    /// Ends tunnels. A replica without the one that is named answers with nothing.
    ///
    /// # Errors
    /// As above.
    pub async fn close(&self, which: &Selection, closing: &Closing) -> Result<Vec<Answer<Option<Closed>>>, FindError> {
        let path = match which {
            Selection::Id(id) => format!("/tunnels/{}", encoded(id)),
            Selection::Query(query) => listing::path_of("/tunnels", query),
        };
        self.ask_each(Ask::with_body("DELETE", path, closing)).await
    }

    /// Sets the rates of a tunnel until it ends. A replica without it answers with nothing.
    ///
    /// # Errors
    /// As above.
    pub async fn limit(&self, id: &str, rates: &Rates) -> Result<Vec<Answer<Option<Tunnel>>>, FindError> {
        let path = format!("/tunnels/{}", encoded(id));
        self.ask_each(Ask::with_body("PATCH", path, rates)).await
    }

    /// Lets no new tunnel to a target begin, or lets them again, on all replicas. A replica that does not have the target
    /// answers with nothing.
    ///
    /// # Errors
    /// As above.
    pub async fn cordon(
        &self,
        target: &TargetName,
        is_cordoned: bool,
    ) -> Result<Vec<Answer<Option<Target>>>, FindError> {
        let TargetName { namespace, service } = target;
        let verb = if is_cordoned { "cordon" } else { "uncordon" };
        let path = format!("/targets/{}/{}/{verb}", encoded(namespace), encoded(service));
        self.ask_each(Ask::post(path)).await
    }

    /// What each replica answers to one request; nothing for a 404.
    async fn ask_each<T>(&self, ask: Ask) -> Result<Vec<Answer<Option<T>>>, FindError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let ask = Arc::new(ask);
        let ask = |replica: Replica| {
            let ask = Arc::clone(&ask);
            async move {
                match replica.ask(&ask).await {
                    Ok(answer) => Ok(Some(answer)),
                    Err(ReplicaError::Refused { status: 404, .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        self.each(ask).await
    }

    /// Does something with each replica, with some at once, and gives the results in the order of the replicas.
    async fn each<T, F>(&self, act: impl Fn(Replica) -> F + Send) -> Result<Vec<Answer<T>>, FindError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ReplicaError>> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(MOST_AT_ONCE));
        let replicas = self.find().await?;
        let mut answers = JoinSet::new();
        for (number, replica) in replicas.iter().enumerate() {
            let (permits, acting) = (Arc::clone(&permits), act(replica.clone()));
            let name = Arc::clone(replica.name());
            answers.spawn(async move {
                // Never closed.
                let _permit = permits.acquire_owned().await;
                let result = acting.await;
                (number, Answer { replica: name, result })
            });
        }
        let mut answers = answers.join_all().await;
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

/// Replicas that are asked at once. Each takes a connection, and a port-forward two of the API server.
const MOST_AT_ONCE: usize = 16;
