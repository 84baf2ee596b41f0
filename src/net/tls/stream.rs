//! A TLS stream on a socket as a transport. Ciphertext passes through buffers of the worker thread.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::net::socket;
use crate::net::tls_records::Records;
use crate::net::transport::{BulkMode, Reader, Transport, Writer};

/// A TLS stream. Both directions of its tunnel run in one task, so the lock is never contended.
#[derive(Debug)]
pub struct TlsStream {
    stream: TcpStream,
    /// Boxed: an enum of plain and TLS tunnels stays small.
    state: Box<Mutex<State>>,
}

impl TlsStream {
    /// Creates a stream before its handshake. `read` was read from the socket already.
    pub(super) fn new(stream: TcpStream, mut connection: ServerConnection, read: Vec<u8>) -> Self {
        connection.set_buffer_limit(Some(MAX_WRITE));
        let mut records = Records::default();
        records.advance(&read);
        let state = State {
            connection,
            records,
            plaintext: 0,
            unread: read,
            peer_has_ended: false,
            sent_end: false,
            has_failed: false,
        };
        Self {
            stream,
            state: Box::new(Mutex::new(state)),
        }
    }

    pub(super) fn connection(&mut self) -> &mut ServerConnection {
        &mut self.state.get_mut().connection
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends what the handshake has to send. Returns true if the handshake is complete; else reads once and returns
    /// false.
    pub(super) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let (mut reader, mut writer) = self.split();
        ready!(writer.poll_flush(context))?;
        if !writer.state.lock().connection.is_handshaking() {
            return Poll::Ready(Ok(true));
        }
        let received = ready!(reader.poll_receive(context));
        if let Err(error) = received {
            // Sends the alert, which names the reason, if the socket takes it at once.
            drop(writer.poll_flush(context));
            return Poll::Ready(Err(error));
        }
        if reader.state.lock().is_at_end() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(false))
    }
}

#[derive(Debug)]
struct State {
    connection: ServerConnection,
    /// The record boundaries in what was read from the socket.
    records: Records,
    /// The number of bytes that are decrypted and not read yet.
    plaintext: usize,
    /// Bytes read from the socket that rustls has not taken yet. Empty as a rule.
    unread: Vec<u8>,
    /// True if the client has sent its close_notify or its FIN.
    peer_has_ended: bool,
    sent_end: bool,
    /// True if a write has taken the socket's error (SO_ERROR): a later end of stream means a reset.
    has_failed: bool,
}

impl State {
    /// Decrypts what was read from the socket, into `buffer` as far as it fits.
    ///
    /// # Errors
    /// The session has failed; the alert, if rustls has one for the error, is ready to be sent.
    fn decrypt(&mut self, mut encrypted: &[u8], buffer: &mut [u8]) -> io::Result<usize> {
        let mut moved = 0;
        loop {
            moved += self.read(buffer.get_mut(moved..).unwrap_or_default())?;
            if encrypted.is_empty() || self.peer_has_ended {
                return Ok(moved);
            }
            if self.plaintext > 0 {
                self.unread.extend_from_slice(encrypted);
                return Ok(moved);
            }
            self.connection.read_tls(&mut encrypted)?;
            let news = self.connection.process_new_packets();
            // For a few errors rustls sends no alert. A close_notify instead would claim a graceful end.
            let news = news.inspect_err(|_| self.sent_end = true).map_err(session_error)?;
            self.plaintext = news.plaintext_bytes_to_read();
            self.peer_has_ended = news.peer_has_closed();
        }
    }

    fn is_at_end(&self) -> bool {
        self.peer_has_ended && self.plaintext == 0
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.plaintext == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let read = self.connection.reader().read(buffer)?;
        self.plaintext = self.plaintext.saturating_sub(read);
        Ok(read)
    }
}

/// Maps a fatal alert of the peer to a reset, and any other error to a broken record.
fn session_error(error: rustls::Error) -> io::Error {
    let kind = if let rustls::Error::AlertReceived(_) = error {
        io::ErrorKind::ConnectionReset
    } else {
        io::ErrorKind::InvalidData
    };
    io::Error::new(kind, error)
}

impl Transport for TlsStream {
    type Reader<'a> = TlsReader<'a>;
    type Writer<'a> = TlsWriter<'a>;

    fn bulk_mode(&self) -> BulkMode {
        BulkMode::Chunks
    }

    fn split(&mut self) -> (TlsReader<'_>, TlsWriter<'_>) {
        let (reader, writer) = self.stream.split();
        let state = &*self.state;
        (TlsReader { reader, state }, TlsWriter { writer, state })
    }

    /// Also encrypts less at once: what is encrypted leaves before what is written later.
    fn keep_unsent_below(&mut self, unsent: usize) {
        self.stream.keep_unsent_below(unsent);
        self.connection().set_buffer_limit(Some(MAX_PROMPT_WRITE));
    }

    fn reset_on_drop(&mut self) {
        socket::reset_on_drop(&self.stream);
    }

    /// Sends no close_notify, which would claim a graceful end (RFC 8446 section 6.1).
    async fn abort(&mut self) {
        let (_, mut writer) = self.split();
        let flush = std::future::poll_fn(|context| writer.poll_flush(context));
        // The socket is reset next in any case.
        timeout(CLOSE_NOTIFY, flush).await.ok();
        socket::cut_off(&self.stream).await;
    }

    async fn shutdown_gracefully(&mut self) {
        let (_, mut writer) = self.split();
        let shutdown = std::future::poll_fn(|context| writer.poll_shutdown(context));
        // The socket is closed next in any case.
        timeout(CLOSE_NOTIFY, shutdown).await.ok();
        socket::close_gently(&self.stream).await;
    }
}

/// The half that decrypts what the client sends.
#[derive(Debug)]
pub struct TlsReader<'a> {
    reader: ReadHalf<'a>,
    state: &'a Mutex<State>,
}

impl TlsReader<'_> {
    /// Decrypts the unread bytes or, if there are none, the bytes of one read from the socket.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_fetch(context, &mut []).map_ok(drop)
    }

    /// Like [`poll_receive`](Self::poll_receive), into `buffer` as far as it fits.
    fn poll_fetch(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        if !state.unread.is_empty() {
            let unread = std::mem::take(&mut state.unread);
            return Poll::Ready(state.decrypt(&unread, buffer));
        }
        ENCRYPTED.with_borrow_mut(|scratch| {
            let max = MAX_READ.max(buffer.len());
            if scratch.len() < max {
                scratch.resize(max, 0);
            }
            let mut encrypted = ReadBuf::new(scratch.get_mut(..max).unwrap_or_default());
            match ready!(AsyncRead::poll_read(
                Pin::new(&mut self.reader),
                context,
                &mut encrypted
            )) {
                Ok(()) if encrypted.filled().is_empty() && state.has_failed => {
                    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
                }
                // No TLS implementation ends inside a record: the connection was cut.
                Ok(()) if encrypted.filled().is_empty() && state.records.is_inside() => {
                    Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
                }
                Ok(()) if encrypted.filled().is_empty() => {
                    // curl, and a client that is killed, send no close_notify: SSH detects a truncation.
                    state.peer_has_ended = true;
                    Poll::Ready(Ok(0))
                }
                Ok(()) => {
                    state.records.advance(encrypted.filled());
                    Poll::Ready(state.decrypt(encrypted.filled(), buffer))
                }
                Err(error) => Poll::Ready(Err(error)),
            }
        })
    }
}

impl Reader for TlsReader<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = self.state.lock();
        if state.plaintext > 0 || state.peer_has_ended || !state.unread.is_empty() {
            return Poll::Ready(Ok(()));
        }
        drop(state);
        self.reader.poll_readable(context)
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        let read = loop {
            let mut state = self.state.lock();
            let read = state.read(buffer)?;
            if read > 0 || state.is_at_end() {
                break read;
            }
            drop(state);
            // The bytes may be a part of a record, or a message of the TLS protocol.
            let read = ready!(self.poll_fetch(context, buffer))?;
            if read > 0 {
                break read;
            }
        };
        Poll::Ready(Ok(buffer.get(..read).unwrap_or_default()))
    }

    async fn failed(&mut self) -> io::Error {
        self.reader.failed().await
    }

    /// Waits for the FIN: a close_notify that is not read yet precedes one.
    async fn ended(&mut self) -> io::Result<()> {
        if self.state.lock().peer_has_ended {
            return Ok(());
        }
        self.reader.ended().await
    }
}

/// The half that encrypts what the client is sent.
#[derive(Debug)]
pub struct TlsWriter<'a> {
    writer: WriteHalf<'a>,
    state: &'a Mutex<State>,
}

impl TlsWriter<'_> {
    fn poll_send(&mut self, context: &mut Context<'_>, state: &mut State) -> Poll<io::Result<()>> {
        let mut socket = Socket {
            writer: &mut self.writer,
            context,
        };
        while state.connection.wants_write() {
            match state.connection.write_tls(&mut socket) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => {
                    state.has_failed = true;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Writer for TlsWriter<'_> {
    fn tolerate_closed_window(&self, is_tolerated: bool) {
        self.writer.tolerate_closed_window(is_tolerated);
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// Takes, and encrypts at once, as much as rustls buffers: at most [`MAX_WRITE`], once all before is sent.
    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        ready!(self.poll_send(context, &mut state))?;
        let written = state.connection.writer().write_vectored(pieces)?;
        match self.poll_send(context, &mut state) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(written)),
        }
    }

    fn poll_sendable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_sendable(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        self.poll_send(context, &mut state)
    }

    /// Sends a close_notify, then a FIN: some clients wait for the close_notify, others for the FIN.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.sent_end, true) {
            state.connection.send_close_notify();
        }
        ready!(self.poll_send(context, &mut state))?;
        self.writer.poll_shutdown(context)
    }
}

/// The socket as a `Write` for rustls: all records that are ready leave in one writev(2).
struct Socket<'a, 'b, 'c> {
    writer: &'a mut WriteHalf<'b>,
    context: &'a mut Context<'c>,
}

impl Write for Socket<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(AsyncWrite::poll_write(Pin::new(self.writer), self.context, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(AsyncWrite::poll_write_vectored(
            Pin::new(self.writer),
            self.context,
            slices,
        ))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn or_would_block(written: Poll<io::Result<usize>>) -> io::Result<usize> {
    match written {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

thread_local! {
    /// Used within one poll only, never across an await.
    static ENCRYPTED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The smallest buffer for a read from the socket, in bytes: four records. rustls by itself reads 4 KiB.
const MAX_READ: usize = 64 * 1024;
/// The most bytes that are encrypted at once: a large piece of a relay, which sends them by one call. Until they are sent they
/// are in memory. rustls by itself takes 64 KiB.
const MAX_WRITE: usize = 512 * 1024;
/// The same where bytes that are written later are to leave soon.
const MAX_PROMPT_WRITE: usize = 64 * 1024;
/// How long a close_notify, or the last records before a reset, may take to be sent.
const CLOSE_NOTIFY: Duration = Duration::from_secs(1);
