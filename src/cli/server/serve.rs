//! `serve`: its arguments, its signals, its exit status.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use switchboard::daemon::process::ProcessSize;
use switchboard::proxy::config::{LoadedConfig, Overrides, Purpose};
use switchboard::proxy::serve::{App, Command, LoadConfig, StartError};
use switchboard::tunnel::drain::DrainResult;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::server::drain::DRAIN_CUT;
use crate::cli::start::{LogFlags, start, stopped};

/// The arguments of `serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// Read settings from this file; flags and environment override it
    #[arg(long, env = "SWITCHBOARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    log: LogFlags,
}

/// Serves until the end of a drain.
pub(crate) fn serve(options: Serve) -> anyhow::Result<ExitCode> {
    let (runtime, logging) = start(&options.log, ProcessSize::SERVE)?;
    let drained = runtime.block_on(async {
        let commands = commands().context("cannot listen for signals")?;
        let stopped = stopped().context("cannot listen for signals")?;
        let load_config: LoadConfig =
            Box::new(move || LoadedConfig::from_file(options.config.as_deref(), &options.overrides, Purpose::Serve));
        let start = Box::pin(App::start(load_config, logging.logs.clone()));
        tokio::select! {
            app = start => match app {
                Ok(app) => Ok(Box::pin(app.run(commands)).await),
                Err(StartError::Config(report)) => Err(anyhow::Error::new(report)),
                Err(error) => Err(error.into()),
            },
            // A signal during the start: the configuration may be on a mount that hangs. Nothing is served yet.
            () = stopped => Ok(DrainResult::Clean),
        }
    });
    // The drain is over: tasks that still run have had their deadline.
    runtime.shutdown_background();
    drop(logging);
    Ok(match drained? {
        DrainResult::Clean => ExitCode::SUCCESS,
        DrainResult::Cut => ExitCode::from(DRAIN_CUT),
    })
}

/// Turns signals into commands, for as long as the runtime lives.
fn commands() -> std::io::Result<mpsc::Receiver<Command>> {
    let (sender, receiver) = mpsc::channel(QUEUED_COMMANDS);
    for (kind, command) in [
        (SignalKind::hangup(), Command::Reload),
        (SignalKind::terminate(), Command::Stop),
        (SignalKind::interrupt(), Command::Stop),
    ] {
        let mut signals = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(command).await.is_ok() {} });
    }
    Ok(receiver)
}

/// For `--help`.
pub(crate) const SERVE_EXITS: &str =
    "Exit status: 0 drained, 1 runtime error, 2 usage or configuration, 3 tunnels were cut";
const QUEUED_COMMANDS: usize = 4;
