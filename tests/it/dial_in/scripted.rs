//! An anchor at a proxy that the test plays.

use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{Method, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::DialledIn;
use crate::harness::DEADLINE;
use crate::harness::ports::Ports;
use crate::harness::target::{Closed, Target};

/// The proxy.
struct Scripted {
    listener: TcpListener,
    url: String,
}

impl Scripted {
    async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    fn anchor(&self, target: &Target) -> DialledIn {
        DialledIn::start(&self.url, "gpu1.lab:22", target.address())
    }

    /// The next dial, with its head.
    async fn dial(&self) -> (TcpStream, String) {
        let (mut stream, _) = timeout(DEADLINE, self.listener.accept()).await.unwrap().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        (stream, String::from_utf8(head).unwrap())
    }

    /// Answers the next dial with that.
    async fn answer(&self, answer: &str) {
        let (mut stream, _) = self.dial().await;
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    /// Takes the next dial as that replica of these.
    async fn take(&self, replica: &str, replicas: &str) -> SendRequest<Bytes> {
        let (stream, _) = self.dial().await;
        begin(stream, replica, replicas).await
    }
}

async fn begin(mut stream: TcpStream, replica: &str, replicas: &str) -> SendRequest<Bytes> {
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: switchboard-anchor\r\nSwitchboard-Replica: \
         {replica}\r\nSwitchboard-Replicas: {replicas}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    // h2 counts small frames that wait: each of many tunnels begins with one.
    let handshake = client::Builder::new().data_frame_budget(2 << 20).handshake(stream);
    let (requests, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    requests
}

fn post(path: &str, replicas: Option<&str>) -> Request<()> {
    let mut request = Request::post(format!("http://gpu1.lab:22{path}"));
    if let Some(replicas) = replicas {
        request = request.header("switchboard-replicas", replicas);
    }
    request.body(()).unwrap()
}

fn connect(authority: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = authority.parse().unwrap();
    request
}

/// The status of the answer to a request that is whole.
async fn status(requests: &SendRequest<Bytes>, request: Request<()>) -> StatusCode {
    let mut requests = requests.clone().ready().await.unwrap();
    let (answer, _) = requests.send_request(request, true).unwrap();
    timeout(DEADLINE, answer).await.unwrap().unwrap().status()
}

fn scripted<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test());
}

#[test]
fn the_request_names_what_is_served_and_every_other_one_of_the_proxy_is_refused() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let anchor = proxy.anchor(&target);
        let (stream, head) = proxy.dial().await;
        let host = proxy.url.strip_prefix("http://").unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let line = "GET /.well-known/switchboard/anchor/gpu1.lab:22 HTTP/1.1";
        assert!(head.starts_with(&format!("{line}\r\nHost: {host}\r\n")), "{head}");
        for field in [
            "Connection: Upgrade",
            "Upgrade: switchboard-anchor",
            &format!("User-Agent: switchboard/{version}"),
        ] {
            assert!(head.contains(&format!("\r\n{field}\r\n")), "{head}");
        }
        let requests = begin(stream, "a", "1").await;
        for (request, expected) in [
            (connect("other.lab:22"), StatusCode::MISDIRECTED_REQUEST),
            (connect("gpu1.lab:23"), StatusCode::MISDIRECTED_REQUEST),
            (post("/other", None), StatusCode::METHOD_NOT_ALLOWED),
            (post("/replicas", Some("a,b c")), StatusCode::BAD_REQUEST),
        ] {
            let what = format!("{request:?}");
            assert_eq!(status(&requests, request).await, expected, "{what}");
        }
        anchor.settles("anchor_misdirected_total", 2.0);
        target.expect_no_connection();
        let mut ready = requests.clone().ready().await.unwrap();
        let (answer, mut send) = ready.send_request(connect("GPU1.lab:22"), false).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        send.send_data("SSH-2.0-x\r\n".into(), false).unwrap();
        target.accept().expect("SSH-2.0-x\r\n");
    });
}

#[test]
fn each_replica_has_one_connection_and_one_that_drains_or_is_new_is_dialled() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let anchor = proxy.anchor(&target);
        let a = proxy.take("a", "a,b").await;
        // A balancer leads there once more: the anchor closes that connection.
        let (mut stream, _) = proxy.dial().await;
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: switchboard-anchor\r\n\
                      Switchboard-Replica: a\r\nSwitchboard-Replicas: a,b\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        assert_eq!(timeout(DEADLINE, stream.read(&mut [0; 100])).await.unwrap().unwrap(), 0);
        let b = proxy.take("b", "a,b").await;
        anchor.reaches(2.0);
        assert_eq!(status(&a, post("/replicas", Some("a,b,c"))).await, StatusCode::OK);
        let c = proxy.take("c", "a,b,c").await;
        anchor.reaches(3.0);
        assert_eq!(status(&b, post("/draining", None)).await, StatusCode::OK);
        anchor.reaches(2.0);
        assert_eq!(status(&a, post("/replicas", Some("a,c,d"))).await, StatusCode::OK);
        let _d = proxy.take("d", "a,c,d").await;
        anchor.reaches(3.0);
        drop(c);
        let _c = proxy.take("c", "a,c,d").await;
        anchor.settles("anchor_dials_total{result=\"registered\"}", 5.0);
        anchor.reaches(3.0);
        assert_eq!(anchor.scrape().value("anchor_dials_total{result=\"surplus\"}"), 1.0);
    });
}

#[test]
fn a_replica_that_one_list_has_is_dialled_although_a_later_list_lacks_it() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let anchor = proxy.anchor(&target);
        let _a = proxy.take("a", "a,b,c").await;
        let b = proxy.take("b", "a,b").await;
        assert_eq!(status(&b, post("/replicas", Some("a,b"))).await, StatusCode::OK);
        let _c = proxy.take("c", "a,b,c").await;
        anchor.reaches(3.0);
    });
}

#[test]
fn an_anchor_whose_only_replica_drains_is_not_ready() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let anchor = proxy.anchor(&target);
        let a = proxy.take("a", "a,b").await;
        anchor.becomes(200);
        assert_eq!(status(&a, post("/draining", None)).await, StatusCode::OK);
        anchor.becomes(503);
        let page = anchor.ask_admin("GET", "/readyz").body;
        assert!(page.contains("connected to 0 of 2 replicas"), "{page}");
        let _b = proxy.take("b", "a,b").await;
        anchor.becomes(200);
    });
}

#[test]
fn no_more_replicas_are_counted_than_there_are() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let anchor = proxy.anchor(&target);
        let a = proxy.take("a", "2").await;
        let _b = proxy.take("b", "2").await;
        anchor.reaches(2.0);
        assert_eq!(status(&a, post("/replicas", Some("1"))).await, StatusCode::OK);
        let ready = || anchor.ask_admin("GET", "/readyz").body;
        assert!(ready().contains("connected to 2 of 2 replicas"), "{}", ready());
    });
}

#[test]
fn a_full_anchor_has_streams_left_to_refuse_and_to_be_told() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let more = ["--max-sessions", "1"];
        let _anchor = DialledIn::start_with(&proxy.url, "gpu1.lab:22", target.address(), &more);
        let requests = proxy.take("a", "1").await;
        // The SETTINGS have been received.
        assert_eq!(status(&requests, post("/replicas", Some("1"))).await, StatusCode::OK);
        // A session and a connection without one, and 512 handshakes.
        assert_eq!(requests.current_max_send_streams(), 2 + 512);
    });
}

#[test]
fn a_thousand_tunnels_may_be_opened_at_once() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Closed::bind());
        let _anchor = DialledIn::start(&proxy.url, "gpu1.lab:22", target.address());
        let mut requests = proxy.take("a", "1").await.ready().await.unwrap();
        // The SETTINGS with the number of streams have been received.
        assert_eq!(
            status(&requests, connect("other:22")).await,
            StatusCode::MISDIRECTED_REQUEST
        );
        let mut tunnels = Vec::new();
        for _ in 0..1000 {
            tunnels.push(requests.send_request(connect("gpu1.lab:22"), false).unwrap());
        }
        for (answer, _send) in &mut tunnels {
            let answer = timeout(DEADLINE, answer).await.unwrap();
            assert_eq!(answer.unwrap().status(), StatusCode::OK);
        }
    });
}

#[test]
fn a_proxy_that_takes_no_anchors_is_asked_again_after_half_a_minute_at_least() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let mut anchor = proxy.anchor(&target);
        proxy
            .answer("HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            .await;
        anchor.process.stderr.find("the proxy takes no anchors");
        let again = timeout(Duration::from_secs(3), proxy.listener.accept()).await;
        assert!(again.is_err());
        assert_eq!(anchor.scrape().value("anchor_dials_total{result=\"no_anchors\"}"), 1.0);
    });
}

#[test]
fn the_token_is_read_at_each_dial_and_a_pause_that_the_proxy_asks_for_is_kept() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "one").unwrap();
        let more = ["--token-file", file.to_str().unwrap()];
        let _anchor = DialledIn::start_with(&proxy.url, "gpu1.lab:22", target.address(), &more);
        let (mut stream, head) = proxy.dial().await;
        assert!(head.contains("\r\nProxy-Authorization: Bearer one\r\n"), "{head}");
        std::fs::write(&file, "two").unwrap();
        let begun = std::time::Instant::now();
        stream
            .write_all(b"HTTP/1.1 503 draining\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        let (_, head) = proxy.dial().await;
        assert!(head.contains("\r\nProxy-Authorization: Bearer two\r\n"), "{head}");
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    });
}

#[test]
fn an_anchor_that_stops_says_so_first_and_answers_no_further_tunnel() {
    scripted(|| async {
        let (proxy, target) = (Scripted::listen().await, Target::listen());
        let anchor = proxy.anchor(&target);
        let (mut stream, _) = proxy.dial().await;
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: switchboard-anchor\r\n\
                      Switchboard-Replica: a\r\nSwitchboard-Replicas: 1\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (requests, connection) = client::handshake(stream).await.unwrap();
        let driven = tokio::spawn(connection);
        assert_eq!(
            status(&requests, connect("other:22")).await,
            StatusCode::MISDIRECTED_REQUEST
        );
        let stopped = tokio::task::spawn_blocking(move || anchor.stop());
        timeout(DEADLINE, driven).await.unwrap().unwrap().ok();
        stopped.await.unwrap();
        assert!(requests.clone().ready().await.is_err());
    });
}
