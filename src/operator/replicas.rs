//! The client of the admin API, whose server is `proxy/admin`: sends requests to all replicas of a proxy, and merges the answers.
//!
//! A replica without an answer is listed with its error, next to the others' answers. Either the admin ports are given,
//! or the API server lists the pods and forwards a port of each. The operator then needs the permission for
//! `pods/portforward`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};

use crate::base::authority::Authority;
use crate::daemon::admin::api::{
    CloseRequest, CloseResponse, Rates, Restriction, RestrictionRequest, Target, TargetDiagnosis, Tunnel,
};
pub use crate::daemon::admin::api::{Query, Sort};
use crate::kubernetes::{PodSelector, Pods, encoded};

mod events;
pub(crate) mod merge;
mod replica;
pub(crate) mod request;
pub(crate) mod results;

pub(crate) use self::events::Events;
pub use self::merge::{FromReplica, Item, MergedList, ReplicaStatus};
pub use self::replica::Replica;
pub use self::request::{AdminRequest, Reason, ReasonError, ReplicaError};
pub use self::results::{ChangeResult, ClosedTunnels, Id, TargetRow, by_client, by_target, json};

/// Where the replicas are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// At these admin ports.
    Addresses(Vec<SocketAddr>),
    /// In the pods of a cluster.
    Cluster(PodSelector),
}

/// The replicas of a proxy.
#[derive(Debug)]
pub struct Replicas {
    source: Source,
    deadline: Duration,
    /// The pods; `None` before the first list and after an error.
    pods: Mutex<Option<Arc<Pods>>>,
}

/// Why the replicas cannot be found.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot find the replicas: {0}")]
pub struct DiscoveryError(pub(crate) String);

/// The tunnels to close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelSelector {
    /// The one with this id.
    Id(String),
    /// Those that a query matches. The proxy refuses one that matches all.
    Query(Query),
}

/// The name of a target: `namespace/service`, or `static/authority`. `authority` alone, as clients request it, is
/// the same as `static/authority`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetName {
    /// The namespace of its Service, or `static`.
    pub namespace: String,
    /// Its Service, or the authority of a static target.
    pub service: String,
}

impl FromStr for TargetName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, service)) if !namespace.is_empty() && !service.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                service: service.to_owned(),
            }),
            None if text.parse::<Authority>().is_ok() => Ok(Self {
                namespace: "static".to_owned(),
                service: text.to_owned(),
            }),
            Some(_) | None => Err("expected `namespace/service`, or `name:port`"),
        }
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)
    }
}

/// Returns the path of a target and a verb of the API.
fn path_of(TargetName { namespace, service }: &TargetName, verb: &str) -> String {
    format!("/targets/{}/{}/{verb}", encoded(namespace), encoded(service))
}

impl Replicas {
    /// Creates it. Each replica has `deadline` to answer a request.
    pub fn new(source: Source, deadline: Duration) -> Self {
        let pods = Mutex::default();
        Self { source, deadline, pods }
    }

    /// Returns the current replicas.
    ///
    /// # Errors
    /// The API server does not list the pods; never for addresses.
    pub async fn find(&self) -> Result<Vec<Replica>, DiscoveryError> {
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
                    .map_err(|error| DiscoveryError(error.reason))?,
            ),
        };
        // After an error the kubeconfig is read again: it may have other credentials by then.
        *known = None;
        let list = Box::pin(pods.list())
            .await
            .map_err(|error| DiscoveryError(error.reason))?;
        *known = Some(Arc::clone(&pods));
        drop(known);
        let replicas = list.into_iter().map(|pod| Replica::pod(&pods, pod, self.deadline));
        Ok(replicas.collect())
    }

    /// Returns the items that a query matches, merged from all replicas.
    ///
    /// # Errors
    /// See [`find`](Self::find). A replica without an answer is in [`MergedList::replicas`].
    pub async fn list<T: Item>(&self, query: &Query) -> Result<MergedList<T>, DiscoveryError> {
        let request = |replica| async move { merge::all(&replica, query).await };
        Ok(merge::merge(self.each(request).await?, query))
    }

    /// Returns the answers to `/tunnels/<id><path>` from the replicas that have the tunnel; `path` may be `/diagnosis`.
    ///
    /// # Errors
    /// As above.
    pub async fn show(&self, id: &str, path: &str) -> Result<ChangeResult<Value>, DiscoveryError> {
        self.query_each(AdminRequest::get(format!("/tunnels/{}{path}", encoded(id))))
            .await
    }

    /// Closes tunnels. A replica that does not know the id adds nothing to the result.
    ///
    /// # Errors
    /// As above.
    pub async fn close(
        &self,
        selector: &TunnelSelector,
        request: &CloseRequest,
    ) -> Result<ClosedTunnels, DiscoveryError> {
        let path = match selector {
            TunnelSelector::Id(id) => format!("/tunnels/{}", encoded(id)),
            TunnelSelector::Query(query) => merge::path_of("/tunnels", query),
        };
        let closed: ChangeResult<CloseResponse> = self
            .query_each(AdminRequest::with_body("DELETE", path, request))
            .await?;
        Ok(closed.into())
    }

    /// Sets the rates of a tunnel until it ends. Replicas without the tunnel add nothing to the result.
    ///
    /// # Errors
    /// As above.
    pub async fn limit(&self, id: &str, rates: &Rates) -> Result<ChangeResult<Tunnel>, DiscoveryError> {
        let path = format!("/tunnels/{}", encoded(id));
        self.query_each(AdminRequest::with_body("PATCH", path, rates)).await
    }

    /// Returns why a name is on the allowlist of each replica or not.
    ///
    /// # Errors
    /// As above.
    pub async fn diagnose_target(&self, target: &TargetName) -> Result<ChangeResult<TargetDiagnosis>, DiscoveryError> {
        self.query_each(AdminRequest::get(path_of(target, "diagnosis"))).await
    }

    /// Stops new tunnels to a target on all replicas, or allows them again. Replicas without the target add nothing to
    /// the result.
    ///
    /// # Errors
    /// As above.
    pub async fn cordon(&self, target: &TargetName, is_cordoned: bool) -> Result<ChangeResult<Target>, DiscoveryError> {
        let verb = if is_cordoned { "cordon" } else { "uncordon" };
        self.query_each(AdminRequest::post(path_of(target, verb))).await
    }

    /// Limits or blocks a user, a client or a target on all replicas.
    ///
    /// # Errors
    /// As above.
    pub async fn restrict(&self, request: &RestrictionRequest) -> Result<ChangeResult<Restriction>, DiscoveryError> {
        self.query_each(AdminRequest::with_body("PUT", "/restrictions", request))
            .await
    }

    /// Ends a limit or a block on all replicas. Those without it add nothing to the result.
    ///
    /// # Errors
    /// As above.
    pub async fn lift(&self, request: &RestrictionRequest) -> Result<ChangeResult<Restriction>, DiscoveryError> {
        self.query_each(AdminRequest::with_body("DELETE", "/restrictions", request))
            .await
    }

    /// Sends one request to each replica, and returns the answers; none for a 404.
    async fn query_each<T: DeserializeOwned>(&self, request: AdminRequest) -> Result<ChangeResult<T>, DiscoveryError> {
        let request = &request;
        let answers = self.each(|replica| async move { replica.find(request).await }).await?;
        let (mut changed, mut replicas) = (Vec::new(), Vec::new());
        for (replica, answer) in answers {
            let error = answer.as_ref().err().map(ToString::to_string);
            let of = |item| FromReplica {
                replica: replica.clone(),
                item,
            };
            changed.extend(answer.ok().flatten().map(of));
            replicas.push(ReplicaStatus { replica, error });
        }
        Ok(ChangeResult { changed, replicas })
    }

    /// Calls `ask` for each replica, [`MAX_AT_ONCE`] at a time. Returns names and answers in the replicas' order.
    async fn each<T, F>(
        &self,
        ask: impl Fn(Replica) -> F,
    ) -> Result<Vec<(String, Result<T, ReplicaError>)>, DiscoveryError>
    where
        F: Future<Output = Result<T, ReplicaError>>,
    {
        let permits = &Semaphore::new(MAX_AT_ONCE);
        let asking = self.find().await?.into_iter().map(|replica| {
            let name = replica.name().to_string();
            let answer = ask(replica);
            async move {
                // Not an error: the semaphore is never closed.
                let _permit = permits.acquire().await;
                (name, answer.await)
            }
        });
        Ok(join_all(asking).await)
    }
}

/// The most concurrent requests to replicas. Each takes a connection; for a port-forward, the API server holds two.
const MAX_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn replicas_that_hang_delay_the_others_only_if_they_are_many() {
        let addresses = (1..=64).map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let replicas = Replicas::new(Source::Addresses(addresses.collect()), Duration::from_secs(5));
        let request = |replica: Replica| async move {
            if replica.name().ends_with('1') {
                sleep(Duration::from_secs(5)).await;
            }
            Ok(())
        };
        let start = Instant::now();
        let answers = replicas.each(request).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        let names: Vec<_> = answers.iter().map(|(name, _)| name.clone()).collect();
        let expected: Vec<_> = (1..=64).map(|port| format!("192.0.2.1:{port}")).collect();
        assert_eq!(names, expected);
    }
}
