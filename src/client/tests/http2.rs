//! The client over HTTP/2, against h2's server, and against bytes where h2's server would not send them.

use super::*;

use std::future::poll_fn;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use proptest::prelude::*;

mod endings;
mod frames;
mod sessions;

/// A proxy that chooses HTTP/2 when it is offered.
struct Http2Proxy {
    proxy: Proxy,
    identity: Server,
}

/// The proxy's side of one connection with one request on it.
struct Asked {
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    connection: Connection<TlsStream<TcpStream>, Bytes>,
}

/// The proxy's side of a tunnel.
struct Tunnel {
    receive: RecvStream,
    send: SendStream<Bytes>,
    /// The driver, which ends with the connection.
    connection: JoinHandle<()>,
}

impl Http2Proxy {
    async fn bind() -> Self {
        Self {
            proxy: Proxy::bind().await,
            identity: Server::named("127.0.0.1"),
        }
    }

    fn options(&self) -> Options {
        Options {
            http2: true,
            ..self.identity.options(&self.proxy)
        }
    }

    fn start(&self) -> Session {
        Session::start(self.options())
    }

    /// Completes the TLS handshake, in which both sides must agree on HTTP/2.
    async fn accept(&self) -> TlsStream<TcpStream> {
        let tcp = self.proxy.accept().await;
        let stream = within(self.identity.acceptor.accept(tcp)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    }

    async fn asked(&self) -> Asked {
        self.asked_with(&Builder::new()).await
    }

    async fn asked_with(&self, settings: &Builder) -> Asked {
        let mut connection = within(settings.handshake(self.accept().await)).await.unwrap();
        let (request, respond) = within(connection.accept()).await.unwrap().unwrap();
        Asked {
            request,
            respond,
            connection,
        }
    }

    /// A tunnel of scripted bytes, through which the client has received `bye`.
    async fn scripted(&self) -> (Session, TlsStream<TcpStream>) {
        let mut session = self.start();
        let mut stream = self.accept().await;
        let bye = [SETTINGS, ANSWER, b"\0\0\x03\0\0\0\0\0\x01bye"].concat();
        stream.write_all(&bye).await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(&read_exactly::<3>(&mut session.stdout).await, b"bye");
        (session, stream)
    }

    async fn tunnel(&self) -> Tunnel {
        self.asked().await.opens()
    }
}

impl Asked {
    fn opens(mut self) -> Tunnel {
        let send = self.respond.send_response(Response::new(()), false).unwrap();
        Tunnel {
            receive: self.request.into_body(),
            send,
            connection: driven(self.connection),
        }
    }

    /// Answers with this response and body, and drives the connection to its end.
    fn refuses(mut self, response: Response<()>, body: &'static [u8]) -> JoinHandle<()> {
        let mut send = self.respond.send_response(response, false).unwrap();
        send.send_data(Bytes::from_static(body), true).unwrap();
        driven(self.connection)
    }
}

fn driven(mut connection: Connection<TlsStream<TcpStream>, Bytes>) -> JoinHandle<()> {
    tokio::spawn(async move { while let Some(Ok(_)) = connection.accept().await {} })
}

/// The next bytes, released at once. `None` at the end of stream.
async fn next(receive: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let data = within(receive.data()).await?;
    if let Ok(bytes) = &data {
        receive.flow_control().release_capacity(bytes.len()).unwrap();
    }
    Some(data)
}

async fn all(receive: &mut RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = next(receive).await {
        all.extend_from_slice(&bytes.unwrap());
    }
    all
}

async fn send_all(send: &mut SendStream<Bytes>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        within(poll_fn(|context| send.poll_capacity(context)))
            .await
            .unwrap()
            .unwrap();
        let (now, rest) = bytes.split_at(send.capacity().min(bytes.len()));
        send.send_data(Bytes::copy_from_slice(now), false).unwrap();
        bytes = rest;
    }
}

#[tokio::test]
async fn the_request_is_a_connect_with_the_target_as_typed_and_no_other_pseudo_field() {
    let proxy = Http2Proxy::bind().await;
    let mut options = proxy.options();
    let port = options.proxy.port();
    options.proxy = format!("https://user:p%40ss@127.0.0.1:{port}").parse().unwrap();
    options.target = "Svc-A.ns.:22".to_owned();
    let _session = Session::start(options);
    let (head, _) = proxy.asked().await.request.into_parts();
    assert_eq!(
        (head.method.as_str(), head.uri.to_string().as_str()),
        ("CONNECT", "Svc-A.ns.:22")
    );
    assert_eq!((head.uri.scheme(), head.uri.path_and_query()), (None, None));
    let fields: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    let (marker, others) = fields.split_last().unwrap();
    assert_eq!(
        others,
        [
            ("user-agent", dial::head::USER_AGENT),
            ("proxy-authorization", "Basic dXNlcjpwQHNz")
        ]
    );
    assert_eq!(marker.0, "switchboard-end");
    assert!(Marker::parse(marker.1.as_bytes()).is_some(), "{}", marker.1);
}

#[tokio::test]
async fn eight_mebibytes_both_ways_at_once_are_exact_over_http_2() {
    const LENGTH: usize = 8 << 20;
    let (up, down) = (pattern(5, LENGTH), pattern(6, LENGTH));
    let proxy = Http2Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = proxy.start().parts();
    let mut tunnel = proxy.tunnel().await;
    let (received_up, received_down, (), ()) = tokio::join!(
        all(&mut tunnel.receive),
        read_all(&mut stdout),
        async {
            stdin.write_all(&up).await.unwrap();
            drop(stdin);
        },
        async {
            send_all(&mut tunnel.send, &down).await;
            tunnel.send.send_data(Bytes::new(), true).unwrap();
        },
    );
    assert!(received_up == up);
    assert!(received_down == down);
    within(ended).await.unwrap().unwrap();
    // The client sends GOAWAY and closes: the proxy waits for no timeout.
    within(tunnel.connection).await.unwrap();
}

#[tokio::test]
async fn a_refusal_reads_as_it_does_over_http_1() {
    let refusal = |kind: &'static str| Response::builder().status(403).header("content-type", kind);
    for (response, body, line) in [
        (
            refusal("text/plain").header("content-length", "17"),
            &b"no such target\r\n\n"[..],
            "the proxy answered 403: no such target",
        ),
        (
            refusal("text/plain"),
            b"\x1b[31mno\nmore",
            "the proxy answered 403: [31mno",
        ),
        (refusal("text/html"), b"<html>", "the proxy answered 403"),
        (refusal("text/plain"), b"", "the proxy answered 403"),
        (Response::builder().status(502), b"", "the proxy answered 502"),
    ] {
        let proxy = Http2Proxy::bind().await;
        let session = proxy.start();
        let asked = proxy.asked().await;
        // Dropped with its request unread, the stream is reset with NO_ERROR behind the answer.
        let _connection = asked.refuses(response.body(()).unwrap(), body);
        let error = session.end().await.unwrap_err();
        assert_eq!((error.exit_code(), chain(&error).as_str()), (1, line));
    }
}

#[tokio::test]
async fn a_body_that_never_comes_does_not_hide_the_refusal() {
    let proxy = Http2Proxy::bind().await;
    let session = proxy.start();
    let Asked {
        mut respond,
        connection,
        ..
    } = proxy.asked().await;
    let response = Response::builder().status(503).body(()).unwrap();
    let _send = respond.send_response(response, false).unwrap();
    let _connection = driven(connection);
    assert_eq!(session.failure().await, "the proxy answered 503");
}

#[tokio::test(start_paused = true)]
async fn a_silent_proxy_is_reported_as_a_timeout_over_http_2() {
    let proxy = Http2Proxy::bind().await;
    let session = Session::start(Options {
        timeout: Duration::from_millis(300),
        ..proxy.options()
    });
    let _asked = proxy.asked().await;
    let error = session.end().await.unwrap_err();
    assert!(
        matches!(error, ClientError::Deadline { step: Step::Answer, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_unread_stdout_stops_the_download_and_not_the_pings() {
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let mut asked = proxy.asked().await;
    let mut pings = asked.connection.ping_pong().unwrap();
    let mut tunnel = asked.opens();
    // At most the window, the bytes of one read, and what the test's own pipe holds.
    let flood = tokio::spawn(async move {
        let mut sent = 0_usize;
        loop {
            tunnel.send.reserve_capacity(1 << 20);
            let capacity = poll_fn(|context| tunnel.send.poll_capacity(context));
            match tokio::time::timeout(Duration::from_secs(1), capacity).await {
                Ok(capacity) => {
                    let capacity = capacity.unwrap().unwrap();
                    tunnel.send.send_data(Bytes::from(vec![7; capacity]), false).unwrap();
                    sent += capacity;
                }
                Err(_) => break,
            }
        }
        tunnel.send.send_data(Bytes::new(), true).unwrap();
        (sent, tunnel)
    });
    let (sent, _tunnel) = within(flood).await.unwrap();
    assert!((4 << 20..6 << 20).contains(&sent), "{sent}");
    within(pings.ping(h2::Ping::opaque())).await.unwrap();
    assert_eq!(read_all(&mut session.stdout).await.len(), sent);
}

#[tokio::test]
async fn an_upload_without_window_stops_stdin() {
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let tunnel = proxy.tunnel().await;
    let mut taken = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(1), session.stdin.write(&[7; 65536])).await {
        taken += written.unwrap();
    }
    assert!(taken < 1 << 20, "{taken}");
    drop(tunnel);
}

#[tokio::test]
async fn a_proxy_without_alpn_or_with_http_1_only_is_asked_in_http_1() {
    for protocols in [Vec::new(), vec![b"http/1.1".to_vec()]] {
        let proxy = Http2Proxy::bind().await;
        let mut config = ServerConfig::clone(proxy.identity.acceptor.config());
        config.alpn_protocols = protocols;
        let mut session = proxy.start();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let mut stream = within(acceptor.accept(proxy.proxy.accept().await)).await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(&[ACCEPT, b"hello"].concat()).await.unwrap();
        assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
    }
}

proptest! {
    #[test]
    fn every_target_can_be_asked_for_in_http_2(target in "\\PC{0,40}(:[0-9]{1,5})?|[a-zA-Z0-9._\\[\\]:-]{1,40}:[0-9]{1,5}") {
        if target.parse::<Authority>().is_ok() {
            let request = Request::connect(target.as_str()).body(()).unwrap();
            prop_assert_eq!(request.uri().authority().unwrap().as_str(), target.as_str());
        }
    }
}

/// An empty SETTINGS frame.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
/// HEADERS of stream 1 with `:status: 200`, which is 8 in HPACK's static table.
const ANSWER: &[u8] = b"\0\0\x01\x01\x04\0\0\0\x01\x88";
