//! Logging: access lines to stdout as JSON, messages to stderr as text or JSON, and no wait for a slow reader of either.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
/// Why a filter is malformed.
pub use tracing_subscriber::filter::ParseError;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use self::writer::BatchWriter;
use super::threads::run_within;

mod writer;

/// The form of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line of text for each.
    #[default]
    #[value(help = None::<&str>)]
    Text,
    /// One line of JSON for each, with the fields `timestamp`, `level` and `message`.
    #[value(help = None::<&str>)]
    Json,
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The filter is malformed.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// Stdout or stderr cannot be duplicated.
    #[error("cannot open the logs")]
    Open(#[from] io::Error),
}

/// The running writers. Its drop writes the queued lines.
#[derive(Debug)]
pub struct Logging {
    /// The logs that they write.
    pub logs: Logs,
    writers: Option<[WorkerGuard; 2]>,
}

impl Drop for Logging {
    /// Flushes in a thread, with a limit on the wait: if a queue is full, the drop of its guard prints a message to
    /// stdout, and blocks for as long as the reader stalls.
    fn drop(&mut self) {
        let writers = self.writers.take();
        run_within(FLUSH_TIMEOUT, move || drop(writers));
    }
}

/// The access log of a process, and the count of the lines that both logs have lost. The default value drops all lines.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    access: Option<NonBlocking>,
    queues: Vec<ErrorCounter>,
    unwritten: Arc<AtomicUsize>,
}

impl Logs {
    /// Queues an access line: a JSON object of the time, the level and these members.
    ///
    /// Bypasses tracing, which would pass each member to several writers; access lines need no filters and no spans.
    pub(crate) fn write_access(&self, members: &impl Serialize) {
        let Some(mut queue) = self.access.clone() else {
            return;
        };
        let mut timestamp = String::with_capacity(TIMESTAMP_BYTES);
        // Writing to memory does not fail, and neither does the queue: it counts what it drops.
        SystemTime.format_time(&mut Writer::new(&mut timestamp)).ok();
        let mut line = Vec::with_capacity(LINE_BYTES);
        let stamped = TimestampedLine {
            timestamp: &timestamp,
            level: "INFO",
            members,
        };
        if serde_json::to_writer(&mut line, &stamped).is_ok() {
            line.push(b'\n');
            queue.write_all(&line).ok();
        }
    }

    /// Returns how many lines were dropped so far because a reader did not keep up, or because they could not be written.
    pub fn lines_dropped(&self) -> usize {
        let queues = self.queues.iter().map(ErrorCounter::dropped_lines);
        queues.sum::<usize>() + self.unwritten.load(Ordering::Relaxed)
    }

    /// Starts the writer of one log. Not through `io::stdout`, which keeps what it could not write, and reports success for
    /// a closed descriptor.
    fn open(&mut self, name: &'static str, to: &impl AsFd, queued: usize) -> io::Result<(NonBlocking, WorkerGuard)> {
        let to = File::from(to.as_fd().try_clone_to_owned()?);
        let (queue, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(queued)
            .finish(BatchWriter::new(name, to, Arc::clone(&self.unwritten)));
        self.queues.push(queue.error_counter());
        Ok((queue, guard))
    }
}

/// An access line: its time and level, then the members of its record.
#[derive(Serialize)]
struct TimestampedLine<'a, M> {
    timestamp: &'a str,
    level: &'static str,
    #[serde(flatten)]
    members: &'a M,
}

/// Starts logging for the process. `filter` selects messages, such as `warn` or `debug,h2=warn`, where a level without
/// a name is that of switchboard; other crates are silent unless it names them. It does not apply to access lines.
///
/// Each writer has a queue for `queued` lines, and a thread of its own: a log reader that stalls costs lines, but delays no
/// tunnel. An empty queue takes 32 bytes a line of resident memory.
///
/// # Errors
/// The filter is malformed, or a descriptor is lacking.
pub fn start(filter: &str, format: Format, queued: usize) -> Result<Logging, StartError> {
    let filter = EnvFilter::try_new(directives(filter))?;
    let mut logs = Logs::default();
    let (access, access_writer) = logs.open("access lines", &io::stdout(), queued)?;
    let (messages, messages_writer) = logs.open("messages", &io::stderr(), queued)?;
    logs.access = Some(access);
    let text = fmt::layer().with_writer(messages);
    let messages = match format {
        Format::Text => text.boxed(),
        Format::Json => text
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            // A member `target` would clash with `target.namespace` of access lines in a log store that makes objects
            // of dotted names: collectors put both streams of a container into one index.
            .with_target(false)
            .boxed(),
    };
    tracing_subscriber::registry().with(messages.with_filter(filter)).init();
    Ok(Logging {
        logs,
        writers: Some([access_writer, messages_writer]),
    })
}

/// Returns the directives of a user's filter. A peer can make other crates log at will (h2 warns of each acknowledgement
/// without a PING), so they are silent by default.
fn directives(filter: &str) -> String {
    let mut directives = DEFAULT.to_owned();
    for directive in filter.split(',').filter(|directive| !directive.trim().is_empty()) {
        directives.push(',');
        if directive.trim().parse::<LevelFilter>().is_ok() {
            directives.push_str("switchboard=");
        }
        directives.push_str(directive.trim());
    }
    directives
}

const DEFAULT: &str = "switchboard=info";
/// The drop of the guards takes 2.2 s at most, unless it prints to a stalled stdout.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Such as `2026-01-02T03:04:05.678901Z`.
const TIMESTAMP_BYTES: usize = 27;
/// Most lines are shorter. glibc's cache of a thread has no larger blocks.
const LINE_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_without_a_name_is_that_of_switchboard() {
        for (filter, expected) in [
            ("", "switchboard=info"),
            ("off", "switchboard=info,switchboard=off"),
            ("WARN, h2=debug,", "switchboard=info,switchboard=WARN,h2=debug"),
            ("json", "switchboard=info,json"),
            (
                "kube[request{verb=get}]=trace",
                "switchboard=info,kube[request{verb=get}]=trace",
            ),
        ] {
            assert_eq!(directives(filter), expected);
            EnvFilter::try_new(expected).unwrap();
        }
    }
}
