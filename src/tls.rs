//! TLS with clients: certificates that are reloaded when their files change, and one deadline for each handshake.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::files::{Contents, Material};
pub use self::files::{Expiry, FileFault, Part};
pub use self::handshake::{Accepted, Cause, Failed, Peer};
pub use self::identity::Identity;
pub(crate) use self::records::Records;
pub use self::session::Session;
pub use self::settings::{CertificatePaths, ClientAuth, Mode, Options, Settings};

mod certificates;
mod files;
mod handshake;
mod identity;
mod records;
mod session;
mod settings;

/// The TLS of a process. A handshake in progress keeps the certificates it began with; a session needs none.
#[derive(Debug)]
pub struct Tls {
    serving: RwLock<Serving>,
    known: Mutex<Known>,
    options: Options,
}

/// The configuration of new handshakes.
#[derive(Clone, Debug, Default)]
struct Serving {
    /// `None` without certificates.
    config: Option<Arc<ServerConfig>>,
    /// The verifier of client certificates; `None` if clients are not asked for one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// The result of reading the files again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They have not changed.
    Unchanged,
    /// They have changed, and serve from now on.
    Loaded,
    /// They have changed and are faulty: the certificates before serve on.
    Faulty(Vec<FileFault>),
}

#[derive(Debug)]
struct Known {
    settings: Settings,
    /// Of the contents that were read last.
    fingerprint: Option<u64>,
    /// Of what client certificates are verified against.
    trust: u64,
    resumption: Resumption,
    expiries: Vec<Expiry>,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Every fault of them.
    pub fn new(settings: Settings, options: Options) -> Result<Self, Vec<FileFault>> {
        let tls = Self {
            serving: RwLock::default(),
            known: Mutex::new(Known {
                settings,
                fingerprint: None,
                trust: 0,
                resumption: Resumption::new().map_err(|reason| vec![FileFault::of_the_system(&reason)])?,
                expiries: Vec::new(),
            }),
            options,
        };
        match tls.reload() {
            Reload::Faulty(faults) => Err(faults),
            Reload::Unchanged | Reload::Loaded => Ok(tls),
        }
    }

    /// Reads the files of these settings from now on.
    pub fn configure(&self, settings: Settings) -> Reload {
        {
            let mut known = self.known();
            if known.settings != settings {
                known.settings = settings;
                known.fingerprint = None;
            }
        }
        self.reload()
    }

    /// Reads the files, and serves what they hold if that has changed.
    ///
    /// Contents are compared, not times: Kubernetes changes a mounted Secret by swapping a symbolic link.
    pub fn reload(&self) -> Reload {
        let mut known = self.known();
        let contents = Contents::read(&known.settings);
        let fingerprint = Some(contents.fingerprint());
        if std::mem::replace(&mut known.fingerprint, fingerprint) == fingerprint {
            return Reload::Unchanged;
        }
        match Material::of(&known.settings, &contents).and_then(|material| known.serve(&contents, material)) {
            Ok(serving) => {
                *self.serving.write() = serving;
                Reload::Loaded
            }
            Err(faults) => Reload::Faulty(faults),
        }
    }

    /// The interval at which to [`reload`](Self::reload).
    pub fn poll(&self) -> Duration {
        self.known().settings.poll
    }

    /// The expiry of each certificate that serves.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.known().expiries.clone()
    }

    /// Does the handshake with a client before `deadline`. `read` was read from the socket already.
    ///
    /// # Errors
    /// Why it failed. The client has been sent an alert if that is possible.
    pub async fn accept(&self, stream: TcpStream, read: Vec<u8>, deadline: Instant) -> Result<Accepted, Failed> {
        let config = self.serving().config;
        let deadline = deadline.min(Instant::now() + self.options.handshake);
        handshake::accept(stream, read, config, deadline).await
    }

    /// Whether a client would still be accepted with the certificate of its session: it may have expired, and the
    /// authorities, the revocation list and whether one is required may have changed.
    pub fn trusts(&self, peer: &Peer) -> bool {
        match (self.serving().verifier, peer.certificates.split_first()) {
            (None, presented) => presented.is_none(),
            (Some(verifier), None) => !verifier.client_auth_mandatory(),
            (Some(verifier), Some((own, others))) => {
                let verified = verifier.verify_client_cert(own, others, UnixTime::now());
                verified.is_ok()
            }
        }
    }

    fn serving(&self) -> Serving {
        self.serving.read().clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl Known {
    fn serve(&mut self, contents: &Contents, material: Material) -> Result<Serving, Vec<FileFault>> {
        self.expiries = material.expiries();
        let trust = contents.trust();
        if std::mem::replace(&mut self.trust, trust) != trust {
            // A resumed session presents no certificate again: a revoked one must not be accepted by an old ticket.
            self.resumption = Resumption::new().map_err(|reason| vec![FileFault::of_the_system(&reason)])?;
        }
        let verifier = material.verifier();
        let config = material.into_config().map(|mut config| {
            config.ticketer = Arc::clone(&self.resumption.ticketer);
            config.session_storage = Arc::clone(&self.resumption.sessions) as Arc<dyn StoresServerSessions>;
            Arc::new(config)
        });
        Ok(Serving { config, verifier })
    }
}

/// The state that resumes sessions without a full handshake. It outlives the certificates.
#[derive(Debug)]
struct Resumption {
    /// Its keys change every six hours, and the last ones are valid for as long again.
    ticketer: Arc<dyn ProducesTickets>,
    /// For TLS 1.2 clients without session tickets.
    sessions: Arc<ServerSessionMemoryCache>,
}

impl Resumption {
    fn new() -> Result<Self, rustls::Error> {
        Ok(Self {
            ticketer: rustls::crypto::aws_lc_rs::Ticketer::new()?,
            sessions: ServerSessionMemoryCache::new(MOST_SESSIONS),
        })
    }
}

const MOST_SESSIONS: usize = 1024;
