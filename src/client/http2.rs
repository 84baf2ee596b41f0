//! The tunnel over HTTP/2: one stream, the only one of its connection (RFC 9113 section 8.5).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::SendStream;
use h2::client::{Builder, Connection, SendRequest};
use http::{HeaderValue, Request, header};
use tokio::io::{AsyncRead, AsyncWrite};

use self::first_error::{Fault, Wire};
use self::inbox::Inbox;
use self::stream::{Stream, broken};
use super::head::{Answer, USER_AGENT};
use super::{ClientError, Deadline, Local, Options, Step, relay, tls};

mod first_error;
mod inbox;
mod stream;

/// Asks for the target over an open connection and, if the proxy agrees, relays.
pub(super) async fn tunnel<S, R, W>(
    stream: S,
    options: &Options,
    deadline: Deadline,
    local: &mut Local<R, W>,
) -> Result<(), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let request = request(options)?;
    let opened = deadline.bound(Step::Answer, async {
        let (requests, mut connection) = Driven::begin(stream).await?;
        match connection.during(ask(requests, request)).await {
            Ok((answer, inbox, send)) => {
                connection.inbox = Some(inbox.clone());
                Ok((connection, answer, Stream::new(inbox, send)))
            }
            Err(error) if error.is_io() => Err(connection.named(ClientError::NoAnswer)),
            Err(error) => Err(connection.named(ClientError::Lost(broken(error)))),
        }
    });
    let (mut connection, answer, mut stream) = Box::pin(opened).await?;
    if !answer.opens_tunnel() {
        return Err(connection.during(answer.into_refusal(&mut stream)).await);
    }
    let relayed = connection.during(relay::relay(stream, Vec::new(), local)).await;
    match relayed {
        Ok(()) => connection.finish().await,
        Err(error) => return Err(connection.named(error)),
    }
    Ok(())
}

/// Sends the request and awaits its answer. From then on the stream is all that holds the connection.
async fn ask(
    requests: SendRequest<Bytes>,
    request: Request<()>,
) -> Result<(Answer, Inbox, SendStream<Bytes>), h2::Error> {
    let (answer, send) = requests.ready().await?.send_request(request, false)?;
    let (head, receive) = answer.await?.into_parts();
    Ok((Answer::of(&head), Inbox::of(receive), send))
}

/// No `:scheme`, no `:path`: of a CONNECT they are omitted.
fn request(options: &Options) -> Result<Request<()>, ClientError> {
    let mut request = Request::connect(options.target.as_str()).header(header::USER_AGENT, USER_AGENT);
    if let Some(credentials) = options.proxy.authorization() {
        let credentials = HeaderValue::from_str(credentials).map(|mut credentials| {
            // A literal that no table keeps (RFC 7541 section 7.1.3).
            credentials.set_sensitive(true);
            credentials
        });
        request = match credentials {
            Ok(credentials) => request.header(header::PROXY_AUTHORIZATION, credentials),
            Err(fault) => return Err(ClientError::Request(fault.into())),
        };
    }
    request.body(()).map_err(ClientError::Request)
}

/// A connection, which does nothing by itself.
struct Driven<S> {
    connection: Connection<Wire<S>, Bytes>,
    /// Where what comes on its stream goes.
    inbox: Option<Inbox>,
    /// How it ended, if it has.
    ended: Option<Result<(), h2::Error>>,
    /// What went wrong below it.
    fault: Fault,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driven<S> {
    async fn begin(stream: S) -> Result<(SendRequest<Bytes>, Self), ClientError> {
        let (wire, fault) = Wire::new(stream);
        let begun = Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(MOST_FRAME)
            .max_header_list_size(MOST_HEAD)
            .max_send_buffer_size(MOST_UNSENT)
            .data_frame_budget(MOST_OVERHEAD)
            .handshake(wire)
            .await;
        match begun {
            Ok((requests, connection)) => Ok((
                requests,
                Self {
                    connection,
                    inbox: None,
                    ended: None,
                    fault,
                },
            )),
            Err(error) => Err(named(ClientError::Lost(broken(error)), None, fault.take())),
        }
    }

    /// Completes with `work`, and keeps the connection going meanwhile: also while nobody reads or writes the stream.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.poll(context);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Sends what is left and closes. Nothing bounds it but the socket: the proxy may still be taking the upload in.
    async fn finish(mut self) {
        // With its last handle the stream ends, and with that the connection.
        self.inbox = None;
        poll_fn(|context| {
            self.poll(context);
            if self.ended.is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        if self.ended.is_none()
            && let Poll::Ready(ended) = Pin::new(&mut self.connection).poll(context)
        {
            self.ended = Some(ended);
        }
        if let Some(inbox) = &self.inbox {
            inbox.fill(context);
        }
    }

    /// The error in the words that fit it best.
    fn named(self, error: ClientError) -> ClientError {
        named(error, self.ended.and_then(Result::err), self.fault.take())
    }
}

/// What the proxy said of the stream is the cause of an error, or else what it said of the connection, or else what went
/// wrong below that.
fn named(error: ClientError, connection: Option<h2::Error>, fault: Option<io::Error>) -> ClientError {
    let error = if let ClientError::Lost(lost) = error {
        match lost.downcast() {
            Ok(stream) => return said(stream),
            Err(lost) => ClientError::Lost(lost),
        }
    } else {
        error
    };
    if !matches!(error, ClientError::Lost(_) | ClientError::NoAnswer) {
        return error;
    }
    match (connection, fault) {
        (Some(connection), _) if connection.reason().is_some() => said(connection),
        (_, Some(fault)) => tls::named(fault, ClientError::Lost),
        (_, None) => error,
    }
}

fn said(error: h2::Error) -> ClientError {
    if error.is_remote() {
        ClientError::BrokenOff(error)
    } else {
        ClientError::NotHttp2(error)
    }
}

/// At a round trip of 50 ms it bounds a download to 80 MiB/s. Only a stdout that nobody reads makes it memory.
const WINDOW: u32 = 4 * 1024 * 1024;
/// Four times what every HTTP/2 has to take: there is no other stream that would have to wait for a long frame.
const MOST_FRAME: u32 = 64 * 1024;
/// As over HTTP/1.1.
const MOST_HEAD: u32 = 16 * 1024;
/// How much of an upload waits here for the proxy: two reads.
const MOST_UNSENT: usize = 256 * 1024;
/// Small frames that come at once, before the inbox can take them in: 256 each, less their length. A socket holds fewer.
const MOST_OVERHEAD: usize = 32 * 1024 * 1024;
