//! TLS to the proxy and to other servers: the trusted certificates, the client's certificate, and the handshake.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) use self::verifier::{Peer, Verifier, verifier_of};
use self::verifier::{certificates, provider, read};
use super::io::BoxedIo;
use crate::base::secret::Secret;
use crate::net::x509::pem::first;
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

/// The TLS settings for one server.
pub(crate) struct Connector {
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Connector {
    /// Loads the certificates to trust for the proxy: those of `ca`, or the system's. Never both, so that no public
    /// authority can issue a certificate for a private proxy.
    ///
    /// `pair` is used if `trust` has no client certificate.
    pub(crate) fn new(host: &str, trust: &Trust, pair: Option<&KeyPair>) -> Result<Self, ClientError> {
        let name = trust.server_name.as_deref().unwrap_or(host);
        let name = server_name(name, "proxy").map_err(ClientError::Never)?;
        let verifier = match &trust.ca {
            Some(path) => verifier_of(path, Peer::PROXY),
            None => Verifier::of_system(Peer::PROXY),
        };
        let verifier = verifier.map_err(ClientError::WithBackoff)?;
        let pair = match &trust.identity {
            Some(identity) => Some(identity.load()),
            None => pair.map(KeyPair::load),
        };
        // An error allows a retry: the files may be replaced.
        let config = config(verifier, pair).map_err(ClientError::WithBackoff)?;
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            name,
        })
    }

    /// Creates the settings for another server than the proxy.
    ///
    /// # Errors
    /// Its name cannot be in a certificate, or the client certificate cannot be used.
    pub(crate) fn for_server(host: &str, verifier: Verifier, pair: Option<&KeyPair>) -> anyhow::Result<Self> {
        Ok(Self {
            name: server_name(host, "server")?,
            tls: TlsConnector::from(Arc::new(config(verifier, pair.map(KeyPair::load))?)),
        })
    }

    /// Runs the client's half of the handshake with another server than the proxy.
    ///
    /// # Errors
    /// The reason.
    pub(crate) async fn connect(&self, stream: BoxedIo) -> anyhow::Result<TlsStream<BoxedIo>> {
        let connected = self.tls.connect(self.name.clone(), stream).await;
        connected.map_err(|error| match distrust(&error) {
            Some(reason) => anyhow!("the server is not trusted: {reason}"),
            None => anyhow!(error).context("the TLS handshake failed"),
        })
    }

    /// Runs the client's half of the handshake.
    pub(crate) async fn handshake(self, stream: BoxedIo) -> Result<TlsStream<BoxedIo>, ClientError> {
        let connected = self.tls.connect(self.name, stream).await;
        connected.map_err(|error| match distrust(&error) {
            Some(reason) => ClientError::WithBackoff(anyhow!("the proxy is not trusted: {reason}")),
            None => explain(error, |error| {
                // Not a TLS record: another port, or something other than the proxy has answered.
                let is_foreign = matches!(rustls_error(&error), Some(rustls::Error::InvalidMessage(_)));
                let text = "the TLS handshake with the proxy failed: is the port one of TLS?";
                let error = anyhow!(error).context(text);
                match is_foreign {
                    true => ClientError::WithBackoff(error),
                    false => ClientError::Immediately(error),
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
    Some(reason.to_string())
}

fn server_name(name: &str, peer: &str) -> anyhow::Result<ServerName<'static>> {
    let parsed = ServerName::try_from(name.to_owned());
    parsed.with_context(|| format!("{name} cannot be the {peer}'s name in a certificate"))
}

fn config(verifier: Verifier, pair: Option<anyhow::Result<Pair>>) -> anyhow::Result<ClientConfig> {
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.context("cannot set TLS up")?.dangerous();
    let config = config.with_custom_certificate_verifier(Arc::new(verifier));
    let certified = match pair.transpose() {
        Ok(None) => Ok(config.with_no_client_auth()),
        Ok(Some((chain, key))) => config
            .with_client_auth_cert(chain, key)
            .context("the certificate and the key do not go together"),
        Err(fault) => Err(fault),
    };
    let mut config = certified.context("cannot use the client certificate")?;
    config.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(config)
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
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
            let advice = if *alert == AlertDescription::UnknownCA {
                " (it does not know its issuer, or the intermediate certificates are missing)"
            } else if *alert == AlertDescription::CertificateUnknown {
                " (it is that of an authority, or not for clients: issue another one)"
            } else {
                ""
            };
            ClientError::Never(anyhow!(error).context(format!("the proxy refused the client certificate{advice}")))
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
