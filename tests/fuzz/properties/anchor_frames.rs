//! The bytes of an anchor that has dialled in, as the proxy's side of HTTP/2 takes them.

use std::future::poll_fn;
use std::time::Duration;

use switchboard::net::transport::{Reader, Transport};
use switchboard::tunnel::http2::client::Streams;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().unwrap();
}

/// The connection and a tunnel on it come to their ends with the bytes, and the tunnel has got no byte more.
pub(crate) fn check(bytes: &[u8]) {
    let got = RUNTIME.with(|runtime| runtime.block_on(async { timeout(DEADLINE, received(bytes)).await }));
    assert!(got.expect("the connection has no end") <= bytes.len());
}

/// The bytes of the tunnel.
async fn received(bytes: &[u8]) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut anchor = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (proxy, _) = listener.accept().await.unwrap();
    anchor.shutdown().await.unwrap();
    let (streams, _preface, driven) = Streams::begin(proxy, bytes.to_vec()).await.unwrap();
    let tunnel = async {
        let Ok(mut stream) = streams.open(&"gpu1.lab:22".parse().unwrap()).await else {
            return 0;
        };
        drop(streams);
        let mut got = 0;
        let mut buffer = [0; 4096];
        loop {
            let read = poll_fn(|context| {
                let (mut reader, _) = stream.split();
                reader
                    .poll_read(context, &mut buffer)
                    .map(|read| read.map_or(0, <[u8]>::len))
            });
            match read.await {
                0 => return got,
                read => got += read,
            }
        }
    };
    tokio::join!(driven, tunnel).1
}

/// Only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);
