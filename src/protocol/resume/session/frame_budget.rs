//! Bounds the frames of a peer that cost work and move no byte of a stream, as `proxy/http/http2/frame_budget.rs` does over HTTP/2.

use std::time::{Duration, Instant};

/// The budget of one connection. Each such frame takes a credit. Credit comes with time, and with the bytes that this side sends,
/// which are acknowledged.
#[derive(Debug)]
pub(super) struct FrameBudget {
    credit: u64,
    /// The time, and the bytes sent, up to which credit has been added.
    counted_to: (Instant, u64),
}

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            credit: INITIAL_CREDIT,
            counted_to: (now, 0),
        }
    }

    /// Charges so many frames to a connection whose side has sent so many bytes of its stream. False once the budget is exhausted.
    pub(super) fn charge(&mut self, frames: u32, sent: u64, now: Instant) -> bool {
        let (time, bytes) = self.counted_to;
        let by_time = now.saturating_duration_since(time).as_millis() / PER_CREDIT.as_millis();
        let by_time = u32::try_from(by_time).unwrap_or(u32::MAX);
        self.counted_to = (time + PER_CREDIT * by_time, bytes.max(sent));
        let earned = u64::from(by_time) + sent.saturating_sub(bytes) / BYTES_PER_CREDIT;
        let credit = self.credit.saturating_add(earned).min(MAX_CREDIT);
        let left = credit.checked_sub(frames.into());
        self.credit = left.unwrap_or_default();
        left.is_some()
    }
}

const INITIAL_CREDIT: u64 = 1000;
/// As many acknowledgements may wait in the network while this side is stopped. They take 20 ms of a processor.
const MAX_CREDIT: u64 = 100_000;
/// The time for one credit.
const PER_CREDIT: Duration = Duration::from_millis(5);
/// A keystroke has 36 bytes in SSH, and its echo brings an acknowledgement.
const BYTES_PER_CREDIT: u64 = 16;
