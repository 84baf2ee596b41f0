//! The bytes under an HTTP/2 connection: gathers what is sent, and watches the frames that come.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ahead::Ahead;
use super::frames::{Earned, Frames};
use super::gathered::Gathered;
use super::room::Outbox;
use crate::net::transport::{Reader, Transport, Writer};

/// What the h2 crate reads and writes, shared with who drives it.
///
/// h2 writes and flushes every frame of 16 KiB by itself: four system calls for each read of a target, or four times
/// two TLS records, as 16 KiB and nine bytes are one and a bit. So a flush of h2's does nothing, and its driver
/// [sends](Self::poll_send) when there is nothing more to gather: a third less CPU for each GiB.
#[derive(Debug)]
pub struct Wire<D>(Arc<Mutex<State<D>>>);

#[derive(Debug)]
struct State<D> {
    end: D,
    /// Begins with what was read before HTTP/2 was known to be spoken.
    ahead: Ahead,
    frames: Frames,
    outbox: Outbox,
    unsent: Gathered,
    /// How much of what comes behind the end is still thrown away.
    lingering: usize,
}

impl<D> Clone for Wire<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Transport> Wire<D> {
    /// On a connection of which that much was read.
    pub fn new(mut end: D, early: Vec<u8>) -> Self {
        end.keep_unsent_short();
        Self(Arc::new(Mutex::new(State {
            end,
            ahead: Ahead::of(early),
            frames: Frames::new(Earned::default()),
            outbox: Outbox::new(),
            unsent: Gathered::default(),
            lingering: LINGER_BYTES,
        })))
    }

    /// Sends what was gathered.
    pub(super) fn poll_send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().poll_send(context)
    }

    /// Where it is counted what the client is sent.
    pub(super) fn earned(&self) -> Earned {
        self.lock().frames.earned()
    }

    /// What its streams send by.
    pub(super) fn outbox(&self) -> Outbox {
        self.lock().outbox.clone()
    }

    /// Whether the client sent so many frames that the connection has to end.
    pub(super) fn flooded(&self) -> bool {
        self.lock().frames.too_many()
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.0.lock()
    }
}

impl<D: Transport> State<D> {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (mut source, _) = self.end.split();
        ready!(self.ahead.poll_fill(context, &mut source))?;
        let next = self.ahead.next(buffer.remaining());
        if !self.frames.came(next) {
            // Its driver asks next, and ends the connection: h2 need not see them.
            return Poll::Pending;
        }
        buffer.put_slice(next);
        let taken = next.len();
        self.ahead.take(taken);
        Poll::Ready(Ok(()))
    }

    fn poll_gather(&mut self, context: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.unsent.len() >= MOST_GATHERED {
            ready!(self.poll_send(context))?;
        }
        for piece in pieces {
            match self.outbox.shown(piece) {
                Some(slice) => self.unsent.share(slice),
                None => self.unsent.copy(piece),
            }
        }
        self.outbox.written();
        Poll::Ready(Ok(pieces.iter().map(|piece| piece.len()).sum()))
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (_, mut sink) = self.end.split();
        ready!(self.unsent.poll_write(context, &mut sink))?;
        ready!(sink.poll_flush(context))?;
        self.outbox.left();
        Poll::Ready(Ok(()))
    }

    /// Sends the end behind what was gathered, then waits for the client's: a close with unread input would make the
    /// kernel send a reset, and the client's throw away the GOAWAY that it has not read.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        let (mut source, mut sink) = self.end.split();
        ready!(sink.poll_shutdown(context))?;
        while self.lingering > 0 {
            let mut scratch = [0; 4096];
            match ready!(source.poll_read(context, &mut scratch))?.len() {
                0 => break,
                read => self.lingering = self.lingering.saturating_sub(read),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<D: Transport> AsyncRead for Wire<D> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.lock().poll_read(context, buffer)
    }
}

impl<D: Transport> AsyncWrite for Wire<D> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.lock().poll_gather(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_gather(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().poll_close(context)
    }
}

/// What is sent at once, if there is as much: enough for the system call, or the TLS records, to be used well.
const MOST_GATHERED: usize = 256 * 1024;
const LINGER_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::io::poll_write_buf;

    use super::super::chunk::Chunk;
    use super::super::room::{Lane, ROOM, Room};
    use super::*;

    fn turns(outbox: &Outbox) -> usize {
        let mut turns = outbox.turns(Lane::Bulk);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let taken: Vec<_> = std::iter::from_fn(|| match turns.poll_acquire_many(&mut context, Lane::Bulk.units()) {
            Poll::Ready(units) => units,
            Poll::Pending => None,
        })
        .collect();
        taken.len()
    }

    #[tokio::test]
    async fn a_frame_is_sent_from_the_room_that_it_was_read_into_and_a_small_one_is_copied_out_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let end = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let wire = Wire::new(end, Vec::new());
        let (outbox, earned) = (wire.outbox(), wire.earned());
        let mut context = Context::from_waker(std::task::Waker::noop());
        for (shown_by_h2, free) in [(true, 1), (false, 2)] {
            let units = outbox
                .turns(Lane::Bulk)
                .poll_acquire_many(&mut context, Lane::Bulk.units());
            let Poll::Ready(Some(units)) = units else {
                panic!("no turn")
            };
            let mut chunk = Chunk::read(Room::new(units).slice(ROOM), &outbox, &earned);
            // As h2 writes a frame, and one that is so small that it has copied it behind its head.
            let mut head = &[7; 265][..];
            let written = if shown_by_h2 {
                poll_write_buf(
                    Pin::new(&mut wire.clone()),
                    &mut context,
                    &mut (&mut head).chain((&mut chunk).take(16_384)),
                )
            } else {
                chunk.chunk();
                poll_write_buf(Pin::new(&mut wire.clone()), &mut context, &mut head)
            };
            assert!(written.is_ready());
            drop(chunk);
            assert_eq!(turns(&outbox), free);
            assert!(wire.poll_send(&mut context).is_ready());
            assert_eq!(turns(&outbox), 2);
        }
    }
}
