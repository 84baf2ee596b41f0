//! The tunnel over HTTP/2: one stream, the only one of its connection (RFC 9113 section 8.5).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use http::{HeaderValue, Request, header};
use tokio::io::{AsyncRead, AsyncWrite};

use self::first_error::{FirstError, Flood, Recorded};
pub(in crate::client) use self::stream::Stream;
use self::stream::{SharedInbox, stream_error};
use super::head::{self, Answer, USER_AGENT};
use super::tls;
use crate::client::{ClientError, Deadline, Step};
use crate::protocol::end_notice::{self, Marker};
use crate::protocol::http2::frames::Credit;

mod first_error;
mod stream;

/// Asks for the target over an open connection. If the proxy agrees, the stream is the tunnel; the marker is that of its end
/// notice, if there may be one.
pub(in crate::client) async fn open<S>(
    stream: S,
    request: &head::Request<'_>,
    deadline: Deadline,
) -> Result<(Driver<S>, Stream, Option<Marker>), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asked = to_http2(request)?;
    let opened = deadline.bound(Step::Answer, async {
        let earned = Credit::default();
        let (requests, mut driver) = Driver::begin(stream, earned.clone()).await?;
        match driver.run_during(ask(requests, asked, earned)).await {
            Ok((answer, stream)) => {
                driver.inbox = Some(stream.inbox());
                Ok((driver, answer, stream))
            }
            Err(error) if error.is_io() => Err(driver.explain(ClientError::NoAnswer)),
            Err(error) => Err(driver.explain(ClientError::Lost(stream_error(error)))),
        }
    });
    let (mut driver, answer, mut stream) = Box::pin(opened).await?;
    if !answer.opens_tunnel() {
        return Err(driver.run_during(answer.into_refusal(&mut stream)).await);
    }
    let marker = answer.promises_notice(request);
    Ok((driver, stream, marker))
}

/// Sends the request and awaits its response head. From then on only the stream holds the connection.
async fn ask(
    requests: SendRequest<Bytes>,
    request: Request<()>,
    earned: Credit,
) -> Result<(Answer, Stream), h2::Error> {
    let (response, send) = requests.ready().await?.send_request(request, false)?;
    let (head, receive) = response.await?.into_parts();
    Ok((Answer::from_http2(&head), Stream::new(receive, send, earned)))
}

/// A CONNECT, which has no `:scheme` and no `:path`.
fn to_http2(asked: &head::Request<'_>) -> Result<Request<()>, ClientError> {
    let mut request = Request::connect(asked.target).header(header::USER_AGENT, USER_AGENT);
    if let Some(credentials) = &asked.authorization {
        let credentials = HeaderValue::from_str(credentials.expose()).map(|mut credentials| {
            // A literal that is never indexed (RFC 7541 section 7.1.3).
            credentials.set_sensitive(true);
            credentials
        });
        request = match credentials {
            Ok(credentials) => request.header(header::PROXY_AUTHORIZATION, credentials),
            Err(invalid) => return Err(ClientError::Request(invalid.into())),
        };
    }
    if let Some(marker) = asked.end_marker {
        request = request.header(end_notice::FIELD, marker.to_string());
    }
    request.body(()).map_err(ClientError::Request)
}

/// A connection with what drives it. It makes progress only while one of these methods is awaited.
pub(in crate::client) struct Driver<S> {
    connection: Connection<Recorded<S>, Bytes>,
    /// The inbox of its stream.
    inbox: Option<SharedInbox>,
    /// The end of the connection, once it has ended.
    ended: Option<Result<(), h2::Error>>,
    /// The first error of the transport under it.
    first_error: FirstError,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    async fn begin(stream: S, earned: Credit) -> Result<(SendRequest<Bytes>, Self), ClientError> {
        let (recorded, first_error) = Recorded::new(stream, earned);
        let begun = Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(LONGEST_FRAME)
            .max_header_list_size(MOST_HEAD)
            .max_send_buffer_size(MOST_UNSENT)
            .data_frame_budget(SMALL_FRAMES)
            .handshake(recorded)
            .await;
        match begun {
            Ok((requests, connection)) => Ok((
                requests,
                Self {
                    connection,
                    inbox: None,
                    ended: None,
                    first_error,
                },
            )),
            Err(error) => Err(explain(
                ClientError::Lost(stream_error(error)),
                None,
                first_error.take(),
            )),
        }
    }

    /// Completes with `work`, and drives the connection meanwhile, also while the stream is neither read nor written.
    pub(in crate::client) async fn run_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.poll(context);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Sends what is left and closes. Only the socket bounds the time: the proxy may still be receiving the upload.
    pub(in crate::client) async fn finish(mut self) {
        // The connection ends with its stream, and the stream with its last handle.
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
            inbox.lock().receive_all(context);
        }
    }

    /// The error with its first cause.
    pub(in crate::client) fn explain(self, error: ClientError) -> ClientError {
        explain(error, self.ended.and_then(Result::err), self.first_error.take())
    }
}

/// The error with its first cause: what the proxy sent about the stream, or what it sent about the connection, or the
/// first error of the transport.
fn explain(error: ClientError, connection: Option<h2::Error>, transport: Option<io::Error>) -> ClientError {
    let error = if let ClientError::Lost(lost) = error {
        match lost.downcast() {
            Ok(stream) => return http2_error(stream),
            Err(lost) => ClientError::Lost(lost),
        }
    } else {
        error
    };
    if !matches!(error, ClientError::Lost(_) | ClientError::NoAnswer) {
        return error;
    }
    match (connection, transport) {
        (Some(connection), _) if connection.reason().is_some() => http2_error(connection),
        (_, Some(transport)) if transport.get_ref().is_some_and(|cause| cause.is::<Flood>()) => ClientError::Flood,
        (_, Some(transport)) => tls::explain(transport, ClientError::Lost),
        (_, None) => error,
    }
}

fn http2_error(error: h2::Error) -> ClientError {
    if error.is_remote() {
        ClientError::Aborted(error)
    } else {
        ClientError::NotHttp2(error)
    }
}

/// The name of an error code (RFC 9113 section 7).
pub(in crate::client) fn code(error: &h2::Error) -> String {
    error
        .reason()
        .map_or_else(|| "no code".to_owned(), |reason| format!("{reason:?}"))
}

/// 80 MiB/s of download at a round trip of 50 ms. It takes memory only while stdout is not read.
const WINDOW: u32 = 4 * 1024 * 1024;
/// Four times the least that HTTP/2 allows: no other stream has to wait for a long frame.
const LONGEST_FRAME: u32 = 64 * 1024;
/// The same as over HTTP/1.1.
const MOST_HEAD: u32 = 16 * 1024;
/// The bytes of an upload that wait for the proxy: two reads.
const MOST_UNSENT: usize = 256 * 1024;
/// The bytes by which DATA frames received at once may together fall short of 256 each, before the inbox takes them. The
/// socket holds fewer.
const SMALL_FRAMES: usize = 32 * 1024 * 1024;
