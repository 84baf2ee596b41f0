//! The cost of a handshake: from the bytes of a request to a tunnel that is established, ours beside hyper's.
//!
//! A connected pair of sockets is made first, unmeasured. The figure is the processor time of one thread that plays both
//! sides. The client's write and read cost the same for all, and so do the proxy's: `floor` is those alone.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed assumption fails the benchmark"
)]

#[path = "support/thread_time.rs"]
mod thread_time;

use std::convert::Infallible;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use switchboard::base::authority::Authority;
use switchboard::proxy::exchange::Exchange;
use switchboard::proxy::http::CredentialPolicy;
use switchboard::tunnel::stream::Stream;
use thread_time::{ThreadTime, used};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The requests of proxytunnel and `nc -X connect`.
const REQUESTS: [(&str, &[u8]); 2] = [
    (
        "1.1",
        b"CONNECT demo.runtime.svc.cluster.local:22 HTTP/1.1\r\nHost: proxy.example.com:8080\r\n\
          Proxy-Connection: Keep-Alive\r\nUser-Agent: proxytunnel\r\n\r\n",
    ),
    ("1.0", b"CONNECT demo.runtime.svc.cluster.local:22 HTTP/1.0\r\n\r\n"),
];
/// The first line of an SSH client, which does not wait for the answer.
const EARLY: &[u8] = b"SSH-2.0-OpenSSH_9.2p1\r\n";

async fn ours(stream: TcpStream) -> (TcpStream, usize) {
    let mut exchange = Exchange::http1(stream, Vec::new());
    let authority = timeout(
        Duration::from_secs(10),
        exchange.read_head(CredentialPolicy::Ignored, None),
    )
    .await;
    authority
        .expect("the request is there")
        .expect("the request is a good one");
    let (Stream::Tcp(stream), early) = exchange.accept(None).await.expect("the client is there") else {
        unreachable!("it was a socket");
    };
    (stream, early.len())
}

/// The same with hyper as the parser. It has no early refusal, no check of Host or content, and no look at the client
/// while the target is dialled: what it does is less.
async fn hypers(stream: TcpStream) -> (TcpStream, usize) {
    let service = service_fn(async |request: Request<Incoming>| {
        let authority: Authority = request.uri().to_string().parse().expect("the request is a good one");
        drop(authority);
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .max_buf_size(16 * 1024)
        .max_headers(64)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let parts = connection.without_shutdown().await.expect("the request is a good one");
    (parts.io.into_inner(), parts.read_buf.len())
}

/// Does what any proxy has to: reads what has come, and writes an answer.
async fn floor(mut stream: TcpStream) -> (TcpStream, usize) {
    let mut head = [0; 2048];
    let read = stream.read(&mut head).await.unwrap();
    stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await
        .unwrap();
    (stream, read.min(EARLY.len()))
}

async fn one(
    listener: &TcpListener,
    request: &[u8],
    handshake: impl AsyncFn(TcpStream) -> (TcpStream, usize),
) -> Duration {
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut client, stream) = (client.unwrap(), accepted.unwrap().0);
    client.set_nodelay(true).unwrap();
    stream.set_nodelay(true).unwrap();
    client.write_all(request).await.unwrap();
    let start = used();
    let (stream, early) = handshake(stream).await;
    let mut answer = [0; 256];
    let read = client.read(&mut answer).await.unwrap();
    let took = used() - start;
    assert!(answer.starts_with(b"HTTP/1.") && read > 12 && early == EARLY.len());
    drop(stream);
    took
}

async fn many(iterations: u64, request: &[u8], handshake: impl AsyncFn(TcpStream) -> (TcpStream, usize)) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let request = [request, EARLY].concat();
    let mut took = Duration::ZERO;
    for _ in 0..iterations {
        took += one(&listener, &request, &handshake).await;
    }
    took
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn handshakes(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("handshake");
    for (version, request) in REQUESTS {
        group.bench_function(format!("floor/{version}"), |bencher| {
            bencher.iter_custom(|iterations| runtime().block_on(many(iterations, request, floor)));
        });
        group.bench_function(format!("httparse/{version}"), |bencher| {
            bencher.iter_custom(|iterations| runtime().block_on(many(iterations, request, ours)));
        });
        group.bench_function(format!("hyper/{version}"), |bencher| {
            bencher.iter_custom(|iterations| runtime().block_on(many(iterations, request, hypers)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = handshakes
}
criterion_main!(benches);
