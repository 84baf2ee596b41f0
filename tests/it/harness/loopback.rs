//! Two real connections on loopback with a relay between them, and what a peer does at its end of one.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use switchboard::tunnel::direction::{Both, Direction};
use switchboard::tunnel::drain::TunnelGuard;
use switchboard::tunnel::limits::bucket::RateLimit;
use switchboard::tunnel::limits::{Rate, Size};
use switchboard::tunnel::outcome::Close;
use switchboard::tunnel::relay::meter::{Meter, Totals};
use switchboard::tunnel::relay::{EarlyData, Options, RelayConfig, Resources, Transports, relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The bytes that a relay splices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splices {
    Bulk,
    All,
}

/// The directions that are spliced, and the number of pipes: without any, all is copied.
pub(crate) type Setup = (Splices, usize);

/// Each way to move bytes.
pub(crate) const SETUPS: [Setup; 4] = [
    (Splices::All, 4),
    (Splices::All, 0),
    (Splices::Bulk, 4),
    (Splices::Bulk, 0),
];

/// All that one relay runs under.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) upload: RateLimit,
    pub(crate) download: RateLimit,
    pub(crate) meter: Meter,
    pub(crate) totals: Arc<Totals>,
    pub(crate) resources: Resources,
    pub(crate) setup: Setup,
    pub(crate) options: Options,
    /// The tunnel, if it is resumable.
    pub(crate) resumable: Option<TunnelGuard>,
}

impl Rig {
    pub(crate) fn new(setup: Setup) -> Self {
        let unlimited = || RateLimit::new(Rate::UNLIMITED, Size::bytes(1 << 20).unwrap());
        let totals = Arc::new(Totals::default());
        Self {
            upload: unlimited(),
            download: unlimited(),
            meter: Meter::new(Arc::clone(&totals)),
            totals,
            resources: match setup {
                (Splices::Bulk, pipes) => Resources::new(pipes),
                (Splices::All, pipes) => Resources::splicing_all(pipes),
            },
            setup,
            options: Options::default(),
            resumable: None,
        }
    }

    /// Relays between the two ends while `script` plays the client and the target, and drops the ends when it is over.
    pub(crate) async fn carry<T>(
        &self,
        wires: Wires,
        ending: impl Future<Output = Close>,
        script: impl AsyncFnOnce(TcpStream, TcpStream) -> T,
    ) -> (Close, T) {
        let mut ends = wires.ends;
        let terms = self.terms();
        let relayed = async move {
            let close = relay(&mut ends, &terms, pin!(ending)).await;
            drop(ends);
            close
        };
        let both = async { tokio::join!(relayed, script(wires.client, wires.target)) };
        let over = tokio::time::timeout(DEADLINE, both).await;
        over.expect("relay and script end before the deadline")
    }

    /// The terms of this rig's relays.
    pub(crate) fn terms(&self) -> RelayConfig<'_> {
        RelayConfig {
            limits: Both {
                upload: (&self.upload).into(),
                download: (&self.download).into(),
            },
            meter: &self.meter,
            resources: &self.resources,
            options: &self.options,
            on_close: None,
            guard: self.resumable.as_ref(),
            is_inspected: false,
        }
    }

    /// Waits until so many bytes were counted one way.
    pub(crate) async fn counted(&self, direction: Direction, bytes: u64) {
        while self.meter.bytes(direction) < bytes {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until nothing moves any more: the relay is blocked by the side that it writes to.
    pub(crate) async fn stalled(&self, direction: Direction) {
        let mut before = 0;
        let mut quiet = 0;
        while quiet < 5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = self.meter.bytes(direction);
            quiet = if now == before && now > 0 { quiet + 1 } else { 0 };
            before = now;
        }
    }
}

/// The sockets of a tunnel, and the peers' ends of both.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) client: TcpStream,
    pub(crate) target: TcpStream,
    pub(crate) ends: Transports<TcpStream>,
}

impl Wires {
    pub(crate) async fn new() -> Self {
        Self::with(Vec::new(), None).await
    }

    /// `room` is the receive buffer of both peers: a small one makes a slow reader.
    pub(crate) async fn with(early: Vec<u8>, room: Option<u32>) -> Self {
        let (client, downstream) = pair(room).await;
        let (target, upstream) = pair(room).await;
        let ends = Transports {
            downstream,
            upstream,
            early: Some(Box::new(EarlyData {
                upload: early,
                ..EarlyData::default()
            })),
        };
        Self { client, target, ends }
    }
}

async fn pair(room: Option<u32>) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpSocket::new_v4().unwrap();
    if let Some(room) = room {
        peer.set_recv_buffer_size(room).unwrap();
    }
    let (peer, ours) = tokio::join!(peer.connect(listener.local_addr().unwrap()), listener.accept());
    let (peer, ours) = (peer.unwrap(), ours.unwrap().0);
    for stream in [&peer, &ours] {
        stream.set_nodelay(true).unwrap();
    }
    (peer, ours)
}

/// The bytes that a peer sends, and the sizes of its writes and reads.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) bytes: usize,
    pub(crate) seed: u8,
    pub(crate) writes: Vec<usize>,
    pub(crate) reads: Vec<usize>,
    /// True if it finishes only after the other side has.
    pub(crate) finishes_last: bool,
}

impl Part {
    /// The stream it sends: no piece of it is like another, so that nothing can be lost, doubled or swapped unseen.
    pub(crate) fn stream(&self) -> Vec<u8> {
        let mut state = u64::from(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes = Vec::with_capacity(self.bytes + 8);
        while bytes.len() < self.bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_le_bytes());
        }
        bytes.truncate(self.bytes);
        bytes
    }
}

/// The bytes and the end that a peer has seen.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) received: Vec<u8>,
    pub(crate) sent: io::Result<()>,
    pub(crate) end: io::Result<()>,
}

impl Seen {
    /// Returns whether one of its calls has reported a reset.
    pub(crate) fn reset(&self) -> bool {
        [&self.sent, &self.end]
            .into_iter()
            .any(|result| matches!(result, Err(error) if error.kind() == io::ErrorKind::ConnectionReset))
    }
}

/// Sends its part and reads the other's, both at once, until both have ended.
pub(crate) async fn play(stream: &mut TcpStream, part: &Part, moved: &Cell<usize>) -> Seen {
    let (mut from, mut to) = stream.split();
    let other_ended = Cell::new(false);
    let send = async {
        let stream = part.stream();
        let mut rest = stream.as_slice();
        for &size in part.writes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(size.min(rest.len()));
            to.write_all(now).await?;
            moved.set(moved.get() + now.len());
            rest = later;
            tokio::task::yield_now().await;
        }
        while part.finishes_last && !other_ended.get() {
            tokio::task::yield_now().await;
        }
        to.shutdown().await
    };
    let mut received = Vec::new();
    let receive = async {
        let mut buffer = vec![0; 1 << 20];
        for &size in part.reads.iter().cycle() {
            let read = from.read(&mut buffer[..size.min(1 << 20)]).await;
            let read = read.inspect_err(|_| other_ended.set(true))?;
            if read == 0 {
                break;
            }
            received.extend_from_slice(&buffer[..read]);
            moved.set(moved.get() + read);
        }
        other_ended.set(true);
        Ok(())
    };
    let (sent, end) = tokio::join!(send, receive);
    Seen { received, sent, end }
}

/// Plays its part until `moment` bytes have moved at this end, and resets in the midst of it.
pub(crate) async fn play_and_reset(mut stream: TcpStream, part: &Part, moment: usize) -> Vec<u8> {
    let moved = Cell::new(0);
    let due = poll_fn(|context| {
        if moved.get() >= moment {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    // It never finishes by itself: the reset comes first.
    let part = Part {
        finishes_last: true,
        ..part.clone()
    };
    let sent = part.stream();
    tokio::select! {
        biased;
        () = due => {}
        _ = play(&mut stream, &part, &moved) => {}
    }
    reset(stream);
    sent
}

/// Ends a connection with a reset.
pub(crate) fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// The deadline of every script, on however busy a machine; only a defect comes near.
const DEADLINE: Duration = Duration::from_secs(120);
