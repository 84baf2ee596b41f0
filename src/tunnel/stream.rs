//! A stream: one end of a tunnel through the proxy, of any kind.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::{TcpStream, tcp};

pub use self::websocket::WebSocket;
use self::websocket::{WebSocketReader, WebSocketWriter};
use super::http2;
use super::ssh::jump;
use crate::net::tls::TlsStream;
use crate::net::transport::{BufferLender, BulkMode, Reader, Transport, Writer};

mod websocket;

/// One end of a tunnel.
#[derive(Debug)]
pub enum Stream {
    /// A socket.
    Tcp(TcpStream),
    /// A TLS session on a socket.
    Tls(Box<TlsStream>),
    /// A stream of an HTTP/2 connection.
    Http2(Box<http2::Stream>),
    /// A WebSocket connection on one of the others.
    WebSocket(Box<WebSocket<Self>>),
    /// A channel of an SSH connection.
    Ssh(Box<jump::Channel>),
}

// An idle tunnel has two of them for days.
const _: () = assert!(size_of::<Stream>() <= size_of::<TcpStream>());

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        Self::Tcp(socket)
    }
}

impl From<TlsStream> for Stream {
    fn from(session: TlsStream) -> Self {
        Self::Tls(Box::new(session))
    }
}

impl From<WebSocket<Self>> for Stream {
    fn from(websocket: WebSocket<Self>) -> Self {
        Self::WebSocket(Box::new(websocket))
    }
}

impl From<http2::Stream> for Stream {
    fn from(stream: http2::Stream) -> Self {
        Self::Http2(Box::new(stream))
    }
}

impl Stream {
    /// Sets the reason that the client of a WebSocket reads in its close frame. Others have no place for it.
    pub(crate) fn set_close_frame(&mut self, code: u16, reason: &str) {
        if let Self::WebSocket(websocket) = self {
            websocket.set_close_frame(code, reason);
        }
    }
}

/// A step of a WebSocket, whose transport is a stream as well: without the box its future would hold itself.
type BoxedStep<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

fn abort(websocket: &mut WebSocket<Stream>) -> BoxedStep<'_> {
    Box::pin(websocket.abort())
}

fn sent(websocket: &mut WebSocket<Stream>) -> BoxedStep<'_> {
    Box::pin(websocket.sent())
}

fn shutdown_gracefully(websocket: &mut WebSocket<Stream>) -> BoxedStep<'_> {
    Box::pin(websocket.shutdown_gracefully())
}

impl From<jump::Channel> for Stream {
    fn from(channel: jump::Channel) -> Self {
        Self::Ssh(Box::new(channel))
    }
}

impl Transport for Stream {
    type Reader<'a> = ReadHalf<'a>;
    type Writer<'a> = WriteHalf<'a>;

    fn bulk_mode(&self) -> BulkMode {
        match self {
            Self::Tcp(socket) => socket.bulk_mode(),
            Self::Tls(session) => session.bulk_mode(),
            Self::Http2(stream) => stream.bulk_mode(),
            Self::WebSocket(websocket) => websocket.bulk_mode(),
            Self::Ssh(channel) => channel.bulk_mode(),
        }
    }

    fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        match self {
            Self::Tcp(socket) => {
                let (reader, writer) = Transport::split(socket);
                (ReadHalf::Tcp(reader), WriteHalf::Tcp(writer))
            }
            Self::Tls(session) => {
                let (reader, writer) = session.split();
                (ReadHalf::Tls(reader), WriteHalf::Tls(writer))
            }
            Self::Http2(stream) => {
                let (reader, writer) = stream.split();
                (ReadHalf::Http2(reader), WriteHalf::Http2(writer))
            }
            Self::WebSocket(websocket) => {
                let (reader, writer) = websocket.split();
                (
                    ReadHalf::WebSocket(Box::new(reader)),
                    WriteHalf::WebSocket(Box::new(writer)),
                )
            }
            Self::Ssh(channel) => {
                let (reader, writer) = channel.split();
                (ReadHalf::Ssh(reader), WriteHalf::Ssh(writer))
            }
        }
    }

    fn keep_unsent_below(&mut self, unsent: usize) {
        match self {
            Self::Tcp(socket) => socket.keep_unsent_below(unsent),
            Self::Tls(session) => session.keep_unsent_below(unsent),
            Self::Http2(_) | Self::Ssh(_) => {}
            Self::WebSocket(websocket) => websocket.keep_unsent_below(unsent),
        }
    }

    fn reset_on_drop(&mut self) {
        match self {
            Self::Tcp(socket) => Transport::reset_on_drop(socket),
            Self::Tls(session) => session.reset_on_drop(),
            Self::Http2(stream) => stream.reset_on_drop(),
            Self::WebSocket(websocket) => websocket.reset_on_drop(),
            Self::Ssh(channel) => channel.reset_on_drop(),
        }
    }

    async fn abort(&mut self) {
        match self {
            Self::Tcp(socket) => socket.abort().await,
            Self::Tls(session) => session.abort().await,
            Self::Http2(stream) => stream.abort().await,
            Self::WebSocket(websocket) => abort(websocket).await,
            Self::Ssh(channel) => channel.abort().await,
        }
    }

    async fn sent(&mut self) {
        match self {
            Self::Tcp(_) | Self::Tls(_) => {}
            Self::Http2(stream) => stream.sent().await,
            Self::Ssh(channel) => channel.sent().await,
            Self::WebSocket(websocket) => sent(websocket).await,
        }
    }

    async fn shutdown_gracefully(&mut self) {
        match self {
            Self::Tcp(socket) => socket.shutdown_gracefully().await,
            Self::Tls(session) => session.shutdown_gracefully().await,
            Self::Http2(stream) => stream.shutdown_gracefully().await,
            Self::WebSocket(websocket) => shutdown_gracefully(websocket).await,
            Self::Ssh(channel) => channel.shutdown_gracefully().await,
        }
    }
}

/// The half of a [`Stream`] that reads.
#[derive(Debug)]
pub enum ReadHalf<'a> {
    /// Of a socket.
    Tcp(tcp::ReadHalf<'a>),
    /// Of a TLS session.
    Tls(<TlsStream as Transport>::Reader<'a>),
    /// Of an HTTP/2 stream.
    Http2(<http2::Stream as Transport>::Reader<'a>),
    /// Of a WebSocket connection.
    WebSocket(Box<WebSocketReader<'a, Self, WriteHalf<'a>>>),
    /// Of a channel of an SSH connection.
    Ssh(<jump::Channel as Transport>::Reader<'a>),
}

fn failed<'a>(reader: &'a mut WebSocketReader<'_, ReadHalf<'_>, WriteHalf<'_>>) -> BoxedStep<'a, io::Error> {
    Box::pin(reader.failed())
}

fn ended<'a>(reader: &'a mut WebSocketReader<'_, ReadHalf<'_>, WriteHalf<'_>>) -> BoxedStep<'a, io::Result<()>> {
    Box::pin(reader.ended())
}

impl<'a> ReadHalf<'a> {
    fn reader(&mut self) -> &mut (dyn Reader + 'a) {
        match self {
            Self::Tcp(reader) => reader,
            Self::Tls(reader) => reader,
            Self::Http2(reader) => reader,
            Self::WebSocket(reader) => &mut **reader,
            Self::Ssh(reader) => reader,
        }
    }
}

impl Reader for ReadHalf<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reader().poll_readable(context)
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        self.reader().poll_read(context, buffer)
    }

    async fn failed(&mut self) -> io::Error {
        match self {
            Self::Tcp(reader) => reader.failed().await,
            Self::Tls(reader) => reader.failed().await,
            Self::Http2(reader) => reader.failed().await,
            Self::WebSocket(reader) => failed(reader).await,
            Self::Ssh(reader) => reader.failed().await,
        }
    }

    async fn ended(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(reader) => reader.ended().await,
            Self::Tls(reader) => reader.ended().await,
            Self::Http2(reader) => reader.ended().await,
            Self::WebSocket(reader) => ended(reader).await,
            Self::Ssh(reader) => reader.ended().await,
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(reader) => reader.socket(),
            Self::Tls(_) | Self::Http2(_) | Self::WebSocket(_) | Self::Ssh(_) => None,
        }
    }
}

/// The half of a [`Stream`] that writes.
#[derive(Debug)]
pub enum WriteHalf<'a> {
    /// Of a socket.
    Tcp(tcp::WriteHalf<'a>),
    /// Of a TLS session.
    Tls(<TlsStream as Transport>::Writer<'a>),
    /// Of an HTTP/2 stream.
    Http2(<http2::Stream as Transport>::Writer<'a>),
    /// Of a WebSocket connection.
    WebSocket(Box<WebSocketWriter<'a, Self>>),
    /// Of a channel of an SSH connection.
    Ssh(<jump::Channel as Transport>::Writer<'a>),
}

impl<'a> WriteHalf<'a> {
    fn writer(&self) -> &(dyn Writer + 'a) {
        match self {
            Self::Tcp(writer) => writer,
            Self::Tls(writer) => writer,
            Self::Http2(writer) => writer,
            Self::WebSocket(writer) => &**writer,
            Self::Ssh(writer) => writer,
        }
    }

    fn writer_mut(&mut self) -> &mut (dyn Writer + 'a) {
        match self {
            Self::Tcp(writer) => writer,
            Self::Tls(writer) => writer,
            Self::Http2(writer) => writer,
            Self::WebSocket(writer) => &mut **writer,
            Self::Ssh(writer) => writer,
        }
    }
}

impl Writer for WriteHalf<'_> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writer_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.writer_mut().poll_write_vectored(context, pieces)
    }

    fn poll_sendable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer_mut().poll_sendable(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer_mut().poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer_mut().poll_shutdown(context)
    }

    fn tolerate_closed_window(&self, is_tolerated: bool) {
        self.writer().tolerate_closed_window(is_tolerated);
    }

    fn mark_end(&mut self) {
        self.writer_mut().mark_end();
    }

    fn poll_end_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.writer_mut().poll_end_sent(context)
    }

    fn socket(&self) -> Option<&TcpStream> {
        self.writer().socket()
    }

    fn lender(&mut self) -> Option<&mut dyn BufferLender> {
        self.writer_mut().lender()
    }
}
