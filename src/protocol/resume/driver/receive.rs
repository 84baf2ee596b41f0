//! Receives the bytes of a connection.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::{Attachment, DetachCause, Driver, Event, Sink};
use crate::protocol::resume::handshake::client_handshake::{self, HandshakeError};
use crate::protocol::resume::session::AttachmentId;

impl Driver {
    /// Reads from the connection into the session, and passes to the program as many of the bytes as it takes at once.
    pub(super) fn poll_receive<S, W>(
        &mut self,
        context: &mut Context<'_>,
        attachment: &mut Attachment<S>,
        sink: &mut W,
    ) -> Poll<Result<(), Event>>
    where
        S: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // Nothing is read after an END or a protocol error.
        if self.session.ended().is_some() || self.session.violation().is_some() {
            return Poll::Pending;
        }
        let mut scratch = [MaybeUninit::uninit(); MAX_RECEIVED];
        let mut read = ReadBuf::uninit(&mut scratch);
        let result = ready!(Pin::new(&mut attachment.stream).poll_read(context, &mut read));
        let unlinked = match result {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => DetachCause::Closed,
            Err(error) => DetachCause::Failed(error),
            Ok(()) if read.filled().is_empty() => DetachCause::Closed,
            Ok(()) if self.handshake.is_some() => {
                return Poll::Ready(self.received(attachment.attachment, read.filled()));
            }
            Ok(()) => return Poll::Ready(self.pass_through(context, (attachment.attachment, read.filled()), sink)),
        };
        self.detach();
        Poll::Ready(Err(Event::Detached(unlinked)))
    }

    /// Receives bytes of the connection, and writes those of the stream to the program directly. The session holds the
    /// bytes that the program does not take.
    ///
    /// Only a `sink` with vectored writes gets bytes here. Any other gets them later in large pieces, because another
    /// thread runs each write to a `File`.
    fn pass_through<W>(
        &mut self,
        context: &mut Context<'_>,
        received: (AttachmentId, &[u8]),
        sink: &mut W,
    ) -> Result<(), Event>
    where
        W: AsyncWrite + Unpin,
    {
        let (mut state, mut failure) = (self.sink, None);
        let mut pass = |pieces: &[IoSlice<'_>]| {
            if state == Sink::Ended || !sink.is_write_vectored() {
                return 0;
            }
            match Pin::new(&mut *sink).poll_write_vectored(context, pieces) {
                Poll::Ready(Ok(written)) => {
                    state = Sink::Unflushed;
                    written
                }
                Poll::Ready(Err(error)) => {
                    state = Sink::Ended;
                    failure = Some(error);
                    0
                }
                Poll::Pending => 0,
            }
        };
        self.session
            .receive_and_pass(received, Instant::now().into_std(), &mut pass);
        self.sink = state;
        failure.map_or(Ok(()), |error| Err(Event::SinkFailed(error)))
    }

    /// Receives bytes of the connection, first those of the handshake.
    fn received(&mut self, attachment: AttachmentId, bytes: &[u8]) -> Result<(), Event> {
        let now = Instant::now().into_std();
        let Some(handshake) = &mut self.handshake else {
            self.session.receive(attachment, bytes, now);
            return Ok(());
        };
        match handshake.receive(bytes) {
            Ok(client_handshake::HandshakeStep::NeedMore) => Ok(()),
            Ok(client_handshake::HandshakeStep::Attached(attached)) => {
                self.handshake = None;
                self.session.receive(attachment, &attached.rest, now);
                Err(Event::Confirmed(attached.secrets))
            }
            // After the proof the other side cannot be a plain target.
            Ok(client_handshake::HandshakeStep::Plain(_)) => Err(self.refused(HandshakeError::Fault)),
            Err(failure) => Err(self.refused(failure)),
        }
    }

    fn refused(&mut self, failure: HandshakeError) -> Event {
        self.detach();
        Event::Detached(DetachCause::Refused(failure))
    }
}

/// The maximum number of bytes of a read of the connection. It holds a frame with its head; else each frame would take
/// two reads, and two writes to the program.
const MAX_RECEIVED: usize = 128 * 1024;
