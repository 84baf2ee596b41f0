//! Bounds the frames of a peer that cost work and carry no bytes of a tunnel.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::recv_queue::OpenStreams;
use super::{MAX_RESET_STREAMS, RESET_TIME};

/// The budget of one connection. It reads the head of every frame that the peer sends (RFC 9113 section 4.1).
///
/// Nine bytes can ask for work: to answer a PING, to apply SETTINGS, to dial for HEADERS that a RST_STREAM cancels
/// (CVE-2023-44487). h2 bounds the memory that such frames hold, but serves most of them at any rate. Here each frame
/// has a price, and a connection that cannot pay it has to end. Credit is earned over time, and by sending to the peer,
/// because the peer answers with WINDOW_UPDATEs and PINGs. The initial credit opens and resets 100 streams at once;
/// then each second's 200 credits pay for 20 more, or for 100 PINGs.
///
/// Frames of a stream that has ended here are the peer's right while they are under way (section 5.1): they are free, up
/// to [`MAX_RESET_STREAMS`] streams in [`RESET_TIME`].
#[derive(Debug)]
pub(super) struct FrameBudget {
    /// The head of the next frame, as far as it has been received and not passed on.
    head: Vec<u8>,
    /// True if `head` is complete: the rest of it is passed on next.
    pub(super) has_head: bool,
    /// The bytes of the preface, or of the current frame's payload, that have not been received yet.
    skip: usize,
    balance: u32,
    /// The maximum of the balance.
    max: u32,
    /// True if the peer's frames are not charged.
    is_trusted: bool,
    /// The time up to which credit has been added.
    counted_to: Instant,
    earned: Credit,
    /// True if a frame could not be paid for, and the connection has to end.
    pub(super) exhausted: bool,
    /// The peer's SETTINGS so far, without acknowledgements.
    pub(super) settings: u32,
    /// The small DATA frames that h2 has received since the streams last took theirs over.
    small: usize,
    /// The streams in use.
    pub(super) streams: OpenStreams,
    /// The ended streams on which DATA has arrived since `ended_since`.
    ended: HashSet<u32>,
    ended_since: Instant,
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
            max: MAX_CREDIT,
            ..Self::of_server(earned)
        }
    }

    /// Creates the budget of a server, which sends no preface before its frames. The many clients that share it may
    /// cause its frames at once, so it keeps all that was earned by sending.
    pub(super) fn of_server(earned: Credit) -> Self {
        Self {
            head: Vec::with_capacity(HEAD),
            has_head: false,
            skip: 0,
            balance: MAX_CREDIT,
            max: u32::MAX,
            is_trusted: false,
            counted_to: Instant::now(),
            earned,
            exhausted: false,
            settings: 0,
            small: 0,
            streams: OpenStreams::default(),
            ended: HashSet::new(),
            ended_since: Instant::now(),
        }
    }

    /// Charges nothing from now on: the peer is trusted, and the frames that untrusted clients cause are not its fault.
    pub(super) fn trust(&mut self) {
        self.is_trusted = true;
    }

    /// Returns whether nothing more is passed on: the budget is exhausted, or waits for
    /// [`hand_over_small_frames`](Self::hand_over_small_frames).
    pub(super) fn is_blocked(&self) -> bool {
        self.exhausted || self.small >= MAX_SMALL
    }

    /// Lets the streams take over their small frames once there are many: each waits in h2 with many times its size.
    pub(super) fn hand_over_small_frames(&mut self) {
        if self.small >= MAX_SMALL {
            self.small = 0;
            self.streams.receive_all();
        }
    }

    /// Passes the next bytes of the peer on, as many as fit, and charges the frames that begin in them. Returns how many
    /// it has taken. Leaves out DATA frames that say nothing: h2 ends a connection at its 101st.
    pub(super) fn pass(&mut self, bytes: &[u8], to: &mut ReadBuf<'_>) -> usize {
        let mut rest = bytes;
        while to.remaining() > 0 && !self.is_blocked() && (self.has_head || !rest.is_empty()) {
            if self.has_head {
                let now = self.head.len().min(to.remaining());
                to.put_slice(self.head.get(..now).unwrap_or_default());
                self.head.drain(..now);
                self.has_head = !self.head.is_empty();
                continue;
            }
            let is_head = self.skip == 0;
            let wanted = if is_head {
                HEAD - self.head.len()
            } else {
                self.skip.min(to.remaining())
            };
            let (now, later) = rest.split_at(wanted.min(rest.len()));
            rest = later;
            if is_head {
                self.head.extend_from_slice(now);
                self.begin_frame();
            } else {
                self.skip -= now.len();
                to.put_slice(now);
            }
        }
        bytes.len() - rest.len()
    }

    /// Charges the frame whose head is complete.
    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, a, b, c, d] = *self.head.as_slice() else {
            return;
        };
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.skip = length;
        self.settings = self
            .settings
            .saturating_add(u32::from(kind == SETTINGS && flags & ACK == 0));
        self.spend(price(kind, flags, length));
        self.has_head = kind != DATA || length > 0 || flags & (END_STREAM | PADDED) != 0;
        if !self.has_head {
            self.head.clear();
        } else if kind == DATA {
            // h2 gives the window of padding back at once, and keeps its memory with the payload.
            let padding = if flags & PADDED == 0 { 0 } else { MAX_PADDING };
            self.small += usize::from(length < SMALL + padding);
            // Without the reserved bit (RFC 9113 section 4.1).
            self.note_stream(u32::from_be_bytes([a & 0x7f, b, c, d]));
        }
    }

    /// Notes DATA on a stream. On one that has ended, h2 ignores it, or answers it if it has forgotten the stream.
    fn note_stream(&mut self, stream: u32) {
        if self.streams.is_open(stream) || !self.ended.insert(stream) {
            return;
        }
        if self.ended_since.elapsed() > RESET_TIME {
            (self.ended, self.ended_since) = (HashSet::from([stream]), Instant::now());
        }
        if self.ended.len() > MAX_RESET_STREAMS {
            self.spend(PER_ENDED);
        }
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
        let rested = self.balance.saturating_add(by_time).min(MAX_CREDIT);
        self.balance = rested.saturating_add(by_data).min(self.max);
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
const END_STREAM: u8 = 1;
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
/// The price of DATA on one more stream that has ended, beyond those that are free: h2 answers it by RST_STREAM.
const PER_ENDED: u32 = 5;
/// DATA frames of fewer bytes are small.
const SMALL: usize = 256;
/// The small frames that may wait in h2: 1 MiB of memory, and one read of the socket has no more.
pub(super) const MAX_SMALL: usize = 4000;
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
        assert!(charge(&mut frames, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        frames
    }

    /// Returns the bytes that are passed on, `room` at a time.
    fn pass(frames: &mut FrameBudget, mut bytes: &[u8], room: usize) -> Vec<u8> {
        let (mut passed, mut memory) = (Vec::new(), vec![0; room]);
        while (!bytes.is_empty() || frames.has_head) && !frames.exhausted {
            let mut to = ReadBuf::new(&mut memory);
            bytes = &bytes[frames.pass(bytes, &mut to)..];
            passed.extend(to.filled());
            frames.hand_over_small_frames();
        }
        passed
    }

    /// Returns whether the bytes could be paid for.
    fn charge(frames: &mut FrameBudget, bytes: &[u8]) -> bool {
        pass(frames, bytes, 512);
        !frames.exhausted
    }

    /// Returns the number of these frames that a new connection may send at once.
    fn at_once(frame: &[u8]) -> usize {
        let mut frames = frames();
        (0..100_000).take_while(|_| charge(&mut frames, frame)).count()
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
            assert!(charge(&mut frames, &ping));
        }
        for (pause, pings) in [(1, 100), (3600, 500)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            for _ in 0..pings {
                assert!(charge(&mut frames, &ping), "after {pause} s");
            }
        }
        assert!(!charge(&mut frames, &ping));
    }

    #[tokio::test(start_paused = true)]
    async fn data_sent_to_the_client_earns_the_credit_to_answer_it() {
        let earned = Credit::default();
        let mut frames = FrameBudget::of_client(earned.clone());
        charge(&mut frames, &[0; PREFACE]);
        let update = frame(8, 0, 4);
        for _ in 0..100_000 {
            earned.data_sent(40);
            assert!(charge(&mut frames, &update) && charge(&mut frames, &update));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_of_streams_that_have_ended_are_free_for_a_time_on_4000_streams() {
        let on = |stream: u32| [&[0, 0, 1, DATA, 0][..], &stream.to_be_bytes(), b"x"].concat();
        let mut frames = frames();
        let mut free = |count| {
            (1..1_000_000)
                .take_while(|stream| charge(&mut frames, &on(*stream)))
                .take(count)
                .count()
        };
        assert_eq!(free(4200), 4200);
        assert_eq!(free(4200), 4200, "those were charged");
        tokio::time::advance(RESET_TIME * 2).await;
        assert_eq!(free(usize::MAX), 4200 + 4000 + 200);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_shared_connection_earns_at_once_is_not_lost() {
        let earned = Credit::default();
        let mut frames = FrameBudget::of_server(earned.clone());
        for _ in 0..1000 {
            earned.request_sent();
        }
        let answer = [frame(HEADERS, 4, 1), frame(RST_STREAM, 0, 4)].concat();
        assert!(charge(&mut frames, &answer.repeat(1000)));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!charge(&mut frames, &answer.repeat(1000)));
    }

    proptest! {
        #[test]
        fn the_charge_does_not_depend_on_how_the_bytes_are_split(lengths in proptest::collection::vec((0_u8..12, 0_usize..300), 1..40), size in 1_usize..50) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let _guard = runtime.enter();
            let bytes: Vec<u8> = lengths.iter().flat_map(|&(kind, length)| frame(kind, 0, length)).collect();
            let (mut whole, mut chopped) = (frames(), frames());
            let passed = pass(&mut whole, &bytes, bytes.len());
            let mut pieces = Vec::new();
            for piece in bytes.chunks(size) {
                pieces.extend(pass(&mut chopped, piece, 1 + size / 2));
            }
            let said = |&(kind, length): &(u8, usize)| kind != DATA || length > 0;
            let expected: Vec<u8> = lengths.iter().filter(|next| said(next)).flat_map(|&(kind, length)| frame(kind, 0, length)).collect();
            prop_assert!(whole.exhausted || (passed == expected && pieces == expected));
            prop_assert_eq!((whole.balance, whole.skip, whole.exhausted), (chopped.balance, chopped.skip, chopped.exhausted));
        }
    }
}
