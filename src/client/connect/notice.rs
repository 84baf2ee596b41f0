//! The download of a tunnel whose proxy has promised an end notice: the notice is taken out of it, and becomes an error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::rand;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::base::text::printable;
use crate::client::error::Ended;
use crate::client::stderr::LONGEST_LINE;
use crate::protocol::end_notice::{Finder, Marker, Passed};

/// A marker for one request. Without random bytes there is none, and the request asks for no notice.
pub(in crate::client) fn marker() -> Option<Marker> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).ok()?;
    Some(bytes.into())
}

/// A tunnel that may end in a notice.
#[derive(Debug)]
pub(in crate::client) struct Watched<S> {
    stream: S,
    finder: Finder,
    /// What is read next.
    ready: Vec<u8>,
    /// The error behind that.
    failed: Option<io::Error>,
}

impl<S> Watched<S> {
    /// `early` are the bytes in front of those of the stream.
    pub(in crate::client) fn new(stream: S, marker: Marker, mut early: Vec<u8>) -> Self {
        let mut finder = Finder::new(marker);
        let Passed { now, .. } = finder.feed(&early);
        early.truncate(now);
        Self {
            stream,
            finder,
            ready: early,
            failed: None,
        }
    }

    fn ended(&self) -> io::Error {
        let sentence = self.finder.sentence().filter(|sentence| !sentence.is_empty());
        let sentence = sentence.unwrap_or_else(|| "the proxy ended the session".to_owned());
        io::Error::other(Ended(printable(&sentence, LONGEST_LINE)))
    }

    /// Takes the notice, or its beginning, out of what was read into `buffer` behind its first bytes.
    fn sift(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let read = buffer.filled().get(before..).unwrap_or_default();
        let Passed { mut released, now } = self.finder.feed(read);
        if released.is_empty() {
            buffer.set_filled(before + now);
        } else {
            released.extend(read.iter().take(now));
            self.ready = released;
            buffer.set_filled(before);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while buffer.filled().len() == before {
            if !this.ready.is_empty() {
                let now = this.ready.len().min(buffer.remaining());
                buffer.put_slice(this.ready.get(..now).unwrap_or_default());
                this.ready.drain(..now);
                break;
            }
            if let Some(error) = this.failed.take() {
                return Poll::Ready(Err(error));
            }
            if this.finder.sentence().is_some() {
                return Poll::Ready(Err(this.ended()));
            }
            let read = ready!(Pin::new(&mut this.stream).poll_read(context, buffer));
            let has_ended = read.is_err() || buffer.filled().len() == before;
            if has_ended && this.finder.has_marker() {
                return Poll::Ready(Err(this.ended()));
            }
            if has_ended {
                this.ready = this.finder.rest();
                if this.ready.is_empty() {
                    return Poll::Ready(read);
                }
                this.failed = read.err();
                continue;
            }
            this.sift(buffer, before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::end_notice::notice;
    use tokio::io::AsyncReadExt;

    const MARK: [u8; 16] = *b"0123456789abcdef";

    /// What is read, by so many bytes at once, and the error behind it.
    async fn read(early: &[u8], pieces: &[&[u8]], at_once: usize) -> (Vec<u8>, Option<String>) {
        let mut mock = tokio_test(pieces);
        let mut watched = Watched::new(&mut mock, MARK.into(), early.to_vec());
        let (mut all, mut buffer) = (Vec::new(), vec![0; at_once]);
        loop {
            match watched.read(&mut buffer).await {
                Ok(0) => return (all, None),
                Ok(read) => all.extend(&buffer[..read]),
                Err(error) => return (all, Some(crate::client::error::ClientError::from(error).to_string())),
            }
        }
    }

    /// A stream of which each read gives one piece.
    fn tokio_test(pieces: &[&[u8]]) -> Pieces {
        Pieces(pieces.iter().map(|piece| piece.to_vec()).collect())
    }

    struct Pieces(std::collections::VecDeque<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.0.pop_front() {
                let now = piece.len().min(buffer.remaining());
                buffer.put_slice(&piece[..now]);
                if now < piece.len() {
                    self.0.push_front(piece.split_off(now));
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_notice_is_read_as_an_error_behind_the_bytes_of_the_target_in_whatever_pieces() {
        let notice = notice(MARK.into(), "the proxy ended the session: why");
        let all = [b"bytes 0123", notice.as_slice()].concat();
        let why = Some("the proxy ended the session: why".to_owned());
        for at_once in [1, 2, 3, 7, 1000] {
            assert_eq!(read(b"", &[&all], at_once).await.1, why, "{at_once}");
            assert_eq!(read(&all, &[], at_once).await, (b"bytes 0123".to_vec(), why.clone()));
        }
        for cut in 10..all.len() {
            let (early, late) = all.split_at(cut);
            for (early, pieces) in [(early, &[late][..]), (&[], &[early, late])] {
                let (passed, told) = read(early, pieces, 64).await;
                assert!(passed.starts_with(b"bytes 0123") && passed.len() < 14, "{cut}");
                assert_eq!(told, why, "{cut}");
            }
        }
    }

    #[tokio::test]
    async fn what_only_begins_like_a_marker_is_passed_on_at_the_end() {
        for at_once in [1, 3, 100] {
            let read = read(b"0123456", &[b"789", b"abcde"], at_once).await;
            assert_eq!(read, (b"0123456789abcde".to_vec(), None), "{at_once}");
        }
    }

    #[tokio::test]
    async fn a_notice_that_is_cut_off_has_a_sentence_of_our_own() {
        let notice = notice(MARK.into(), "the proxy ended the session: why");
        let cut = read(b"", &[&notice[..20]], 100).await;
        assert_eq!(cut, (Vec::new(), Some("the proxy ended the session".to_owned())));
    }

    #[tokio::test]
    async fn a_sentence_has_no_control_characters() {
        let notice = notice(MARK.into(), "a\x1b[2Jb\r\nc");
        assert_eq!(read(b"", &[&notice], 100).await.1.as_deref(), Some("a[2Jbc"));
    }
}
