//! Makes certificates and a verifier of the files, or finds every fault of each file.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};

use super::files::{Contents, FileFault, Part, PemFile};
use super::pair::{self, Expiry, Pair};
use super::settings::{ClientAuth, Settings};
use super::sni::Certificates;
use super::verifier::{self, NextUpdate};
use super::warnings::Caution;

/// The certificates and the verifier that the files hold.
#[derive(Debug)]
pub(super) struct Material {
    pairs: Vec<Pair>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    next_updates: Vec<NextUpdate>,
    cautions: Vec<Caution>,
}

impl Material {
    pub(super) fn of(settings: &Settings, contents: &Contents) -> Result<Self, Vec<FileFault>> {
        let mut faults = Vec::new();
        let mut pairs = Vec::new();
        let mut cautions = Vec::new();
        for (index, (paths, (cert, key))) in settings.certificates.iter().zip(&contents.pairs).enumerate() {
            let cert = PemFile {
                part: Part::Certificate(index),
                path: &paths.cert,
                bytes: cert,
            };
            let key = PemFile {
                part: Part::Key(index),
                path: &paths.key,
                bytes: key,
            };
            match pair::read(cert, key, &provider()) {
                Ok(mut pair) => {
                    cautions.append(&mut pair.cautions);
                    pairs.push(pair);
                }
                Err(found) => faults.extend(found),
            }
        }
        let mut material = Self {
            pairs,
            verifier: None,
            next_updates: Vec::new(),
            cautions,
        };
        if let Err(found) = material.verify_clients(settings, contents) {
            faults.extend(found);
        }
        if faults.is_empty() { Ok(material) } else { Err(faults) }
    }

    fn verify_clients(&mut self, settings: &Settings, contents: &Contents) -> Result<(), Vec<FileFault>> {
        if settings.client_auth == ClientAuth::Off {
            return Ok(());
        }
        let file = |part, path, bytes| PemFile { part, path, bytes };
        let (Some(path), Some(bytes)) = (settings.client_ca.as_deref(), &contents.client_ca) else {
            return Ok(());
        };
        let list = settings.crl.as_deref().zip(contents.crl.as_ref());
        let files = verifier::Files {
            authorities: file(Part::ClientCa, path, bytes),
            lists: list.map(|(path, bytes)| file(Part::Crl, path, bytes)),
        };
        let made = verifier::of(settings, files, &Arc::new(provider()))?;
        self.verifier = Some(made.verifier);
        self.next_updates = made.next_updates;
        self.cautions.extend(made.cautions);
        Ok(())
    }

    pub(super) fn expiries(&self) -> Vec<Expiry> {
        self.pairs.iter().map(|pair| pair.expiry.clone()).collect()
    }

    pub(super) fn next_updates(&self) -> Vec<NextUpdate> {
        self.next_updates.clone()
    }

    pub(super) fn cautions(&self) -> Vec<Caution> {
        self.cautions.clone()
    }

    /// The verifier of client certificates; `None` if clients are not asked for one.
    pub(super) fn verifier(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        self.verifier.clone()
    }

    /// The configuration of new handshakes; `None` without certificates.
    ///
    /// Sessions are resumed, by the ticketer, only where clients are not asked for a certificate: a resumed session shows
    /// none, and it may have expired or been revoked since.
    pub(super) fn into_config(self, ticketer: &Arc<dyn ProducesTickets>) -> Option<ServerConfig> {
        let is_asked = self.verifier.is_some();
        let builder = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .ok()?;
        let builder = match self.verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        if self.pairs.is_empty() {
            return None;
        }
        let certificates: Vec<(Arc<CertifiedKey>, _)> =
            self.pairs.into_iter().map(|pair| (pair.key, pair.names)).collect();
        let mut config = builder.with_cert_resolver(Arc::new(Certificates::new(certificates)));
        config.alpn_protocols = ALPN.map(Vec::from).into();
        config.ignore_client_order = true;
        if is_asked {
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

/// Named, as a process-wide default is for its crates to agree on. AES-128 first: SSH encrypts once more inside.
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
