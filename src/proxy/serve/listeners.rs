//! The public ports: bound at the start, accepting until the drain closes them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tracing::info;

use crate::net::listener::{self, BoundListener};
use crate::proxy::connection::{self, Port, Shared};
use crate::tunnel::drain::Tasks;

/// A port that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// The configured address.
    pub address: SocketAddr,
    /// The error of socket(2), bind(2) or listen(2).
    pub source: io::Error,
}

/// The public ports, bound.
#[derive(Debug)]
pub(super) struct PublicPorts(Vec<(TcpListener, Arc<Port>)>);

impl PublicPorts {
    /// Binds every port.
    ///
    /// # Errors
    /// The first port that cannot be bound.
    pub(super) fn bind(ports: &[Port]) -> Result<Self, BindError> {
        let all = || ports.iter().map(|port| &port.listener);
        let bind = |port: &Port| match listener::bind(&port.listener.resolve_overlap(all())) {
            Ok(listener) => Ok((listener, Arc::new(port.clone()))),
            Err(source) => Err(BindError {
                address: port.listener.address,
                source,
            }),
        };
        Ok(Self(ports.iter().map(bind).collect::<Result<_, _>>()?))
    }

    /// Returns the bound addresses, with the port numbers that the kernel chose.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let address = |(listener, _): &(TcpListener, _)| listener.local_addr().ok();
        self.0.iter().filter_map(address).collect()
    }

    /// Accepts on every port, with a task for each, until the drain closes the ports.
    pub(super) fn accept(self, shared: &Arc<Shared>, tasks: &Tasks) {
        for address in self.addresses() {
            info!("public port {address}");
        }
        for (listener, port) in self.0 {
            let accept = accept(listener, port, Arc::clone(shared), tasks.clone());
            tasks.acceptors.spawn(accept);
        }
    }
}

/// Accepts until the drain closes the port.
async fn accept(listener: TcpListener, port: Arc<Port>, shared: Arc<Shared>, tasks: Tasks) {
    let is_shared = port.listener.reuse_port;
    let listening = BoundListener { listener, is_shared };
    let spawn = |stream, peer| {
        let (port, shared) = (Arc::clone(&port), Arc::clone(&shared));
        let accepted = Box::new(AcceptedStream { stream, peer, port });
        let serve = async move { serve(accepted, &shared).await };
        tasks.connections.spawn(serve);
    };
    let paused = || shared.metrics.accept_paused.inc();
    listener::accept(listening, shared.drain.clone().listeners_closing(), spawn, paused).await;
    if is_shared {
        // No client may be refused, as another process goes on serving the port. The drain refuses requests once this
        // task has ended, so it waits for the requests of the last clients.
        sleep(LAST_REQUESTS).await;
    }
}

/// A connection that was accepted. Passed to its task in a box, because the task keeps the room of its arguments for as
/// long as the tunnel runs.
struct AcceptedStream {
    stream: TcpStream,
    peer: SocketAddr,
    port: Arc<Port>,
}

/// Serves the stream. Not an async function, which would keep the emptied box as long.
#[expect(
    clippy::boxed_local,
    reason = "the caller is a task, which keeps the room of what it passes on"
)]
fn serve(accepted: Box<AcceptedStream>, shared: &Shared) -> impl Future<Output = ()> + Send {
    let AcceptedStream { stream, peer, port } = *accepted;
    connection::serve(stream, peer, port, shared)
}

/// The time that a client needs for its request after the accept.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
