//! Makes certificates and a verifier from the files, or finds every error of each file.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};

use super::files::{FileContents, FileError, FileWarning};
use super::server_certificate;
use super::settings::{ClientAuth, Settings};
use super::sni::SniResolver;
use super::verifier;

/// The certificates and the verifier that the files hold.
#[derive(Debug, Default)]
pub(super) struct Material {
    /// Each with its DNS names.
    certificates: Vec<(Arc<CertifiedKey>, Vec<Box<str>>)>,
    /// The verifier of client certificates; `None` if clients are not asked for one.
    pub(super) verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The path of each certificate, and its expiry in seconds since 1970.
    pub(super) expiries: Vec<(String, i64)>,
    /// The name of each authority with a revocation list, and its earliest nextUpdate, in seconds since 1970.
    pub(super) next_updates: Vec<(String, i64)>,
    pub(super) warnings: Vec<FileWarning>,
}

impl Material {
    pub(super) fn new(settings: &Settings, contents: &FileContents) -> Result<Self, Vec<FileError>> {
        let (mut material, mut faults) = (Self::default(), Vec::new());
        for (cert, key) in &contents.pairs {
            match server_certificate::read(cert, key, &provider()) {
                Ok((certified, chain)) => {
                    material.certificates.push((Arc::new(certified), chain.names));
                    material.expiries.push(chain.expiry);
                    material.warnings.extend(chain.warnings);
                }
                Err(found) => faults.extend(found),
            }
        }
        if let Some(authorities) = contents.client_ca.as_ref()
            && settings.client_auth != ClientAuth::Off
        {
            let files = (authorities, contents.crl.as_ref());
            match verifier::client_verifier(settings, files, provider(), &mut material.warnings) {
                Ok((verifier, next_updates)) => {
                    material.verifier = Some(verifier);
                    material.next_updates = next_updates;
                }
                Err(found) => faults.extend(found),
            }
        }
        if faults.is_empty() { Ok(material) } else { Err(faults) }
    }

    /// Returns the configuration of new handshakes; `None` without certificates.
    ///
    /// Sessions are resumed, by the ticketer, only where clients are not asked for a certificate. A resumption shows
    /// none, and the certificate of the first handshake may have expired or been revoked since.
    pub(super) fn config(&self, ticketer: &Arc<dyn ProducesTickets>) -> Option<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .ok()?;
        let builder = match &self.verifier {
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
            None => builder.with_no_client_auth(),
        };
        if self.certificates.is_empty() {
            return None;
        }
        let certificates = SniResolver::new(self.certificates.clone());
        let mut config = builder.with_cert_resolver(Arc::new(certificates));
        config.alpn_protocols = ALPN.map(Vec::from).into();
        config.ignore_client_order = true;
        if self.verifier.is_some() {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            config.ticketer = Arc::clone(ticketer);
            // A client opens one connection at a time: a second ticket would go unused.
            config.send_tls13_tickets = 1;
        }
        Some(config)
    }
}

/// Returns the cryptography of this server. A process-wide default would need all crates to agree. AES-128 is first:
/// SSH encrypts again inside.
fn provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite as suites;
    CryptoProvider {
        cipher_suites: vec![
            suites::TLS13_AES_128_GCM_SHA256,
            suites::TLS13_AES_256_GCM_SHA384,
            suites::TLS13_CHACHA20_POLY1305_SHA256,
            suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    }
}

/// The protocols for ALPN, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
