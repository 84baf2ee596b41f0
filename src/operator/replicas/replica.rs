//! One replica, and requests to it.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::request::{AdminRequest, ReplicaError, body, body_excerpt, refusal};
use crate::kubernetes::{Pod, Pods, PortForward};
use crate::net::listener::reachable;

/// A process of the proxy.
#[derive(Clone, Debug)]
pub struct Replica {
    name: Arc<str>,
    addr: ReplicaAddr,
    deadline: Duration,
}

#[derive(Clone, Debug)]
enum ReplicaAddr {
    Address(SocketAddr),
    Pod { pods: Arc<Pods>, pod: Arc<Pod> },
}

impl Replica {
    /// Creates the replica at an admin port. An unspecified address (0.0.0.0, [::]) means loopback.
    pub(crate) fn at(address: SocketAddr, deadline: Duration) -> Self {
        Self {
            name: address.to_string().into(),
            addr: ReplicaAddr::Address(address),
            deadline,
        }
    }

    pub(super) fn pod(pods: &Arc<Pods>, pod: Pod, deadline: Duration) -> Self {
        Self {
            name: pod.name.as_str().into(),
            addr: ReplicaAddr::Pod {
                pods: Arc::clone(pods),
                pod: Arc::new(pod),
            },
            deadline,
        }
    }

    /// Returns the name of the pod, or the address that was given.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Sends a request, and returns the JSON of the answer.
    ///
    /// # Errors
    /// See [`ReplicaError`].
    pub async fn request<T: DeserializeOwned>(&self, request: &AdminRequest) -> Result<T, ReplicaError> {
        Ok(self.ask_sized(request).await?.0)
    }

    /// Like `request`, but `None` for a 404.
    ///
    /// # Errors
    /// As above.
    pub(crate) async fn find<T: DeserializeOwned>(&self, request: &AdminRequest) -> Result<Option<T>, ReplicaError> {
        match self.request(request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(ReplicaError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Like `request`, with the answer's length in bytes.
    pub(super) async fn ask_sized<T: DeserializeOwned>(
        &self,
        request: &AdminRequest,
    ) -> Result<(T, usize), ReplicaError> {
        self.in_time(Box::pin(async {
            let (response, _link) = self.begin(request).await?;
            let status = response.status();
            let body = body(response.into_body(), request.largest_answer).await?;
            if !status.is_success() {
                return Err(refusal(status.as_u16(), &body));
            }
            let answer = serde_json::from_slice(&body).map_err(|error| ReplicaError::Unexpected(error.to_string()))?;
            Ok((answer, body.len()))
        }))
        .await
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Runs `work` within the replica's deadline.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ReplicaError>>,
    ) -> Result<T, ReplicaError> {
        let late = |_| Err(ReplicaError::Timeout(self.deadline));
        timeout(self.deadline, work).await.unwrap_or_else(late)
    }

    /// Sends a request, and returns the head of the answer. Its body can be read while the second value lives.
    pub(super) async fn begin(&self, request: &AdminRequest) -> Result<(Response<Incoming>, Link), ReplicaError> {
        let unreachable = |reason: &str| ReplicaError::Unreachable(body_excerpt(reason));
        let (pods, pod) = match &self.addr {
            ReplicaAddr::Pod { pods, pod } => (pods, pod),
            ReplicaAddr::Address(address) => {
                let stream = connect(*address).await.map_err(|error| {
                    let is_closed = error.kind() == io::ErrorKind::ConnectionRefused;
                    let error = error.to_string();
                    if is_closed {
                        ReplicaError::Closed(error)
                    } else {
                        unreachable(&error)
                    }
                })?;
                let (response, running) = request.send(stream, &reachable(*address).to_string()).await?;
                return Ok((response, (running, None)));
            }
        };
        if let Some(phase) = &pod.waits {
            return Err(unreachable(&format!("the pod is {phase}")));
        }
        let forward = pods.forward(&pod.name, pod.port).await;
        let mut forward = forward.map_err(|error| unreachable(&error.reason))?;
        let stream = forward.stream();
        let stream = stream.ok_or_else(|| unreachable("the connection is in use"))?;
        // The node connects to the port inside the pod, on its loopback.
        tokio::select! {
            begun = request.send(stream, "localhost") => {
                let (response, running) = begun?;
                Ok((response, (running, Some(forward))))
            }
            told = forward.broken() => Err(unreachable(&told)),
        }
    }
}

/// Connects to an admin port: for `[::]` at the loopback address of IPv6, if there is no answer at that of IPv4.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let connected = TcpStream::connect(reachable(address)).await;
    if connected.is_ok() || address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return connected;
    }
    match TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())).await {
        // There may be no IPv6.
        Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => connected,
        second => second,
    }
}

/// The connection of an answer.
pub(super) type Link = (AbortOnDropHandle<hyper::Result<()>>, Option<PortForward>);
