//! TLS to the proxy: the trusted certificates, the client's certificate, and the handshake.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::verifier::Verifier;
use super::io::BoxedIo;
use crate::base::file;
use crate::base::secret::Secret;
use crate::net::x509::pem::{first, items};
use crate::net::x509::{MAX_PEM_BYTES, PemError};
use crate::uplink::error::ClientError;

mod verifier;

/// The certificates that the program trusts, and its own.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// A PEM file with the certificates to trust; `None` trusts the system's.
    pub ca: Option<PathBuf>,
    /// The name that the proxy's certificate must have, and the SNI; `None` is the host of the URL.
    pub server_name: Option<String>,
    /// The certificate for a proxy that asks for one.
    pub identity: Option<ClientCertPaths>,
}

/// A client certificate.
#[derive(Clone, Debug)]
pub struct ClientCertPaths {
    /// A PEM file with the certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// A PEM file with the private key, unencrypted.
    pub key: PathBuf,
}

/// A client certificate with its intermediate certificates, and its private key, each in PEM.
#[derive(Clone, Debug)]
pub(crate) struct KeyPair {
    pub(crate) certificate: String,
    pub(crate) key: Secret,
}

/// The parsed certificates and key.
type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl KeyPair {
    fn load(&self) -> anyhow::Result<Pair> {
        let chain = certificates(self.certificate.as_bytes());
        let key = first(self.key.expose().as_bytes());
        Ok((
            chain.context("the certificate that came with the credentials")?,
            key.context("the key that came with the credentials")?,
        ))
    }
}

/// The TLS settings for one proxy.
pub(crate) struct Connector {
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Connector {
    /// Loads the certificates to trust: those of `ca`, or the system's. Never both, so that no public authority can
    /// issue a certificate for a private proxy.
    ///
    /// `pair` is used if `trust` has no client certificate.
    pub(crate) fn new(host: &str, trust: &Trust, pair: Option<&KeyPair>) -> Result<Self, ClientError> {
        let name = trust.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .with_context(|| format!("{name} cannot be the proxy's name in a certificate"))
            .map_err(ClientError::Never)?;
        let (roots, listed) = match &trust.ca {
            Some(path) => {
                let listed = roots_of(path)
                    .with_context(|| format!("cannot use the certificates in {}", path.display()))
                    .map_err(ClientError::WithPauses)?;
                (listed.0, Some(listed.1))
            }
            None => (system_roots()?, None),
        };
        let pair = match &trust.identity {
            Some(identity) => Some(identity.load()),
            None => pair.map(KeyPair::load),
        };
        let pair = pair.transpose().map_err(unusable)?;
        let verifier = Verifier::new(roots, listed, provider()).map_err(no_tls)?;
        let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let config = config.map_err(no_tls)?.dangerous();
        let config = config.with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match pair {
            None => config.with_no_client_auth(),
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .map_err(|fault| unusable(anyhow!(fault).context("the certificate and the key do not go together")))?,
        };
        config.alpn_protocols = vec![HTTP1.to_vec()];
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            name,
        })
    }

    /// Runs the client's half of the handshake.
    pub(crate) async fn handshake(self, stream: BoxedIo) -> Result<TlsStream<BoxedIo>, ClientError> {
        let connected = self.tls.connect(self.name, stream).await;
        connected.map_err(|error| match distrust(&error) {
            Some(reason) => ClientError::WithPauses(anyhow!("the proxy is not trusted: {reason}")),
            None => explain(error, |error| {
                // Not a TLS record: another port, or something other than the proxy has answered.
                let is_foreign = matches!(rustls_error(&error), Some(rustls::Error::InvalidMessage(_)));
                let text = "the TLS handshake with the proxy failed: is the port one of TLS?";
                let error = anyhow!(error).context(text);
                match is_foreign {
                    true => ClientError::WithPauses(error),
                    false => ClientError::Soon(error),
                }
            }),
        })
    }
}

/// Returns why the certificate of the proxy is not trusted; `None` if the error is another one.
fn distrust(error: &io::Error) -> Option<String> {
    let rustls::Error::InvalidCertificate(reason) = rustls_error(error)? else {
        return None;
    };
    if let CertificateError::Other(reason) = reason {
        return Some(reason.to_string());
    }
    let hint = match matches!(reason, CertificateError::NotValidForNameContext { .. }) {
        true => " (--server-name sets the name that it must have)",
        false => "",
    };
    Some(format!("{reason}{hint}"))
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns the error for an unusable client certificate. It allows a retry: its files may be replaced.
fn unusable(fault: anyhow::Error) -> ClientError {
    ClientError::WithPauses(fault.context("cannot use the client certificate"))
}

/// Returns the error for a configuration that rustls refused.
fn no_tls(fault: rustls::Error) -> ClientError {
    ClientError::Never(anyhow!(fault).context("cannot set TLS up"))
}

/// Names the provider: other crates could have installed another default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Returns the error for an alert about the client's certificate, or `otherwise`. In TLS 1.3 the alert comes after the
/// handshake, instead of an answer.
pub(crate) fn explain(error: io::Error, otherwise: fn(io::Error) -> ClientError) -> ClientError {
    use rustls::Error::AlertReceived;
    match rustls_error(&error) {
        Some(AlertReceived(AlertDescription::CertificateRequired)) => {
            ClientError::Never(anyhow!(error).context("the proxy requires a client certificate: give --cert and --key"))
        }
        Some(AlertReceived(alert)) if REFUSALS.contains(alert) => {
            ClientError::Never(anyhow!(error).context("the proxy refused the client certificate"))
        }
        Some(_) | None => otherwise(error),
    }
}

/// Returns whether the proxy has refused the client certificate.
pub(crate) fn is_refused_certificate(error: &ClientError) -> bool {
    let ClientError::Never(error) = error else { return false };
    let alert = error.downcast_ref().and_then(rustls_error);
    matches!(alert, Some(rustls::Error::AlertReceived(alert)) if REFUSALS.contains(alert))
}

/// HTTP/1.1 in ALPN (RFC 7301 section 6).
const HTTP1: &[u8] = b"http/1.1";

/// The alerts of a server that does not accept a certificate (RFC 8446 section 6.2).
const REFUSALS: [AlertDescription; 7] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

impl ClientCertPaths {
    fn load(&self) -> anyhow::Result<Pair> {
        let chain = read(&self.certificate).and_then(|bytes| certificates(&bytes));
        let key = read(&self.key).and_then(|bytes| first(&bytes));
        Ok((
            chain.with_context(|| self.certificate.display().to_string())?,
            key.with_context(|| self.key.display().to_string())?,
        ))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    file::read(path, MAX_PEM_BYTES).map_err(|error| PemError::unreadable(&error))
}

/// Parses the certificates in a PEM text.
fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    Ok(items(bytes)?.into_iter().map(|(_, certificate)| certificate).collect())
}

/// Reads the certificates of a file, and returns them as a store of authorities and as a list.
fn roots_of(path: &Path) -> anyhow::Result<(RootCertStore, Vec<CertificateDer<'static>>)> {
    let listed = certificates(&read(path)?)?;
    let mut roots = RootCertStore::empty();
    for (number, certificate) in (1..).zip(&listed) {
        let added = roots.add(certificate.clone());
        added.with_context(|| format!("certificate {number} of the file is not valid"))?;
    }
    Ok((roots, listed))
}

/// Returns the certificates that the system trusts.
fn system_roots() -> Result<RootCertStore, ClientError> {
    let system = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems ship certificates that cannot be parsed. That matters only if there are no others.
    roots.add_parsable_certificates(system.certs);
    if roots.is_empty() {
        let text = "the system has no trusted certificates: give the proxy's with --ca";
        let fault = system.errors.into_iter().next();
        return Err(ClientError::WithPauses(match fault {
            Some(fault) => anyhow!(fault).context(text),
            None => anyhow!(text),
        }));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::chain;
    use std::io::Write;

    fn fault(content: &str) -> String {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        let trust = Trust {
            ca: Some(file.path().to_owned()),
            ..Trust::default()
        };
        let Err(error) = Connector::new("proxy", &trust, None) else {
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
            ("", "there is no certificate in it"),
            ("hello\n", "there is no certificate in it"),
            (
                torn.as_str(),
                "line 1: there is no `-----END CERTIFICATE-----` after this line",
            ),
            (&format!("{}{good}", good.trim_end()), "must each be a whole line"),
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
        let missing = tempfile::tempdir().unwrap().path().join("ca.pem");
        let expected = format!("{}: there is no such file", missing.display());
        let trust = Trust {
            ca: Some(missing),
            ..Trust::default()
        };
        let Err(error) = Connector::new("proxy", &trust, None) else {
            panic!("accepted a missing file");
        };
        let line = chain(&error);
        assert!(line.contains(&expected), "{line}");
    }
}
