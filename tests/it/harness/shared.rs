//! The proxy in the process of a test.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use switchboard::net::tls::{self, Tls};
use switchboard::policy::access::Access;
use switchboard::policy::allowlist::Allowlist;
use switchboard::proxy::anchors::Anchors;
use switchboard::proxy::connection::{self, Port, Shared, Timeouts};
use switchboard::proxy::metrics::Metrics;
use switchboard::proxy::open_tunnels::registry::Registry;
use switchboard::proxy::record::Ids;
use switchboard::proxy::record::access_log::AccessLog;
use switchboard::tunnel::drain::Drain;
use switchboard::tunnel::limits::Limits;
use switchboard::tunnel::limits::budget::Budgets;
use switchboard::tunnel::limits::connect_rate::ConnectRate;
use switchboard::tunnel::limits::owners::LimitOwners;
use switchboard::tunnel::limits::slots::Slots;
use switchboard::tunnel::limits::unfinished::UnfinishedSet;
use switchboard::tunnel::relay::Resources;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The state of a proxy that is open to all, with the default limits, and no cap on the tunnels of the process.
pub(crate) fn shared(allowlist: Arc<Allowlist>, drain: Drain) -> Shared {
    let (limits, metrics) = (Limits::default(), Metrics::new().unwrap());
    Shared {
        access: Access::open(&metrics.access),
        lists_names: AtomicBool::new(true),
        anchors: Anchors::new(None, NonZeroU32::MIN),
        allowlist,
        metrics,
        access_log: AccessLog::default(),
        registry: Registry::default(),
        drain,
        resources: Resources::new(4),
        clients: LimitOwners::new(limits.client_limits()),
        users: LimitOwners::new(limits.user_limits()),
        connect_rate: ConnectRate::new(limits.client),
        unfinished: UnfinishedSet::new(None),
        logins: UnfinishedSet::new(None),
        tunnels: Arc::new(Slots::new(None)),
        total: Budgets::new(limits.process.rates(), limits.tunnel.burst),
        ids: Ids::default(),
        tls: Tls::new(tls::Settings::default(), Timeouts::default().tls_handshake).unwrap(),
        timeouts: Timeouts::default(),
    }
}

/// A connection to the proxy, and the task that serves it.
pub(crate) async fn connect(shared: &Arc<Shared>) -> (TcpStream, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = Port::from(listener.local_addr().unwrap());
    connect_to(shared, listener, port).await
}

/// The same by that port.
pub(crate) async fn connect_to(shared: &Arc<Shared>, listener: TcpListener, port: Port) -> (TcpStream, JoinHandle<()>) {
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (stream, peer) = accepted.unwrap();
    let (shared, port) = (Arc::clone(shared), Arc::new(port));
    let serving = tokio::spawn(async move { connection::serve(stream, peer, port, &shared).await });
    (client.unwrap(), serving)
}
