//! Writes queued log lines in batches, and counts those that cannot be written.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::error;

use crate::base::platform::mark_vital;

/// A writer that gets one whole line at a time.
///
/// The thread of its queue flushes when the queue is empty. During the pause after that, lines queue up without a
/// wake-up of the thread: a wake-up and a write(2) for each line were a tenth of the cost of a tunnel at 10,000 tunnels
/// a second. A line that comes after the pause is written without delay.
#[derive(Debug)]
pub(super) struct BatchWriter<W> {
    /// The name of the log in messages.
    name: &'static str,
    to: W,
    batch: Vec<u8>,
    /// True if the last byte that was written is within a line, whose rest is lost.
    is_within_line: bool,
    last_report: Option<Instant>,
    /// The count of lines that could not be written.
    lost: Arc<AtomicUsize>,
}

impl<W: Write> BatchWriter<W> {
    pub(super) fn new(name: &'static str, to: W, lost: Arc<AtomicUsize>) -> Self {
        Self {
            name,
            to,
            batch: Vec::with_capacity(BATCH_BYTES),
            is_within_line: false,
            last_report: None,
            lost,
        }
    }

    /// Writes the batch. Its lines are gone afterwards, written or lost.
    fn write_batch(&mut self) {
        let is_after_fragment = self.is_within_line && !self.batch.is_empty();
        if is_after_fragment {
            self.batch.insert(0, b'\n');
        }
        let mut rest = self.batch.as_slice();
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(count) if count > 0 => {
                    self.is_within_line = rest.get(count - 1) != Some(&b'\n');
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process that shares the open file may have made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                failed => {
                    let ends = rest.iter().filter(|byte| **byte == b'\n').count();
                    // The line of the fragment is counted already.
                    let counted = usize::from(is_after_fragment && rest.len() == self.batch.len());
                    self.lost.fetch_add(ends - counted, Ordering::Relaxed);
                    if self.last_report.is_none_or(|last| last.elapsed() > BETWEEN_REPORTS) {
                        self.last_report = Some(Instant::now());
                        let error = failed.err().unwrap_or(ErrorKind::WriteZero.into());
                        error!(%error, "{} cannot be written: {REPORT}", self.name);
                    }
                    break;
                }
            }
        }
        self.batch.clear();
    }
}

impl<W: Write> Write for BatchWriter<W> {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.batch.len() + line.len() > BATCH_BYTES {
            self.write_batch();
        }
        self.batch.extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        mark_vital();
        self.write_batch();
        thread::sleep(PAUSE);
        Ok(())
    }
}

const REPORT: &str = "they are lost, and counted in switchboard_log_lines_dropped_total";
const BATCH_BYTES: usize = 64 * 1024;
/// The queue fills within it only at 1.6 million tunnels a second.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two messages about lost lines.
const BETWEEN_REPORTS: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes that many bytes, then fails.
    struct Disk {
        bytes: Vec<u8>,
        space: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fitting = bytes.len().min(self.space - self.bytes.len());
            if fitting == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..fitting]);
            Ok(fitting)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(writer: &mut BatchWriter<Disk>, lines: &[&str]) {
        for line in lines {
            writer.write_all(line.as_bytes()).unwrap();
        }
        writer.flush().unwrap();
    }

    #[test]
    fn lines_that_are_not_written_whole_are_counted_and_later_ones_are_written() {
        let disk = Disk {
            bytes: Vec::new(),
            space: 8,
        };
        let mut writer = BatchWriter::new("lines", disk, Arc::default());
        log(&mut writer, &["one\n", "two\n", "three\n"]);
        assert_eq!(writer.lost.load(Ordering::Relaxed), 1);
        log(&mut writer, &["four\n"]);
        assert_eq!(writer.lost.load(Ordering::Relaxed), 2);
        writer.to.space = 10;
        log(&mut writer, &["five\n"]);
        assert_eq!(writer.lost.load(Ordering::Relaxed), 3);
        writer.to.space = 100;
        log(&mut writer, &["six\n", "seven\n"]);
        assert_eq!(writer.lost.load(Ordering::Relaxed), 3);
        assert_eq!(writer.to.bytes, b"one\ntwo\nfi\nsix\nseven\n");
    }

    #[test]
    fn more_than_a_batch_is_written_in_order() {
        let disk = Disk {
            bytes: Vec::new(),
            space: usize::MAX,
        };
        let mut writer = BatchWriter::new("lines", disk, Arc::default());
        let lines: Vec<String> = (0..20_000).map(|number| format!("{number}\n")).collect();
        log(&mut writer, &lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(writer.to.bytes == lines.concat().as_bytes());
        assert_eq!(writer.lost.load(Ordering::Relaxed), 0);
    }
}
