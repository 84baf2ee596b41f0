//! Logging: access lines to stdout as JSON, messages to stderr as text or JSON, and no wait for a slow reader of either.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
/// Why a filter is malformed.
pub use tracing_subscriber::filter::ParseError;
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use self::access_line::ACCESS;
use self::json_line::JsonLine;
use self::writer::{BatchWriter, Lost};
use super::threads::run_within;

pub(crate) mod access_line;
mod json_line;
mod writer;

/// The form of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One line of text for each.
    #[default]
    Text,
    /// One line of JSON for each, with the fields `timestamp`, `level` and `message`.
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
    /// The count of lines dropped because a reader did not keep up, or because they could not be written.
    pub dropped: Dropped,
    writers: Option<[WorkerGuard; 2]>,
}

impl Drop for Logging {
    /// In a thread, with a limit on the wait: the drop of a guard whose queue is full prints that to stdout, for which
    /// it would wait as long as the reader stalls.
    fn drop(&mut self) {
        let writers = self.writers.take();
        run_within(LONGEST_FLUSH, move || drop(writers));
    }
}

/// The count of lines that both writers have dropped.
#[derive(Clone, Debug)]
pub struct Dropped([(ErrorCounter, Lost); 2]);

impl Dropped {
    /// The lines dropped so far.
    pub fn lines(&self) -> usize {
        let of_one = |(queue, lost): &(ErrorCounter, Lost)| queue.dropped_lines() + lost.lines();
        self.0.iter().map(of_one).sum()
    }
}

/// The count of log lines dropped so far.
pub type LogLinesDropped = Box<dyn Fn() -> usize + Send + Sync>;

/// Starts logging for the process. `filter` selects messages, such as `warn` or `debug,h2=warn`, where a level without
/// a name is that of switchboard; other crates are silent unless it names them. It does not apply to access lines.
///
/// Each writer has a queue for so many lines, and a thread of its own: a log reader that stalls costs lines, but delays no
/// tunnel. An empty queue takes 32 bytes a line of resident memory.
///
/// # Errors
/// The filter is malformed, or a descriptor is lacking.
pub fn start(filter: &str, format: Format, queued: usize) -> Result<Logging, StartError> {
    let filter = EnvFilter::try_new(directives(filter))?;
    let (access, access_writer, access_dropped) = writer("access lines", &io::stdout(), queued)?;
    let (messages, messages_writer, messages_dropped) = writer("messages", &io::stderr(), queued)?;
    let is_access = filter_fn(|event| event.target() == ACCESS);
    let access = fmt::layer()
        // Without a field "target": it would clash with "target.namespace" where a log store makes objects of dotted names.
        .event_format(JsonLine)
        .with_writer(access)
        .with_filter(filter_fn(|event| {
            event.target() == ACCESS && *event.level() <= Level::INFO
        }));
    let text = fmt::layer().with_writer(messages);
    let messages = match format {
        Format::Text => text.boxed(),
        // As above: collectors put both streams of a container into one index.
        Format::Json => text.event_format(JsonLine).boxed(),
    };
    let messages = messages.with_filter(filter.and(is_access.not()));
    tracing_subscriber::registry().with(access).with(messages).init();
    Ok(Logging {
        dropped: Dropped([access_dropped, messages_dropped]),
        writers: Some([access_writer, messages_writer]),
    })
}

/// The directives of a user's filter. A peer can have other crates log what it likes (h2 warns of each PING that it did
/// not send), so they are silent by default.
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

/// Not by `io::stdout`, which keeps what it could not write, and says that it has written to a descriptor which is closed.
fn writer(
    name: &'static str,
    to: &impl AsFd,
    queued: usize,
) -> io::Result<(NonBlocking, WorkerGuard, (ErrorCounter, Lost))> {
    let to = File::from(to.as_fd().try_clone_to_owned()?);
    let writer = BatchWriter::new(name, to);
    let lost = writer.lost();
    let (queue, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(queued)
        .finish(writer);
    let dropped = (queue.error_counter(), lost);
    Ok((queue, guard, dropped))
}

const DEFAULT: &str = "switchboard=info";
/// The drop of the guards takes 2.2 s at most where it does not print.
const LONGEST_FLUSH: Duration = Duration::from_secs(3);

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
