//! The configuration with which a handshake serves.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, ServerConfig};

/// The configuration of new handshakes.
#[derive(Clone, Debug, Default)]
pub(super) struct Serving {
    /// `None` without certificates.
    pub(super) config: Option<Arc<ServerConfig>>,
    /// The verifier of client certificates; `None` if clients are not asked for one.
    pub(super) verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Serving {
    /// Verifies the certificates of a client as a new handshake would now.
    pub(super) fn verify(&self, certificates: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
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
