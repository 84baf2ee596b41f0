//! Sends the access log to stdout as JSON lines and messages to stderr as text, and never waits for either.

use std::io::{self, IsTerminal};

use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
/// Why a filter is malformed.
pub use tracing_subscriber::filter::ParseError;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The tracing target of access lines.
pub const ACCESS: &str = "access";

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
        .with_writer(access)
        .with_filter(filter_fn(|event| {
            event.target() == ACCESS && *event.level() <= Level::INFO
        }));
    let messages = fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(messages)
        .with_filter(EnvFilter::try_new(filter)?.and(is_access.not()));
    tracing_subscriber::registry().with(access).with(messages).init();
    Ok(Logging {
        dropped,
        _writers: [access_writer, messages_writer],
    })
}

fn writer(to: impl io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(QUEUED_LINES)
        .finish(to)
}

/// At 600 bytes a line, 10 MiB at most.
const QUEUED_LINES: usize = 16_384;
