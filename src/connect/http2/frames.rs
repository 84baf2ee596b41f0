//! Counts the frames of a client that cost work and move nothing, and says when they are too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Reads along with what the client sends, frame head by frame head (RFC 9113 section 4.1).
///
/// HTTP/2 lets a client ask for work by nine bytes: to answer a PING, to apply SETTINGS, to dial for HEADERS that a
/// RST_STREAM takes back (CVE-2023-44487). The h2 crate bounds what such frames hold, but most of them it serves for
/// ever, as fast as they come. Here each has a price, and a connection that cannot pay has to end. Credit comes with
/// time, and with every DATA frame that the client was sent: that is what honest WINDOW_UPDATEs and PINGs answer.
#[derive(Debug)]
pub(super) struct FrameBudget {
    head: Vec<u8>,
    /// Bytes of the preface, or of the payload of the frame at hand, that are still to come.
    skip: usize,
    credit: u32,
    counted_to: Instant,
    earned: EarnedCredit,
    too_many: bool,
}

/// What the client's connection earns by the DATA that it is sent.
#[derive(Clone, Debug, Default)]
pub(super) struct EarnedCredit(Arc<AtomicU32>);

impl EarnedCredit {
    /// So many bytes of a tunnel left in DATA frames.
    pub(super) fn sent(&self, bytes: usize) {
        let earned = PER_SENT + u32::try_from(bytes / BYTES_PER_CREDIT).unwrap_or(MOST_CREDIT);
        self.0.fetch_add(earned.min(MOST_CREDIT), Ordering::Relaxed);
    }
}

impl FrameBudget {
    /// The frames behind a preface that is still to come.
    pub(super) fn new(earned: EarnedCredit) -> Self {
        Self {
            head: Vec::with_capacity(HEAD),
            skip: PREFACE,
            credit: MOST_CREDIT,
            counted_to: Instant::now(),
            earned,
            too_many: false,
        }
    }

    /// Where what the client is sent is counted.
    pub(super) fn credit(&self) -> EarnedCredit {
        self.earned.clone()
    }

    /// Whether the connection has to end.
    pub(super) fn too_many(&self) -> bool {
        self.too_many
    }

    /// These bytes came next. False when there were too many frames in them.
    pub(super) fn observe(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let known = bytes.len().min(self.skip);
            self.skip -= known;
            bytes = bytes.get(known..).unwrap_or_default();
            let missing = bytes.len().min(HEAD - self.head.len());
            let (head, rest) = bytes.split_at(missing);
            self.head.extend_from_slice(head);
            bytes = rest;
            if let [high, middle, low, kind, flags, ..] = *self.head.as_slice()
                && self.head.len() == HEAD
            {
                self.head.clear();
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.pay(price(kind, flags, self.skip));
            }
        }
        !self.too_many
    }

    fn pay(&mut self, price: u32) {
        if self.credit < price {
            self.earn();
        }
        match self.credit.checked_sub(price) {
            Some(left) => self.credit = left,
            None => self.too_many = true,
        }
    }

    fn earn(&mut self) {
        let elapsed = self.counted_to.elapsed();
        let by_time = u32::try_from(elapsed.as_millis() / PER_CREDIT.as_millis()).unwrap_or(u32::MAX);
        self.counted_to += PER_CREDIT * by_time;
        let by_data = self.earned.0.swap(0, Ordering::Relaxed);
        let earned = by_time.saturating_add(by_data);
        self.credit = self.credit.saturating_add(earned).min(MOST_CREDIT);
    }
}

/// What a frame costs: about what it makes us do.
fn price(kind: u8, flags: u8, length: usize) -> u32 {
    match kind {
        DATA if length == 0 || (flags & PADDED != 0 && length <= LONGEST_PADDING) => 1,
        DATA => 0,
        HEADERS | RST_STREAM | CONTINUATION => 5,
        SETTINGS => 10,
        PING => 2,
        // PRIORITY, GOAWAY, WINDOW_UPDATE, and what no RFC knows and everybody ignores.
        _ => 1,
    }
}

const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 8;
/// A frame that is no longer may be padding and nothing else.
const LONGEST_PADDING: usize = 256;
/// What a connection begins with, and the most that it saves: 100 streams that are opened and reset at once.
const MOST_CREDIT: u32 = 1000;
/// 200 a second: 20 streams opened and reset, or 100 PINGs.
const PER_CREDIT: Duration = Duration::from_millis(5);
/// A WINDOW_UPDATE for the stream and one for the connection, as simple clients answer every DATA frame; and a PING.
const PER_SENT: u32 = 4;
/// A client that grants its window by the KiB cuts our DATA into as many frames, and grants each of them again.
const BYTES_PER_CREDIT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, kind, flags, 0, 0, 0, 1];
        frame[..3].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes()[1..]);
        frame.resize(HEAD + length, 7);
        frame
    }

    fn frames() -> FrameBudget {
        let mut frames = FrameBudget::new(EarnedCredit::default());
        assert!(frames.observe(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        frames
    }

    /// How many of these may come at once.
    fn at_once(frame: &[u8]) -> usize {
        let mut frames = frames();
        (0..100_000).take_while(|_| frames.observe(frame)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn every_kind_that_moves_nothing_is_bounded_and_data_is_not() {
        for (kind, flags, length, most) in [
            (HEADERS, 4, 30, 200),
            (RST_STREAM, 0, 4, 200),
            (SETTINGS, 0, 0, 100),
            (PING, 0, 8, 500),
            (2, 0, 5, 1000),
            (8, 0, 4, 1000),
            (0x55, 0, 100, 1000),
            (DATA, 0, 0, 1000),
            (DATA, PADDED, 256, 1000),
            (DATA, PADDED, 257, 100_000),
            (DATA, 0, 1, 100_000),
        ] {
            assert_eq!(at_once(&frame(kind, flags, length)), most, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn credit_comes_with_time_and_is_saved_up_to_the_most() {
        let (mut frames, ping) = (frames(), frame(PING, 0, 8));
        for _ in 0..500 {
            assert!(frames.observe(&ping));
        }
        for (pause, pings) in [(1, 100), (3600, 500)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            for _ in 0..pings {
                assert!(frames.observe(&ping), "after {pause} s");
            }
        }
        assert!(!frames.observe(&ping));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_sent_data_may_answer_it() {
        let earned = EarnedCredit::default();
        let mut frames = FrameBudget::new(earned.clone());
        frames.observe(&[0; PREFACE]);
        let update = frame(8, 0, 4);
        for _ in 0..100_000 {
            earned.sent(40);
            assert!(frames.observe(&update) && frames.observe(&update));
        }
    }

    proptest! {
        #[test]
        fn however_it_is_chopped_it_is_the_same(lengths in proptest::collection::vec((0_u8..12, 0_usize..300), 1..40), size in 1_usize..50) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let _guard = runtime.enter();
            let bytes: Vec<u8> = lengths.iter().flat_map(|&(kind, length)| frame(kind, 0, length)).collect();
            let (mut whole, mut chopped) = (frames(), frames());
            whole.observe(&bytes);
            for piece in bytes.chunks(size) {
                chopped.observe(piece);
            }
            prop_assert_eq!((whole.credit, whole.skip, whole.too_many), (chopped.credit, chopped.skip, chopped.too_many));
        }
    }
}
