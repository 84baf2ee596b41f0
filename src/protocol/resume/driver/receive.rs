//! Takes what a connection brings.

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
    /// From the connection into the session, and what the program takes at once to the program.
    pub(super) fn poll_receive<S, W>(
        &mut self,
        context: &mut Context<'_>,
        link: &mut Attachment<S>,
        sink: &mut W,
    ) -> Poll<Result<(), Event>>
    where
        S: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // Nothing follows an end: it need not be read.
        if self.session.ended().is_some() || self.session.violation().is_some() {
            return Poll::Pending;
        }
        let mut scratch = [MaybeUninit::uninit(); MAX_RECEIVED];
        let mut read = ReadBuf::uninit(&mut scratch);
        let result = ready!(Pin::new(&mut link.stream).poll_read(context, &mut read));
        let unlinked = match result {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => DetachCause::Closed,
            Err(error) => DetachCause::Failed(error),
            Ok(()) if read.filled().is_empty() => DetachCause::Closed,
            Ok(()) if self.opening.is_some() => {
                return Poll::Ready(self.received(link.attachment, read.filled()));
            }
            Ok(()) => return Poll::Ready(self.pass_through(context, (link.attachment, read.filled()), sink)),
        };
        self.detach();
        Poll::Ready(Err(Event::Detached(unlinked)))
    }

    /// Takes bytes of the connection, and gives those of the stream to the program as they come. What it does not take, and
    /// what comes after that, is held.
    ///
    /// A program that takes one piece at a time is given all that was read in one: each write of a `File` is the work of
    /// another thread.
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

    /// Takes bytes of the connection, at first those of the handshake.
    fn received(&mut self, attachment: AttachmentId, bytes: &[u8]) -> Result<(), Event> {
        let now = Instant::now().into_std();
        let Some(opening) = &mut self.opening else {
            self.session.receive(attachment, bytes, now);
            return Ok(());
        };
        match opening.receive(bytes) {
            Ok(client_handshake::HandshakeStep::NeedMore) => Ok(()),
            Ok(client_handshake::HandshakeStep::Attached(attached)) => {
                self.opening = None;
                self.session.receive(attachment, &attached.rest, now);
                Err(Event::Confirmed(attached.secrets))
            }
            // Behind the proof there is no plain target any more.
            Ok(client_handshake::HandshakeStep::Plain(_)) => Err(self.refused(HandshakeError::Fault)),
            Err(failure) => Err(self.refused(failure)),
        }
    }

    fn refused(&mut self, failure: HandshakeError) -> Event {
        self.detach();
        Event::Detached(DetachCause::Refused(failure))
    }
}

/// Bytes of one read of the connection: more than a frame with its head, or else each frame takes two reads, and two writes
/// to the program.
const MAX_RECEIVED: usize = 128 * 1024;
