//! A client that speaks TLS, and the session that the relay has of it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use switchboard::net::tls::{CertificatePaths, Settings, Tls, TlsStream};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientTlsStream;

use super::peer::Wire;

impl Wire for ClientTlsStream<TcpStream> {
    fn reset(self) {
        self.into_inner().0.reset();
    }
}

/// The protocol that ALPN selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Does the handshake.
pub(crate) async fn over(
    (client, ours): (TcpStream, TcpStream),
    protocol: Protocol,
) -> (ClientTlsStream<TcpStream>, TlsStream) {
    static ENDS: LazyLock<(TlsConnector, Tls)> = LazyLock::new(ends);
    let (connector, tls) = &*ENDS;
    let name = ServerName::try_from(NAME).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let offered: &[&[u8]] = match protocol {
        Protocol::Http1 => &[],
        Protocol::Http2 => &[b"h2"],
    };
    let connector = connector.with_alpn(offered.iter().map(|name| name.to_vec()).collect());
    let (client, accepted) = tokio::join!(connector.connect(name, client), tls.accept(ours, Vec::new(), deadline));
    let accepted = accepted.unwrap();
    assert_eq!(accepted.http2, protocol == Protocol::Http2);
    (client.unwrap(), accepted.stream)
}

fn ends() -> (TlsConnector, Tls) {
    let issued = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    std::fs::write(&cert, issued.cert.pem()).unwrap();
    std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
    let settings = Settings {
        certificates: vec![CertificatePaths { cert, key }],
        ..Settings::default()
    };
    let tls = Tls::new(settings, Duration::from_secs(5)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(issued.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (TlsConnector::from(Arc::new(client)), tls)
}

const NAME: &str = "localhost";
const PATIENCE: Duration = Duration::from_secs(20);
