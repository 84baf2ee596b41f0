//! The tunnel over HTTP/1.1: the whole connection, behind the answer.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::head::{self, Request};
use super::tls;
use crate::client::{ClientError, Deadline, Step};
use crate::protocol::end_notice::Marker;

/// Asks for the target over an open connection. If the proxy agrees, the connection is the tunnel behind the bytes that
/// are returned; with the marker of its end notice, if there may be one.
pub(in crate::client) async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &Request<'_>,
    deadline: Deadline,
) -> Result<(Vec<u8>, Option<Marker>), ClientError> {
    let head = request.to_http1();
    let answer = deadline.bound(Step::Answer, async {
        // One write: some proxies take the first segment for the whole request.
        let sent = async {
            stream.write_all(head.expose().as_bytes()).await?;
            stream.flush().await
        };
        let sent = sent.await;
        // A proxy may have answered, and closed, before it read the request: the answer is the reason.
        match (head::read_answer(stream).await, sent) {
            (Err(ClientError::Lost(error)), Ok(()) | Err(_)) => Err(tls::explain(error, ClientError::Lost)),
            (Err(ClientError::NoAnswer), Err(error)) => Err(ClientError::Lost(error)),
            (answer, Ok(()) | Err(_)) => answer,
        }
    });
    let answer = answer.await?;
    if !answer.opens_tunnel() {
        return Err(answer.into_refusal(stream).await);
    }
    let marker = answer.promises_notice(request);
    Ok((answer.into_early_data(), marker))
}
