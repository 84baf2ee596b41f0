//! TLS to the proxy: whom to trust, and the handshake.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::truncation::Uncut;
use super::ClientError;

mod truncation;

/// Whom the client believes, and who it says it is.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// A PEM file with the certificates to trust; `None` is the system's list.
    pub ca: Option<PathBuf>,
    /// The name that the proxy's certificate must have, which is also the SNI; `None` is the host of the URL.
    pub server_name: Option<String>,
    /// What the client shows a proxy that asks for a certificate.
    pub identity: Option<Identity>,
}

/// A client certificate.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A PEM file with the certificate, and those that lead from it to one that the proxy knows.
    pub certificate: PathBuf,
    /// A PEM file with its private key, not encrypted.
    pub key: PathBuf,
}

/// Everything that a handshake with one proxy needs.
pub(super) struct Connector {
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Connector {
    /// Loads the certificates to trust: those of `ca`, or the system's. Never both, so that a private proxy's
    /// certificate cannot be had from a public authority.
    ///
    /// `http2` is whether the proxy may choose that.
    pub(super) fn new(host: &str, trust: &Trust, http2: bool) -> Result<Self, ClientError> {
        let name = trust.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|source| ClientError::TlsName {
            name: name.to_owned(),
            source,
        })?;
        let roots = match &trust.ca {
            Some(path) => roots_of(path).map_err(|fault| ClientError::Ca {
                path: path.clone(),
                fault,
            })?,
            None => system_roots()?,
        };
        // The provider is named: nothing in the process may depend on which one was installed first.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ClientError::TlsSetup)?
            .with_root_certificates(roots);
        let mut config = match &trust.identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.load().map_err(ClientError::Identity)?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|fault| ClientError::Identity(IdentityFault::Unusable(fault)))?
            }
        };
        let offered: &[&[u8]] = if http2 { &[HTTP2, HTTP1] } else { &[HTTP1] };
        config.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            name,
        })
    }

    /// Runs the client's half of the handshake.
    pub(super) async fn handshake(self, stream: TcpStream) -> Result<TlsStream<Uncut>, ClientError> {
        let shaken = self.tls.connect(self.name, Uncut::from(stream)).await;
        shaken.map_err(|error| named(error, ClientError::Tls))
    }
}

/// Whether the proxy wants to speak HTTP/2. One that has no ALPN speaks HTTP/1.1.
pub(super) fn chose_http2(stream: &TlsStream<Uncut>) -> bool {
    let (_, connection) = stream.get_ref();
    connection.alpn_protocol() == Some(HTTP2)
}

/// Says so if a failure is about the client's certificate. In TLS 1.3 it comes after the handshake, for an answer.
pub(super) fn named(told: io::Error, otherwise: fn(io::Error) -> ClientError) -> ClientError {
    match alert(&told) {
        Some(AlertDescription::CertificateRequired) => ClientError::CertificateWanted(told),
        Some(alert) if REFUSALS.contains(&alert) => ClientError::CertificateRefused(told),
        Some(_) | None => otherwise(told),
    }
}

fn alert(error: &io::Error) -> Option<AlertDescription> {
    if let rustls::Error::AlertReceived(alert) = error.get_ref()?.downcast_ref()? {
        Some(*alert)
    } else {
        None
    }
}

// Their names in ALPN (RFC 7301 section 6, RFC 9113 section 3.2).
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// What a server says that does not take a certificate.
const REFUSALS: [AlertDescription; 7] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

impl Identity {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), IdentityFault> {
        let Self { certificate, key } = self;
        let of = |path: &Path, fault| IdentityFault::Pem {
            path: path.to_owned(),
            fault,
        };
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<_, _>>);
        let chain = chain.map_err(|fault| of(certificate, fault))?;
        if chain.is_empty() {
            return Err(IdentityFault::NoCertificate(certificate.clone()));
        }
        match PrivateKeyDer::from_pem_file(key) {
            Ok(key) => Ok((chain, key)),
            Err(pem::Error::NoItemsFound) => Err(IdentityFault::NoKey(key.clone())),
            Err(fault) => Err(of(key, fault)),
        }
    }
}

/// What is wrong with the files of `--cert` and `--key`.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFault {
    /// One cannot be read, or is no PEM.
    #[error("{}: {fault}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// Why.
        fault: pem::Error,
    },
    /// The first is readable and holds no `CERTIFICATE` section.
    #[error("{} holds no PEM certificate", .0.display())]
    NoCertificate(PathBuf),
    /// The second is readable and holds no key.
    #[error("{} holds no PEM private key (an encrypted one cannot be used)", .0.display())]
    NoKey(PathBuf),
    /// The key is not that of the certificate, or of a kind that nobody knows.
    #[error("the certificate and the key do not go together")]
    Unusable(#[source] rustls::Error),
}

/// What is wrong with the file of `--ca`.
#[derive(Debug, thiserror::Error)]
pub enum CaFault {
    /// It cannot be read, or is no PEM.
    #[error("{0}")]
    Pem(pem::Error),
    /// It is readable and holds no `CERTIFICATE` section.
    #[error("the file holds no PEM certificate")]
    NoCertificate,
    /// One of its certificates cannot be a trust anchor.
    #[error("certificate {number} of the file is not valid")]
    Certificate {
        /// Its place in the file, from 1.
        number: usize,
        /// What rustls says.
        #[source]
        source: rustls::Error,
    },
}

fn roots_of(path: &Path) -> Result<RootCertStore, CaFault> {
    let mut roots = RootCertStore::empty();
    for (number, certificate) in (1..).zip(CertificateDer::pem_file_iter(path).map_err(CaFault::Pem)?) {
        roots
            .add(certificate.map_err(CaFault::Pem)?)
            .map_err(|source| CaFault::Certificate { number, source })?;
    }
    if roots.is_empty() {
        return Err(CaFault::NoCertificate);
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, ClientError> {
    let system = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems ship a certificate that no one can parse; it matters only if nothing else is left.
    roots.add_parsable_certificates(system.certs);
    if roots.is_empty() {
        return Err(ClientError::NoSystemRoots(system.errors.into_iter().next()));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::chain;
    use std::io::Write;

    fn fault(content: &str) -> String {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        let trust = Trust {
            ca: Some(file.path().to_owned()),
            ..Trust::default()
        };
        let Err(error) = Connector::new("proxy", &trust, true) else {
            panic!("accepted {content:?}");
        };
        let line = chain(&error);
        let path = file.path().display().to_string();
        assert!(line.contains(&path), "{line}");
        line.replace(&path, "FILE")
    }

    #[test]
    fn a_bad_file_is_named_with_its_fault() {
        let good = rcgen::generate_simple_self_signed(["proxy".to_owned()])
            .unwrap()
            .cert
            .pem();
        let torn = good.replace("-----END CERTIFICATE-----", "");
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (content, expected) in [
            ("", "the file holds no PEM certificate"),
            ("hello\n", "the file holds no PEM certificate"),
            (torn.as_str(), "section end"),
            (&format!("{good}{junk}"), "certificate 2 of the file is not valid"),
        ] {
            let line = fault(content);
            assert!(
                line.starts_with("cannot use the certificates in FILE: ") && line.contains(expected),
                "{line}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let trust = Trust {
            ca: Some("/nonexistent/ca.pem".into()),
            ..Trust::default()
        };
        let Err(error) = Connector::new("proxy", &trust, true) else {
            panic!("accepted a missing file");
        };
        let line = chain(&error);
        assert!(
            line.contains("/nonexistent/ca.pem") && line.contains("No such file"),
            "{line}"
        );
    }
}
