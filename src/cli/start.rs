//! The start of the programs that serve: their logs, their runtime, and their end by a signal.

use std::error::Error;
use std::fs::File;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use switchboard::base::platform::outlive_the_limit_of_a_file;
use switchboard::daemon::logging::{self, Logging, ParseError};
use switchboard::daemon::process_size::ProcessSize;
use switchboard::daemon::{calls, threads, vital};
use tokio::runtime::{self, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{USAGE, to_stderr};

/// The flags of the logs.
#[derive(Args)]
pub(crate) struct LogFlags {
    /// Filter of the messages on stderr, such as `warn` or `debug,h2=warn`: other crates are silent unless named
    #[arg(long, env = "SWITCHBOARD_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
    /// Form of the messages on stderr
    #[arg(long, env = "SWITCHBOARD_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: Format,
}

/// Lines, or JSON.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

impl From<Format> for logging::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

/// Starts the runtime and the logs of a program that serves.
pub(crate) fn start(log: &LogFlags, size: ProcessSize) -> anyhow::Result<(Runtime, Logging)> {
    calls::unblock_signals().context("cannot unblock signals")?;
    vital::watch();
    vital::mark();
    let workers = threads::workers(size.workers);
    try_descriptors().context("cannot open the files of a start, see RLIMIT_NOFILE")?;
    calls::try_calls()?;
    let logging = start_logging(log, size.queued_lines)?;
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(workers.get())
        .enable_all()
        .on_thread_park(vital::mark)
        .build()
        .context("cannot start the runtime")?;
    {
        let _entered = runtime.enter();
        outlive_the_limit_of_a_file();
    }
    Ok((runtime, logging))
}

/// Tries whether there are descriptors for a start: Tokio panics where it has none for its signals.
fn try_descriptors() -> std::io::Result<()> {
    let tried: std::io::Result<Vec<File>> = (0..FIRST_DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    tried.map(drop)
}

fn start_logging(flags: &LogFlags, queued: usize) -> anyhow::Result<Logging> {
    logging::start(&flags.log, flags.log_format.into(), queued).map_err(|error| match error {
        logging::StartError::Filter(fault) => anyhow::Error::new(fault).context("--log"),
        logging::StartError::Open(_) => error.into(),
    })
}

/// An address of this host to listen at, or to ask.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "give an IP address and a port, such as 127.0.0.1:2222 or [::]:2222")
}

/// Completes at the first signal to stop.
pub(crate) fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The exit status of a program that has failed; the error is said. A malformed filter is a faulty argument.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    to_stderr(format_args!("switchboard: {error:#}"));
    if error.chain().any(<dyn Error>::is::<ParseError>) {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// Two for the logs, seven for the runtime and its signals, one for the file, and one each for the ports.
const FIRST_DESCRIPTORS: usize = 12;
