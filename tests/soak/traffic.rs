//! The clients: each kind of traffic in tasks of its own, which count every byte and can all be made to pause.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::connections::{Answered, Asked, Connections, Protocol};
use crate::proxy::PATIENCE;
use crate::targets::{ANSWER, Bytes, Service};

/// The clients' shared state and their counters.
pub(crate) struct Traffic {
    pub(crate) connections: Connections,
    /// Read-locked by each client with something under way.
    under_way: RwLock<()>,
    is_over: AtomicBool,
    bytes: [Bytes; Service::ALL.len()],
    open: [AtomicUsize; Service::ALL.len()],
    /// The number of answers of each kind.
    pub(crate) answers: Lock<BTreeMap<u16, u64>>,
    /// The faults that clients saw.
    pub(crate) faults: Lock<Vec<String>>,
    /// From the end of each outage until there were news.
    pub(crate) outages: Lock<Vec<Duration>>,
}

impl Traffic {
    pub(crate) fn new(connections: Connections) -> Self {
        Self {
            connections,
            under_way: RwLock::default(),
            is_over: AtomicBool::new(false),
            bytes: Default::default(),
            open: Default::default(),
            answers: Lock::default(),
            faults: Lock::default(),
            outages: Lock::default(),
        }
    }

    /// Starts all of it.
    pub(crate) fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for number in 0..TYPISTS {
            // As many of both speak each protocol: four and five have no common divisor.
            let service = if number.is_multiple_of(5) {
                Service::Restarting
            } else {
                Service::Typing
            };
            clients.spawn(Arc::clone(self).types(service, number));
        }
        for (act, period) in ACTS {
            clients.spawn(Arc::clone(self).repeats(act, period));
        }
        clients
    }

    /// Asks for an unknown name until it is refused as such: the proxy may be ready a moment before it has the first
    /// list.
    pub(crate) async fn knows_all(&self) {
        while !self.answers.lock().unwrap().contains_key(&403) {
            self.open(Protocol::Plain, Service::News, "nobody", "echo\n")
                .await
                .err();
        }
    }

    /// Nothing is under way while this is held.
    pub(crate) async fn quiet(&self) -> RwLockWriteGuard<'_, ()> {
        self.under_way.write().await
    }

    /// All clients leave.
    pub(crate) async fn end(&self, mut clients: JoinSet<()>) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        self.connections.close().await;
    }

    pub(crate) fn bytes(&self, service: Service) -> &Bytes {
        &self.bytes[service as usize]
    }

    /// The number of open tunnels.
    pub(crate) fn open_to(&self, service: Service) -> usize {
        self.open[service as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn outage_over(&self, took: Duration) {
        self.outages.lock().unwrap().push(took);
    }

    /// Asks for that name until it is there.
    pub(crate) async fn reaches(&self, name: &str) {
        for _ in 0..MAX_TRIES {
            let under_way = self.under_way.read().await;
            if let Ok(tunnel) = self.open(Protocol::Plain, Service::News, name, "echo\n").await {
                self.judge("news", tunnel.leave().await);
                return;
            }
            drop(under_way);
            sleep(BETWEEN_TRIES).await;
        }
        self.judge("news", Err::<(), _>(io::ErrorKind::TimedOut.into()));
    }

    /// One user, who types now and then, and logs in again when the pod is gone.
    async fn types(self: Arc<Self>, service: Service, number: usize) {
        let mut tunnel = None;
        sleep(STAGGER * u32::try_from(number).unwrap()).await;
        let mut under_way = self.under_way.read().await;
        while !self.is_over.load(Ordering::Relaxed) {
            if tunnel.is_none() {
                let opened = self.open(Protocol::turn(number), service, service.name(), "echo\n");
                tunnel = self.judge_unless_killed(service, opened.await);
            }
            if let Some(typing) = &mut tunnel {
                self.judge(service.name(), typing.exchange(1 + number * 13 % 200).await);
            }
            drop(under_way);
            let pause = async {
                sleep(PAUSE).await;
                self.under_way.read().await
            };
            under_way = tokio::select! {
                under_way = pause => under_way,
                error = is_ended(&mut tunnel) => {
                    tunnel = None;
                    self.judge_unless_killed(service, Err::<(), _>(error));
                    self.under_way.read().await
                }
            };
        }
        if let Some(tunnel) = tunnel {
            self.judge(service.name(), tunnel.leave().await);
        }
    }

    async fn repeats(self: Arc<Self>, act: Act, period: Duration) {
        for number in 0_usize.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let under_way = self.under_way.read().await;
            let done = match act {
                Act::Copy => self.copies(number).await,
                Act::Pass => self.passes(number).await,
                Act::Cut => self.cuts(number).await,
                Act::Vanish => self.vanishes().await,
                Act::Refused => self.is_refused(number).await,
            };
            self.judge(&format!("{act:?}"), done);
            drop(under_way);
            sleep(period).await;
        }
    }

    async fn copies(&self, number: usize) -> io::Result<()> {
        let command = if number.is_multiple_of(2) { "send" } else { "take" };
        // Both directions by one protocol, then both by the next.
        let protocol = Protocol::turn(number / 2);
        let command = format!("{command} {COPY}\n");
        let mut tunnel = self.open(protocol, Service::Copying, "copying", &command).await?;
        if number.is_multiple_of(2) {
            tunnel.receive(COPY).await?;
        } else {
            tunnel.send(&vec![b'.'; COPY]).await?;
            tunnel.receive(1).await?;
        }
        tunnel.leave().await
    }

    /// Every third leaves with a reset, when nothing is on its way.
    async fn passes(&self, number: usize) -> io::Result<()> {
        let protocol = Protocol::turn(number);
        let mut tunnel = self.open(protocol, Service::Passing, "passing", "echo\n").await?;
        tunnel.exchange(64).await?;
        if number.is_multiple_of(3) {
            tunnel.reset();
            return Ok(());
        }
        tunnel.leave().await
    }

    async fn cuts(&self, number: usize) -> io::Result<()> {
        let protocol = Protocol::turn(number);
        let mut tunnel = self.open(protocol, Service::Cut, "cut", "send 50000000\n").await?;
        tunnel.receive(200_000).await?;
        tunnel.reset();
        Ok(())
    }

    /// A connection with many tunnels is cut, when nothing is on its way.
    async fn vanishes(&self) -> io::Result<()> {
        let first = first("echo\n");
        let asked = Asked {
            method: "CONNECT",
            target: "passing.soak:22",
            early: &first,
        };
        let (answered, connection) = self.connections.ask_for_many(asked, TOGETHER).await?;
        let mut tunnels = Vec::new();
        for answered in answered {
            let mut tunnel = self.opened(Service::Passing, answered, first.len()).await?;
            tunnel.exchange(64).await?;
            tunnels.push(tunnel);
        }
        connection.cut().await;
        Ok(())
    }

    async fn is_refused(&self, number: usize) -> io::Result<()> {
        let Some((method, target, expected)) = REFUSED[number % REFUSED.len()] else {
            self.connections.probe().await?;
            self.answered(PROBED);
            return Ok(());
        };
        let early = "";
        let asked = Asked { method, target, early };
        let protocol = Protocol::turn(number / REFUSED.len());
        let Answered {
            status, mut carrier, ..
        } = self.connections.ask(protocol, asked).await?;
        timeout(PATIENCE, carrier.read_to_end(&mut Vec::new())).await??;
        self.answered(status);
        if status == expected {
            return Ok(());
        }
        Err(io::Error::other(format!("{status} instead of {expected}")))
    }

    /// A tunnel in which both sides have said that they speak SSH, and the pod has been told what to do.
    async fn open(&self, protocol: Protocol, service: Service, name: &str, command: &str) -> io::Result<Tunnel<'_>> {
        let first = first(command);
        let asked = Asked {
            method: "CONNECT",
            target: &format!("{name}.soak:22"),
            early: &first,
        };
        let answered = self.connections.ask(protocol, asked).await?;
        self.opened(service, answered, first.len()).await
    }

    async fn opened(&self, service: Service, mut answered: Answered, sent: usize) -> io::Result<Tunnel<'_>> {
        let status = answered.status;
        self.answered(status);
        if status != 200 {
            // It is closed when the answer has been read: a reset would make the proxy's wait for us shorter.
            timeout(PATIENCE, answered.carrier.read_to_end(&mut Vec::new())).await??;
            return Err(match status {
                502 => io::ErrorKind::ConnectionRefused.into(),
                _ => io::Error::other(format!("refused with {status}")),
            });
        }
        self.bytes(service).sent(sent);
        self.open[service as usize].fetch_add(1, Ordering::Relaxed);
        let mut tunnel = Tunnel {
            answered,
            service,
            traffic: self,
        };
        tunnel.receive(ANSWER.len()).await?;
        Ok(tunnel)
    }

    fn answered(&self, status: u16) {
        *self.answers.lock().unwrap().entry(status).or_default() += 1;
    }

    fn judge<T>(&self, what: &str, done: io::Result<T>) -> Option<T> {
        let mut faults = self.faults.lock().unwrap();
        done.inspect_err(|error| {
            if faults.len() < MAX_ERRORS {
                faults.push(format!("{what}: {error}"));
            }
        })
        .ok()
    }

    /// The same, but for what comes of a pod that was killed.
    fn judge_unless_killed<T>(&self, service: Service, done: io::Result<T>) -> Option<T> {
        match done {
            Err(error) if service == Service::Restarting && KILLED.contains(&error.kind()) => None,
            done => self.judge(service.name(), done),
        }
    }
}

/// One of the acts that are repeated.
#[derive(Clone, Copy, Debug)]
enum Act {
    Copy,
    Pass,
    Cut,
    Vanish,
    Refused,
}

/// One tunnel, as its client has it.
struct Tunnel<'a> {
    answered: Answered,
    service: Service,
    traffic: &'a Traffic,
}

impl Tunnel<'_> {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let carrier = &mut self.answered.carrier;
        timeout(PATIENCE, async {
            carrier.write_all(bytes).await?;
            carrier.flush().await
        })
        .await??;
        self.traffic.bytes(self.service).sent(bytes.len());
        Ok(())
    }

    async fn receive(&mut self, size: usize) -> io::Result<()> {
        let mut room = vec![0; size.min(64 * 1024)];
        let mut left = size;
        while left > 0 {
            let most = left.min(room.len());
            let read = timeout(PATIENCE, self.answered.carrier.read(&mut room[..most])).await??;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.traffic.bytes(self.service).received(read);
            left -= read;
        }
        Ok(())
    }

    async fn exchange(&mut self, size: usize) -> io::Result<()> {
        self.send(&vec![b'k'; size]).await?;
        self.receive(size).await
    }

    /// Finishes, and waits for the pod to do the same.
    async fn leave(mut self) -> io::Result<()> {
        let carrier = &mut self.answered.carrier;
        carrier.shutdown().await?;
        let mut rest = Vec::new();
        timeout(PATIENCE, carrier.read_to_end(&mut rest)).await??;
        if rest.is_empty() {
            return Ok(());
        }
        Err(io::Error::other("more than was asked for"))
    }

    fn reset(mut self) {
        self.answered.carrier.reset();
    }
}

impl Drop for Tunnel<'_> {
    fn drop(&mut self) {
        self.traffic.open[self.service as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The end of an idle tunnel.
async fn is_ended(tunnel: &mut Option<Tunnel<'_>>) -> io::Error {
    let Some(tunnel) = tunnel else {
        return pending().await;
    };
    match tunnel.answered.carrier.read(&mut [0]).await {
        Ok(0) => io::ErrorKind::UnexpectedEof.into(),
        Ok(_) => io::Error::other("more than was asked for"),
        Err(error) => error,
    }
}

/// The client's first bytes.
fn first(command: &str) -> String {
    format!("SSH-2.0-soak\r\n{command}")
}

const TYPISTS: usize = 60;
const PAUSE: Duration = Duration::from_millis(800);
/// Its tunnels are reset, and its address is unreachable until another pod has it.
const KILLED: [io::ErrorKind; 2] = [io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionRefused];
const STAGGER: Duration = Duration::from_millis(37);
const ACTS: [(Act, Duration); 5] = [
    (Act::Copy, Duration::from_millis(700)),
    (Act::Pass, Duration::from_millis(100)),
    (Act::Cut, Duration::from_millis(900)),
    (Act::Vanish, Duration::from_millis(1_500)),
    (Act::Refused, Duration::from_millis(300)),
];
/// The refused requests, and their statuses. An empty one is a probe, which sends nothing and gets no answer.
const REFUSED: [Option<(&str, &str, u16)>; 4] = [
    Some(("CONNECT", "nobody.soak:22", 403)),
    Some(("GET", "http://a/", 405)),
    Some(("CONNECT", "typing.soak", 400)),
    None,
];
/// The label of a probe.
pub(crate) const PROBED: u16 = 499;
/// Tunnels on a connection that is cut.
const TOGETHER: usize = 4;
const COPY: usize = 4 << 20;
const MAX_TRIES: usize = 500;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
const MAX_ERRORS: usize = 20;
