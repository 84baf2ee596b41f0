//! Which certificate of a proxy is accepted, and what is wrong with one that is not.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::net::x509::{Identity, presented};

/// What is wrong with the certificate of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// The certificates of `--ca`, or the system's, do not lead to it.
    #[error(
        "its certificate is signed by {issuer:?}, which {}",
        if *is_system {
            "this machine does not trust: give --ca FILE with the certificate of that authority"
        } else {
            "is not among the certificates of --ca"
        }
    )]
    Authority {
        /// The distinguished name of the authority.
        issuer: String,
        /// Whether the system's certificates were asked.
        is_system: bool,
    },
    /// It is for another host.
    #[error(
        "its certificate is for {}, not for {asked} (--server-name sets the name that it must have)",
        if names.is_empty() { "no name" } else { names.as_str() }
    )]
    Name {
        /// The names in it.
        names: String,
        /// The name that it should have.
        asked: String,
    },
    /// It has expired.
    #[error("its certificate expired at {0}")]
    Expired(Timestamp),
    /// It is in the file of `--ca`, and says that it is for other purposes.
    #[error("its certificate is in the file of --ca, but is not one for TLS servers")]
    Purpose,
    /// It is not valid yet.
    #[error("its certificate is valid from {0} on: is the clock of this machine right?")]
    NotYet(Timestamp),
}

/// Verifies the certificate of a proxy as webpki does. One that is itself in the file of `--ca` needs no authority:
/// `openssl req -x509` makes such ones, which say of themselves that they are one.
#[derive(Debug)]
pub(super) struct Verifier {
    verifier: Arc<WebPkiServerVerifier>,
    /// The certificates of `--ca`; `None` trusts the system's.
    listed: Option<Vec<CertificateDer<'static>>>,
    fault: Arc<Mutex<Option<CertificateFault>>>,
}

impl Verifier {
    /// With the certificates to trust.
    ///
    /// # Errors
    /// There is none, of which the caller has told before.
    pub(super) fn new(
        roots: RootCertStore,
        listed: Option<Vec<CertificateDer<'static>>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
        Ok(Self {
            verifier,
            listed,
            fault: Arc::default(),
        })
    }

    /// Where the fault of the last certificate is found.
    pub(super) fn fault(&self) -> Arc<Mutex<Option<CertificateFault>>> {
        Arc::clone(&self.fault)
    }

    /// Whether it is itself in the file, valid, and for servers. Its name is another question.
    fn is_listed(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
        self.is_in_file(certificate) && presented::may_serve(certificate, now)
    }

    fn is_in_file(&self, certificate: &CertificateDer<'_>) -> bool {
        let mut listed = self.listed.iter().flatten();
        listed.any(|own| own == certificate)
    }

    fn explain(&self, error: &Error, certificates: [&CertificateDer<'_>; 2], name: &ServerName<'_>) {
        let [own, last] = certificates;
        let Error::InvalidCertificate(error) = error else {
            return;
        };
        let time = |time: &UnixTime| {
            i64::try_from(time.as_secs())
                .ok()
                .and_then(|s| Timestamp::from_second(s).ok())
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the words of rustls say as much as there is to say"
        )]
        let fault = match error {
            CertificateError::Other(_) if self.is_in_file(own) => Some(CertificateFault::Purpose),
            // A certificate that is an authority, and not one of a server: only its presence in the file would help.
            CertificateError::Other(_) if !presented::is_self_issued(own) => None,
            CertificateError::UnknownIssuer | CertificateError::Other(_) => {
                presented::issuer(last).map(|issuer| CertificateFault::Authority {
                    issuer,
                    is_system: self.listed.is_none(),
                })
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Identity::of(own)
                .map(|identity| CertificateFault::Name {
                    names: identity.alternative_names.join(", "),
                    asked: name.to_str().into_owned(),
                }),
            CertificateError::ExpiredContext { not_after, .. } => time(not_after).map(CertificateFault::Expired),
            CertificateError::NotValidYetContext { not_before, .. } => time(not_before).map(CertificateFault::NotYet),
            _ => None,
        };
        *self.fault.lock() = fault;
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
        verified.inspect_err(|error| {
            let last = intermediates.last().unwrap_or(end_entity);
            self.explain(error, [end_entity, last], server_name);
        })
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
