//! The walk of one connection, from its accept to its one line in the log. Read this first: it is the product.

use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::allowlist::{Allowlist, Endpoints, Place, Target};
use crate::authority::Authority;
use crate::budget::Budgets;
use crate::clients::{Client, Clients};
use crate::connect::{self, Established};
use crate::dial::{self, Upstream};
use crate::drain::{Drain, Phase};
use crate::end::End;
use crate::limits::Direction;
use crate::metrics::Metrics;
use crate::outcome::{Close, Denial, Reason, Refusal, Side};
use crate::record::{Ids, Record, TunnelRecord};
use crate::relay::{self, Bounds, Ends, Engine, PipePool, Terms, relay};

/// What all tunnels of a process share.
#[derive(Debug)]
pub struct World {
    /// Where they may go.
    pub allowlist: Arc<Allowlist>,
    /// Who counts them.
    pub metrics: Metrics,
    /// When they have to end.
    pub drain: Drain,
    /// Where hot ones get their pipes.
    pub pipes: PipePool,
    /// Who is here, and what they share.
    pub clients: Clients,
    /// What all of them share.
    pub total: Budgets,
    /// How they are numbered.
    pub ids: Ids,
    /// How long a head may take.
    pub connect: connect::Options,
    /// How long a dial may take.
    pub dial: dial::Options,
    /// How long a relay may be silent.
    pub relay: relay::Options,
}

/// Carries one connection to its end.
pub async fn serve(stream: TcpStream, peer: SocketAddr, world: &World) {
    // Boxed: nothing that belongs to the handshake outlives it.
    let mut opened = Box::pin(open(stream, peer, world)).await;
    if let Some(tunnel) = &mut opened {
        let close = tunnel.carry(world).await;
        tunnel.record.closed(close);
    }
}

/// A client and a target that can talk. Dropped in this order: who reads the log line may rely on closed sockets.
#[derive(Debug)]
struct Tunnel<'a, D> {
    ends: Ends<D>,
    target: Arc<Target>,
    client: Arc<Client>,
    _place: Place,
    record: TunnelRecord<'a>,
}

/// Reads what the client wants and answers it. `None` when it was refused, which is accounted for.
async fn open<D: End>(stream: D, peer: SocketAddr, world: &World) -> Option<Tunnel<'_, D>> {
    let accepted = Instant::now();
    let mut record = Record::open(&world.metrics, world.ids.next(), peer, accepted);
    let answer = async |authority| reach(authority, world, &mut record).await;
    match connect::handshake(stream, accepted, &world.connect, answer).await {
        Ok(Established {
            stream,
            early,
            answer: (target, place, upstream),
        }) => Some(Tunnel {
            record: record.established(&target),
            target,
            client: world.clients.client(peer.ip()),
            _place: place,
            ends: Ends {
                downstream: stream,
                upstream: upstream.stream,
                early,
            },
        }),
        Err(refused) => {
            record.refused(refused.refusal);
            refused.close().await;
            None
        }
    }
}

/// Looks the target up and dials it.
async fn reach(
    authority: Authority,
    world: &World,
    record: &mut Record<'_>,
) -> Result<(Arc<Target>, Place, Upstream), Denial> {
    let target = world.allowlist.authorize(&authority);
    record.asked_for(authority);
    let target = target?;
    record.allowed(Arc::clone(&target));
    if !matches!(world.drain.phase(), Phase::Serving | Phase::Leaving) {
        return Err(Refusal::Draining.into());
    }
    let place = target.enter()?;
    let endpoints = dialable(&target, world).await?;
    let start = Instant::now();
    let dialled = dial::dial(&endpoints.addresses, target.next_address(), &world.dial).await;
    record.dialled(start.elapsed(), dialled.as_ref());
    Ok((target, place, dialled?))
}

/// Waits for an endpoint, if there is none: a pod that starts is worth a moment.
async fn dialable(target: &Target, world: &World) -> Result<Arc<Endpoints>, Denial> {
    tokio::select! {
        biased;
        endpoints = target.dialable() => Ok(endpoints),
        () = target.revoked() => Err(Refusal::NotAllowed.into()),
        () = sleep(world.allowlist.wait_for_ready()) => {
            let Endpoints { ready, total, .. } = *target.endpoints();
            let phrase = format!("no ready endpoint for {} ({ready} of {total} ready)", target.id());
            Err(Denial::told(Refusal::NoEndpoint, &phrase))
        }
    }
}

impl<D: End> Tunnel<'_, D> {
    async fn carry(&mut self, world: &World) -> Close {
        let Self {
            ends,
            target,
            client,
            record,
            ..
        } = self;
        let bounds = |direction| Bounds {
            tunnel: target.limit(direction),
            shared: [target.shared(), &client.budgets, &world.total].map(|budgets| Some(budgets.of(direction))),
        };
        let options = relay::Options {
            idle: target.idle(world.relay.idle),
            ..world.relay
        };
        let terms = Terms {
            upload: bounds(Direction::Upload),
            download: bounds(Direction::Download),
            meter: &record.meter,
            pipes: &world.pipes,
            engine: Engine::Adaptive,
            options: &options,
        };
        let ending = ending(target, record, world);
        relay(ends, &terms, pin!(ending)).await
    }
}

/// Completes when the tunnel has to end, whatever its two sides want.
async fn ending(target: &Target, record: &TunnelRecord<'_>, world: &World) -> Close {
    let lifetime = async {
        match target.lifetime() {
            Some(lifetime) => Box::pin(sleep(lifetime)).await,
            None => pending().await,
        }
    };
    let last_moved = || record.meter.last_moved();
    let reason = tokio::select! {
        () = lifetime => Reason::Lifetime,
        () = target.revoked() => Reason::Revoked,
        () = world.drain.closes(record.id().number, last_moved) => Reason::Drained,
    };
    Close {
        by: Side::Proxy,
        reason,
    }
}
