//! Serves the page's port. Every program of this computer reaches it, so its connections are bounded in number and time.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::daemon::connections;

/// Serves until it is dropped.
pub(super) async fn run(listener: TcpListener, router: Router) {
    let serve = move |stream, _, _| {
        let conversing = timeout(LONGEST_CONNECTION, converse(stream, router.clone()));
        // The errors of a peer that leaves or stalls are its own.
        async { conversing.await.map_or((), |_| ()) }
    };
    connections::accept(listener, MOST_CONNECTIONS, serve).await;
}

async fn converse(stream: TcpStream, router: Router) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_HEAD)
        // A page asks once a second, and a connection on loopback costs nothing.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

/// One more evicts the oldest.
const MOST_CONNECTIONS: NonZeroU32 = NonZeroU32::new(128).unwrap();
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// For the request and its answer, for which replicas may be asked.
const LONGEST_CONNECTION: Duration = Duration::from_secs(60);
