//! Recognises a send buffer's bytes in h2's writes, so that they are queued in place instead of copied.
//!
//! h2 takes a payload as a [`Buf`](bytes::Buf) and later writes plain slices ([`tokio::io::AsyncWrite`]). Only a
//! slice's address then identifies its send buffer, which must stay alive until the slice is sent. In bulk this saves a
//! copy of every byte (docs/decisions/10-http2-bulk.md).
//!
//! This relies on the behaviour of h2 0.4, in `src/codec/framed_write.rs`:
//!
//! - The first bytes of a DATA frame, up to 256 with its head (`CHAIN_THRESHOLD`), are copied into h2's own buffer. A
//!   smaller payload is copied as a whole.
//! - The rest is written as a slice of its own, after that buffer: `poll_write_buf` of a `Buf::chain`, which calls
//!   `Buf::chunk` of the payload and then `poll_write_vectored`, with nothing in between.
//! - That slice begins where the chunk begins, and is cut to the frame's length, 16 KiB for most clients.
//!
//! So `Buf::chunk` of a payload calls [`offer`](ZeroCopy::offer), and the connection calls [`claim`](ZeroCopy::claim)
//! for each slice.
//!
//! If h2 changes any of it, slices are not recognised and are copied like all others: the bytes stay right, and
//! downloads cost more. A match cannot be wrong. The last offer keeps its send buffer alive, so no other memory can
//! have that address, and the length of the offer bounds the match. The test below has h2 itself write a payload, and
//! fails when h2 no longer passes it on in place.

use parking_lot::Mutex;

use super::send_buffer::Slice;

/// The last offer: the bytes that h2 was shown last.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy(Mutex<Option<Slice>>);

impl ZeroCopy {
    /// Remembers the bytes that a payload is about to show h2, instead of the previous ones.
    pub(super) fn offer(&self, slice: &Slice) {
        *self.0.lock() = Some(slice.clone());
    }

    /// Returns `bytes` as a slice of their send buffer if they begin where the last offer does, else `None`. An offer
    /// is claimed once.
    pub(super) fn claim(&self, bytes: &[u8]) -> Option<Slice> {
        let is_same = |offered: &mut Slice| {
            let offered = offered.bytes();
            std::ptr::eq(offered.as_ptr(), bytes.as_ptr()) && bytes.len() <= offered.len()
        };
        let mut claimed = self.0.lock().take_if(is_same)?;
        claimed.truncate(bytes.len());
        Some(claimed)
    }

    /// Forgets the offer after a write: bytes that h2 has copied must not hold their send buffer.
    pub(super) fn clear(&self) {
        drop(self.0.lock().take());
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame_budget::Credit;
    use super::super::outgoing::Outgoing;
    use super::super::payload::Payload;
    use super::super::send_buffer::{BUFFER_BYTES, Class, SendBuffer};
    use super::*;
    use std::io::{self, IoSlice};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker, ready};

    use bytes::Bytes;
    use http::{Request, Response};
    use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

    fn send_buffer(outgoing: &Outgoing) -> SendBuffer {
        let mut context = Context::from_waker(Waker::noop());
        let mut semaphore = outgoing.semaphore(Class::Bulk);
        match semaphore.poll_acquire_many(&mut context, Class::Bulk.permits()) {
            Poll::Ready(permits) => SendBuffer::new(permits.unwrap()),
            Poll::Pending => panic!("the permits are taken"),
        }
    }

    #[test]
    fn bytes_are_claimed_where_they_were_offered_and_nowhere_else() {
        let outgoing = Outgoing::new(Credit::default());
        let mut slice = send_buffer(&outgoing).slice(1000);
        slice.advance(100);
        let zero_copy = ZeroCopy::default();
        zero_copy.offer(&slice);
        let claimed = zero_copy.claim(&slice.bytes()[..500]).unwrap();
        assert!(std::ptr::eq(claimed.bytes(), &raw const slice.bytes()[..500]));
        assert!(zero_copy.claim(slice.bytes()).is_none(), "claimed twice");
        zero_copy.offer(&slice);
        assert!(zero_copy.claim(&[0; 500]).is_none(), "at another address");
        zero_copy.clear();
        assert!(zero_copy.claim(slice.bytes()).is_none(), "after the write");
        let mut short = slice.clone();
        short.truncate(899);
        zero_copy.offer(&short);
        assert!(zero_copy.claim(slice.bytes()).is_none(), "longer than the offer");
    }

    /// A transport for h2 that counts the recognised bytes.
    struct Counting {
        stream: DuplexStream,
        outgoing: Outgoing,
        claimed: Arc<AtomicUsize>,
    }

    impl AsyncRead for Counting {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Counting {
        fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(context, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            for piece in pieces {
                if let Some(claimed) = self.outgoing.zero_copy().claim(piece) {
                    self.claimed.fetch_add(claimed.len(), Ordering::SeqCst);
                }
                let written = ready!(Pin::new(&mut self.stream).poll_write(context, piece))?;
                assert_eq!(written, piece.len(), "the test's pipe holds all");
            }
            self.outgoing.zero_copy().clear();
            Poll::Ready(Ok(pieces.iter().map(|piece| piece.len()).sum()))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }

    /// A failure says that h2 no longer writes payloads in place: see the top of this file.
    #[tokio::test]
    async fn upgrade_h2_writes_a_payload_in_place_but_for_the_first_bytes_of_each_frame() {
        let (ours, theirs) = tokio::io::duplex(4 * BUFFER_BYTES);
        let outgoing = Outgoing::new(Credit::default());
        let claimed = Arc::new(AtomicUsize::new(0));
        let counting = Counting {
            stream: theirs,
            outgoing: outgoing.clone(),
            claimed: Arc::clone(&claimed),
        };
        let mut buffer = send_buffer(&outgoing);
        for (byte, number) in buffer.memory().iter_mut().zip((0..=250).cycle()) {
            *byte = number;
        }
        let expected = buffer.memory().to_vec();
        let serving = tokio::spawn(async move {
            let mut connection = h2::server::Builder::new()
                .handshake::<_, Payload>(counting)
                .await
                .unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            let payload = Payload::buffered(buffer.slice(BUFFER_BYTES), &outgoing);
            send.send_data(payload, false).unwrap();
            let (last, _) = Payload::last(Vec::new(), &outgoing);
            send.send_data(last, true).unwrap();
            while connection.accept().await.is_some() {}
        });
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 20)
            .handshake::<_, Bytes>(ours)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let mut requests = requests.ready().await.unwrap();
        let (response, _) = requests
            .send_request(Request::connect("a:1").body(()).unwrap(), true)
            .unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut received = Vec::new();
        while let Some(bytes) = body.data().await {
            received.extend(bytes.unwrap());
        }
        drop((requests, body));
        connection.await.unwrap().unwrap();
        serving.await.unwrap();
        assert!(received == expected);
        // 16 frames of 16 KiB, with at most 256 bytes of head and copied payload in each.
        let copied = BUFFER_BYTES - claimed.load(Ordering::SeqCst);
        assert!(copied <= 16 * 256, "{copied} bytes are not recognised");
    }
}
