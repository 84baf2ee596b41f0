//! The clients: each kind of traffic in tasks of its own, which count every byte and can all be made to pause.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, RwLock, RwLockWriteGuard};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::lab::PROXY;
use crate::proxy::PATIENCE;
use crate::targets::{ANSWER, Bytes, Service};

/// What clients share, and what they have done.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Read-locked by whoever has something under way.
    under_way: RwLock<()>,
    is_over: AtomicBool,
    bytes: [Bytes; Service::ALL.len()],
    /// Connections made, whatever came of them.
    pub(crate) connections: AtomicU64,
    /// Held while clients may have tunnels that are dead, and nobody has told them yet.
    pub(crate) upheaval: Mutex<()>,
    open: [AtomicUsize; Service::ALL.len()],
    /// How often there was which answer.
    pub(crate) answers: Lock<BTreeMap<u16, u64>>,
    /// What went wrong for a client that should not.
    pub(crate) faults: Lock<Vec<String>>,
    /// From the end of each outage until there were news.
    pub(crate) outages: Lock<Vec<Duration>>,
}

impl Traffic {
    /// Starts all of it.
    pub(crate) fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for number in 0..TYPISTS {
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

    /// Asks for a name that nobody has, until the proxy is sure that nobody has it: it may be ready a moment before.
    pub(crate) async fn knows_all(&self) {
        while !self.answers.lock().unwrap().contains_key(&403) {
            self.open(Service::News, "nobody", "echo\n").await.err();
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
    }

    pub(crate) fn bytes(&self, service: Service) -> &Bytes {
        &self.bytes[service as usize]
    }

    /// How many tunnels are open.
    pub(crate) fn open_to(&self, service: Service) -> usize {
        self.open[service as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn outage_over(&self, took: Duration) {
        self.outages.lock().unwrap().push(took);
    }

    /// Asks for that name until it is there.
    pub(crate) async fn reaches(&self, name: &str) {
        for _ in 0..MOST_TRIES {
            let under_way = self.under_way.read().await;
            if let Ok(tunnel) = self.open(Service::News, name, "echo\n").await {
                self.judge("news", tunnel.leave().await);
                return;
            }
            drop(under_way);
            sleep(BETWEEN_TRIES).await;
        }
        self.judge("news", Err(io::ErrorKind::TimedOut.into()));
    }

    /// One user, who types now and then, and logs in again when the pod is gone.
    async fn types(self: Arc<Self>, service: Service, number: u64) {
        let mut tunnel = None;
        sleep(Duration::from_millis(number * 37)).await;
        while !self.is_over.load(Ordering::Relaxed) {
            let under_way = self.under_way.read().await;
            if tunnel.is_none() {
                tunnel = self.open(service, service.name(), "echo\n").await.ok();
            }
            if let Some(typing) = &mut tunnel
                && let Err(error) = typing.exchange(1 + usize::try_from(number * 13 % 200).unwrap()).await
            {
                if service != Service::Restarting {
                    self.judge(service.name(), Err(error));
                }
                tunnel = None;
            }
            drop(under_way);
            sleep(Duration::from_millis(800)).await;
        }
        let _under_way = self.under_way.read().await;
        // Whose pod was killed is told of it here.
        if let Some(tunnel) = tunnel.filter(|_| service != Service::Restarting) {
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
                Act::Cut => self.cuts().await,
                Act::Refused => self.is_refused(number).await,
            };
            self.judge(&format!("{act:?}"), done);
            drop(under_way);
            sleep(period).await;
        }
    }

    async fn copies(&self, number: usize) -> io::Result<()> {
        let command = if number.is_multiple_of(2) { "send" } else { "take" };
        let mut tunnel = self
            .open(Service::Copying, "copying", &format!("{command} {COPY}\n"))
            .await?;
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
        let mut tunnel = self.open(Service::Passing, "passing", "echo\n").await?;
        tunnel.exchange(64).await?;
        if number.is_multiple_of(3) {
            tunnel.reset();
            return Ok(());
        }
        tunnel.leave().await
    }

    async fn cuts(&self) -> io::Result<()> {
        let mut tunnel = self.open(Service::Cut, "cut", "send 50000000\n").await?;
        tunnel.receive(200_000).await?;
        tunnel.reset();
        Ok(())
    }

    async fn is_refused(&self, number: usize) -> io::Result<()> {
        let (request, expected) = REFUSED[number % REFUSED.len()];
        let mut stream = self.connect().await?;
        if request.is_empty() {
            self.answered(expected);
            return Ok(());
        }
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
        let status = status_of(&answer)?;
        self.answered(status);
        if status == expected {
            return Ok(());
        }
        Err(io::Error::other(format!("{status} instead of {expected}")))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((PROXY, PUBLIC)).await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A tunnel in which both sides have said that they speak SSH, and the pod has been told what to do.
    async fn open(&self, service: Service, name: &str, command: &str) -> io::Result<Tunnel<'_>> {
        let mut stream = self.connect().await?;
        let first = format!("SSH-2.0-soak\r\n{command}");
        let head = format!("CONNECT {name}.soak:22 HTTP/1.1\r\nHost: {name}\r\n\r\n{first}");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let read = timeout(PATIENCE, stream.read_u8()).await?;
            answer.push(read?);
        }
        let status = status_of(&answer)?;
        self.answered(status);
        if status != 200 {
            // It is closed when the answer has been read: a reset would make the proxy's wait for us shorter.
            timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
            return Err(io::Error::other(format!("refused with {status}")));
        }
        self.bytes(service).sent(first.len());
        self.open[service as usize].fetch_add(1, Ordering::Relaxed);
        let mut tunnel = Tunnel {
            stream,
            service,
            traffic: self,
        };
        tunnel.receive(ANSWER.len()).await?;
        Ok(tunnel)
    }

    fn answered(&self, status: u16) {
        *self.answers.lock().unwrap().entry(status).or_default() += 1;
    }

    fn judge(&self, what: &str, done: io::Result<()>) {
        let mut faults = self.faults.lock().unwrap();
        if let Err(error) = done
            && faults.len() < MOST_FAULTS
        {
            faults.push(format!("{what}: {error}"));
        }
    }
}

/// What is done again and again.
#[derive(Clone, Copy, Debug)]
enum Act {
    Copy,
    Pass,
    Cut,
    Refused,
}

/// One tunnel, as its client has it.
struct Tunnel<'a> {
    stream: TcpStream,
    service: Service,
    traffic: &'a Traffic,
}

impl Tunnel<'_> {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes)).await??;
        self.traffic.bytes(self.service).sent(bytes.len());
        Ok(())
    }

    async fn receive(&mut self, size: usize) -> io::Result<()> {
        let mut room = vec![0; size.min(64 * 1024)];
        let mut left = size;
        while left > 0 {
            let most = left.min(room.len());
            let read = timeout(PATIENCE, self.stream.read(&mut room[..most])).await??;
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
        self.stream.shutdown().await?;
        let mut rest = Vec::new();
        timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await??;
        if rest.is_empty() {
            return Ok(());
        }
        Err(io::Error::other("more than was asked for"))
    }

    fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

impl Drop for Tunnel<'_> {
    fn drop(&mut self) {
        self.traffic.open[self.service as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

fn status_of(answer: &[u8]) -> io::Result<u16> {
    let text = String::from_utf8_lossy(answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other(format!("no answer but {text:?}")))
}

const PUBLIC: u16 = 8080;
const TYPISTS: u64 = 50;
const ACTS: [(Act, Duration); 4] = [
    (Act::Copy, Duration::from_millis(700)),
    (Act::Pass, Duration::from_millis(100)),
    (Act::Cut, Duration::from_millis(900)),
    (Act::Refused, Duration::from_millis(300)),
];
/// What is refused, and with which status. Nobody is told the last: it is a probe, which sends nothing.
const REFUSED: [(&str, u16); 4] = [
    ("CONNECT nobody.soak:22 HTTP/1.1\r\nHost: a\r\n\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    ("CONNECT typing.soak HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("", 499),
];
const COPY: usize = 4 << 20;
const MOST_TRIES: usize = 500;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
const MOST_FAULTS: usize = 20;
