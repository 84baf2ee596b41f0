//! A connection to the proxy, of any kind.

use std::any::Any;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::websocket::WebSocketStream;

/// A connection to the proxy, or the tunnel through it.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send + Sync + Any {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + Sync + Any> Io for S {}

/// A connection of any kind.
pub(crate) type BoxedIo = Box<dyn Io>;

/// Returns the socket of a connection, also below TLS and a WebSocket; `None` if it has none.
pub(crate) fn socket(stream: &dyn Io) -> Option<&TcpStream> {
    let any: &dyn Any = stream;
    if let Some(tls) = any.downcast_ref::<TlsStream<BoxedIo>>() {
        return socket(&**tls.get_ref().0);
    }
    match any.downcast_ref::<WebSocketStream<BoxedIo>>() {
        Some(websocket) => socket(&**websocket.get_ref()),
        None => any.downcast_ref(),
    }
}

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
