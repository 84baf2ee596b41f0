//! The start of the programs that serve: their logs, their runtime, and their end by a signal.

use std::fs::File;

use anyhow::Context;
use clap::Args;
use clap::error::ErrorKind;
use switchboard::base::platform::ignore_sigxfsz;
use switchboard::daemon::logging::{self, Format, Logging};
use switchboard::daemon::process::ProcessSize;
use switchboard::daemon::{process, threads, vital};
use tokio::runtime::{self, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// The flags of the logs.
#[derive(Args)]
pub(crate) struct LogFlags {
    /// Filter of the messages on stderr, such as `warn` or `debug,h2=warn`; other crates log only if named
    #[arg(long, env = "SWITCHBOARD_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
    /// Format of the messages on stderr
    #[arg(long, env = "SWITCHBOARD_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: Format,
}

/// Starts the runtime and the logs of a program that serves.
pub(crate) fn start(log: &LogFlags, size: ProcessSize) -> anyhow::Result<(Runtime, Logging)> {
    process::unblock_signals().context("cannot unblock signals")?;
    vital::watch();
    vital::mark();
    size.keep_freed_memory();
    let workers = threads::workers(size.workers);
    try_descriptors().context("cannot open the descriptors that a start needs, see RLIMIT_NOFILE")?;
    process::try_calls()?;
    let logging = start_logging(log, size.queued_lines)?;
    let runtime = threads::keep_blocking(&mut runtime::Builder::new_multi_thread())
        .worker_threads(workers.get())
        .enable_all()
        .on_thread_park(vital::mark)
        .build()
        .context("cannot start the runtime")?;
    // The first thread for blocking work: files are followed although the system refuses threads later.
    runtime
        .block_on(runtime.spawn_blocking(|| {}))
        .context("cannot start a thread")?;
    {
        let _entered = runtime.enter();
        ignore_sigxfsz();
    }
    Ok((runtime, logging))
}

/// Checks that there are descriptors for a start: Tokio panics if it has none for its signals.
fn try_descriptors() -> std::io::Result<()> {
    let tried: std::io::Result<Vec<File>> = (0..FIRST_DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    tried.map(drop)
}

fn start_logging(flags: &LogFlags, queued: usize) -> anyhow::Result<Logging> {
    logging::start(&flags.log, flags.log_format, queued).map_err(|error| match error {
        logging::StartError::Filter(fault) => clap::Error::raw(
            ErrorKind::ValueValidation,
            format!("--log: {:#}", anyhow::Error::new(fault)),
        )
        .into(),
        logging::StartError::Open(_) => error.into(),
    })
}

/// Returns a future that completes at SIGTERM or SIGINT.
pub(crate) fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Two for the logs, seven for the runtime and its signals, one for the configuration, two for the first ports.
const FIRST_DESCRIPTORS: usize = 12;
