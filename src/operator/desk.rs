//! `desk`: a page for operators, on loopback of the operator's computer. It shows the state of the replicas and sends them
//! the operator's changes.
//!
//! The page's own files are served to every browser that uses the right name; all else needs the secret in the printed
//! address. The state is kept in memory only.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use self::guard::DeskSecret;
use self::hub::Hub;
use crate::daemon::connections;
use crate::daemon::vital::keep_running;
use crate::net::listener;
use crate::operator::replicas::Replicas;

mod guard;
mod hub;
mod routes;
mod state;

/// A page that is served until it is dropped.
#[derive(Debug)]
pub struct Desk {
    /// The address that opens the page, with the secret after its `#`: browsers do not send that part.
    pub url: String,
    _serving: AbortOnDropHandle<()>,
    _asking: AbortOnDropHandle<()>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The address to listen on is not a loopback address.
    #[error("{0} is not a loopback address: the page is for browsers of this computer only")]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes for a secret")]
    NoSecret,
}

impl Desk {
    /// Serves the page for these replicas. Needs a runtime.
    ///
    /// # Errors
    /// See [`DeskError`].
    pub fn start(address: SocketAddr, replicas: Replicas) -> Result<Self, DeskError> {
        if !address.ip().to_canonical().is_loopback() {
            return Err(DeskError::NotLoopback(address));
        }
        let secret = DeskSecret::new().ok_or(DeskError::NoSecret)?;
        let listener = listener::bind(&address.into()).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (bound, listener) = listener.map_err(|error| DeskError::Listen(address, error))?;
        let url = format!("http://{bound}/#{}", secret.expose());
        let hub = Arc::new(Hub::new(replicas));
        let own = Arc::clone(&hub);
        let asks = keep_running("the task that asks the replicas", move || hub::run(Arc::clone(&own)));
        let asking = tokio::spawn(asks);
        let serving = tokio::spawn(run(listener, routes::router(hub, secret, bound)));
        Ok(Self {
            url,
            _serving: AbortOnDropHandle::new(serving),
            _asking: AbortOnDropHandle::new(asking),
        })
    }
}

/// Serves until it is dropped.
async fn run(listener: TcpListener, router: Router) {
    let serve = move |stream, _| {
        let conversing = timeout(CONNECTION_TIMEOUT, converse(stream, router.clone()));
        // A peer that disconnects or stalls is not an error here.
        async { conversing.await.map_or((), |_| ()) }
    };
    connections::accept(listener, MAX_CONNECTIONS, serve).await;
}

async fn converse(stream: TcpStream, router: Router) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // A page polls once a second, and a connection on loopback costs nothing.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

/// A file that redirects a browser to an address; removed on drop.
///
/// Every user of a computer may read the arguments of a program, but only this user may read the file.
#[derive(Debug)]
pub struct BrowserLaunch {
    file: PathBuf,
    program: Option<Child>,
}

impl BrowserLaunch {
    /// Opens an address in the user's browser.
    ///
    /// # Errors
    /// The file cannot be written, or there is no xdg-open.
    pub fn new(url: &str) -> io::Result<Self> {
        // A random name: the file of a desk that was killed may still exist.
        let mut number = [0; 8];
        rand::fill(&mut number).map_err(|_| io::Error::other("the system gives no random bytes"))?;
        let name = format!("switchboard-desk-{:016x}.html", u64::from_ne_bytes(number));
        let file = env::temp_dir().join(name);
        let mut written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)?;
        let mut opening = Self { file, program: None };
        write!(
            written,
            "<!doctype html><meta name=\"referrer\" content=\"no-referrer\">\
             <meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>switchboard desk</title>"
        )?;
        let mut program = Command::new("xdg-open");
        let program = program.arg(&opening.file).stdin(Stdio::null()).stdout(Stdio::null());
        opening.program = Some(program.spawn()?);
        Ok(opening)
    }
}

impl Drop for BrowserLaunch {
    fn drop(&mut self) {
        // The file may have been removed.
        fs::remove_file(&self.file).unwrap_or_default();
        if let Some(program) = &mut self.program {
            // Reaps xdg-open, if it has ended. If it has become the browser, it goes on.
            program.try_wait().ok();
        }
    }
}

/// One more connection evicts the oldest.
const MAX_CONNECTIONS: NonZeroU32 = NonZeroU32::new(128).unwrap();
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// For the request and its answer, which may need requests to replicas.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
