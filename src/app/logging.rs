//! Logging: access lines to stdout as JSON, messages to stderr as text, and no wait for a slow reader of either.

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

/// The running writers. Its drop writes the queued lines.
#[derive(Debug)]
pub struct Logging {
    /// The count of lines dropped because a reader did not keep up.
    pub dropped: Dropped,
    _writers: [WorkerGuard; 2],
}

/// The count of lines that both writers have dropped.
#[derive(Clone, Debug)]
pub struct Dropped([ErrorCounter; 2]);

impl Dropped {
    /// The lines dropped so far.
    pub fn lines(&self) -> usize {
        self.0.iter().map(ErrorCounter::dropped_lines).sum()
    }
}

/// Starts logging for the process. `filter` selects messages, such as `info` or `warn,switchboard=debug`; it does not
/// apply to access lines.
///
/// Each writer has a bounded queue and a thread of its own: a log reader that stalls costs lines, but delays no tunnel.
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
        .finish(BatchWriter(BufWriter::with_capacity(BATCH_BYTES, to)))
}

/// Writes queued lines in batches, with a pause after each.
///
/// The writer's thread flushes when its queue is empty. During the pause lines queue up without a wake-up of the thread:
/// a wake-up and a write(2) for each line were a tenth of the cost of a tunnel at 10,000 tunnels a second. A single line
/// is written at once.
struct BatchWriter<W: Write>(BufWriter<W>);

impl<W: Write> Write for BatchWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        thread::sleep(PAUSE);
        flushed
    }
}

/// Off unless a filter names it: kube logs every failed request as an error, and the reconciler logs outages itself.
const QUIET: &str = "kube_client=off,";
/// At 600 bytes a line, 10 MiB at most.
const QUEUED_LINES: usize = 16_384;
const BATCH_BYTES: usize = 64 * 1024;
/// The queue holds the lines of 10 ms at 1.6 million tunnels a second.
const PAUSE: Duration = Duration::from_millis(10);
