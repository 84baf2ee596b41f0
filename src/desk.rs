//! `desk`: a page for operators, on loopback of the operator's computer. It shows what the replicas answer and passes on what
//! the operator changes.
//!
//! The page's own files are for every browser that comes by the right name; all else needs the secret of the address that
//! is printed. Nothing is remembered after the end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use self::hub::Hub;
pub use self::opening::Opening;
use self::secret::DeskSecret;
use crate::net::listener;
use crate::operator::Replicas;

mod assets;
mod guard;
mod hub;
mod known;
mod latest;
mod opening;
mod refusals;
mod routes;
mod secret;
mod server;
mod survey;
mod targets;

/// A page that is served until it is dropped.
#[derive(Debug)]
pub struct Desk {
    /// The address that opens the page, with the secret behind its `#`: browsers send that part nowhere.
    pub url: String,
    _serving: AbortOnDropHandle<()>,
    _surveying: AbortOnDropHandle<()>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The address to listen on is for other computers.
    #[error("{0} is no loopback address: the page is for browsers of this computer only")]
    NotLoopback(SocketAddr),
    /// The port cannot be had.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes for a secret")]
    NoSecret,
}

impl Desk {
    /// Serves the page of those replicas. Needs a runtime.
    ///
    /// # Errors
    /// See [`DeskError`].
    pub fn start(address: SocketAddr, replicas: Replicas) -> Result<Self, DeskError> {
        if !address.ip().to_canonical().is_loopback() {
            return Err(DeskError::NotLoopback(address));
        }
        let secret = DeskSecret::new().ok_or(DeskError::NoSecret)?;
        let (listener, bound) = listen(address).map_err(|error| DeskError::Listen(address, error))?;
        let url = format!("http://{bound}/#{}", secret.expose());
        let hub = Arc::new(Hub::new(replicas));
        let surveying = tokio::spawn(survey::run(Arc::clone(&hub)));
        let serving = tokio::spawn(server::run(listener, routes::router(hub, secret, bound)));
        Ok(Self {
            url,
            _serving: AbortOnDropHandle::new(serving),
            _surveying: AbortOnDropHandle::new(surveying),
        })
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = listener::bind(&address.into())?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}
