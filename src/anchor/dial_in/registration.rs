//! One connection to a replica of the proxy, which opens a stream on it for each tunnel of a client.

use std::future::pending;
use std::sync::Arc;

use http::{Method, Response, StatusCode};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::coverage::{Coverage, CoveredReplica};
use super::transport::ProxyTransport;
use crate::anchor::handshake;
use crate::anchor::link::Link;
use crate::anchor::registry::Connection;
use crate::anchor::shared::{MAX_HANDSHAKES, Shared};
use crate::base::authority::Authority;
use crate::net::transport::Transport as _;
use crate::protocol::registration::{DRAINING_PATH, REPLICAS_FIELD, REPLICAS_PATH};
use crate::tunnel::drain::DrainController;
use crate::tunnel::http2::{self, GoAway, Request, WaitFor};
use crate::tunnel::outcome::RefusalReason;
use crate::uplink::attempt::OpenConnection;

/// Serves the streams of a connection to its end.
pub(super) async fn serve(opened: OpenConnection, replica: CoveredReplica, coverage: &Coverage) {
    let shared = coverage.shared();
    let (transport, heard) = ProxyTransport::new(opened.stream);
    // Sessions and plain connections may each reach `max_sessions`. `MAX_HANDSHAKES` streams remain for refusals and
    // POSTs.
    let streams = shared.options.max_sessions.get().saturating_mul(2);
    let streams = streams.saturating_add(MAX_HANDSHAKES);
    let connection = http2::Connection::new(transport, opened.agreement.early).trusting(streams);
    let ((_controller, drain), leaving) = (DrainController::new(), Notify::new());
    let go_away = GoAway {
        drain: &drain,
        number: 0,
        requested: &leaving,
    };
    let overdue = |_: WaitFor| pending::<RefusalReason>();
    let answer = |request| answer(request, &replica, coverage, shared);
    let served = http2::serve(connection, overdue, go_away, answer);
    tokio::pin!(served);
    tokio::select! {
        _ = &mut served => return,
        () = heard.silence() => return,
        () = shared.stopping.cancelled() => {}
    }
    leaving.notify_one();
    // Plain clients end now, sessions within `SHUTDOWN_TIMEOUT`. `Anchor::run` bounds the wait.
    served.await.ok();
}

/// Answers one request of the proxy: a tunnel, a list of replicas, or the start of its drain.
async fn answer(request: Request, replica: &CoveredReplica, coverage: &Coverage, shared: &Arc<Shared>) {
    let uri = &request.head.uri;
    let is_own = uri.authority().is_some_and(|authority| {
        let parsed = authority.as_str().parse();
        parsed.is_ok_and(|name: Authority| name == *coverage.serves())
    });
    let status = match (&request.head.method, uri.path()) {
        _ if !is_own => {
            shared.metrics.dial_in.misdirected.inc();
            StatusCode::MISDIRECTED_REQUEST
        }
        (&Method::CONNECT, _) => {
            if let Ok(stream) = request.answer(Response::new(())) {
                let connection = Connection {
                    stream: Link::Stream(Box::new(stream)),
                    peer: replica.peer(),
                    accepted: Instant::now(),
                };
                handshake::serve(connection, Arc::clone(shared)).await;
            }
            return;
        }
        (&Method::POST, REPLICAS_PATH) => {
            let list = request.head.headers.get(REPLICAS_FIELD);
            let list = list.and_then(|list| list.to_str().ok()?.parse().ok());
            match list {
                Some(list) => {
                    replica.set_list(list);
                    StatusCode::OK
                }
                None => StatusCode::BAD_REQUEST,
            }
        }
        (&Method::POST, DRAINING_PATH) => {
            replica.set_draining();
            StatusCode::OK
        }
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Ok(stream) = request.answer(response) {
        // The drop would reset a stream whose answer is not sent yet.
        stream.finished_with(Vec::new()).shutdown_gracefully().await;
    }
}
