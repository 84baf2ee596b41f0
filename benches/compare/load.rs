//! The clients: they open tunnels and use them, and measure what they see.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::http2::Connection;
use crate::route::{Route, Tunnel, check_confirmed, head};
use crate::target::{CHUNK, Role};

/// Tunnels that carry bulk. Dropped, they end.
pub(crate) struct Bulk {
    moved: &'static AtomicU64,
    connections: Vec<TcpStream>,
    workers: Vec<thread::JoinHandle<io::Result<()>>>,
}

impl Bulk {
    fn new() -> Self {
        Self {
            // One counter of eight bytes for each measurement: the threads may outlive everything else.
            moved: Box::leak(Box::default()),
            connections: Vec::new(),
            workers: Vec::new(),
        }
    }

    /// Opens that many tunnels, and moves as much as it can through each.
    pub(crate) fn start(route: Route<'_>, role: Role, tunnels: usize) -> io::Result<Self> {
        let mut bulk = Self::new();
        for _ in 0..tunnels {
            let tunnel = route.open(role)?;
            bulk.connections.push(tunnel.socket()?);
            if let Role::Both = role {
                bulk.work(write_all, tunnel.try_clone()?);
            }
            bulk.work(if let Role::Upload = role { write_all } else { read_all }, tunnel);
        }
        Ok(bulk)
    }

    /// The same over HTTP/2, with so many tunnels on each of so many connections.
    pub(crate) fn over_http2(route: Route<'_>, role: Role, [connections, tunnels]: [usize; 2]) -> io::Result<Self> {
        let mut bulk = Self::new();
        for _ in 0..connections {
            let Connection { socket, worker } = Connection::open(route, role, tunnels, bulk.moved)?;
            bulk.connections.push(socket);
            bulk.workers.push(worker);
        }
        Ok(bulk)
    }

    fn work(&mut self, work: fn(Tunnel, &AtomicU64) -> io::Result<()>, tunnel: Tunnel) {
        let moved = self.moved;
        self.workers.push(thread::spawn(move || work(tunnel, moved)));
    }

    /// Bytes so far, of all tunnels and both directions.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        for connection in &self.connections {
            connection.shutdown(Shutdown::Both).ok();
        }
        for worker in self.workers.drain(..) {
            // It ends with an error as soon as its connection is shut.
            drop(worker.join());
        }
    }
}

fn write_all(mut tunnel: Tunnel, moved: &AtomicU64) -> io::Result<()> {
    let chunk = vec![b'x'; CHUNK];
    loop {
        let written = tunnel.write(&chunk)?;
        moved.fetch_add(written as u64, Ordering::Relaxed);
    }
}

fn read_all(mut tunnel: Tunnel, moved: &AtomicU64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match tunnel.read(&mut chunk)? {
            0 => return Ok(()),
            read => moved.fetch_add(read as u64, Ordering::Relaxed),
        };
    }
}

/// Sends 64 bytes and waits for them, again and again, through each tunnel in turn.
pub(crate) fn round_trips(tunnels: &mut [Tunnel], period: Duration) -> io::Result<Vec<Duration>> {
    let end = Instant::now() + period;
    let mut times = Vec::new();
    loop {
        for tunnel in &mut *tunnels {
            let start = Instant::now();
            if start > end {
                return Ok(times);
            }
            tunnel.write_all(&[b'k'; 64])?;
            tunnel.read_exact(&mut [0; 64])?;
            times.push(start.elapsed());
        }
    }
}

/// Tunnels that were set up and closed.
#[derive(Debug, Default)]
pub(crate) struct SetUps {
    /// How long each took.
    pub(crate) times: Vec<Duration>,
    /// How long all took together, without the pauses.
    pub(crate) took: Duration,
}

/// Sets tunnels up and closes them for that long, in bursts with a pause before each.
///
/// Each takes a port of the proxy's address towards the one target, and one of the load tool's towards the proxy. Linux gives
/// a port again when it was closed a second ago (`tcp_tw_reuse`), and has 28,232: without the pauses a second's set-ups use
/// them up, and what is measured is the kernel's search for a free one.
pub(crate) fn set_ups(route: Route<'_>, clients: usize, period: Duration) -> io::Result<SetUps> {
    let mut all = SetUps::default();
    while all.took < period {
        thread::sleep(PORTS_FREE_AGAIN);
        let start = Instant::now();
        let times = burst(route, clients, BURST.min(period))?;
        all.took += start.elapsed();
        all.times.extend(times);
    }
    Ok(all)
}

/// Set-ups one after the other in each of `clients` threads.
fn burst(route: Route<'_>, clients: usize, period: Duration) -> io::Result<Vec<Duration>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = || {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                drop(route.set_up()?);
                times.push(start.elapsed());
            }
            io::Result::Ok(times)
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        thread::sleep(period);
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().unwrap()?);
        }
        Ok(all)
    })
}

/// Sets up `rate` tunnels a second, each when it is due and whatever became of the others; timed from when it was due.
pub(crate) fn due_set_ups(route: Route<'_>, rate: u32, period: Duration) -> io::Result<Vec<Duration>> {
    let head = head(route.name.unwrap_or_default());
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let count = rate * u32::try_from(period.as_secs()).unwrap_or(1);
    runtime.block_on(async {
        let start = tokio::time::Instant::now();
        let mut clients = Vec::new();
        for number in 0..count {
            let due = start + Duration::from_secs(1) * number / rate;
            sleep_until(due).await;
            let (head, proxy) = (head.clone(), route.address());
            clients.push(tokio::spawn(async move {
                // One that gets no answer counts as the longest.
                match timeout(SETUP_TIMEOUT, set_up(proxy, &head)).await {
                    Ok(done) => done.map(|()| due.elapsed()),
                    Err(_) => Ok(SETUP_TIMEOUT),
                }
            }));
        }
        let mut times = Vec::new();
        for client in clients {
            times.push(client.await.map_err(io::Error::other)??);
        }
        Ok(times)
    })
}

async fn set_up(proxy: SocketAddr, head: &str) -> io::Result<()> {
    let mut stream = tokio::net::TcpStream::connect(proxy).await?;
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    check_confirmed(&answer)
}

/// Opens that many tunnels, several at a time.
pub(crate) fn open_many(route: Route<'_>, role: Role, count: usize) -> io::Result<Vec<Tunnel>> {
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                let share = count / OPENERS + usize::from(opener < count % OPENERS);
                scope.spawn(move || (0..share).map(|_| route.open(role)).collect::<io::Result<Vec<_>>>())
            })
            .collect();
        let mut tunnels = Vec::with_capacity(count);
        for opener in openers {
            tunnels.extend(opener.join().unwrap()?);
        }
        Ok(tunnels)
    })
}

/// Reads from all tunnels, by one thread, for that long. Returns the bytes.
pub(crate) fn read_from_all(tunnels: &[Tunnel], period: Duration) -> io::Result<u64> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut readers = JoinSet::new();
        for tunnel in tunnels {
            let socket = tunnel.socket()?;
            socket.set_nonblocking(true)?;
            let mut stream = tokio::net::TcpStream::from_std(socket)?;
            readers.spawn(async move {
                let (mut all, mut chunk) = (0, vec![0; 16 * 1024]);
                let read = timeout(period, async {
                    while let read @ 1.. = stream.read(&mut chunk).await? {
                        all += read as u64;
                    }
                    io::Result::Err(io::ErrorKind::UnexpectedEof.into())
                });
                // A time-out is the end that is meant.
                read.await.map_or(Ok(()), |ended| ended)?;
                io::Result::Ok(all)
            });
        }
        let mut all = 0;
        while let Some(read) = readers.join_next().await {
            all += read.map_err(io::Error::other)??;
        }
        Ok(all)
    })
}

const OPENERS: usize = 8;
const BURST: Duration = Duration::from_millis(500);
const PORTS_FREE_AGAIN: Duration = Duration::from_millis(1100);
const SETUP_TIMEOUT: Duration = Duration::from_secs(2);
