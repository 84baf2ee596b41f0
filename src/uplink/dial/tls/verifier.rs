//! The verification of the proxy's certificate.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use crate::net::x509::presented;

/// The certificates of `--ca`, or the system's, do not verify the proxy's: usually a proxy of the company's network has
/// answered instead.
#[derive(Debug, thiserror::Error)]
#[error(
    "its certificate is signed by {issuer:?}, which {}",
    if *is_system {
        "this machine does not trust: give --ca FILE with the certificate of that authority"
    } else {
        "is not among the certificates of --ca"
    }
)]
struct UnknownAuthority {
    /// The distinguished name of the authority.
    issuer: String,
    /// True if the system's certificates were used.
    is_system: bool,
}

/// Verifies the proxy's certificate as webpki does, but also accepts a certificate that is itself in `--ca`'s file.
/// `openssl req -x509` marks a self-signed certificate as an authority, which webpki refuses for a server.
#[derive(Debug)]
pub(super) struct Verifier {
    verifier: Arc<WebPkiServerVerifier>,
    /// The certificates of `--ca`; `None` trusts the system's.
    listed: Option<Vec<CertificateDer<'static>>>,
}

impl Verifier {
    /// Creates a verifier that trusts these certificates.
    ///
    /// # Errors
    /// There are no certificates.
    pub(super) fn new(
        roots: RootCertStore,
        listed: Option<Vec<CertificateDer<'static>>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { verifier, listed })
    }

    /// Returns whether the certificate is itself in the file, valid, and for servers. Its name is checked elsewhere.
    fn is_listed(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
        self.is_in_file(certificate) && presented::may_serve(certificate, now)
    }

    fn is_in_file(&self, certificate: &CertificateDer<'_>) -> bool {
        let mut listed = self.listed.iter().flatten();
        listed.any(|own| own == certificate)
    }

    /// Returns the error, with the name of the missing authority if one is missing.
    fn explain(&self, error: Error, [own, last]: [&CertificateDer<'_>; 2]) -> Error {
        // The server uses an authority's own certificate, which is accepted only if it is in the file.
        let is_authority = matches!(&error, Error::InvalidCertificate(CertificateError::Other(_)))
            && presented::is_self_issued(own)
            && !self.is_in_file(own);
        let is_unknown = is_authority || matches!(&error, Error::InvalidCertificate(CertificateError::UnknownIssuer));
        match presented::issuer(last).filter(|_| is_unknown) {
            Some(issuer) => {
                let is_system = self.listed.is_none();
                let unknown = UnknownAuthority { issuer, is_system };
                CertificateError::Other(OtherError(Arc::new(unknown))).into()
            }
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
        let verified = self
            .verifier
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let verified = match verified {
            Err(_) if self.is_listed(end_entity, now) => ParsedCertificate::try_from(end_entity)
                .and_then(|parsed| rustls::client::verify_server_name(&parsed, server_name))
                .map(|()| ServerCertVerified::assertion()),
            verified => verified,
        };
        let last = intermediates.last().unwrap_or(end_entity);
        verified.map_err(|error| self.explain(error, [end_entity, last]))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
