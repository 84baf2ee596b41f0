//! The public ports: bound at the start, accepting until the drain closes them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;
use tracing::info;

use crate::drain::Tasks;
use crate::net::listener;
use crate::tunnel::{self, Port, Shared};

/// A port that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// The configured address.
    pub address: SocketAddr,
    /// The answer of socket(2), bind(2) or listen(2).
    pub source: io::Error,
}

/// The public ports, bound.
#[derive(Debug)]
pub(super) struct Ports(Vec<(TcpListener, Arc<Port>)>);

impl Ports {
    /// Binds every port.
    ///
    /// # Errors
    /// The first port that cannot be bound.
    pub(super) fn bind(ports: &[Port]) -> Result<Self, BindError> {
        let all = || ports.iter().map(|port| &port.listener);
        let bind = |port: &Port| match listener::bind(&port.listener.beside(all())) {
            Ok(listener) => Ok((listener, Arc::new(port.clone()))),
            Err(source) => Err(BindError {
                address: port.listener.address,
                source,
            }),
        };
        ports.iter().map(bind).collect::<Result<_, _>>().map(Self)
    }

    /// The bound addresses, with the port numbers that the kernel chose.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.0
            .iter()
            .filter_map(|(listener, _)| listener.local_addr().ok())
            .collect()
    }

    /// Accepts on every port, with one task each, until the drain closes the ports.
    pub(super) fn accept(self, shared: &Arc<Shared>, tasks: &Tasks) {
        for address in self.addresses() {
            info!("public port {address}");
        }
        for (listener, port) in self.0 {
            let accepting = accept(listener, port, Arc::clone(shared), tasks.clone());
            tasks.acceptors.spawn(accepting);
        }
    }
}

async fn accept(listener: TcpListener, port: Arc<Port>, shared: Arc<Shared>, tasks: Tasks) {
    let serve = |stream, peer| {
        let (port, shared) = (Arc::clone(&port), Arc::clone(&shared));
        tasks
            .connections
            .spawn(async move { tunnel::serve(stream, peer, port, &shared).await });
    };
    let paused = || shared.metrics.accept_paused.inc();
    listener::accept(listener, shared.drain.clone().parting(), serve, paused).await;
    if port.listener.reuse_port {
        // Another process serves the port on, so that no client may be refused: the last ones still have to send
        // their request, and the drain refuses requests as soon as this task has ended.
        sleep(LAST_REQUESTS).await;
    }
}

/// The time that a client needs for its request after the accept.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
