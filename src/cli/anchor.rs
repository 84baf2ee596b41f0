//! The arguments of `anchor`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use switchboard::anchor::{self, Destination};
use switchboard::base::units::{Size, UnitError};
use switchboard::daemon::process_size::ProcessSize;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::client_flags::window;
use crate::cli::start::{LogFlags, address, failed, start, stopped};

/// The arguments of `anchor`.
#[derive(Args)]
pub(crate) struct Anchor {
    /// Serve clients at this address
    #[arg(
        long,
        env = "SWITCHBOARD_ANCHOR_LISTEN",
        value_name = "ADDR",
        value_parser = address,
        default_value = "0.0.0.0:2222"
    )]
    listen: SocketAddr,
    /// Carry them to the SSH server at this address, or at this name, which is looked up for each connection
    #[arg(
        long,
        env = "SWITCHBOARD_ANCHOR_TO",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:22"
    )]
    to: Destination,
    /// Serve /metrics, /livez, /readyz and, for processes of this host, /drain at this address
    #[arg(long, env = "SWITCHBOARD_ADMIN", value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Keep a session for so long without a connection
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "24h")]
    grace: Duration,
    /// Keep so many bytes of each direction of a session until they are acknowledged, from 4KiB to 64MiB
    #[arg(long, value_name = "SIZE", value_parser = window, default_value = "1MiB")]
    window: u32,
    /// Keep no more than so many sessions, and as many connections of clients without one
    #[arg(long, value_name = "N", default_value = "1000")]
    max_sessions: NonZeroU32,
    /// Keep no more than so many bytes of all sessions together, at least 64KiB
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "256MiB")]
    memory: Size,
    #[command(flatten)]
    log: LogFlags,
}

impl From<Anchor> for anchor::Options {
    fn from(arguments: Anchor) -> Self {
        Self {
            listen: arguments.listen,
            to: arguments.to,
            admin: arguments.admin,
            grace: arguments.grace,
            window: arguments.window,
            max_sessions: arguments.max_sessions,
            memory: usize::try_from(arguments.memory.get()).unwrap_or(usize::MAX),
        }
    }
}

/// Serves until a signal, and gives the exit status; an error is said.
pub(crate) fn anchor(options: Anchor) -> ExitCode {
    serve(options).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

fn serve(options: Anchor) -> anyhow::Result<()> {
    let (runtime, logging) = start(&options.log, ProcessSize::ANCHOR)?;
    runtime.block_on(async {
        let stopped = stopped().context("cannot listen for signals")?;
        // A terminal that is closed is no reason to end sessions: a handler that does nothing.
        let _hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        let anchor = anchor::Anchor::start(options.into(), logging.logs.clone())?;
        // On a worker thread, as its connections are: in the main thread it would accept faster than they begin.
        tokio::spawn(anchor.run(stopped)).await.context("the anchor has failed")
    })?;
    runtime.shutdown_background();
    drop(logging);
    Ok(())
}

/// With less, the first session would be without a window that carries anything.
fn memory(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: UnitError| error.to_string())?;
    if size.get() < 64 << 10 {
        return Err("an anchor has 64KiB or more".to_owned());
    }
    Ok(size)
}

/// For `--help`.
pub(crate) const ANCHOR_EXITS: &str = "Exit status: 0 stopped by a signal or by POST /drain, 1 runtime error, 2 usage";
