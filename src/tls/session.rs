//! A TLS session on a socket as one end of a tunnel: what is encrypted goes through buffers of the worker thread.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::timeout;

use super::records::Records;
use crate::net::socket;
use crate::net::transport::{Bulk, Reader, Transport, Writer};

/// A client that speaks TLS. Both directions of its tunnel run in one task, so nobody ever waits for the lock.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    /// Boxed: a tunnel without TLS need not hold the room for it.
    state: Box<Mutex<State>>,
}

impl Session {
    /// A session that has not begun; `read` was taken from the socket already.
    pub(super) fn new(stream: TcpStream, connection: ServerConnection, read: Vec<u8>) -> Self {
        let mut records = Records::default();
        records.came(&read);
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

    /// Does the next part of the handshake: sends what is to be sent, else reads. True when it is over.
    pub(super) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let (mut source, mut sink) = self.split();
        ready!(sink.poll_flush(context))?;
        if !lock(sink.state).connection.is_handshaking() {
            return Poll::Ready(Ok(true));
        }
        let received = ready!(source.poll_receive(context));
        if let Err(error) = received {
            // The alert, as far as there is room: it says why.
            drop(sink.poll_flush(context));
            return Poll::Ready(Err(error));
        }
        if lock(source.state).is_at_end() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(false))
    }
}

#[derive(Debug)]
struct State {
    connection: ServerConnection,
    /// How far what was read from the socket goes.
    records: Records,
    /// Bytes that the connection has decrypted and that nobody has read.
    plaintext: usize,
    /// What was read from the socket and found no room in the connection. Empty as a rule.
    unread: Vec<u8>,
    /// It has sent its close_notify or its FIN.
    peer_has_ended: bool,
    sent_end: bool,
    /// A write has failed, and has taken the socket's error with it: a read finds no more than an end.
    has_failed: bool,
}

impl State {
    /// Decrypts what was read from the socket, and moves it on into `room` as far as it goes.
    ///
    /// # Errors
    /// The session is broken; an alert that says so is ready to be sent.
    fn decrypt(&mut self, mut encrypted: &[u8], room: &mut [u8]) -> io::Result<usize> {
        let mut moved = 0;
        loop {
            moved += self.read(room.get_mut(moved..).unwrap_or_default())?;
            if encrypted.is_empty() || self.peer_has_ended {
                return Ok(moved);
            }
            if self.plaintext > 0 {
                self.unread.extend_from_slice(encrypted);
                return Ok(moved);
            }
            self.connection.read_tls(&mut encrypted)?;
            let news = self.connection.process_new_packets();
            let news = news.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.plaintext = news.plaintext_bytes_to_read();
            self.peer_has_ended = news.peer_has_closed();
        }
    }

    fn is_at_end(&self) -> bool {
        self.peer_has_ended && self.plaintext == 0
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.plaintext == 0 || room.is_empty() {
            return Ok(0);
        }
        let read = self.connection.reader().read(room)?;
        self.plaintext = self.plaintext.saturating_sub(read);
        Ok(read)
    }
}

impl Transport for Session {
    const BULK: Bulk = Bulk::Pieces;

    type Reader<'a> = SessionSource<'a>;
    type Writer<'a> = SessionSink<'a>;

    fn split(&mut self) -> (SessionSource<'_>, SessionSink<'_>) {
        let (source, sink) = self.stream.split();
        let state = &*self.state;
        (SessionSource { source, state }, SessionSink { sink, state })
    }

    fn keep_unsent_short(&mut self) {
        self.stream.keep_unsent_short();
    }

    fn reset_on_drop(&mut self) {
        socket::reset_on_drop(&self.stream);
    }

    async fn close_gently(&mut self) {
        let (_, mut sink) = self.split();
        let shutdown = std::future::poll_fn(|context| sink.poll_shutdown(context));
        // Whether it is told or not, the client has to go.
        timeout(LAST_WORDS, shutdown).await.ok();
        socket::close_gently(&self.stream).await;
    }
}

/// What the client sends, decrypted.
#[derive(Debug)]
pub struct SessionSource<'a> {
    source: ReadHalf<'a>,
    state: &'a Mutex<State>,
}

impl SessionSource<'_> {
    /// Reads once from the socket, and decrypts that.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_fetch(context, &mut []).map_ok(drop)
    }

    /// The same, and as much of it as there is room for.
    fn poll_fetch(&mut self, context: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut state = lock(self.state);
        if !state.unread.is_empty() {
            let unread = std::mem::take(&mut state.unread);
            return Poll::Ready(state.decrypt(&unread, room));
        }
        ENCRYPTED.with_borrow_mut(|scratch| {
            let most = MOST_READ.max(room.len());
            if scratch.len() < most {
                scratch.resize(most, 0);
            }
            let mut buffer = ReadBuf::new(scratch.get_mut(..most).unwrap_or_default());
            match ready!(AsyncRead::poll_read(Pin::new(&mut self.source), context, &mut buffer)) {
                Ok(()) if buffer.filled().is_empty() && state.has_failed => {
                    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
                }
                // Nobody ends so: it was cut, by whoever.
                Ok(()) if buffer.filled().is_empty() && state.records.is_inside() => {
                    Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
                }
                Ok(()) if buffer.filled().is_empty() => {
                    // Without close_notify, as curl ends and whoever is killed: SSH knows by itself what is missing.
                    state.peer_has_ended = true;
                    Poll::Ready(Ok(0))
                }
                Ok(()) => {
                    state.records.came(buffer.filled());
                    Poll::Ready(state.decrypt(buffer.filled(), room))
                }
                Err(error) => Poll::Ready(Err(error)),
            }
        })
    }
}

impl Reader for SessionSource<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = lock(self.state);
        if state.plaintext > 0 || state.peer_has_ended || !state.unread.is_empty() {
            return Poll::Ready(Ok(()));
        }
        drop(state);
        self.source.poll_readable(context)
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        let read = loop {
            let mut state = lock(self.state);
            let read = state.read(room)?;
            if read > 0 || state.is_at_end() {
                break read;
            }
            drop(state);
            // It may have been a part of a record, or a message of the protocol.
            let read = ready!(self.poll_fetch(context, room))?;
            if read > 0 {
                break read;
            }
        };
        Poll::Ready(Ok(room.get(..read).unwrap_or_default()))
    }

    async fn failed(&mut self) -> io::Error {
        self.source.failed().await
    }
}

/// What the client is sent, to be encrypted.
#[derive(Debug)]
pub struct SessionSink<'a> {
    sink: WriteHalf<'a>,
    state: &'a Mutex<State>,
}

impl SessionSink<'_> {
    fn poll_send(&mut self, context: &mut Context<'_>, state: &mut State) -> Poll<io::Result<()>> {
        let mut socket = Socket {
            sink: &mut self.sink,
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

impl Writer for SessionSink<'_> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// What is taken is encrypted at once, and is at most 64 KiB: rustls holds no more back.
    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut state = lock(self.state);
        ready!(self.poll_send(context, &mut state))?;
        let written = state.connection.writer().write_vectored(pieces)?;
        match self.poll_send(context, &mut state) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(self.state);
        self.poll_send(context, &mut state)
    }

    /// A close_notify, and the FIN behind it: some clients wait for the one, and some for the other.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(self.state);
        if !std::mem::replace(&mut state.sent_end, true) {
            state.connection.send_close_notify();
        }
        ready!(self.poll_send(context, &mut state))?;
        self.sink.poll_shutdown(context)
    }
}

/// The socket as rustls writes to it: all records that are ready in one writev(2).
struct Socket<'a, 'b, 'c> {
    sink: &'a mut WriteHalf<'b>,
    context: &'a mut Context<'c>,
}

impl Write for Socket<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(AsyncWrite::poll_write(Pin::new(self.sink), self.context, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(AsyncWrite::poll_write_vectored(
            Pin::new(self.sink),
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

thread_local! {
    /// Used within one poll only, never across an await.
    static ENCRYPTED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Four records at once, or as many as there is room for: rustls by itself reads 4 KiB at a time.
const MOST_READ: usize = 64 * 1024;
/// How long a close_notify may wait for room.
const LAST_WORDS: Duration = Duration::from_secs(1);
