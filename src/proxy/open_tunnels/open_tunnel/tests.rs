//! Tunnels asleep, by a clock that the test turns: real relays between real sockets, looked at each minute.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;

use tokio::task::yield_now;
use tokio::time::advance;

use super::*;
use crate::protocol::resume::frame::{Frame, encode_data};
use crate::protocol::resume::handshake::lines::{Announcement, Hello, IDENTIFICATION};
use crate::protocol::resume::keys::{Mac, Nonce, PublicKey, SessionId};
use crate::proxy::open_tunnels::registry::Registry;
use crate::proxy::record::Ids;
use crate::tunnel::drain::{Drain, DrainController};
use crate::tunnel::exposition;
use crate::tunnel::limits::bucket::RateLimit;
use crate::tunnel::limits::{Rate, Size};
use crate::tunnel::relay::{Options, RelayConfig, Resources, Transports, relay};
use crate::tunnel::target_metrics::TargetMetrics;

/// The scene of all tunnels.
struct Stage {
    registry: &'static Registry,
    series: Arc<TargetSeries>,
    drain: Drain,
    ids: Ids,
    resources: Arc<Resources>,
}

/// A tunnel and the peers' ends of its sockets: of the client, and of the target.
struct Open {
    tunnel: Arc<OpenTunnel>,
    peers: [TcpStream; 2],
}

impl Stage {
    /// Opens a tunnel, whose session has been idle for that time as its request says.
    async fn open(&self, idle: Duration) -> Open {
        let pair = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, _) = listener.accept().unwrap();
            // The second part of a frame would wait for the first one's ACK, which comes after 40 ms.
            peer.set_nodelay(true).unwrap();
            own.set_nodelay(true).unwrap();
            peer.set_nonblocking(true).unwrap();
            own.set_nonblocking(true).unwrap();
            (peer, tokio::net::TcpStream::from_std(own).unwrap())
        };
        let ((client, downstream), (target, upstream)) = (pair(), pair());
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut info = RequestInfo::new(self.ids.next(), [address, address], Instant::now());
        info.idle = idle;
        let tunnel = Arc::new(OpenTunnel::new(info, &self.series, self.drain.opened()));
        let (registry, relayed, resources) = (self.registry, Arc::clone(&tunnel), Arc::clone(&self.resources));
        tokio::spawn(async move {
            let _listed = registry.enter(Arc::clone(&relayed));
            let unlimited = RateLimit::new(Rate::UNLIMITED, Size::bytes(1 << 20).unwrap());
            let config = RelayConfig {
                limits: Both::from_fn(|_| (&unlimited).into()),
                meter: &relayed.meter,
                resources: &resources,
                options: &Options::default(),
                on_close: None,
                guard: Some(&relayed.guard),
                is_inspected: true,
            };
            let mut transports = Transports::new(downstream, upstream, Vec::new());
            relay(&mut transports, &config, pin!(std::future::pending())).await
        });
        let peers = [client, target];
        Open { tunnel, peers }
    }

    /// Opens the tunnel of a session.
    async fn attach(&self, hello: Hello, idle: Duration) -> Open {
        let mut open = self.open(idle).await;
        let announcement = Announcement {
            key: PublicKey([1; 32]),
            nonce: Nonce([2; 16]),
        };
        open.pass(1, announcement.line().as_bytes()).await;
        open.pass(0, hello.line().as_bytes()).await;
        let (received, mac) = (0, Mac([7; 32]));
        open.pass(0, &encoded(&[Frame::Proof { received, mac }])).await;
        let id = SessionId([5; 16]);
        let attached = encoded(&[Frame::Attached { id, received, mac }, ACK]);
        open.pass(1, &[IDENTIFICATION.as_bytes(), &attached].concat()).await;
        open
    }
}

impl Open {
    /// Passes bytes of the client (0) or the target (1) through the relay. No timer runs on until they have arrived.
    async fn pass(&mut self, from: usize, bytes: &[u8]) {
        let (mut unsent, mut missing) = (bytes, bytes.len());
        let mut buffer = vec![0; 32 * 1024];
        while missing > 0 {
            match self.peers[from].write(unsent) {
                Ok(written) => unsent = &unsent[written..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            match self.peers[1 - from].read(&mut buffer) {
                Ok(read) => missing -= read,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            yield_now().await;
        }
    }

    /// Passes the frames of a session that sleeps, which a network may cut and join.
    async fn ping(&mut self, number: u64) {
        let (ping, pong) = (encoded(&[Frame::Ping(number)]), encoded(&[Frame::Pong(number)]));
        match number % 3 {
            0 => self.pass(0, &ping).await,
            1 => {
                self.pass(0, &ping[..3]).await;
                self.pass(0, &ping[3..]).await;
            }
            _ => self.pass(0, &[&ping[..], &encoded(&[ACK])].concat()).await,
        }
        self.pass(1, &pong).await;
    }
}

fn encoded(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    bytes
}

/// `bytes` bytes of a stream, in frames of the usual size.
fn data(bytes: usize) -> Vec<u8> {
    let mut frames = Vec::new();
    let rest = vec![0; bytes];
    for (number, part) in rest.chunks(64 * 1024).enumerate() {
        encode_data(&mut frames, number as u64 * 65_536, (part, b""));
    }
    frames
}

const ACK: Frame = Frame::Ack {
    offset: 77,
    window: 65_536,
};
const MINUTE: Duration = Duration::from_mins(1);
/// The shards of the registry are judged one after the other.
const STEP: Duration = Duration::from_millis(3750);

fn series() -> Arc<TargetSeries> {
    let metrics = TargetMetrics::new(&exposition::registry().unwrap());
    metrics.unwrap().series("a", "b")
}

#[tokio::test(start_paused = true)]
async fn sessions_and_plain_tunnels_that_sleep_are_idle_since_their_users_last_byte() {
    let registry: &Registry = Box::leak(Box::default());
    let (_conductor, drain) = DrainController::new();
    let stage = Stage {
        registry,
        series: series(),
        drain,
        ids: Ids::default(),
        resources: Arc::new(Resources::new(8)),
    };
    let judging = tokio::spawn(registry.keep_judging());
    let (key, nonce, id) = (PublicKey([3; 32]), Nonce([4; 16]), SessionId([5; 16]));
    let (mut sessions, mut plain) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let mut session = stage.attach(Hello::New { key, nonce }, Duration::ZERO).await;
        // Every fourth one has just copied a file, which is spliced.
        let bytes = if number % 4 == 0 { 8 << 20 } else { 60 };
        session.pass(1, &data(bytes)).await;
        session.pass(0, &data(30)).await;
        sessions.push(session);
        let mut tunnel = stage.open(Duration::ZERO).await;
        tunnel.pass(0, b"SSH-2.0-OpenSSH_10.0\r\n").await;
        tunnel.pass(1, b"SSH-2.0-OpenSSH_10.0\r\n").await;
        plain.push(tunnel);
    }
    let asleep = Instant::now();
    for step in 1..=15 * 16_u32 {
        advance(STEP).await;
        yield_now().await;
        for (number, session) in sessions.iter_mut().enumerate() {
            // About as often as a session sends one.
            if step % 3 == 0 {
                session.ping(u64::from(step / 3) + number as u64).await;
            }
            // Every other one loses its path once, at minute 2 to 11.
            if number % 2 == 1 && step as usize == (2 + number / 2) * 16 {
                *session = stage.attach(Hello::Resume { id, nonce }, asleep.elapsed()).await;
            }
        }
        if step % 16 > 0 {
            continue;
        }
        for (number, open) in sessions.iter().chain(&plain).enumerate() {
            let activity = open.tunnel.activity();
            let wrong = asleep.elapsed().abs_diff(activity.last_active.elapsed());
            let minute = step / 16;
            assert!(wrong <= MINUTE, "tunnel {number}, minute {minute}: {wrong:?}");
            assert!(!activity.is_active || minute < 3, "tunnel {number}, minute {minute}");
        }
        // As `/activity` has it.
        let last = plain[0].tunnel.start.to_system_time(asleep);
        let late = stage.series.last_activity().unwrap().duration_since(last).ok();
        assert!(late.unwrap_or_default() <= MINUTE, "{late:?}");
    }
    // More than a keepalive is use.
    for (number, session) in sessions.iter_mut().enumerate() {
        assert!(session.tunnel.guard.is_resumable());
        session.pass(number % 2, &data(600)).await;
        let activity = session.tunnel.activity();
        assert!(
            activity.is_active && activity.last_active.elapsed() < MINUTE,
            "{number}"
        );
    }
    judging.abort();
}
