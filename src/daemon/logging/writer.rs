//! Writes queued log lines in batches, and counts those that cannot be written.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use crate::daemon::vital;

/// A writer of whole lines, which it is given one by one.
///
/// The thread of its queue flushes when the queue is empty. During the pause after that, lines queue up without a
/// wake-up of the thread: a wake-up and a write(2) for each line were a tenth of the cost of a tunnel at 10,000 tunnels
/// a second. A single line is written at once.
#[derive(Debug)]
pub(super) struct BatchWriter<W> {
    /// The name of the log in messages.
    name: &'static str,
    to: W,
    batch: Vec<u8>,
    /// The end of each line in the batch.
    ends: Vec<usize>,
    /// The last write ended in the middle of a line.
    is_torn: bool,
    outage: Option<Outage>,
    last_report: Option<Instant>,
    lost: Lost,
}

/// The count of lines that could not be written.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost(Arc<AtomicUsize>);

impl Lost {
    pub(super) fn lines(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time from a failed write to the next one that succeeds.
#[derive(Debug)]
struct Outage {
    lost: usize,
    is_reported: bool,
}

impl<W: Write> BatchWriter<W> {
    pub(super) fn new(name: &'static str, to: W) -> Self {
        Self {
            name,
            to,
            batch: Vec::with_capacity(BATCH_BYTES),
            ends: Vec::new(),
            is_torn: false,
            outage: None,
            last_report: None,
            lost: Lost::default(),
        }
    }

    pub(super) fn lost(&self) -> Lost {
        self.lost.clone()
    }

    /// Writes the batch. Its lines are gone afterwards, written or lost.
    fn write_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut written = 0;
        let result = write_all(&mut self.to, &self.batch, &mut written);
        let lost = self.ends.iter().filter(|end| **end > written).count();
        if let Some(last) = written.checked_sub(1).and_then(|last| self.batch.get(last)) {
            self.is_torn = *last != b'\n';
        }
        self.batch.clear();
        self.ends.clear();
        match result {
            Ok(()) => self.succeeded(),
            Err(error) => self.failed(lost, &error),
        }
    }

    fn failed(&mut self, lost: usize, error: &io::Error) {
        self.lost.0.fetch_add(lost, Ordering::Relaxed);
        if let Some(outage) = &mut self.outage {
            outage.lost += lost;
            return;
        }
        let is_due = self.last_report.is_none_or(|last| last.elapsed() > BETWEEN_REPORTS);
        if is_due {
            self.last_report = Some(Instant::now());
            error!(
                %error,
                "{} cannot be written: they are lost, and counted in switchboard_log_lines_dropped", self.name
            );
        }
        self.outage = Some(Outage {
            lost,
            is_reported: is_due,
        });
    }

    fn succeeded(&mut self) {
        if let Some(Outage {
            lost,
            is_reported: true,
        }) = self.outage.take()
        {
            warn!(lost, "{} are written again", self.name);
        }
    }
}

impl<W: Write> Write for BatchWriter<W> {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.batch.len() + line.len() > BATCH_BYTES {
            self.write_batch();
        }
        if self.batch.is_empty() && self.is_torn {
            self.batch.push(b'\n');
        }
        self.batch.extend_from_slice(line);
        self.ends.push(self.batch.len());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        vital::mark();
        self.write_batch();
        thread::sleep(PAUSE);
        Ok(())
    }
}

/// As [`Write::write_all`], with the number of bytes that were written before an error.
fn write_all(to: &mut impl Write, bytes: &[u8], written: &mut usize) -> io::Result<()> {
    while let Some(rest) = bytes.get(*written..).filter(|rest| !rest.is_empty()) {
        match to.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => *written += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Another process may have made the open file, which it shares, non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const BATCH_BYTES: usize = 64 * 1024;
/// The queue holds the lines of 10 ms at 1.6 million tunnels a second.
const PAUSE: Duration = Duration::from_millis(10);
/// A disk that is full now and then is reported this often.
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
    fn a_torn_line_is_lost_and_the_next_one_begins_anew() {
        let mut writer = BatchWriter::new(
            "lines",
            Disk {
                bytes: Vec::new(),
                space: 8,
            },
        );
        log(&mut writer, &["one\n", "two\n", "three\n"]);
        assert_eq!(writer.lost().lines(), 1);
        log(&mut writer, &["four\n"]);
        assert_eq!(writer.lost().lines(), 2);
        writer.to.space = 10;
        log(&mut writer, &["five\n"]);
        assert_eq!(writer.lost().lines(), 3);
        writer.to.space = 100;
        log(&mut writer, &["six\n", "seven\n"]);
        assert_eq!(writer.lost().lines(), 3);
        assert_eq!(writer.to.bytes, b"one\ntwo\nfi\nsix\nseven\n");
    }

    #[test]
    fn more_than_a_batch_is_written_in_order() {
        let mut writer = BatchWriter::new(
            "lines",
            Disk {
                bytes: Vec::new(),
                space: usize::MAX,
            },
        );
        let lines: Vec<String> = (0..20_000).map(|number| format!("{number}\n")).collect();
        log(&mut writer, &lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(writer.to.bytes == lines.concat().as_bytes());
        assert_eq!(writer.lost().lines(), 0);
    }
}
