//! The start of the programs that serve: their logs, their runtime, and their end by a signal.

use anyhow::Context;
use clap::Args;
use clap::error::ErrorKind;
use switchboard::base::platform::{ignore_sigxfsz, mark_vital, start_runtime};
use switchboard::daemon::logging::{self, Format, Logging};
use switchboard::daemon::process::ProcessSize;
use switchboard::daemon::{process, threads};
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
    size.keep_freed_memory();
    let workers = threads::workers(size.workers);
    let mut builder = runtime::Builder::new_multi_thread();
    builder.worker_threads(workers.get()).on_thread_park(mark_vital);
    let runtime = start_runtime(&mut builder, FIRST_DESCRIPTORS)?;
    let logging = start_logging(log, size.queued_lines)?;
    {
        let _entered = runtime.enter();
        ignore_sigxfsz();
    }
    Ok((runtime, logging))
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

/// Two for the logs, one for the configuration, two for the first ports.
const FIRST_DESCRIPTORS: usize = 5;
