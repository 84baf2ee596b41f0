//! A hostile peer or a defect affects its own tunnel only: memory, panics, and the connections that targets see.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::page::Page;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings};
use crate::harness::proxy::Proxy;
use crate::harness::shared::connect;
use crate::harness::stream::Stream;
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, DEADLINE, allow, eventually, request};
use http::Request;
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};
use switchboard::policy::allowlist::{Endpoints, ServiceTarget, TargetId, TargetRules, Writer};
use switchboard::proxy::connection::Shared;
use switchboard::tunnel::drain::DrainController;
use switchboard::tunnel::limits::slots::Slots;
use switchboard::tunnel::limits::unfinished::UnfinishedSet;
use switchboard::tunnel::limits::{TargetCaps, TargetLimits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tokio::time::timeout;

/// The memory of a tunnel when neither side reads: a buffer of 64 KiB each way, and its own state.
const MAX_BYTES_PER_TUNNEL: f64 = (2 * 64 + 16) as f64 * 1024.0;

fn two_hundred_stalled_bulk_tunnels_hold_no_more_than_is_documented() {
    const TUNNELS: u16 = 200;
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let server = Server::with(&Settings::new(&format!(
        "{list}limits: {{client: {{connects_per_second: unlimited}}}}\n"
    )));
    let resident = |server: &Server| server.scrape().values["process_resident_memory_bytes"];
    // Memory that the first tunnels take once is not the others'.
    for _ in 0..4 {
        let (mut client, mut service) = server.tunnel("devbox:22", &target);
        client.send(vec![b'x'; 1 << 17]);
        service.expect(vec![b'x'; 1 << 17]);
    }
    let before = resident(&server);
    // Each end sends until its socket is full, and reads nothing.
    let fill = |mut peer: Peer, chunk: &[u8]| {
        while peer.send_what_fits(chunk) > 0 {}
        peer
    };
    let open: Vec<_> = (0..TUNNELS)
        .flat_map(|_| <[Peer; 2]>::from(server.tunnel("devbox:22", &target)))
        .collect();
    let filling: Vec<_> = open
        .into_iter()
        .map(|peer| {
            let chunk = vec![b'x'; 64 * 1024];
            std::thread::spawn(move || fill(peer, &chunk))
        })
        .collect();
    let stalled: Vec<_> = filling.into_iter().map(|peer| peer.join().unwrap()).collect();
    let moved = |server: &Server| -> f64 {
        let bytes = server.scrape().counted("tunnel_bytes_total");
        bytes.iter().map(|(_, bytes)| bytes).sum()
    };
    let mut last = 0.0;
    eventually("nothing moves", || {
        server.turn();
        let now = moved(&server);
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    let each = (resident(&server) - before) / f64::from(TUNNELS);
    eprintln!("{each:.0} bytes for each of {TUNNELS} stalled tunnels");
    assert!(each < MAX_BYTES_PER_TUNNEL, "{each}");
    // The others are none the worse.
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    client.send("hello");
    service.expect("hello");
    drop(stalled);
    server.settles("connections_active", 1.0);
}

/// A tunnel whose relay cannot work out when it would be idle: a fault that no configuration can have.
fn faulty(address: SocketAddr) -> ServiceTarget {
    service("faulty", address, Some(Duration::MAX))
}

fn service(name: &str, address: SocketAddr, idle: Option<Duration>) -> ServiceTarget {
    ServiceTarget {
        id: TargetId {
            namespace: "test".into(),
            service: name.into(),
        },
        ports: [22, 22],
        endpoints: Endpoints::from(vec![address]),
        rules: TargetRules {
            limits: TargetLimits {
                caps: TargetCaps {
                    tunnels: NonZeroU32::new(1),
                    ..TargetCaps::default()
                },
                idle: Some(idle),
                ssh_only: false,
                ..TargetLimits::default()
            },
            ..TargetRules::default()
        },
    }
}

/// The state that tunnels share, until the drain.
fn shared(targets: Vec<ServiceTarget>) -> (Arc<Shared>, DrainController) {
    let (writer, allowlist) = Writer::new();
    writer.replace(targets, true);
    let (conductor, drain) = DrainController::new();
    let shared = Shared {
        unfinished: UnfinishedSet::new(NonZeroU32::new(8)),
        // The one that runs, and the one that panics.
        tunnels: Arc::new(Slots::new(NonZeroU32::new(2))),
        ..crate::harness::shared::shared(allowlist, drain)
    };
    (Arc::new(shared), conductor)
}

/// A tunnel goes on while another panics, more often than there are slots in all or of the target.
async fn panics_alone<C: AsyncRead + AsyncWrite + Unpin>(mut open: impl AsyncFnMut(&Arc<Shared>, &str) -> C) {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    let (shared, _conductor) = shared(vec![faulty(address), service("sound", address, None)]);
    let mut client = open(&shared, "sound.test:22").await;
    let mut sound = target.accept().await.unwrap().0;
    for count in 1..=5 {
        let mut lost_client = open(&shared, "faulty.test:22").await;
        let mut lost = target.accept().await.unwrap().0;
        // It takes both connections with it, and neither side may take that for an orderly end.
        let (mut ours, mut theirs) = ([0], [0]);
        let ends = async { tokio::join!(lost.read(&mut ours), lost_client.read(&mut theirs)) };
        let ends = timeout(DEADLINE, ends).await.unwrap();
        for end in <[_; 2]>::from(ends) {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        let page = || Page::parse(&shared.metrics.encode().unwrap());
        let counted = async {
            while page().value(r#"tunnels_closed_total{by="proxy",reason="panic"}"#) != f64::from(count) {
                yield_now().await;
            }
        };
        timeout(DEADLINE, counted).await.unwrap();
        assert_eq!(page().value("connections_active"), 1.0);
        client.write_all(b"still here").await.unwrap();
        let mut heard = [0; 10];
        timeout(DEADLINE, sound.read_exact(&mut heard)).await.unwrap().unwrap();
        assert_eq!(&heard, b"still here");
    }
}

#[tokio::test]
async fn a_tunnel_that_panics_ends_alone_is_counted_and_frees_its_slots() {
    panics_alone(async |shared, name| {
        let (mut client, _serving) = connect(shared).await;
        client.write_all(request(name).as_bytes()).await.unwrap();
        let mut answer = vec![0; CONFIRMATION.len()];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), CONFIRMATION);
        client
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_http_2_that_panics_ends_alone_too() {
    let mut connection = None;
    panics_alone(async |shared, name| {
        if connection.is_none() {
            let (requests, driver) = h2::client::handshake(connect(shared).await.0).await.unwrap();
            tokio::spawn(driver);
            connection = Some(requests);
        }
        let requests = connection.clone().unwrap();
        let request = Request::connect(name).body(()).unwrap();
        // Its answer may be overtaken by its reset.
        Stream::new(requests.ready().await.unwrap().send_request(request, false).unwrap())
    })
    .await;
}

/// A server in a process of its own: it prints when it listens, greets each client, and reads nothing.
fn server(port: u16) -> Process {
    let mut command = Command::new("python3");
    command.args(["-c", SERVER, &port.to_string()]);
    Process::spawn(command)
}

const SERVER: &str = "
import socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listening', flush=True)
kept = []
while True:
    kept.append(listener.accept()[0])
    kept[-1].sendall(b'ready')
";

#[test]
fn a_killed_target_ends_its_tunnels_and_is_dialled_again_when_it_is_back() {
    // Bound, so that the port is not taken while the server is away.
    let place = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    place.set_reuse_address(true).unwrap();
    place.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = place.local_addr().unwrap().as_socket().unwrap();
    let proxy = Proxy::start(&allow(&[("devbox:22", address)]));
    let open = || {
        let mut client = proxy.client(request("devbox:22"));
        client.expect(CONFIRMATION);
        client.expect("ready");
        client
    };
    for round in 1..=3 {
        let mut killed = server(address.port());
        killed.stdout.find("listening");
        let (mut quiet, mut busy) = (open(), open());
        busy.send("never read");
        let counted = r#"tunnel_bytes_total{direction="upload",target_namespace="static",target_service="devbox:22"}"#;
        proxy.settles(counted, f64::from(10 * round));
        killed.signal(Signal::KILL);
        // Its kernel closes what it had: in order, or with a reset where something was not read.
        quiet.expect_end();
        busy.expect_reset();
        drop(quiet);
        proxy.settles("connections_active", 0.0);
        assert!(proxy.answer("devbox:22").starts_with("HTTP/1.1 502 "));
    }
}

#[test]
fn a_target_sees_the_connections_of_clients_and_no_other() {
    let targets = [Target::listen(), Target::listen()];
    let list = allow(&[("one:22", targets[0].address()), ("two:22", targets[1].address())]);
    let server = Server::with(&Settings::new(&list));
    for half in [
        "",
        "CONNECT one:22 HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: one:22\r\n\r\n",
    ] {
        server.client(half).finish();
    }
    assert!(server.answer("one:23").starts_with("HTTP/1.1 403 "));
    server.ask_admin("GET", "/readyz");
    for _ in 0..3 {
        let (client, mut service) = server.tunnel("one:22", &targets[0]);
        drop(client);
        service.expect_end();
    }
    server.process.signal(Signal::HUP);
    server.settles(r#"tunnels_closed_total{by="client",reason="eof"}"#, 3.0);
    server.settles("connections_active", 0.0);
    for target in &targets {
        target.expect_no_connection();
    }
}

#[test]
fn no_connection_to_a_target_outlives_its_client_even_one_that_is_killed() {
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("devbox:22", target.address())]));
    let (host, port) = (proxy.public().ip(), proxy.public().port());
    let script =
        format!("exec 3<>/dev/tcp/{host}/{port}; printf 'CONNECT devbox:22 HTTP/1.0\\r\\n\\r\\n' >&3; exec sleep 1000");
    let mut services = Vec::new();
    let clients: Vec<Process> = (0..5)
        .map(|_| {
            let mut command = Command::new("bash");
            command.args(["-c", &script]);
            let client = Process::spawn(command);
            services.push(target.accept());
            client
        })
        .collect();
    for client in &clients {
        client.signal(Signal::KILL);
    }
    for mut service in services {
        service.send_what_fits(b"x");
        service.ends();
    }
    proxy.settles("connections_active", 0.0);
}

tests_in! { measured: two_hundred_stalled_bulk_tunnels_hold_no_more_than_is_documented }
