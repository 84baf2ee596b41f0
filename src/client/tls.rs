//! TLS to the proxy: whom to trust, and the handshake.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ClientError;

/// Everything that a handshake with one proxy needs.
pub(super) struct Connector {
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Connector {
    /// Loads the certificates to trust: those of `ca`, or the system's. Never both, so that a private proxy's
    /// certificate cannot be had from a public authority.
    pub(super) fn new(host: &str, ca: Option<&Path>) -> Result<Self, ClientError> {
        let name = ServerName::try_from(host.to_owned()).map_err(ClientError::TlsName)?;
        let roots = match ca {
            Some(path) => roots_of(path).map_err(|fault| ClientError::Ca {
                path: path.to_owned(),
                fault,
            })?,
            None => system_roots()?,
        };
        // The provider is named: nothing in the process may depend on which one was installed first.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ClientError::TlsSetup)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // CONNECT is written in HTTP/1.1 only; a proxy that prefers HTTP/2 must not choose it.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            name,
        })
    }

    /// Runs the client's half of the handshake.
    pub(super) async fn handshake(self, stream: TcpStream) -> Result<TlsStream<TcpStream>, ClientError> {
        self.tls.connect(self.name, stream).await.map_err(ClientError::Tls)
    }
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
    use std::io::Write;

    fn fault(content: &str) -> String {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        let Err(error) = Connector::new("proxy", Some(file.path())) else {
            panic!("accepted {content:?}");
        };
        let line = super::super::chain(&error);
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
        let Err(error) = Connector::new("proxy", Some(Path::new("/nonexistent/ca.pem"))) else {
            panic!("accepted a missing file");
        };
        let line = super::super::chain(&error);
        assert!(
            line.contains("/nonexistent/ca.pem") && line.contains("No such file"),
            "{line}"
        );
    }
}
