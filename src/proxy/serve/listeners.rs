//! The public ports: bound at the start, accepting until the drain closes them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep;
use tracing::{error, info};

use super::runtimes::{Cores, Placement, Places};
use crate::net::listener::{self, Listening};
use crate::proxy::connection::{self, Port, Shared};
use crate::tunnel::drain::Tasks;

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
pub(super) struct Ports {
    /// Each with a listener for each place of its connections.
    bound: Vec<(Vec<TcpListener>, Arc<Port>)>,
    places: Arc<Places>,
}

/// What accepts at one place of a port.
struct Acceptor {
    port: Arc<Port>,
    places: Arc<Places>,
    /// The number of its place.
    here: usize,
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl Ports {
    /// Binds every port.
    ///
    /// # Errors
    /// The first port that cannot be bound.
    pub(super) fn bind(ports: &[Port], cores: &Cores) -> Result<Self, BindError> {
        let places = Arc::clone(cores.places());
        let all = || ports.iter().map(|port| &port.listener);
        let bind = |port: &Port| match listener::bind_each(&port.listener.beside(all()), places.count()) {
            Ok(listeners) => Ok((listeners, Arc::new(port.clone()))),
            Err(source) => Err(BindError {
                address: port.listener.address,
                source,
            }),
        };
        let bound = ports.iter().map(bind).collect::<Result<_, _>>()?;
        Ok(Self { bound, places })
    }

    /// The bound addresses, with the port numbers that the kernel chose.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let first = |(listeners, _): &(Vec<TcpListener>, _)| listeners.first()?.local_addr().ok();
        self.bound.iter().filter_map(first).collect()
    }

    /// Accepts on every port, with one task for each place, until the drain closes the ports.
    pub(super) fn accept(self, shared: &Arc<Shared>, tasks: &Tasks) {
        for address in self.addresses() {
            info!("public port {address}");
        }
        for (listeners, port) in self.bound {
            for (here, (listener, place)) in listeners.into_iter().zip(self.places.iter()).enumerate() {
                let acceptor = Acceptor {
                    port: Arc::clone(&port),
                    places: Arc::clone(&self.places),
                    here,
                    shared: Arc::clone(shared),
                    tasks: tasks.clone(),
                };
                tasks.acceptors.spawn_on(acceptor.accept(listener), &place.handle);
            }
        }
    }
}

impl Acceptor {
    /// Accepts until the drain closes the port. To be run at its place: that is the runtime of the listener.
    async fn accept(self, listener: TcpListener) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                error!(%error, "cannot accept");
                return;
            }
        };
        let is_shared = self.port.listener.reuse_port;
        let listening = Listening { listener, is_shared };
        let serve = |stream, peer| self.serve(stream, peer);
        let paused = || self.shared.metrics.accept_paused.inc();
        listener::accept(listening, self.shared.drain.clone().parting(), serve, paused).await;
        if is_shared {
            // Another process serves the port on, so that no client may be refused: the last ones still have to send
            // their request, and the drain refuses requests as soon as this task has ended.
            sleep(LAST_REQUESTS).await;
        }
    }

    /// Serves a connection here, or hands it over to a place with less to do.
    fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let (port, shared) = (Arc::clone(&self.port), Arc::clone(&self.shared));
        let connections = &self.tasks.connections;
        match self.places.place(self.here) {
            Placement::Here(placed) => {
                let accepted = Box::new(Accepted { stream, peer, port });
                connections.spawn(async move {
                    serve(accepted, &shared).await;
                    drop(placed);
                });
            }
            Placement::There(handle, placed) => {
                // It fails where the descriptor is none: there is nothing left to serve.
                let Ok(stream) = stream.into_std() else { return };
                let accepted = Box::new(Accepted { stream, peer, port });
                let serve = async move {
                    if let Some(accepted) = register(accepted) {
                        serve(accepted, &shared).await;
                    }
                    drop(placed);
                };
                connections.spawn_on(serve, handle);
            }
        }
    }
}

/// A connection that was accepted. Boxed on its way into its task, which has room for it for as long as the tunnel runs.
struct Accepted<S> {
    stream: S,
    peer: SocketAddr,
    port: Arc<Port>,
}

/// Registers a connection that another runtime has accepted with the driver of this one.
#[expect(
    clippy::boxed_local,
    reason = "the caller is a task, which has room for what it passes on"
)]
fn register(accepted: Box<Accepted<std::net::TcpStream>>) -> Option<Box<Accepted<TcpStream>>> {
    let Accepted { stream, peer, port } = *accepted;
    let stream = TcpStream::from_std(stream).ok()?;
    Some(Box::new(Accepted { stream, peer, port }))
}

/// No async function: it would keep the box, empty, for as long.
#[expect(
    clippy::boxed_local,
    reason = "the caller is a task, which has room for what it passes on"
)]
fn serve(accepted: Box<Accepted<TcpStream>>, shared: &Shared) -> impl Future<Output = ()> + Send {
    let Accepted { stream, peer, port } = *accepted;
    connection::serve(stream, peer, port, shared)
}

/// The time that a client needs for its request after the accept.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
