//! Limits a peer's frames that cost work without moving bytes, as `tunnel/http2/frame_budget.rs` does over HTTP/2.

use std::time::{Duration, Instant};

/// The budget of one connection. Each frame without bytes of a stream costs a credit. Credits are earned with time, and
/// with the bytes that this side sends, because the peer has to acknowledge them.
#[derive(Debug)]
pub(super) struct FrameBudget {
    credit: u64,
    /// The time, and the number of sent bytes, up to which credits have been added.
    counted_to: (Instant, u64),
}

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            credit: INITIAL_CREDIT,
            counted_to: (now, 0),
        }
    }

    /// Charges `frames`. `sent` is the number of the session's bytes that this side has sent so far. Returns `false` if
    /// the budget is exhausted.
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
/// This many acknowledgements may queue in the network while this side is stopped. They take 20 ms of CPU time.
const MAX_CREDIT: u64 = 100_000;
/// The time that earns a credit.
const PER_CREDIT: Duration = Duration::from_millis(5);
/// The bytes that earn a credit. A keystroke is 36 bytes in SSH, and its echo brings an acknowledgement.
const BYTES_PER_CREDIT: u64 = 16;
