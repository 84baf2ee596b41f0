//! The verification of a server's certificate: that of the proxy, of the API server, or of an issuer.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use crate::base::file;
use crate::net::x509::pem::items;
use crate::net::x509::presented::{TrustedCertificates, Usage, distrust, is_trusted_itself, is_valid_at};
use crate::net::x509::{MAX_PEM_BYTES, PemError};

/// The place of a server's certificate in sentences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The setting that names the certificates to trust.
    setting: &'static str,
    /// The end of the sentence about a certificate for another name.
    hint: &'static str,
}

impl Peer {
    /// The proxy.
    pub(crate) const PROXY: Self = Self {
        setting: "--ca",
        hint: " (--server-name sets the name that it must have)",
    };
    /// The API server of a cluster.
    pub(crate) const API_SERVER: Self = Self {
        setting: "certificate-authority",
        hint: " (tls-server-name in the kubeconfig sets the name that it must have)",
    };
    /// An issuer of OIDC, which publishes its keys.
    pub(crate) const ISSUER: Self = Self {
        setting: "ca",
        hint: "",
    };
}

/// Verifies a server's certificate as webpki does, but also accepts one that is itself trusted, and no authority that has
/// expired.
#[derive(Debug)]
pub(crate) struct Verifier {
    /// `None` accepts every certificate.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    /// True if no authority is valid.
    is_expired: bool,
    trusted: TrustedCertificates,
    peer: Peer,
}

/// The reason why a certificate is not trusted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct DistrustError(String);

impl Verifier {
    /// Trusts the certificates in a PEM text.
    ///
    /// # Errors
    /// The first fault in the text.
    pub(crate) fn of_text(pem: &[u8], peer: Peer) -> anyhow::Result<Self> {
        Self::new(certificates(pem)?, peer, false)
    }

    /// Trusts the certificates of the system.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn of_system(peer: Peer) -> anyhow::Result<Self> {
        // The library skips what it cannot read in the file.
        let fault = std::env::var_os("SSL_CERT_FILE").and_then(|path| {
            let certificates = read(path.as_ref()).and_then(|bytes| certificates(&bytes));
            Some(format!("SSL_CERT_FILE: {}: {}", path.display(), certificates.err()?))
        });
        let system = rustls_native_certs::load_native_certs();
        if !system.certs.is_empty() {
            let mut verifier = Self::new(system.certs, peer, true)?;
            verifier.trusted.fault = fault;
            return Ok(verifier);
        }
        let setting = peer.setting;
        let text = format!("the system has no trusted certificates: give the server's with {setting}");
        let fault = fault.or_else(|| Some(system.errors.first()?.to_string()));
        Err(fault.map_or_else(|| anyhow!(text.clone()), |fault| anyhow!("{text}: {fault}")))
    }

    /// Accepts every certificate.
    pub(crate) fn of_none(peer: Peer) -> Self {
        Self {
            webpki: None,
            is_expired: false,
            trusted: TrustedCertificates {
                listed: Vec::new(),
                setting: peer.setting,
                are_of_system: false,
                fault: None,
            },
            peer,
        }
    }

    fn new(listed: Vec<CertificateDer<'static>>, peer: Peer, are_of_system: bool) -> anyhow::Result<Self> {
        let now = UnixTime::now();
        let (mut valid, mut others) = (RootCertStore::empty(), RootCertStore::empty());
        for (number, certificate) in (1..).zip(&listed) {
            let roots = if is_valid_at(certificate, now) {
                &mut valid
            } else {
                &mut others
            };
            match roots.add(certificate.clone()) {
                // Some systems ship certificates that cannot be parsed. That matters only if there are no others.
                Err(_) if are_of_system => {}
                added => added.with_context(|| format!("certificate {number} of the file is not valid"))?,
            }
        }
        let is_expired = valid.is_empty();
        let roots = Arc::new(if is_expired { others } else { valid });
        let webpki = WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?;
        Ok(Self {
            webpki: Some(webpki),
            is_expired,
            trusted: TrustedCertificates {
                listed,
                setting: peer.setting,
                are_of_system,
                fault: None,
            },
            peer,
        })
    }

    /// Returns the error with a sentence for the user, if there is one.
    fn explain(&self, error: Error, chain: (&CertificateDer<'_>, &[CertificateDer<'_>])) -> Error {
        let Error::InvalidCertificate(reason) = &error else {
            return error;
        };
        let sentence = distrust(reason, chain, &self.trusted).or_else(|| {
            let is_of_name = matches!(reason, CertificateError::NotValidForNameContext { .. });
            is_of_name.then(|| format!("{reason}{}", self.peer.hint))
        });
        match sentence {
            Some(sentence) => CertificateError::Other(OtherError(Arc::new(DistrustError(sentence)))).into(),
            None => error,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(webpki) = &self.webpki else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified = webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let verified = match verified {
            Err(_) if is_trusted_itself(end_entity, &self.trusted.listed, Usage::Server, now) => {
                ParsedCertificate::try_from(end_entity)
                    .and_then(|parsed| rustls::client::verify_server_name(&parsed, server_name))
                    .map(|()| ServerCertVerified::assertion())
            }
            Ok(_) if self.is_expired => Err(CertificateError::UnknownIssuer.into()),
            verified => verified,
        };
        verified.map_err(|error| self.explain(error, (end_entity, intermediates)))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// Returns a verifier that trusts the certificates in a PEM file.
///
/// # Errors
/// The path, and the first fault in the file.
pub(crate) fn verifier_of(path: &Path, peer: Peer) -> anyhow::Result<Verifier> {
    let bytes = read(path).map_err(anyhow::Error::new);
    let verifier = bytes.and_then(|bytes| Verifier::of_text(&bytes, peer));
    verifier.with_context(|| format!("cannot use the certificates in {}", path.display()))
}

/// Names the provider: other crates could have installed another default.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Reads a PEM file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    file::read(path, MAX_PEM_BYTES).map_err(|error| PemError::unreadable(&error))
}

/// Parses the certificates in a PEM text.
pub(super) fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    Ok(items(bytes)?.into_iter().map(|(_, certificate)| certificate).collect())
}
