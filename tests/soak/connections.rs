//! The connections of clients to the proxy: plain or by TLS, with one tunnel or many.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fmt, fs};

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use http::Request;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::lab::PROXY;
use crate::proxy::PATIENCE;
use crate::stream::Stream;

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Plain,
    Tls,
    Http2,
    Http2OverTls,
}

impl Protocol {
    /// Each in turn.
    pub(crate) fn turn(number: usize) -> Self {
        [Self::Plain, Self::Tls, Self::Http2, Self::Http2OverTls][number % 4]
    }
}

/// A method, its target, and what is sent behind the request at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    pub(crate) early: &'a str,
}

/// An answer. Dropped in this order: what is counted as closed is closed.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) carrier: Box<dyn Carrier>,
    _socket: Option<Socket>,
}

/// The carrier of a tunnel: a connection, or a stream of one.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// Makes its end a reset.
    fn reset(&mut self);
}

impl Carrier for TcpStream {
    fn reset(&mut self) {
        SockRef::from(&*self).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

impl Carrier for TlsStream<TcpStream> {
    fn reset(&mut self) {
        self.get_mut().0.reset();
    }
}

impl Carrier for Stream {
    fn reset(&mut self) {
        Self::reset(self);
    }
}

/// All connections to the proxy.
pub(crate) struct Connections {
    tls: Arc<ClientConfig>,
    /// Connections made so far.
    pub(crate) made: AtomicU64,
    /// Requests that were answered, by protocol.
    pub(crate) requests: [AtomicU64; 4],
    sockets: Arc<AtomicUsize>,
    /// The connections that tunnels share.
    plain: Mutex<Option<SendRequest<Bytes>>>,
    secure: Mutex<Option<SendRequest<Bytes>>>,
}

/// Counts one connection for as long as it is open.
#[derive(Debug)]
struct Socket(Arc<AtomicUsize>);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    /// With a new certificate in that directory; and the settings of a proxy that shows it.
    pub(crate) fn new(directory: &Path) -> (Self, Value) {
        let issued = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let (cert, key) = (directory.join("proxy.crt"), directory.join("proxy.key"));
        fs::write(&cert, issued.cert.pem()).unwrap();
        fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
        let connections = Self {
            tls: Arc::new(trusting(issued.cert.der())),
            made: AtomicU64::new(0),
            requests: Default::default(),
            sockets: Arc::default(),
            plain: Mutex::default(),
            secure: Mutex::default(),
        };
        (connections, json!({"certificates": [{"cert": cert, "key": key}]}))
    }

    /// The number of open connections.
    pub(crate) fn sockets(&self) -> usize {
        self.sockets.load(Ordering::Relaxed)
    }

    /// Closes the connections that tunnels share.
    pub(crate) async fn close(&self) {
        for shared in [&self.plain, &self.secure] {
            shared.lock().await.take();
        }
    }

    /// A connection on which nothing is ever said.
    pub(crate) async fn probe(&self) -> io::Result<()> {
        self.connect().await.map(drop)
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, protocol: Protocol, asked: Asked<'_>) -> io::Result<Answered> {
        let answered = timeout(PATIENCE, async {
            match protocol {
                Protocol::Plain => {
                    let (stream, socket) = self.connect().await?;
                    alone(stream, socket, asked).await
                }
                Protocol::Tls => {
                    let (stream, socket) = self.connect().await?;
                    alone(self.secure(stream, &[]).await?, socket, asked).await
                }
                Protocol::Http2 | Protocol::Http2OverTls => shared(self.requests_by(protocol).await?, asked).await,
            }
        });
        let answered = answered.await??;
        self.requests[protocol as usize].fetch_add(1, Ordering::Relaxed);
        Ok(answered)
    }

    /// Asks so often on a connection of its own.
    pub(crate) async fn ask_for_many(&self, asked: Asked<'_>, tunnels: usize) -> io::Result<(Vec<Answered>, Cuttable)> {
        let (mut stream, socket) = self.connect().await?;
        stream.reset();
        let (requests, connection) = handshake(stream).await.map_err(io::Error::other)?;
        let driver = tokio::spawn(async move {
            connection.await.ok();
            drop(socket);
        });
        let mut answered = Vec::new();
        for _ in 0..tunnels {
            let requests = requests.clone().ready().await.map_err(io::Error::other)?;
            answered.push(timeout(PATIENCE, shared(requests, asked)).await??);
            self.requests[Protocol::Http2 as usize].fetch_add(1, Ordering::Relaxed);
        }
        Ok((answered, Cuttable(driver)))
    }

    async fn connect(&self) -> io::Result<(TcpStream, Socket)> {
        let stream = TcpStream::connect((PROXY, PUBLIC)).await?;
        self.made.fetch_add(1, Ordering::Relaxed);
        self.sockets.fetch_add(1, Ordering::Relaxed);
        stream.set_nodelay(true)?;
        Ok((stream, Socket(Arc::clone(&self.sockets))))
    }

    async fn secure(&self, stream: TcpStream, protocols: &[&[u8]]) -> io::Result<TlsStream<TcpStream>> {
        let protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let name = ServerName::try_from(NAME).unwrap();
        connector.with_alpn(protocols).connect(name, stream).await
    }

    /// The connection that is shared, or a new one.
    async fn requests_by(&self, protocol: Protocol) -> io::Result<SendRequest<Bytes>> {
        let is_secure = protocol == Protocol::Http2OverTls;
        let mut shared = if is_secure { &self.secure } else { &self.plain }.lock().await;
        if let Some(requests) = &*shared
            && let Ok(requests) = requests.clone().ready().await
        {
            return Ok(requests);
        }
        let (stream, socket) = self.connect().await?;
        let requests = if is_secure {
            begin(self.secure(stream, &[b"h2"]).await?, socket).await
        } else {
            begin(stream, socket).await
        };
        let requests = requests.map_err(io::Error::other)?;
        *shared = Some(requests.clone());
        requests.ready().await.map_err(io::Error::other)
    }
}

/// A connection that can be cut under its tunnels.
#[derive(Debug)]
pub(crate) struct Cuttable(JoinHandle<()>);

impl Cuttable {
    /// Cuts it.
    pub(crate) async fn cut(self) {
        self.0.abort();
        // It ends as cancelled.
        self.0.await.unwrap_err();
    }
}

/// Begins HTTP/2, and drives it until the last stream and the last handle are dropped.
async fn begin(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    socket: Socket,
) -> Result<SendRequest<Bytes>, h2::Error> {
    let (requests, connection) = handshake(stream).await?;
    tokio::spawn(async move {
        // Each stream on it gets the error.
        connection.await.ok();
        drop(socket);
    });
    Ok(requests)
}

async fn alone(mut stream: impl Carrier + 'static, socket: Socket, asked: Asked<'_>) -> io::Result<Answered> {
    let Asked { method, target, early } = asked;
    let request = format!("{method} {target} HTTP/1.1\r\nHost: {NAME}\r\n\r\n{early}");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Answered {
        status: status.ok_or_else(|| io::Error::other(format!("no answer but {text:?}")))?,
        carrier: Box::new(stream),
        _socket: Some(socket),
    })
}

async fn shared(mut requests: SendRequest<Bytes>, asked: Asked<'_>) -> io::Result<Answered> {
    let request = Request::builder().method(asked.method).uri(asked.target).body(());
    let asking = requests.send_request(request.map_err(io::Error::other)?, false);
    let mut stream = Stream::new(asking.map_err(io::Error::other)?);
    stream.write_all(asked.early.as_bytes()).await?;
    Ok(Answered {
        status: stream.status().await?,
        carrier: Box::new(stream),
        _socket: None,
    })
}

fn trusting(certificate: &CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

const PUBLIC: u16 = 8080;
const NAME: &str = "proxy.soak";
