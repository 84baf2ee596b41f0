//! Sends the access log to stdout as JSON lines and messages to stderr as text, and never waits for either.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
/// Why a filter is malformed.
pub use tracing_subscriber::filter::ParseError;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::tunnel::record::ACCESS;

/// Running writers. Dropping it writes what is queued.
#[derive(Debug)]
pub struct Logging {
    /// Lines that were thrown away because a reader did not keep up.
    pub dropped: Dropped,
    _writers: [WorkerGuard; 2],
}

/// Counts lines thrown away by both writers.
#[derive(Clone, Debug)]
pub struct Dropped([ErrorCounter; 2]);

impl Dropped {
    /// Lines so far.
    pub fn lines(&self) -> usize {
        self.0.iter().map(ErrorCounter::dropped_lines).sum()
    }
}

/// Starts logging for the process; `filter` says which messages are wanted, such as `info` or `warn,switchboard=debug`.
///
/// Each writer has a bounded queue and a thread of its own: a log reader that stalls costs lines, never a tunnel.
///
/// # Errors
/// The filter is malformed.
pub fn start(filter: &str) -> Result<Logging, ParseError> {
    let (access, access_writer) = writer(io::stdout());
    let (messages, messages_writer) = writer(io::stderr());
    let dropped = Dropped([access.error_counter(), messages.error_counter()]);
    let is_access = filter_fn(|event| event.target() == ACCESS);
    let access = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        // A field "target" would clash with "target.namespace" where a log store makes objects of dotted names.
        .with_target(false)
        .with_writer(access)
        .with_filter(filter_fn(|event| {
            event.target() == ACCESS && *event.level() <= Level::INFO
        }));
    let messages = fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(messages)
        .with_filter(EnvFilter::try_new(format!("{QUIET}{filter}"))?.and(is_access.not()));
    tracing_subscriber::registry().with(access).with(messages).init();
    Ok(Logging {
        dropped,
        _writers: [access_writer, messages_writer],
    })
}

fn writer(to: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(QUEUED_LINES)
        .finish(Gathered(BufWriter::with_capacity(WRITTEN_AT_ONCE, to)))
}

/// Writes what is queued in few writes, and rests after that.
///
/// The writer's thread flushes when its queue is empty. While it rests, lines queue up and nobody has to wake it: a
/// wake-up and a write for each line were a tenth of what a tunnel costs at 10,000 tunnels a second. A line that comes
/// alone is written at once.
struct Gathered<W: Write>(BufWriter<W>);

impl<W: Write> Write for Gathered<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        thread::sleep(REST);
        flushed
    }
}

/// What is off unless a filter asks for it: kube reports every failed request as an error, and we report outages.
const QUIET: &str = "kube_client=off,";
/// At 600 bytes a line, 10 MiB at most.
const QUEUED_LINES: usize = 16_384;
const WRITTEN_AT_ONCE: usize = 64 * 1024;
/// Of the queue, 10 ms hold the lines of 1.6 million tunnels a second.
const REST: Duration = Duration::from_millis(10);
