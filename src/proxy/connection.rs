//! The walk of one connection, from its accept to its line in the access log. Read this first: it is the product.
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

use self::authorize::{Authorized, authorize};
use self::established::{Holdings, Reached, Tunnel};
use self::negotiate::{Negotiated, negotiate};
use self::pending::Pending;
pub use self::shared::{Port, Shared, Timeouts};
use crate::base::cold::cold;
use crate::net::tls::Session;
use crate::net::transport::Transport;
use crate::policy::access::Mode;
use crate::policy::allowlist::{Target, Woken};
use crate::proxy::http::{self, Asked, CredentialPolicy, Exchange, http2};
use crate::tunnel::dial::{self, Upstream};
use crate::tunnel::limits::owners::OwnerName;
use crate::tunnel::limits::queue::QueueTimeouts;
use crate::tunnel::outcome::{Denial, Refusal};
use crate::tunnel::proxy_header;

mod authorize;
mod established;
mod in_band;
mod negotiate;
mod pending;
mod shared;

/// Carries one connection of a public port to its end.
pub fn serve(stream: TcpStream, peer: SocketAddr, port: Arc<Port>, shared: &Shared) -> impl Future<Output = ()> + Send {
    let opening = cold(open(stream, peer, port, shared));
    async move {
        // Matched by reference: the future would have room for the tunnel twice.
        match &mut opening.await {
            Some(Opened::Plain(tunnel)) => tunnel.run(shared).await,
            Some(Opened::Tls(tunnel)) => tunnel.run(shared).await,
            Some(Opened::Streams(tunnels)) => tunnels.await,
            None => {}
        }
    }
}

/// An accepted connection, with its 200 sent (HTTP/1), or ready for streams (HTTP/2).
enum Opened<'a> {
    Plain(Tunnel<'a, TcpStream>),
    Tls(Tunnel<'a, Session>),
    /// HTTP/2: all tunnels of the connection.
    Streams(Pin<Box<dyn Future<Output = ()> + Send + 'a>>),
}

/// Reads the PROXY header, negotiates the protocol and, over HTTP/1, serves the request up to its 200. `None` if no tunnel came
/// of it.
async fn open(mut stream: TcpStream, peer: SocketAddr, port: Arc<Port>, shared: &Shared) -> Option<Opened<'_>> {
    let mut pending = Pending::accept(peer, stream.local_addr().ok(), port.refusals, shared);
    // First of all, even before TLS: the header names the client of the TCP connection.
    let header = proxy_header::read(&mut stream, peer.ip(), &port.proxy_header);
    match pending.step(header).await {
        Ok(header) => pending.introduce(header.unwrap_or(pending.addresses)),
        Err(refusal) => {
            pending.refuse(http::http1(stream, Vec::new()), &refusal.into()).await;
            return None;
        }
    }
    let (negotiated, pending) = cold(negotiate(stream, port.tls, pending)).await?;
    Some(match negotiated {
        Negotiated::Http1(stream, read) => {
            let exchange = http::http1(stream, read);
            Opened::Plain(cold(request(exchange, pending)).await?)
        }
        Negotiated::TlsHttp1(session) => {
            let exchange = http::http1(session, Vec::new());
            Opened::Tls(cold(request(exchange, pending)).await?)
        }
        Negotiated::Http2(stream, read) => {
            let connection = http2::Connection::new(stream, read);
            Opened::Streams(Box::pin(streams(connection, pending)))
        }
        Negotiated::TlsHttp2(session) => {
            let connection = http2::Connection::new(session, Vec::new());
            Opened::Streams(Box::pin(streams(connection, pending)))
        }
    })
}

/// Carries every request on an HTTP/2 connection to its end.
async fn streams<D: Transport>(connection: http2::Connection<D>, mut pending: Pending<'_>) {
    let shared = pending.shared;
    pending.record.facts.http = http2::Request::HTTP;
    let lapsed = Notify::new();
    let overdue = |awaited| {
        let pending = &pending;
        async move {
            match awaited {
                http2::Awaited::FirstRequest => pending.until_late().await,
                http2::Awaited::FurtherRequest => pending.until_idle().await,
                http2::Awaited::Close => pending.until_evicted().await,
            }
        }
    };
    let tunnel = |exchange| {
        let further = pending.new_stream();
        if further.admission == Err(Refusal::CertificateLapsed) {
            // The connection gets a GOAWAY: its certificate is no longer valid.
            lapsed.notify_one();
        }
        async move {
            if let Some(mut tunnel) = cold(request(exchange, further)).await {
                tunnel.run(shared).await;
            }
        }
    };
    let go_away = http2::GoAway {
        drain: &shared.drain,
        number: pending.record.facts.id.number,
        lapsed: &lapsed,
    };
    match cold(http2::serve(connection, overdue, go_away, tunnel)).await {
        Ok(()) => pending.record.leave_to_requests(),
        Err(refusal) => pending.drop_silently(refusal),
    }
}

/// Reads one request and answers it. `None` if no tunnel came of it.
async fn request<'a, E: Exchange>(mut exchange: E, mut pending: Pending<'a>) -> Option<Tunnel<'a, E::Transport>> {
    pending.record.facts.http = E::HTTP;
    let (drain, number) = (&pending.shared.drain, pending.record.facts.id.number);
    let credentials = match pending.shared.access.mode() {
        Mode::Open => CredentialPolicy::Ignored,
        Mode::Report | Mode::Enforce => CredentialPolicy::Read,
    };
    let reached = match pending.step(exchange.read_head(credentials)).await {
        Ok(asked) => tokio::select! {
            biased;
            reached = reach(asked, &mut pending) => reached,
            () = drain.deadline(number) => Err(Refusal::Draining.into()),
            refusal = exchange.client_left() => Err(refusal.into()),
        },
        Err(refusal) => Err(refusal.into()),
    };
    match reached {
        Ok(reached) => match exchange.confirm().await {
            Ok((downstream, early)) => Some(Tunnel::new(pending, reached, downstream, early)),
            Err(refusal) => {
                pending.drop_silently(refusal);
                None
            }
        },
        Err(denial) => {
            pending.refuse(exchange, &denial).await;
            None
        }
    }
}

/// Authorizes the request, takes its slots, and dials its target.
async fn reach(asked: Asked, pending: &mut Pending<'_>) -> Result<Reached, Denial> {
    // Refused before, by the rate or the certificate, and told only now that the protocol is known.
    pending.admission?;
    let end_marker = asked.end_marker;
    let Authorized { target, grant } = authorize(asked, pending).await?;
    // Only after authorization: the form of a refusal would tell whether the target is an SSH server.
    pending.leads_to_ssh = target.ssh_only() && !target.reports();
    let of_process = pending.shared.tunnels.take().ok_or(Refusal::ProxyFull)?;
    let (owner, full) = match &grant {
        Some(grant) => {
            let name = OwnerName::User(grant.user_name().into());
            (pending.shared.users.get(name), Refusal::UserFull)
        }
        None => (pending.client()?, Refusal::ClientFull),
    };
    let of_owner = owner.tunnels.take();
    let of_owner = of_owner.ok_or_else(|| Denial::new(full, full.phrase().limited(owner.tunnels.most())))?;
    let holdings = Box::new(Holdings {
        _slots: [of_process, of_owner, target.enter()?],
        owner,
        grant,
        refusals: pending.refusals,
        end_marker,
    });
    let connect = connect_to(&target, pending);
    let upstream = match &holdings.grant {
        // The right may be taken back meanwhile.
        Some(grant) => grant.while_valid(cold(connect)).await?,
        None => connect.await?,
    };
    Ok(Reached {
        target,
        holdings,
        upstream,
        open: pending.shared.drain.opened(),
    })
}

/// Waits for an endpoint of the target, dials it, and writes the PROXY header if the target wants one.
async fn connect_to(target: &Target, pending: &mut Pending<'_>) -> Result<Upstream, Denial> {
    let Pending {
        shared,
        record,
        addresses,
        ..
    } = pending;
    let timeouts = QueueTimeouts {
        longest: shared.timeouts.dial,
        without_success: shared.timeouts.dial_try,
    };
    if shared.allowlist.wake(target, addresses.source.ip()) == Woken::Limited {
        shared.metrics.wakes.count(["limited"]);
    }
    let permit = target.begin_dial(timeouts).await?;
    let endpoints = shared.allowlist.dialable(target).await?;
    let start = Instant::now();
    let options = shared.timeouts.of_dial();
    let dial = dial::dial(&endpoints.addresses, target.next_address(), &options);
    let dialled = target.while_allowed(dial).await;
    record.dialled(start.elapsed(), &endpoints, dialled.as_ref());
    let mut upstream = dialled?;
    permit.succeeded();
    if let Some(version) = endpoints.proxy_header {
        let written = proxy_header::write(&mut upstream.stream, version, addresses).await;
        written.map_err(|_| Refusal::TargetRefused)?;
    }
    Ok(upstream)
}
