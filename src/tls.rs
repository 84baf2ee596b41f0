//! Speaks TLS with clients: certificates that are read anew when they change, and one deadline for each handshake.

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
pub use self::files::{Expiry, Fault, Part};
pub use self::handshake::{Accepted, Cause, Failed, Peer};
pub use self::identity::Identity;
pub(crate) use self::records::Records;
pub use self::session::Session;
pub use self::settings::{ClientAuth, Mode, Options, Pair, Settings};

mod certificates;
mod files;
mod handshake;
mod identity;
mod records;
mod session;
mod settings;

/// The TLS of a process. Handshakes that run keep what they began with, and sessions need none of it.
#[derive(Debug)]
pub struct Tls {
    serving: RwLock<Serving>,
    known: Mutex<Known>,
    options: Options,
}

/// What handshakes are done by.
#[derive(Clone, Debug, Default)]
struct Serving {
    /// `None` without certificates.
    config: Option<Arc<ServerConfig>>,
    /// What judges the clients' certificates; `None` if nobody is asked for one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// What came of a look at the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// They are as they were at the last one.
    Unchanged,
    /// They are other ones, and serve from now on.
    Loaded,
    /// They are faulty: what was read before serves on.
    Faulty(Vec<Fault>),
}

#[derive(Debug)]
struct Known {
    settings: Settings,
    /// Of the contents that were looked at last.
    fingerprint: Option<u64>,
    /// Of what clients are judged by.
    trust: u64,
    resumption: Resumption,
    expiries: Vec<Expiry>,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Every fault of them.
    pub fn new(settings: Settings, options: Options) -> Result<Self, Vec<Fault>> {
        let tls = Self {
            serving: RwLock::default(),
            known: Mutex::new(Known {
                settings,
                fingerprint: None,
                trust: 0,
                resumption: Resumption::new().map_err(|reason| vec![Fault::of_the_system(&reason)])?,
                expiries: Vec::new(),
            }),
            options,
        };
        match tls.look() {
            Look::Faulty(faults) => Err(faults),
            Look::Unchanged | Look::Loaded => Ok(tls),
        }
    }

    /// Looks at other files from now on, or at the same ones again.
    pub fn configure(&self, settings: Settings) -> Look {
        {
            let mut known = self.known();
            if known.settings != settings {
                known.settings = settings;
                known.fingerprint = None;
            }
        }
        self.look()
    }

    /// Reads the files, and serves by what they say if that has changed.
    ///
    /// Contents are compared, not times: Kubernetes changes a mounted Secret by swapping a symbolic link.
    pub fn look(&self) -> Look {
        let mut known = self.known();
        let contents = Contents::read(&known.settings);
        let fingerprint = Some(contents.fingerprint());
        if std::mem::replace(&mut known.fingerprint, fingerprint) == fingerprint {
            return Look::Unchanged;
        }
        match Material::of(&known.settings, &contents).and_then(|material| known.serve(&contents, material)) {
            Ok(serving) => {
                *self.serving.write() = serving;
                Look::Loaded
            }
            Err(faults) => Look::Faulty(faults),
        }
    }

    /// How often to [`look`](Self::look).
    pub fn poll(&self) -> Duration {
        self.known().settings.poll
    }

    /// Until when each certificate that serves is good.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.known().expiries.clone()
    }

    /// Does the handshake with a client, of which `read` was taken from the socket already, before `deadline`.
    ///
    /// # Errors
    /// Why it failed; the client has been told by an alert where it can be.
    pub async fn accept(&self, stream: TcpStream, read: Vec<u8>, deadline: Instant) -> Result<Accepted, Failed> {
        let config = self.serving().config;
        let deadline = deadline.min(Instant::now() + self.options.handshake);
        handshake::accept(stream, read, config, deadline).await
    }

    /// Whether a client that has come in could do so again by what it has shown: its certificate may have expired, and
    /// the authorities, the revocation list and whether one is asked for may be others by now.
    pub fn trusts(&self, peer: &Peer) -> bool {
        match (self.serving().verifier, peer.certificates.split_first()) {
            (None, shown) => shown.is_none(),
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
    fn serve(&mut self, contents: &Contents, material: Material) -> Result<Serving, Vec<Fault>> {
        self.expiries = material.expiries();
        let trust = contents.trust();
        if std::mem::replace(&mut self.trust, trust) != trust {
            // A session that is resumed shows no certificate again: who was revoked must not come in by an old ticket.
            self.resumption = Resumption::new().map_err(|reason| vec![Fault::of_the_system(&reason)])?;
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

/// What lets a client come back without a full handshake. It outlives the certificates.
#[derive(Debug)]
struct Resumption {
    /// Its keys change every six hours, and the last ones are good for as long again.
    ticketer: Arc<dyn ProducesTickets>,
    /// For clients of TLS 1.2 that take no tickets.
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
