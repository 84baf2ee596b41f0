//! The access line of a session or of a plain connection, written at its end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::warn;

use crate::daemon::logging::Logs;
use crate::tunnel::direction::Both;

/// The access log of the process, with at most [`MAX_LINES`] lines a second.
#[derive(Debug, Default)]
pub(super) struct AccessLineLimit {
    /// The logs of the process.
    pub(super) logs: Logs,
    second: Mutex<Option<(Instant, u32)>>,
    left_out: AtomicUsize,
}

impl AccessLineLimit {
    /// Creates the access log of a process.
    pub(super) fn new(logs: Logs) -> Self {
        Self {
            logs,
            ..Self::default()
        }
    }

    /// Returns the number of dropped lines.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Logs how many lines were dropped, at the end of the process.
    pub(super) fn report(&self) {
        let left_out = self.left_out();
        if left_out > 0 {
            warn!("{left_out} access lines were left out, as there were more than {MAX_LINES} in a second");
        }
    }

    fn allow(&self, now: Instant) -> bool {
        let mut second = self.second.lock();
        let (begin, written) = second.get_or_insert((now, 0));
        if now.duration_since(*begin) >= Duration::from_secs(1) {
            (*begin, *written) = (now, 0);
        }
        *written += 1;
        let is_admitted = *written <= MAX_LINES;
        if !is_admitted {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }
}

/// The record of one session or plain connection, for its access line.
#[derive(Debug)]
pub(super) struct SessionRecord {
    kind: &'static str,
    id: u64,
    first: SocketAddr,
    last: SocketAddr,
    target: SocketAddr,
    began: Instant,
    attachments: u64,
    /// When the session was detached; `None` while it is attached.
    gap: Option<Instant>,
    gaps: u64,
    longest_gap: Duration,
    total_gap: Duration,
}

impl SessionRecord {
    /// Creates a record for a client that was accepted at `began`.
    pub(super) fn begin(kind: &'static str, id: u64, [client, target]: [SocketAddr; 2], began: Instant) -> Self {
        Self {
            kind,
            id,
            first: client,
            last: client,
            target,
            began,
            attachments: 1,
            gap: None,
            gaps: 0,
            longest_gap: Duration::ZERO,
            total_gap: Duration::ZERO,
        }
    }

    /// Notes that another connection was attached.
    pub(super) fn attached(&mut self, client: SocketAddr, now: Instant) {
        self.last = client;
        self.attachments += 1;
        self.end_gap(now);
    }

    /// Notes that the session was detached.
    pub(super) fn detached(&mut self, now: Instant) {
        if self.gap.is_none() {
            self.gap = Some(now);
            self.gaps += 1;
        }
    }

    /// Writes the line of a session that ended at that time, with the reason and the bytes passed on, unless [`MAX_LINES`]
    /// is exceeded.
    pub(super) fn close(mut self, reason: &str, bytes: Both<u64>, ended: Instant, lines: &AccessLineLimit) {
        self.end_gap(ended);
        if !lines.allow(Instant::now()) {
            return;
        }
        lines.logs.write_access(&json!({
            "kind": self.kind,
            "number": self.id,
            "client.address": self.first.ip(),
            "client.port": self.first.port(),
            "client.last_address": self.last.ip(),
            "client.last_port": self.last.port(),
            "upstream.address": self.target,
            "reason": reason,
            "bytes_sent": bytes.download,
            "bytes_received": bytes.upload,
            "duration_ms": millis(ended.duration_since(self.began)),
            "attachments": self.attachments,
            "gaps": self.gaps,
            "longest_gap_ms": millis(self.longest_gap),
            "total_gap_ms": millis(self.total_gap),
        }));
    }

    fn end_gap(&mut self, now: Instant) {
        if let Some(since) = self.gap.take() {
            let gap = now.duration_since(since);
            self.longest_gap = self.longest_gap.max(gap);
            self.total_gap += gap;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Maximum number of lines per second, about 40 KB: strangers decide how many connections there are.
const MAX_LINES: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_has_a_bound_of_lines() {
        let lines = AccessLineLimit::default();
        for second in 1..3 {
            let now = Instant::now();
            let written = (0..1000).filter(|_| lines.allow(now)).count();
            assert_eq!((written, lines.left_out()), (100, 900 * second));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gaps_are_counted_and_added_up() {
        let client: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let mut record = SessionRecord::begin("session", 1, [client; 2], Instant::now());
        for seconds in [3, 5, 1] {
            record.detached(Instant::now());
            record.detached(Instant::now());
            tokio::time::advance(Duration::from_secs(seconds)).await;
            record.attached(client, Instant::now());
        }
        assert_eq!((record.gaps, record.attachments), (3, 4));
        assert_eq!(
            (record.longest_gap, record.total_gap),
            (Duration::from_secs(5), Duration::from_secs(9))
        );
    }
}
