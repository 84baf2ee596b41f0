//! Carries bytes between the user's streams and the proxy until both directions have ended.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::connection::read_some;
use super::{ClientError, Local};

/// Writes `early` to stdout, then relays. The end of one direction closes the other peer's input and nothing else.
pub(super) async fn relay<S, R, W>(stream: S, early: Vec<u8>, local: &mut Local<R, W>) -> Result<(), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (from_proxy, to_proxy) = tokio::io::split(stream);
    let upload = copy(&mut local.stdin, to_proxy, Vec::new());
    let download = copy(from_proxy, &mut local.stdout, early);
    tokio::pin!(upload, download);
    tokio::select! {
        uploaded = &mut upload => match uploaded {
            Ok(()) => download.await.or_else(download_error),
            Err(Fault::Read(error)) => Err(ClientError::Input(error)),
            // What the proxy said last may still be unread, and is often the reason. The socket is dead, so this ends.
            Err(Fault::Write(error) | Fault::Close(error)) => match download.await {
                Ok(()) | Err(Fault::Read(_)) => Err(ClientError::Lost(error)),
                Err(fault) => download_error(fault),
            },
        },
        downloaded = &mut download => match downloaded {
            Ok(()) if local.interactive => Ok(()),
            Ok(()) => upload.await.or_else(upload_error_after_the_proxy_ended),
            Err(fault) => download_error(fault),
        },
    }
}

/// Moves `reader` to `writer`, what is in `buffer` first, and closes `writer` at the end of `reader`.
async fn copy<R, W>(mut reader: R, mut writer: W, mut buffer: Vec<u8>) -> Result<(), Fault>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        writer.write_all(&buffer).await.map_err(Fault::Write)?;
        buffer.clear();
        buffer.reserve_exact(BUFFER);
        // While more is at hand nobody needs the flush: the writer's own thread, or TLS, works in the meantime.
        let read = tokio::select! {
            biased;
            read = read_some(&mut reader, &mut buffer) => read,
            flushed = writer.flush() => {
                flushed.map_err(Fault::Write)?;
                read_some(&mut reader, &mut buffer).await
            }
        };
        match read {
            Ok(0) => return writer.shutdown().await.map_err(Fault::Close),
            Ok(_) => {}
            Err(error) => {
                // What was read is written, whatever happened afterwards.
                writer.flush().await.map_err(Fault::Write)?;
                return Err(Fault::Read(error));
            }
        }
    }
}

/// Which end of a direction failed.
#[derive(Debug)]
enum Fault {
    Read(io::Error),
    Write(io::Error),
    /// All bytes were written; the end could not be told.
    Close(io::Error),
}

fn download_error(fault: Fault) -> Result<(), ClientError> {
    match fault {
        Fault::Read(error) => Err(ClientError::Lost(error)),
        Fault::Write(error) | Fault::Close(error) if is_reader_gone(&error) => Ok(()),
        Fault::Write(error) | Fault::Close(error) => Err(ClientError::Output(error)),
    }
}

fn upload_error_after_the_proxy_ended(fault: Fault) -> Result<(), ClientError> {
    match fault {
        Fault::Read(error) => Err(ClientError::Input(error)),
        Fault::Write(error) => Err(ClientError::Lost(error)),
        // Both sides had nothing more to say: a close_notify that finds nobody there is no loss.
        Fault::Close(_) => Ok(()),
    }
}

/// ssh left: `EPIPE` on a pipe, perhaps a reset where ssh made a socket pair.
fn is_reader_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Twice what a pipe holds: one wake-up empties it with room to spare.
const BUFFER: usize = 128 * 1024;
