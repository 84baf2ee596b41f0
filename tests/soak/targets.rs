//! The proxy's targets: one pod for each kind of traffic, which counts every byte and can be killed.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A kind of traffic, which has a Service and a pod of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Keystrokes and their echo, in tunnels that stay.
    Typing,
    /// Copies of a few MiB both ways.
    Copying,
    /// Tunnels that live for one exchange.
    Passing,
    /// Keystrokes to a pod that dies now and then.
    Restarting,
    /// Downloads that the client resets in their midst.
    Cut,
    /// Services that come while the API server is away. Its own has the pod of all of them.
    News,
}

impl Service {
    pub(crate) const ALL: [Self; 6] = [
        Self::Typing,
        Self::Copying,
        Self::Passing,
        Self::Restarting,
        Self::Cut,
        Self::News,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Typing => "typing",
            Self::Copying => "copying",
            Self::Passing => "passing",
            Self::Restarting => "restarting",
            Self::Cut => "cut",
            Self::News => "news",
        }
    }

    pub(crate) fn pod(self) -> &'static str {
        match self {
            Self::Typing => "10.9.1.1",
            Self::Copying => "10.9.1.2",
            Self::Passing => "10.9.1.3",
            Self::Restarting => "10.9.1.4",
            Self::Cut => "10.9.1.5",
            Self::News => "10.9.1.6",
        }
    }
}

/// Bytes of one kind of traffic, as one side of the tunnels knows them.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Bytes {
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// All pods.
#[derive(Debug)]
pub(crate) struct Targets {
    bytes: [Arc<Bytes>; Service::ALL.len()],
    running: Mutex<[Option<JoinHandle<()>>; Service::ALL.len()]>,
    /// The number of kills.
    pub(crate) kills: AtomicU64,
}

impl Targets {
    pub(crate) fn start() -> Self {
        let targets = Self {
            bytes: Default::default(),
            running: Mutex::default(),
            kills: AtomicU64::new(0),
        };
        for service in Service::ALL {
            targets.revive(service);
        }
        targets
    }

    pub(crate) fn bytes(&self, service: Service) -> &Bytes {
        &self.bytes[service as usize]
    }

    /// Resets all its connections, and refuses others.
    pub(crate) async fn kill(&self, service: Service) {
        let running = self.running.lock().unwrap()[service as usize].take().unwrap();
        running.abort();
        // It ends as cancelled.
        running.await.unwrap_err();
        self.kills.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn revive(&self, service: Service) {
        let listener = bind(service);
        let task = tokio::spawn(accept(listener, Arc::clone(&self.bytes[service as usize])));
        self.running.lock().unwrap()[service as usize] = Some(task);
    }
}

fn bind(service: Service) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    // Connections of the one before it may still be in TIME_WAIT.
    socket.set_reuseaddr(true).unwrap();
    socket.bind(format!("{}:22", service.pod()).parse().unwrap()).unwrap();
    socket.listen(1024).unwrap()
}

async fn accept(listener: TcpListener, bytes: Arc<Bytes>) {
    // Dropped with this task, and with it every connection.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        // A process that is killed in the middle of things leaves resets behind.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        let bytes = Arc::clone(&bytes);
        connections.spawn(async move { serve(stream, &bytes).await.ok() });
        while connections.try_join_next().is_some() {}
    }
}

/// An SSH server as far as the proxy can see. It ends in order when its client does.
async fn serve(stream: TcpStream, bytes: &Bytes) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(ANSWER).await?;
    bytes.sent(ANSWER.len());
    let mut line = String::new();
    for _ in 0..2 {
        line.clear();
        bytes.received(stream.read_line(&mut line).await?);
    }
    let mut words = line.split_whitespace();
    match (words.next(), words.next().and_then(|size| size.parse::<usize>().ok())) {
        (Some("send"), Some(size)) => send(&mut stream, size, bytes).await?,
        (Some("take"), Some(size)) => take(&mut stream, size, bytes).await?,
        _ => echo(&mut stream, bytes).await?,
    }
    let mut rest = Vec::new();
    bytes.received(stream.read_to_end(&mut rest).await?);
    stream.shutdown().await?;
    // Orderly from here on.
    SockRef::from(stream.get_ref()).set_linger(None)
}

async fn echo(stream: &mut BufReader<TcpStream>, bytes: &Bytes) -> io::Result<()> {
    let mut room = [0; 4096];
    loop {
        let read = stream.read(&mut room).await?;
        if read == 0 {
            return Ok(());
        }
        bytes.received(read);
        stream.write_all(&room[..read]).await?;
        bytes.sent(read);
    }
}

async fn send(stream: &mut BufReader<TcpStream>, size: usize, bytes: &Bytes) -> io::Result<()> {
    let chunk = vec![b'.'; CHUNK];
    let mut left = size;
    while left > 0 {
        let sent = stream.write(&chunk[..left.min(CHUNK)]).await?;
        bytes.sent(sent);
        left -= sent;
    }
    Ok(())
}

async fn take(stream: &mut BufReader<TcpStream>, size: usize, bytes: &Bytes) -> io::Result<()> {
    let mut room = vec![0; CHUNK];
    let mut left = size;
    while left > 0 {
        let read = stream.read(&mut room[..left.min(CHUNK)]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.received(read);
        left -= read;
    }
    // It says that it has all.
    stream.write_all(b"!").await?;
    bytes.sent(1);
    Ok(())
}

/// The first line of every pod.
pub(crate) const ANSWER: &[u8] = b"SSH-2.0-target\r\n";
const CHUNK: usize = 64 * 1024;
