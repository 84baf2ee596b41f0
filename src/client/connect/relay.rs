//! The relay between stdin, stdout and the proxy, until both directions have ended.

use std::io;
use std::time::Duration;

use anyhow::anyhow;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use super::in_band::Unanswered;
use super::stdio::Stdio;
use crate::uplink::dial::io::read_some;
use crate::uplink::error::ClientError;

/// Writes `early` to stdout, then relays. The EOF of one direction is passed on, and leaves the other open.
///
/// Returns whether the target has sent anything.
pub(in crate::client) async fn relay<S, R, W>(
    stream: S,
    early: Vec<u8>,
    stdio: &mut Stdio<R, W>,
) -> Result<bool, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (from_proxy, to_proxy) = tokio::io::split(stream);
    let upload = copy(&mut stdio.stdin, to_proxy, Vec::new());
    let download = copy(from_proxy, &mut stdio.stdout, early);
    tokio::pin!(upload, download);
    tokio::select! {
        uploaded = &mut upload => match uploaded {
            Ok(_) => download.await.or_else(download_error),
            Err(CopyError::Read(error)) => Err(unreadable(error)),
            // The proxy's last bytes may be unread, and often have the reason. On a dead socket the download ends soon.
            Err(CopyError::Write(error) | CopyError::Close(error)) => match download.await {
                Err(CopyError::Read(read)) => {
                    let read = ClientError::from(read);
                    let is_lost = matches!(read, ClientError::Lost(_));
                    Err(if is_lost { lost(error) } else { read })
                }
                Ok(_) => Err(lost(error)),
                Err(error) => download_error(error),
            },
        },
        downloaded = &mut download => match downloaded {
            Ok(sent) if stdio.interactive || stdio.ends_with_target => Ok(sent),
            Ok(sent) => match upload.await {
                // Both sides have ended: a close_notify that cannot be delivered is no loss.
                Ok(_) | Err(CopyError::Close(_)) => Ok(sent),
                Err(CopyError::Read(error)) => Err(unreadable(error)),
                Err(CopyError::Write(error)) => Err(lost(error)),
            },
            Err(error) => download_error(error),
        },
    }
}

/// Copies `buffer` and then `reader` to `writer`, and shuts `writer` down at the EOF. Returns whether there was any
/// byte.
async fn copy<R, W>(mut reader: R, mut writer: W, mut buffer: Vec<u8>) -> Result<bool, CopyError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut sent = false;
    loop {
        sent |= !buffer.is_empty();
        writer.write_all(&buffer).await.map_err(CopyError::Write)?;
        buffer.clear();
        buffer.reserve_exact(BUFFER);
        // No flush while bytes are ready: the next read need not wait for the writer's thread, or for TLS.
        let read = tokio::select! {
            biased;
            read = read_some(&mut reader, &mut buffer) => read,
            error = keep_flushing(&mut writer) => return Err(CopyError::Write(error)),
        };
        match read {
            Ok(0) => return writer.shutdown().await.map(|()| sent).map_err(CopyError::Close),
            Ok(_) => {}
            Err(error) => {
                // The bytes that were read before the error are delivered.
                writer.flush().await.map_err(CopyError::Write)?;
                return Err(CopyError::Read(error));
            }
        }
    }
}

/// Flushes now and at intervals, until that fails: a WebSocket sends its pings also while ssh takes nothing that is read from it.
async fn keep_flushing(writer: &mut (impl AsyncWrite + Unpin)) -> io::Error {
    loop {
        if let Err(error) = writer.flush().await {
            return error;
        }
        sleep(FLUSH_INTERVAL).await;
    }
}

/// The step of one direction that failed.
#[derive(Debug)]
enum CopyError {
    Read(io::Error),
    Write(io::Error),
    /// The shutdown after all bytes.
    Close(io::Error),
}

/// Returns the result of a failed download. If stdout's reader is gone, the bytes are not needed and count as sent.
fn download_error(error: CopyError) -> Result<bool, ClientError> {
    match error {
        CopyError::Read(error) => Err(lost(error)),
        CopyError::Write(error) | CopyError::Close(error) if is_reader_gone(&error) => Ok(true),
        CopyError::Write(error) | CopyError::Close(error) => Err(unwritable(error)),
    }
}

/// Returns the error of a lost connection. The target may have reset it, and bytes may be missing.
pub(super) fn lost(error: io::Error) -> ClientError {
    if error.kind() != io::ErrorKind::ConnectionReset {
        return error.into();
    }
    let text = "the connection was reset: the target or the proxy has ended it, or the network has failed";
    ClientError::Immediately(anyhow!(error).context(text))
}

/// Returns the error of a read of stdin.
pub(super) fn unreadable(error: io::Error) -> ClientError {
    // With ProxyUseFdpass ssh reads one byte, and closes the socket.
    let is_reset = error.kind() == io::ErrorKind::ConnectionReset;
    let hint = if is_reset { FDPASS } else { "" };
    ClientError::Never(anyhow!(error).context(format!("cannot read stdin{hint}")))
}

/// Returns the error of a write to stdout, whose reader is there.
pub(super) fn unwritable(error: io::Error) -> ClientError {
    if error.get_ref().is_some_and(|error| error.is::<Unanswered>()) {
        return ClientError::Unidentified;
    }
    ClientError::Never(anyhow!(error).context("cannot write to stdout"))
}

/// Returns whether ssh has closed stdout: `EPIPE` on a pipe, perhaps a reset on a socket pair.
pub(in crate::client) fn is_reader_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

const FDPASS: &str = " (ProxyUseFdpass of ssh is not for connect, which passes no descriptor)";
/// The size of the buffer: twice that of a new pipe, so that one read empties the pipe.
const BUFFER: usize = 128 * 1024;
/// A ping of a WebSocket is at most so late. It is due after 25 s, and the shortest idle timeout of load balancers is 60 s.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::dial::websocket::WebSocketStream;
    use tokio::io::{AsyncReadExt as _, duplex};

    /// As with an ssh that the user has suspended.
    #[tokio::test(start_paused = true)]
    async fn pings_go_on_while_nothing_is_typed_and_stdout_is_full() {
        let (ours, mut proxy) = duplex(1024);
        let ((_typing, stdin), (stdout, _unread)) = (duplex(1), duplex(1));
        let mut stdio = Stdio {
            stdin,
            stdout,
            interactive: false,
            ends_with_target: false,
            is_abandoned: None,
        };
        proxy.write_all(b"\x82\x02xy").await.unwrap();
        let pings = async {
            for _ in 0..3 {
                let mut ping = [0; 2 + 4];
                proxy.read_exact(&mut ping).await.unwrap();
                assert_eq!(ping[..2], [0x89, 0x80]);
            }
        };
        let stream = WebSocketStream::new(ours, Vec::new());
        tokio::select! {
            ended = relay(stream, Vec::new(), &mut stdio) => panic!("{ended:?}"),
            pinged = tokio::time::timeout(3 * Duration::from_secs(50), pings) => pinged.unwrap(),
        }
    }
}
