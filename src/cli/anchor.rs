//! `anchor`: its arguments, and its end by a signal.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use switchboard::anchor;
use switchboard::daemon::process_size::ProcessSize;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::start::{LogFlags, start, stopped};

/// The arguments of `anchor`.
#[derive(Args)]
pub(crate) struct Anchor {
    #[command(flatten)]
    options: anchor::Options,
    #[command(flatten)]
    log: LogFlags,
}

/// Serves until a signal.
pub(crate) fn anchor(arguments: Anchor) -> anyhow::Result<ExitCode> {
    let (runtime, logging) = start(&arguments.log, ProcessSize::ANCHOR)?;
    runtime.block_on(async {
        let stopped = stopped().context("cannot listen for signals")?;
        // A terminal that is closed is no reason to end sessions: a handler that does nothing.
        let _hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        let anchor = anchor::Anchor::start(arguments.options, logging.logs.clone())?;
        // On a worker thread, as its connections are: in the main thread it would accept faster than they begin.
        tokio::spawn(anchor.run(stopped)).await.context("the anchor has failed")
    })?;
    runtime.shutdown_background();
    drop(logging);
    Ok(ExitCode::SUCCESS)
}

/// For `--help`.
pub(crate) const ANCHOR_EXITS: &str = "Exit status: 0 stopped by a signal or by POST /drain, 1 runtime error, 2 usage";
