//! The client against scripted proxies, in bytes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::server::WantsServerCert;
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connect::signals::{ExitRequest, ExitSignals};
use super::connect::stdio::Stdio;
use super::{Options, Settings, UserOutput, connect};
use crate::base::text::chain;
use crate::protocol::end_notice::Marker;
use crate::uplink::error::ClientError;
use crate::uplink::{self, ClientCertPaths, ForwardProxy, Trust, credentials, dial};

mod answers;
mod client_auth;
mod endings;
mod forward;
mod host_keys;
mod logins;
mod ports;
mod sessions;
mod tls;

const TARGET: &str = "svc-a.ns:22";
const ACCEPT: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The user's side of one running client.
struct Session {
    stdin: DuplexStream,
    stdout: DuplexStream,
    ended: JoinHandle<Result<(), ClientError>>,
}

impl Session {
    fn start(options: Options) -> Self {
        Self::start_with(options, false)
    }

    fn start_with(options: Options, interactive: bool) -> Self {
        let (stdin, theirs_in) = tokio::io::duplex(64 * 1024);
        let (stdout, theirs_out) = tokio::io::duplex(64 * 1024);
        let mut local = Stdio {
            stdin: theirs_in,
            stdout: theirs_out,
            interactive,
            ends_with_target: false,
            is_abandoned: None,
        };
        let ended = tokio::spawn(async move { run(&options, &mut local).await });
        Self { stdin, stdout, ended }
    }

    /// Returns the parts, for tests in which they end one after the other.
    fn parts(self) -> (DuplexStream, DuplexStream, JoinHandle<Result<(), ClientError>>) {
        (self.stdin, self.stdout, self.ended)
    }

    async fn end(self) -> Result<(), ClientError> {
        within(self.ended).await.unwrap()
    }

    /// Returns the line that the user sees.
    async fn failure(self) -> String {
        chain(&self.end().await.unwrap_err())
    }
}

/// Runs one tunnel to its end, without signals.
async fn run(options: &Options, local: &mut Stdio<DuplexStream, DuplexStream>) -> Result<(), ClientError> {
    let exit = ExitSignals(tokio::sync::watch::channel(ExitRequest::No).1);
    Box::pin(connect::run::run(
        options,
        local,
        exit,
        &mut connect::run::ProxyAccess::default(),
    ))
    .await
}

struct Proxy {
    listener: TcpListener,
    port: TcpSocket,
}

impl Proxy {
    async fn bind() -> Self {
        let port = reserved("127.0.0.1:0".parse().unwrap());
        let listener = reserved(port.local_addr().unwrap()).listen(128).unwrap();
        Self { listener, port }
    }

    /// From now on its port refuses connections. It is free when the socket that is returned is dropped: until then no other test
    /// has it.
    fn close(self) -> TcpSocket {
        self.port
    }

    fn options(&self, scheme: &str, userinfo: &str) -> Options {
        let port = self.listener.local_addr().unwrap().port();
        Options {
            uplink: uplink::Options {
                proxy: format!("{scheme}://{userinfo}127.0.0.1:{port}").parse().unwrap(),
                forward: None,
                trust: Trust::default(),
                credentials: credentials::Options::default(),
                timeout: Duration::from_secs(20),
            },
            target: TARGET.to_owned(),
            session: None,
            wait: None,
            verbose: false,
            output: UserOutput::default(),
            no_wake: false,
            host_keys: None,
        }
    }

    fn http(&self) -> Options {
        self.options("http", "")
    }

    async fn accept(&self) -> TcpStream {
        let (stream, _) = within(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Reads the request and answers with `head`.
    async fn answer(&self, head: &[u8]) -> TcpStream {
        let mut stream = self.accept().await;
        read_request(&mut stream).await;
        stream.write_all(head).await.unwrap();
        stream
    }
}

/// Returns a socket that is bound there, also beside another one that does not listen.
fn reserved(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// A self-signed certificate, as a file for `--ca` and as a TLS server.
struct Server {
    ca: tempfile::NamedTempFile,
    acceptor: TlsAcceptor,
}

impl Server {
    fn named(name: &str) -> Self {
        Self::issued_by("test authority", name)
    }

    fn issued_by(issuer: &str, name: &str) -> Self {
        Self::with_client_auth(issuer, name, |config| config.with_no_client_auth())
    }

    /// Returns a server that may ask for a client certificate.
    fn with_client_auth(
        issuer: &str,
        name: &str,
        client_auth: impl FnOnce(ConfigBuilder<ServerConfig, WantsVerifier>) -> ConfigBuilder<ServerConfig, WantsServerCert>,
    ) -> Self {
        let mut parameters = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, issuer);
        Self::new(&parameters, client_auth)
    }

    /// Creates a server with a certificate of other properties.
    fn with_parameters(issuer: &str, name: &str, change: impl FnOnce(&mut rcgen::CertificateParams)) -> Self {
        let mut parameters = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, issuer);
        change(&mut parameters);
        Self::new(&parameters, |config| config.with_no_client_auth())
    }

    fn new(
        parameters: &rcgen::CertificateParams,
        client_auth: impl FnOnce(ConfigBuilder<ServerConfig, WantsVerifier>) -> ConfigBuilder<ServerConfig, WantsServerCert>,
    ) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let ca = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(ca.path(), certificate.pem()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider);
        let mut config = client_auth(config.with_safe_default_protocol_versions().unwrap())
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self { ca, acceptor }
    }

    fn options(&self, proxy: &Proxy) -> Options {
        let mut options = proxy.options("https", "");
        options.uplink.trust.ca = Some(self.ca.path().to_owned());
        options
    }

    async fn answer(&self, proxy: &Proxy, head: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = within(self.acceptor.accept(proxy.accept().await)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        read_request(&mut stream).await;
        stream.write_all(head).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work)
        .await
        .expect("nothing happened in time")
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    within(stream.read_to_end(&mut all)).await.unwrap();
    all
}

async fn read_exactly<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> [u8; N] {
    let mut bytes = [0; N];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Bytes without a short period, so that lost, repeated or exchanged parts are noticed.
fn pattern(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed;
    let step = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(step).take(length).collect()
}

/// Closes the socket with a RST.
fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
}

/// The marker of the end notice in a request.
fn end_marker(request: &[u8]) -> Option<Marker> {
    let text = String::from_utf8_lossy(request);
    let (_, value) = text.split_once("\r\nSwitchboard-End: ")?;
    Marker::parse(value.split_once("\r\n")?.0.as_bytes())
}

/// Reads a request, which is one segment with that credential.
async fn expect_segment(stream: &mut TcpStream, authorization: &str) {
    let mut segment = vec![0; 4096];
    let length = within(stream.read(&mut segment)).await.unwrap();
    let wanted = dial::head::Wanted::Tunnel {
        target: TARGET,
        end_marker: end_marker(&segment),
        session: None,
        no_wake: false,
        host_keys: false,
    };
    let request = dial::head::Request {
        wanted: &wanted,
        authorization: Some(authorization.to_owned().into()),
        upgrade: None,
    };
    assert_eq!(segment[..length], *request.to_http1().expose().as_bytes());
}

#[tokio::test]
async fn the_request_is_one_segment_with_the_credentials_of_the_url() {
    let proxy = Proxy::bind().await;
    let _session = Session::start(proxy.options("http", "user:p%40ss@"));
    let mut stream = proxy.accept().await;
    expect_segment(&mut stream, "Basic dXNlcjpwQHNz").await;
}

#[tokio::test]
async fn a_wrong_target_is_a_usage_error_before_any_connection() {
    let proxy = Proxy::bind().await;
    for target in ["host", "host:0", "a b:22", "host:22\r\nX: y", "fd00::1:22"] {
        let session = Session::start(Options {
            target: target.to_owned(),
            ..proxy.http()
        });
        let error = session.end().await.unwrap_err();
        assert_eq!(error.exit_code(), 2, "{target}");
        assert!(chain(&error).starts_with("the target is not HOST:PORT: "), "{error}");
    }
}

#[tokio::test]
async fn a_closed_port_is_named_with_its_address() {
    let proxy = Proxy::bind().await;
    let options = proxy.http();
    let address = proxy.listener.local_addr().unwrap();
    let _port = proxy.close();
    let line = Session::start(options).failure().await;
    assert!(
        line.starts_with(&format!("cannot connect to the proxy at {address}: Connection refused")),
        "{line}"
    );
}

/// Sends 8 MiB each way at the same time, and compares every byte.
async fn exchange<S: AsyncRead + AsyncWrite>(session: Session, stream: S) {
    const LENGTH: usize = 8 << 20;
    let (up, down) = (pattern(5, LENGTH), pattern(6, LENGTH));
    let (mut stdin, mut stdout, ended) = session.parts();
    let (mut from_client, mut to_client) = tokio::io::split(stream);
    let (received_up, received_down, (), ()) = tokio::join!(
        read_all(&mut from_client),
        read_all(&mut stdout),
        async {
            stdin.write_all(&up).await.unwrap();
            drop(stdin);
        },
        async {
            to_client.write_all(&down).await.unwrap();
            to_client.shutdown().await.unwrap();
        },
    );
    assert!(received_up == up);
    assert!(received_down == down);
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn eight_mebibytes_both_ways_at_once_are_exact() {
    let proxy = Proxy::bind().await;
    let session = Session::start(proxy.http());
    exchange(session, proxy.answer(ACCEPT).await).await;
}
