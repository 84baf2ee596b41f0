//! Tunnels over HTTP/2: streams of a connection that a thread of its own drives.

use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Method, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::route::Route;
use crate::secure::{MAX_READ, server_name};
use crate::target::{ANSWER, CHUNK, Role};

/// A connection whose tunnels are open and do what their role says, until its socket is shut.
pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    pub(crate) worker: thread::JoinHandle<io::Result<()>>,
}

impl Connection {
    /// Opens that many tunnels on it. They count in `moved` what they carry.
    pub(crate) fn open(route: Route<'_>, role: Role, tunnels: usize, moved: &'static AtomicU64) -> io::Result<Self> {
        let socket = TcpStream::connect(route.address())?;
        socket.set_nodelay(true)?;
        let name = route.name.ok_or(io::ErrorKind::Unsupported)?.to_owned();
        let secure = route.security.map(|security| TlsConnector::from(security.config()));
        let end = socket.try_clone()?;
        let (tell, told) = mpsc::channel();
        let worker = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async {
                end.set_nonblocking(true)?;
                // h2 reads a frame at a time, and rustls a quarter of one.
                let end = BufReader::with_capacity(MAX_READ, tokio::net::TcpStream::from_std(end)?);
                let tunnels = Tunnels { name, role, tunnels };
                let Some(secure) = secure else {
                    return tunnels.run(end, moved, tell).await;
                };
                let end = secure.connect(server_name(), end).await?;
                Box::pin(tunnels.run(end, moved, tell)).await
            })
        });
        if told.recv().is_err() {
            worker.join().unwrap()?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { socket, worker })
    }
}

/// The tunnels of one connection.
struct Tunnels {
    name: String,
    role: Role,
    tunnels: usize,
}

impl Tunnels {
    async fn run(
        self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        moved: &'static AtomicU64,
        opened: mpsc::Sender<()>,
    ) -> io::Result<()> {
        let handshake = Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(io);
        let (mut client, connection) = handshake.await.map_err(io::Error::other)?;
        let mut workers = JoinSet::new();
        workers.spawn(async { connection.await.map_err(io::Error::other) });
        for _ in 0..self.tunnels {
            client = client.ready().await.map_err(io::Error::other)?;
            let (send, receive) = self.open(&mut client).await?;
            // At once: unread, it would fill the connection's window, and the next had none.
            match self.role {
                Role::Upload => workers.spawn(write_all(send, receive, moved)),
                Role::Download | Role::Echo | Role::Both | Role::Paced(_) | Role::Trickle => {
                    workers.spawn(read_all(send, receive, moved))
                }
            };
        }
        // Nobody waits for it any more if the measurement is over.
        opened.send(()).ok();
        while let Some(done) = workers.join_next().await {
            done.map_err(io::Error::other)??;
        }
        Ok(())
    }

    async fn open(&self, client: &mut SendRequest<Bytes>) -> io::Result<(SendStream<Bytes>, RecvStream)> {
        let request = Request::builder().method(Method::CONNECT).uri(&self.name).body(());
        let request = request.map_err(io::Error::other)?;
        let (response, mut send) = client.send_request(request, false).map_err(io::Error::other)?;
        let response = response.await.map_err(io::Error::other)?;
        if response.status() != StatusCode::OK {
            return Err(io::Error::other(format!("refused: {}", response.status())));
        }
        let mut receive = response.into_body();
        send.send_data(self.role.line().into(), false)
            .map_err(io::Error::other)?;
        let mut answer = 0;
        while answer < ANSWER.len() {
            answer += read(&mut receive).await?;
        }
        Ok((send, receive))
    }
}

/// Holds on to the half that sends: its drop would end the stream.
async fn read_all(_send: SendStream<Bytes>, mut receive: RecvStream, moved: &AtomicU64) -> io::Result<()> {
    loop {
        let read = read(&mut receive).await?;
        moved.fetch_add(read as u64, Ordering::Relaxed);
    }
}

async fn read(receive: &mut RecvStream) -> io::Result<usize> {
    let bytes = receive.data().await.ok_or(io::ErrorKind::UnexpectedEof)?;
    let bytes = bytes.map_err(io::Error::other)?;
    receive
        .flow_control()
        .release_capacity(bytes.len())
        .map_err(io::Error::other)?;
    Ok(bytes.len())
}

async fn write_all(mut send: SendStream<Bytes>, _receive: RecvStream, moved: &AtomicU64) -> io::Result<()> {
    let chunk = Bytes::from(vec![b'x'; CHUNK]);
    loop {
        send.reserve_capacity(CHUNK);
        while send.capacity() == 0 {
            let more = poll_fn(|context| send.poll_capacity(context)).await;
            more.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
        }
        let now = chunk.slice(..send.capacity().min(CHUNK));
        moved.fetch_add(now.len() as u64, Ordering::Relaxed);
        send.send_data(now, false).map_err(io::Error::other)?;
    }
}

/// What a client takes in unasked, of each stream and of all together, as Go's does.
const WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024 * 1024;
