//! The download of a tunnel whose proxy has promised an end notice: the notice is taken out of it, and becomes an error.

use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use aws_lc_rs::rand;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::base::text::printable;
use crate::client::stderr::MAX_LINE;
use crate::protocol::end_notice::{Marker, sentence};
use crate::uplink::error::EndNoticeError;

/// Returns a marker for one request; `None` without random bytes: then the request asks for no notice.
pub(in crate::client) fn marker() -> Option<Marker> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).ok()?;
    Some(bytes.into())
}

/// A download that may end in a notice.
#[derive(Debug)]
pub(in crate::client) struct EndNoticeStream<S> {
    stream: S,
    marker: Marker,
    /// The last bytes read that may be of a notice, or were not passed on.
    kept: Vec<u8>,
    /// The number of `kept` bytes that have been passed on.
    passed: usize,
    /// The number of `kept` bytes that may be passed on, including `passed`.
    free: usize,
    /// The number of `kept` bytes before the possible start of a notice.
    before: usize,
    /// The end of the download, which follows the bytes that may be passed on.
    end: Option<io::Result<()>>,
}

impl<S> EndNoticeStream<S> {
    /// Creates the download. `early`: the bytes before those of the stream.
    pub(in crate::client) fn new(stream: S, marker: Marker, early: Vec<u8>) -> Self {
        let mut watched = Self {
            stream,
            marker,
            kept: early,
            passed: 0,
            free: 0,
            before: 0,
            end: None,
        };
        watched.check(None);
        watched
    }

    /// Finds out how many bytes may be passed on; `end` is that of the stream.
    fn check(&mut self, end: Option<io::Result<()>>) {
        self.before = self.marker.begins_in(&self.kept);
        let rest = self.kept.get(self.before..).unwrap_or_default();
        if let Some(notice) = rest.strip_prefix(self.marker.bytes()) {
            self.free = self.before;
            let told = sentence(notice);
            if told.is_some() || end.is_some() {
                let told = told.filter(|(sentence, _)| !sentence.is_empty());
                let (told, is_final) = told.unwrap_or_else(|| ("the proxy ended the session".to_owned(), false));
                let sentence = printable(&told, MAX_LINE);
                self.end = Some(Err(io::Error::other(EndNoticeError { sentence, is_final })));
            }
        } else {
            let is_held = end.is_none() && rest.len() >= LEAST_HELD;
            self.free = if is_held { self.before } else { self.kept.len() };
            self.end = end;
        }
    }
}

impl<S: AsyncRead + Unpin> EndNoticeStream<S> {
    /// Reads on, once all is passed on: straight into `buffer`, unless the kept bytes may begin a marker.
    fn poll_more(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<()> {
        let gone = mem::take(&mut self.before);
        self.kept.drain(..gone);
        self.passed -= gone;
        self.free = self.passed;
        let filled = buffer.filled().len();
        let read = if self.kept.is_empty() {
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
            let piece = buffer.filled().get(filled..).unwrap_or_default();
            let before = self.marker.begins_in(piece);
            let length = piece.len();
            self.kept.extend(piece.iter().skip(before));
            buffer.set_filled(filled + before);
            read.map(|()| length)
        } else {
            ready!(pin!(self.stream.read_buf(&mut self.kept)).poll(context))
        };
        self.check(match read {
            Ok(1..) => None,
            ended => Some(ended.map(drop)),
        });
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EndNoticeStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        while buffer.remaining() > 0 && buffer.filled().len() == filled {
            let ready = self.kept.get(self.passed..self.free).unwrap_or_default();
            let now = ready.len().min(buffer.remaining());
            if now > 0 {
                buffer.put_slice(ready.get(..now).unwrap_or_default());
                self.passed += now;
            } else if let Some(end) = self.end.take() {
                return Poll::Ready(end);
            } else {
                ready!(self.poll_more(context, buffer));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The minimum number of a marker's bytes that are held back. One piece in 256 ends in a marker's first byte, and a
/// keystroke's echo must not wait for the next piece. ssh does nothing on fewer than four bytes, the length of a packet
/// (RFC 4253 section 6).
const LEAST_HELD: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::end_notice::notice;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    const MARK: [u8; 16] = *b"0123456789abcdef";

    /// Returns the bytes that are read, `at_once` at a time, and the error after them.
    async fn read(early: &[u8], pieces: &[&[u8]], at_once: usize) -> (Vec<u8>, Option<String>) {
        let pieces = Pieces(pieces.iter().map(|piece| piece.to_vec()).collect());
        let mut watched = EndNoticeStream::new(pieces, MARK.into(), early.to_vec());
        let (mut all, mut buffer) = (Vec::new(), vec![0; at_once]);
        loop {
            match watched.read(&mut buffer).await {
                Ok(0) => return (all, None),
                Ok(read) => all.extend(&buffer[..read]),
                Err(error) => return (all, Some(crate::uplink::error::ClientError::from(error).to_string())),
            }
        }
    }

    /// A stream of which each read gives one piece.
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
        let notice = notice(MARK.into(), "the proxy ended the session: why", false);
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
        let notice = notice(MARK.into(), "the proxy ended the session: why", false);
        let cut = read(b"", &[&notice[..20]], 100).await;
        assert_eq!(cut, (Vec::new(), Some("the proxy ended the session".to_owned())));
    }

    #[tokio::test]
    async fn only_a_notice_that_is_final_ends_the_session() {
        for is_final in [false, true] {
            let notice = notice(MARK.into(), "why", is_final);
            for at in 1..=notice.len() {
                let (early, late) = notice.split_at(at);
                let mut watched = EndNoticeStream::new(late, MARK.into(), early.to_vec());
                let error = watched.read_to_end(&mut Vec::new()).await.unwrap_err();
                let retry = crate::uplink::error::ClientError::from(error).retry();
                assert_eq!(retry == crate::uplink::error::Retry::Never, is_final, "{at}");
            }
        }
    }

    #[tokio::test]
    async fn a_sentence_has_no_control_characters() {
        let notice = notice(MARK.into(), "a\x1b[2Jb\r\nc", false);
        assert_eq!(read(b"", &[&notice], 100).await.1.as_deref(), Some("a[2Jbc"));
    }

    #[tokio::test]
    async fn a_keystroke_that_ends_like_a_marker_begins_is_passed_on_at_once() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut watched = EndNoticeStream::new(near, MARK.into(), Vec::new());
        for (piece, passed) in [(&b"x0"[..], &b"x0"[..]), (b"12", b"12"), (b"3", b""), (b"!", b"3!")] {
            far.write_all(piece).await.unwrap();
            let (mut all, mut chunk) = (Vec::<u8>::new(), [0; 64]);
            while let Ok(read) = timeout(Duration::ZERO, watched.read(&mut chunk)).await {
                all.extend(&chunk[..read.unwrap()]);
            }
            assert_eq!(all, passed, "{piece:?}");
        }
    }

    /// Pieces of a stream of bytes that are often those of the marker.
    fn stream() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let lump = prop_oneof![
            (1..=MARK.len()).prop_map(|length| MARK[..length].to_vec()),
            proptest::collection::vec(any::<u8>(), 1..40),
        ];
        proptest::collection::vec(lump, 0..30)
    }

    fn read_now(pieces: &[&[u8]], at_once: usize) -> (Vec<u8>, Option<String>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(b"", pieces, at_once))
    }

    proptest! {
        #[test]
        fn a_notice_is_found_however_it_is_split(
            before in stream(), cuts in proptest::collection::vec(0_usize..400, 0..8), at_once in 1_usize..100
        ) {
            let mut expected = before.concat();
            // Within a stream a whole marker is the notice.
            prop_assume!(!expected.windows(MARK.len()).any(|window| window == MARK));
            let mut all = expected.clone();
            all.extend(notice(MARK.into(), "the reason", true));
            prop_assume!(all.windows(MARK.len()).position(|window| window == MARK) == Some(expected.len()));
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &all[cut[0]..cut[1]]).collect();
            let (passed, sentence) = read_now(&pieces, at_once);
            prop_assert_eq!(sentence.as_deref(), Some("the reason"));
            // Up to three bytes of the marker itself may have been passed on.
            let leaked = passed.len() - expected.len();
            prop_assert!(leaked < LEAST_HELD);
            expected.extend(&MARK[..leaked]);
            prop_assert_eq!(passed, expected);
        }

        #[test]
        fn without_a_notice_every_byte_is_passed_on(pieces in stream(), at_once in 1_usize..100) {
            let all = pieces.concat();
            prop_assume!(!all.windows(MARK.len()).any(|window| window == MARK));
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(read_now(&pieces, at_once), (all, None));
        }
    }
}
