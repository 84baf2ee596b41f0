//! The clients: they open tunnels and use them, and measure what they see.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime;
use tokio::time::{sleep_until, timeout};

use crate::proxies::{Kind, Proxy};
use crate::target::{ANSWER, CHUNK, Role};

/// The way to the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    proxy: SocketAddr,
    /// What to ask for; `None` where nobody asks.
    name: Option<&'a str>,
}

impl Route<'static> {
    /// Through that proxy, under the name that all of them know.
    pub(crate) fn through(proxy: &Proxy) -> Self {
        Route {
            proxy: proxy.address,
            name: (proxy.kind != Kind::HaProxy).then_some("target.bench:22"),
        }
    }
}

impl<'a> Route<'a> {
    /// The same way under another name.
    pub(crate) fn named(self, name: &'a str) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }

    /// A tunnel that has its 200. Without CONNECT only the target's first line proves that there is one.
    pub(crate) fn set_up(self) -> io::Result<TcpStream> {
        let Some(name) = self.name else {
            return self.open(Role::Echo);
        };
        let mut stream = TcpStream::connect(self.proxy)?;
        stream.set_nodelay(true)?;
        stream.write_all(head(name).as_bytes())?;
        let answer = read_until(&mut stream, b"\r\n\r\n")?;
        check_confirmed(&answer)?;
        Ok(stream)
    }

    /// A tunnel through which both sides have said their first line.
    pub(crate) fn open(self, role: Role) -> io::Result<TcpStream> {
        let mut stream = match self.name {
            Some(_) => self.set_up()?,
            None => TcpStream::connect(self.proxy)?,
        };
        stream.set_nodelay(true)?;
        stream.write_all(role.line().as_bytes())?;
        stream.read_exact(&mut [0; ANSWER.len()])?;
        Ok(stream)
    }
}

fn head(name: &str) -> String {
    format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n")
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 512];
    while !bytes.ends_with(end) {
        let read = stream.read(&mut chunk)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
    }
    Ok(bytes)
}

fn check_confirmed(answer: &[u8]) -> io::Result<()> {
    if answer.starts_with(b"HTTP/1.1 200 ") {
        return Ok(());
    }
    let line = String::from_utf8_lossy(answer);
    Err(io::Error::other(format!(
        "refused: {}",
        line.lines().next().unwrap_or_default()
    )))
}

/// Tunnels that carry bulk. Dropped, they end.
pub(crate) struct Bulk {
    moved: &'static AtomicU64,
    tunnels: Vec<TcpStream>,
    workers: Vec<thread::JoinHandle<io::Result<()>>>,
}

impl Bulk {
    /// Opens that many tunnels, and moves as much as it can through each.
    pub(crate) fn start(route: Route<'_>, role: Role, tunnels: usize) -> io::Result<Self> {
        let mut bulk = Self {
            // One counter of eight bytes for each measurement: the threads may outlive everything else.
            moved: Box::leak(Box::default()),
            tunnels: Vec::new(),
            workers: Vec::new(),
        };
        for _ in 0..tunnels {
            let tunnel = route.open(role)?;
            bulk.tunnels.push(tunnel.try_clone()?);
            if matches!(role, Role::Upload | Role::Both) {
                let (tunnel, moved) = (tunnel.try_clone()?, bulk.moved);
                bulk.workers.push(thread::spawn(move || write_all(tunnel, moved)));
            }
            if !matches!(role, Role::Upload) {
                let moved = bulk.moved;
                bulk.workers.push(thread::spawn(move || read_all(tunnel, moved)));
            }
        }
        Ok(bulk)
    }

    /// Bytes so far, of all tunnels and both directions.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        for tunnel in &self.tunnels {
            tunnel.shutdown(Shutdown::Both).ok();
        }
        for worker in self.workers.drain(..) {
            // It ends with an error as soon as its tunnel is shut.
            drop(worker.join());
        }
    }
}

fn write_all(mut tunnel: TcpStream, moved: &AtomicU64) -> io::Result<()> {
    let chunk = vec![b'x'; CHUNK];
    loop {
        let written = tunnel.write(&chunk)?;
        moved.fetch_add(written as u64, Ordering::Relaxed);
    }
}

fn read_all(mut tunnel: TcpStream, moved: &AtomicU64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match tunnel.read(&mut chunk)? {
            0 => return Ok(()),
            read => moved.fetch_add(read as u64, Ordering::Relaxed),
        };
    }
}

/// Sends 64 bytes and waits for them, again and again, through each tunnel in turn.
pub(crate) fn round_trips(tunnels: &mut [TcpStream], period: Duration) -> io::Result<Vec<Duration>> {
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

/// Sets tunnels up and closes them, one after the other in each of `clients` threads.
pub(crate) fn set_ups(names: &[Route<'_>], clients: usize, period: Duration) -> io::Result<Vec<Duration>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = |offset: usize| {
            let stop = &stop;
            move || {
                let mut times = Vec::new();
                for route in names.iter().cycle().skip(offset * names.len() / clients) {
                    let start = Instant::now();
                    drop(route.set_up()?);
                    times.push(start.elapsed());
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                io::Result::Ok(times)
            }
        };
        let clients: Vec<_> = (0..clients).map(|offset| scope.spawn(client(offset))).collect();
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
            let (head, proxy) = (head.clone(), route.proxy);
            clients.push(tokio::spawn(async move {
                // One that gets no answer counts as the longest.
                match timeout(LONGEST_SET_UP, set_up(proxy, &head)).await {
                    Ok(done) => done.map(|()| due.elapsed()),
                    Err(_) => Ok(LONGEST_SET_UP),
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
pub(crate) fn open_many(route: Route<'_>, count: usize) -> io::Result<Vec<TcpStream>> {
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                let share = count / OPENERS + usize::from(opener < count % OPENERS);
                scope.spawn(move || {
                    (0..share)
                        .map(|_| route.open(Role::Echo))
                        .collect::<io::Result<Vec<_>>>()
                })
            })
            .collect();
        let mut tunnels = Vec::with_capacity(count);
        for opener in openers {
            tunnels.extend(opener.join().unwrap()?);
        }
        Ok(tunnels)
    })
}

const OPENERS: usize = 8;
const LONGEST_SET_UP: Duration = Duration::from_secs(2);
