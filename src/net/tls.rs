//! TLS with clients: certificates that are reloaded when their files change, and one deadline for each handshake.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::files::Contents;
pub use self::files::{FileFault, Part};
pub use self::handshake::{Accepted, Cause, Failed, Peer};
use self::material::Material;
pub use self::pair::Expiry;
use self::serving::Serving;
pub use self::session::Session;
pub use self::settings::{CertificatePaths, ClientAuth, CrlExpired, Mode, Options, Settings};
pub use self::verifier::NextUpdate;
use self::warnings::{Caution, now};
pub use crate::net::x509::{Identity, PemFault};

mod files;
mod handshake;
mod material;
mod pair;
mod revocation;
mod serving;
mod session;
mod settings;
mod sni;
mod verifier;
mod warnings;

/// The TLS of a process. A handshake in progress keeps the certificates it began with; a session needs none.
#[derive(Debug)]
pub struct Tls {
    serving: RwLock<Serving>,
    known: Mutex<Known>,
    options: Options,
    /// Whether a session keeps the certificates of its client, which are verified again while its tunnels run.
    keeps_certificates: AtomicBool,
}

/// The result of reading the files again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// They have not changed.
    Unchanged,
    /// They have changed, and serve from now on.
    Loaded,
    /// They have changed and are faulty: the certificates before serve on.
    Faulty(Vec<FileFault>),
    /// The process was short of descriptors or memory, as the text says: nothing is known of the files.
    Postponed(String),
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
    next_updates: Vec<NextUpdate>,
    cautions: Vec<Caution>,
    /// The remarks that have been returned since the files were loaded.
    remarked: HashSet<String>,
    /// The number of the last read that has begun, and that of the last one whose contents were taken.
    reads: u64,
    taken: u64,
}

impl Settings {
    /// The faults of the files and the remarks about them.
    pub fn judge(&self) -> Judgement {
        match Material::of(self, &Contents::read_changed(self, None)) {
            Ok(material) => Judgement {
                faults: Vec::new(),
                remarks: true_now(&material.cautions()).cloned().collect(),
            },
            Err(faults) => Judgement {
                faults,
                remarks: Vec::new(),
            },
        }
    }
}

/// What there is to say of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Why they cannot be used.
    pub faults: Vec<FileFault>,
    /// What an operator should know although they can, such as a certificate that has expired.
    pub remarks: Vec<FileFault>,
}

fn true_now(cautions: &[Caution]) -> impl Iterator<Item = &FileFault> {
    let now = now();
    cautions.iter().filter_map(move |caution| caution.at(now))
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
                next_updates: Vec::new(),
                cautions: Vec::new(),
                remarked: HashSet::new(),
                reads: 0,
                taken: 0,
            }),
            options,
            keeps_certificates: AtomicBool::new(false),
        };
        match tls.reload() {
            Reloaded::Faulty(faults) => Err(faults),
            Reloaded::Postponed(reason) => Err(vec![FileFault::of_the_system(&rustls::Error::General(reason))]),
            Reloaded::Unchanged | Reloaded::Loaded => Ok(tls),
        }
    }

    /// Reads the files of these settings from now on.
    pub fn configure(&self, settings: Settings) -> Reloaded {
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
    /// Contents are compared, not times: Kubernetes changes a mounted Secret by swapping a symbolic link. Nothing is
    /// locked during the read, which may last until a mount answers: others read meanwhile, and what an earlier read
    /// brings after a later one is out of date.
    pub fn reload(&self) -> Reloaded {
        let (settings, number, before) = {
            let mut known = self.known();
            known.reads += 1;
            (known.settings.clone(), known.reads, known.fingerprint)
        };
        let contents = Contents::read_changed(&settings, before);
        if let Some(reason) = contents.shortage() {
            return Reloaded::Postponed(reason.to_owned());
        }
        let mut known = self.known();
        if known.settings != settings || number < known.taken {
            return Reloaded::Unchanged;
        }
        known.taken = number;
        let fingerprint = Some(contents.fingerprint());
        if std::mem::replace(&mut known.fingerprint, fingerprint) == fingerprint {
            return Reloaded::Unchanged;
        }
        match Material::of(&settings, &contents).and_then(|material| known.serve(&contents, material)) {
            Ok(serving) => {
                *self.serving.write() = serving;
                Reloaded::Loaded
            }
            Err(faults) => Reloaded::Faulty(faults),
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

    /// The nextUpdate of each authority's revocation list.
    pub fn next_updates(&self) -> Vec<NextUpdate> {
        self.known().next_updates.clone()
    }

    /// The remarks about the files that have become true since the last call, or since the files were loaded.
    pub fn new_remarks(&self) -> Vec<String> {
        let Known { cautions, remarked, .. } = &mut *self.known();
        let remarks = true_now(cautions).map(ToString::to_string);
        remarks.filter(|remark| remarked.insert(remark.clone())).collect()
    }

    /// Does the handshake with a client before `deadline`. `read` was read from the socket already.
    ///
    /// # Errors
    /// Why it failed. The client has been sent an alert if that is possible.
    pub async fn accept(&self, stream: TcpStream, read: Vec<u8>, deadline: Instant) -> Result<Accepted, Failed> {
        let serving = self.serving();
        let deadline = deadline.min(Instant::now() + self.options.handshake);
        handshake::accept(stream, read, serving, deadline).await
    }

    /// Whether a client would still be accepted with the certificate of its session: it may have expired, and the
    /// authorities, the revocation list and whether one is required may have changed.
    pub fn trusts(&self, peer: &Peer) -> bool {
        self.serving().verify(&peer.certificates).is_ok()
    }

    /// Has the sessions of further handshakes keep the certificates of their clients, also where they are not verified
    /// for each request: those of users are verified again while tunnels run.
    pub fn keep_certificates(&self, keeps: bool) {
        self.keeps_certificates.store(keeps, Ordering::Relaxed);
    }

    fn serving(&self) -> Serving {
        Serving {
            keeps_certificates: self.keeps_certificates.load(Ordering::Relaxed),
            ..self.serving.read().clone()
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl Known {
    fn serve(&mut self, contents: &Contents, material: Material) -> Result<Serving, Vec<FileFault>> {
        self.expiries = material.expiries();
        self.next_updates = material.next_updates();
        self.cautions = material.cautions();
        self.remarked.clear();
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
        Ok(Serving {
            config,
            verifier,
            keeps_certificates: false,
        })
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

#[cfg(test)]
mod tests;
