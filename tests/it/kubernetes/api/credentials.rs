//! Certificates, tokens and the kubeconfig that points at them, in a directory of their own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

/// The files that a client of the API server is given.
#[derive(Debug)]
pub(crate) struct Credentials {
    directory: PathBuf,
    address: SocketAddr,
    authority: Issuer<'static, KeyPair>,
}

impl Credentials {
    pub(crate) fn new(directory: &Path, address: SocketAddr) -> Self {
        let credentials = Self {
            directory: directory.to_owned(),
            address,
            authority: new_authority(directory),
        };
        write(
            &credentials.kubeconfig(),
            credentials.configuration().to_string().as_bytes(),
        );
        credentials
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Replaces what the token file says.
    pub(crate) fn write_token(&self, token: &str) {
        write(&self.directory.join("token"), token.as_bytes());
    }

    /// From now on certificates are signed by another authority, and the authority's file says so.
    pub(crate) fn renew_authority(&mut self) {
        self.authority = new_authority(&self.directory);
    }

    /// A server with a new certificate, for that name or address.
    pub(crate) fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let chain = vec![CertificateDer::from(certificate)];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// JSON is YAML too.
    fn configuration(&self) -> Value {
        let cluster = json!({
            "server": format!("https://{}", self.address),
            "certificate-authority": self.directory.join("ca.crt"),
        });
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "switchboard", "user": {"tokenFile": self.directory.join("token")}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "switchboard"}}],
        })
    }
}

fn new_authority(directory: &Path) -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    write(&directory.join("ca.crt"), certificate.pem().as_bytes());
    Issuer::new(params, key)
}

/// As a Secret mount does it: readers see the old content or the new.
fn write(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(new, path).unwrap();
}
