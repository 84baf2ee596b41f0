//! Bounds the work that a stream makes for its reader, who stops for a moment where there would be more.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::request::ReplicaError;

/// The work of one stream. It is counted in bytes: those that came, and as many for each line and each read as these cost.
#[derive(Debug)]
pub(super) struct Pace {
    second_began: Instant,
    /// The work since then, in bytes of JSON.
    work: usize,
    /// How many seconds in a row were full.
    full_seconds: u32,
}

impl Pace {
    /// Of a stream that begins.
    pub(super) fn start() -> Self {
        Self {
            second_began: Instant::now(),
            work: 0,
            full_seconds: 0,
        }
    }

    /// Notes what a read has given, and waits until there may be more. What is not read meanwhile waits at the sender.
    ///
    /// # Errors
    /// There was too much for a minute.
    pub(super) async fn keep(&mut self, data: &[u8]) -> Result<(), ReplicaError> {
        if self.second_began.elapsed() >= SECOND {
            self.begin_second(0);
        }
        let lines = data.iter().filter(|byte| **byte == b'\n').count();
        self.work += data.len() + (1 + lines) * COST;
        if self.work < MOST_A_SECOND {
            return Ok(());
        }
        if self.full_seconds >= LONGEST_FLOOD {
            return Err(ReplicaError::LimitExceeded(
                "its events are given up: for a minute they were more than 16 MiB a second".to_owned(),
            ));
        }
        sleep_until(self.second_began + SECOND).await;
        self.begin_second(self.full_seconds + 1);
        Ok(())
    }

    fn begin_second(&mut self, full_seconds: u32) {
        (self.second_began, self.work, self.full_seconds) = (Instant::now(), 0, full_seconds);
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// An event of the proxy is 3 KiB of it: 5,000 of them.
const MOST_A_SECOND: usize = 16 << 20;
/// A line, and a read, take about as long as so many bytes of JSON.
const COST: usize = 512;
/// Full seconds, one after the other.
const LONGEST_FLOOD: u32 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many reads of that are made within a minute of the clock.
    async fn reads_in_a_minute(data: &[u8]) -> usize {
        let (start, mut pace, mut reads) = (Instant::now(), Pace::start(), 0);
        while start.elapsed() < Duration::from_mins(1) {
            pace.keep(data).await.unwrap();
            reads += 1;
        }
        reads
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_stops_where_bytes_lines_or_reads_are_too_many() {
        assert_eq!(reads_in_a_minute(&[b'x'; 32 << 10]).await, 60 * 505);
        assert_eq!(reads_in_a_minute(&[b'\n'; 1 << 10]).await, 60 * 32);
        assert_eq!(reads_in_a_minute(b":").await, 60 * 32_705);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_given_up_after_a_minute_and_a_burst_is_not() {
        let mut pace = Pace::start();
        let burst = [b'\n'; 33 << 10];
        for _ in 0..3 {
            for _ in 0..LONGEST_FLOOD {
                pace.keep(&burst).await.unwrap();
            }
            tokio::time::sleep(SECOND).await;
            pace.keep(b"event: opened\n").await.unwrap();
        }
        let start = Instant::now();
        while pace.keep(&burst).await.is_ok() {}
        assert_eq!(start.elapsed().as_secs(), u64::from(LONGEST_FLOOD));
    }

    #[tokio::test(start_paused = true)]
    async fn events_as_a_proxy_has_them_do_not_wait() {
        let (start, mut pace) = (Instant::now(), Pace::start());
        let event = format!("event: closed\ndata: {{\"tunnel_id\": \"{}\"}}\n\n", "x".repeat(1000));
        for _ in 0..5000 {
            pace.keep(event.as_bytes()).await.unwrap();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
