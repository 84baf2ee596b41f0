//! A connection to the proxy, of any kind.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

/// A connection to the proxy, or the tunnel through it.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + Sync> Io for S {}

/// A connection of any kind.
pub(crate) type BoxedIo = Box<dyn Io>;

/// Reads into the spare capacity of `buffer`, and returns the number of bytes: 0 is the end of stream.
///
/// rustls reports a close without close_notify as `UnexpectedEof`. Many proxies close like that, and SSH protects the
/// integrity of its stream itself, so such a close counts as the end of stream.
pub(crate) async fn read_some(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<usize> {
    match stream.read_buf(buffer).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => read,
    }
}
