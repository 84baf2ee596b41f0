//! The admin port: serves its pages on a thread of its own, so that it answers under load too.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::response::Response;
use axum::{Extension, Router};
use hyper::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::sleep;

use self::caller::Caller;
pub use self::caller::ScrapeNetworks;
pub use self::probes::{DrainStatus, Handlers};
use self::response::{name_the_methods, text};

use super::{connections, vital};
use crate::net::listener;

pub mod api;
pub(crate) mod caller;
mod probes;
pub(crate) mod response;

/// The paths of a program's admin port.
#[derive(Debug)]
pub struct Routes {
    router: Router,
    /// The answer for any other path.
    paths: &'static str,
}

impl Routes {
    /// Creates the pages of the probes.
    pub fn probes(handlers: Handlers) -> Self {
        Self {
            router: probes::router(handlers),
            paths: "here are /metrics, /livez, /readyz and /drain\n",
        }
    }

    /// Adds the other pages of the program; `paths` is a sentence that names all of them.
    pub(crate) fn and(self, further: Router, paths: &'static str) -> Self {
        Self {
            router: self.router.merge(further),
            paths,
        }
    }

    fn into_router(self) -> Router {
        let paths = self.paths;
        self.router.fallback(async move || text(StatusCode::NOT_FOUND, paths))
    }
}

/// Binds the port and serves it from a new thread until the process ends, at most `connections` at once. Returns the bound
/// address. Needs a runtime.
///
/// One connection more evicts the oldest. Otherwise a peer could keep out the kubelet, and the kubelet would restart
/// the pod.
///
/// # Errors
/// The errors of socket(2), bind(2), listen(2) or of the start of a thread.
pub fn start(address: SocketAddr, routes: Routes, connections: NonZeroU32) -> io::Result<SocketAddr> {
    let listener = listener::bind(&address.into())?.into_std()?;
    let address = listener.local_addr()?;
    let router = routes.into_router();
    let serve = move |stream, peer| converse(stream, Caller::new(peer), router.clone());
    vital::start("admin", move || {
        Ok(connections::accept(
            TcpListener::from_std(listener)?,
            connections,
            serve,
        ))
    })?;
    Ok(address)
}

/// Answers the only request of a connection, and drops a connection that lasts too long.
pub(crate) async fn converse<S>(stream: S, caller: Caller, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answering = http1::Builder::new()
        .timer(TokioTimer::new())
        // A head has some 100 bytes. With hyper's limit of 400 KiB any peer could take 50 MiB through 128 connections.
        .max_buf_size(MAX_HEADER_BYTES)
        .header_read_timeout(HEADER_TIMEOUT)
        // One answer for each connection: a peer that requests hundreds and reads none would hold the thread and its slot.
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(router.clone(), caller.clone(), request)),
        );
    tokio::select! {
        // The errors of a peer that leaves or stalls are its own.
        _ = answering => {}
        () = too_long(caller.clone()) => {}
    }
}

/// Returns the answer to a request. Not a layer: the router adds Allow to a 405 after all layers.
async fn answer<B>(router: Router, caller: Caller, request: Request<B>) -> Result<Response, Infallible>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let answering = TowerToHyperService::new(router.layer(Extension(caller))).call(request);
    let mut response = name_the_methods(answering.await?);
    // Some answers have texts of clients: no browser may take one for a page.
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
    Ok(response)
}

/// Completes when the connection has lasted too long, or the reader of its event stream has stalled.
async fn too_long(caller: Caller) {
    sleep(CONNECTION_TIMEOUT).await;
    while caller.take_renewal() {
        sleep(STALL_TIMEOUT).await;
    }
}

/// Bytes.
const MAX_HEADER_BYTES: usize = 16 << 10;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// For the request and the reading of its one answer, unless that is a stream of events.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// A stream of events has a comment every 15 s. Readers are limited: a stalled one would keep its place forever.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
