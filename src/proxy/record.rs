//! The record of a request: the facts that its access line and the list of open tunnels show.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::base::authority::Authority;
use crate::base::random::random;
use crate::daemon::admin::api::Subject;
use crate::net::sock_diag::SocketAddrs;
use crate::net::tls::ClientTls;
use crate::policy::access::User;
use crate::policy::allowlist::Target;
use crate::tunnel::dial::Errno;
use crate::tunnel::outcome::Side;
use crate::tunnel::ssh::identification::Software;

pub mod access_log;
pub(in crate::proxy) mod line;

/// Facts about a connection or request. Each stage adds its own.
#[derive(Debug)]
pub struct RequestInfo {
    /// Its number.
    pub id: Id,
    /// The peer of the connection: the client, or a load balancer.
    pub peer: SocketAddr,
    /// The client's address: the peer's, or that of a trusted PROXY header.
    pub client: SocketAddr,
    /// The time of the connection's accept, or of the request's beginning.
    pub accepted: Instant,
    /// The authority that the request names.
    pub authority: Option<Authority>,
    /// The allowlist's entry for the authority.
    pub target: Option<Arc<Target>>,
    /// The address that the dial has reached.
    pub upstream: Option<SocketAddr>,
    /// The node of that address; empty if it is not known.
    pub node: Box<str>,
    /// The user of the anchor that carries the tunnel; empty for an address that was dialled.
    pub anchor: Box<str>,
    /// The milliseconds of the dial; 0 if nothing was dialled.
    pub dial_ms: f64,
    /// The system's error of a failed dial.
    pub dial_error: Option<Errno>,
    /// The TLS session.
    pub tls: Option<Arc<ClientTls>>,
    /// The user of the request.
    pub user: Option<Arc<User>>,
    /// The user whom the request claims to be, if its password was not accepted.
    pub claimed: Option<Box<str>>,
    /// Why the user may reach the target, or why not.
    pub authorization: Option<Box<str>>,
    /// How long the session has been idle that the client wants to go on with, as it says; else zero.
    pub(crate) idle: Duration,
    /// The HTTP version that the client speaks: `1` or `2`; empty before it is known.
    pub http: &'static str,
    /// The protocol by which it asks for tunnels.
    pub door: Door,
    /// The proxy's own addresses on the client's connection and on the target's.
    pub(crate) locals: [Option<SocketAddr>; 2],
    /// The SSH software of both sides. An `Arc` keeps pending requests small.
    pub(crate) ssh_peers: Arc<SshPeers>,
}

/// The protocol by which a client asks for tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Door {
    /// HTTP: CONNECT, or a WebSocket.
    #[default]
    Http,
    /// Channels of SSH: the proxy is a jump host.
    Ssh,
}

/// The SSH software of both sides of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct SshPeers {
    /// The client's and the target's.
    software: [OnceLock<Software>; 2],
    /// The first side that `ssh_only` would have refused, if it were enforced.
    pub(crate) not_ssh: OnceLock<Side>,
}

impl RequestInfo {
    /// Creates the info of an accepted connection.
    pub(crate) fn new(id: Id, [peer, client]: [SocketAddr; 2], accepted: Instant) -> Self {
        Self {
            id,
            peer,
            client,
            accepted,
            authority: None,
            target: None,
            upstream: None,
            node: Box::default(),
            anchor: Box::default(),
            dial_ms: 0.0,
            dial_error: None,
            tls: None,
            user: None,
            claimed: None,
            authorization: None,
            idle: Duration::ZERO,
            http: "",
            door: Door::Http,
            locals: [None; 2],
            ssh_peers: Arc::default(),
        }
    }

    /// Returns the name of the user; empty if there is none.
    pub(crate) fn user_name(&self) -> &str {
        self.user.as_ref().map_or("", |user| &user.name)
    }

    /// Returns the parties of the request.
    pub(crate) fn subject(&self) -> Subject<'_> {
        let target = self.target.as_ref().map(|target| target.id());
        Subject {
            client: self.client.ip(),
            user: self.user_name(),
            target: target.map_or([""; 2], |id| [&id.namespace, &id.service]),
            node: &self.node,
        }
    }

    /// Returns the addresses of the client's and of the target's connection.
    pub(crate) fn socket_addrs(&self) -> [Option<SocketAddrs>; 2] {
        let [from_client, to_target] = self.locals;
        let pair = |(local, peer)| SocketAddrs { local, peer };
        [
            from_client.map(|local| pair((local, self.peer))),
            to_target.zip(self.upstream).map(pair),
        ]
    }

    /// Takes the info, and leaves one with only the facts of the accept.
    pub(crate) fn take(&mut self) -> Self {
        let mut left = Self::new(self.id, [self.peer, self.client], self.accepted);
        left.locals = self.locals;
        std::mem::replace(self, left)
    }

    /// Returns the reason why the user may reach the target, or may not, and what `ssh_only` would have refused.
    pub(crate) fn authorization(&self) -> Cow<'_, str> {
        let reason = self.authorization.as_deref().unwrap_or_default();
        let Some(side) = self.ssh_peers.not_ssh.get() else {
            return reason.into();
        };
        let end = if reason.is_empty() { "" } else { "; " };
        let side = side.label();
        format!("{reason}{end}{WOULD_BE_REFUSED}the {side} does not begin with an SSH identification").into()
    }

    /// Returns the SSH software of the client and of the target, from their identifications.
    pub fn software(&self) -> [Option<&Software>; 2] {
        [Side::Client, Side::Target].map(|side| self.ssh_peers.software(side))
    }
}

impl SshPeers {
    /// Returns the SSH software of one side.
    pub(crate) fn software(&self, side: Side) -> Option<&Software> {
        self.cell(side).get()
    }

    /// Notes the SSH software of one side, from its identification.
    pub(crate) fn identified(&self, side: Side, software: Software) {
        // Each side identifies itself once.
        self.cell(side).set(software).ok();
    }

    fn cell(&self, side: Side) -> &OnceLock<Software> {
        let [client, target] = &self.software;
        match side {
            Side::Client => client,
            Side::Target | Side::Proxy => target,
        }
    }
}

/// The prefix of a refusal that is only reported.
pub(crate) const WOULD_BE_REFUSED: &str = "would be refused: ";

/// The source of tunnel ids. A random prefix for each process keeps those of replicas apart in a shared log.
#[derive(Debug)]
pub struct Ids {
    process: u32,
    next: AtomicU64,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            process: u32::try_from(random() >> 32).unwrap_or_default(),
            next: AtomicU64::new(1),
        }
    }
}

/// The id of one connection or request: the log field `tunnel_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    process: u32,
    /// Counted up from 1 in this process.
    pub number: u64,
}

impl Ids {
    /// Returns the next id.
    pub fn next(&self) -> Id {
        Id {
            process: self.process,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:x}", self.process, self.number)
    }
}
