//! The tunnel over HTTP/1.1: all of the connection, from the answer on.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::{ClientError, Deadline, Local, Options, Step, head, relay, tls};

/// Asks for the target over an open connection and, if the proxy agrees, relays.
pub(super) async fn tunnel<S, R, W>(
    mut stream: S,
    options: &Options,
    deadline: Deadline,
    local: &mut Local<R, W>,
) -> Result<(), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let request = head::request(&options.target, options.proxy.authorization());
    let answer = deadline.bound(Step::Answer, async {
        // One write: some proxies read the request once and take what they got for all of it.
        let sent = async {
            stream.write_all(&request).await?;
            stream.flush().await
        };
        let sent = sent.await;
        // A proxy that has hung up may have said why before.
        match (head::read_answer(&mut stream).await, sent) {
            (Err(ClientError::Lost(told)), Ok(()) | Err(_)) => Err(tls::named(told, ClientError::Lost)),
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
