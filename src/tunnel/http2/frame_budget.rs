//! Bounds the frames of a peer that cost work and carry no bytes of a tunnel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The budget of one connection. It reads the head of every frame that the peer sends (RFC 9113 section 4.1).
///
/// Nine bytes can ask for work: to answer a PING, to apply SETTINGS, to dial for HEADERS that a RST_STREAM cancels
/// (CVE-2023-44487). h2 bounds the memory that such frames hold, but serves most of them at any rate. Here each frame
/// has a price, and a connection that cannot pay it has to end. Credit is earned over time, and by sending to the peer,
/// because the peer answers with WINDOW_UPDATEs and PINGs. The initial credit opens and resets 100 streams at once;
/// then each second's 200 credits pay for 20 more, or for 100 PINGs.
#[derive(Debug)]
pub(super) struct FrameBudget {
    head: Vec<u8>,
    /// The bytes of the preface, or of the current frame's payload, that have not been received yet.
    skip: usize,
    balance: u32,
    /// True if the peer's frames are not charged.
    is_trusted: bool,
    /// The time up to which credit has been added.
    counted_to: Instant,
    earned: Credit,
    /// True if a frame could not be paid for, and the connection has to end.
    pub(super) exhausted: bool,
    /// The peer's SETTINGS so far, without acknowledgements.
    pub(super) settings: u32,
}

/// The credit earned by DATA frames and requests sent since the last refill.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit(Arc<AtomicU32>);

impl Credit {
    /// Adds the credit for `bytes` of a tunnel, which were written in one or more DATA frames.
    pub(super) fn data_sent(&self, bytes: usize) {
        let earned = PER_SENT + u32::try_from(bytes / BYTES_PER_CREDIT).unwrap_or(MAX_CREDIT);
        self.0.fetch_add(earned.min(MAX_CREDIT), Ordering::Relaxed);
    }

    /// Adds the credit for a request, which the peer answers.
    pub(super) fn request_sent(&self) {
        self.0.fetch_add(PER_REQUEST, Ordering::Relaxed);
    }
}

impl FrameBudget {
    /// Creates the budget of a client, whose preface has not been received.
    pub(super) fn of_client(earned: Credit) -> Self {
        Self {
            skip: PREFACE,
            ..Self::of_server(earned)
        }
    }

    /// Creates the budget of a server, which sends no preface before its frames.
    pub(super) fn of_server(earned: Credit) -> Self {
        Self {
            head: Vec::with_capacity(HEAD),
            skip: 0,
            balance: MAX_CREDIT,
            is_trusted: false,
            counted_to: Instant::now(),
            earned,
            exhausted: false,
            settings: 0,
        }
    }

    /// Charges nothing from now on: the peer is trusted, and the frames that untrusted clients cause are not its fault.
    pub(super) fn trust(&mut self) {
        self.is_trusted = true;
    }

    /// Charges the frames that begin in the next bytes of the peer. Returns `false` once the budget is exhausted.
    pub(super) fn charge(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let skipped = bytes.len().min(self.skip);
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let missing = bytes.len().min(HEAD - self.head.len());
            let (head, rest) = bytes.split_at(missing);
            self.head.extend_from_slice(head);
            bytes = rest;
            if let [high, middle, low, kind, flags, ..] = *self.head.as_slice()
                && self.head.len() == HEAD
            {
                self.head.clear();
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.settings = self
                    .settings
                    .saturating_add(u32::from(kind == SETTINGS && flags & ACK == 0));
                self.spend(price(kind, flags, self.skip));
            }
        }
        !self.exhausted
    }

    fn spend(&mut self, price: u32) {
        if self.is_trusted {
            return;
        }
        if self.balance < price {
            self.refill();
        }
        match self.balance.checked_sub(price) {
            Some(left) => self.balance = left,
            None => self.exhausted = true,
        }
    }

    fn refill(&mut self) {
        let elapsed = self.counted_to.elapsed();
        let by_time = u32::try_from(elapsed.as_millis() / PER_CREDIT.as_millis()).unwrap_or(u32::MAX);
        self.counted_to += PER_CREDIT * by_time;
        let by_data = self.earned.0.swap(0, Ordering::Relaxed);
        let earned = by_time.saturating_add(by_data);
        self.balance = self.balance.saturating_add(earned).min(MAX_CREDIT);
    }
}

/// Returns the price of a frame, in proportion to the work that it causes.
fn price(kind: u8, flags: u8, length: usize) -> u32 {
    match kind {
        // It may carry no bytes of a tunnel.
        DATA => u32::from(length == 0 || (flags & PADDED != 0 && length <= MAX_PADDING)),
        HEADERS | RST_STREAM | CONTINUATION => 5,
        SETTINGS => 10,
        PING => 2,
        // PRIORITY, GOAWAY, WINDOW_UPDATE and unknown types, which are ignored.
        _ => 1,
    }
}

/// The bytes before the first frame.
const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const PADDED: u8 = 8;
/// A padded DATA frame of at most this length may hold nothing but padding.
const MAX_PADDING: usize = 256;
/// The credit of a new connection, and the maximum of its balance and of one write's earnings.
const MAX_CREDIT: u32 = 1000;
/// The time for one credit.
const PER_CREDIT: Duration = Duration::from_millis(5);
/// The credit for DATA of any length: a WINDOW_UPDATE for the stream and one for the connection, which simple clients
/// send for every DATA frame, and a PING.
const PER_SENT: u32 = 4;
/// The credit for a request: the peer answers it by HEADERS, opens its window, and resets the stream at its end.
const PER_REQUEST: u32 = 16;
/// The bytes of DATA that earn one credit more: a client that opens its window by the KiB receives frames of 1 KiB, and
/// opens its window again for each.
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
        let mut frames = FrameBudget::of_client(Credit::default());
        assert!(frames.charge(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        frames
    }

    /// Returns the number of these frames that a new connection may send at once.
    fn at_once(frame: &[u8]) -> usize {
        let mut frames = frames();
        (0..100_000).take_while(|_| frames.charge(frame)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn every_kind_of_frame_but_data_is_bounded() {
        for (kind, flags, length, max) in [
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
            assert_eq!(at_once(&frame(kind, flags, length)), max, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn credit_is_earned_by_time_up_to_the_most() {
        let (mut frames, ping) = (frames(), frame(PING, 0, 8));
        for _ in 0..500 {
            assert!(frames.charge(&ping));
        }
        for (pause, pings) in [(1, 100), (3600, 500)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            for _ in 0..pings {
                assert!(frames.charge(&ping), "after {pause} s");
            }
        }
        assert!(!frames.charge(&ping));
    }

    #[tokio::test(start_paused = true)]
    async fn data_sent_to_the_client_earns_the_credit_to_answer_it() {
        let earned = Credit::default();
        let mut frames = FrameBudget::of_client(earned.clone());
        frames.charge(&[0; PREFACE]);
        let update = frame(8, 0, 4);
        for _ in 0..100_000 {
            earned.data_sent(40);
            assert!(frames.charge(&update) && frames.charge(&update));
        }
    }

    proptest! {
        #[test]
        fn the_charge_does_not_depend_on_how_the_bytes_are_split(lengths in proptest::collection::vec((0_u8..12, 0_usize..300), 1..40), size in 1_usize..50) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let _guard = runtime.enter();
            let bytes: Vec<u8> = lengths.iter().flat_map(|&(kind, length)| frame(kind, 0, length)).collect();
            let (mut whole, mut chopped) = (frames(), frames());
            whole.charge(&bytes);
            for piece in bytes.chunks(size) {
                chopped.charge(piece);
            }
            prop_assert_eq!((whole.balance, whole.skip, whole.exhausted), (chopped.balance, chopped.skip, chopped.exhausted));
        }
    }
}
