//! The public ports, and what all tunnels of a process share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;

use crate::base::yaml::forms;
use crate::net::listener;
use crate::net::tls::{self, Tls};
use crate::policy::access::Access;
use crate::policy::allowlist::Allowlist;
use crate::proxy::anchors::Anchors;
use crate::proxy::http::{RefusalMode, WebSocketOptions};
use crate::proxy::metrics::Metrics;
use crate::proxy::open_tunnels::registry::Registry;
use crate::proxy::record::Ids;
use crate::proxy::record::access_log::AccessLog;
use crate::tunnel::drain::Drain;
use crate::tunnel::limits::budget::Budgets;
use crate::tunnel::limits::connect_rate::ConnectRate;
use crate::tunnel::limits::owners::LimitOwners;
use crate::tunnel::limits::slots::Slots;
use crate::tunnel::limits::unfinished::UnfinishedSet;
use crate::tunnel::relay::Resources;
use crate::tunnel::ssh::jump::JumpHost;
use crate::tunnel::{dial, proxy_header};

/// The state that all tunnels of a process share.
#[derive(Debug)]
pub struct Shared {
    /// Access control.
    pub access: Arc<Access>,
    /// The targets, by name.
    pub allowlist: Arc<Allowlist>,
    /// True if users may list the names that they may reach.
    pub lists_names: AtomicBool,
    /// The anchors that have dialled in.
    pub anchors: Anchors,
    /// The process's metrics.
    pub metrics: Metrics,
    /// The access log.
    pub access_log: AccessLog,
    /// The open tunnels.
    pub registry: Registry,
    /// The phase of the drain.
    pub drain: Drain,
    /// The pipes and buffers of the relays.
    pub resources: Resources,
    /// The clients that have connections, and the limits of each.
    pub clients: LimitOwners,
    /// The users that have tunnels, and the limits of each.
    pub users: LimitOwners,
    /// The rate at which each client connects.
    pub connect_rate: ConnectRate,
    /// The connections whose request is incomplete, or whose refusal is unread.
    pub unfinished: UnfinishedSet,
    /// The SSH connections before their login, which take more memory than others.
    pub logins: UnfinishedSet,
    /// A slot for each tunnel.
    pub tunnels: Arc<Slots>,
    /// The byte budgets of all tunnels together.
    pub total: Budgets,
    /// The source of the ids of connections and requests.
    pub ids: Ids,
    /// The certificates, and what is asked of clients that speak TLS.
    pub tls: Tls,
    /// The deadlines of every wait for a peer.
    pub timeouts: Timeouts,
}

/// The deadlines of every wait for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// From the accept to the end of the request head.
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    pub request_header: Duration,
    /// From the first byte of a TLS handshake to its last.
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    pub tls_handshake: Duration,
    /// The dial of one address.
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    pub connect: Duration,
    /// The dial of all addresses together.
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    pub dial: Duration,
    /// From the 200 until both sides have sent their SSH identification.
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    pub ssh_identification: Duration,
    /// Without an active minute; `None` is for ever, as SSH sessions sleep for days.
    #[serde(deserialize_with = "forms::one::<forms::TimeoutOrOff, _>")]
    pub idle: Option<Duration>,
    /// Without a byte either way, once one side has finished.
    #[serde(deserialize_with = "forms::one::<forms::Timeout, _>")]
    pub half_closed: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            request_header: Duration::from_secs(10),
            tls_handshake: Duration::from_secs(5),
            connect: Duration::from_secs(3),
            dial: Duration::from_secs(10),
            ssh_identification: Duration::from_secs(12),
            idle: None,
            half_closed: Duration::from_secs(300),
        }
    }
}

impl Timeouts {
    /// Returns the timeouts of a dial.
    pub(super) fn dial_options(&self) -> dial::Options {
        dial::Options {
            dial_try: self.connect,
            dial: self.dial,
            unpaced_on_loopback: false,
        }
    }
}

/// One public port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The address, and whether other processes may share it.
    pub listener: listener::Options,
    /// The peers that must begin with a PROXY header.
    pub proxy_header: proxy_header::Policy,
    /// The use of TLS by clients: none, optional or required.
    pub tls: tls::Mode,
    /// The way in which refusals are sent.
    pub refusals: RefusalMode,
    /// The WebSocket requests that it takes; `None` for none.
    pub websocket: Option<Arc<WebSocketOptions>>,
    /// The treatment of SSH clients that have no ProxyCommand.
    pub ssh: SshMode,
    /// The files of the jump host's keys.
    pub host_keys: Box<[PathBuf]>,
    /// The jump host with these keys; `None` if the port is none.
    pub jump_host: Option<Arc<JumpHost>>,
}

/// The treatment of SSH clients that have no ProxyCommand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SshMode {
    /// They are refused.
    #[default]
    Off,
    /// The port is a jump host for them.
    Jump,
    /// The port is a jump host, and nothing else: it speaks first, as some clients wait for that.
    Only,
}

/// A port of this process alone, without TLS and PROXY header.
impl From<SocketAddr> for Port {
    fn from(address: SocketAddr) -> Self {
        Self {
            listener: address.into(),
            proxy_header: proxy_header::Policy::Off,
            tls: tls::Mode::Off,
            refusals: RefusalMode::default(),
            websocket: None,
            ssh: SshMode::Off,
            host_keys: Box::default(),
            jump_host: None,
        }
    }
}
