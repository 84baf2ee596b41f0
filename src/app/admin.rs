//! The admin port: serves its pages and the API of operators on a thread of its own, so that it answers under load too.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::time::sleep;

use self::answer::{name_the_methods, text};
use self::caller::Caller;
pub use self::probes::{Handlers, Progress};
use crate::limits::unfinished::{Membership, Standing, Ticket, Unfinished};
use crate::net::listener;
use crate::tunnel::Shared;

mod activity;
mod answer;
mod asked;
mod caller;
mod clients;
mod diagnosis;
mod events;
mod listing;
mod openapi;
mod probes;
mod refusals;
mod rows;
mod targets;
mod tunnels;
mod view;

/// What the port of a program answers.
#[derive(Debug)]
pub struct Routes {
    router: Router,
    /// What is said of a path that is none of them.
    paths: &'static str,
}

impl Routes {
    /// The pages of the probes.
    pub fn of_probes(handlers: Handlers) -> Self {
        Self {
            router: probes::router(handlers),
            paths: "here are /metrics, /livez, /readyz and /drain\n",
        }
    }

    /// The same, and the API of operators.
    pub fn of_proxy(handlers: Handlers, shared: &Arc<Shared>) -> Self {
        let parts = [
            diagnosis::router(),
            targets::router(),
            clients::router(),
            events::router(),
            refusals::router(),
        ];
        let api = parts.into_iter().fold(tunnels::router(), Router::merge);
        let api = api
            .method_not_allowed_fallback(asked::other_method)
            .layer(DefaultBodyLimit::max(asked::LONGEST_BODY))
            .layer(axum::middleware::from_fn(caller::only_from_here))
            .with_state(Arc::clone(shared))
            .merge(activity::router().with_state(Arc::clone(shared)));
        Self {
            router: probes::router(handlers).merge(openapi::router()).merge(api),
            paths: "here are /metrics, /livez, /readyz, /drain, /activity, /tunnels, /targets, /clients, /refusals and \
                    /events: /openapi.json describes them\n",
        }
    }

    fn into_router(self) -> Router {
        let paths = self.paths;
        self.router.fallback(async move || text(StatusCode::NOT_FOUND, paths))
    }
}

/// Binds the port and serves it from a new thread until the process ends. Gives the bound address. Needs a runtime.
///
/// # Errors
/// What socket(2), bind(2), listen(2) or the start of a thread say.
pub fn start(address: SocketAddr, routes: Routes) -> io::Result<SocketAddr> {
    // Bound before there is a runtime for it: one that is dropped inside another panics.
    let listener = listener::bind(&address.into())?.into_std()?;
    let address = listener.local_addr()?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _entered = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let router = routes.into_router();
    let unfinished = Arc::new(Unfinished::new(Some(MOST_CONNECTIONS)));
    let pages = Arc::new(Unfinished::new(Some(MOST_PAGES)));
    let mut number = 0;
    let serve = move |stream, peer: SocketAddr| {
        number += 1;
        let standing = Standing::Welcome;
        let ticket = Ticket { standing, number };
        let (router, unfinished, pages) = (router.clone(), Arc::clone(&unfinished), Arc::clone(&pages));
        tokio::spawn(async move {
            let membership = Membership::join([Some(&unfinished), None], ticket);
            let caller = Caller::new(peer);
            tokio::select! {
                // The errors of a peer that leaves or stalls are its own.
                _ = converse(stream, caller.clone(), router) => {}
                () = too_long(caller.clone()) => {}
                () = one_page_too_many(caller, &pages, ticket) => {}
                () = membership.evicted() => {}
            }
        });
    };
    let accept = async move { listener::accept(listener.into(), pending(), serve, || ()).await };
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(accept))?;
    Ok(address)
}

async fn converse<S>(stream: S, caller: Caller, router: Router) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        // A head has some 100 bytes; the usual 400 KiB of 512 connections would be 200 MiB for any peer.
        .max_buf_size(LARGEST_HEAD)
        .header_read_timeout(LONGEST_HEAD)
        // One answer for each connection: a peer that requests hundreds and reads none would hold the thread and its slot.
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(router.clone(), caller.clone(), request)),
        )
        .await
}

/// The answer to a request. Around the router, which adds the field Allow to a 405 last of all.
async fn answer<B>(router: Router, caller: Caller, request: Request<B>) -> Result<Response, Infallible>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let answering = TowerToHyperService::new(router.layer(Extension(caller))).call(request);
    answering.await.map(name_the_methods)
}

/// Completes when the connection has lasted too long: a stream of events, when its reader has not read for that long.
async fn too_long(caller: Caller) {
    sleep(LONGEST_CONNECTION).await;
    while caller.stays() {
        sleep(LONGEST_STALL).await;
    }
}

/// Completes when the connection has a page that is not read yet, and too many younger ones have one, too.
async fn one_page_too_many(caller: Caller, pages: &Unfinished, ticket: Ticket) {
    caller.page().await;
    let membership = Membership::join([Some(pages), None], ticket);
    membership.evicted().await;
}

/// One more evicts the oldest: were the newest refused, a peer that keeps connections open without a byte would fail the
/// probes of the kubelet, which then restarts the pod with all its tunnels.
const MOST_CONNECTIONS: NonZeroU32 = NonZeroU32::new(512).unwrap();
/// Of metrics, which have 6 KiB for each target and are for every peer; one more evicts the oldest.
const MOST_PAGES: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// Bytes.
const LARGEST_HEAD: usize = 16 << 10;
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// For the request and the reading of its one answer, unless that is a stream of events.
const LONGEST_CONNECTION: Duration = Duration::from_secs(30);
/// A stream of events has a comment every 15 s. The readers are few, and one that has stopped would be one of them for good.
const LONGEST_STALL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
