//! One replica, and the way to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::request::{Ask, Bidirectional, ReplicaError, refusal, shown};
use crate::kubernetes::{Forward, Pod, Pods};
use crate::net::listener::reachable;

/// A process of the proxy.
#[derive(Clone, Debug)]
pub struct Replica {
    name: Arc<str>,
    way: Way,
    deadline: Duration,
}

#[derive(Clone, Debug)]
enum Way {
    Address(SocketAddr),
    Pod { pods: Arc<Pods>, pod: Arc<Pod> },
}

impl Replica {
    /// The replica at that admin port. An unspecified address to listen on (0.0.0.0) is asked on loopback.
    pub(crate) fn at(address: SocketAddr, deadline: Duration) -> Self {
        Self {
            name: address.to_string().into(),
            way: Way::Address(reachable(address)),
            deadline,
        }
    }

    pub(super) fn pod(pods: &Arc<Pods>, pod: Pod, deadline: Duration) -> Self {
        Self {
            name: pod.name.as_str().into(),
            way: Way::Pod {
                pods: Arc::clone(pods),
                pod: Arc::new(pod),
            },
            deadline,
        }
    }

    /// The name of the pod, or the address that was given.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Asks, and reads the JSON of the answer.
    ///
    /// # Errors
    /// See [`ReplicaError`].
    pub async fn ask<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, ReplicaError> {
        Ok(self.ask_sized(ask).await?.0)
    }

    /// The same, with the bytes of the answer.
    pub(super) async fn ask_sized<T: DeserializeOwned>(&self, ask: &Ask) -> Result<(T, usize), ReplicaError> {
        let (status, body) = self.ask_raw(ask).await?;
        if status != 200 {
            return Err(refusal(status, &body));
        }
        let answer = serde_json::from_slice(&body).map_err(|error| ReplicaError::Strange(error.to_string()))?;
        Ok((answer, body.len()))
    }

    /// Asks, and gives the status and the body as they are: for a server that passes them on.
    ///
    /// # Errors
    /// No whole answer of HTTP came in time.
    pub async fn ask_raw(&self, ask: &Ask) -> Result<(u16, Bytes), ReplicaError> {
        let asking = async {
            let mut connection = self.connect().await?;
            let (stream, host) = connection.parts()?;
            tokio::select! {
                answer = ask.send(stream, &host) => answer,
                told = connection.broken() => Err(ReplicaError::Unreachable(shown(&told))),
            }
        };
        let late = |_| Err(ReplicaError::Late(self.deadline));
        timeout(self.deadline, Box::pin(asking)).await.unwrap_or_else(late)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) async fn connect(&self) -> Result<Connection, ReplicaError> {
        match &self.way {
            Way::Address(address) => match TcpStream::connect(address).await {
                Ok(stream) => Ok(Connection::Address(Some(stream), *address)),
                Err(error) => Err(ReplicaError::Unreachable(error.to_string())),
            },
            Way::Pod { pod, .. } if pod.waits.is_some() => {
                let phase = pod.waits.as_deref().unwrap_or_default();
                Err(ReplicaError::Unreachable(format!("the pod is {}", shown(phase))))
            }
            Way::Pod { pods, pod } => match pods.forward(&pod.name, pod.port).await {
                Ok(forward) => Ok(Connection::Pod(forward)),
                Err(error) => Err(ReplicaError::Unreachable(shown(&error.reason))),
            },
        }
    }
}

/// The connection of one request.
pub(super) enum Connection {
    Address(Option<TcpStream>, SocketAddr),
    Pod(Forward),
}

impl Connection {
    /// Its bytes, and the field Host; once.
    pub(super) fn parts(&mut self) -> Result<(Bidirectional, String), ReplicaError> {
        let taken = || ReplicaError::Unreachable("the connection is in use".to_owned());
        match self {
            Self::Address(stream, address) => {
                let stream = stream.take().ok_or_else(taken)?;
                Ok((Box::new(stream), address.to_string()))
            }
            // The node connects to the port from inside the pod: the proxy is asked on its loopback.
            Self::Pod(forward) => {
                let stream = forward.stream().ok_or_else(taken)?;
                Ok((Box::new(stream), "localhost".to_owned()))
            }
        }
    }

    /// Completes when the other end says that the connection is none.
    pub(super) async fn broken(&mut self) -> String {
        match self {
            Self::Address(..) => std::future::pending().await,
            Self::Pod(forward) => forward.broken().await,
        }
    }
}
