//! A client that speaks HTTP/2, by the h2 crate's client: its tunnel is one stream of a connection, which outlives it.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use http::{Method, Request};
use switchboard::net::transport::Transport;
use switchboard::proxy::exchange::Exchange;
use switchboard::proxy::http::CredentialPolicy;
use switchboard::tunnel::drain::DrainController;
use switchboard::tunnel::{self, http2};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};

use super::peer::{Wire, stream};
use super::schedule::{Role, Schedule};
use super::stage::Downstream;
use crate::harness::stream::Stream;

/// The way in which a client resets its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resets {
    /// The stream alone.
    Stream,
    /// With the connection, as a client that is killed. Its socket has to be one whose close is a reset.
    Connection,
}

/// The client's tunnel.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    /// Ends the connection, for a client that resets that way.
    end_connection: Option<oneshot::Sender<()>>,
}

/// The client's connection and the proxy's end of it.
#[derive(Debug)]
pub(crate) struct Http2<C: Wire, D> {
    client: Connection<C>,
    /// As long as there is a handle for further requests, the client keeps the connection.
    requests: SendRequest<Bytes>,
    ended: Option<oneshot::Receiver<()>>,
    ours: D,
}

/// Begins HTTP/2 on a connection, and asks for a tunnel: behind the request come the schedule's early bytes.
pub(crate) async fn over<C: Wire, D: Transport>(
    (client, ours): (C, D),
    schedule: &Schedule,
    resets: Resets,
) -> (Client, Http2<C, D>) {
    let mut builder = Builder::new();
    if schedule.tight {
        builder.initial_window_size(SMALL).max_send_buffer_size(SMALL as usize);
    }
    let (requests, client) = builder.handshake::<_, Bytes>(client).await.unwrap();
    let mut requests = requests.ready().await.unwrap();
    let request = Request::builder().method(Method::CONNECT).uri("target:22");
    let asked = requests.send_request(request.body(()).unwrap(), false);
    let (response, mut send) = asked.unwrap();
    // The connection is not driven yet: all of it may have to wait.
    send.send_data(Bytes::from_static(&stream(Role::Client)[..schedule.early]), false)
        .unwrap();
    let tunnel = Stream::new((response, send));
    let (end_connection, ended) = match resets {
        Resets::Stream => (None, None),
        Resets::Connection => {
            let (end, ended) = oneshot::channel();
            (Some(end), Some(ended))
        }
    };
    let client_end = Client {
        stream: tunnel,
        end_connection,
    };
    let connection = Http2 {
        client,
        requests,
        ended,
        ours,
    };
    (client_end, connection)
}

impl<C: Wire, D: Transport> Downstream for Http2<C, D> {
    async fn carry(self, relayed: impl AsyncFnOnce(tunnel::stream::Stream, Vec<u8>)) {
        let Self {
            client,
            requests,
            ended,
            ours,
        } = self;
        let living = async move {
            let ended = async {
                match ended {
                    Some(ended) => ended.await.ok(),
                    None => pending().await,
                }
            };
            tokio::select! {
                ended = client => panic!("the proxy ended the connection: {ended:?}"),
                _ = ended => {}
            }
        };
        let relayed = Cell::new(Some(relayed));
        let (_conductor, drain) = DrainController::new();
        let requested = Notify::new();
        let serving = http2::serve(
            http2::Connection::new(ours, Vec::new()),
            |_| pending(),
            http2::GoAway {
                drain: &drain,
                number: 7,
                requested: &requested,
            },
            |request| {
                let relayed = relayed.take().expect("one tunnel is asked for");
                async move {
                    let mut exchange = Exchange::from(request);
                    exchange.read_head(CredentialPolicy::Ignored, None).await.unwrap();
                    let (stream, early) = exchange.accept(None).await.unwrap();
                    relayed(stream, early).await;
                }
            },
        );
        let ((), served) = tokio::join!(living, serving);
        served.unwrap();
        drop(requests);
    }
}

impl Wire for Client {
    fn reset(mut self) {
        // Also in front of the end of its connection: dropped, it would be cancelled, which is none.
        self.stream.reset();
        if let Some(end) = self.end_connection.take() {
            end.send(()).unwrap();
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The window of a client that has little room.
const SMALL: u32 = 32 * 1024;
