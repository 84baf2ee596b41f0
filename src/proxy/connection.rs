//! The life of one connection, from its accept to its lines in the access log. Read this first: it is the product.
//!
//! Accept, PROXY header, negotiate; then for each request: head, user, authorize, slots, dial, answer, identification,
//! relay.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::authorize::{Reservation, reserve};
use self::negotiate::{NegotiatedProtocol, negotiate};
use self::pending::PendingRequest;
use self::record::RequestRecord;
use self::registration::register;
pub use self::shared::{Port, Shared, SshMode, Timeouts};
use self::tunnel::Tunnel;
use crate::base::boxed::boxed;
use crate::policy::access::Mode;
use crate::policy::allowlist::{Endpoints, Target, WakeResult};
use crate::protocol::host_key::{HostKeys, KeySource, PublishedKeys};
use crate::proxy::anchors::{AnchorStream, DialTimeouts};
use crate::proxy::exchange::Exchange;
use crate::proxy::http::{ConnectRequest, CredentialPolicy, HostKeysField, Purpose, RequestHead};
use crate::tunnel::dial::{self, DialError};
use crate::tunnel::http2;
use crate::tunnel::limits::queue::QueueTimeouts;
use crate::tunnel::outcome::{Refusal, RefusalReason};
use crate::tunnel::proxy_header;
use crate::tunnel::relay::Transports;
use crate::tunnel::stream::Stream;

mod authorize;
mod in_band;
mod jump_host;
mod listing;
mod negotiate;
mod pending;
mod record;
mod registration;
mod shared;
mod ssh_only;
mod tunnel;

/// Serves one connection of a public port until it ends.
pub fn serve(stream: TcpStream, peer: SocketAddr, port: Arc<Port>, shared: &Shared) -> impl Future<Output = ()> + Send {
    let opening = boxed(open(stream, peer, port, shared));
    async move {
        // Matched by reference: else the future would have room for the tunnel twice.
        if let Some(opened) = &mut opening.await {
            opened.run().await;
        }
    }
}

/// One tunnel that is open, or a connection that carries many.
enum OpenedTunnels<'a> {
    /// A tunnel whose client has its 200.
    One(Tunnel<'a>),
    /// The future of a connection with all its tunnels: of HTTP/2, of SSH, or of an anchor.
    Connection(Pin<Box<dyn Future<Output = ()> + Send + 'a>>),
}

impl OpenedTunnels<'_> {
    /// Serves them until their end.
    async fn run(&mut self) {
        match self {
            Self::One(tunnel) => tunnel.run().await,
            Self::Connection(connection) => connection.await,
        }
    }
}

/// Reads the PROXY header, negotiates the protocol and, over HTTP/1, serves the request up to its 200 or 101. `None` if
/// the connection was refused, or its client has left.
async fn open(mut stream: TcpStream, peer: SocketAddr, port: Arc<Port>, shared: &Shared) -> Option<OpenedTunnels<'_>> {
    let mut pending = PendingRequest::new(peer, stream.local_addr().ok(), &port, shared);
    // First of all, even before TLS: the header names the client of the TCP connection.
    let header = proxy_header::read(&mut stream, peer.ip(), &port.proxy_header);
    match pending.step(header).await {
        Ok(header) => pending.admit_client(header.unwrap_or(pending.addresses)),
        Err(refusal) => {
            pending
                .refuse(Exchange::http1(stream, Vec::new()), &refusal.into())
                .await;
            return None;
        }
    }
    let (negotiated, pending) = boxed(negotiate(stream, &port, pending)).await?;
    match negotiated {
        NegotiatedProtocol::Http1(stream, read) => boxed(serve_request(Exchange::http1(stream, read), pending)).await,
        NegotiatedProtocol::Http2(stream, read) => {
            let offers_websockets = pending.websocket_options.is_some();
            let connection = http2::Connection::new(stream, read).offering_websockets(offers_websockets);
            let served = Box::pin(serve_http2(connection, pending));
            Some(OpenedTunnels::Connection(served))
        }
        NegotiatedProtocol::Ssh(stream, read) => {
            let served = Box::pin(serve_ssh(stream, read, port, pending));
            Some(OpenedTunnels::Connection(served))
        }
    }
}

/// Serves the tunnels of an SSH connection until it ends.
async fn serve_ssh(stream: TcpStream, read: Vec<u8>, port: Arc<Port>, pending: PendingRequest<'_>) {
    let serve_channel = |exchange, pending| async move {
        let mut opened = boxed(serve_request(exchange, pending)).await?;
        opened.run().await;
        match opened {
            OpenedTunnels::One(tunnel) => tunnel.record.closing_sentence(),
            OpenedTunnels::Connection(_) => None,
        }
    };
    boxed(jump_host::serve(stream, read, &port, pending, serve_channel)).await;
}

/// Serves every request on an HTTP/2 connection until it ends.
async fn serve_http2(connection: http2::Connection<Stream>, mut pending: PendingRequest<'_>) {
    let drain = &pending.shared.drain;
    pending.record.info.http = "2";
    let certificate_invalidated = Notify::new();
    let overdue = |awaited| {
        let pending = &pending;
        async move {
            match awaited {
                http2::WaitFor::FirstRequest => pending.expired().await,
                http2::WaitFor::FurtherRequest => pending.idle_expired().await,
                http2::WaitFor::Close => pending.evicted().await,
            }
        }
    };
    let serve_stream = |request| {
        let stream_pending = pending.new_stream();
        if stream_pending.admission == Err(RefusalReason::CertificateInvalidated) {
            // The connection gets a GOAWAY.
            certificate_invalidated.notify_one();
        }
        async move {
            if let Some(opened) = &mut boxed(serve_request(Exchange::from(request), stream_pending)).await {
                opened.run().await;
            }
        }
    };
    let go_away = http2::GoAway {
        drain,
        number: pending.record.info.id.number,
        requested: &certificate_invalidated,
    };
    match boxed(http2::serve(connection, overdue, go_away, serve_stream)).await {
        Ok(()) => pending.record.discard(),
        Err(refusal) => pending.record_unanswered(refusal),
    }
}

/// Reads one request and answers it. `None` if it was refused, or its client has left.
async fn serve_request<'a>(mut exchange: Exchange, mut pending: PendingRequest<'a>) -> Option<OpenedTunnels<'a>> {
    pending.record.info.http = exchange.version();
    let (drain, number) = (&pending.shared.drain, pending.record.info.id.number);
    let credentials = match pending.shared.access.mode() {
        Mode::Open => CredentialPolicy::Ignored,
        Mode::Report | Mode::Enforce => CredentialPolicy::Read,
    };
    let options = pending.websocket_options.clone();
    let head = exchange.read_head(credentials, options.as_deref());
    let request = match pending.step(head).await {
        Ok(RequestHead::Listing(request)) => {
            boxed(listing::answer(exchange, request, pending)).await;
            return None;
        }
        Ok(RequestHead::Connect(request)) => Ok(request),
        Err(refusal) => Err(refusal),
    };
    if let Ok(request) = &request
        && let (Some(forwarding), Some(options)) = (&request.forwarding, &options)
    {
        pending.note_forwarding(forwarding, options);
    }
    let wants_keys = request
        .as_ref()
        .is_ok_and(|request| request.host_keys == HostKeysField::Wanted);
    let connected = match request {
        Ok(request) if request.purpose == Purpose::Registration => {
            let registered = boxed(register(exchange, request, pending));
            return registered.await.map(OpenedTunnels::Connection);
        }
        Ok(request) => tokio::select! {
            biased;
            connected = connect_target(request, &mut pending) => connected,
            () = drain.deadline(number) => Err(RefusalReason::Draining.into()),
            refusal = exchange.client_gone() => Err(refusal.into()),
        },
        Err(refusal) => Err(refusal.into()),
    };
    let (reservation, upstream) = match connected {
        Ok(connected) => connected,
        Err(refusal) => {
            pending.refuse(exchange, &refusal).await;
            return None;
        }
    };
    // The tunnel counts as open before its client has the 200: from then on a drain closes it.
    let open = drain.opened();
    let keys = wants_keys.then(|| host_keys(&reservation, pending.shared)).flatten();
    let (downstream, early) = match exchange.accept(keys.as_ref()).await {
        Ok(accepted) => accepted,
        Err(refusal) => {
            pending.record_unanswered(refusal);
            return None;
        }
    };
    Some(OpenedTunnels::One(Tunnel {
        transports: Transports::new(downstream, upstream, early),
        record: pending.record.established(&reservation.target, open),
        reservation,
    }))
}

/// Returns the host keys for a client that asks for them: those of the target's file or annotation, else those of its
/// anchors that dial in. With an empty set the client takes those that a listening anchor sends. `None` if the keys of
/// anchors are not published.
fn host_keys(reservation: &Reservation, shared: &Shared) -> Option<PublishedKeys> {
    reservation.target.host_keys().or_else(|| {
        let own = reservation.anchor.as_ref().map(|stream| &stream.anchor.host_keys);
        // The next login may reach another anchor of the target.
        let anchors = own
            .map(|_| shared.anchors.of(reservation.target.id()))
            .unwrap_or_default();
        let mut keys = own.cloned().unwrap_or_default();
        for key in anchors.iter().flat_map(|anchor| anchor.host_keys.iter()) {
            // As many as fit.
            let with_key = HostKeys::collect(keys.iter().chain([key]).cloned().map(Ok));
            keys = with_key.unwrap_or(keys);
        }
        let source = KeySource::Anchor;
        shared.anchors.is_publishing().then_some(PublishedKeys { source, keys })
    })
}

/// Authorizes the request, takes its slots, and dials its target.
async fn connect_target(
    request: ConnectRequest,
    pending: &mut PendingRequest<'_>,
) -> Result<(Box<Reservation>, Stream), Refusal> {
    let mut reservation = reserve(request, pending).await?;
    let dial = dial_target(&reservation.target, pending);
    let (upstream, anchor) = match &reservation.grant {
        // The permission may be revoked during the dial.
        Some(grant) => grant.while_valid(boxed(dial)).await?,
        None => dial.await?,
    };
    reservation.anchor = anchor;
    Ok((reservation, upstream))
}

/// Asks an anchor of the target for a stream if the target dials in. Otherwise waits for an endpoint, dials it, and
/// writes the PROXY header if the target wants one.
async fn dial_target(
    target: &Target,
    pending: &mut PendingRequest<'_>,
) -> Result<(Stream, Option<AnchorStream>), Refusal> {
    let PendingRequest {
        shared,
        record,
        addresses,
        may_wake,
        ..
    } = pending;
    let timeouts = QueueTimeouts {
        total: shared.timeouts.dial,
        stalled: shared.timeouts.connect,
    };
    if target.dials_in().is_some() {
        let permit = target.begin_dial(timeouts).await?;
        let (upstream, anchor) = boxed(ask_anchor(target, shared, record)).await?;
        permit.succeeded();
        return Ok((upstream, Some(anchor)));
    }
    if *may_wake && shared.allowlist.wake(target, addresses.source.ip()) == WakeResult::RateLimited {
        shared.metrics.cluster.wakes.count(["limited"]);
    }
    let permit = target.begin_dial(timeouts).await?;
    let endpoints = shared.allowlist.wait_for_endpoints(target).await?;
    let start = Instant::now();
    let options = shared.timeouts.dial_options();
    let dial = dial::dial(&endpoints.addresses, target.next_address(), &options);
    let dialled = target.while_listed(dial).await;
    record.note_dial(start.elapsed(), &endpoints, dialled.as_ref());
    target.note_dial(dialled.as_ref().err().map(|error| error.reason));
    let mut upstream = dialled?;
    permit.succeeded();
    if let Some(version) = endpoints.proxy_header {
        let written = proxy_header::write(&mut upstream.stream, version, addresses).await;
        written.map_err(|_| RefusalReason::TargetRefused)?;
    }
    Ok((upstream.stream.into(), None))
}

/// Asks an anchor of the target for a stream.
async fn ask_anchor(
    target: &Target,
    shared: &Shared,
    record: &mut RequestRecord<'_>,
) -> Result<(Stream, AnchorStream), RefusalReason> {
    let start = Instant::now();
    let timeouts = DialTimeouts {
        wait: shared.allowlist.wait_for_ready(),
        attempt: shared.timeouts.connect,
        dial: shared.timeouts.dial,
    };
    let dialled = target.while_listed(shared.anchors.dial(target, timeouts)).await;
    let (result, stream) = match dialled {
        Ok((upstream, stream)) => (Ok(upstream), Ok(stream)),
        Err(reason) => (Err(DialError::from(reason)), Err(reason)),
    };
    record.note_dial(start.elapsed(), &Endpoints::default(), result.as_ref());
    target.note_dial(stream.as_ref().err().copied());
    let stream = stream?;
    record.info.anchor = stream.anchor.user.clone();
    let upstream = result.map_err(|error| error.reason)?;
    Ok((upstream.stream.into(), stream))
}
