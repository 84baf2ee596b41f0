//! The tunnel over HTTP/1.1: the whole connection, behind the answer.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::head::{self, Request};
use super::{ClientError, Deadline, Local, Step, relay, tls};

/// Asks for the target over an open connection and, if the proxy agrees, relays.
pub(super) async fn tunnel<S, R, W>(
    mut stream: S,
    request: &Request<'_>,
    deadline: Deadline,
    local: &mut Local<R, W>,
) -> Result<(), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let request = request.to_http1();
    let answer = deadline.bound(Step::Answer, async {
        // One write: some proxies take the first segment for the whole request.
        let sent = async {
            stream.write_all(request.expose().as_bytes()).await?;
            stream.flush().await
        };
        let sent = sent.await;
        // A proxy may have answered, and closed, before it read the request: the answer is the reason.
        match (head::read_answer(&mut stream).await, sent) {
            (Err(ClientError::Lost(error)), Ok(()) | Err(_)) => Err(tls::explain(error, ClientError::Lost)),
            (Err(ClientError::NoAnswer), Err(error)) => Err(ClientError::Lost(error)),
            (answer, Ok(()) | Err(_)) => answer,
        }
    });
    let answer = answer.await?;
    if !answer.opens_tunnel() {
        return Err(answer.into_refusal(&mut stream).await);
    }
    relay::relay(stream, answer.into_early_data(), local).await
}
