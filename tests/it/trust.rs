//! One table of certificates and bundles for the four places that trust servers: `--ca`, SSL_CERT_FILE, `ca` of an issuer and
//! the authority of a kubeconfig. `client_ca` has its own in `net/tls/tests.rs`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use crate::harness::eventually;
use crate::harness::process::{Process, Settings, switchboard};

/// A certificate, its key, and its parameters for those that it issues.
struct Made {
    params: CertificateParams,
    der: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

fn params(name: &str, names: &[&str], is_authority: bool) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if is_authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

fn made(params: CertificateParams, issuer: Option<&Made>) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = match issuer {
        Some(issuer) => params.signed_by(&key, &Issuer::from_params(&issuer.params, &issuer.key)),
        None => params.self_signed(&key),
    };
    let certificate = certificate.unwrap();
    Made {
        der: certificate.der().clone(),
        pem: certificate.pem(),
        params,
        key,
    }
}

/// A TLS server that keeps the first line of each request.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(chain: &[&Made]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(chain[0].key.serialize_der()).unwrap();
        let certificates = chain.iter().map(|made| made.der.clone()).collect();
        let config = config
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .unwrap();
        let (config, seen) = (Arc::new(config), Arc::new(Mutex::new(Vec::new())));
        let noted = Arc::clone(&seen);
        // To the end of the test process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, noted) = (Arc::clone(&config), Arc::clone(&noted));
                thread::spawn(move || {
                    let connection = ServerConnection::new(config).unwrap();
                    let mut stream = StreamOwned::new(connection, stream.unwrap());
                    let (mut head, mut byte) = (Vec::new(), [0]);
                    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                        head.extend(byte);
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    if let Some(line) = head.lines().next() {
                        noted.lock().unwrap().push(line.to_owned());
                    }
                    stream.write_all(b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n").ok();
                });
            }
        });
        Self { address, seen }
    }

    fn takes(&self, method: &str) -> bool {
        let mut seen = self.seen.lock().unwrap();
        let is_seen = seen.iter().any(|line| line.starts_with(method));
        seen.clear();
        is_seen
    }
}

/// Asserts that all four trust that server by that file, or that all say this.
fn assert_all(title: &str, chain: &[&Made], trusted: &Path, expected: Option<&str>) {
    let server = Server::start(chain);
    let (folder, port) = (TempDir::new().unwrap(), server.address.port());
    let file = trusted.display();
    let assert = |place: &str, method: &str, said: &str| match expected {
        Some(sentence) => assert!(
            said.contains(sentence) && !server.takes(method),
            "{title}: {place}: {said}"
        ),
        None => assert!(server.takes(method), "{title}: {place}: {said}"),
    };
    let run = |mut command: Command| String::from_utf8(command.output().unwrap().stderr).unwrap();
    let url = format!("https://localhost:{port}");
    let connect = [
        "connect",
        "--proxy",
        &url,
        "devbox:22",
        "--ca",
        trusted.to_str().unwrap(),
    ];
    assert("--ca", "CONNECT ", &run(switchboard(&connect)));
    let mut command = switchboard(&connect[..4]);
    // Another authority of the system hides no fault of the file.
    let stranger = made(params("stranger", &[], true), None);
    fs::write(folder.path().join("00000000.0"), &stranger.pem).unwrap();
    command.env("SSL_CERT_FILE", trusted).env("SSL_CERT_DIR", folder.path());
    assert("SSL_CERT_FILE", "CONNECT ", &run(command));
    let kubeconfig = folder.path().join("config");
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: '{url}', certificate-authority: {file}}}}}]\ncurrent-context: x\n\
         contexts: [{{name: x, context: {{cluster: c}}}}]\n"
    );
    fs::write(&kubeconfig, text).unwrap();
    let tunnels = ["tunnels", "-n", "n", "--kubeconfig", kubeconfig.to_str().unwrap()];
    assert("kubeconfig", "GET ", &run(switchboard(&tunnels)));
    let settings = Settings::new("");
    settings.write(&format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\naccess: {{mode: enforce, oidc: [{{issuer: i, audiences: [a], jwks: '{url}/k', ca: {file}}}]}}\n"
    ));
    let mut served = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
    let said = served.stderr.find(expected.unwrap_or("the answer is 404"));
    assert("oidc", "GET ", &said);
}

/// Files with trusted certificates.
struct Files(TempDir);

impl Files {
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[test]
fn a_certificate_that_is_itself_trusted_is_trusted_everywhere() {
    let files = Files(TempDir::new().unwrap());
    for is_authority in [true, false] {
        let own = made(params("own", &["localhost"], is_authority), None);
        assert_all("self-signed", &[&own], &files.write("own", &own.pem), None);
    }
    let own = made(params("own", &["localhost"], true), None);
    let other = made(params("own", &["localhost"], true), None);
    let said = Some("its certificate is signed by \"CN=own\", which");
    assert_all("another one", &[&other], &files.write("own", &own.pem), said);
    let mut for_clients = params("own", &["localhost"], true);
    for_clients.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let for_clients = made(for_clients, None);
    let said = Some("its certificate is not for servers (extended key usage)");
    assert_all(
        "for clients",
        &[&for_clients],
        &files.write("own", &for_clients.pem),
        said,
    );
}

#[test]
fn a_bundle_is_read_alike_everywhere() {
    let files = Files(TempDir::new().unwrap());
    let root = made(params("root", &[], true), None);
    let leaf = made(params("leaf", &["localhost"], false), Some(&root));
    let mut expired = params("expired", &[], true);
    (expired.not_before, expired.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    let expired = made(expired, None);
    let of_expired = made(params("leaf", &["localhost"], false), Some(&expired));
    let bundle = files.write(
        "bundle",
        format!("# first\n{}\nsubject=CN = root\n{}", expired.pem, root.pem),
    );
    let crlf = files.write("crlf", format!("# a\n{}", root.pem).replace('\n', "\r\n"));
    let labelled = root.pem.replace("CERTIFICATE", "TRUSTED CERTIFICATE");
    for (title, chain, file, expected) in [
        ("an expired root and a good one", &leaf, bundle.clone(), None),
        ("an expired root", &of_expired, bundle, Some("only valid from")),
        (
            "an expired root alone",
            &of_expired,
            files.write("alone", &expired.pem),
            Some("only valid from"),
        ),
        ("CRLF and comments", &leaf, crlf, None),
        (
            "TRUSTED",
            &leaf,
            files.write("label", labelled),
            Some("a certificate of a label that is not read"),
        ),
        ("DER", &leaf, files.write("der", &root.der), Some("it is DER, not PEM")),
        (
            "a directory",
            &leaf,
            files.0.path().to_owned(),
            Some("it is a directory"),
        ),
        (
            "nothing",
            &leaf,
            files.write("nothing", ""),
            Some("there is no certificate in it"),
        ),
    ] {
        assert_all(title, &[chain], &file, expected);
    }
}

#[test]
fn a_chain_and_its_names_are_judged_alike_everywhere() {
    let files = Files(TempDir::new().unwrap());
    let root = made(params("root", &[], true), None);
    let middle = made(params("middle", &[], true), Some(&root));
    let leaf = made(params("leaf", &["localhost"], false), Some(&middle));
    let trusted = files.write("root", &root.pem);
    let named = |name: &str, names: &[&str]| made(params(name, names, false), Some(&root));
    let (address, wildcard, above) = (
        named("127.0.0.1", &[]),
        named("w", &["*.w.localhost"]),
        named("w", &["*.host"]),
    );
    for (title, chain, expected) in [
        ("in order", vec![&leaf, &middle], None),
        ("the root before its child", vec![&leaf, &root, &middle], None),
        (
            "the authority first",
            vec![&middle, &leaf],
            Some("in the wrong order: the first must be its own, and is that of the authority \"CN=middle\""),
        ),
        (
            "no intermediate",
            vec![&leaf],
            Some("the server must send its certificate"),
        ),
        (
            "an address in the common name",
            vec![&address],
            Some("it needs its name or address as subjectAltName"),
        ),
        (
            "a wildcard of names below",
            vec![&wildcard],
            Some("certificate not valid for name \"localhost\""),
        ),
        (
            "a wildcard of other names",
            vec![&above],
            Some("certificate not valid for name \"localhost\""),
        ),
    ] {
        assert_all(title, &chain, &trusted, expected);
    }
    // A name that a wildcard has, for those that are given one.
    let server = Server::start(&[&wildcard]);
    let url = format!("https://127.0.0.1:{}", server.address.port());
    let mut command = switchboard(&[
        "connect",
        "--proxy",
        &url,
        "--server-name",
        "a.w.localhost",
        "devbox:22",
        "--ca",
    ]);
    command.arg(&trusted).output().unwrap();
    eventually("the wildcard counts", || server.takes("CONNECT ").then_some(()));
}
