//! Ports of this host: each connection to one is a `connect` of its own, for programs without a ProxyCommand.

use std::io;
use std::net::{SocketAddr, TcpListener as Listener};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::io::{Interest, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connect::run::{self, ProxyAccess};
use super::connect::signals::{ExitRequest, ExitSignals};
use super::connect::stdio::Stdio;
use super::connect::{in_band, runtime, sentence};
use super::options::Options;
use super::stderr::{self, UserOutput};
use crate::base::platform::Signals;
use crate::uplink::credential_cache::CachedLogin;

/// A port that leads to one target.
#[derive(Debug)]
pub struct Port {
    listener: Listener,
    options: Options,
}

impl Port {
    /// Opens a port; 0 is any free one.
    ///
    /// # Errors
    /// The port is taken, or the system refuses it.
    pub fn bind(address: SocketAddr, options: Options) -> anyhow::Result<Self> {
        let opened = Listener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match opened {
            Ok(listener) => Ok(Self { listener, options }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                bail!("cannot listen on {address}: another program listens there")
            }
            Err(error) => Err(error).context(format!("cannot listen on {address}")),
        }
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// That of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Serves the ports until a signal, and then for up to 5 s the connections that are left.
///
/// # Errors
/// The event loop cannot be started.
pub fn command(ports: Vec<Port>) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    runtime.block_on(serve_all(ports))?;
    // A lookup may still run.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn serve_all(ports: Vec<Port>) -> io::Result<()> {
    let mut signals = Signals::listen();
    let (ask, exit) = watch::channel(ExitRequest::No);
    let service = Service {
        slots: Arc::new(Semaphore::new(MAX_CONNECTIONS as usize)),
        exit: ExitSignals(exit),
        user: bounded(),
    };
    let mut accepting = JoinSet::new();
    for Port { listener, options } in ports {
        accepting.spawn(service.clone().accept(TcpListener::from_std(listener)?, options));
    }
    signals.next().await;
    // Closes the ports.
    accepting.shutdown().await;
    let all_ended = || service.slots.acquire_many(MAX_CONNECTIONS);
    if timeout(END_TIMEOUT, all_ended()).await.is_err() {
        ask.send_replace(ExitRequest::Immediate);
        timeout(CLOSE_TIMEOUT, all_ended()).await.ok();
    }
    Ok(())
}

/// The parts that all ports share.
#[derive(Clone)]
struct Service {
    slots: Arc<Semaphore>,
    exit: ExitSignals,
    user: UserOutput,
}

impl Service {
    /// Accepts connections until it is cancelled.
    async fn accept(self, listener: TcpListener, mut options: Options) {
        let (target, user) = (options.target.clone(), self.user.clone());
        options.output = UserOutput(Arc::new(move |line| (user.0)(&format!("{target}: {line}"))));
        let login = CachedLogin::default();
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    (self.user.0)(&format!("cannot accept a connection: {error}"));
                    sleep(ACCEPT_INTERVAL).await;
                    continue;
                }
            };
            if self.slots.available_permits() == 0 {
                (self.user.0)(&format!("{MAX_CONNECTIONS} connections are open: further ones wait"));
            }
            // Never closed: the semaphore ends with the process.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                return;
            };
            let (options, exit, user) = (options.clone(), self.exit.clone(), self.user.clone());
            let login = login.clone();
            tokio::spawn(async move {
                serve(stream, (&options, login), exit, &user).await;
                drop(slot);
            });
        }
    }
}

/// Runs one connection of a program to its end, and reports a failure in band and on stderr.
pub(super) async fn serve(
    stream: TcpStream,
    (options, login): (&Options, CachedLogin),
    exit: ExitSignals,
    user: &UserOutput,
) {
    // A program that looks for open ports sends nothing: no credential plugin is run for it.
    if let Ok(Ok(0) | Err(_)) = timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut [0])).await {
        return;
    }
    // Without it keystrokes wait for an acknowledgement; the connection works.
    stream.set_nodelay(true).unwrap_or_default();
    let (stdin, stdout) = stream.into_split();
    let mut local = in_band::wrap(Stdio {
        stdin,
        stdout,
        interactive: false,
        ends_with_target: true,
        is_abandoned: None,
    });
    local.is_abandoned = Some(|stdout| has_left(stdout.stream.as_ref()));
    let mut access = ProxyAccess {
        login,
        ..ProxyAccess::default()
    };
    let ended = Box::pin(run::run(options, &mut local, exit, &mut access)).await;
    if ended.is_ok() {
        // Its program reads the last bytes first: a close with bytes unread would be a reset.
        timeout(END_TIMEOUT, copy(&mut local.stdin, &mut sink())).await.ok();
    }
    if let Err(error) = ended
        && !has_left(local.stdout.stream.as_ref())
    {
        (user.0)(&sentence(options, &error));
        in_band::disconnect_ssh(&mut local, &error, &options.target).await;
    }
}

/// Returns whether the program has closed its connection. SSH ends no direction alone.
fn has_left(stream: &TcpStream) -> bool {
    let ready = pin!(stream.ready(Interest::READABLE));
    match ready.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready.is_read_closed(),
        Poll::Ready(Err(_)) => true,
        Poll::Pending => false,
    }
}

/// Returns an output for the lines of all connections: a program that connects again and again fills no log.
fn bounded() -> UserOutput {
    let written = Mutex::new((Instant::now(), 0_u32));
    UserOutput(Arc::new(move |line| {
        let mut written = written.lock();
        if written.0.elapsed() >= LINES_INTERVAL {
            *written = (Instant::now(), 0);
        }
        written.1 = written.1.saturating_add(1);
        match written.1 {
            ..MAX_LINES => stderr::line(line),
            MAX_LINES => stderr::line(&format!("{line} (the further lines of this minute are left out)")),
            _ => {}
        }
    }))
}

/// The connections at once. Each takes two descriptors, and macOS allows a process 256.
const MAX_CONNECTIONS: u32 = 100;
/// The pause after a failed accept, such as one without a free descriptor.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);
/// The wait for the first byte of a program, which most SSH clients send at once. Others wait for the server's.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);
/// After a signal: the time for connections to end by themselves.
const END_TIMEOUT: Duration = Duration::from_secs(4);
/// The time for anchors to learn that sessions are over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_LINES: u32 = 20;
const LINES_INTERVAL: Duration = Duration::from_secs(60);
