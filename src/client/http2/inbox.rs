//! What the proxy has sent on a stream and nobody has read yet.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::ReadBuf;

use super::stream::broken;

/// The half of a stream that receives. Whoever drives the connection takes in what comes, also while nobody reads: h2
/// holds few small frames before it ends the connection, and a suspended ssh lets many come. The window bounds it.
#[derive(Clone)]
pub(super) struct Inbox(Arc<Mutex<Received>>);

struct Received {
    stream: RecvStream,
    /// Frames as they came.
    ahead: VecDeque<Bytes>,
    /// Behind them, the bytes of small ones in one piece: alone each would keep a whole buffer of h2's.
    small: BytesMut,
    /// How much was read that its reader may not have passed on.
    read: usize,
    /// What comes behind all that.
    end: Option<Result<(), h2::Error>>,
}

impl Inbox {
    pub(super) fn of(stream: RecvStream) -> Self {
        Self(Arc::new(Mutex::new(Received {
            stream,
            ahead: VecDeque::new(),
            small: BytesMut::new(),
            read: 0,
            end: None,
        })))
    }

    /// Takes in what has come.
    pub(super) fn fill(&self, context: &mut Context<'_>) {
        self.lock().fill(context);
    }

    /// Reads as much as there is and fits. Who reads again has passed on what was read before: only then may the proxy
    /// send as much again, so that a stdout which nobody reads stops it.
    pub(super) fn poll_read(&self, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut received = self.lock();
        received.give_room();
        received.fill(context);
        received.read_into(room);
        if received.read > 0 {
            return Poll::Ready(Ok(()));
        }
        match received.end.take() {
            Some(Err(error)) => Poll::Ready(Err(broken(error))),
            Some(Ok(())) => {
                received.end = Some(Ok(()));
                Poll::Ready(Ok(()))
            }
            None => Poll::Pending,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.0.lock()
    }
}

impl Received {
    fn fill(&mut self, context: &mut Context<'_>) {
        while self.end.is_none() {
            match self.stream.poll_data(context) {
                Poll::Ready(Some(Ok(bytes))) => self.keep(bytes),
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => match self.stream.poll_trailers(context) {
                    // No frame but DATA may follow on a connected stream (RFC 9113 section 8.5).
                    Poll::Ready(Ok(Some(_))) => self.end = Some(Err(Reason::PROTOCOL_ERROR.into())),
                    Poll::Ready(Ok(None)) => self.end = Some(Ok(())),
                    Poll::Ready(Err(error)) => self.end = Some(Err(error)),
                    Poll::Pending => return,
                },
                Poll::Pending => return,
            }
        }
    }

    fn keep(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL {
            self.small.extend_from_slice(&bytes);
        } else {
            self.settle();
            self.ahead.push_back(bytes);
        }
    }

    /// Puts the small ones behind the others.
    fn settle(&mut self) {
        if !self.small.is_empty() {
            self.ahead.push_back(self.small.split().freeze());
        }
    }

    fn read_into(&mut self, room: &mut ReadBuf<'_>) {
        if self.ahead.is_empty() {
            self.settle();
        }
        while room.remaining() > 0
            && let Some(first) = self.ahead.front_mut()
        {
            let now = first.split_to(first.len().min(room.remaining()));
            room.put_slice(&now);
            self.read += now.len();
            if first.is_empty() {
                self.ahead.pop_front();
            }
        }
    }

    fn give_room(&mut self) {
        // It fails for a stream that is gone, whose window does not matter any more.
        self.stream.flow_control().release_capacity(self.read).ok();
        self.read = 0;
    }
}

/// What is copied rather than kept: h2 counts frames below 256 bytes, and four of its frames fill a page.
const SMALL: usize = 1024;
