//! The walk of one connection, from its accept to its one line in the log. Read this first: it is the product.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::thread;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::negotiate::{Entered, TurnedAway};
use self::pending::{Arrival, WaitingRoom};
use self::record::{Ids, Record, TunnelRecord};
use crate::allowlist::{Allowlist, Target};
use crate::authority::Authority;
use crate::connect::{self, Established, http2};
use crate::direction::Direction;
use crate::drain::{Drain, Open};
use crate::limits::budget::Budgets;
use crate::limits::clients::{Client, Clients};
use crate::limits::slots::{Slot, Slots};
use crate::limits::unfinished::Unfinished;
use crate::metrics::Metrics;
use crate::net::dial::{self, Upstream};
use crate::net::listener;
use crate::net::proxy_header;
use crate::net::proxy_header::Addresses;
use crate::net::transport::Transport;
use crate::outcome::{Close, Denial, Reason, Refusal, Side};
use crate::relay::{self, Bounds, Early, Engine, Resources, Terms, Transports, relay};
use crate::ssh::identification;
use crate::tls::{self, Session, Tls};

pub mod negotiate;
pub mod pending;
pub mod record;

/// What all tunnels of a process share.
#[derive(Debug)]
pub struct Shared {
    /// Where they may go.
    pub allowlist: Arc<Allowlist>,
    /// Who counts them.
    pub metrics: Metrics,
    /// When they have to end.
    pub drain: Drain,
    /// What their relays share.
    pub resources: Resources,
    /// Who is here, and what they share.
    pub clients: Clients,
    /// Connections whose request is not complete.
    pub unfinished: Unfinished,
    /// How many tunnels there may be.
    pub tunnels: Arc<Slots>,
    /// What all of them share.
    pub total: Budgets,
    /// How they are numbered.
    pub ids: Ids,
    /// What is shown to clients who speak TLS, and wanted of them.
    pub tls: Tls,
    /// How long a head may take.
    pub connect: connect::Options,
    /// How long a dial may take.
    pub dial: dial::Options,
    /// How long both sides may take to say that they speak SSH.
    pub identification: identification::Options,
    /// How long a relay may be silent.
    pub relay: relay::Options,
}

/// Carries one connection of a public port to its end.
pub fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    port: Arc<listener::Options>,
    shared: &Shared,
) -> impl Future<Output = ()> + Send {
    // Boxed: nothing that belongs to the handshake outlives it.
    let opening = Box::pin(open(stream, peer, port, shared));
    async move {
        // By reference: moved, it would be held twice.
        match &mut opening.await {
            Some(Opened::Plain(tunnel)) => tunnel.run(shared).await,
            Some(Opened::Tls(tunnel)) => tunnel.run(shared).await,
            Some(Opened::Many(tunnels)) => tunnels.await,
            None => {}
        }
    }
}

/// What became of a connection, by what the client speaks.
enum Opened<'a> {
    Plain(Tunnel<'a, TcpStream>),
    Tls(Tunnel<'a, Session>),
    /// HTTP/2: whatever is asked for on the connection.
    Many(Pin<Box<dyn Future<Output = ()> + Send + 'a>>),
}

/// A client and a target that can talk. Dropped in this order: who reads the log line may rely on closed sockets.
#[derive(Debug)]
struct Tunnel<'a, D: Transport> {
    ends: Transports<D>,
    target: Arc<Target>,
    client: Arc<Client>,
    _slots: Box<[Slot; 3]>,
    record: TunnelRecord<'a>,
    _open: Open,
}

/// After a panic nobody knows what was passed on: a clean end would make it look complete.
impl<D: Transport> Drop for Tunnel<'_, D> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.ends.downstream.reset_on_drop();
            self.ends.upstream.reset_on_drop();
        }
    }
}

/// Learns whose connection it is, then what that client wants. `None` when it was refused, which is accounted for.
async fn open(
    mut stream: TcpStream,
    peer: SocketAddr,
    port: Arc<listener::Options>,
    shared: &Shared,
) -> Option<Opened<'_>> {
    let accepted = Instant::now();
    let room = WaitingRoom::new([&shared.unfinished], &shared.connect, &shared.drain);
    let mut record = Record::open(&shared.metrics, shared.ids.next(), peer, accepted);
    // Before all else that may be spoken on the port: it is about the socket.
    let header = tokio::select! {
        biased;
        header = proxy_header::read(&mut stream, peer.ip(), &port.proxy_header) => header,
        refusal = room.late(accepted) => Err(refusal),
    };
    match header {
        Ok(passage) => {
            let passage = passage.unwrap_or_else(|| Addresses::of(&stream, peer));
            record.set_client(passage.source);
            let client = shared.clients.client(passage.source.ip());
            let arrival = Arrival {
                accepted,
                passage,
                welcome: client.connects(),
                client,
            };
            Box::pin(enter(stream, port.tls, arrival, (record, shared))).await
        }
        Err(refusal) => {
            record.refused(refusal);
            room.part(connect::refuse(stream, refusal).await).await;
            None
        }
    }
}

/// Takes the client in by its door, then asks what it wants. Boxed: that is the largest step by far.
async fn enter<'a>(
    stream: TcpStream,
    tls: tls::Mode,
    arrival: Arrival,
    (mut record, shared): (Record<'a>, &'a Shared),
) -> Option<Opened<'a>> {
    let room = arrival.waits(&shared.unfinished, &shared.connect, &shared.drain);
    let terms = negotiate::Terms {
        mode: tls,
        tls: &shared.tls,
        deadline: shared.connect.deadline(arrival.accepted),
        paced: arrival.welcome,
    };
    match negotiate::enter(stream, &terms, room.late(arrival.accepted)).await {
        Ok(Entered::Plain(stream, read)) => {
            let tunnel = Box::pin(ask(connect::http1(stream, read), arrival, record, shared));
            tunnel.await.map(Opened::Plain)
        }
        Ok(Entered::Http2(stream, read)) => {
            let tunnels = many(http2::Wire::new(stream, read), arrival, record, shared);
            Some(Opened::Many(Box::pin(tunnels)))
        }
        Ok(Entered::Tls(accepted)) => {
            record.set_tls(&accepted);
            if accepted.http2 {
                let tunnels = many(http2::Wire::new(accepted.session, Vec::new()), arrival, record, shared);
                return Some(Opened::Many(Box::pin(tunnels)));
            }
            let tunnel = Box::pin(ask(
                connect::http1(accepted.session, Vec::new()),
                arrival,
                record,
                shared,
            ));
            tunnel.await.map(Opened::Tls)
        }
        Err(TurnedAway::Refused(refused)) => {
            record.refused(refused.refusal);
            room.part(refused).await;
            None
        }
        Err(TurnedAway::Handshake(failed)) => {
            shared.metrics.tls_failed(failed.cause);
            record.refused(Refusal::TlsHandshake);
            room.leave(failed.close()).await;
            None
        }
        Err(TurnedAway::Silently(refusal)) => {
            record.refused(refusal);
            None
        }
    }
}

/// Carries all that is asked for on an HTTP/2 connection to its end.
async fn many<D: Transport>(wire: http2::Wire<D>, arrival: Arrival, mut record: Record<'_>, shared: &Shared) {
    record.set_http_version(<http2::Request as connect::Client>::HTTP);
    let room = arrival.waits(&shared.unfinished, &shared.connect, &shared.drain);
    let late = |since: Option<Instant>| room.late(since.unwrap_or(arrival.accepted));
    let lapsed = Notify::new();
    let tunnel = |request| {
        let record = record.request(shared.ids.next());
        let arrival = arrival.again(|| record.is_trusted(&shared.tls));
        if arrival.welcome == Err(Refusal::CertificateLapsed) {
            lapsed.notify_one();
        }
        async move {
            // Boxed, as for one: the tunnel does without it.
            if let Some(mut tunnel) = Box::pin(ask(request, arrival, record, shared)).await {
                tunnel.run(shared).await;
            }
        }
    };
    match Box::pin(http2::serve(wire, late, &shared.drain, &lapsed, tunnel)).await {
        Ok(()) => record.leave_to_requests(),
        Err(refusal) => record.refused(refusal),
    }
}

/// Reads what the client wants and answers it.
async fn ask<'a, C: connect::Client>(
    asking: C,
    arrival: Arrival,
    mut record: Record<'a>,
    shared: &'a Shared,
) -> Option<Tunnel<'a, C::Transport>> {
    record.set_http_version(C::HTTP);
    let room = arrival.waits(&shared.unfinished, &shared.connect, &shared.drain);
    let answer = async |authority| match arrival.welcome {
        Ok(()) => tokio::select! {
            biased;
            reached = reach(authority, &arrival, shared, &mut record) => reached,
            () = shared.drain.deadline() => Err(Refusal::Draining.into()),
        },
        Err(refusal) => Err(refusal.into()),
    };
    match connect::handshake(asking, room.late(arrival.accepted), answer).await {
        Ok(Established {
            stream,
            early,
            answer: Reached {
                target,
                slots,
                upstream,
            },
        }) => Some(Tunnel {
            record: record.established(&target),
            target,
            client: arrival.client,
            _slots: slots,
            _open: shared.drain.opened(),
            ends: Transports {
                downstream: stream,
                upstream: upstream.stream,
                early: Box::new(Early {
                    upload: early,
                    ..Early::default()
                }),
            },
        }),
        Err(refused) => {
            record.refused(refused.refusal);
            room.part(refused).await;
            None
        }
    }
}

/// A target that answers, and the slots that the tunnel to it has taken.
struct Reached {
    target: Arc<Target>,
    slots: Box<[Slot; 3]>,
    upstream: Upstream,
}

/// Looks the target up and dials it.
async fn reach(
    authority: Authority,
    Arrival { passage, client, .. }: &Arrival,
    shared: &Shared,
    record: &mut Record<'_>,
) -> Result<Reached, Denial> {
    let target = shared.allowlist.authorize(&authority);
    record.set_authority(authority);
    let target = target?;
    record.set_target(Arc::clone(&target));
    target.admits(record.identity())?;
    if !shared.drain.phase().takes_tunnels() {
        return Err(Refusal::Draining.into());
    }
    let in_all = shared.tunnels.take().ok_or(Refusal::ProxyFull)?;
    let slots = Box::new([in_all, client.take_slot()?, target.enter()?]);
    let _dial = target.begin_dial()?;
    let endpoints = shared.allowlist.dialable(&target).await?;
    let start = Instant::now();
    let dial = dial::dial(&endpoints.addresses, target.next_address(), &shared.dial);
    let dialled = target.while_allowed(dial).await;
    record.dialled(start.elapsed(), dialled.as_ref());
    let mut upstream = dialled?;
    if let Some(version) = endpoints.proxy_header {
        let told = proxy_header::write(&mut upstream.stream, version, passage).await;
        told.map_err(|_| Refusal::TargetRefused)?;
    }
    Ok(Reached {
        target,
        slots,
        upstream,
    })
}

impl<D: Transport> Tunnel<'_, D> {
    async fn run(&mut self, shared: &Shared) {
        let close = self.carry(shared).await;
        self.record.closed(close);
    }

    async fn carry(&mut self, shared: &Shared) -> Close {
        let Self {
            ends,
            target,
            client,
            record,
            ..
        } = self;
        let bounds = |direction| Bounds {
            tunnel: target.limit(direction),
            shared: [target.shared(), &client.budgets, &shared.total].map(|budgets| Some(budgets.of(direction))),
        };
        let options = relay::Options {
            idle: target.idle(shared.relay.idle),
            ..shared.relay
        };
        let terms = Terms {
            upload: bounds(Direction::Upload),
            download: bounds(Direction::Download),
            meter: &record.meter,
            resources: &shared.resources,
            engine: Engine::Adaptive,
            options: &options,
        };
        let mut ending = pin!(ending(target, record, shared));
        if !target.any_protocol() {
            // Boxed: it is over in a moment.
            let begun = Box::pin(begin(ends, record, shared, ending.as_mut())).await;
            if let Err(close) = begun {
                return close;
            }
        }
        relay(ends, &terms, ending).await
    }
}

/// Has both sides say that they speak SSH.
async fn begin<D: Transport>(
    ends: &mut Transports<D>,
    record: &TunnelRecord<'_>,
    shared: &Shared,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Result<(), Close> {
    let identified = |side, software| record.identified(side, software);
    let begun = tokio::select! {
        biased;
        begun = identification::exchange(ends, &record.meter, &shared.identification, identified) => begun,
        close = ending => Err(close),
    };
    if let Err(close) = begun {
        relay::let_go(ends, close, false).await;
    }
    begun
}

/// Completes when the tunnel has to end, whatever its two sides want.
async fn ending(target: &Target, record: &TunnelRecord<'_>, shared: &Shared) -> Close {
    let last_moved = || record.meter.last_moved();
    let reason = tokio::select! {
        () = target.outlived() => Reason::Lifetime,
        () = target.revoked() => Reason::Revoked,
        () = shared.drain.closes(record.id().number, last_moved) => Reason::Drained,
    };
    Close {
        by: Side::Proxy,
        reason,
    }
}
