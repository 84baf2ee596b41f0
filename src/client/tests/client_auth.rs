//! Client certificates and the name of the proxy: what is sent, what is expected, and how a failure is reported.

use super::*;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;

/// An authority that issues certificates as files.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub(super) fn named(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new([]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        let certificate = parameters.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Issuer::new(parameters, key),
            certificate,
        }
    }

    pub(super) fn issue(&self, name: &str) -> Files {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Files::of(&certificate.pem(), &key.serialize_pem())
    }
}

/// The files of `--cert` and `--key`.
pub(super) struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn of(certificate: &str, key: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("certificate"), certificate).unwrap();
        std::fs::write(directory.path().join("key"), key).unwrap();
        Self { directory }
    }

    pub(super) fn identity(&self) -> ClientCertPaths {
        ClientCertPaths {
            certificate: self.directory.path().join("certificate"),
            key: self.directory.path().join("key"),
        }
    }
}

/// Returns a server that requires a client certificate of that authority.
pub(super) fn requiring(authority: &Authority) -> Server {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = verifier.build().unwrap();
    Server::with_client_auth("test authority", "127.0.0.1", |config| {
        config.with_client_cert_verifier(verifier)
    })
}

fn with_identity(identity: Option<ClientCertPaths>, mut options: Options) -> Options {
    options.uplink.trust.identity = identity;
    options
}

#[tokio::test]
async fn the_certificate_is_sent_to_a_proxy_that_asks_for_one() {
    let authority = Authority::named("clients");
    let server = requiring(&authority);
    let files = authority.issue("alice");
    let proxy = Proxy::bind().await;
    let mut session = Session::start(with_identity(Some(files.identity()), server.options(&proxy)));
    let stream = server.answer(&proxy, &[ACCEPT, b"hello"].concat()).await;
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
}

#[tokio::test]
async fn a_proxy_that_asks_for_no_certificate_serves_a_client_that_has_one() {
    let files = Authority::named("clients").issue("alice");
    let (proxy, server) = (Proxy::bind().await, Server::named("127.0.0.1"));
    let session = Session::start(with_identity(Some(files.identity()), server.options(&proxy)));
    exchange(session, server.answer(&proxy, ACCEPT).await).await;
}

#[tokio::test]
async fn a_missing_or_refused_certificate_is_reported_as_such() {
    let authority = Authority::named("clients");
    let server = requiring(&authority);
    let stranger = Authority::named("strangers").issue("alice");
    let (wanted, refused) = (
        "the proxy requires a client certificate: give --cert and --key",
        "the proxy refused the client certificate",
    );
    for (identity, expected) in [(None, wanted), (Some(stranger.identity()), refused)] {
        let proxy = Proxy::bind().await;
        let session = Session::start(with_identity(identity, server.options(&proxy)));
        let stream = proxy.accept().await;
        assert!(within(server.acceptor.accept(stream)).await.is_err());
        let line = session.failure().await;
        assert!(line.starts_with(expected), "{line}");
    }
}

#[tokio::test]
async fn unusable_files_are_named_before_any_connection() {
    let authority = Authority::named("clients");
    let good = authority.issue("alice");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let certificate = read(good.identity().certificate);
    let key = read(good.identity().key);
    let other = read(authority.issue("bob").identity().key);
    let encrypted = key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    for (certificate, key, expected) in [
        ("", key.as_str(), "certificate: there is no certificate in it"),
        (&certificate, "", "key: there is no private key in it"),
        (
            &certificate,
            &encrypted,
            "key: line 1: the private key is encrypted: `openssl pkey` writes it without",
        ),
        (&certificate, &key.replace("-----END", ""), "key: "),
        (&certificate, &other, "the certificate and the key do not go together: "),
        (&key, &key, "certificate: there is no certificate in it"),
    ] {
        let files = Files::of(certificate, key);
        let (proxy, server) = (Proxy::bind().await, Server::named("127.0.0.1"));
        let line = Session::start(with_identity(Some(files.identity()), server.options(&proxy)))
            .failure()
            .await;
        assert!(
            line.starts_with("cannot use the client certificate: ") && line.contains(expected),
            "{line}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let expected = format!("{}: there is no such file", certificate.display());
    let missing = ClientCertPaths { certificate, key };
    let (proxy, server) = (Proxy::bind().await, Server::named("127.0.0.1"));
    let line = Session::start(with_identity(Some(missing), server.options(&proxy)))
        .failure()
        .await;
    assert!(line.contains(&expected), "{line}");
}

#[tokio::test]
async fn the_server_name_takes_the_place_of_the_urls_host() {
    let server = Server::named("ssh.example.com");
    let named = |proxy: &Proxy, name: &str| {
        let mut options = server.options(proxy);
        options.uplink.trust.server_name = Some(name.to_owned());
        options
    };
    let proxy = Proxy::bind().await;
    let mut session = Session::start(named(&proxy, "ssh.example.com"));
    let stream = server.answer(&proxy, &[ACCEPT, b"hello"].concat()).await;
    assert_eq!(stream.get_ref().1.server_name(), Some("ssh.example.com"));
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");

    let session = Session::start(named(&proxy, "other.example.com"));
    let stream = proxy.accept().await;
    assert!(within(server.acceptor.accept(stream)).await.is_err());
    assert!(
        session
            .failure()
            .await
            .contains("not valid for name \"other.example.com\"")
    );

    let line = Session::start(named(&proxy, "no name")).failure().await;
    assert!(
        line.starts_with("no name cannot be the proxy's name in a certificate"),
        "{line}"
    );
}
