//! TLS with clients: certificates that are reloaded when their files change, and one deadline for each handshake.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ProducesTickets;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::files::{FileContents, FileWarning};
pub use self::files::{FileError, TlsFile};
pub use self::handshake::{ClientTls, CompletedHandshake, FailureCause, HandshakeFailure};
use self::material::Material;
pub use self::settings::{CertificatePaths, ClientAuth, CrlExpired, Mode, Settings};
pub use self::stream::TlsStream;
use crate::base::follow::{self, ReadHistory, ReloadResult, settled};
pub use crate::net::x509::{CertificateNames, PemError};

mod crl;
mod files;
mod handshake;
mod material;
mod server_certificate;
mod settings;
mod sni;
mod stream;
mod verifier;

/// The TLS of a process. A handshake in progress keeps the certificates it began with; a session needs none.
#[derive(Debug)]
pub struct Tls {
    server: RwLock<ServerTls>,
    file_states: Mutex<FileState>,
    history: Mutex<ReadHistory>,
    /// The longest handshake.
    handshake: Duration,
}

#[derive(Debug)]
struct FileState {
    settings: Settings,
    /// Used if clients are not asked for certificates. Its keys survive reloads; they change every six hours, and are
    /// valid for six more.
    ticketer: Arc<dyn ProducesTickets>,
    material: Material,
    /// The remarks that have been returned since the files were loaded.
    remarked: HashSet<String>,
}

impl Settings {
    /// Reads the files, and returns warnings for an operator, such as that a certificate has expired.
    ///
    /// # Errors
    /// The reasons why they cannot be used.
    pub fn check_files(&self) -> Result<Vec<FileError>, Vec<FileError>> {
        let read = settled(None, Duration::ZERO, || FileContents::read(self));
        let (contents, _) = read.map_err(|reason| vec![FileError::from_system(reason)])?;
        let material = Material::new(self, &contents)?;
        Ok(true_now(&material.warnings).cloned().collect())
    }
}

fn true_now(warnings: &[FileWarning]) -> impl Iterator<Item = &FileError> {
    let now = UnixTime::now().as_secs().try_into().unwrap_or(i64::MAX);
    let are_true = warnings.iter().filter(move |(_, applies)| applies.contains(&now));
    are_true.map(|(remark, _)| remark)
}

impl Tls {
    /// Reads the files for the first time. `handshake`: the longest handshake, from its first byte to its last.
    ///
    /// # Errors
    /// Every error in them.
    pub fn new(settings: Settings, handshake: Duration) -> Result<Self, Vec<FileError>> {
        let ticketer = Ticketer::new().map_err(|reason| vec![FileError::from_system(reason.to_string())])?;
        let tls = Self {
            server: RwLock::default(),
            file_states: Mutex::new(FileState {
                settings,
                ticketer,
                material: Material::default(),
                remarked: HashSet::new(),
            }),
            history: Mutex::default(),
            handshake,
        };
        match tls.reload() {
            ReloadResult::Invalid(faults) => Err(faults),
            ReloadResult::Deferred(reason) => Err(vec![FileError::from_system(reason)]),
            ReloadResult::Unchanged | ReloadResult::Loaded => Ok(tls),
        }
    }

    /// Makes [`reload`](Self::reload) read the files of these settings from now on.
    pub fn configure(&self, settings: Settings) {
        // Locked in the order of `reload`. A reading that has begun for other settings no longer counts.
        let (mut history, mut known) = (self.history.lock(), self.file_states.lock());
        if known.settings != settings {
            known.settings = settings;
            history.restart();
        }
    }

    /// Reads the files, and serves what they hold if that has changed. It blocks.
    pub fn reload(&self) -> ReloadResult<FileError> {
        let read = || {
            let settings = self.file_states.lock().settings.clone();
            FileContents::read(&settings)
        };
        // Without a pause: a mounted Secret is swapped as a whole.
        follow::reload(&self.history, Duration::ZERO, read, |contents| {
            let mut known = self.file_states.lock();
            let material = Material::new(&known.settings, &contents)?;
            let config = material.config(&known.ticketer).map(Arc::new);
            let verifier = material.verifier.clone();
            *self.server.write() = ServerTls { config, verifier };
            (known.material, known.remarked) = (material, HashSet::new());
            Ok(())
        })
    }

    /// Returns the interval at which to [`reload`](Self::reload).
    pub fn poll(&self) -> Duration {
        self.file_states.lock().settings.poll
    }

    /// Returns the path of each certificate that serves, as in the configuration, and its expiry in seconds since 1970.
    pub fn expiries(&self) -> Vec<(String, i64)> {
        self.file_states.lock().material.expiries.clone()
    }

    /// Returns the name of each authority that has a revocation list, and its nextUpdate in seconds since 1970.
    pub fn next_updates(&self) -> Vec<(String, i64)> {
        self.file_states.lock().material.next_updates.clone()
    }

    /// Returns the remarks that are true now, and were not returned since the files were loaded.
    pub fn new_remarks(&self) -> Vec<String> {
        let FileState { material, remarked, .. } = &mut *self.file_states.lock();
        let remarks = true_now(&material.warnings).map(ToString::to_string);
        remarks.filter(|remark| remarked.insert(remark.clone())).collect()
    }

    /// Does the handshake with a client before `deadline`. `read`: the bytes read before it.
    ///
    /// # Errors
    /// Why it failed. The client has been sent an alert if that is possible.
    pub async fn accept(
        &self,
        stream: TcpStream,
        read: Vec<u8>,
        deadline: Instant,
    ) -> Result<CompletedHandshake, HandshakeFailure> {
        let config = self.server.read().config.clone();
        let deadline = deadline.min(Instant::now() + self.handshake);
        handshake::accept(stream, read, config, deadline).await
    }

    /// Returns whether a new handshake would still accept the client's certificates: they may have expired, and the
    /// authorities, the revocation lists or `client_auth` may have changed.
    pub fn trusts(&self, client: &ClientTls) -> bool {
        let server = self.server.read().clone();
        server.verify(&client.certificates).is_ok()
    }
}

/// The configuration of new handshakes.
#[derive(Clone, Debug, Default)]
struct ServerTls {
    /// `None` without certificates.
    config: Option<Arc<ServerConfig>>,
    /// The verifier of client certificates; `None` if clients are not asked for one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl ServerTls {
    /// Verifies the certificates of a client as a new handshake would now.
    fn verify(&self, certificates: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        match (&self.verifier, certificates.split_first()) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)),
            (Some(verifier), None) if verifier.client_auth_mandatory() => Err(rustls::Error::NoCertificatesPresented),
            (Some(_), None) => Ok(()),
            (Some(verifier), Some((own, others))) => {
                verifier.verify_client_cert(own, others, UnixTime::now()).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests;
